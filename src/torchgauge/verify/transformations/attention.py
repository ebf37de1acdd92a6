"""Attention written out: switch models and layers that have a fused form to it."""

from __future__ import annotations

from torch import nn

from torchgauge.verify.code import literal
from torchgauge.verify.registry import transformation
from torchgauge.verify.trial import Applied, NotApplicableError, Trial


@transformation("attention-by-hand")
def fused_attention(trial: Trial) -> Applied:
    """Only what the model offers itself: `need_weights`, transformers' and timm's switches."""
    paths = (str(place["module"] or "") for place in trial.places)
    layers = [path for path in paths if isinstance(trial.module(path), nn.MultiheadAttention)]
    if layers:
        return Applied(
            "def without_weights(module, args, kwargs):\n"
            "    return args, {**kwargs, 'need_weights': False}\n\n"
            f"for path in {literal(list(dict.fromkeys(layers)))}:\n"
            "    model.get_submodule(path).register_forward_pre_hook(without_weights, with_kwargs=True)\n",
            places=len(layers),
        )
    for path, module in trial.model.named_modules():
        config = getattr(module, "config", None)
        if hasattr(module, "set_attn_implementation") and getattr(config, "_attn_implementation", None) == "eager":
            holder = f"model.get_submodule({path!r})" if path else "model"
            return Applied(f"{holder}.set_attn_implementation('sdpa')\n")
    switched = [path for path, module in trial.model.named_modules() if getattr(module, "fused_attn", None) is False]
    if not switched:
        raise NotApplicableError("it is part of a forward: edit its source")
    return Applied(f"for path in {literal(switched)}:\n    model.get_submodule(path).fused_attn = True\n")
