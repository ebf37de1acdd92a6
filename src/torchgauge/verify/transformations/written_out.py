"""GELU, norms and attention written out in a forward, replaced by torch's own functions."""

from __future__ import annotations

from torch import nn

from torchgauge.facts import FREE
from torchgauge.verify.code import literal
from torchgauge.verify.registry import Applied, NotApplicableError, Row, Trial, transformation


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


Groups = dict[str, list[Row]]

_SHIFTS = {"bias", "beta", "shift", "b"}
_AMID = "it is part of a larger forward: edit its source"


@transformation("gelu-by-hand")
def torch_gelu(trial: Trial) -> Applied:
    found = _whole_modules(trial)
    if any(next(trial.model.get_submodule(path).parameters(), None) is not None for path in found):
        raise NotApplicableError(_AMID)
    forms = [
        (path, "none" if any("aten::erf" in place["evidence"]["passes"] for place in places) else "tanh")
        for path, places in found.items()
    ]
    return Applied(
        f"for path, form in {literal(forms)}:\n    model.set_submodule(path, torch.nn.GELU(approximate=form))\n",
        places=_count(found),
    )


@transformation("norm-by-hand")
def torch_norm(trial: Trial) -> Applied:
    is_layer_norm = trial.row["evidence"]["norm"] == "layer"
    found = _whole_modules(trial)
    lines = []
    for path in found:
        norm = trial.model.get_submodule(path)
        own = dict(norm.named_parameters(recurse=False))
        shifts = [name for name in own if name in _SHIFTS]
        scales = [name for name in own if name not in _SHIFTS]
        if (
            len(scales) > 1
            or len(shifts) > 1
            or (shifts and not is_layer_norm)
            or any(p.dim() != 1 for p in own.values())
        ):
            raise NotApplicableError("could not determine which parameters are scale and shift")
        scale, shift = (f"getattr(norm, {names[0]!r})" if names else "None" for names in (scales, shifts))
        eps = _eps(trial, path)
        lines.append(f"norm = model.get_submodule({path!r})\nnorm.forward = normalised({scale}, {shift}, {eps!r})")
    function = "layer_norm" if is_layer_norm else "rms_norm"
    return Applied(
        "def normalised(weight, bias, eps):\n"
        f"    shift = {'(bias,)' if is_layer_norm else '()'}\n"
        f"    return lambda x: torch.nn.functional.{function}(x, x.shape[-1:], weight, *shift, eps=eps)\n\n"
        + "\n".join(lines),
        places=_count(found),
    )


def _eps(trial: Trial, path: str) -> float:
    """What is added under the root."""
    of_place = {index for place in trial.places if place["module"] == path for index in place["ops"]}
    names = ("aten::add", "aten::add_")
    added = [
        op.signature.attributes.get("other") for op in trial.capture.ops if op.index in of_place and op.op in names
    ]
    known = [value for value in added if isinstance(value, float)]
    if not known:
        raise NotApplicableError("could not determine eps")
    return known[0]


def _whole_modules(trial: Trial) -> Groups:
    """The modules that do nothing but this, with their places; others cannot be replaced."""
    groups: Groups = {}
    for place in trial.places:
        groups.setdefault(str(place["module"] or ""), []).append(place)
    forward = [op for op in trial.capture.ops if op.phase == "forward" and op.status != FREE]
    found: Groups = {}
    for path, places in groups.items():
        module = trial.module(path)
        covered = {index for place in places for index in place["ops"]}
        work = {op.index for op in forward if op.module == path}
        # Ops that may stand besides: the product with a scale and the sum with a shift, or a cast to each and
        # back.
        if (
            path
            and module is not None
            and not list(module.children())
            and len(work - covered) <= (2 * len(list(module.parameters(recurse=False))))
        ):
            found[path] = places
    if not found:
        raise NotApplicableError(_AMID)
    return found


def _count(groups: Groups) -> int:
    return sum(map(len, groups.values()))
