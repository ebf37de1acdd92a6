"""The time of each op: measured where a profile was taken, else predicted for the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from torchgauge.advise.least_time import LeastTime
from torchgauge.facts import FREE, OpRecord
from torchgauge.hardware import Peaks

# What eager PyTorch takes on the host for an op that does next to nothing, and for a view. Measured with torch 2.13 on
# an EPYC 9374F and an EPYC of 2 shared cores: 2 to 6 µs and 0.7 to 2 µs through nn.Module.
DISPATCH_S, VIEW_S = 4e-6, 1.2e-6
# Of the peak rate that kernels of a category reach, by the comparisons of predicted and measured times in
# docs/advice.md; what is not listed is bound by memory.
_REACHED = {"matmul": 0.7, "convolution": 0.5, "attention": 0.4, "recurrent": 0.3}
# Elements per second and core of functions that are computed, not looked up: exp, tanh, erf and the like.
_FUNCTIONS = {"activation", "softmax"}
_FUNCTION_FLOPS = 8
# A core of a current server without a calibration: 16 float32 multiply-adds a cycle at 2.5 GHz; two channels of memory.
_CORE_FLOPS_PER_S, _BYTES_PER_S = 80e9, 20e9
# Tensors that fit into the caches are read faster than from memory.
_CACHED_BYTES, _CACHE_SPEEDUP = 1 << 20, 3.0


@dataclass(frozen=True)
class OpTimes:
    """Seconds by the index of the op. `whole` is the time of the run: the measured one where there is one."""

    seconds: Mapping[int, float]
    basis: str
    measured_s: float | None = None

    @cached_property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def whole(self) -> float:
        return self.measured_s or self.total

    def share(self, ops: Iterable[int]) -> float:
        """The part of the run that these ops are."""
        found = sum(self.seconds.get(index, 0.0) for index in set(ops))
        return min(found / self.total, 1.0) if self.total else 0.0


def predicted_times(
    ops: Iterable[OpRecord], peaks: Peaks | None, device: str, threads: int, least: LeastTime | None
) -> dict[int, float]:
    """By the roofline of the device at the rates that kernels reach, and no less than the host takes for a call."""
    is_cuda = device == "cuda"
    if least is None or peaks is None or not peaks.bytes_per_s:
        rate = max(threads, 1) * _CORE_FLOPS_PER_S
        least = LeastTime(Peaks("a typical processor", {"float32": rate, "float64": rate / 2}, _BYTES_PER_S))
    return {op.index: _seconds(op, least, is_cuda=is_cuda) for op in ops}


def _seconds(op: OpRecord, least: LeastTime, *, is_cuda: bool) -> float:
    if op.status == FREE:
        return 0.0 if is_cuda else VIEW_S
    cost, bandwidth = op.signature.cost, least.peaks.bytes_per_s or _BYTES_PER_S
    nbytes = cost.bytes_read + cost.bytes_written
    if not is_cuda and nbytes <= _CACHED_BYTES:
        bandwidth *= _CACHE_SPEEDUP
    flops = cost.flops * (_FUNCTION_FLOPS if op.category in _FUNCTIONS else 1)
    arithmetic = flops / (least.rate_of(op) * _REACHED.get(op.category, 0.5))
    kernel = max(arithmetic, nbytes / bandwidth)
    # On CUDA the host launches ahead: the longer of the two is what a run takes.
    return max(kernel, DISPATCH_S) if is_cuda else kernel + DISPATCH_S
