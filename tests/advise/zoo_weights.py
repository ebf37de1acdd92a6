"""Faults in the values of weights and in files, each with its twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from tests.advise.planted import Planted, seen
from torchgauge import scan_weights
from torchgauge.advise import Evidence

Change = Callable[[Tensor], Tensor]
SIDE = 256
STATE = "optimizer.state.0.exp_avg"


def same(weight: Tensor) -> Tensor:
    return weight


def layers(change: Change = same, *, count: int = 3, spared: int = 1) -> nn.Module:
    """Linears with normally distributed weights; all but the first `spared` are changed."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(count)))
    for number, parameter in enumerate(model.parameters()):
        weight = torch.randn(SIDE, SIDE)
        parameter.data.copy_(weight if number < spared else change(weight))
    return model


def on_grid(weight: Tensor) -> Tensor:
    """Values that 4 bits hold exactly, with a scale for all or one per group: the largest is in every group."""
    grid = (weight * 2).round().clamp(-7, 7) / 8
    grid[:, ::128] = 7 / 8
    return grid


def near_grid(weight: Tensor) -> Tensor:
    """Values that 4 bits hold at about 28 dB."""
    grid = on_grid(weight)
    return grid + 0.04 * grid.std() * torch.randn_like(weight) * (grid.abs() < 0.8)


def sparse(weight: Tensor) -> Tensor:
    return weight * (torch.rand_like(weight) < 0.05)


def two_of_four(weight: Tensor) -> Tensor:
    blocks = weight.reshape(-1, 4)
    return blocks.scatter(1, blocks.abs().topk(2, largest=False).indices, 0.0).reshape(weight.shape)


def faint_rows(weight: Tensor) -> Tensor:
    return torch.cat([weight[: SIDE // 2] * 1e-4, weight[SIDE // 2 :]])


def dead_rows(weight: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(weight[:40]), weight[40:]])


def thin(weight: Tensor) -> Tensor:
    return weight[:, :8] @ weight[:8]


def rounded(weight: Tensor) -> Tensor:
    return weight.bfloat16().float()


def equal(weight: Tensor) -> Tensor:
    """As if all layers were copies of one."""
    return torch.sin(torch.arange(weight.numel()).reshape(weight.shape) * 1.0)


class Words(nn.Module):
    """An embedding and a head of the same shape."""

    def __init__(self, join: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(200, 64)
        self.head = nn.Linear(64, 200, bias=False)
        if join == "tied":
            self.head.weight = self.table.weight
        elif join == "copied":
            self.head.weight = nn.Parameter(self.table.weight.detach().clone())
        elif join == "padded":
            nn.init.zeros_(self.table.weight[3])

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.table(tokens))
        return out


def read(model: nn.Module, *shape: int, **settings: Any) -> Evidence:
    """With the values of the weights."""
    return seen(model, *shape, weights=True, deep=True, **settings)


def stored(content: Any) -> Evidence:
    """A file without code."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        torch.save(content, path)
        found = scan_weights(path, progress=False)
    return Evidence(found.capture, found)


def words(join: str) -> Evidence:
    return read(Words(join), inputs=torch.zeros(2, 16, dtype=torch.int64))


def pair(join: str) -> Evidence:
    return stored(Words(join).state_dict())


def saved_as(dtype: torch.dtype) -> Evidence:
    return stored({name: weight.to(dtype) for name, weight in layers(on_grid, spared=0).state_dict().items()})


def checkpoint(with_state: bool) -> Evidence:
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = {"optimizer": optimizer.state_dict()} if with_state else {}
    return stored({"model": model.state_dict(), **state})


def few(change: Change = same, count: int = 3, spared: int = 1) -> Evidence:
    """So few samples that reading weights is all the work."""
    return read(layers(change, count=count, spared=spared), 1, SIDE)


def saved(change: Change = same) -> Evidence:
    return stored(layers(change).state_dict())


def spectra(change: Change = same) -> Evidence:
    return read(layers(change), 1, SIDE, spectrum=True)


CASES = [
    Planted(
        "four bits",
        "quantize-weights",
        "1.weight",
        lambda: few(on_grid, spared=0),
        lambda: read(layers(on_grid), 4096, SIDE),
    ),
    Planted(
        "four bits, file", "quantize-weights", "1.weight", lambda: saved_as(torch.float32), lambda: saved_as(torch.int8)
    ),
    Planted("one budget", "mixed-precision-plan", "", lambda: few(near_grid, 4), few),
    Planted("zeros", "unstructured-pruning", "1.weight", lambda: few(sparse), few),
    Planted("two of four", "two-four-sparsity", "1.weight", lambda: few(two_of_four), few),
    Planted("faint rows", "structured-pruning", "1.weight", lambda: few(faint_rows), lambda: few(dead_rows)),
    Planted("dead rows", "dead-rows", "1.weight", lambda: few(dead_rows), lambda: few(faint_rows)),
    Planted("padding row", "dead-rows", "1.weight", lambda: few(dead_rows), lambda: words("padded")),
    Planted("thin", "low-rank", "1.weight", lambda: spectra(thin), spectra),
    Planted("head", "tied-weights", "head.weight", lambda: words("copied"), lambda: words("tied")),
    Planted("equal zeros", "tied-weights", "head.weight", lambda: words("copied"), lambda: few(torch.zeros_like)),
    Planted("copied blocks", "tied-weights", "head.weight", lambda: words("copied"), lambda: few(equal)),
    Planted("head, file", "duplicate-tensors", "head.weight", lambda: pair("copied"), lambda: pair("tied")),
    Planted("empty bits", "narrower-type", "1.weight", lambda: saved(rounded), saved),
    Planted("state", "stored-optimizer-state", STATE, lambda: checkpoint(True), lambda: checkpoint(False)),
]
