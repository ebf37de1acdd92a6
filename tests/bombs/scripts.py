"""TorchScript archives of a few kilobytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.bombs.running import Bomb
from tests.torchscript.archives import saved

BOMBS: dict[str, Bomb] = {}


def bomb(kind: type[nn.Module]) -> type[nn.Module]:
    BOMBS[kind.__name__] = lambda folder: [str(saved(kind(), folder)), "--input", "1x4", "--no-progress"]
    return kind


@bomb
class Repeats(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.repeat_interleave(torch.tensor([1 << 33])).sum() + x


@bomb
class Counts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.bincount(torch.tensor([1 << 33])).sum() + x


@bomb
class Positions(nn.Module):
    """A mask of four million in sixty dimensions."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(4194304, dtype=torch.bool)
        return mask.reshape([4194304] + [1] * 60).nonzero().sum() + x


@bomb
class Masks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        kept = torch.zeros([1], dtype=torch.int64)
        mask = torch.ones(2048, 2048, dtype=torch.bool)
        for _ in range(100000):
            kept = kept + torch.arange(4194304).reshape(2048, 2048)[mask].sum()
        return kept + x


@bomb
class KeepsEverything(nn.Module):
    """Each of them is small enough to be known."""

    def forward(self, x: Tensor) -> Tensor:
        kept = [torch.zeros([1], dtype=torch.int64)]
        for _ in range(10000):
            kept.append(torch.arange(4194304))
        return kept[-1][0] + x


@bomb
class SumsWhatIsExpanded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ones([1], dtype=torch.int64).expand(1 << 50).sum() + x


@bomb
class Convolves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(1000):
            x = x + torch.conv2d(torch.ones(1, 1, 1000, 1000), torch.ones(1, 1, 500, 500)).sum()
        return x


@bomb
class ListsOfLists(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, list[list[list[list[int]]]]]:
        one = [1] * 2000
        two = [one] * 2000
        three = [two] * 2000
        return x, [three] * 2000


@bomb
class TensorOfLists(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        two = [[1] * 4000] * 4000
        return torch.tensor([two] * 4000).sum() + x


@bomb
class TextOfLists(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return x, len(str([[[1] * 4000] * 4000] * 4000))


@bomb
class ManyLists(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        kept: list[list[int]] = []
        for _ in range(100000):
            kept.append([0] * 4000000)
        return x, len(kept)


@bomb
class GrowsInPlace(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        kept: list[list[int]] = []
        for _ in range(100000):
            one = [0]
            for _ in range(21):
                one.extend(one)
            kept.append(one)
        return x, len(kept)


@bomb
class Unbinds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(1000):
            x = x + torch.zeros(1000000).unbind(0)[0]
        return x


@bomb
class SplitsManyTimes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        kept = [x]
        for _ in range(1000):
            kept += torch.zeros(1 << 40).tensor_split(1 << 30)
        return kept[0]


@bomb
class EndlessBesideAnUnknownNode(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with Manager():
            while True:
                x = x + 1
        return x


@torch.jit.script
class Manager:
    def __init__(self) -> None:
        self.on = True

    def __enter__(self) -> bool:
        return self.on

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self.on = False


@bomb
class NestedLoops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(100000):
            for _ in range(100000):
                x = x * 2
        return x


def _doubling(levels: int) -> nn.Module:
    """Each level is a module that calls the one below twice."""

    class Level(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.inner(x))

    module: nn.Module = nn.ReLU()
    for _ in range(levels):
        module = torch.jit.script(Level(module))
    return module


def _exponential(folder: Path) -> list[str]:
    torch.jit.save(torch.jit.script(_doubling(40)), folder / "model.pt")
    return [str(folder / "model.pt"), "--input", "1x4"]


def _functions(folder: Path) -> list[str]:
    """Functions that call each other: torch inlines them."""
    lines = ["def f0(x: Tensor) -> Tensor:\n    return x + 1\n"]
    lines += [f"def f{n}(x: Tensor) -> Tensor:\n    return f{n - 1}(f{n - 1}(x))\n" for n in range(1, 41)]
    source = folder / "functions.py"
    source.write_text("import torch\nfrom torch import Tensor\n\n" + "\n".join(lines))
    import sys

    sys.path.insert(0, str(folder))
    from functions import f40  # type: ignore[import-not-found]

    class Calls(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return f40(x)

    return [str(saved(Calls(), folder)), "--input", "1x4"]


BOMBS |= {"exponential_methods": _exponential, "exponential_functions": _functions}
