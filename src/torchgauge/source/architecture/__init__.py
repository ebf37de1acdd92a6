"""The architecture of a model: family, layers by kind, likely hyperparameters; from names and shapes, and from a
run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torchgauge.facts import ArchitectureRecord, ModuleRecord, OpRecord, ParamRecord
from torchgauge.registry import collector_paused
from torchgauge.source.architecture.evidence import RULES, Evidence, family, family_rule, observed_heads
from torchgauge.source.architecture.hyperparameters import hyperparameters
from torchgauge.source.architecture.layers import Shapes, find_blocks, layer_kinds

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "RULES", "Evidence", "describe_run", "describe_shapes", "family", "family_rule", "find_blocks",
    "hyperparameters", "stated_hyperparameters",
]  # fmt: skip


@collector_paused()
def describe_shapes(shapes: Shapes, stated: Mapping[str, Any] | None = None) -> ArchitectureRecord:
    """The architecture of a bare state dict; `stated` are hyperparameters from the metadata of its file."""
    evidence = Evidence(shapes, stated=stated or {})
    return ArchitectureRecord(family(evidence), layer_kinds(evidence.layers), hyperparameters(evidence))


def describe_run(
    modules: Iterable[ModuleRecord], params: Iterable[ParamRecord], ops: Iterable[OpRecord], stated: Mapping[str, Any]
) -> ArchitectureRecord:
    """The architecture of a model that was run; its layers are counted by class."""
    records, calls = list(modules), list(ops)
    signatures = [op.signature for op in calls]
    evidence = Evidence(
        shapes={name: param.spec.shape for param in params for name in (param.name, *param.aliases)},
        categories=frozenset([call.category for call in signatures]),
        is_causal=any(call.attributes.get("is_causal") is True for call in signatures if call.category == "attention"),
        heads=observed_heads(calls),
        stated=stated,
    )
    parents = {record.parent for record in records}
    counts = Counter([record.type for record in records if record.path not in parents])
    return ArchitectureRecord(family(evidence), dict(counts.most_common()), hyperparameters(evidence))


_CONFIG = {
    "heads": ("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_size": ("qk_head_dim", "head_dim", "d_kv"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok",),
}
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "heads")


def stated_hyperparameters(model: nn.Module) -> dict[str, int]:
    """Without a config: the heads of the last attention layer, if it has such an attribute."""
    from torchgauge.source.attributes import attribute_of
    from torchgauge.source.modules import all_modules, has_attribute

    config = attribute_of(model, "config")
    if config is not None and not isinstance(config, dict):
        stated = {}
        for name, keys in _CONFIG.items():
            value = next((value for key in keys if (value := attribute_of(config, key)) is not None), None)
            # A list has one entry per stage; the last stage is the one that is described.
            value = value[-1] if isinstance(value, list | tuple) and value else value
            if isinstance(value, int) and value:
                stated[name] = value
        if stated.get("kv_heads") == stated.get("heads"):
            stated.pop("kv_heads", None)
        return stated
    for module in reversed(all_modules(model)):
        values = vars(module)
        # Most modules have none of them. The attributes of TorchScript are not the model's own.
        if values.keys().isdisjoint(_HEADS) or has_attribute(module, "original_name"):
            continue
        counts = [values[name] for name in _HEADS if name in values]
        heads = next((count for count in counts if isinstance(count, int) and not isinstance(count, bool)), 0)
        if heads:
            return {"heads": heads}
    return {}
