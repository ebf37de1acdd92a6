"""Pointwise ops that feed each other: a compiler can make one kernel of them."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.flow import Flow
from torchgauge.facts import OpRecord

_POINTWISE = {"elementwise", "activation"}
# Ops between a chain and an op that may join it are followed so far back; beyond, they count as depending on it.
_MOST_BETWEEN = 32
# What torch's compiler fuses at most (`max_fusion_size`); longer chains are loops over a sequence, and left out.
LONGEST = 64

Chain = list[OpRecord]


def pointwise_chains(flow: Flow) -> list[Chain]:
    """Ops of one module, each reading what an earlier one of its chain made, and as large; in order of execution."""
    chain_of: dict[int, Chain] = {}
    for op in flow.steps:
        if op.category not in _POINTWISE or not op.signature.outputs:
            continue
        chain = chain_of[op.index] = [op]
        for other in list(_joinable(flow, op, chain_of)):
            chain = _join(chain, other, chain_of)
    found = {id(chain): chain for chain in chain_of.values() if 1 < len(chain) <= LONGEST}
    return [sorted(chain, key=lambda op: op.index) for chain in found.values()]


def _join(one: Chain, other: Chain, chain_of: dict[int, Chain]) -> Chain:
    """The smaller into the larger, so that a chain grows at the cost of what is added; its earliest op stays first."""
    small, large = sorted((one, other), key=len)
    if small is not large:
        first = min(small[0], large[0], key=lambda op: op.index)
        large += small
        at = 0 if first is large[0] else len(large) - len(small)
        large[0], large[at] = large[at], large[0]
        for member in small:
            chain_of[member.index] = large
    return large


def _joinable(flow: Flow, op: OpRecord, chain_of: dict[int, Chain]) -> Iterator[Chain]:
    shape = op.signature.outputs[0].shape
    for source in dict.fromkeys(op.producers):
        chain = None if source is None else chain_of.get(source)
        if chain is None or chain[0].module != op.module or chain[0].signature.outputs[0].shape != shape:
            continue
        if len(chain) > LONGEST or not _waits_for(flow, op, chain, chain_of):
            yield chain


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
