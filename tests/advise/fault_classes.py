"""Faults that people make, each in several unlike forms, and healthy models beside them.

A form is (name, model, inputs); every form of a class must be found by one of its rules, no twin by any of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Form = tuple[str, Any, tuple[Any, ...]]


@dataclass(frozen=True)
class FaultClass:
    name: str
    rules: tuple[str, ...]
    faults: tuple[Form, ...]
    twins: tuple[Form, ...]
    kind: str = "gain"


class Does(nn.Module):
    """A module from a function of itself and the inputs, with parts set from outside."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.does = forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.does(self, *args)


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def ids(*shape: int, high: int = 8) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(0))


# --- work repeated that could be done once


def sinusoids(length: int, width: int) -> Tensor:
    at = torch.arange(length, dtype=torch.float32)[:, None]
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * (-math.log(1e4) / width))
    return torch.cat([torch.sin(at * rate), torch.cos(at * rate)], dim=1)


class PerLayerMask(nn.Module):
    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.layers, self.shared = nn.ModuleList(nn.Linear(32, 32) for _ in range(4)), shared

    def forward(self, h: Tensor, padding: Tensor) -> Tensor:
        if self.shared:
            bias = padding[:, None, :].expand(-1, h.shape[1], -1).float() * -1e9
            for layer in self.layers:
                q = layer(h)
                h = torch.softmax(q @ q.transpose(1, 2) + bias, -1) @ h
            return h
        for layer in self.layers:
            q = layer(h)
            bias = padding[:, None, :].expand(-1, h.shape[1], -1).float() * -1e9
            h = torch.softmax(q @ q.transpose(1, 2) + bias, -1) @ h
        return h


class SpectralByHand(nn.Module):
    """A weight normalised in every forward."""

    def __init__(self, live: bool) -> None:
        super().__init__()
        self.kernel, self.scale, self.live = nn.Parameter(x(64, 64)), nn.Parameter(torch.ones(64)), live

    def forward(self, h: Tensor) -> Tensor:
        kernel = self.kernel if self.live else self.kernel / self.kernel.norm(dim=1, keepdim=True)
        return F.linear(h, kernel) * self.scale


REPEATED = FaultClass(
    "work repeated",
    ("recomputed-constant", "recomputed-weight", "repeated-work", "cast-round-trip", "needless-copy", "weight-cast"),
    (
        (
            "a table of sines",
            Does(lambda self, h: self.fc(h + sinusoids(64, 32)), fc=nn.Linear(32, 32)),
            (x(2, 64, 32),),
        ),
        (
            "a causal mask in a Sequential",
            nn.Sequential(
                nn.Linear(32, 32),
                Does(lambda self, h: (h @ h.mT).masked_fill(torch.triu(torch.ones(128, 128), 1) > 0, -1e9)),
            ),
            (x(1, 128, 32),),
        ),
        ("a mask per layer", PerLayerMask(False), (x(1, 64, 32), ids(1, 64) > 6)),
        ("a weight normalised", SpectralByHand(False), (x(4, 64),)),
        (
            "the same layer twice",
            Does(
                lambda self, h: self.b(F.relu(self.a(h))) + self.c(F.relu(self.a(h))),
                a=nn.Linear(64, 64),
                b=nn.Linear(64, 64),
                c=nn.Linear(64, 64),
            ),
            (x(64, 64),),
        ),
        ("half and back", Does(lambda self, h: self.a(h.half().float()), a=nn.Linear(64, 64)), (x(256, 64),)),
        (
            "a copy of a copy",
            Does(
                lambda self, h: self.a(h.transpose(1, 2).contiguous().transpose(1, 2).contiguous().clone().add(1)),
                a=nn.Linear(32, 32),
            ),
            (x(8, 64, 32),),
        ),
    ),
    (
        (
            "a table in a buffer",
            Does(lambda self, h: self.fc(h + self.table), fc=nn.Linear(32, 32), table=sinusoids(64, 32)),
            (x(2, 64, 32),),
        ),
        ("one mask for all layers", PerLayerMask(True), (x(1, 64, 32), ids(1, 64) > 6)),
        ("a plain weight", SpectralByHand(True), (x(4, 64),)),
        (
            "halves of one tensor",
            Does(
                lambda self, h: torch.sigmoid(self.a(h).chunk(2, -1)[0]) * torch.sigmoid(self.a(h + 1).chunk(2, -1)[1]),
                a=nn.Linear(64, 128),
            ),
            (x(64, 64),),
        ),
        (
            "both halves activated alike",
            Does(
                lambda self, h: (lambda p, q: torch.tanh(p) * torch.tanh(q))(*self.a(h).chunk(2, -1)),
                a=nn.Linear(64, 128),
            ),
            (x(64, 64),),
        ),
    ),
)

