from __future__ import annotations

from typing import Any

import pytest
import torch

import torchgauge as tg
from torchgauge.errors import UsageError
from torchgauge.measure import Settings, applied, read_settings

CPU = torch.device("cpu")
VARIABLES = {
    "TORCHGAUGE_THREADS": "3",
    "TORCHGAUGE_BUDGET": "2.5",
    "TORCHGAUGE_MEMORY_FRACTION": "0.5",
    "TORCHGAUGE_PROFILE_LEVEL": "latency",
}


def test_the_environment_sets_the_defaults() -> None:
    assert read_settings(environ=VARIABLES) == Settings(3, 0.5, 2.5, "latency")


def test_options_override_the_environment() -> None:
    given: dict[str, Any] = {"threads": 1, "memory_fraction": 0.25, "budget_s": 1.0, "profile_level": "ops"}
    assert read_settings(**given, environ=VARIABLES) == Settings(1, 0.25, 1.0, "ops")


@pytest.mark.parametrize(
    ("number", "level"), [("0", "latency"), ("1", "modules"), ("2", "ops"), ("7", "ops"), ("-1", "latency")]
)
def test_the_variables_of_the_cpp_analyser_are_honoured_with_a_note(number: str, level: str) -> None:
    theirs = {"PYTORCH_CUDA_MEMORY_FRACTION": "0.8", "PYTORCH_PROFILER_LEVEL": number}
    found = read_settings(environ=theirs)
    assert (found.memory_fraction, found.profile_level) == (0.8, level)
    assert found.notes == (
        "PYTORCH_CUDA_MEMORY_FRACTION=0.8 is used as --memory-fraction 0.8",
        f"PYTORCH_PROFILER_LEVEL={number} is used as --profile-level {level}",
    )
    assert "notes" not in found.figures(profile=True)


def test_arguments_and_variables_of_ours_come_before_those_of_the_cpp_analyser() -> None:
    theirs = {"PYTORCH_CUDA_MEMORY_FRACTION": "0.8", "PYTORCH_PROFILER_LEVEL": "2"}
    assert read_settings(environ=VARIABLES | theirs) == Settings(3, 0.5, 2.5, "latency")
    assert read_settings(memory_fraction=0.3, profile_level="modules", environ=theirs) == Settings(
        memory_fraction=0.3, profile_level="modules"
    )
    with pytest.raises(UsageError, match="PYTORCH_PROFILER_LEVEL is not a number: 'high'"):
        read_settings(environ={"PYTORCH_PROFILER_LEVEL": "high"})


def test_the_note_is_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_PROFILER_LEVEL", "0")
    found = tg.analyze(torch.nn.Linear(4, 4), input_size=(1, 4), inference=True, budget_s=0.02, progress=False)
    assert found.measurements is not None
    assert found.measurements["settings"]["profile_level"] == "latency"
    assert "PYTORCH_PROFILER_LEVEL=0 is used as --profile-level latency" in found.measurements["notes"]
    assert "PYTORCH_PROFILER_LEVEL=0 is used as" in str(found)


def test_without_either_torch_decides() -> None:
    assert read_settings(environ={"TORCHGAUGE_THREADS": ""}) == Settings()


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("TORCHGAUGE_THREADS", "many"),
        ("TORCHGAUGE_THREADS", "0"),
        ("TORCHGAUGE_THREADS", "100000"),
        ("TORCHGAUGE_BUDGET", "-1"),
        ("TORCHGAUGE_BUDGET", "nan"),
        ("TORCHGAUGE_MEMORY_FRACTION", "1.5"),
        ("TORCHGAUGE_PROFILE_LEVEL", "everything"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_the_variable(variable: str, text: str) -> None:
    with pytest.raises(UsageError, match=variable):
        read_settings(environ={variable: text})


@pytest.mark.parametrize("given", [{"threads": "2"}, {"threads": 1.5}, {"budget_s": "1"}, {"memory_fraction": "all"}])
def test_a_value_of_another_type_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(given))):
        read_settings(**given, environ={})


@pytest.mark.parametrize(
    ("level", "profile", "reported"),
    [(None, False, "modules"), (None, True, "ops"), ("latency", True, "latency"), ("ops", False, "ops")],
)
def test_the_level_is_that_of_the_request_unless_it_is_set(level: str | None, profile: bool, reported: str) -> None:
    settings = Settings(profile_level=level)
    assert settings.level(profile=profile) == reported
    assert settings.figures(profile=profile)["profile_level"] == reported


def test_the_number_of_threads_is_as_before_after_a_failure() -> None:
    before = torch.get_num_threads()
    inside = 1 if before > 1 else 2
    seen: list[int] = []

    def fail() -> None:
        with applied(Settings(threads=inside, memory_fraction=0.5), CPU):
            seen.append(torch.get_num_threads())
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fail()
    assert seen == [inside]
    assert torch.get_num_threads() == before
