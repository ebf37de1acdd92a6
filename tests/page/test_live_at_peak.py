"""Tensors alive at the peak, from the data flow of hand-made captures and of a training step."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

import torchgauge as tg
from tests.report.sample import sample_capture, sample_view
from torchgauge.facts import COUNTED, Capture, Cost, OpRecord, Signature, TensorSpec, View
from torchgauge.report.page import live_at_peak

INPUT = 40
A, B, C = TensorSpec((25,)), TensorSpec((50,)), TensorSpec((10,))


def op(
    index: int,
    name: str,
    reads: list[tuple[TensorSpec, int | None]],
    makes: list[TensorSpec],
    live: int,
    *,
    is_new: bool = True,
    phase: str = "forward",
) -> OpRecord:
    made = sum(spec.nbytes for spec in makes) if is_new else 0
    inputs = tuple(spec for spec, _ in reads)
    signature = Signature(name, "", "other", COUNTED, (), inputs, tuple(makes), {}, Cost(), made)
    return OpRecord(index, signature, f"m{index}", live, phase=phase, producers=tuple(by for _, by in reads))


def capture_of(*ops: OpRecord, results: tuple[int, ...] = ()) -> Capture:
    sample = sample_capture()
    return replace(sample, ops=ops, input_bytes=INPUT, run=replace(sample.run, results=results))


def residual(extra: int = 0) -> View:
    """A is made, changed in place, and read again by the sum, which is the peak."""
    first = op(0, "make", [(C, None)], [A], INPUT + A.nbytes)
    changed = op(1, "change_", [(A, 0)], [A], INPUT + A.nbytes, is_new=False)
    second = op(2, "grow", [(A, 1)], [B], INPUT + A.nbytes + B.nbytes)
    joined = op(3, "join", [(B, 2), (A, 1)], [C], INPUT + A.nbytes + B.nbytes + C.nbytes + extra)
    return View(capture_of(first, changed, second, joined))


def test_tensors_that_later_ops_read_add_up_to_the_peak() -> None:
    found = live_at_peak(residual())
    assert found is not None
    assert [(entry.op.op, entry.nbytes) for entry in found.alive] == [
        ("grow", B.nbytes),
        ("make", A.nbytes),
        ("join", C.nbytes),
    ]
    assert {entry.reader.index for entry in found.alive if entry.reader} == {3}
    assert (found.inputs_bytes, found.other_bytes) == (INPUT, 0)


def test_tensors_held_only_by_a_variable_are_distinguished() -> None:
    found = live_at_peak(residual(extra=30))
    assert found is not None
    assert found.other_bytes == 30


def test_memory_without_readers_at_the_peak_is_not_alive() -> None:
    ops = [
        op(0, "make", [], [A], INPUT + A.nbytes),
        op(1, "read", [(A, 0)], [C], INPUT + A.nbytes + C.nbytes),
        op(2, "grow", [(C, 1)], [B], INPUT + B.nbytes + C.nbytes),
    ]
    found = live_at_peak(View(capture_of(*ops)))
    assert found is not None
    assert [entry.op.op for entry in found.alive] == ["grow", "read"]


def test_of_a_training_step_gradients_state_and_results_are_kept() -> None:
    """The backward op makes two tensors, of which the optimizer reads the smaller."""
    ops = [
        op(0, "forward", [], [C], INPUT + C.nbytes),
        op(1, "back", [(C, 0)], [B, A], INPUT + C.nbytes + B.nbytes + A.nbytes, phase="backward"),
        op(2, "aten::zeros_like", [(A, 1)], [A], INPUT + 2 * A.nbytes, phase="optimizer"),
        op(3, "step", [(A, 2)], [B, B], INPUT + C.nbytes + 2 * A.nbytes + 2 * B.nbytes, phase="optimizer"),
    ]
    found = live_at_peak(View(capture_of(*ops, results=(0,))))
    assert found is not None
    assert sorted((entry.op.op, entry.nbytes, entry.kind) for entry in found.alive) == [
        ("aten::zeros_like", A.nbytes, "optimizer state"),
        ("back", A.nbytes, "gradient"),
        ("forward", C.nbytes, "result"),
        ("step", B.nbytes, "activation"),
        ("step", B.nbytes, "activation"),
    ]
    assert found.other_bytes == 0


def test_a_capture_without_data_flow_has_nothing_alive() -> None:
    assert live_at_peak(sample_view()) is None


def test_of_a_trained_model_gradients_are_as_large_as_its_parameters() -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    analysis = tg.analyze(model, input_size=(2, 64), mode="train", advice=False)
    found = live_at_peak(analysis)
    assert found is not None
    gradients = sum(entry.nbytes for entry in found.alive if entry.kind == "gradient")
    states = sum(entry.nbytes for entry in found.alive if entry.kind == "optimizer state")
    assert gradients == analysis.totals.param_bytes
    assert states >= 2 * analysis.totals.param_bytes
    assert 0 <= found.other_bytes < 0.05 * analysis.totals.peak_activation_bytes
