"""A small model whose run keeps the processor busy and the device hardly at all: the speed of a host.

A loop of one op is not representative: a model calls different ops from different Python code. The sample has what
models are made of, on tensors of a few elements: convolutions with batch norm and squeeze-and-excitation, an encoder's
layer, a decoder's layer as language models write it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import count
from math import log2
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

if TYPE_CHECKING:
    Clock = Callable[[], float]

_WIDTH = 16


class _Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(_WIDTH, _WIDTH, 1, bias=False)
        self.norm = nn.BatchNorm2d(_WIDTH)
        self.act = nn.ReLU(inplace=True)
        self.depthwise = nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1, groups=_WIDTH, bias=False)
        self.second_norm = nn.BatchNorm2d(_WIDTH)
        self.squeeze = nn.Conv2d(_WIDTH, _WIDTH, 1)
        self.gate = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm(self.first(x)))
        y = self.second_norm(self.depthwise(y))
        y = y * self.gate(self.squeeze(y.mean((2, 3), keepdim=True)))
        return functional.relu(x + y)


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Dropout(0.0), nn.Linear(_WIDTH, _WIDTH), nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(y)
        return x + self.mlp(self.second_norm(x))


class _RootMeanSquare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class _Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.second_norm = _RootMeanSquare(), _RootMeanSquare()
        self.q, self.k, self.v, self.out, self.gate, self.up, self.down = (
            nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(7)
        )
        self.act = nn.SiLU()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.norm(x)
        shape = (*x.shape[:-1], -1, _WIDTH // 2)
        q, k, v = (part(y).view(shape).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        k, v = torch.cat((k, k), dim=-2), torch.cat((v, v), dim=-2)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape).contiguous()
        x = x + self.out(y)
        y = self.second_norm(x)
        return x + self.down(self.act(self.gate(y)) * self.up(y))


class HostSample(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(_Convolutions(), _Convolutions())
        self.encoders = nn.ModuleList([_Encoder(), _Encoder()])
        self.decoders = nn.ModuleList([_Decoder(), _Decoder()])
        self.head = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolutions(x).flatten(2).transpose(1, 2)
        for encoder in self.encoders:
            x = encoder(x)
        angle = torch.arange(x.shape[1], device=x.device)[:, None].float() * x.new_ones(_WIDTH // 2)
        cos, sin = angle.cos(), angle.sin()
        for decoder in self.decoders:
            x = decoder(x, cos, sin)
        out: Tensor = self.head(x.mean(1))
        return out


# cuDNN keeps its plans as long as the process lives.
_new_lengths = count(100)


class HostProbe:
    """Runs of the sample on a device: `forward` without gradients, `train` a step with AdamW, `plan` an attention of
    cuDNN with a length that it has not seen."""

    def __init__(self, device: str) -> None:
        self._device = device
        with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
            self._model = HostSample().to(device)
            self._input = torch.zeros(2, _WIDTH, 4, 4, device=device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=0.0)
        for _ in range(3):
            self.forward()
            self.train()

    def forward(self) -> None:
        self._model.eval()
        with torch.no_grad():
            self._model(self._input)

    def train(self) -> None:
        self._model.train()
        with torch.enable_grad():
            self._model(self._input).square().mean().backward()
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)

    def plan(self) -> None:
        lengths = (1, next(_new_lengths))
        query, keys = (torch.zeros(1, 8, n, 64, device=self._device, dtype=torch.bfloat16) for n in lengths)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            functional.scaled_dot_product_attention(query, keys, keys)

    def seconds(self, run: Callable[[], None], clock: Clock = time.perf_counter) -> float:
        return elapsed_seconds(run, self._device, clock)


def elapsed_seconds(run: Callable[[], object], device: str, clock: Clock = time.perf_counter) -> float:
    """From an idle device until it is idle again."""
    wait: Callable[[], None] = torch.cuda.synchronize if device != "cpu" else lambda: None
    wait()
    started = clock()
    run()
    wait()
    return clock() - started


_RUNS_IN_A_ROW = 4  # runs of one kind after each other, as a model runs: the first of them does not count


def host_speed(device: str, clock: Clock = time.perf_counter, rounds: int = 20) -> dict[str, float]:
    """Medians over some seconds, and half of the 90 % interval of the forward's times in octaves (`spread`). Forwards
    and training steps are timed in separate series: on an H200's host, forwards between training steps took 3.8 ms,
    those in series 2.7 ms."""
    probe = HostProbe(device)
    parts: dict[str, Callable[[], None]] = {"forward_s": probe.forward, "train_s": probe.train}
    has_plans = device != "cpu"
    if has_plans:
        try:
            probe.plan()
        except RuntimeError:  # no such attention on this device
            has_plans = False
    times: dict[str, list[float]] = {name: [] for name in (*parts, "plan_s")}
    for number in range(rounds):
        for name, run in parts.items():
            times[name] += [probe.seconds(run, clock) for _ in range(_RUNS_IN_A_ROW)][1:]
        if has_plans and number % 2 == 0:
            times["plan_s"].append(probe.seconds(probe.plan, clock))
    found = {name: statistics.median(values) if values else 0.0 for name, values in times.items()}
    ordered = sorted(times["forward_s"])
    spread = log2(ordered[int(0.95 * len(ordered))] / ordered[int(0.05 * len(ordered))]) / 2
    return found | {"spread": spread}
