"""Other modules for the same result: batch norms folded into neighbouring layers, linear layers padded to the tile
sizes of tensor cores, and torch's own GELU, norms and attention instead of a forward's separate ops."""

from __future__ import annotations

from textwrap import indent

from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from torchgauge.advise.activations import FUNCTIONS
from torchgauge.advise.code import Patch
from torchgauge.advise.rules.consecutive import MERGE, MERGE_CONVOLUTIONS
from torchgauge.advise.rules.folding import INTO_CONVOLUTION, INTO_LAYER_BEHIND, INTO_LINEAR, NORMS
from torchgauge.advise.rules.norms import GROUP_NORM
from torchgauge.advise.rules.padding import PADDING
from torchgauge.advise.rules.pooling import pools_by_row
from torchgauge.advise.rules.tensor_cores import PAD, PADDED_LINEAR
from torchgauge.facts import FREE
from torchgauge.registry import grouped
from torchgauge.verify.code import literal
from torchgauge.verify.registry import Applied, NotApplicableError, Place, Trial, transformation

# timm's norm with an activation inside, which remains.
_NORM_WITH_ACTIVATION = "BatchNormAct2d"
_NO_PAIR = "the norm or the layer is not a separate plain module"


@transformation("conv-bn-fusion")
def into_convolutions(trial: Trial) -> Applied:
    pairs = []
    for pair in _pairs(trial, "convolution"):
        layer = trial.module(pair[0])
        is_known = isinstance(layer, _ConvNd) and type(layer).__module__.startswith("torch.")
        # The fusion does not support the weight layout of grouped transposed convolutions.
        if is_known and not (isinstance(layer, _ConvTransposeNd) and layer.groups > 1):
            pairs.append(pair)
    return _folded(pairs, INTO_CONVOLUTION)


@transformation("linear-bn-fusion")
def into_linears(trial: Trial) -> Applied:
    pairs = [pair for pair in _pairs(trial, "linear") if type(trial.module(pair[0])) is nn.Linear]
    return _folded(pairs, INTO_LINEAR)


@transformation("norm-linear-fusion")
def into_layers_behind(trial: Trial) -> Applied:
    pairs = []
    for pair in _pairs(trial, "layer"):
        layer, norm = (trial.module(path) for path in pair)
        is_plain = type(layer) in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
        if is_plain and type(norm).__name__ in NORMS and getattr(norm, "weight", None) is not None:
            pairs.append(pair)
    return _folded(pairs, INTO_LAYER_BEHIND)


@transformation("consecutive-layers")
def merged_layers(trial: Trial) -> Applied:
    calls = {record.path: record.calls for record in trial.capture.modules}
    linear, convolutions = [], []
    for place in trial.places:
        paths = [str(path) for path in place["evidence"]["layers"]]
        first, second = (trial.module(path) for path in paths)
        if type(first) is not type(second) or any(calls[path] != 1 for path in paths):
            continue
        if type(first) is nn.Linear:
            linear.append((paths[0], paths[1]))
        elif isinstance(first, nn.Conv1d | nn.Conv2d | nn.Conv3d) and isinstance(second, _ConvNd):
            edges = [each.padding for each in (first, second) if isinstance(each.padding, tuple)]
            if len(edges) == 2:  # "same" is a word
                padding = tuple(p + s * q for p, s, q in zip(edges[0], first.stride, edges[1], strict=True))
                convolutions.append((paths[0], paths[1], padding))
    if not linear and not convolutions:
        raise NotApplicableError("the layers are not plain modules of one kind that run once")
    parts = [f"for first, second in {literal(linear)}:\n{indent(MERGE, '    ')}"] if linear else []
    if convolutions:
        parts.append(f"for first, second, padding in {literal(convolutions)}:\n{indent(MERGE_CONVOLUTIONS, '    ')}")
    return Applied("\n".join(parts), places=len(linear) + len(convolutions))


@transformation("padding-before-convolution")
def padded_by_convolutions(trial: Trial) -> Applied:
    calls, rows = {record.path: record.calls for record in trial.capture.modules}, []
    for place in trial.places:
        first, second = str(place["module"]), str(place["evidence"]["convolution"])
        pad, layer = trial.module(first), trial.module(second)
        own = layer.padding if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) else None
        is_pad = type(pad).__name__[:-2] in ("ZeroPad", "ConstantPad") and calls[first] == 1
        if not is_pad or not isinstance(own, tuple):  # "same" is a word
            continue
        edges = place["evidence"]["padding"]
        around = (0,) * (len(own) - len(edges)) + tuple(edges)
        rows.append((first, second, tuple(zeros + more for zeros, more in zip(own, around, strict=True))))
    if not rows:
        raise NotApplicableError("the pad is not a layer that runs once before a plain convolution")
    return Applied(Patch(PADDING, ("first", "second", "padding"), tuple(rows)).text() + "\n", places=len(rows))


def _pairs(trial: Trial, role: str) -> list[tuple[str, str]]:
    """The paths of the layers and the norms, if the norms are batch norms of the model that runs."""
    found = [(str(place["evidence"][role]), str(place["module"])) for place in trial.places]
    norms = {path: trial.module(path) for _, path in found}
    kinds = {path: type(module).__name__ for path, module in norms.items()}
    return [
        (layer, norm)
        for layer, norm in found
        if kinds[norm] in NORMS or (kinds[norm] == _NORM_WITH_ACTIVATION and hasattr(norms[norm], "act"))
    ]


