"""What kind of model it is: family, layers by kind, likely hyperparameters; from names and shapes, and from a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchgauge.checkpoint.collector import collector_paused
from torchgauge.facts import ArchitectureRecord, ModuleRecord, OpRecord, ParamRecord
from torchgauge.source.architecture.evidence import Evidence
from torchgauge.source.architecture.family import RULES, family, family_rule
from torchgauge.source.architecture.heads import observed_heads
from torchgauge.source.architecture.hyperparameters import hyperparameters
from torchgauge.source.architecture.layers import Shapes, layer_kinds
from torchgauge.source.architecture.stated import stated_hyperparameters

__all__ = [
    "RULES",
    "Evidence",
    "describe_run",
    "describe_shapes",
    "family",
    "family_rule",
    "hyperparameters",
    "stated_hyperparameters",
]


@collector_paused()
def describe_shapes(shapes: Shapes) -> ArchitectureRecord:
    """The architecture of a bare state dict."""
    evidence = Evidence(shapes)
    return ArchitectureRecord(family(evidence), layer_kinds(evidence.layers), hyperparameters(evidence))


def describe_run(
    modules: Iterable[ModuleRecord],
    params: Iterable[ParamRecord],
    ops: Iterable[OpRecord],
    stated: Mapping[str, Any],
) -> ArchitectureRecord:
    """The architecture of a model that was run; its layers are counted by class."""
    records, calls = list(modules), list(ops)
    evidence = Evidence(
        shapes={name: param.spec.shape for param in params for name in (param.name, *param.aliases)},
        categories=frozenset(op.category for op in calls),
        is_causal=any(op.signature.attributes.get("is_causal") is True for op in calls if op.category == "attention"),
        heads=observed_heads(calls),
        stated=stated,
    )
    return ArchitectureRecord(family(evidence), _classes(records), hyperparameters(evidence))


def _classes(records: list[ModuleRecord]) -> dict[str, int]:
    parents = {record.parent for record in records}
    counts: dict[str, int] = {}
    for record in records:
        if record.path not in parents:
            counts[record.type] = counts.get(record.type, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
