"""Models that wait for the host: the ops are too small for their launches. Only where it was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import TENSOR_CORES, Evidence
from torchgauge.advise.graph_capture import prevents_graph
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rules.transfers import host_waits
from torchgauge.facts import TensorSpec

# Of the undisturbed time that the CPU must spend on ops that do next to nothing.
_LEAST_LAUNCH_SHARE = 0.3
# Of a run, what the host may take for its launches before it holds up kernels in narrower types.
_HELD_UP_SHARE = 0.5
# Of the launches, those of one line of code (a loop) for it to be the place to look at.
_ONE_LINE_SHARE = 0.3
# What replaying a CUDA graph takes in addition to its kernels, with the copy of its inputs, in parts of what an eager
# run takes however few ops it has (15 µs): 12 to 30 µs for models of 100 to 200 µs on an H200.
_REPLAY_RATIO = 1.7
# The kernels of a replay begin one after the other, about a microsecond apart. Median of 48 models on an H200.
_GAPS_RATIO = 1.1
# How far the odds of a predicted gain may be off, either way: the host's speed differs by a factor of 1.5 between
# machines of one kind, in addition to the errors of the kernels' times. This holds 70 of 76 gains of four sets.
_UNSURE_ODDS = 2.2
# With gradients enabled the backward pass would be captured too, which fails for cuDNN's recurrent layers.
_GRAPH = "with torch.no_grad():\n    model = torch.cuda.make_graphed_callables(model, inputs)"
_GRAPH_RISK = "shapes are fixed; no branches on data and no transfers inside"
_OTHER_VALUES_RISK = "shapes are fixed; pass and return tensors only, or use torch.cuda.graph"


@rule("launch-bound", family="launch")
def launch_bound(evidence: Evidence) -> Iterator[Advice]:
    """The device's work leaves gaps: the time of all kernels is well below that of the run."""
    whole, idle = evidence.time_s or (evidence.times.whole if evidence.on else None), evidence.idle_share
    # A run whose host waits for values cannot be captured: that comes first.
    if not whole or not evidence.waits_for_host or host_waits(evidence) or prevents_graph(evidence):
        return
    busy = (1 - idle) * whole
    launches = Counter(op.source for op in evidence.flow.steps if op.source is not None)
    line, count = launches.most_common(1)[0] if launches else (None, 0)
    there = (
        [op for op in evidence.flow.steps if op.source == line]
        if count >= _ONE_LINE_SHARE * len(evidence.flow.steps)
        else []
    )
    rounds = [op for op in there if op.op == there[0].op]
    change, risk = _graph(evidence)
    yield Advice(
        rule="launch-bound",
        where=Where("", source=(evidence.loop_line(rounds) or evidence.line_of(rounds[0].index)) if rounds else None),
        evidence={"time_s": whole, "kernels_s": busy, "idle_share": idle, "ops": len(evidence.capture.ops)},
        recommendation="replay the run as a CUDA graph: the device waits for the host between kernels",
        change=change,
        expected_gain=_without_idle(evidence, idle, whole),
        risk=risk,
        confidence="high",
    )


def _graph(evidence: Evidence) -> tuple[Patch | None, str]:
    """Code that replays the run, and its risk. make_graphed_callables takes tensors by position, and gives back tensors
    in tuples: it raises for None, numbers and other objects, among the arguments as among the results."""
    if evidence.is_train:
        return Patch("model = torch.compile(model, mode='reduce-overhead')"), _GRAPH_RISK
    root = evidence.modules.get("")
    given, returned = (None, None) if root is None else (root.inputs, root.outputs)
    # Arguments by name are described as a mapping.
    takes_tensors = isinstance(given, list) and bool(given) and all(isinstance(value, TensorSpec) for value in given)
    if takes_tensors and _are_tensors(returned):
        return Patch(_GRAPH), _GRAPH_RISK
    return None, _OTHER_VALUES_RISK


def _are_tensors(value: Any) -> bool:
    """Tensors and nested tuples of them; mappings are dicts, which a graph takes, or dataclasses, which it does not."""
    return all(map(_are_tensors, value)) if isinstance(value, list) else isinstance(value, TensorSpec)


def _without_idle(evidence: Evidence, idle: float, whole: float) -> Gain:
    """A replay has small gaps too, and copies its inputs: of the measured idle time half goes at least. Predicted, what
    is left is the kernels' time and that of a replay."""
    how = "the device's idle share of the undisturbed time"
    queues = evidence.times.queues
    if queues is None:
        return Gain("time_s", idle / 2, idle, how)
    left = min(_GAPS_RATIO * (1 - idle) * whole + _REPLAY_RATIO * queues.fixed_s, 0.99 * whole)
    odds = whole / left - 1
    least, most = (part / (1 + part) for part in (odds / _UNSURE_ODDS, odds * _UNSURE_ODDS))
    return Gain("time_s", least, most, f"{how}, less a replay's own time")


@rule("launch-limit", family="launch")
def launch_limit(evidence: Evidence) -> Iterator[Advice]:
    """The device is kept busy, but by float32: with the kernels of narrower types it would wait for the host."""
    whole, host = evidence.time_s, evidence.host_s
    if evidence.waits_for_host or evidence.is_train or not whole or host is None or host < _HELD_UP_SHARE * whole:
        return
    products = [op for op in evidence.forward if op.category in TENSOR_CORES and op.signature.dtype == "float32"]
    if evidence.share(products).value < _HELD_UP_SHARE or host_waits(evidence) or prevents_graph(evidence):
        return
    change, risk = _graph(evidence)
    yield Advice(
        rule="launch-limit",
        where=Where(""),
        evidence={"time_s": whole, "host_s": host, "float32_ops": len(products)},
        recommendation="replay the run as a CUDA graph first: in narrower types its kernels would wait for launches",
        change=change,
        expected_gain=Gain(
            "time_s", 0.0, evidence.idle_share, "the device's idle share now; it grows as the kernels get faster"
        ),
        risk=risk,
        confidence="low",
    )


@rule("dispatch-bound", family="launch")
def dispatch_bound(evidence: Evidence) -> Iterator[Advice]:
    """On the CPU: ops that take hardly longer than one that does nothing."""
    rows = evidence.capture.measured.ops if evidence.capture.measured else {}
    whole = evidence.time_s
    if evidence.is_cuda or not whole or not evidence.op_times:
        return
    small = [index for index, row in rows.items() if row.get("bound") == "launch"]
    spent = sum(evidence.op_times.get(index, 0.0) for index in small)
    share = min(spent / whole, 1.0)
    if share < _LEAST_LAUNCH_SHARE:
        return
    yield Advice(
        rule="dispatch-bound",
        where=Where(""),
        evidence={
            "time_s": whole,
            "small_ops": len(small),
            "small_ops_time_s": spent,
            "ops": len(evidence.capture.ops),
        },
        recommendation="compile the model or give it larger batches: most ops take less time than their dispatch",
        change=Patch("model = torch.compile(model)"),
        expected_gain=Gain(
            "time_s",
            share / 4,
            share,
            "the measured time of ops that do next to nothing; 25 % to all of it is assumed",
        ),
        risk="compiling takes time at the first call and at every new shape",
        confidence="medium",
    )
