"""Hand-written models of the forecast's eighth and ninth sets: point clouds, volumes, flow, audio, series, graphs,
fields, autoregressive images, restoration, recommenders.

Each is as its field writes it, with the sizes of a published model or close to them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class EdgeConvolution(nn.Module):
    """Of a dynamic graph: each point with its nearest neighbours in the space of its features."""

    def __init__(self, inner: int, outer: int, neighbours: int = 20) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.layer = nn.Sequential(nn.Conv2d(2 * inner, outer, 1, bias=False), nn.BatchNorm2d(outer), nn.LeakyReLU(0.2))

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, points = x.shape
        squares = x.square().sum(1, keepdim=True)
        distances = 2 * x.transpose(1, 2) @ x - squares - squares.transpose(1, 2)
        nearest = distances.topk(self.neighbours, dim=-1).indices
        rows = x.transpose(1, 2)
        index = nearest.reshape(batch, -1, 1).expand(-1, -1, channels)
        others = rows.gather(1, index).view(batch, points, self.neighbours, channels)
        own = rows.unsqueeze(2).expand_as(others)
        edges = torch.cat([others - own, own], dim=3).permute(0, 3, 1, 2)
        return self.layer(edges).amax(-1)


class DynamicGraph(nn.Module):
    """DGCNN: classes of point clouds."""

    def __init__(self, classes: int = 40) -> None:
        super().__init__()
        self.edges = nn.ModuleList([EdgeConvolution(a, b) for a, b in pairwise((3, 64, 64, 128, 256))])
        self.joined = nn.Sequential(nn.Conv1d(512, 1024, 1, bias=False), nn.BatchNorm1d(1024), nn.LeakyReLU(0.2))
        self.head = nn.Sequential(nn.Linear(2048, 512), nn.BatchNorm1d(512), nn.LeakyReLU(0.2), nn.Linear(512, classes))

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for edge in self.edges:
            x = edge(x)
            found.append(x)
        x = self.joined(torch.cat(found, dim=1))
        return self.head(torch.cat([x.amax(-1), x.mean(-1)], dim=1))


class VolumeEncoder(nn.Module):
    """SegResNet: residual blocks with group norms on volumes, trilinear upsampling, a map of labels."""

    def __init__(self, width: int = 24, classes: int = 3) -> None:
        super().__init__()
        widths = [width << level for level in range(4)]
        self.stem = nn.Conv3d(4, width, 3, padding=1, bias=False)
        self.down = nn.ModuleList([nn.Conv3d(a, b, 3, 2, 1, bias=False) for a, b in pairwise(widths)])
        self.blocks = nn.ModuleList([self.block(wide) for wide in widths])
        self.up = nn.ModuleList([nn.Conv3d(b, a, 1, bias=False) for a, b in pairwise(widths)])
        self.after = nn.ModuleList([self.block(wide) for wide in widths[:-1]])
        self.head = nn.Conv3d(width, classes, 1)

    @staticmethod
    def block(width: int) -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [nn.GroupNorm(8, width), nn.ReLU(), nn.Conv3d(width, width, 3, padding=1, bias=False)]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        kept = []
        for level, block in enumerate(self.blocks):
            x = x + block(x)
            if level < len(self.down):
                kept.append(x)
                x = self.down[level](x)
        for level in reversed(range(len(self.up))):
            x = F.interpolate(self.up[level](x), scale_factor=2, mode="trilinear") + kept[level]
            x = x + self.after[level](x)
        return self.head(x)


class NestedUNet(nn.Module):
    """UNet++: every level upsampled into the one above it, many times."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256, 512), classes: int = 2) -> None:
        super().__init__()
        self.depth = len(widths)
        self.nodes = nn.ModuleDict()
        for column in range(self.depth):
            for row in range(self.depth - column):
                inner = (widths[row - 1] if row else 3) if column == 0 else widths[row] * column + widths[row + 1]
                self.nodes[f"{row}{column}"] = nn.Sequential(
                    nn.Conv2d(inner, widths[row], 3, padding=1), nn.BatchNorm2d(widths[row]), nn.ReLU(inplace=True),
                    nn.Conv2d(widths[row], widths[row], 3, padding=1), nn.BatchNorm2d(widths[row]),
                    nn.ReLU(inplace=True),
                )  # fmt: skip
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        made: dict[tuple[int, int], Tensor] = {}
        for row in range(self.depth):
            made[row, 0] = self.nodes[f"{row}0"](x if row == 0 else F.max_pool2d(made[row - 1, 0], 2))
        for column in range(1, self.depth):
            for row in range(self.depth - column):
                above = F.interpolate(made[row + 1, column - 1], scale_factor=2, mode="bilinear", align_corners=True)
                left = [made[row, before] for before in range(column)]
                made[row, column] = self.nodes[f"{row}{column}"](torch.cat([*left, above], dim=1))
        return self.head(made[0, self.depth - 1])


