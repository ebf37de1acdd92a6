"""Runs of pointwise ops that feed each other."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence
from torchgauge.records import OpRecord

_POINTWISE = {"elementwise", "activation"}


def pointwise_chains(evidence: Evidence, least: int) -> Iterator[list[OpRecord]]:
    """Ops of one module, each reading what an earlier one of the chain made, and as large."""
    chain: list[OpRecord] = []
    for op in evidence.flow.steps:
        if chain and not _continues(evidence, chain, op):
            if len(chain) >= least:
                yield chain
            chain = []
        if op.category in _POINTWISE:
            chain.append(op)
    if len(chain) >= least:
        yield chain


def _continues(evidence: Evidence, chain: list[OpRecord], op: OpRecord) -> bool:
    if op.category not in _POINTWISE or op.module != chain[0].module:
        return False
    if op.signature.outputs[0].shape != chain[0].signature.outputs[0].shape:
        return False
    return any(earlier.index in evidence.flow.sources(op) for earlier in chain)
