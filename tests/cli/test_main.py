"""Usage, errors and exit statuses, with an analysis that is made by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.report.sample import HOSTILE, sample_view
from torchgauge.cli import main, with_command
from torchgauge.errors import ForwardError, TargetError, UsageError
from torchgauge.facts import View

Analyze = Callable[..., View]


@pytest.fixture
def fake_analysis(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """`torchgauge.analysis` replaced: every call is noted and answered with the sample."""
    calls: list[tuple[Any, dict[str, Any]]] = []

    def analyze(target: Any, **options: Any) -> View:
        calls.append((target, options))
        return sample_view()

    install(monkeypatch, analyze)
    return calls


def install(monkeypatch: pytest.MonkeyPatch, analyze: Analyze) -> None:
    monkeypatch.setattr("torchgauge.analysis.analyze", analyze)


def failing(error: BaseException) -> Analyze:
    def analyze(target: Any, **options: Any) -> View:
        raise error

    return analyze


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["timm:resnet18", "--depth", "2"], ["analyze", "timm:resnet18", "--depth", "2"]),
        (["--depth", "2", "timm:resnet18"], ["analyze", "--depth", "2", "timm:resnet18"]),
        (["analyze", "system"], ["analyze", "system"]),
        (["system", "--json"], ["system", "--json"]),
        (["--debug", "--json", "system"], ["system", "--debug", "--json"]),
        (["--quiet", "a.py:B"], ["analyze", "--quiet", "a.py:B"]),
        (["--version"], ["--version"]),
        (["-h"], ["-h"]),
    ],
)
def test_a_bare_target_means_analyze(given: list[str], meant: list[str]) -> None:
    assert with_command(given) == meant


def test_the_report_goes_to_stdout(fake_analysis: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["a.py:Net"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Sample · sample.py:Sample\n")
    assert "\x1b" not in out
    assert err == ""


def test_the_options_reach_the_analysis(fake_analysis: list[Any]) -> None:
    import torch

    command = "a.py:Net --input 1x3x8x8 --input ids=1x4:int64 --batch 2 --seq 7 --dtype bf16 --device cuda --mode train"
    command += " --as b.py:Net --allow-pickle --no-weights --deep --inference --profile --sweep batch=1,2 --threads 3"
    command += " --budget 4.5 --memory-fraction 0.5 --profile-level modules --carbon DE --pue 1.2"
    command += " --no-advice --silence tf32-off --verify --execution compiled"
    assert main([*command.split(), "--quiet"]) == 0
    ((target, options),) = fake_analysis
    assert target == "a.py:Net"
    image, ids = options.pop("specs")
    assert (image.name, image.shape) == (None, (1, 3, 8, 8))
    assert (ids.name, ids.shape) == ("ids", (1, 4))
    assert options == {
        "batch": 2,
        "seq": 7,
        "dtype": torch.bfloat16,
        "device": "cuda",
        "mode": "train",
        "execution": "compiled",
        "inference": True,
        "profile": True,
        "sweep": ["batch=1,2"],
        "threads": 3,
        "budget_s": 4.5,
        "memory_fraction": 0.5,
        "profile_level": "modules",
        "carbon": "DE",
        "carbon_intensity": None,
        "pue": 1.2,
        "carbon_rate": None,
        "weights": False,
        "deep": True,
        "spectrum": False,
        "code": "b.py:Net",
        "allow_pickle": True,
        "memory_limit": None,
        "require_isolation": False,
        "time_limit": None,
        "advice": False,
        "all_advice": False,
        "on": [],
        "silence": ["tf32-off"],
        "verify": True,
        "progress": False,
    }


def test_the_table_follows_depth_columns_and_sort(fake_analysis: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["a.py:Net", "--depth", "1", "--columns", "ops, params", "--sort", "ops"]) == 0
    table = capsys.readouterr().out.split("\nModules\n")[1].splitlines()
    assert table[0].split() == ["Module", "Ops", "Params"]
    assert [line.split()[1] for line in table[2:5]] == ["blocks", "stem", "shared"]


def test_json_is_printed_instead_of_text(fake_analysis: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["a.py:Net", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"]["name"] == "sample.py:Sample"


def test_every_output_file_is_written(
    fake_analysis: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["r.json", "r.csv", "r.ops.csv", "r.txt"]
    options = [word for name in names for word in ("-o", str(tmp_path / name))]
    assert main(["a.py:Net", *options]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert capsys.readouterr().err.splitlines() == [f"wrote {tmp_path / name}" for name in names]


def test_quiet_prints_nothing_and_still_writes(
    fake_analysis: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["a.py:Net", "--quiet", "-o", str(tmp_path / "r.json")]) == 0
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "r.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--columns", "params,colour"], "there is no column 'colour'; choose from: path,"),
        (["--sort", "colour"], "there is no column 'colour'"),
        (["--depth", "-1"], "depth must be at least 0"),
        (["-o", "r.docx"], "'r.docx': the name must end in one of: .csv, "),
    ],
)
def test_a_wrong_option_is_reported_before_the_analysis_starts(
    options: list[str], message: str, fake_analysis: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["a.py:Net", *options]) == 2
    assert message in capsys.readouterr().err
    assert fake_analysis == []


@pytest.mark.parametrize(
    "argv",
    [
        ["a.py:Net", "--nonsense"],
        ["a.py:Net", "--batch", "0"],
        ["a.py:Net", "--batch", "many"],
        ["a.py:Net", "--mode", "dream"],
        ["analyze"],
        ["--quiet"],
        ["system", "extra"],
    ],
)
def test_wrong_usage_exits_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(argv)
    assert exit_info.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_no_arguments_show_the_help_and_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"),
    [(TargetError("no file 'a.py'"), 1), (ForwardError("it failed", module="a"), 1), (UsageError("bad form"), 2)],
)
def test_an_error_is_one_message_and_its_exit_status(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, failing(error))
    assert main(["a.py:Net"]) == status
    assert capsys.readouterr() == ("", f"torchgauge: error: {error}\n")


def test_debug_adds_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    install(monkeypatch, failing(TargetError("no such file")))
    assert main(["a.py:Net", "--debug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("torchgauge: error: no such file\n")


def test_names_in_a_message_do_not_act_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, failing(TargetError(f"no module {HOSTILE}", "look again")))
    assert main(["a.py:Net"]) == 1
    assert capsys.readouterr().err == "torchgauge: error: no module \\x1b[31m[b]<i>\nlook again\n"


def test_a_misspelt_command_is_recognised(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    install(monkeypatch, failing(UsageError("'sytsem' is not a target")))
    assert main(["sytsem"]) == 2
    assert capsys.readouterr().err.endswith("Did you mean the command 'system'?\n")


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, failing(KeyboardInterrupt()))
    assert main(["a.py:Net"]) == 130


@pytest.mark.parametrize(("flags", "shown"), [([], "torchgauge: warning: careful\n"), (["--quiet"], "")])
def test_a_warning_is_one_line_unless_quiet(
    flags: list[str], shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def analyze(target: Any, **options: Any) -> View:
        warnings.simplefilter("always")
        warnings.warn("careful", UserWarning, stacklevel=1)
        return sample_view()

    install(monkeypatch, analyze)
    before = warnings.showwarning
    assert main(["a.py:Net", *flags]) == 0
    assert capsys.readouterr().err == shown
    assert warnings.showwarning is before


def test_a_closed_pipe_is_not_an_error() -> None:
    code = """
