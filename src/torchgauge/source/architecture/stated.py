"""Hyperparameters that a live model states: in a Hugging Face config, or as attributes of its attention layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

_CONFIG = {
    "heads": ("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_size": ("qk_head_dim", "head_dim", "d_kv"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok",),
}
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "heads")


def stated_hyperparameters(model: nn.Module) -> dict[str, Any]:
    """Without a config: the heads of the last attention layer, if it tells them."""
    config = getattr(model, "config", None)
    if config is not None and not isinstance(config, dict):
        found = {name: _first(config, keys) for name, keys in _CONFIG.items()}
        stated = {name: value for name, value in found.items() if isinstance(value, int) and value}
        if stated.get("kv_heads") == stated.get("heads"):
            stated.pop("kv_heads", None)
        return stated
    from torchgauge.source.modules import all_modules

    heads = [value for module in all_modules(model) if (value := _heads(module))]
    return {"heads": heads[-1]} if heads else {}


def _first(config: Any, names: tuple[str, ...]) -> Any:
    """Of a list by stage that of the last, whose blocks are described."""
    value = next((value for name in names if (value := getattr(config, name, None)) is not None), None)
    return value[-1] if isinstance(value, list | tuple) and value else value


def _heads(module: nn.Module) -> int | None:
    from torchgauge.source.modules import has_attribute

    # TorchScript modules answer for attributes they lack with an error of their own.
    values = vars(module) if not has_attribute(module, "original_name") else {}
    return next((v for name in _HEADS if isinstance(v := values.get(name), int) and not isinstance(v, bool)), None)
