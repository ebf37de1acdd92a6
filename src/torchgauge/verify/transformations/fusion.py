"""Batch norms folded into the layers beside them; linear layers padded to the sizes of tensor cores."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from torchgauge.advise.code import Patch
from torchgauge.advise.rules.folding import INTO_CONVOLUTION, INTO_LAYER_BEHIND, INTO_LINEAR
from torchgauge.advise.rules.tensor_cores import PAD, PADDED_LINEAR
from torchgauge.verify.code import literal
from torchgauge.verify.registry import Applied, NotApplicableError, Trial, transformation

_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
# timm's: an activation inside, which stays.
_NORM_WITH_ACTIVATION = "BatchNormAct2d"
_NO_PAIR = "the norm or the layer is not a separate plain module"


@transformation("conv-bn-fusion")
def into_convolutions(trial: Trial) -> Applied:
    pairs = []
    for pair in _pairs(trial, "convolution"):
        layer = trial.module(pair[0])
        is_known = isinstance(layer, _ConvNd) and type(layer).__module__.startswith("torch.")
        # With groups the weights of a transposed convolution lie otherwise than the fusion takes them to.
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
        if is_plain and type(norm).__name__ in _NORMS and getattr(norm, "weight", None) is not None:
            pairs.append(pair)
    return _folded(pairs, INTO_LAYER_BEHIND)


def _pairs(trial: Trial, role: str) -> list[tuple[str, str]]:
    """The paths of the layers and of the norms, which are what they are called."""
    found = [(str(place["evidence"][role]), str(place["module"])) for place in trial.places]
    norms = {path: trial.module(path) for _, path in found}
    kinds = {path: type(module).__name__ for path, module in norms.items()}
    return [
        (layer, norm)
        for layer, norm in found
        if kinds[norm] in _NORMS or (kinds[norm] == _NORM_WITH_ACTIVATION and hasattr(norms[norm], "act"))
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
