"""Which op made what another one reads, from the producers that a capture holds.

These go by memory: views are looked through by themselves, and an op that writes in place is the source of what is
read after it. A capture that was saved without producers has no steps, so that rules which follow the data say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from torchgauge.facts import FREE, OpRecord

_POINTWISE = {"elementwise", "activation"}
# Ops between a chain and an op that may join it are followed so far back; beyond, they count as depending on it.
_MOST_BETWEEN = 32
# What torch's compiler fuses at most (`max_fusion_size`); longer chains are loops over a sequence, and left out.
MAX_FUSED_OPS = 64

Chain = list[OpRecord]


class Flow:
    """Sources and users of the ops; `results` are the ops that wrote what the model gives back, `kept` those
    that wrote what its attributes hold after the call."""

    def __init__(self, ops: Sequence[OpRecord], results: Sequence[int] = (), kept: Sequence[int] = ()) -> None:
        is_known = any(op.producers for op in ops)
        self.steps = tuple(op for op in ops if op.status != FREE) if is_known else ()
        self.results = frozenset(results)
        self._given_away = self.results.union(kept)
        self._by_index = {op.index: op for op in ops} if is_known else {}
        self._users: dict[int, list[OpRecord]] = {}
        users = self._users
        # A view reads what its base was made by. A sparse tensor is not a view: it is made without work, and read.
        made = {source for op in self.steps for source in op.producers}
        for op in ops if is_known else ():
            producers = op.producers
            if op.status == FREE and op.index not in made:
                continue
            for source in producers if len(producers) == 1 else dict.fromkeys(producers):
                if source is not None:
                    users.setdefault(source, []).append(op)

    def named(self, *names: str) -> list[OpRecord]:
        """The steps of these names, in order."""
        return _in_order(self._by_name, names)

    def of_category(self, *categories: str) -> list[OpRecord]:
        return _in_order(self._by_category, categories)

    @cached_property
    def _by_name(self) -> Mapping[str, list[OpRecord]]:
        return _grouped(self.steps, lambda op: op.op)

    @cached_property
    def _by_category(self) -> Mapping[str, list[OpRecord]]:
        return _grouped(self.steps, lambda op: op.category)

    def source(self, op: OpRecord, at: int = 0) -> OpRecord | None:
        """The op that made an input; None for parameters, constants and the model's inputs."""
        index = op.producers[at] if at < len(op.producers) else None
        return None if index is None else self._by_index.get(index)

    def op(self, index: int) -> OpRecord | None:
        return self._by_index.get(index)

    def sources(self, op: OpRecord) -> Iterator[OpRecord]:
        """The ops that made its inputs, each once."""
        for index in dict.fromkeys(op.producers):
            if index is not None and index in self._by_index:
                yield self._by_index[index]

    def users(self, op: OpRecord) -> Sequence[OpRecord]:
        """The ops that read what this one made, in order."""
        return self._users.get(op.index, ())

    def is_result(self, op: OpRecord) -> bool:
        return op.index in self.results

    def is_held(self, op: OpRecord) -> bool:
        """Whether the caller of the model gets what this one made, or an attribute keeps it."""
        return op.index in self._given_away

    def only_reader(self, op: OpRecord) -> OpRecord | None:
        """The one op that reads what this one made, if it is the only reader; the caller of the model counts as one,
        and so does an attribute that keeps it."""
        users = self.users(op)
        return users[0] if len(users) == 1 and not self.is_held(op) else None

    def is_dead(self, op: OpRecord) -> bool:
        """Whether nothing reads what it made: a model that throws it away need not compute it."""
        is_pure = bool(op.signature.outputs) and not op.op.endswith("_")
        return is_pure and not self.users(op) and op.index not in self.results

    def is_kept_for(self, op: OpRecord, reader: OpRecord) -> bool:
        """Whether `reader` alone reads what `op` made."""
        only = self.only_reader(op)
        return only is not None and only.index == reader.index


def _grouped(ops: Sequence[OpRecord], key: Callable[[OpRecord], str]) -> Mapping[str, list[OpRecord]]:
    groups: dict[str, list[OpRecord]] = {}
    for op in ops:
        groups.setdefault(key(op), []).append(op)
    return groups


def _in_order(groups: Mapping[str, list[OpRecord]], names: Sequence[str]) -> list[OpRecord]:
    found = [group for name in names if (group := groups.get(name))]
    return found[0] if len(found) == 1 else sorted((op for group in found for op in group), key=lambda op: op.index)


def has_complex(op: OpRecord) -> bool:
    """Whether an op works on complex numbers, for which Inductor makes no code."""
    return any(spec.is_complex for spec in (*op.signature.inputs, *op.signature.outputs))


def pointwise_chains(flow: Flow) -> list[Chain]:
    """Pointwise ops of one module, each reading what an earlier one of its chain made, and as large; in order of
    execution. A compiler can make one kernel of a chain."""
    chain_of: dict[int, Chain] = {}
    for op in flow.steps:
        if op.category not in _POINTWISE or not op.signature.outputs or has_complex(op):
            continue
        chain = chain_of[op.index] = [op]
        shape = op.signature.outputs[0].shape
        found = [
            chain_of[source] for source in dict.fromkeys(op.producers) if source is not None and source in chain_of
        ]
        for other in found:
            if other[0].module != op.module or other[0].signature.outputs[0].shape != shape:
                continue
            if other is chain or (len(other) <= MAX_FUSED_OPS and _waits_for(flow, op, other, chain_of)):
                continue
            # The smaller joins the larger: a chain grows at the cost of what is added; its earliest op is first
            small, chain = sorted((chain, other), key=len)
            first = min(small[0], chain[0], key=lambda op: op.index)
            chain += small
            at = 0 if first is chain[0] else len(chain) - len(small)
            chain[0], chain[at] = chain[at], chain[0]
            for member in small:
                chain_of[member.index] = chain
    chains = {id(chain): chain for chain in chain_of.values() if 1 < len(chain) <= MAX_FUSED_OPS}
    return [sorted(chain, key=lambda op: op.index) for chain in chains.values()]


def _waits_for(flow: Flow, op: OpRecord, chain: Chain, chain_of: dict[int, Chain]) -> bool:
    """Whether an input of `op` is made outside the chain from what the chain made: then one kernel cannot do both."""
    begin = chain[0].index
    seen = {source.index for source in flow.sources(op) if chain_of.get(source.index) is not chain}
    todo = [source for source in flow.sources(op) if source.index in seen and source.index > begin]
    while todo:
        if len(seen) > _MOST_BETWEEN:
            return True
        for source in flow.sources(todo.pop()):
            if chain_of.get(source.index) is chain:
                return True
            if source.index > begin and source.index not in seen:
                seen.add(source.index)
                todo.append(source)
    return False
