"""The time of each op: measured where a profile was taken, else predicted for the device."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, hypot, log, sqrt

from torchgauge.advise.processor import DISPATCH_S, VIEW_S, call_pace, extra_seconds, op_seconds, workspace
from torchgauge.facts import FREE, OpRecord
from torchgauge.hardware import Peaks, Roof

# The call of a module that does nothing.
_MODULE_S = 1.5e-6
# Of the peak of a GPU's data sheet.
_REACHED_ON_GPU = 0.4
# A core of a current server without a calibration: 16 float32 multiply-adds a cycle at 3.2 GHz, as that of
# `processor.REFERENCE` has; two channels of memory.
_CORE_FLOPS_PER_S, _BYTES_PER_S = 103e9, 20e9
# The time of some ops relative to that of others is predicted to within this factor on a processor, and on a GPU with
# the processor that launches its kernels. Chosen so that ranges hold about 80 % of the changes measured so far, with a
# median width below a factor of three (docs/accuracy.md).
UNSURE, UNSURE_ON_GPU = 1.66, 2.05
# On a processor ops that go away save more than they take: what they push out of the caches, and the Python between
# them. Near the median of 166 changes (docs/accuracy.md).
SAVED_PER_REMOVED = 1.25
# The first write to a page that the allocator got from Linux: 2 µs per 4 KiB in a virtual machine without huge pages
# (40 to 128 MiB, torch 2.13); a tenth of that with huge pages, nothing where the process has kept the memory.
FRESH_S_PER_BYTE = 0.5e-9
# glibc takes blocks from this size on from Linux at each call and gives them back (DEFAULT_MMAP_THRESHOLD_MAX of
# malloc.c); smaller ones stay with the process until twice the size of the largest one freed, or of the second figure
# (DEFAULT_MMAP_THRESHOLD_MIN), is unused at the end of its heap.
_NEVER_KEPT, _LEAST_KEPT = 32 << 20, 128 << 10
# torch has a switch for matmuls and another for cuDNN's convolutions and RNNs.
_CUDNN = ("convolution", "recurrent")


@dataclass(frozen=True, slots=True)
class LeastTime:
    """Of ops by the roofline of their device. `matmul_tf32` and `convolution_tf32`: whether float32 products may run in
    TF32."""

    peaks: Peaks
    matmul_tf32: bool = False
    convolution_tf32: bool = True

    def of(self, op: OpRecord) -> float:
        """Seconds; 0 where the device's rate for the type is not known."""
        return self._seconds(op, self._rate(op), 1.0)

    def rate_of(self, op: OpRecord) -> float:
        """FLOP/s at most; that of float32 for all but products (rates of narrow types are those of units for products),
        and where the rate for the type is not known."""
        rates = self.peaks.flops_per_s.values()
        known = self._rate(op) if op.cost.macs else None
        return known or self.peaks.rate("float32") or max(rates, default=1.0)

    def in_bfloat16(self, op: OpRecord) -> float:
        """With half of the bytes of float32."""
        return self._seconds(op, self.peaks.rate("bfloat16"), 0.5)

    def whole(self, ops: Iterable[OpRecord]) -> float:
        return sum(map(self.of, ops))

    def _rate(self, op: OpRecord) -> float | None:
        allowed = self.convolution_tf32 if op.category in _CUDNN else self.matmul_tf32
        return self.peaks.rate(op.signature.dtype, tf32=allowed and op.cost.macs > 0)

    def _seconds(self, op: OpRecord, rate: float | None, width: float) -> float:
        cost, bandwidth = op.signature.cost, self.peaks.bytes_per_s
        if not rate or not bandwidth:
            return 0.0
        return Roof(rate, bandwidth).least_seconds(cost.flops, width * (cost.bytes_read + cost.bytes_written))


@dataclass(frozen=True)
class Queues:
    """What each op takes of the host, which launches one after the other, and of the device, which works off what was
    launched: (host, device) seconds by the index of the op, in the order of execution. `fixed_s` is what a run takes
    however few ops it has."""

    seconds: Mapping[int, tuple[float, float]]
    fixed_s: float = 0.0

    def run_seconds(self, without: Collection[int] = ()) -> float:
        """The time of a run, or of one that lacks some of the ops."""
        host = busy = 0.0
        for index, (host_s, device_s) in self.seconds.items():
            if index not in without:
                host += host_s
                busy = max(busy, host) + device_s if device_s else busy
        return max(host, busy) + self.fixed_s

    @cached_property
    def critical(self) -> Mapping[int, float]:
        """The run's time shared out among its ops: up to the op from which on the device is never idle again the host
        is what takes time, from there on the device. The rest of what an op takes is hidden by the other queue."""
        host, left = 0.0, sum(device_s for _, device_s in self.seconds.values())
        turn, longest = None, 0.0
        for index, (host_s, device_s) in self.seconds.items():
            host += host_s
            if host + left > longest:
                turn, longest = index, host + left
            left -= device_s
        found, is_device = {}, False
        for index, (host_s, device_s) in self.seconds.items():
            found[index] = host_s + device_s if index == turn else device_s if is_device else host_s
            is_device = is_device or index == turn
        return found


