"""The models and configurations that `fit.py` and `forecast.py` predict and measure.

`data/h200-memory.jsonl` and `data/h200-time.jsonl` have a configuration in each line: the model (of timm, torchvision
or transformers, or one of the networks here), its inputs, its options, the number of its set, and what a device
measured. The first line says where the figures are from.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

DATA = Path(__file__).parent / "data"
MEMORY, TIME = DATA / "h200-memory.jsonl", DATA / "h200-time.jsonl"
BF16, FP16, NHWC = {"dtype": "bfloat16"}, {"dtype": "float16"}, {"channels_last": True}
TRAIN = {"mode": "train", "optimizer": "adamw"}


@dataclass(frozen=True)
class Configuration:
    """`options` are keywords of `tg.fit` and `tg.forecast`; `size` is the order of its memory in GiB, to plan what runs
    side by side."""

    name: str
    construct: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    size: float = 8
    measured: dict[str, Any] = field(default_factory=dict)

    @property
    def is_training(self) -> bool:
        return self.options.get("mode") == "train"

    def build(self) -> nn.Module:
        """The model on the current device, its weights not initialised."""
        with uninitialised():
            model = self.construct()
        return model.train(self.is_training)


def read_set(path: Path, number: int | None = None) -> list[Configuration]:
    """The configurations of a set, or of all sets."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [_of(row) for row in map(json.loads, lines) if number is None or row["set"] == number]


def read_header(path: Path) -> dict[str, Any]:
    with path.open(encoding="utf-8") as file:
        header: dict[str, Any] = json.loads(next(file))
    return header


def _of(row: dict[str, Any]) -> Configuration:
    settings = row.get("settings", {})
    if "timm" in row:
        construct = of_timm(row["timm"], **settings)
    elif "torchvision" in row:
        construct = of_torchvision(row["torchvision"], **settings)
    elif "transformers" in row:
        construct = of_transformers(*row["transformers"], **settings)
    else:
        kind, *sizes = row["network"]
        construct = partial(NETWORKS[kind], *sizes)
    return Configuration(
        row["name"], construct, partial(drawn, **row["inputs"]), row.get("options", {}), row.get("size", 8),
        row.get("measured", {}),
    )  # fmt: skip


def drawn(args: list[Any] | None = None, kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
    """Random tensors: "2x3x8" of normal numbers, "2x8:1000" of integers below 1,000; other values as they are."""
    return {"args": tuple(map(_tensor, args or ())), "kwargs": {key: _tensor(v) for key, v in (kwargs or {}).items()}}


def _tensor(spec: Any) -> Any:
    if not isinstance(spec, str):
        return spec
    sizes, _, below = spec.partition(":")
    shape = [int(size) for size in sizes.split("x")]
    return torch.randint(1, int(below), shape) if below else torch.randn(shape)


def of_timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def construct() -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(name, **options)
        return model

    return construct


def of_transformers(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def construct() -> nn.Module:
        import transformers

        made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return made

    return construct


def of_torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def construct() -> nn.Module:
        import torchvision

        made: nn.Module = attrgetter(name)(torchvision.models)(weights=None, **options)
        return made

    return construct


class DoubleConv(nn.Sequential):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__(
            nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
        )  # fmt: skip


class UNet(nn.Module):
    """Ronneberger's, with batch normalisation and transposed convolutions."""

    def __init__(self, width: int = 64, classes: int = 2, depth: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.first = DoubleConv(3, width)
        self.down = nn.ModuleList([DoubleConv(a, b) for a, b in pairwise(widths)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths)][::-1])
        self.merge = nn.ModuleList([DoubleConv(b, a) for a, b in pairwise(widths)][::-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skipped = []
        for block in self.down:
            skipped.append(x)
            x = block(nn.functional.max_pool2d(x, 2))
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skipped.pop(), up(x)], dim=1))
        out: Tensor = self.head(x)
        return out


class Recurrent(nn.Module):
    def __init__(self, kind: str, width: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(width, width, layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(x)[0])
        return out


class Tagger(nn.Module):
    """A label for each token, from a bidirectional LSTM."""

    def __init__(self, vocabulary: int, width: int, hidden: int, labels: int = 40) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, labels)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.embedding(ids))[0])
        return out


