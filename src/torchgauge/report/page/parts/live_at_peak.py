"""What is alive at the peak of activation memory, from the data flow: who made it, and who reads it last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchgauge.facts import OpRecord, TensorSpec, View
from torchgauge.report.peak import find_peak

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
    """By storage: its last reader, and what it is kept for."""

    def __init__(self, ops: Mapping[int, OpRecord], results: tuple[int, ...]) -> None:
        self.ops = ops
        self.last: dict[Storage, int] = {}
        self.kept: dict[Storage, str] = {}
        # Where the first output of an op lies: in memory of its own, or in what it writes into.
        self._home: dict[int, Storage] = {}
        for op in ops.values():
            self._follow(op)
        self.kept |= {self._home[index]: RESULT for index in results if index in self._home}

    def _follow(self, op: OpRecord) -> None:
        read = [
            self._storage(producer, spec)
            for producer, spec in zip(op.producers, op.signature.inputs, strict=False)
            if producer is not None
        ]
        is_new = bool(op.signature.activation_bytes) or not op.producers or op.producers[0] is None
        self._home[op.index] = (op.index, 0) if is_new else read[0]
        made = [(op.index, place) for place in range(len(_sizes(op)))] if is_new else []
        for storage in (*read, *made):
            self._note_read(storage, op)
        if op.phase == "optimizer" and op.op in _STATE_OPS:
            self.kept[self._home[op.index]] = OPTIMIZER_STATE

    def _note_read(self, storage: Storage, reader: OpRecord) -> None:
        self.last[storage] = reader.index
        if reader.phase == "optimizer" and self.ops[storage[0]].phase == "backward":
            self.kept[storage] = GRADIENT

    def _storage(self, producer: int, spec: TensorSpec) -> Storage:
        """Of several outputs the one as large as what is read: records name the op that wrote it, not the output."""
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
    """Of the storages an op makes; one for all where its outputs share or reuse memory."""
    sizes = [spec.nbytes for spec in op.signature.outputs]
    whole = op.signature.activation_bytes
    return sizes if sizes and sum(sizes) == whole else [whole]
