"""torchstat's memory traffic of a layer: elements read and written."""

from __future__ import annotations

from torch import Tensor, nn

from torchgauge.analysis import Analysis
from torchgauge.compat.torchstat.layer_table import Table, batch_of, by_table, first_tensor, trainable_params

Traffic = tuple[int, int]


def compute_memory(module: nn.Module, inp: object, out: object) -> Traffic:
    """`inp` is a tensor, or a tuple or list of them where the layer takes several."""
    return by_table(MEMORY, module, inp, out, lambda analysis: own_memory(analysis, item_bytes(inp)))


def own_memory(analysis: Analysis, itemsize: int) -> Traffic:
    return analysis.totals.bytes_read // itemsize, analysis.totals.bytes_written // itemsize


def item_bytes(inp: object) -> int:
    """The width of the input's elements: torchstat takes all others to be as wide."""
    given = first_tensor(inp)
    return 1 if given is None else given.element_size()


def _weighted(module: nn.Module, inp: Tensor, out: Tensor) -> Traffic:
    """The parameters are read once for every sample."""
    sample_dims = 3 if isinstance(module, nn.Conv2d) else 1
    return inp.numel() + batch_of(inp, sample_dims) * trainable_params(module), out.numel()


def _batch_norm(module: nn.BatchNorm2d, inp: Tensor, out: Tensor) -> Traffic:
    return inp.numel() + inp.shape[0] * 2 * module.num_features, inp.numel()


def _moved(module: nn.Module, inp: Tensor, out: Tensor) -> Traffic:
    return inp.numel(), out.numel()


def _none(module: nn.Module, inp: Tensor, out: Tensor) -> Traffic:
    return 0, 0


MEMORY: Table[Traffic] = {
    nn.Conv2d: _weighted,
    nn.ConvTranspose2d: _none,
    nn.BatchNorm2d: _batch_norm,
    nn.MaxPool2d: _moved,
    nn.AvgPool2d: _moved,
    nn.ReLU: _moved,
    nn.ReLU6: _moved,
    nn.ELU: _moved,
    nn.LeakyReLU: _moved,
    nn.PReLU: _weighted,
    nn.Linear: _weighted,
    nn.Upsample: _none,
    nn.Softmax: _none,
    nn.Bilinear: _none,
}
