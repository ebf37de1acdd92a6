"""Memory over the run, and what the peak is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from torchgauge.facts import OpRecord, TensorSpec, View
from torchgauge.facts.measurements import measurements_of
from torchgauge.facts.peak_memory import memory_at_peak, memory_over_run
from torchgauge.report.content.memory import at_peak, find_memory_peak, find_peak, memory_facts, moments
from torchgauge.report.options import Options, format_shapes
from torchgauge.report.page.payload import part

_LISTED_TENSORS = 20


@part("memory")
def memory(view: View, options: Options) -> dict[str, object] | None:
    """The static course is the ops' `live_bytes`; `measured` is what a real run allocated."""
    if not view.capture.ops:
        return None
    peak = find_peak(view)
    # The first op of each phase; not shown if there is only one phase.
    starts: dict[str, int] = {}
    for op in view.capture.ops:
        starts.setdefault(op.phase, op.index)
    # In training: how much of each op's `live_bytes` is gradients and optimizer state.
    kept: dict[str, object] = {}
    if view.capture.run.step is not None:
        uses = [(each.op, each) for each in memory_over_run(view.capture) if each.op]
        kept["gradients"] = [each.gradients for _, each in uses]
        kept["optimizer_state"] = [op.live_bytes - each.activations - each.gradients for op, each in uses]
    use = memory_at_peak(view.capture)
    return {
        "param_bytes": view.totals.param_bytes,
        "buffer_bytes": view.totals.buffer_bytes,
        "input_bytes": view.capture.input_bytes,
        "total": use
        and {
            "bytes": use.total,
            "op": use.op and _place(use.op),
            "parameters": use.parameters,
            "buffers": use.buffers,
            "activations": use.activations,
            "gradients": use.gradients,
            "optimizer state": use.optimizer_state,
        },
        **kept,
        "peak_bytes": peak.activation_bytes,
        "peak_op": peak.op and _place(peak.op),
        "phases": [{"name": name, "op": index} for name, index in starts.items()] if len(starts) > 1 else [],
        "at_peak": _contents(live_at_peak(view)),
        "measured": _measured(view),
    }


def _place(op: OpRecord) -> dict[str, object]:
    shapes = format_shapes([list(spec.shape) for spec in op.signature.outputs])
    return {"index": op.index, "op": op.op, "module": op.module, "phase": op.phase, "shapes": shapes}


def _contents(found: PeakContents | None) -> dict[str, object] | None:
    if found is None:
        return None
    rest = found.alive[_LISTED_TENSORS:]
    modules, kinds = Counter[str](), Counter[str]()
    for entry in found.alive:
        modules[entry.op.module] += entry.nbytes
        kinds[entry.kind] += entry.nbytes
    return {
        "tensors": [
            _place(entry.op)
            | {"bytes": entry.nbytes, "kind": entry.kind}
            | {"reader": entry.reader and {"index": entry.reader.index, "op": entry.reader.op}}
            for entry in found.alive[:_LISTED_TENSORS]
        ],
        "more": {"count": len(rest), "bytes": sum(entry.nbytes for entry in rest)},
        "modules": [{"path": path, "bytes": nbytes} for path, nbytes in modules.most_common(_LISTED_TENSORS)],
        "module_count": len(modules),
        "kinds": [{"name": kind, "bytes": nbytes} for kind, nbytes in kinds.most_common()],
        "inputs_bytes": found.inputs_bytes,
        "other_bytes": found.other_bytes,
    }


def _measured(view: View) -> dict[str, object] | None:
    figures = measurements_of(view).get("memory")
    if not figures:
        return None
    run, peak, held = moments(view), find_memory_peak(view), at_peak(view)
    return {
        "ops": [moment.op for moment in run],
        "activations": [moment.activations_bytes + moment.gradients_bytes for moment in run],
        "workspace": [moment.workspace_bytes for moment in run],
        "peak_bytes": peak and peak.measured_bytes,
        "predicted_bytes": peak and peak.predicted_bytes,
        "difference_share": peak and peak.difference_share,
        "held": held and {"op": _place(held.op), **held.parts},
        "facts": list(memory_facts(view)),
        "state_bytes": figures.get("optimizer_state_bytes"),
    }