class Separator(nn.Module):
    """Conv-TasNet: a mixture of voices, its mask from dilated depthwise convolutions."""

    def __init__(
        self, filters: int = 512, width: int = 128, inner: int = 512, blocks: int = 8, rounds: int = 3
    ) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(1, filters, 16, 8, bias=False)
        self.norm = nn.GroupNorm(1, filters)
        self.narrow = nn.Conv1d(filters, width, 1)
        self.blocks = nn.ModuleList([
            nn.Sequential(
                nn.Conv1d(width, inner, 1), nn.PReLU(), nn.GroupNorm(1, inner),
                nn.Conv1d(inner, inner, 3, padding=1 << level, dilation=1 << level, groups=inner), nn.PReLU(),
                nn.GroupNorm(1, inner), nn.Conv1d(inner, width, 1),
            )
            for _ in range(rounds) for level in range(blocks)
        ])  # fmt: skip
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(width, 2 * filters, 1), nn.Sigmoid())
        self.decoder = nn.ConvTranspose1d(filters, 1, 16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = self.encoder(x)
        y = self.narrow(self.norm(spectrum))
        for block in self.blocks:
            y = y + block(y)
        masks = self.mask(y).view(len(x), 2, -1, spectrum.shape[-1])
        return self.decoder((masks * spectrum.unsqueeze(1)).flatten(0, 1))


class Demucs(nn.Module):
    """Music into sources: strided convolutions of waves with gates, an LSTM in the middle, transposed ones back."""

    def __init__(self, width: int = 48, depth: int = 5, sources: int = 4) -> None:
        super().__init__()
        widths = [2, *(width << level for level in range(depth))]
        self.down = nn.ModuleList([
            nn.Sequential(nn.Conv1d(a, b, 8, 4), nn.ReLU(), nn.Conv1d(b, 2 * b, 1), nn.GLU(dim=1))
            for a, b in pairwise(widths)
        ])  # fmt: skip
        self.lstm = nn.LSTM(widths[-1], widths[-1], 2, bidirectional=True)
        self.linear = nn.Linear(2 * widths[-1], widths[-1])
        self.up = nn.ModuleList([
            nn.Sequential(nn.Conv1d(b, 2 * b, 3, padding=1), nn.GLU(dim=1),
                          nn.ConvTranspose1d(b, a if level else 2 * sources, 8, 4))
            for level, (a, b) in enumerate(pairwise(widths))
        ])  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
        x = self.linear(self.lstm(x.permute(2, 0, 1))[0]).permute(1, 2, 0)
        for layer in reversed(self.up):
            skip = kept.pop()
            x = layer(x[..., : skip.shape[-1]] + skip[..., : x.shape[-1]])
        return x


class Conformer(nn.Module):
    """Layers of speech recognition: half feed-forward, attention, a gated depthwise convolution, the other half."""

    def __init__(self, width: int = 256, heads: int = 4, layers: int = 8, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU())
        self.flat = nn.Linear(width * 19, width)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            feed = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(),
                                  nn.Linear(4 * width, width)) for _ in range(2)]  # fmt: skip
            mix = nn.Sequential(
                nn.Conv1d(width, 2 * width, 1), nn.GLU(dim=1), nn.Conv1d(width, width, 31, padding=15, groups=width),
                nn.BatchNorm1d(width), nn.SiLU(), nn.Conv1d(width, width, 1),
            )  # fmt: skip
            attention = nn.ModuleList([nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)])
            norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
            self.layers.append(nn.ModuleList([feed[0], attention, mix, feed[1], norms]))
        self.heads, self.head = heads, nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.flat(self.stem(x.unsqueeze(1)).permute(0, 2, 1, 3).flatten(2))
        for layer in self.layers:
            before, (norm, inputs, out), mix, after, (second, last) = layer
            x = x + 0.5 * before(x)
            parts = inputs(norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            x = x + out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
            x = x + mix(second(x).transpose(1, 2)).transpose(1, 2)
            x = last(x + 0.5 * after(x))
        return self.head(x).log_softmax(-1)


class TextReader(nn.Module):
    """CRNN: lines of text in images, convolutions and recurrent layers both ways."""

    def __init__(self, classes: int = 97, units: int = 256) -> None:
        super().__init__()
        widths, layers = [1, 64, 128, 256, 256, 512, 512], []
        for level, (a, b) in enumerate(pairwise(widths)):
            layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
            if level in (0, 1):
                layers.append(nn.MaxPool2d(2))
            elif level in (3, 5):
                layers.append(nn.MaxPool2d((2, 2), (2, 1), (0, 1)))
        self.features = nn.Sequential(*layers, nn.Conv2d(512, 512, 2), nn.ReLU(inplace=True))
        self.recurrent = nn.LSTM(512, units, 2, bidirectional=True)
        self.head = nn.Linear(2 * units, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(self.features(x).squeeze(2).permute(2, 0, 1))[0]).log_softmax(-1)


class Captioner(nn.Module):
    """A word at a time by an LSTM cell that looks at the parts of an image."""

    def __init__(self, words: int = 10000, width: int = 512, steps: int = 20) -> None:
        super().__init__()
        self.steps = steps
        self.keys, self.query, self.score = nn.Linear(2048, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.table, self.cell = nn.Embedding(words, width), nn.LSTMCell(width + 2048, width)
        self.start, self.head = nn.Linear(2048, 2 * width), nn.Linear(width, words)

    def forward(self, parts: Tensor, text: Tensor) -> Tensor:
        keys = self.keys(parts)
        hidden, memory = self.start(parts.mean(1)).chunk(2, dim=-1)
        embedded, found = self.table(text), []
        for step in range(self.steps):
            weights = self.score(torch.tanh(keys + self.query(hidden).unsqueeze(1))).softmax(1)
            seen = (weights * parts).sum(1)
            hidden, memory = self.cell(torch.cat([embedded[:, step], seen], dim=-1), (hidden, memory))
            found.append(self.head(hidden))
        return torch.stack(found, dim=1)


class Spectral(nn.Module):
    """A Fourier neural operator: low frequencies of a field are mixed by complex weights."""

    def __init__(self, width: int = 32, modes: int = 12, layers: int = 4) -> None:
        super().__init__()
        self.modes = modes
        self.first, self.last = (
            nn.Conv2d(3, width, 1),
            nn.Sequential(nn.Conv2d(width, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1)),
        )
        shape = (layers, 2, width, width, modes, modes, 2)
        self.weights = nn.Parameter(torch.empty(shape).normal_(std=0.02))
        self.mixes = nn.ModuleList([nn.Conv2d(width, width, 1) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        x, modes = self.first(x), self.modes
        for weights, mix in zip(self.weights, self.mixes, strict=True):
            low, high = torch.view_as_complex(weights)
            spectrum = torch.fft.rfft2(x)
            mixed = torch.zeros_like(spectrum)
            mixed[:, :, :modes, :modes] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :modes, :modes], low)
            mixed[:, :, -modes:, :modes] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -modes:, :modes], high)
            x = F.gelu(torch.fft.irfft2(mixed, s=x.shape[-2:]) + mix(x))
        return self.last(x)