class ResidualBlock(nn.Module):
    def __init__(self, inner: int, outer: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.time = nn.Linear(time, outer)
        self.norm2, self.conv2 = nn.GroupNorm(32, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(nn.functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        out: Tensor = self.skip(x) + self.conv2(nn.functional.silu(self.norm2(y)))
        return out


class PixelAttention(nn.Module):
    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(32, width), heads
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, columns = x.shape
        parts = self.qkv(self.norm(x)).reshape(batch, 3, self.heads, width // self.heads, height * columns)
        query, key, value = parts.transpose(3, 4).unbind(1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = x + self.out(mixed.transpose(2, 3).reshape(batch, width, height, columns))
        return out


class Denoiser(nn.Module):
    """A diffusion model's U-Net: residual blocks with the time, attention at the two coarsest levels."""

    def __init__(self, width: int, factors: list[int]) -> None:
        super().__init__()
        time = 4 * width
        self.width = width
        self.embed = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(4, width, 3, padding=1)
        widths = [width, *(width * factor for factor in factors)]
        self.down = nn.ModuleList([ResidualBlock(a, b, time) for a, b in pairwise(widths)])
        self.attention = nn.ModuleList([PixelAttention(widths[-2]), PixelAttention(widths[-1])])
        self.smaller = nn.ModuleList([nn.Conv2d(b, b, 3, 2, 1) for b in widths[1:-1]])
        self.up = nn.ModuleList([ResidualBlock(2 * b, a, time) for a, b in pairwise(widths)][::-1])
        self.head = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * torch.arange(self.width // 2, device=x.device, dtype=x.dtype)
        embedded = self.embed(torch.cat([angles.sin(), angles.cos()], dim=1))
        x, skipped = self.first(x), []
        for level, block in enumerate(self.down):
            x = block(x, embedded)
            if level >= len(self.down) - 2:
                x = self.attention[level - len(self.down) + 2](x)
            skipped.append(x)
            if level < len(self.smaller):
                x = self.smaller[level](x)
        for level, block in enumerate(self.up):
            if level:
                x = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, skipped.pop()], dim=1), embedded)
        out: Tensor = self.head(x)
        return out


def encoder(width: int, heads: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


def plain_encoder(width: int, heads: int) -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True), 6)


def widened(outer: int, inner: int, heads: int) -> nn.Module:
    return nn.Sequential(nn.Linear(outer, inner), encoder(inner, heads), nn.Linear(inner, outer))


def both_ways(inputs: int, width: int, layers: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, width), nn.GRU(width, width, layers, batch_first=True, bidirectional=True))


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "UNet": UNet, "Recurrent": Recurrent, "Tagger": Tagger, "Denoiser": Denoiser, "Encoder": encoder,
    "PlainEncoder": plain_encoder, "Widened": widened, "BothWays": both_ways,
}  # fmt: skip


_INITIALISERS = (
    "normal_", "uniform_", "trunc_normal_", "constant_", "ones_", "zeros_", "kaiming_uniform_", "kaiming_normal_",
    "xavier_uniform_", "xavier_normal_", "orthogonal_",
)  # fmt: skip


@contextmanager
def uninitialised() -> Iterator[None]:
    """Models made inside take no time to draw their weights: those are whatever is in memory."""
    saved = {name: getattr(nn.init, name) for name in _INITIALISERS}
    drawn = {name: getattr(Tensor, name) for name in ("normal_", "uniform_", "trunc_normal_") if hasattr(Tensor, name)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for name in saved:
                setattr(nn.init, name, lambda tensor, *_, **__: tensor)
            for name in drawn:
                setattr(Tensor, name, lambda self, *_, **__: self)
            yield
        finally:
            for name, function in saved.items():
                setattr(nn.init, name, function)
            for name, function in drawn.items():
                setattr(Tensor, name, function)