@dataclass(frozen=True)
class OpTimes:
    """Seconds by the index of the op. `whole` is the time of the run: the measured one where there is one. `queues` are
    known of a device that is predicted with its host. `fresh_s` is added where the allocator does not
    keep memory between runs (`fresh_memory`). `call_pace` is how long a processor takes for a call, in parts of the
    reference's."""

    seconds: Mapping[int, float]
    basis: str
    measured_s: float | None = None
    queues: Queues | None = None
    fresh_s: Mapping[int, float] = field(default_factory=dict)
    call_pace: float = 1.0

    @cached_property
    def total(self) -> float:
        return sum(self.seconds.values()) + (self.queues.fixed_s if self.queues else 0.0)

    @property
    def whole(self) -> float:
        return self.measured_s or self.total

    def share(self, ops: Iterable[int]) -> float:
        """The part of the run that these ops are."""
        found = sum([self.seconds.get(index, 0.0) for index in frozenset(ops)])
        return min(found / self.total, 1.0) if self.total else 0.0

    def calls_share(self, ops: Iterable[OpRecord]) -> float:
        """Of the time of these ops, what the host takes to call them."""
        whole = calls = 0.0
        for op in ops:
            seconds = self.seconds.get(op.index, 0.0)
            if self.queues is None:
                own = self.call_pace * (VIEW_S if op.status == FREE else DISPATCH_S + extra_seconds(op))
            else:
                host_s, device_s = self.queues.seconds[op.index]
                own = 0.0 if device_s and seconds == device_s else host_s
            whole, calls = whole + seconds, calls + min(own, seconds)
        return calls / whole if whole else 0.0

    def saved(self, ops: Collection[int]) -> float:
        """The part of the run that goes away with these ops, no more than their share: where the host's part of it goes
        away, the device may be what the rest waits for."""
        if self.queues is None or not self.total:
            return self.share(ops)
        return max(0.0, 1 - self.queues.run_seconds(without=frozenset(ops)) / self.total)

    def fresh_share(self, ops: Collection[int]) -> float:
        """Of the time of these ops, what fresh memory is where the allocator keeps none."""
        fresh = sum([self.fresh_s.get(index, 0.0) for index in ops])
        return fresh / (fresh + sum([self.seconds.get(index, 0.0) for index in ops])) if fresh else 0.0

    def saved_range(self, ops: Collection[int], keeps_results: bool = False) -> tuple[float, float]:
        """The least and the most that it may be, with memory that is kept between runs and with fresh memory, which a
        change that keeps the results needs as well."""
        shares = [self.saved(ops)]
        if self.fresh_s:
            fresh = 0.0 if keeps_results else sum([self.fresh_s.get(index, 0.0) for index in ops])
            shares.append((shares[0] * self.total + fresh) / (self.total + sum(self.fresh_s.values())))
        return self._range(shares)

    def saved_by(self, changed: OpTimes) -> tuple[float, float]:
        """The same for a changed model whose ops take these times; (0, 0) if it is not faster."""
        fresh, fresh_changed = (sum(times.fresh_s.values()) for times in (self, changed))
        pairs = [(self.total, changed.total), (self.total + fresh, changed.total + fresh_changed)]
        return self._range([max(0.0, 1 - after / before) if before else 0.0 for before, after in pairs])

    def _range(self, shares: Sequence[float]) -> tuple[float, float]:
        """Of the run, what is saved if these shares of it are predicted to go away; that may be wrong by `UNSURE`
        either way."""
        unsure = 1.0 if self.basis == "measured" else UNSURE if self.queues is None else UNSURE_ON_GPU
        saved_per_removed = SAVED_PER_REMOVED if self.basis == "predicted" and self.queues is None else 1.0
        least, most = (saved_per_removed * share / max(1 - share, 1e-9) for share in (min(shares), max(shares)))
        low, high = combined((least, most), (1 / unsure, unsure))
        return low / (low + 1), high / (high + 1)


