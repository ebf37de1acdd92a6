"""The time of each op: measured where a profile was taken, else predicted for the device."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from torchgauge.advise.least_time import LeastTime
from torchgauge.facts import FREE, OpRecord
from torchgauge.hardware import Peaks

# What eager PyTorch takes on the host for an op that does next to nothing, and for a view. Measured with torch 2.13 on
# an EPYC 9374F and an EPYC of 2 shared cores: 2 to 6 µs and 0.7 to 2 µs through nn.Module.
DISPATCH_S, VIEW_S = 4e-6, 1.2e-6
# Of the peak rate that kernels of a category reach; what is not listed is bound by memory. Like the figures below from
# 159 single ops of 1,024 to 2,097,152 elements on one core of an EPYC (AVX2), torch 2.13: docs/advice.md.
_REACHED = {"matmul": 0.42, "convolution": 0.4, "attention": 0.4, "recurrent": 0.3}
_REACHED_GROUPED = 0.1
# Nanoseconds per element on one core, for what is computed element by element and not bound by memory: by op, by
# category, and for copies of transposed tensors.
_NS_PER_ELEMENT = {
    "tanh": 3.3, "exp": 1.1, "log": 1.1, "sin": 2.2, "cos": 2.2, "erf": 1.1, "pow": 5.0, "sigmoid": 1.0, "silu": 1.0,
    "gelu": 1.1, "native_batch_norm": 0.37, "var": 10.0, "std": 10.0, "var_mean": 10.0,
    "native_layer_norm": 0.5, "native_group_norm": 0.5, "_fused_rms_norm": 0.5, "linalg_vector_norm": 0.13,
    "tril": 0.6, "triu": 0.6, "cumsum": 1.0, "where": 0.7, "masked_fill": 1.5,
    "index": 1.2, "gather": 1.2, "scatter": 1.2, "embedding": 0.2,
}  # fmt: skip
_NS_BY_CATEGORY = {"softmax": 1.25, "resize": 2.5, "sort": 20.0}
_NS_TURNED_COPY = 0.7
# A pooling window is looked through element by element.
_NS_PER_POOLED = 3.0
# Seconds beside a call's own: the layouts of a convolution, groups, the statistics of a norm, the rows of a reduction,
# and each step of a recurrent layer.
_EXTRA_S = {"convolution": 20e-6, "attention": 30e-6, "normalization": 6e-6, "reduction": 3e-6}
_EXTRA_GROUPED_S, _STEP_S = 70e-6, 6e-6
# Ops are shared out among threads from so many elements on.
_ELEMENTS_PER_THREAD = 32768
# A core of a current server without a calibration: 16 float32 multiply-adds a cycle at 2.5 GHz; two channels of memory.
_CORE_FLOPS_PER_S, _BYTES_PER_S = 80e9, 20e9
# The time of some ops beside that of others is predicted to within this factor (docs/advice.md).
UNSURE = 1.6
# Tensors that fit into the caches are read faster than from memory.
_CACHED_BYTES, _CACHE_SPEEDUP = 8 << 20, 3.0
# Of these, the elements that are read are those of the result: rows of a table, parts of a tensor.
_LOOKUPS = {"index", "gather", "embedding", "index_select"}
# With other exponents `pow` is a logarithm and an exponential; these are products and roots.
_CHEAP_EXPONENTS = (2, 3, 0.5, -0.5, -1, -2)


@dataclass(frozen=True)
class Queues:
    """What each op takes of the host, which launches one after the other, and of the device, which works off what was
    launched: (host, device) seconds by the index of the op, in the order of execution."""

    seconds: Mapping[int, tuple[float, float]]

    def run_seconds(self, without: Collection[int] = ()) -> float:
        """The time of a run, or of one that lacks some of the ops."""
        host = busy = 0.0
        for index, (host_s, device_s) in self.seconds.items():
            if index not in without:
                host += host_s
                busy = max(busy, host) + device_s if device_s else busy
        return max(host, busy)

    @cached_property
    def critical(self) -> Mapping[int, float]:
        """The run's time shared out among its ops: up to the op from which on the device is never idle again the host
        is what takes time, from there on the device. What an op takes beside that is hidden by the other queue."""
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
    known of a device that is predicted beside its host."""

    seconds: Mapping[int, float]
    basis: str
    measured_s: float | None = None
    queues: Queues | None = None

    @cached_property
    def total(self) -> float:
        return sum(self.seconds.values())

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
                own = VIEW_S if op.status == FREE else DISPATCH_S + _extra(op)
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

    def saved_range(self, ops: Collection[int]) -> tuple[float, float]:
        """The least and the most that it may be: what is predicted may be wrong by `UNSURE` either way."""
        share, unsure = self.saved(ops), 1.0 if self.basis == "measured" else UNSURE
        low, high = share / unsure, share * unsure
        return low / (low + 1 - share), high / (high + 1 - share)


