from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import torchgauge as tg
from tests import zoo
from torchgauge.analysis.advice import with_known_device

# The contract's lists, wrapped.
KEYS = {
    "schema_version",
    "tool",
    "created",
    "environment",
    "target",
    "inputs",
    "capture",
    "architecture",
    "totals",
    "modules",
    "ops",
    "weights",
    "measurements",
    "energy",
    "advice",
}
TOTALS = {
    "params",
    "trainable_params",
    "active_params",
    "param_bytes",
    "buffer_bytes",
    "stored_elements",
    "logical_params",
    "bits_per_weight",
    "optimizer_elements",
    "stored_bytes",
    "macs",
    "flops",
    "bytes_read",
    "bytes_written",
    "activation_bytes",
    "peak_activation_bytes",
    "saved_activation_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "total_bytes",
    "ops",
    "uncounted_ops",
    "time_s",
    "energy_j",
}
MODULE = {
    "path",
    "aliases",
    "type",
    "depth",
    "calls",
    "params",
    "trainable_params",
    "param_bytes",
    "logical_params",
    "bits_per_weight",
    "input_shapes",
    "output_shapes",
    "macs",
    "flops",
    "bytes_read",
    "bytes_written",
    "activation_bytes",
    "ops",
    "time_s",
    "energy_j",
    "estimated_energy_j",
}
OP = {
    "index",
    "op",
    "module",
    "category",
    "status",
    "input_shapes",
    "output_shapes",
    "dtype",
    "macs",
    "flops",
    "bytes_read",
    "bytes_written",
    "arithmetic_intensity",
    "live_bytes",
    "time_s",
    "kernels",
    "bound",
    "energy_j",
    "estimated_energy_j",
    "weights",
}


@pytest.fixture
def found() -> tg.Analysis:
    return tg.analyze(zoo.HandAttention(), input_size=(2, 10, 32))


def test_the_document_has_the_keys_of_the_contract(found: tg.Analysis) -> None:
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document.keys() >= KEYS
    assert document["totals"].keys() == TOTALS
    assert document["modules"][0].keys() >= MODULE
    assert document["ops"][0].keys() >= OP
    assert set(document["capture"]) >= {"mode", "reason", "device", "train", "warnings"}
    assert document["modules"][0]["path"] == ""


def test_a_saved_run_loads_to_the_same_capture(found: tg.Analysis, tmp_path: Path) -> None:
    found.save(tmp_path / "run.json")
    loaded = tg.load(tmp_path / "run.json")
    assert loaded.capture == found.capture
    assert str(loaded) == str(found)


def test_a_saved_run_loads_and_renders_without_torch(found: tg.Analysis, tmp_path: Path) -> None:
    found.save(tmp_path / "run.json")
    code = (
        "import sys; sys.modules['torch'] = None; import torchgauge as tg;"
        f"a = tg.load({str(tmp_path / 'run.json')!r}); print(a.totals.macs); str(a)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(found.totals.macs)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not a JSON file"), ("[]", "not a saved run"), ('{"schema_version": 99}', "version 99"),
     ('{"schema_version": 1}', "not a complete run")],
)  # fmt: skip
def test_a_file_other_than_a_saved_run_is_refused_in_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(tg.FormatError, match=message):
        tg.load(tmp_path / "run.json")


def test_memory_of_a_small_network_by_hand() -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
    found = tg.analyze(model, input_size=(4, 16))
    x, hidden, out = 4 * 16 * 4, 4 * 64 * 4, 4 * 8 * 4
    assert found.totals.activation_bytes == 2 * hidden + out
    assert found.totals.peak_activation_bytes == x + 2 * hidden  # the ReLU: both hidden tensors and the input
    assert found.totals.param_bytes == (16 * 64 + 64 + 64 * 8 + 8) * 4
    linear = found.ops[1]
    assert (linear.op, linear.bytes_read, linear.bytes_written) == ("aten::addmm", x + (1024 + 64) * 4, hidden)
    assert (linear.macs, linear.flops) == (4 * 1024, 2 * 4 * 1024 + 4 * 64)


def test_a_tensor_used_twice_by_one_op_is_read_once_and_an_expanded_one_by_its_elements() -> None:
    class Squares(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * x) + x.new_ones(1).expand(4, 16)

    ops = {op.op: op for op in tg.analyze(Squares(), input_size=(4, 16)).ops}
    assert (ops["aten::mul"].bytes_read, ops["aten::add"].bytes_read) == (256, 256 + 4)


def test_every_module_is_its_own_ops_plus_its_children(found: tg.Analysis) -> None:
    found.tree.self_check(found.capture)
    for node in found.tree.walk():
        own = sum(op.macs for op in found.ops if op.module == node.path)
        assert node.total.macs == own + sum(child.total.macs for child in node.children)


