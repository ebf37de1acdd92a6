"""Files read by a process without rights: the same result as without isolation, for every command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import torchgauge as tg
from torchgauge import isolation
from torchgauge.cli import main
from torchgauge.isolation import is_isolated

MEASURED = ("seconds", "created", "threads")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(8, 4)).eval()  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, model = tmp_path_factory.mktemp("files"), net()
    found = {name: folder / f"net.{name}" for name in ("pt", "safetensors", "pt2", "script", "json")}
    torch.save(model.state_dict(), found["pt"])
    save_file(model.state_dict(), found["safetensors"])
    torch.export.save(torch.export.export(model, (torch.zeros(1, 3, 8, 8),)), found["pt2"])
    torch.jit.trace(model, torch.zeros(1, 3, 8, 8)).save(found["script"])
    return found


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in MEASURED}
    return [without_times(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", ["pt", "safetensors", "pt2", "script"])
@pytest.mark.parametrize("function", [tg.analyze, tg.scan_weights])
def test_the_result_is_that_of_reading_without_isolation(
    function: Any, kind: str, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    isolated = function(files[kind])
    module = "weight_scan" if function is tg.scan_weights else "pipeline"
    monkeypatch.setattr(f"torchgauge.analysis.{module}.needs_isolation", lambda *_, **__: False)
    plain = function(files[kind])
    assert type(isolated) is type(plain)
    assert without_times(json.loads(json.dumps(isolated.to_dict()))) == without_times(
        json.loads(json.dumps(plain.to_dict()))
    )
    if not any(word in str(plain) for word in ("/s,", "ms,")):
        assert str(isolated) == str(plain)


def test_a_live_module_is_analysed_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.isolation.process.run_isolated", None)
    monkeypatch.setattr(isolation, "run_isolated", None)
    assert tg.analyze(net(), input_size=(1, 3, 8, 8)).totals.params == 276


@pytest.mark.parametrize("function", [tg.analyze, tg.scan_weights])
def test_limits_are_arguments(function: Any, files: dict[str, Path]) -> None:
    with pytest.raises(tg.LimitError, match="--time-limit"):
        function(files["pt2"], time_limit=1e-9)
    with pytest.raises(tg.LimitError, match="--memory-limit"):
        function(files["pt2"], memory_limit=1)
    with pytest.raises(tg.UsageError, match="memory limit"):
        function(files["pt2"], memory_limit=-5)


@pytest.mark.parametrize("command", ["analyze", "weights", "check", "compare"])
def test_exceeding_a_limit_is_exit_status_1_and_one_sentence(
    command: str, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"check": ["--max", "params=1"], "compare": [str(files["pt"])]}.get(command, [])
    for option, value in (("--time-limit", "1e-9"), ("--memory-limit", "1")):
        assert main([command, str(files["pt2"]), *more, option, value]) == 1
        told = capsys.readouterr().err.splitlines()
        assert (len(told), option in told[0]) == (1, True), told


def test_a_measured_file_is_read_in_isolation_first_and_says_where_it_ran(files: dict[str, Path]) -> None:
    found = tg.analyze(files["pt2"], inference=True, budget_s=0.01, profile_level="latency")
    assert found.measurements is not None
    assert [text for text in found.capture.run.warnings if "outside the isolated process" in text]
    with pytest.raises(tg.LimitError):
        tg.analyze(files["pt2"], inference=True, budget_s=0.01, time_limit=1e-9)


@pytest.mark.parametrize("kind", ["pt", "pt2"])
def test_a_reader_that_ends_between_two_checks_of_its_time_is_late_too(
    kind: str, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchgauge.isolation.process._CHECK_INTERVAL_S", 60.0)
    with pytest.raises(tg.LimitError):
        tg.analyze(files[kind], time_limit=1e-9)
    assert tg.analyze(files[kind], time_limit=60.0).ops is not None


def test_training_works_though_this_process_has_run_a_backward_pass(files: dict[str, Path]) -> None:
    net().requires_grad_()(torch.zeros(1, 3, 8, 8)).sum().backward()
    found = tg.analyze(files["pt2"], mode="train", weights=False)
    assert any(row.phase == "backward" for row in found.ops)


def test_inputs_and_code_of_this_process_reach_the_reader(files: dict[str, Path]) -> None:
    found = tg.analyze(files["pt"], code=net(), inputs=torch.zeros(2, 3, 9, 9), weights=False)
    assert found.capture.inputs[0].spec.shape == (2, 3, 9, 9)


def test_rows_arrive_as_they_are_finished(files: dict[str, Path]) -> None:
    rows: list[Any] = []
    scan = tg.scan_weights(files["safetensors"], on_row=rows.append)
    assert [row["name"] for row in rows] == [row.name for row in scan.weights]


def test_what_on_row_raises_is_the_callers(files: dict[str, Path]) -> None:
    def full(row: object) -> None:
        raise OSError("their disk")

    with pytest.raises(OSError, match="their disk"):
        tg.scan_weights(files["safetensors"], on_row=full)


def test_files_are_written_for_a_command_without_rights(files: dict[str, Path], tmp_path: Path) -> None:
    outputs = [tmp_path / name for name in ("a.html", "a.json", "a.jsonl", "a.csv")]
    arguments = [part for output in outputs for part in ("-o", str(output))]
    assert main(["weights", str(files["pt"]), "--quiet", *arguments]) == 0
    assert all(output.stat().st_size for output in outputs)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.html", "a.json", "a.jsonl"]


def test_a_command_whose_targets_are_files_runs_without_rights(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tell(args: object) -> int:
        print(is_isolated())
        return 0

    monkeypatch.setattr("torchgauge.cli.analyze.run", tell)
    for arguments, expected in (
        ([str(files["pt"])], "True"), ([str(files["pt"]), "--inference"], "False"),
        ([str(files["pt"]), "--allow-pickle"], "False"), (["timm:resnet18"], "False"),
    ):  # fmt: skip
        assert main(arguments) == 0
        assert capsys.readouterr().out.strip() == expected


def test_kernels_are_compiled_by_name_and_type_from_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba import types

    from torchgauge.weights.kernels import jit

    arrays = [types.Array(types.float64, 2, "C"), types.Array(types.uint8, 1, "C", readonly=True)]
    kinds = [*arrays, types.int64, types.boolean, types.Tuple((arrays[0], types.UniTuple(types.float32, 2)))]
    assert [jit._named_type(jit._name_of(kind)) for kind in kinds] == kinds

    class Kernel:
        compiled: ClassVar[list[Any]] = []

        def compile(self, signature: Any) -> None:
            self.compiled.append(signature)

    monkeypatch.setattr(jit, "_ENTRIES", {"known": Kernel()})
    for name, wanted in (("os.system", "int64"), ("known", "__import__('os')"), ("known", "array(int64, 9d, C)")):
        jit.compile_entry(name, [wanted])
    assert Kernel.compiled == []
    jit.compile_entry("known", ["int64", ["float32", "float32"]])
    assert Kernel.compiled == [(types.int64, types.UniTuple(types.float32, 2))]


@pytest.mark.parametrize("is_used", [False, True])
def test_a_file_is_read_after_the_number_of_threads_was_set(is_used: bool, files: dict[str, Path]) -> None:
    script = f"""
        import torch
        torch.set_num_threads(3)
        if {is_used}:
            torch.randn(400, 400) @ torch.randn(400, 400)
        import torchgauge as tg
        for _ in range(2):
            print(len(tg.scan_weights({str(files["pt"])!r}).weights), torch.get_num_threads())
        print(tg.analyze({str(files["pt2"])!r}).to_dict()["environment"]["threads"])
    """
    done = subprocess.run([sys.executable, "-c", dedent(script)], capture_output=True, text=True, timeout=300)
    rows = len(net().state_dict())
    assert (done.stdout.split(), done.returncode) == ([f"{rows}", "3", f"{rows}", "3", "3"], 0), done.stderr


def test_a_program_without_streams_reads_files_and_models(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    assert len(tg.scan_weights(files["pt"], progress=True).weights) == len(net().state_dict())
    measured = tg.analyze(net(), inputs=torch.zeros(1, 3, 8, 8), inference=True, budget_s=0.01, progress=True)
    assert measured.measurements is not None


@pytest.fixture
def without_landlock(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("torchgauge.isolation.rights._landlock_version", lambda: 0)
    return "landlock (this kernel has no Landlock, or it is switched off)"


def test_a_missing_barrier_is_a_line_of_the_report(
    without_landlock: str, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    expected = f"read without {without_landlock}"
    for found in (tg.analyze(files["pt2"]), tg.scan_weights(files["pt"])):
        assert found.capture.run.warnings.count(expected) == 1
        assert " ".join(str(found).split()).count(expected) == 1
    fitted = tg.fit(files["pt2"])
    assert isinstance(fitted, tg.Fit)
    assert fitted.warnings.count(expected) == 1
    predicted = tg.forecast(files["pt2"])
    assert isinstance(predicted, tg.Forecast)
    assert predicted.warnings.count(expected) == 1
    assert main(["weights", str(files["pt"])]) == 0
    assert " ".join(capsys.readouterr().out.split()).count(expected) == 1
    assert main(["system"]) == 0
    assert "absent: this kernel has no Landlock" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["analyze", "weights", "check", "compare", "fit", "forecast", "llm"])
def test_a_file_is_refused_where_isolation_is_required_and_a_barrier_is_missing(
    command: str, without_landlock: str, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"check": ["--max", "params=1"], "compare": [str(files["pt"])]}.get(command, [])
    assert main([command, str(files["pt2"]), *more, "--require-isolation"]) == 1
    told = capsys.readouterr().err
    assert (f"this machine lacks {without_landlock}" in told, len(told.splitlines())) == (True, 1)


@pytest.mark.parametrize("function", [tg.analyze, tg.scan_weights, tg.fit, tg.forecast, tg.llm])
def test_functions_refuse_a_file_where_a_barrier_is_missing(
    function: Any, without_landlock: str, files: dict[str, Path]
) -> None:
    with pytest.raises(tg.TorchgaugeError, match="this machine lacks landlock"):
        function(files["pt2"], require_isolation=True)


def test_where_isolation_is_required_nothing_is_opened_outside_of_it(files: dict[str, Path]) -> None:
    assert tg.scan_weights(files["pt"], require_isolation=True).weights
    assert tg.analyze(net(), input_size=(1, 3, 8, 8), require_isolation=True).totals.params == 276  # no file
    outside: list[dict[str, Any]] = [{"allow_pickle": True}, {"inference": True}, {"execution": "compiled"}]
    for options in outside:
        with pytest.raises(tg.TorchgaugeError, match=r"isolation is required, and .* outside of it"):
            tg.analyze(files["pt2"], require_isolation=True, **options)
    outside = [{"allow_pickle": True}, {"dask": "local:1"}]
    for options in outside:
        with pytest.raises(tg.TorchgaugeError, match=r"isolation is required, and .* outside of it"):
            tg.scan_weights(files["pt"], require_isolation=True, **options)