def predicted_times(
    ops: Iterable[OpRecord], peaks: Peaks | None, device: str, threads: int, least: LeastTime | None
) -> dict[int, float]:
    """By the roofline of the device at the rates that kernels reach, and no less than the host takes for a call."""
    is_cuda = device == "cuda"
    if least is None or peaks is None or not peaks.bytes_per_s:
        rate = max(threads, 1) * _CORE_FLOPS_PER_S
        least = LeastTime(Peaks("a typical processor", {"float32": rate, "float64": rate / 2}, _BYTES_PER_S))
    found, known = {}, dict[tuple[int, str], float]()  # equal calls share a signature
    for op in ops:
        key = (id(op.signature), op.status)
        if key not in known:
            known[key] = _on_gpu(op, least) if is_cuda else _on_processor(op, least, threads)
        found[op.index] = known[key]
    return found


def _on_gpu(op: OpRecord, least: LeastTime) -> float:
    """The host launches ahead: the longer of the two is what a run takes."""
    if op.status == FREE:
        return 0.0
    return max(_kernel(op, least, least.peaks.bytes_per_s or _BYTES_PER_S), DISPATCH_S)


def _on_processor(op: OpRecord, least: LeastTime, threads: int) -> float:
    if op.status == FREE:
        return VIEW_S
    signature, bandwidth = op.signature, least.peaks.bytes_per_s or _BYTES_PER_S
    if signature.cost.bytes_read + signature.cost.bytes_written <= _CACHED_BYTES:
        bandwidth *= _CACHE_SPEEDUP
    name = op.op.removeprefix("aten::").removesuffix("_")
    read = () if name in _LOOKUPS else signature.inputs[:1]
    elements = max((spec.numel for spec in (*signature.outputs, *read)), default=0)
    sharing = min(max(threads, 1), max(elements // _ELEMENTS_PER_THREAD, 1))
    wide = 2.0 if signature.dtype == "float64" else 1.0
    functions = elements * _ns_per_element(op, name) * wide * 1e-9 / sharing
    return DISPATCH_S + _extra(op) + max(_kernel(op, least, bandwidth), functions)


def _extra(op: OpRecord) -> float:
    """What a call takes beside its dispatch and the work per element."""
    if op.category == "recurrent" and op.signature.inputs and len(op.signature.inputs[0].shape) > 2:
        return _STEP_S * max(op.signature.inputs[0].shape[:2])
    if op.category == "convolution" and int(op.signature.attributes.get("groups") or 1) > 1:
        return _EXTRA_GROUPED_S
    return _EXTRA_S.get(op.category, 0.0)


def _ns_per_element(op: OpRecord, name: str) -> float:
    if name == "pow" and op.signature.attributes.get("exponent") in _CHEAP_EXPONENTS:
        return 0.0
    if op.category == "pooling":
        window = op.signature.attributes.get("kernel_size")
        return _NS_PER_POOLED * (prod(window) if isinstance(window, list | tuple) else 1)
    is_turned = op.category == "copy" and op.signature.inputs and op.signature.inputs[0].stride is not None
    known = _NS_PER_ELEMENT.get(name) or _NS_BY_CATEGORY.get(op.category)
    return known or (_NS_TURNED_COPY if is_turned else 0.0)


def _kernel(op: OpRecord, least: LeastTime, bandwidth: float) -> float:
    cost = op.signature.cost
    reached = _REACHED.get(op.category, 0.5)
    if op.category == "convolution" and int(op.signature.attributes.get("groups") or 1) > 1:
        reached = _REACHED_GROUPED
    arithmetic = cost.flops / (least.rate_of(op) * reached)
    return max(arithmetic, (cost.bytes_read + cost.bytes_written) / bandwidth)