def test_custom_ops_are_uncounted_until_a_formula_is_given() -> None:
    with torch.library._scoped_library("tgtest", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        library.impl("twice", lambda x: torch.empty_like(x), "Meta")

        class Uses(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.ops.tgtest.twice(x)

        before = tg.analyze(Uses(), input_size=(3, 5))
        assert (before.ops[0].status, before.totals.uncounted_ops) == ("uncounted", 1)

        tg.formula("tgtest::twice", category="elementwise")(lambda call: tg.Work(flops=call.out.numel))
        try:
            after = tg.analyze(Uses(), input_size=(3, 5))
        finally:
            from torchgauge.cost import REGISTRY

            del REGISTRY["tgtest::twice"]
        assert (after.ops[0].status, after.totals.flops) == ("counted", 15)


def test_formulas_registered_with_torch_are_honoured_for_custom_ops() -> None:
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    with torch.library._scoped_library("tgtest2", "DEF") as library:
        library.define("mymm(Tensor a, Tensor b) -> Tensor")
        library.impl("mymm", lambda a, b: a @ b, "CPU")
        library.impl("mymm", lambda a, b: a.new_empty(a.shape[0], b.shape[1]), "Meta")
        packet = torch.ops.tgtest2.mymm

        @register_flop_formula(packet)
        def rule(a: list[int], b: list[int], out_shape: object = None, **_: object) -> int:
            return 2 * a[0] * a[1] * b[1]

        class Uses(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return packet(x, x)

        try:
            found = tg.analyze(Uses(), input_size=(4, 4))
        finally:
            del flop_registry[packet]
        assert (found.totals.macs, found.totals.flops, found.totals.uncounted_ops) == (64, 128, 0)


def test_rows_are_frames_too(found: tg.Analysis) -> None:
    frame = found.to_dataframe("ops")
    assert int(frame["macs"].sum()) == found.totals.macs


def test_an_analysis_is_finished_when_it_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Printing, saving and looking compute no advice and no architecture, hold no model and change no fact."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    found = tg.analyze(model, input_size=(1, 3, 8, 8), progress=False)
    capture = found.capture
    assert capture.advice
    assert capture.architecture is not None
    monkeypatch.setattr("torchgauge.advise.advise", lambda *_: pytest.fail("advice was computed to print"))
    monkeypatch.setattr("torchgauge.source.architecture.describe_run", lambda *_: pytest.fail("computed to print"))
    assert str(found)
    assert [dict(row) for row in found.advice] == [dict(row) for row in capture.advice]
    assert found.architecture.layer_counts == capture.architecture.layer_counts
    assert found.capture is capture
    with pytest.raises(AttributeError):
        found.capture = capture  # type: ignore[misc]
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None


FIRST_ANALYSIS = """
import sys, torch, torchgauge as tg
before = set(sys.modules)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
tg.analyze(model, input_size=(1, 3, 32, 32))
print(*sorted(set(sys.modules) - before))
"""


def test_the_first_analysis_of_a_live_module_loads_what_it_needs_alone(tmp_path: Path) -> None:
    """People analyse once in a process: each of these would take a part of its 0.2 s."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIRST_ANALYSIS], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    of_others = {
        "secrets",
        "html",
        "statistics",
        "sysconfig",
        "torch._dynamo",
        "torch.export",
        "sympy",
        "pandas",
        "numba",
        "rich",
    }
    own = ("isolation.reader", "facts.document_types", "predict", "compiled", "source.huggingface", "source.exported",
           "checkpoint.zip_archive", "checkpoint.pickle", "measure", "weights", "verify")  # fmt: skip
    assert loaded & (of_others | {f"torchgauge.{name}" for name in own}) == set()


def test_the_second_argument_is_the_input_size() -> None:
    model = nn.Conv2d(3, 8, 3)

    assert tg.analyze(model, (1, 3, 32, 32)).totals.macs == tg.analyze(model, input_size=(1, 3, 32, 32)).totals.macs


def test_advice_has_typed_members_and_the_same_document() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)).eval()
    found = tg.analyze(model, (8, 8, 64, 64), all_advice=True)
    row = next(row for row in found.advice if row.rule == "conv-bn-fusion")

    assert row.expected_gain is not None
    assert 0 <= row.expected_gain.low <= row.expected_gain.high
    assert row.where.module == row.where["module"]
    assert found.to_dict()["advice"] == list(found.capture.advice)


def test_a_report_has_the_time_here_and_on_a_known_device_with_its_source(tmp_path: Path) -> None:
    found = with_known_device(tg.analyze(nn.Conv2d(3, 64, 7), (8, 3, 224, 224)))
    here, there = found.capture.expected

    assert (here["device"], there["device"]) == ("this", "h200")
    for row in (here, there):
        assert 0 < row["predicted_low_s"] < row["predicted_time_s"] < row["predicted_high_s"]
    assert here["predicted_time_s"] > there["predicted_time_s"]
    text = str(found)
    assert "Time here" in text
    assert here["source"] in text
    assert "Time on H200" in text
    found.save(tmp_path / "run.json")
    assert str(tg.load(tmp_path / "run.json")) == text


def test_a_time_that_was_measured_is_not_predicted_as_well() -> None:
    found = tg.analyze(nn.Linear(64, 64), (8, 64), inference=True, budget_s=0.02)

    assert found.capture.expected == ()


def test_the_time_there_is_that_of_a_forecast() -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 7), nn.BatchNorm2d(64), nn.ReLU()).eval()
    there = with_known_device(tg.analyze(model, (8, 3, 224, 224))).capture.expected[-1]
    forecast = tg.forecast(model, (8, 3, 224, 224), on="h200")

    assert isinstance(forecast, tg.Forecast)
    assert there["predicted_time_s"] == pytest.approx(forecast.time_s, rel=0.1)


def test_named_devices_take_the_place_of_the_known_one() -> None:
    found = tg.analyze(nn.Linear(64, 64), (8, 64), on="a100")

    assert with_known_device(found).capture.expected == ()
