"""Parameters: tied, removed, computed once, in a narrower type; in 8 bits, as two thin layers, pruned.

8 bits: one scale per output, unpacked when the layer is called. torchao has kernels for more formats; this needs only
torch, and the output error is the same.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrize

from torchgauge.advise.matrices import model_name
from torchgauge.advise.rules.prune import INDEX_BYTES, ROW_BYTES
from torchgauge.facts import View
from torchgauge.verify.bench import held_bytes
from torchgauge.verify.code import literal
from torchgauge.verify.registry import LOSSY, Applied, NotApplicableError, Trial, transformation


@transformation("tied-weights", stage="weights")
def tie(trial: Trial) -> Applied:
    pairs = [(str(place["weight"]), str(place["evidence"]["same_values_as"])) for place in trial.places]
    known = dict(trial.model.named_parameters(remove_duplicate=False))
    lines = []
    for copy, original in pairs:
        if copy in known and original in known:
            module, _, name = copy.rpartition(".")
            lines.append(f"setattr(model.get_submodule({module!r}), {name!r}, model.get_parameter({original!r}))\n")
    if not lines:
        raise NotApplicableError("the model that runs has no parameters with these names")
    return Applied("".join(lines), places=len(lines))


@transformation("unused-parameters")
def take_out(trial: Trial) -> Applied:
    modules = [str(place["module"]) for place in trial.places if place["module"] and place["weight"] is None]
    known = [path for path in modules if trial.module(path) is not None]
    if not known:
        raise NotApplicableError("a single parameter can only be removed in the code of the model, which may use it")
    code = f"for path in {literal(known)}:\n    model.set_submodule(path, torch.nn.Identity())\n"
    return Applied(code, places=len(known))


@transformation("recomputed-weight", stage="weights")
def compute_once(trial: Trial) -> Applied:
    """Parametrizations become plain parameters; weights that a forward computes can only be changed in its source."""
    found = []
    for place in trial.places:
        owner, marked, rest = str(place["module"] or "").partition("parametrizations.")
        owner, name = owner.rstrip("."), rest.partition(".")[0]
        module = trial.module(owner) if marked else None
        if module is not None and parametrize.is_parametrized(module, name):
            found.append((owner, name))
    if not found:
        raise NotApplicableError("it is computed in a forward: edit its source")
    return Applied(
        f"for path, name in {literal(list(dict.fromkeys(found)))}:\n"
        "    torch.nn.utils.parametrize.remove_parametrizations(model.get_submodule(path), name)\n",
        places=len(found),
    )


@transformation("narrower-type", stage="weights")
def narrower(trial: Trial) -> Applied:
    """The stored state dict is narrower; the loaded model computes as before."""
    rows = [row for row in View(trial.capture).weights if row.get("fits") and row.shared_with is None]
    state = trial.model.state_dict()
    kinds = {model_name(row): str(row.fits) for row in rows if model_name(row) in state}
    if not kinds:
        raise NotApplicableError("the model that runs has no parameters with these names")
    code = (
        f"fits = {literal(kinds)}\n"
        "state = {name: t.to(getattr(torch, fits[name])) if name in fits else t for name, t in "
        "model.state_dict().items()}\n"
        "model.load_state_dict(state)\n"
    )

    def stored_bytes(model: nn.Module) -> int:
        state = model.state_dict().items()
        return sum((t.to(getattr(torch, kinds[name])) if name in kinds else t).nbytes for name, t in state)

    return Applied(code, held_bytes=stored_bytes, in_plan=False)


_LAYER = """\
class Linear8Bit(torch.nn.Module):
    def __init__(self, linear, kind, largest):
        super().__init__()
        weight = linear.weight.detach()
        scale = (weight.abs().amax(1, keepdim=True) / largest).clamp_min(torch.finfo(weight.dtype).tiny)
        codes = weight / scale if kind.is_floating_point else (weight / scale).round()
        self.register_buffer("codes", codes.clamp(-largest, largest).to(kind))
        self.register_buffer("scale", scale.flatten())
        self.bias = linear.bias

    def forward(self, x):
        y = torch.nn.functional.linear(x, self.codes.to(x.dtype)) * self.scale
        return y if self.bias is None else y + self.bias

for path, kind, largest in {layers}:
    model.set_submodule(path, Linear8Bit(model.get_submodule(path), getattr(torch, kind), largest))
"""
_NOTE = "measured with a layer that unpacks 8 bits at every call; torchao's kernels may differ in time"
# The torch type and the largest number of each format.
_FORMATS = {"int8": ("int8", 127.0), "fp8_e4m3": ("float8_e4m3fn", 448.0)}


@transformation("quantize-weights", stage="weights", tolerance=LOSSY)
def eight_bits(trial: Trial) -> Applied:
    places = [(str(place["module"] or ""), str(place["evidence"]["format"])) for place in trial.places]
    layers = [(path, kind) for path, kind in places if type(trial.module(path)) is nn.Linear and kind in _FORMATS]
    if not layers:
        raise NotApplicableError("only linear layers in 8 bits can be tried with torch alone")
    code = _LAYER.replace("{layers}", literal([(path, *_FORMATS[kind]) for path, kind in layers]))
    return Applied(code, places=len(layers), note=_NOTE)


_LINEAR = """\
for path, rank in {layers}:
    layer = model.get_submodule(path)
    u, s, v = torch.linalg.svd(layer.weight.detach().float(), full_matrices=False)
    first = torch.nn.Linear(layer.in_features, rank, bias=False).to(layer.weight)
    second = torch.nn.Linear(rank, layer.out_features, bias=layer.bias is not None).to(layer.weight)
    first.weight.data.copy_(s[:rank, None] * v[:rank])
    second.weight.data.copy_(u[:, :rank])
    if layer.bias is not None:
        second.bias.data.copy_(layer.bias)
    model.set_submodule(path, torch.nn.Sequential(first, second))