# --- a Python loop where one batched op exists


def steps(self: Any, h: Tensor) -> Tensor:
    state = (h.new_zeros(h.shape[0], 16), h.new_zeros(h.shape[0], 16))
    for t in range(h.shape[1]):
        state = self.cell(h[:, t], state)
    return state[0]


def own_cell(self: Any, h: Tensor) -> Tensor:
    state, out = torch.zeros(h.shape[0], 16), []
    for part in h.unbind(1):
        state = torch.tanh(self.mix(torch.cat([part, state], dim=-1)))
        out.append(state)
    return torch.stack(out, 1)


def per_head(self: Any, h: Tensor) -> Tensor:
    return torch.cat([head(h) for head in self.heads], dim=-1)


def per_sample(self: Any, h: Tensor) -> Tensor:
    return torch.stack([self.net(one) for one in h])


class Stack(nn.Module):
    """Healthy: different layers, one after the other, from one line."""

    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        first = nn.Linear(64, 64)
        self.layers = nn.ModuleList(first if shared else nn.Linear(64, 64) for _ in range(8))

    def forward(self, h: Tensor) -> Tensor:
        for layer in self.layers:
            h = torch.relu(layer(h)) + h
        return h


class CrossAttention(nn.Module):
    """Healthy: every block reads what the encoder made."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))
        self.mlps = nn.ModuleList(nn.Sequential(*(nn.Linear(32, 32) for _ in range(10))) for _ in range(6))

    def forward(self, h: Tensor, memory: Tensor) -> Tensor:
        for key, mlp in zip(self.keys, self.mlps, strict=True):
            k = key(memory)
            h = mlp(h + F.scaled_dot_product_attention(h, k, k))
        return h


LOOPS = FaultClass(
    "a loop where one op exists",
    ("loop-over-steps", "loop-over-samples", "parallel-linears", "dense-experts"),
    (
        ("time steps of a cell", Does(steps, cell=nn.LSTMCell(8, 16)), (x(4, 24, 8),)),
        ("time steps of a cell by hand", Does(own_cell, mix=nn.Linear(24, 16)), (x(4, 24, 8),)),
        ("a head at a time", Does(per_head, heads=nn.ModuleList(nn.Linear(64, 8) for _ in range(8))), (x(16, 64),)),
        (
            "a sample at a time",
            Does(per_sample, net=nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))),
            (x(16, 16),),
        ),
    ),
    (
        ("an LSTM", nn.LSTM(8, 16, batch_first=True), (x(4, 24, 8),)),
        ("a stack of layers", Stack(), (x(16, 64),)),
        ("blocks that read the encoder", CrossAttention(), (x(1, 16, 32), x(1, 16, 32))),
        ("one layer for all depths", Stack(shared=True), (x(16, 64),)),
        (
            "query, key, value",
            Does(
                lambda self, h: torch.softmax(self.q(h) @ self.k(h).mT, -1) @ self.v(h),
                q=nn.Linear(64, 64),
                k=nn.Linear(64, 64),
                v=nn.Linear(64, 64),
            ),
            (x(1, 16, 64),),
        ),
        ("a multilayer perceptron", nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), (x(16, 16),)),
    ),
)

# --- the host in the way


def early_exit(self: Any, h: Tensor) -> Tensor:
    h = self.a(h)
    return h if h.abs().max().item() < 0 else self.b(h)


def choose(self: Any, h: Tensor, which: Tensor) -> Tensor:
    if (which > 3).any():
        h = h + 1
    return self.b(self.a(h))


def selected(self: Any, h: Tensor, which: Tensor) -> Tensor:
    rows = torch.nonzero(which > 3).squeeze(-1)
    return self.b(self.a(h)[rows])


def through_numpy(self: Any, h: Tensor) -> Tensor:
    limits = h.detach().cpu().numpy().max()
    return self.b(self.a(h) / float(limits))


def _two() -> dict[str, nn.Module]:
    return {"a": nn.Linear(32, 32), "b": nn.Linear(32, 32)}


HOST = FaultClass(
    "the host in the way",
    ("host-wait",),
    (
        ("item", Does(early_exit, **_two()), (x(8, 32),)),
        ("a branch on a tensor", Does(choose, **_two()), (x(8, 32), ids(8))),
        ("nonzero", Does(selected, **_two()), (x(8, 32), ids(8))),
        ("numpy", Does(through_numpy, **_two()), (x(8, 32),)),
    ),
    (
        (
            "where",
            Does(lambda self, h, which: self.b(self.a(torch.where((which > 3)[:, None], h + 1, h))), **_two()),
            (x(8, 32), ids(8)),
        ),
        (
            "a branch on a shape",
            Does(lambda self, h: self.b(self.a(h)) if h.shape[0] > 4 else h, **_two()),
            (x(8, 32),),
        ),
    ),
)

# --- memory that grows


def grown(self: Any, h: Tensor) -> Tensor:
    out = h[:, :1]
    for t in range(1, h.shape[1]):
        out = torch.cat([out, self.a(h[:, t : t + 1])], dim=1)
    return out


def cached(self: Any, h: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    keys = torch.cat((past, self.a(h)), dim=1)
    return F.scaled_dot_product_attention(h, keys, keys), keys


MEMORY = FaultClass(
    "memory that grows or is held",
    ("grown-by-cat", "double-precision", "one-hot-product", "causal-mask", "type-promotion"),
    (
        ("a list grown by cat", Does(grown, a=nn.Linear(32, 32)), (x(2, 16, 32),)),
        ("a cache grown by cat", Does(cached, a=nn.Linear(32, 32)), (x(1, 1, 32), x(1, 255, 32))),
        (
            "a table in double precision",
            Does(
                lambda self, h: self.a((h * self.scale).float()),
                a=nn.Linear(32, 32),
                scale=torch.ones(64, 32, dtype=torch.float64),
            ),
            (x(8, 64, 32),),
        ),
        (
            "double from a list",
            Does(lambda self, h: (self.a(h).double() - 1).softmax(-1).float(), a=nn.Linear(64, 64)),
            (x(64, 64),),
        ),
        (
            "one-hot product",
            Does(lambda self, i: F.one_hot(i, 512).float() @ self.table, table=nn.Parameter(x(512, 32))),
            (ids(4, 64, high=512),),
        ),
        (
            "rows of an eye",
            Does(lambda self, i: self.a(torch.eye(512)[i]), a=nn.Linear(512, 32)),
            (ids(4, 64, high=512),),
        ),
        (
            "a causal mask",
            Does(
                lambda self, h: F.scaled_dot_product_attention(
                    h, h, h, attn_mask=torch.tril(torch.ones(256, 256, dtype=torch.bool))
                )
            ),
            (x(1, 4, 256, 32),),
        ),
    ),
    (
        (
            "one cat",
            Does(lambda self, h: torch.cat([self.a(part) for part in h.chunk(2, 1)], 1), a=nn.Linear(32, 32)),
            (x(2, 16, 32),),
        ),
        ("a lookup", nn.Embedding(512, 32), (ids(4, 64, high=512),)),
        (
            "is_causal",
            Does(lambda self, h: F.scaled_dot_product_attention(h, h, h, is_causal=True)),
            (x(1, 4, 256, 32),),
        ),
        (
            "a padding mask",
            Does(lambda self, h, m: F.scaled_dot_product_attention(h, h, h, attn_mask=m)),
            (x(1, 4, 64, 32), ids(1, 1, 64, 64) > 3),
        ),
        ("a model in double precision", nn.Sequential(nn.Linear(32, 32), nn.ReLU()).double(), (x(8, 32).double(),)),
    ),
)

# --- layers that fight each other


class Frozen(nn.Module):
    """As in DETR, under other names."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain, self.offset, self.centre = (nn.Buffer(x(channels)) for _ in range(3))
        self.spread = nn.Buffer(torch.ones(channels))

    def forward(self, h: Tensor) -> Tensor:
        shape = (1, -1, 1, 1)
        scale = self.gain.reshape(shape) * (self.spread.reshape(shape) + 1e-5).rsqrt()
        return h * scale + (self.offset.reshape(shape) - self.centre.reshape(shape) * scale)