ACTIVATION, GRADIENT, OPTIMIZER_STATE, RESULT = "activation", "gradient", "optimizer state", "result"
_STATE_OPS = frozenset({"aten::zeros_like", "aten::zeros"})

# The op that made a storage, and which of its outputs it is.
Storage = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Alive:
    """Memory that an op made and that is needed at the peak. `reader` is the last op to read it; None for what is kept
    beyond the run: gradients, the optimizer's state, the result."""

    op: OpRecord
    nbytes: int
    kind: str
    reader: OpRecord | None


@dataclass(frozen=True, slots=True)
class PeakContents:
    """`other_bytes` are alive though no op reads them any more: a variable of the model's code, a cache or a second
    output holds them."""

    alive: tuple[Alive, ...]
    inputs_bytes: int
    other_bytes: int


def live_at_peak(view: View) -> PeakContents | None:
    """None where the inputs alone are the peak, and for captures without data flow. The largest first."""
    op = find_peak(view).op
    ops = {record.index: record for record in view.capture.ops}
    if op is None or not any(record.producers for record in ops.values()):
        return None
    lives = _Lives(ops, view.capture.run.results)
    alive = sorted(lives.at(op.index), key=lambda entry: -entry.nbytes)
    inputs = view.capture.input_bytes
    return PeakContents(tuple(alive), inputs, op.live_bytes - inputs - sum(entry.nbytes for entry in alive))


class _Lives:
    """The last reader of each storage, and its purpose."""

    def __init__(self, ops: Mapping[int, OpRecord], results: tuple[int, ...]) -> None:
        self.ops = ops
        self.last: dict[Storage, int] = {}
        self.kept: dict[Storage, str] = {}
        # The storage of an op's first output: a new one, or that of the tensor it writes into.
        self._home: dict[int, Storage] = {}
        for op in ops.values():
            inputs = zip(op.producers, op.signature.inputs, strict=False)
            read = [self._storage(producer, spec) for producer, spec in inputs if producer is not None]
            is_new = bool(op.signature.activation_bytes) or not op.producers or op.producers[0] is None
            self._home[op.index] = (op.index, 0) if is_new else read[0]
            made = [(op.index, place) for place in range(len(_sizes(op)))] if is_new else []
            for storage in (*read, *made):
                self.last[storage] = op.index
                if op.phase == "optimizer" and ops[storage[0]].phase == "backward":
                    self.kept[storage] = GRADIENT
            if op.phase == "optimizer" and op.op in _STATE_OPS:
                self.kept[self._home[op.index]] = OPTIMIZER_STATE
        self.kept |= {self._home[index]: RESULT for index in results if index in self._home}

    def _storage(self, producer: int, spec: TensorSpec) -> Storage:
        """The output of the same size as the tensor that is read: records name the op that wrote it, not the output."""
        home = self._home.get(producer, (producer, 0))
        sizes = _sizes(self.ops[home[0]])
        return (home[0], sizes.index(spec.nbytes)) if spec.nbytes in sizes else home

    def at(self, peak: int) -> list[Alive]:
        found = []
        for storage, reader in self.last.items():
            maker = self.ops[storage[0]]
            nbytes, kind = _sizes(maker)[storage[1]], self.kept.get(storage)
            if nbytes and maker.index <= peak and (kind or reader >= peak):
                found.append(Alive(maker, nbytes, kind or ACTIVATION, None if kind else self.ops[reader]))
        return found


def _sizes(op: OpRecord) -> list[int]:
    """The sizes of the storages that an op makes; a single one if its outputs share or reuse memory."""
    sizes = [spec.nbytes for spec in op.signature.outputs]
    whole = op.signature.activation_bytes
    return sizes if sizes and sum(sizes) == whole else [whole]