def combined(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """The range of a product of two figures that are wrong independently of each other: the logarithms of their widths
    add up as errors do, by their squares. Both at their ends at once would be a rare case."""
    middle = sqrt(one[0] * one[1] * other[0] * other[1])
    if not middle:
        return 0.0, one[1] * other[1]
    width = exp(hypot(log(one[1] / one[0]), log(other[1] / other[0])) / 2)
    return middle / width, middle * width


def fresh_memory(ops: Iterable[OpRecord]) -> tuple[dict[int, float], dict[int, float]]:
    """By the index of the op, the seconds for pages that no earlier run has left in the process: those of large
    blocks, which every run pays for, and those by which the heap may grow again after glibc has given its unused end
    back. What a convolution takes for itself is free again behind it."""
    made = [(op, (op.signature.activation_bytes, *workspace(op))) for op in ops]
    large = {op.index: sum(each for each in blocks if each >= _NEVER_KEPT) for op, blocks in made}
    always = {index: nbytes * FRESH_S_PER_BYTE for index, nbytes in large.items() if nbytes}
    largest = max((blocks[0] for _, blocks in made if blocks[0] < _NEVER_KEPT), default=0)
    most_unused, heap, top = 2 * max(largest, _LEAST_KEPT), 0, 0
    given = max(made[0][0].live_bytes - made[0][1][0], 0) if made else 0  # the inputs, which live between runs
    perhaps: dict[int, float] = {}
    for _ in range(2):  # the second run finds what the first has left
        perhaps = {}
        for op, blocks in made:
            live = op.live_bytes - given
            most = live + sum(each for each in blocks[1:] if each < _NEVER_KEPT)
            # Pages of a workspace may serve the results behind it, or not: both may need new ones.
            grown = max(live - heap, 0) + max(most - max(top, live), 0)
            if blocks[0] < _NEVER_KEPT and grown:
                perhaps[op.index] = grown * FRESH_S_PER_BYTE
            heap, top = max(heap, live), max(top, most)
            if top - live > most_unused:
                heap = top = live
        heap, top = (0, 0) if heap > most_unused else (heap, top)
    return always, perhaps


def predicted_times(
    ops: Iterable[OpRecord],
    peaks: Peaks | None,
    device: str,
    threads: int,
    least: LeastTime | None,
    cores: int | None = None,
    module_calls: int = 0,
) -> dict[int, float]:
    """By the roofline of the device at the rates that kernels reach, and no less than the host takes for a call. The
    rates of a processor are those of the threads it was measured with, or else of all its cores; an op there has an
    even share of the modules' calls."""
    is_cuda = device == "cuda"
    if least is None or peaks is None or not peaks.bytes_per_s:
        rate = max(threads, 1) * _CORE_FLOPS_PER_S
        least = LeastTime(Peaks("a typical processor", {"float32": rate, "float64": rate / 2}, _BYTES_PER_S))
    elif not is_cuda and (part := min(threads, cores or threads) / (peaks.threads or cores or threads)) != 1:
        used = {dtype: rate * part for dtype, rate in peaks.flops_per_s.items()}
        bandwidth = min(peaks.bytes_per_s, threads * _BYTES_PER_S)  # one core does not reach that of all
        least = replace(least, peaks=replace(peaks, flops_per_s=used, bytes_per_s=bandwidth))
    found, known = {}, dict[tuple[int, str], float]()  # equal calls share a signature
    ops = list(ops)
    each = 0.0 if is_cuda else module_calls * _MODULE_S * call_pace(least.peaks.pace) / max(len(ops), 1)
    for op in ops:
        key = (id(op.signature), op.status)
        if key not in known:
            if not is_cuda:
                known[key] = op_seconds(op, least.rate_of(op), least.peaks.pace, threads) + each
            elif op.status == FREE:
                known[key] = 0.0
            else:  # the host launches ahead: the longer of the two is what a run takes
                kernel_s = _kernel(op, least, least.peaks.bytes_per_s or _BYTES_PER_S, _REACHED_ON_GPU)
                known[key] = max(kernel_s, DISPATCH_S)
        found[op.index] = known[key]
    return found


def _kernel(op: OpRecord, least: LeastTime, bandwidth: float, reached: float) -> float:
    cost = op.signature.cost
    return max(cost.flops / (least.rate_of(op) * reached), (cost.bytes_read + cost.bytes_written) / bandwidth)
