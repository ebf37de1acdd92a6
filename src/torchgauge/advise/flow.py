"""Which op made what another one reads, as far as the records tell.

They hold no identities of tensors: what an op reads is taken to come from the latest op before it that gave exactly
this shape, type and stride, seen through views. Of several such inputs, which are distinct tensors, the last is the
latest. Parameters are known by name and come from no op.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from torchgauge.records import FREE, OpRecord, ParamRecord, TensorSpec

# So many tensors of one shape may be inputs of one op.
_REMEMBERED = 8


class Flow:
    """Producers and users of the ops; indices are those of the records. Views are looked through."""

    def __init__(self, ops: Sequence[OpRecord], params: Mapping[str, ParamRecord]) -> None:
        self.steps = tuple(op for op in ops if op.status != FREE)
        self._params = params
        self._made: dict[TensorSpec, list[int | None]] = {}
        self._sources: dict[int, tuple[int | None, ...]] = {}
        self._users: dict[int, list[int]] = {}
        self._position = {op.index: at for at, op in enumerate(self.steps)}
        for op in ops:
            self._follow(op)

    def sources(self, op: OpRecord) -> tuple[int | None, ...]:
        """By input, the index of the op that made it; None for parameters, the model's inputs and the unknown."""
        return self._sources.get(op.index, ())

    def users(self, op: OpRecord) -> list[int]:
        """The ops that read what this one made."""
        return self._users.get(op.index, [])

    def after(self, op: OpRecord, distance: int = 1) -> OpRecord | None:
        """The op that does work next in the order of execution; views do none."""
        at = self._position[op.index] + distance
        return self.steps[at] if 0 <= at < len(self.steps) else None

    def before(self, op: OpRecord) -> OpRecord | None:
        return self.after(op, -1)

    def _follow(self, op: OpRecord) -> None:
        sources = self._read(op)
        if op.status == FREE and op.category == "view":
            origin = sources[0] if sources else None
        else:
            origin = op.index
            self._sources[op.index] = sources
            for source in dict.fromkeys(sources):
                if source is not None:
                    self._users.setdefault(source, []).append(op.index)
        for spec in op.signature.outputs:
            made = self._made.setdefault(spec, [])
            if origin in made:
                made.remove(origin)
            made.append(origin)
            del made[:-_REMEMBERED]

    def _read(self, op: OpRecord) -> tuple[int | None, ...]:
        held = [self._params[name].spec.shape for name in op.weights if name in self._params]
        later: Counter[TensorSpec] = Counter()
        sources: list[int | None] = []
        for spec in reversed(op.signature.inputs):
            is_held = spec.shape in held or (spec.shape[::-1] in held and spec.stride is not None)
            made = [] if is_held else self._made.get(spec, [])
            later[spec] += 1
            sources.append(made[-later[spec]] if later[spec] <= len(made) else None)
        return tuple(reversed(sources))
