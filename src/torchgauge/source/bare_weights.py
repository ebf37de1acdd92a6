"""Inputs of a model without layers, which uses its parameters through functions."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchgauge.source.candidate import Defaults, Guess
from torchgauge.source.layers import image_sizes

_LENGTHS = (128, 16, 8, 32, 64, 512)


def weight_guesses(model: nn.Module, defaults: Defaults) -> Iterator[Guess]:
    """What the first parameter suggests, as the weight of a convolution or of a matmul from either side."""
    name, weight = next(iter(model.named_parameters()), (None, None))
    if name is None or weight is None or is_lazy(weight):
        return
    source = f"the shape of the parameter '{name}'"
    # Whether a parameter is that of an embedding; a traced layer has kept only the name of its class.
    owner = dict(model.named_modules()).get(name.rpartition(".")[0])
    is_table = getattr(owner, "original_name", type(owner).__name__) == "Embedding"
    if is_table:
        # A trace has the length it was made with in its graph: several are tried.
        for length in (defaults.seq,) if defaults.seq else _LENGTHS:
            yield Guess(defaults.ids(defaults.batch, length), f"'{name}' is the table of an embedding")
    for tensor in _tensors(weight, defaults):
        yield Guess(tensor, source)


def _tensors(weight: Tensor, defaults: Defaults) -> Iterator[Tensor]:
    if weight.dim() == 4:
        for size in image_sizes(weight.shape[1])[:3]:
            yield defaults.floats(defaults.batch, weight.shape[1], size, size)
    elif weight.dim() == 2:
        for features in dict.fromkeys((weight.shape[1], weight.shape[0])):
            yield defaults.floats(defaults.batch, features)
            yield defaults.floats(defaults.batch, defaults.seq or 16, features)
    elif weight.dim() == 1:
        yield defaults.floats(defaults.batch, weight.shape[0])