FIGHTING = FaultClass(
    "layers that fight each other",
    (
        "affine-after-layer",
        "resample-before-pointwise",
        "repeated-keys",
        "causal-mask",
        "cancelling-permutes",
        "bias-before-norm",
        "conv-bn-fusion",
    ),
    (
        ("a frozen norm", nn.Sequential(nn.Conv2d(3, 16, 3), Frozen(16), nn.ReLU()), (x(1, 3, 32, 32),)),
        (
            "a scale behind a linear",
            Does(lambda self, h: self.fc(h) * self.gamma, fc=nn.Linear(64, 64), gamma=nn.Parameter(torch.ones(64))),
            (x(64, 64),),
        ),
        (
            "up, then 1×1",
            nn.Sequential(nn.Conv2d(3, 32, 3), nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(32, 8, 1)),
            (x(1, 3, 32, 32),),
        ),
        (
            "interpolated, then 1×1",
            Does(
                lambda self, h: self.out(F.interpolate(self.conv(h), size=(64, 64), mode="bilinear")),
                conv=nn.Conv2d(3, 32, 3),
                out=nn.Conv2d(32, 8, 1),
            ),
            (x(1, 3, 32, 32),),
        ),
        (
            "keys repeated",
            Does(
                lambda self, q, k: F.scaled_dot_product_attention(
                    q, k.repeat_interleave(4, 1), k.repeat_interleave(4, 1)
                )
            ),
            (x(1, 8, 128, 32), x(1, 2, 128, 32)),
        ),
        (
            "keys expanded",
            Does(
                lambda self, q, k: F.scaled_dot_product_attention(
                    q,
                    k[:, :, None].expand(1, 2, 4, 128, 32).reshape(1, 8, 128, 32).contiguous(),
                    k[:, :, None].expand(1, 2, 4, 128, 32).reshape(1, 8, 128, 32).contiguous(),
                )
            ),
            (x(1, 8, 128, 32), x(1, 2, 128, 32)),
        ),
        (
            "there and back",
            Does(
                lambda self, h: self.conv2(
                    F.gelu(self.conv1(h).permute(0, 2, 3, 1).contiguous()).permute(0, 3, 1, 2).contiguous()
                ),
                conv1=nn.Conv2d(3, 32, 3),
                conv2=nn.Conv2d(32, 8, 3),
            ),
            (x(1, 3, 32, 32),),
        ),
        ("a bias before a norm", nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()), (x(1, 3, 32, 32),)),
    ),
    (
        (
            "1×1, then up",
            nn.Sequential(nn.Conv2d(3, 32, 3), nn.Conv2d(32, 8, 1), nn.Upsample(scale_factor=2)),
            (x(1, 3, 32, 32),),
        ),
        (
            "up, then 3×3",
            nn.Sequential(nn.Conv2d(3, 32, 3), nn.Upsample(scale_factor=2), nn.Conv2d(32, 8, 3)),
            (x(1, 3, 32, 32),),
        ),
        (
            "grouped keys",
            Does(lambda self, q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True)),
            (x(1, 8, 128, 32), x(1, 2, 128, 32)),
        ),
        (
            "a gate",
            Does(
                lambda self, h: self.fc(h) * torch.sigmoid(self.gate(h)), fc=nn.Linear(64, 64), gate=nn.Linear(64, 64)
            ),
            (x(64, 64),),
        ),
        (
            "a norm by channel that moves back",
            Does(
                lambda self, h: self.conv2(self.norm(self.conv1(h).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)),
                conv1=nn.Conv2d(3, 32, 3),
                norm=nn.LayerNorm(32),
                conv2=nn.Conv2d(32, 8, 3),
            ),
            (x(1, 3, 32, 32),),
        ),
        ("no bias before a layer norm", nn.Sequential(nn.Linear(32, 32, bias=False), nn.LayerNorm(32)), (x(8, 32),)),
    ),
)