class Radiance(nn.Module):
    """NeRF: points along rays, their frequencies, dense layers, and the sum along each ray."""

    def __init__(self, width: int = 256, levels: int = 10) -> None:
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(levels))
        inner = 3 + 6 * levels
        self.first = nn.Sequential(nn.Linear(inner, width), nn.ReLU(), *self.deep(width, 4))
        self.second = nn.Sequential(nn.Linear(width + inner, width), nn.ReLU(), *self.deep(width, 3))
        self.head = nn.Linear(width, 4)

    @staticmethod
    def deep(width: int, count: int) -> list[nn.Module]:
        return [layer for _ in range(count) for layer in (nn.Linear(width, width), nn.ReLU())]

    def forward(self, points: Tensor, gaps: Tensor) -> Tensor:
        angles = (points.unsqueeze(-1) * self.frequencies).flatten(2)
        x = torch.cat([points, angles.sin(), angles.cos()], dim=-1)
        colour, density = self.head(self.second(torch.cat([self.first(x), x], dim=-1))).split((3, 1), dim=-1)
        alpha = 1 - torch.exp(-F.softplus(density.squeeze(-1)) * gaps)
        passed = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-6], dim=1), dim=1)[:, :-1]
        return ((alpha * passed).unsqueeze(-1) * colour.sigmoid()).sum(1)