from torchgauge.cli import main, system
system.run = lambda args: print("x" * 10**6) or 0
raise SystemExit(main(["system"]))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("streams", [(1,), (2,), (0, 1, 2)])
@pytest.mark.skipif(sys.platform == "win32", reason="`>&-` is a form of POSIX shells")
def test_a_closed_stream_is_not_an_error_and_no_file_takes_its_number(streams: tuple[int, ...], tmp_path: Path) -> None:
    code = f"""
import os, sys
from pathlib import Path
from torchgauge.cli import main, system

def run(args):
    with open({str(tmp_path / "a file")!r}, "w") as file:
        os.write(1, b"to stdout")
        os.write(2, b"to stderr")
    print("a report", flush=True)
    return 0

system.run = run
raise SystemExit(main(["system"]))
"""
    closed = " ".join(f"{stream}>&-" for stream in streams)
    command = ["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, code]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0
    assert "Traceback" not in found.stderr
    assert ("a report" in found.stdout) == (1 not in streams)
    assert (tmp_path / "a file").read_text() == ""


@pytest.mark.parametrize("error", [KeyError("shape"), RecursionError("too deep"), AssertionError()])
def test_an_unexpected_error_is_one_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, failing(error))
    assert main(["a.py:Net"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"torchgauge: error: {type(error).__name__}: ")
    assert "run again with --debug" in err
    assert main(["a.py:Net", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    from torchgauge import __version__

    with pytest.raises(SystemExit) as exit_info:
        main(["--version"])
    assert exit_info.value.code == 0
    assert capsys.readouterr().out == f"torchgauge {__version__}\n"