# --- likely bugs


class LeftOn(nn.Module):
    """Dropout whose switch nobody turns."""

    def __init__(self, obeys: bool) -> None:
        super().__init__()
        self.fc, self.obeys = nn.Linear(32, 32), obeys

    def forward(self, h: Tensor) -> Tensor:
        return F.dropout(self.fc(h), 0.1, training=self.training if self.obeys else True)


BUGS = FaultClass(
    "likely bugs",
    ("double-softmax", "dropout-in-evaluation", "batch-statistics-in-evaluation", "state-written-in-evaluation"),
    (
        ("softmax twice", nn.Sequential(nn.Linear(32, 10), nn.Softmax(-1), nn.Softmax(-1)), (x(8, 32),)),
        (
            "log-softmax of a softmax",
            Does(lambda self, h: F.log_softmax(torch.softmax(self.fc(h), -1), -1), fc=nn.Linear(32, 10)),
            (x(8, 32),),
        ),
        (
            "a loss of probabilities",
            Does(lambda self, h, y: F.cross_entropy(self.fc(h).softmax(1), y), fc=nn.Linear(32, 10)),
            (x(8, 32), ids(8)),
        ),
        ("dropout left on", LeftOn(False), (x(8, 32),)),
        (
            "dropout by hand",
            Does(lambda self, h: self.fc(h) * (torch.rand_like(h) > 0.1) / 0.9, fc=nn.Linear(32, 32)),
            (x(8, 32),),
        ),
        (
            "dropout in attention",
            Does(lambda self, h: F.scaled_dot_product_attention(h, h, h, dropout_p=0.1)),
            (x(1, 4, 16, 32),),
        ),
        (
            "batch statistics",
            Does(
                lambda self, h: F.batch_norm(self.conv(h), self.m, self.v, training=True),
                conv=nn.Conv2d(3, 8, 3),
                m=torch.zeros(8),
                v=torch.ones(8),
            ),
            (x(4, 3, 16, 16),),
        ),
        (
            "no running statistics",
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False)),
            (x(4, 3, 16, 16),),
        ),
        (
            "an average written",
            Does(lambda self, h: h - self.centre.mul_(0.9).add_(0.1 * h.mean(0)), centre=torch.zeros(32)),
            (x(8, 32),),
        ),
    ),
    (
        ("one softmax", nn.Sequential(nn.Linear(32, 10), nn.Softmax(-1)), (x(8, 32),)),
        ("dropout that obeys", LeftOn(True), (x(8, 32),)),
        ("batch norm", nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), (x(4, 3, 16, 16),)),
        ("instance norm", nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8)), (x(4, 3, 16, 16),)),
        ("sampling", Does(lambda self, h: self.fc(h) + torch.randn_like(h) * 0.1, fc=nn.Linear(32, 32)), (x(8, 32),)),
        (
            "attention in attention",
            Does(lambda self, h: torch.softmax(torch.softmax(h @ h.mT, -1) @ h @ h.mT, -1) @ h),
            (x(1, 16, 32),),
        ),
        (
            "a cache written in part",
            Does(lambda self, h: (self.cache[:, :4].copy_(h), self.cache.sum())[1], cache=torch.zeros(1, 64, 32)),
            (x(1, 4, 32),),
        ),
    ),
    kind="bug",
)

