from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from torchgauge.capture import death_text
from torchgauge.errors import TorchgaugeError
from torchgauge.hardware import peaks_of
from torchgauge.measure import (
    COPY,
    DTYPES,
    PACE,
    Absent,
    ProbeDiedError,
    buffer_bytes,
    calibrate_device,
    doubts,
    last_cache_bytes,
    matmul,
    measure_rates,
    outcome,
)

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(tmp_path / "cache"))


class Probe:
    """Answers every part with a rate, except those that kill it."""

    def __init__(self, deadly: Sequence[str] = (), reasons: dict[str, str] | None = None) -> None:
        self.deadly, self.reasons = deadly, reasons or {}
        self.started: list[list[str]] = []

    def __call__(self, device: str, parts: Sequence[str]) -> Iterator[str]:
        self.started.append(list(parts))
        for part in parts:
            yield json.dumps({"begin": part})
            if part in self.deadly:
                raise ProbeDiedError(death_text(-signal.SIGILL))
            answer = {"reason": self.reasons[part]} if part in self.reasons else {"rate": float(len(part))}
            yield json.dumps({"end": part} | answer)


def test_a_part_that_kills_the_process_costs_only_itself() -> None:
    probe = Probe(deadly=("b", "d"))
    found = dict(measure_rates("cpu", ("a", "b", "cc", "d"), launch=probe))
    assert (found["a"], found["cc"]) == (1.0, 2.0)
    assert isinstance(found["b"], Absent)
    assert "SIGILL" in found["b"].reason
    assert isinstance(found["d"], Absent)
    assert probe.started == [["a", "b", "cc", "d"], ["cc", "d"]]


def test_a_process_that_dies_before_its_first_part_is_an_error() -> None:
    def launch(device: str, parts: Sequence[str]) -> Iterator[str]:
        raise ProbeDiedError("the process ended with status 1")
        yield ""

    with pytest.raises(TorchgaugeError, match="cuda:0 cannot be measured: the process ended with status 1"):
        list(measure_rates("cuda:0", ("a",), launch=launch))


@pytest.mark.parametrize("lines", [[], ["hello"], ["[1]"], ['{"end": "other", "rate": 1.0}'], ['{"end": "a"}']])
def test_a_process_without_an_answer_is_not_started_for_ever(lines: list[str]) -> None:
    started: list[Sequence[str]] = []

    def launch(device: str, parts: Sequence[str]) -> Iterator[str]:
        started.append(parts)
        yield from lines

    with pytest.raises(TorchgaugeError, match=r"^cpu cannot be measured: "):
        list(measure_rates("cpu", ("a",) if lines else ("a", "b"), launch=launch))
    assert len(started) == 1


def test_a_part_that_begins_and_never_ends_is_lost_alone() -> None:
    def launch(device: str, parts: Sequence[str]) -> Iterator[str]:
        yield json.dumps({"begin": parts[0]})

    found = dict(measure_rates("cpu", ("a", "b"), launch=launch))
    assert [isinstance(rate, Absent) for rate in found.values()] == [True, True]


def test_the_probes_exit_without_a_word_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(TorchgaugeError, match="cpu cannot be measured: the measuring process ended without an answer"):
        list(measure_rates("cpu", ("float32",)))


def test_measured_rates_are_saved_under_the_devices_name() -> None:
    reported: list[tuple[int, int, str]] = []
    probe = Probe(deadly=("bfloat16",), reasons={"tf32": "only CUDA devices have TF32"})
    found = calibrate_device("cpu", "A CPU", "with torch 2", lambda *part: reported.append(part), probe)
    assert found.absent.keys() == {"bfloat16", "tf32"}
    peaks = peaks_of("A CPU", "cpu")
    assert peaks is not None
    assert peaks.rate("float32") == len("float32")
    assert peaks.rate("float8_e4m3fn") == len("float8")
    assert peaks.rate("bfloat16") is None
    assert peaks.bytes_per_s == len(COPY)
    assert "with torch 2" in peaks.source
    assert peaks.pace is not None
    assert peaks.pace.call_s == 1 / len("call")
    assert peaks.pace.bytes_per_s[1 << 21] == len("pass-2097152")
    assert [done for done, _, _ in reported] == list(range(len(DTYPES) + 1 + len(PACE)))


def test_a_device_without_bandwidth_is_not_remembered() -> None:
    with pytest.raises(TorchgaugeError, match="cpu cannot be measured: out of memory"):
        calibrate_device("cpu", "A CPU", "", None, Probe(reasons={COPY: "out of memory"}))
    assert peaks_of("A CPU", "cpu") is None


@pytest.mark.slow
def test_the_rates_are_measured_in_a_separate_process() -> None:
    found = dict(measure_rates("cpu", ("float32", "nonsense")))
    assert isinstance(found["float32"], float)
    assert found["float32"] > 1e6
    assert isinstance(found["nonsense"], Absent)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_matmul_multiplies_square_matrices_of_its_type(dtype: str) -> None:
    product = matmul(dtype, 8, CPU)()
    assert isinstance(product, torch.Tensor)
    assert product.shape == (8, 8)
    assert str(product.dtype) == f"torch.{dtype}"


def test_unsupported_types_have_a_reason() -> None:
    assert outcome("tf32", CPU) == {"reason": "only CUDA devices have TF32"}
    assert "reason" in outcome("no_such_type", CPU)


def test_the_last_cache_is_the_largest(tmp_path: Path) -> None:
    for index, size in enumerate(("48K", "2048K", "266240K")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert last_cache_bytes(tmp_path) == 266240 * 1024
    assert last_cache_bytes(tmp_path / "nowhere") == 64 * 2**20


def test_the_buffers_leave_memory_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 800 * 2**20

    monkeypatch.setattr("torchgauge.measure.rates.psutil.virtual_memory", Memory)
    assert buffer_bytes(CPU) == 100 * 2**20


def test_other_work_on_the_machine_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda: 4)
    monkeypatch.setattr("psutil.getloadavg", lambda: (3.0, 0.0, 0.0))
    assert "load average 3.0 on 4 cores" in doubts("cpu")[0]
    assert doubts("cuda:0") == []
    monkeypatch.setattr("psutil.getloadavg", lambda: (0.1, 0.0, 0.0))
    assert doubts("cpu") == []


def test_a_processor_whose_pace_is_not_known_in_full_has_none() -> None:
    calibrate_device("cpu", "A CPU", "with torch 2", launch=Probe(deadly=("depthwise",)))
    peaks = peaks_of("A CPU", "cpu")
    assert peaks is not None
    assert peaks.pace is None


def test_the_pace_of_a_gpu_is_not_asked_for() -> None:
    probe = Probe()
    calibrate_device("cuda:0", "A GPU", "with torch 2", launch=probe)
    assert not set(PACE).intersection(*probe.started)


@pytest.mark.parametrize("part", PACE)
def test_each_part_of_the_pace_is_measured(part: str) -> None:
    rate = outcome(part, CPU)["rate"]
    assert isinstance(rate, float)
    assert 1e2 < rate < 1e13
