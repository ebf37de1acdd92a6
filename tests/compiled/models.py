"""Models for torch.compile. A line that ends a graph is marked with a comment, `break`."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

WIDTH = 16


def marked_lines(kind: type[nn.Module]) -> set[str]:
    """`models.py:LINE` of the lines of a class that are marked."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    start = next(at for at, line in enumerate(lines) if re.match(rf"class {kind.__name__}\b", line))
    end = next((at for at in range(start + 1, len(lines)) if re.match(r"\S", lines[at])), len(lines))
    return {f"models.py:{at + 1}" for at in range(start, end) if lines[at].endswith("# break")}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(torch.relu(self.linear(x)) + x)
        return y


class Whole(nn.Module):
    """Without a break."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.blocks(x)
        return y


class Prints(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        print("halfway")  # break
        y: torch.Tensor = self.second(x)
        return y


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        if y.sum() > 1e9:  # break
            y = y * 2
        return y * 3


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        scale = y.abs().max().item()  # break
        return y / scale


class Nested(nn.Module):
    """The break is in a module that it calls, not in one of its own lines."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.inner, self.after = Block(), Reads(), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.after(self.inner(self.before(x)))
        return y


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        rows = y[:, 0].tolist()  # break
        return y + len(rows)


class Logs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.linear(x))
        logging.getLogger("models").warning("seen %s", time.perf_counter())  # break
        return y + 1


class Shapes(nn.Module):
    """An op whose result has a size that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.linear(x))
        chosen = torch.nonzero(y[:, 0] > -1)  # break
        return y[chosen[:, 0]] * 2


class Opaque(nn.Module):
    """Code that was told not to be compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    @torch._dynamo.disable  # type: ignore[untyped-decorator, unused-ignore]
    def outside(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.linear(x))
        y = self.outside(y)  # break
        return y.cos()


class Explicit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.linear(x))
        torch._dynamo.graph_break()  # break
        return y.cos()


# Written, and not run, before the code that finds breaks was finished.
class Numpy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.linear(x))
        noise = np.random.default_rng(0).standard_normal(WIDTH)  # break
        return y + torch.as_tensor(noise, dtype=y.dtype)


class Guarded(nn.Module):
    """Inside `try`, where Dynamo cannot resume."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.linear(x))
        try:
            scale = float(y.max().item())  # break
        except ValueError:
            scale = 1.0
        return y * scale


class Generates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def parts(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for row in x:
            print("row")  # break
            yield row * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.linear(x))
        return torch.stack(list(self.parts(y)))


class Loops(nn.Module):
    """A loop that ends by a value."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(self.linear(x))
        while y.max() > 0.1:  # break
            y = y * 0.5
        return y


class Asserts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(self.linear(x))
        if bool((y > 2).any()):  # break
            raise ValueError("out of range")
        return y + 1


class Opens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.linear(x))
        size = Path(__file__).stat().st_size  # break
        return y + size


class Masks(nn.Module):
    """Writes into a view that a graph returned; the backward pass of that needs `nonzero`, which no graph can have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.value = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (self.linear(x) + 1).view(-1, WIDTH)
        print("before")  # break
        y[y[:, 0] > 0] = self.value  # break
        return y * 2
