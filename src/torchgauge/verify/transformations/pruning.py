"""Weights set to zero, and stored so that they take no room."""

from __future__ import annotations

import torch
from torch import nn

from torchgauge.advise.rules.prune import INDEX_BYTES, ROW_BYTES
from torchgauge.verify.code import literal
from torchgauge.verify.meters import held_bytes
from torchgauge.verify.registry import LOSSY, transformation
from torchgauge.verify.trial import Applied, NotApplicableError, Trial

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
    """Bytes are those of compressed rows; the model computes with dense weights as before."""
    places = [(*str(place["weight"]).rpartition(".")[::2], place["evidence"]) for place in trial.places]
    found = [(path, name, round(figures["removable_share"], 3)) for path, name, figures in places]
    known = [entry for entry in found if hasattr(trial.module(entry[0]), entry[1])]
    if not known:
        raise NotApplicableError("the model that runs has no parameters of these names")

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
        raise NotApplicableError("only CUDA devices from Ampere on compute with 2:4 sparse weights")
    layers = []
    for place in trial.places:
        path = str(place["weight"]).rpartition(".")[0]
        layer = trial.module(path)
        if isinstance(layer, nn.Linear) and layer.weight.dtype in (torch.float16, torch.bfloat16):
            layers.append(path)
    if not layers:
        raise NotApplicableError("sparse tensor cores take linear layers in 16 bits, and these are not")
    return Applied(_TWO_FOUR.format(layers=literal(layers)), places=len(layers))