# --- recurrences without parameters, and tensors that are held


def scan_of_pairs(self: Any, decay: Tensor, given: Tensor) -> Tensor:
    state, states = torch.zeros_like(given[:, 0]), []
    for t in range(given.shape[1]):
        state = decay[:, t] * state + given[:, t]
        states.append(state)
    return torch.stack(states, 1)


def running_average(self: Any, a: Tensor) -> Tensor:
    average = a[0]
    for step in a.unbind(0)[1:]:
        average = average * 0.9 + step * 0.1
    return average


def discounted(self: Any, rewards: Tensor, values: Tensor) -> Tensor:
    advantage, out = torch.zeros_like(rewards[:, 0]), list[Tensor]()
    for t in reversed(range(rewards.shape[1] - 1)):
        delta = rewards[:, t] + 0.99 * values[:, t + 1] - values[:, t]
        advantage = delta + 0.95 * advantage
        out.insert(0, advantage)
    return torch.stack(out, 1)


def summed(self: Any, a: Tensor) -> Tensor:
    return torch.cumsum(a, 1)


def residual(self: Any, a: Tensor) -> Tensor:
    for layer in self.layers:
        a = a + layer(a)
    return a


SCANS = FaultClass(
    "a recurrence without parameters",
    ("scan-in-python",),
    (
        ("a state-space scan", Does(scan_of_pairs), (x(2, 32, 64), x(2, 32, 64))),
        ("a running average", Does(running_average), (x(32, 64),)),
        ("advantages, backwards in time", Does(discounted), (x(8, 40), x(8, 40))),
    ),
    (
        ("a cumulative sum", Does(summed), (x(2, 32, 64),)),
        ("residual blocks", Does(residual, layers=nn.ModuleList(nn.Linear(64, 64) for _ in range(12))), (x(2, 64),)),
        ("a recurrent layer", nn.GRU(8, 16, batch_first=True), (x(2, 32, 8),)),
    ),
)


