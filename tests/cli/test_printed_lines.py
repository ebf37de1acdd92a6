"""Names from files start no line of their own, and no line that a CI runner takes for a command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from torchgauge.cli import main
from torchgauge.errors import FormatError, TorchgaugeError, UsageError
from torchgauge.report.layout import Span, plain, wrap
from torchgauge.units import inert_lines, visible

COMMANDS = [
    "::error::forged",
    "::set-output name=a::b",
    "##[set-output name=a]b",
    "x ##[error]y",
    "##vso[task.setvariable]z",
]
NAMES = [f"{command}.{part}" for command in COMMANDS for part in ("weight", "bias")]
# What the runners look for: after leading spaces, and anywhere in a line.
_AT_START = re.compile(r"\s*::")
_ANYWHERE = re.compile(r"##\w*\[")


def commands_in(text: str) -> list[str]:
    return [line for line in text.splitlines() if _AT_START.match(line) or _ANYWHERE.search(line)]


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    save_file({name: torch.ones(6, 3) for name in NAMES}, "named.safetensors")
    return "named.safetensors"


@pytest.mark.parametrize("width", ["60", "200"])
@pytest.mark.parametrize("command", ["analyze", "weights", "compare", "check"])
def test_a_name_from_a_file_is_no_command_of_a_ci_runner(
    command: str, width: str, weights: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    save_file({name: torch.arange(12.0).reshape(4, 3) for name in NAMES}, "other.safetensors")
    targets = [weights, "other.safetensors"] if command == "compare" else [weights]
    options = ["--max", "params=1"] if command == "check" else []
    assert main([command, *targets, *options]) == (3 if command == "check" else 0)
    out, err = capsys.readouterr()
    assert "error" in out, "the names are shown"
    assert commands_in(out) == commands_in(err) == []


@pytest.mark.parametrize("suffix", ["txt", "md", "csv", "weights.csv", "json", "jsonl"])
def test_no_line_of_a_written_file_is_a_command(suffix: str, weights: str) -> None:
    assert main([weights, "--quiet", "-o", f"report.{suffix}"]) == 0
    text = Path(f"report.{suffix}").read_text(encoding="utf-8")
    assert "forged" in text
    assert commands_in(text) == []


def test_a_saved_run_is_shown_without_commands_and_keeps_its_names(
    weights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([weights, "--quiet", "-o", "run.json"]) == 0
    assert {row["name"] for row in json.loads(Path("run.json").read_text())["weights"]} == set(NAMES)
    assert main(["compare", "run.json", "run.json"]) == 0
    assert main(["check", "run.json", "--max", "params=1"]) == 3
    assert main([weights, "--json"]) == 0
    assert commands_in("\n".join(capsys.readouterr())) == []


def test_annotations_of_a_check_are_the_only_commands(weights: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", weights, "--max", "params=1", "--github"]) == 3
    (annotation,) = commands_in(capsys.readouterr().out)
    assert annotation.startswith("::error title=named.safetensors%3A params::")


def test_a_wrapped_name_starts_no_command() -> None:
    text = "see " + "a" * 8 + "::error::forged " * 3
    lines = plain(wrap(text, 12, lead=(Span("  "),))).splitlines()
    assert len(lines) > 3
    assert commands_in("\n".join(lines)) == []
    assert "".join(line.strip() for line in lines).replace(r"\x3a", ":").count("::error::") == 3


@pytest.mark.parametrize("text", ["aten::conv", "a:b", "# heading", "## heading", "text ::", ":not", "a\n b::c"])
def test_other_text_stays_as_it_is(text: str) -> None:
    assert inert_lines(text) == text
    assert "\n" in text or visible(text) == text


FORGED = "a\ntorchgauge: everything is fine\n::error::forged"


@pytest.mark.parametrize("command", ["analyze", "weights", "check", "llm"])
def test_a_line_break_in_the_name_of_a_file_forges_no_message(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    Path(f"{FORGED}.pt").write_bytes(b"not a model")
    Path("empty").mkdir()
    options = ["--max", "params=1"] if command == "check" else []
    for target in (f"{FORGED}.pt", f"{FORGED}.gone", f"{FORGED}.py:Net", "empty"):
        assert main([command, target, *options]) in (1, 2)
        out, err = capsys.readouterr()
        assert not {line for line in err.splitlines() if not line.startswith("torchgauge: error: ")}, target
        assert "everything is fine" not in [line.strip() for line in (out + err).splitlines()]
        assert commands_in(out + err) == []


def test_a_line_break_in_the_name_of_a_tensor_forges_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(
        "from torch import nn\nclass Net(nn.Linear):\n    def __init__(self): super().__init__(2, 2)\n"
    )
    torch.save({FORGED: torch.ones(2), "weight": torch.ones(3, 3)}, "named.pt")
    assert main(["named.pt", "--as", "nets.py:Net"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert not [line for line in lines if line.startswith(("torchgauge: everything", "::"))]
    assert any(r"a\ntorchgauge: everything is fine" in line for line in lines)


def test_the_further_lines_of_a_message_are_those_that_it_declares() -> None:
    error = UsageError("choose one:", "  first", f"  {FORGED}")
    assert str(error).splitlines() == [
        "choose one:",
        "  first",
        r"  a\ntorchgauge: everything is fine\n::error::forged",
    ]
    assert str(FormatError("a\x1bb", imports=())) == r"a\x1bb"
    assert str(TorchgaugeError()) == ""


@pytest.mark.filterwarnings("always")
def test_only_the_first_line_of_a_warning_is_torchgauges_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "    warnings.warn('first\\ntorchgauge: all is well')\n    return nn.Linear(2, 2)\n"
    Path("nets.py").write_text("import warnings\nfrom torch import nn\ndef net():\n" + code)
    assert main(["nets.py:net", "--input", "1x2"]) == 0
    assert "torchgauge: warning: first\n  torchgauge: all is well\n" in capsys.readouterr().err