"""
_CONVOLUTION = """\
for path, rank in {layers}:
    layer = model.get_submodule(path)
    u, s, v = torch.linalg.svd(layer.weight.detach().flatten(1).float(), full_matrices=False)
    options = {{name: getattr(layer, name) for name in ("stride", "padding", "dilation", "padding_mode")}}
    first = type(layer)(layer.in_channels, rank, layer.kernel_size, bias=False, **options)
    second = type(layer)(rank, layer.out_channels, 1, bias=layer.bias is not None)
    first.weight.data.copy_((s[:rank, None] * v[:rank]).view_as(first.weight))
    second.weight.data.copy_(u[:, :rank].reshape(second.weight.shape))
    if layer.bias is not None:
        second.bias.data.copy_(layer.bias)
    model.set_submodule(path, torch.nn.Sequential(first, second).to(layer.weight))
"""
_KINDS = ((_LINEAR, (nn.Linear,)), (_CONVOLUTION, (nn.Conv1d, nn.Conv2d, nn.Conv3d)))


@transformation("low-rank", stage="weights", tolerance=LOSSY)
def factorised(trial: Trial) -> Applied:
    found = [(str(place["module"] or ""), int(place["evidence"]["rank"])) for place in trial.places]
    layers = {path: trial.module(path) for path, _ in found}
    plain = [(path, rank) for path, rank in found if getattr(layers[path], "groups", 1) == 1]
    groups = [(text, [each for each in plain if type(layers[each[0]]) in kinds]) for text, kinds in _KINDS]
    code = "".join(text.format(layers=literal(some)) for text, some in groups if some)
    if not code:
        raise NotApplicableError("its weight is not that of a plain linear or convolution layer")
    return Applied(code, places=sum(len(some) for _, some in groups))


_SPARSE_TENSOR_CORES = (8, 0)
_TWO_FOUR = """\
for path in {layers}:
    layer = model.get_submodule(path)
    fours = layer.weight.detach().reshape(-1, 4)
    smallest = fours.abs().topk(2, dim=1, largest=False).indices
    pruned = fours.scatter(1, smallest, 0.0).reshape(layer.weight.shape)
    layer.weight = torch.nn.Parameter(torch.sparse.to_sparse_semi_structured(pruned), requires_grad=False)
"""


@transformation("unstructured-pruning", stage="weights", tolerance=LOSSY)
def smallest_removed(trial: Trial) -> Applied:
    """Bytes are those of compressed sparse rows; the model still computes with dense weights."""
    places = [(*str(place["weight"]).rpartition(".")[::2], place["evidence"]) for place in trial.places]
    found = [(path, name, round(figures["removable_share"], 3)) for path, name, figures in places]
    known = [entry for entry in found if hasattr(trial.module(entry[0]), entry[1])]
    if not known:
        raise NotApplicableError("the model that runs has no parameters with these names")

    def stored_bytes(model: nn.Module) -> int:
        saved = 0
        for path, name, _ in known:
            tensor: torch.Tensor = getattr(model.get_submodule(path), name)
            kept = int(torch.count_nonzero(tensor))
            saved += tensor.nbytes - kept * (tensor.itemsize + INDEX_BYTES) - (tensor.shape[0] + 1) * ROW_BYTES
        return held_bytes(model) - saved

    return Applied(
        "from torch.nn.utils import prune\n"
        f"for path, name, share in {literal(known)}:\n"
        "    prune.l1_unstructured(model.get_submodule(path), name, share)\n"
        "    prune.remove(model.get_submodule(path), name)\n",
        held_bytes=stored_bytes,
        in_plan=False,
        places=len(known),
    )


@transformation("two-four-sparsity", stage="weights", tolerance=LOSSY)
def two_of_four(trial: Trial) -> Applied:
    if trial.device.type != "cuda" or torch.cuda.get_device_capability(trial.device) < _SPARSE_TENSOR_CORES:
        raise NotApplicableError("2:4 sparse weights need a CUDA device of the Ampere generation or later")
    layers = []
    for place in trial.places:
        path = str(place["weight"]).rpartition(".")[0]
        layer = trial.module(path)
        if isinstance(layer, nn.Linear) and layer.weight.dtype in (torch.float16, torch.bfloat16):
            layers.append(path)
    if not layers:
        raise NotApplicableError("sparse tensor cores need linear layers in float16 or bfloat16")
    return Applied(_TWO_FOUR.format(layers=literal(layers)), places=len(layers))