class Keeping(nn.Module):
    """Ten layers; `how` says what becomes of their outputs."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layers, self.how = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(10)), how
        self.seen: list[Tensor] = []
        self.last: Tensor | None = None

    def forward(self, a: Tensor) -> Any:
        outputs = []
        for layer in self.layers:
            a = torch.relu(layer(a))
            if self.how in ("in a list", "given back"):
                outputs.append(a)
            elif self.how == "in an attribute":
                self.seen.append(a)
            self.last = a
        return (a, outputs) if self.how == "given back" else a


def hooked() -> nn.Module:
    model = nn.Sequential(*(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(10)))
    kept: list[Tensor] = []
    for block in model:
        block.register_forward_hook(lambda module, given, made: kept.append(made))
    return model


HELD = FaultClass(
    "tensors kept alive",
    ("held-activations",),
    (
        ("in a list that nobody reads", Keeping("in a list"), (x(1, 8, 64, 64),)),
        ("in an attribute", Keeping("in an attribute"), (x(1, 8, 64, 64),)),
        ("by hooks that collect features", hooked(), (x(1, 8, 64, 64),)),
    ),
    (
        ("each replaced by the next", Keeping("not at all"), (x(1, 8, 64, 64),)),
        ("given back", Keeping("given back"), (x(1, 8, 64, 64),)),
    ),
)


def by_sample_after_a_maximum(self: Any, a: Tensor) -> Tensor:
    """The largest value has two outputs, and one of them is read in parts."""
    best = a.max(-1)[0]
    return torch.cat([torch.relu(self.fc(best[i : i + 1])) for i in range(len(best))])


class HeadByHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, 64) for _ in range(3))

    def forward(self, a: Tensor) -> Tensor:
        q, k, v = (layer(a).view(*a.shape[:2], 8, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
        heads = [(q[:, i] @ k[:, i].transpose(-2, -1)).softmax(-1) @ v[:, i] for i in range(8)]
        return torch.cat(heads, -1)


class LinearPerHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(64, 8) for _ in range(8))

    def forward(self, a: Tensor) -> Tensor:
        return torch.cat([head(a) for head in self.heads], -1)


MORE_LOOPS = FaultClass(
    "loops in blocks, over heads and over what has two outputs",
    ("loop-over-samples", "parallel-linears"),
    (
        ("samples of a maximum", Does(by_sample_after_a_maximum, fc=nn.Linear(16, 16)), (x(8, 16, 4),)),
        ("attention head by head", HeadByHead(), (x(2, 32, 64),)),
        ("a linear per head in every block", nn.Sequential(*(LinearPerHead() for _ in range(4))), (x(2, 64),)),
    ),
    (("blocks one after the other", nn.Sequential(*(nn.Linear(64, 64) for _ in range(12))), (x(2, 64),)),),
)


class ReadsOnTheHost(nn.Module):
    """A tensor from a numpy array, or from a value, is not a constant of the model."""

    def __init__(self, by_value: bool) -> None:
        super().__init__()
        self.fc, self.by_value = nn.Linear(64, 64), by_value

    def forward(self, a: Tensor, lengths: Tensor) -> Tensor:
        if self.by_value:
            longest = lengths.max().item()
            return a * (torch.arange(64) < longest)
        return torch.relu(self.fc(torch.from_numpy(a.detach().cpu().numpy())))


NOT_CONSTANT = FaultClass(
    "constants that are data",
    ("recomputed-constant", "recomputed-weight"),
    (),
    (
        ("through numpy", ReadsOnTheHost(False), (x(8, 64), ids(8))),
        ("from a value", ReadsOnTheHost(True), (x(8, 64), ids(8))),
    ),
)

CLASSES = (REPEATED, LOOPS, HOST, MEMORY, FIGHTING, BUGS, SCANS, HELD, MORE_LOOPS, NOT_CONSTANT)