def _folded(pairs: list[tuple[str, str]], statements: str) -> Applied:
    if not pairs:
        raise NotApplicableError(_NO_PAIR)
    return Applied(f"for first, second in {literal(pairs)}:\n{statements}", places=len(pairs))


@transformation("odd-dimensions")
def padded(trial: Trial) -> Applied:
    paths = (str(place["module"] or "") for place in trial.places)
    layers = [path for path in paths if type(trial.module(path)) is nn.Linear]
    if not layers:
        raise NotApplicableError("its weight is not that of a plain linear layer")
    rows = tuple((path,) for path in dict.fromkeys(layers))
    return Applied(Patch(PAD, ("path",), rows, PADDED_LINEAR).text() + "\n", places=len(layers))


@transformation("attention-by-hand")
def fused_attention(trial: Trial) -> Applied:
    """Only through switches that the model has: `need_weights`, those of transformers and timm."""
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


Groups = dict[str, list[Place]]

_SHIFTS = {"bias", "beta", "shift", "b"}
_PART_OF_FORWARD = "it is part of a larger forward: edit its source"


@transformation("gelu-by-hand")
@transformation("silu-by-hand")
@transformation("activation-by-hand")
def torch_activation(trial: Trial) -> Applied:
    found = _whole_modules(trial)
    if any(next(trial.model.get_submodule(path).parameters(), None) is not None for path in found):
        raise NotApplicableError(_PART_OF_FORWARD)
    known = {function.module for function in FUNCTIONS}
    made = {path: str(places[0]["evidence"]["function"]) for path, places in found.items()}
    lines = [f"model.set_submodule({path!r}, torch.nn.{module})\n" for path, module in made.items() if module in known]
    return Applied("".join(lines), places=_count(found))


@transformation("norm-by-hand")
def torch_norm(trial: Trial) -> Applied:
    kind = str(trial.evidence["norm"])
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
            or (shifts and kind == "RMS")
            or any(p.dim() != 1 and (kind != "group" or p.numel() != max(p.shape)) for p in own.values())
        ):
            raise NotApplicableError("could not determine which parameters are scale and shift")
        flat = ".flatten()" if kind == "group" else ""
        scale, shift = (f"getattr(norm, {names[0]!r}){flat}" if names else "None" for names in (scales, shifts))
        of_place = {index for place in trial.places if place["module"] == path for index in place["ops"]}
        adds = [op for op in trial.capture.ops if op.index in of_place and op.op in ("aten::add", "aten::add_")]
        values = [value for op in adds if isinstance(value := op.signature.attributes.get("other"), float)]
        if not values:
            raise NotApplicableError("could not determine eps")
        eps = values[0]
        lines.append(f"norm = model.get_submodule({path!r})\nnorm.forward = normalised({scale}, {shift}, {eps!r})")
    calls = {
        "layer": "layer_norm(x, x.shape[-1:], weight, bias, eps)",
        "RMS": "rms_norm(x, x.shape[-1:], weight, eps)",
        "group": "group_norm(x, 1, weight, bias, eps)",
    }
    return Applied(
        "def normalised(weight, bias, eps):\n"
        f"    return lambda x: torch.nn.functional.{calls[kind]}\n\n" + "\n".join(lines),
        places=_count(found),
    )


@transformation("instance-norm")
def group_norms(trial: Trial) -> Applied:
    found = dict.fromkeys(str(place["module"]) for place in trial.places if place["evidence"]["is_layer"])
    layers = tuple((path,) for path in found)
    if not layers:
        raise NotApplicableError(_PART_OF_FORWARD)
    return Applied(Patch(GROUP_NORM, ("path",), layers).text(), places=len(layers))


@transformation("large-max-pool")
def rows_first(trial: Trial) -> Applied:
    ops, types = {op.index: op for op in trial.capture.ops}, {each.path: each.type for each in trial.capture.modules}
    places = [(ops[place["ops"][0]], types.get(str(place["module"]))) for place in trial.places]
    patches = {op.module: patch for op, kind in places if (patch := pools_by_row(op, kind)) is not None}
    if not patches:
        raise NotApplicableError(_PART_OF_FORWARD)
    return Applied("\n".join(patch.text() for patch in patches.values()), places=len(patches))


def _whole_modules(trial: Trial) -> Groups:
    """The modules that compute nothing else, with their places; only these can be replaced."""
    groups = grouped((str(place["module"] or ""), place) for place in trial.places)
    forward = [op for op in trial.capture.ops if op.phase == "forward" and op.status != FREE]
    found: Groups = {}
    for path, places in groups.items():
        module = trial.module(path)
        covered = {index for place in places for index in place["ops"]}
        work = {op.index for op in forward if f"{op.module}.".startswith(f"{path}.")}
        inside = [f"{path}.{name}." for name, _ in module.named_children()] if module is not None else []
        has_work = [any(f"{op.module}.".startswith(each) for op in forward if op.index in covered) for each in inside]
        # Other ops that are allowed: the product with a scale and the sum with a shift, or casts of them.
        if (
            path
            and module is not None
            and all(has_work)
            and len(work - covered) <= (2 * len(list(module.parameters(recurse=False))))
        ):
            found[path] = places
    if not found:
        raise NotApplicableError(_PART_OF_FORWARD)
    return found


def _count(groups: Groups) -> int:
    return sum(map(len, groups.values()))
