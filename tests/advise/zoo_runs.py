"""Faults that only a device or a measured run shows; devices and figures are given, not measured."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.advise.planted import Planted, on_cuda, seen, timed
from torchgauge.advise import Evidence, Machine
from torchgauge.hardware import Peaks

H = Peaks("a device", {"float32": 60e12, "tf32": 480e12, "bfloat16": 960e12}, 4e12)


class Net(nn.Module):
    def __init__(self, outputs: int = 128) -> None:
        super().__init__()
        self.head = nn.Linear(128, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Pools(nn.Module):
    """The norms between the convolutions decide whether the other order of channels pays."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(16, 32, 3), norm(32), nn.MaxPool2d(2), nn.Conv2d(32, 32, 3), norm(32))

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)


class Branches(nn.Module):
    def __init__(self, asks: bool) -> None:
        super().__init__()
        self.asks = asks
        self.register_buffer("lengths", torch.ones(3, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        count = self.get_buffer("lengths").sum()
        return x * count.item() if self.asks else x * count


class Moves(nn.Module):
    def __init__(self, device: str | None) -> None:
        super().__init__()
        self.device = device

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.device).float() if self.device else x * 2


def half(outputs: int) -> Evidence:
    return on_cuda(seen(Net(outputs).to(torch.bfloat16), 64, 128, dtype=torch.bfloat16))


def images(layout: torch.memory_format) -> Evidence:
    x = torch.zeros(2, 16, 32, 32, dtype=torch.float16).to(memory_format=layout)
    return on_cuda(seen(Conv().half(), inputs=x))


def on_cpu(layout: torch.memory_format, norm: type[nn.Module] = nn.BatchNorm2d) -> Evidence:
    model = Pools(norm).eval().to(memory_format=layout)  # type: ignore[call-overload]
    return seen(model, inputs=torch.zeros(2, 16, 64, 64).to(memory_format=layout))


def converting(kernel: str) -> Evidence:
    evidence = images(torch.contiguous_format)
    index = next(op.index for op in evidence.forward if op.category == "convolution")
    return timed(evidence, {"latency": {"median_s": 1e-3}}, {index: {"time_s": 9e-4, "kernels": [kernel]}})


def precise(allowed: bool) -> Evidence:
    return on_cuda(seen(Net(), 64, 128), Machine(H, matmul_tf32=allowed))


def busy(kernels_s: float, device: str = "cuda") -> Evidence:
    evidence = seen(Net(), 64, 128)
    ops = {op.index: {"time_s": kernels_s, "bound": "launch"} for op in evidence.forward if op.category == "matmul"}
    return timed(on_cuda(evidence) if device == "cuda" else evidence, {"latency": {"median_s": 1e-3}}, ops)


def scaled(*medians: float) -> Evidence:
    rows = [{"threads": 2**at, "median_s": seconds} for at, seconds in enumerate(medians)]
    return timed(seen(Net(), 64, 128), {"threads": {"scaling": rows}})


def moving(device: str | None) -> Evidence:
    return on_cuda(seen(Moves(device), 64, 128))


def asking(asks: bool, cuda: bool = True) -> Evidence:
    evidence = seen(Branches(asks), 64, 128)
    return on_cuda(evidence) if cuda else evidence


def case(name: str, rule: str, place: str, fault: Any, twin: Any) -> Planted:
    return Planted(name, rule, place, fault, twin)


NCHW, NHWC = torch.contiguous_format, torch.channels_last
CASES = [
    case("vocabulary", "odd-dimensions", "head.weight", lambda: half(1001), lambda: half(1024)),
    case(
        "vocabulary, float32", "odd-dimensions", "head", lambda: half(1001), lambda: on_cuda(seen(Net(1001), 64, 128))
    ),
    case("planar images", "channels-last", "", lambda: images(NCHW), lambda: images(NHWC)),
    case(
        "layout kernels", "channels-last", "", lambda: converting("nchwToNhwcKernel"), lambda: converting("xmma_fprop")
    ),
    case("planar images, cpu", "image-layout", "", lambda: on_cpu(NCHW), lambda: on_cpu(NHWC)),
    case("norms of images", "image-layout", "", lambda: on_cpu(NCHW), lambda: on_cpu(NCHW, nn.InstanceNorm2d)),
    case("tf32", "tf32-off", "", lambda: precise(False), lambda: precise(True)),
    case("tf32, cpu", "tf32-off", "", lambda: precise(False), lambda: seen(Net(), 64, 128)),
    case("idle device", "launch-bound", "", lambda: busy(2e-4), lambda: busy(9e-4)),
    case("small ops", "dispatch-bound", "", lambda: busy(8e-4, "cpu"), lambda: busy(1e-4, "cpu")),
    case("threads", "thread-count", "", lambda: scaled(1.0, 0.8, 1.2), lambda: scaled(1.0, 0.6, 0.4)),
    case("to the host", "device-transfer", "", lambda: moving("meta"), lambda: moving(None)),
    case("item", "host-wait", "", lambda: asking(True), lambda: asking(False)),
    case("item, cpu", "host-wait", "", lambda: asking(True, cuda=False), lambda: asking(False, cuda=False)),
]