class Messages(nn.Module):
    """A graph network with a fixed number of edges: messages are gathered, added up at the nodes, and update them."""

    def __init__(self, width: int = 128, layers: int = 6) -> None:
        super().__init__()
        self.nodes, self.edges = nn.Linear(16, width), nn.Linear(8, width)
        self.messages = nn.ModuleList([nn.Sequential(nn.Linear(3 * width, width), nn.SiLU(), nn.Linear(width, width),
                                                     nn.LayerNorm(width)) for _ in range(layers)])  # fmt: skip
        self.updates = nn.ModuleList([nn.GRUCell(width, width) for _ in range(layers)])
        self.head = nn.Linear(width, 1)

    def forward(self, nodes: Tensor, edges: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        x, e = self.nodes(nodes), self.edges(edges)
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = message(torch.cat([x[sources], x[targets], e], dim=-1))
            x = update(torch.zeros_like(x).index_add(0, targets, sent), x)
        return self.head(x)


class Basis(nn.Module):
    """N-BEATS: blocks of dense layers, each of which takes its part out of the series."""

    def __init__(self, length: int = 240, ahead: int = 48, width: int = 512, blocks: int = 20) -> None:
        super().__init__()
        self.length = length
        self.blocks = nn.ModuleList([
            nn.Sequential(nn.Linear(length, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                          nn.Linear(width, width), nn.ReLU(), nn.Linear(width, length + ahead))
            for _ in range(blocks)
        ])  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor | None = None
        for block in self.blocks:
            back, ahead = block(x).split((self.length, block[-1].out_features - self.length), dim=-1)
            x, total = x - back, ahead if total is None else total + ahead
        assert total is not None
        return total


class Style(nn.Module):
    """A generator of images with instance norms that a style scales, reflected edges and upsampling."""

    def __init__(self, width: int = 512, style: int = 256, levels: int = 5) -> None:
        super().__init__()
        widths = [width >> max(level - 1, 0) for level in range(levels + 1)]
        self.start = nn.Parameter(torch.randn(1, width, 8, 8))
        self.layers = nn.ModuleList([nn.Conv2d(a, b, 3) for a, b in pairwise(widths)])
        self.scales = nn.ModuleList([nn.Linear(style, 2 * b) for b in widths[1:]])
        self.norms = nn.ModuleList([nn.InstanceNorm2d(b) for b in widths[1:]])
        self.head = nn.Conv2d(widths[-1], 3, 1)

    def forward(self, style: Tensor) -> Tensor:
        x = self.start.expand(len(style), -1, -1, -1)
        for layer, scale, norm in zip(self.layers, self.scales, self.norms, strict=True):
            x = layer(F.pad(F.interpolate(x, scale_factor=2, mode="bilinear"), (1, 1, 1, 1), mode="reflect"))
            gain, bias = scale(style)[:, :, None, None].chunk(2, dim=1)
            x = F.leaky_relu(norm(x) * (1 + gain) + bias, 0.2)
        return self.head(x).tanh()


class Decoder(nn.Module):
    """A language model with torch's RMS norms, rotated positions and gated layers."""

    def __init__(self, words: int = 32000, width: int = 1024, layers: int = 8, heads: int = 16) -> None:
        super().__init__()
        self.heads, self.table = heads, nn.Embedding(words, width)
        inner = width * 8 // 3 // 64 * 64
        self.layers = nn.ModuleList([
            nn.ModuleList([nn.RMSNorm(width), nn.Linear(width, 3 * width, bias=False),
                           nn.Linear(width, width, bias=False), nn.RMSNorm(width),
                           nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)])
            for _ in range(layers)
        ])  # fmt: skip
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.table(text)
        half = x.shape[-1] // self.heads // 2
        speeds = 10000.0 ** (-torch.arange(half, device=x.device) / half)
        angles = torch.arange(text.shape[1], device=x.device)[:, None] * speeds
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)

        def turned(y: Tensor) -> Tensor:
            a, b = y.chunk(2, dim=-1)
            return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)

        for first, inputs, out, second, gates, down in self.layers:
            query, key, value = inputs(first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(turned(query), turned(key), value, is_causal=True)
            x = x + out(mixed.transpose(1, 2).flatten(2))
            a, b = gates(second(x)).chunk(2, dim=-1)
            x = x + down(F.silu(a) * b)
        return self.head(self.norm(x))


class Detector(nn.Module):
    """RetinaNet without its last selection: a pyramid of features, classes and boxes at every place."""

    def __init__(self, build: Callable[[], nn.Module], classes: int = 80, anchors: int = 9) -> None:
        super().__init__()
        self.backbone = build()
        self.classes, self.boxes = (self.tower(outputs) for outputs in (classes * anchors, 4 * anchors))
        self.columns = classes, 4

    @staticmethod
    def tower(outputs: int, width: int = 256) -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(32, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(width, outputs, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for level in self.backbone(x).values():
            parts = [
                tower(level).permute(0, 2, 3, 1).reshape(len(x), -1, wide)
                for tower, wide in zip((self.classes, self.boxes), self.columns, strict=True)
            ]
            found.append(torch.cat([parts[0].sigmoid(), parts[1].exp()], dim=-1))
        return torch.cat(found, dim=1)


class Warper(nn.Module):
    """Registration of two volumes: a small U-Net says where each voxel came from, and the volume is sampled there."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        widths = [2, width, 2 * width, 2 * width, 2 * width]
        self.down = nn.ModuleList([nn.Conv3d(a, b, 3, 2 if level else 1, 1) for level, (a, b) in
                                   enumerate(pairwise(widths))])  # fmt: skip
        self.up = nn.ModuleList([nn.Conv3d(4 * width, 2 * width, 3, padding=1),
                                 nn.Conv3d(4 * width, 2 * width, 3, padding=1),
                                 nn.Conv3d(3 * width, width, 3, padding=1)])  # fmt: skip
        self.flow = nn.Conv3d(width, 3, 3, padding=1)

    def forward(self, moving: Tensor, fixed: Tensor) -> Tensor:
        x, kept = torch.cat([moving, fixed], dim=1), []
        for layer in self.down:
            x = F.leaky_relu(layer(x), 0.2)
            kept.append(x)
        kept.pop()
        for layer in self.up:
            x = F.leaky_relu(layer(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], dim=1)), 0.2)
        flow = self.flow(x)
        sides = [torch.linspace(-1, 1, side, device=x.device, dtype=x.dtype) for side in moving.shape[2:]]
        grid = torch.stack(torch.meshgrid(*sides, indexing="ij")[::-1], dim=-1) + flow.permute(0, 2, 3, 4, 1)
        return F.grid_sample(moving, grid, align_corners=True)


def normal(*shapes: tuple[int, ...]) -> Callable[[], dict[str, Any]]:
    return lambda: {"args": tuple(torch.randn(shape) for shape in shapes), "kwargs": {}}


def captions(batch: int, parts: int = 49, steps: int = 20, words: int = 10000) -> Callable[[], dict[str, Any]]:
    return lambda: {
        "args": (torch.randn(batch, parts, 2048), torch.randint(0, words, (batch, steps))),
        "kwargs": {},
    }


def graph(nodes: int, edges: int) -> Callable[[], dict[str, Any]]:
    return lambda: {
        "args": (torch.randn(nodes, 16), torch.randn(edges, 8), *torch.randint(0, nodes, (2, edges))),
        "kwargs": {},
    }


class MaskedConvolution(nn.Conv2d):
    """Sees the pixels above and to the left; the first one of a stack does not see the pixel itself."""

    def __init__(self, inner: int, outer: int, size: int, is_first: bool) -> None:
        super().__init__(inner, outer, size, padding=size // 2)
        mask = torch.ones(size, size)
        mask[size // 2, size // 2 + (not is_first) :] = 0
        mask[size // 2 + 1 :] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.mask, self.bias, self.stride, self.padding)


class PixelNetwork(nn.Module):
    """PixelCNN: residual blocks of masked convolutions, 256 values for each pixel."""

    def __init__(self, width: int = 128, depth: int = 12) -> None:
        super().__init__()
        self.first = MaskedConvolution(1, 2 * width, 7, is_first=True)
        self.blocks = nn.ModuleList([self._block(width) for _ in range(depth)])
        self.head = nn.Sequential(nn.ReLU(), nn.Conv2d(2 * width, 512, 1), nn.ReLU(), nn.Conv2d(512, 256, 1))

    @staticmethod
    def _block(width: int) -> nn.Sequential:
        inside = MaskedConvolution(width, width, 3, is_first=False)
        return nn.Sequential(
            nn.ReLU(), nn.Conv2d(2 * width, width, 1), nn.ReLU(), inside, nn.ReLU(), nn.Conv2d(width, 2 * width, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        out: Tensor = self.head(x)
        return out


class Restorer(nn.Module):
    """DnCNN: predicts the noise of an image."""

    def __init__(self, width: int = 64, depth: int = 17) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU(inplace=True)]
        for _ in range(depth - 2):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x - self.layers(x)
        return out


class Causal(nn.Module):
    """TCN: dilated causal convolutions with weight norm, cut at the end, in residual blocks."""

    def __init__(self, channels: int = 32, width: int = 150, levels: int = 6, kernel: int = 5) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.blocks = nn.ModuleList()
        self.skips = nn.ModuleList()
        for level in range(levels):
            inner, step = channels if level == 0 else width, 1 << level
            first = norm(nn.Conv1d(inner, width, kernel, padding=(kernel - 1) * step, dilation=step))
            second = norm(nn.Conv1d(width, width, kernel, padding=(kernel - 1) * step, dilation=step))
            self.blocks.append(nn.ModuleList([first, second]))
            self.skips.append(nn.Conv1d(inner, width, 1) if inner != width else nn.Identity())
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        for block, skip in zip(self.blocks, self.skips, strict=True):
            y = x
            for layer in block:  # type: ignore[attr-defined]
                y = F.dropout(F.relu(layer(y)[:, :, : x.shape[2]].contiguous()), 0.2, self.training)
            x = F.relu(y + skip(x))
        out: Tensor = self.head(x[:, :, -1])
        return out


class Factors(nn.Module):
    """DeepFM: a factorization machine and dense layers over the same embeddings of fields."""

    def __init__(self, rows: int = 1_000_000, fields: int = 39, width: int = 32) -> None:
        super().__init__()
        self.weights, self.vectors = nn.Embedding(rows, 1), nn.Embedding(rows, width)
        layers: list[nn.Module] = []
        for inner, outer in pairwise((fields * width, 400, 400, 400)):
            layers += [nn.Linear(inner, outer), nn.BatchNorm1d(outer), nn.ReLU(), nn.Dropout(0.2)]
        self.dense = nn.Sequential(*layers, nn.Linear(400, 1))

    def forward(self, ids: Tensor) -> Tensor:
        vectors = self.vectors(ids)
        products = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True) / 2
        return torch.sigmoid(self.weights(ids).sum(1) + products + self.dense(vectors.flatten(1))).squeeze(1)


class Codebook(nn.Module):
    """VQ-VAE: images to the nearest of 512 vectors, and back."""

    def __init__(self, width: int = 128, codes: int = 512, code: int = 64) -> None:
        super().__init__()
        half = width // 2
        self.encoder = nn.Sequential(
            nn.Conv2d(3, half, 4, 2, 1), nn.ReLU(), nn.Conv2d(half, width, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1), self._residual(width), self._residual(width), nn.ReLU(),
            nn.Conv2d(width, code, 1),
        )  # fmt: skip
        self.codes = nn.Embedding(codes, code)
        self.decoder = nn.Sequential(
            nn.Conv2d(code, width, 3, 1, 1), self._residual(width), self._residual(width), nn.ReLU(),
            nn.ConvTranspose2d(width, half, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(half, 3, 4, 2, 1),
        )  # fmt: skip

    class Residual(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = x + super().forward(x)
            return out

    def _residual(self, width: int) -> nn.Sequential:
        return self.Residual(nn.ReLU(), nn.Conv2d(width, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, width, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x).permute(0, 2, 3, 1).contiguous()
        flat = z.view(-1, z.shape[-1])
        table = self.codes.weight
        distances = flat.square().sum(1, keepdim=True) + table.square().sum(1) - 2 * flat @ table.t()
        nearest = self.codes(distances.argmin(1)).view(z.shape)
        loss = F.mse_loss(nearest, z.detach()) + 0.25 * F.mse_loss(nearest.detach(), z)
        through = z + (nearest - z).detach()
        return self.decoder(through.permute(0, 3, 1, 2).contiguous()), loss


class DeepUpscaler(nn.Module):
    """EDSR: residual blocks without norms, then pixel shuffles."""

    def __init__(self, width: int = 128, depth: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList([
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(True), nn.Conv2d(width, width, 3, padding=1))
            for _ in range(depth)
        ])  # fmt: skip
        self.last = nn.Conv2d(width, width, 3, padding=1)
        self.tail = nn.Sequential(
            nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(width, 3, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = x
        for block in self.blocks:
            y = y + block(y) * 0.1
        out: Tensor = self.tail(x + self.last(y))
        return out


class Sessions(nn.Module):
    """GRU4Rec: the next item of a session."""

    def __init__(self, items: int = 37_500, units: int = 100, layers: int = 1) -> None:
        super().__init__()
        self.items = nn.Embedding(items, units)
        self.state = nn.GRU(units, units, layers, batch_first=True)
        self.head = nn.Linear(units, items)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.state(self.items(ids))[0][:, -1])
        return out
