"""The time of each op: measured where a profile was taken, else predicted for the device."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import exp, hypot, log, prod, sqrt

from torchgauge.facts import FREE, OpRecord
from torchgauge.hardware import Pace, Peaks, Roof

# What eager PyTorch takes on the host for an op that does next to nothing, and for a view. Measured with torch 2.13 on
# an EPYC 9374F and an EPYC of 2 shared cores: 2 to 6 µs and 0.7 to 2 µs through nn.Module.
DISPATCH_S, VIEW_S = 4e-6, 1.2e-6
# The call of a module that does nothing.
_MODULE_S = 1.5e-6
# The processor that all figures below are of: one core of an EPYC with AVX2, in a virtual machine. Those of another are
# scaled by what `hardware.Pace` has of it; without a calibration it is assumed, with its caches as they are here.
_REFERENCE = Pace(
    call_s=1.25e-6, depthwise_s=85e-6, tanh_s=3.3e-9, gelu_s=3.5e-9, std_s=7.0e-9,
    bytes_per_s={1 << 17: 45e9, 1 << 19: 60e9, 1 << 21: 74e9, 1 << 23: 74e9, 1 << 25: 22e9},
)  # fmt: skip
# Of the rate of a large product that kernels of a category reach; what is not listed is bound by memory. From BERT,
# ResNets, VGG and attention of 49 to 3,136 tokens, torch 2.13, and the whole times of 108 models. The figures below are
# from 159 single ops of 1,024 to 2,097,152 elements and from the ops of those models: docs/advice-gains.md.
_REACHED = {"matmul": 0.88, "convolution": 0.75, "attention": 0.63, "recurrent": 0.6}
# Convolutions in groups of so many channels reach as much; with fewer than the second figure the kernel is that of
# depthwise convolutions.
_FULL_GROUP, _LEAST_GROUP, _REACHED_DEPTHWISE = 24, 8, 0.3
# Of the peak of a GPU's data sheet.
_REACHED_ON_GPU = 0.4
# Nanoseconds per element on one core, for what is computed element by element and not bound by memory: by op, by
# category, and for copies of transposed tensors.
_NS_PER_ELEMENT = {
    "tanh": 3.3, "exp": 1.1, "log": 1.1, "sin": 1.7, "cos": 1.7, "erf": 1.5, "pow": 5.0, "sigmoid": 1.0, "silu": 1.0,
    "gelu": 1.1, "softplus": 3.3, "native_batch_norm": 0.37, "var": 7.0, "std": 7.0, "var_mean": 7.0,
    "native_layer_norm": 0.5, "native_group_norm": 0.5, "_fused_rms_norm": 0.5, "linalg_vector_norm": 0.13,
    "tril": 0.7, "triu": 0.7, "cumsum": 1.0, "where": 1.3, "masked_fill": 1.7, "constant_pad_nd": 0.4,
    "_weight_norm_interface": 0.8,
    "index": 1.2, "gather": 1.2, "scatter": 1.2, "embedding": 0.2, "topk": 11.0, "_euclidean_dist": 1.7,
}  # fmt: skip
_NS_BY_CATEGORY = {"softmax": 1.25, "resize": 2.5, "sort": 20.0}
# Of these, functions that torch takes from MKL, which is fast on processors of Intel; the others are torch's own vector
# code, as that of its GELU. And kernels without vector code.
_OF_MKL = {"tanh", "exp", "log", "sin", "cos", "erf"}
_WITHOUT_VECTORS = {
    "_weight_norm_interface", "pow", "var", "std", "var_mean", "tril", "triu", "cumsum", "where", "masked_fill",
    "index", "gather", "scatter", "topk", "_euclidean_dist",
}  # fmt: skip
# Functions of complex numbers call the C library for each (50 to 86 for exp).
_FUNCTIONS, _NS_OF_COMPLEX = {"exp", "log", "sin", "cos", "tanh", "pow", "sqrt", "rsqrt", "reciprocal"}, 50.0
# A batch norm that computes its statistics, in two loops without vector code (2.6 for a weight of 512 × 4,608).
_NS_BATCH_STATISTICS = 2.5
# A copy of rows that lie apart, one that turns the innermost dimension around (0.7 to 1.5 for 11 shapes), and one whose
# elements lie a multiple of 4 KiB apart, so that they share the few lines of one set of the cache (2.3 to 3.4).
_NS_STRIDED_COPY, _NS_TURNED_COPY, _NS_ALIASED_COPY, _ALIASED_BYTES = 0.25, 1.0, 2.7, 4096
# torch has no vector code for these: a mask of bools as numbers, comparisons of floats, logic of masks that are
# broadcast; integers as floats.
_NS_OF_MASKS, _NS_OF_INTEGERS = 1.1, 0.7
# A float32 tensor with one of float64 is widened element by element, 0.55 ns; twice this, as float64 takes twice the
# time of float32 elsewhere.
_NS_WIDENED = 0.27
_COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne"}
_LOGIC = {"bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or", "logical_xor"}
# Numbers of 16 bits are widened and rounded again: functions of them take so many times as long, sums and products of
# two so many nanoseconds.
_NARROW_FUNCTIONS, _NS_NARROW = 1.5, 0.3
# Kernels of products compute blocks: a shorter side than this takes as long (32 × 512 × 3 to 256 × 512 × 48 there).
_LEAST_SIDE = 12
# For each result, what a maximum takes for each element of its window, and an average whatever its window.
_NS_MAXIMUM, _NS_AVERAGE = 4.0, 11.0
# Seconds in addition to a call's: the layouts of a convolution, the statistics of a norm, the rows of a reduction, the
# arguments of a factory, the hook of a weight norm, the Python of a linear layer (nn.Linear takes 7 to 9 µs in all),
# and each step of a recurrent layer.
_EXTRA_S = {
    "convolution": 20e-6, "attention": 30e-6, "normalization": 6e-6, "reduction": 3e-6, "allocation": 3e-6,
}  # fmt: skip
_EXTRA_DEPTHWISE_S, _EXTRA_WEIGHT_NORM_S, _EXTRA_LINEAR_S, _STEP_S = 130e-6, 15e-6, 3e-6, 6e-6
# Of the rate of a pass that is repeated, what one in a model reaches: other tensors have passed through the caches.
_IN_A_MODEL = 0.6
# Ops are shared out among threads from so many elements on.
_ELEMENTS_PER_THREAD = 32768
# A core of a current server without a calibration: 16 float32 multiply-adds a cycle at 2.5 GHz; two channels of memory.
_CORE_FLOPS_PER_S, _BYTES_PER_S = 80e9, 20e9
# The time of some ops relative to that of others is predicted to within this factor on a processor, and on a GPU with
# the processor that launches its kernels. Chosen so that ranges hold about 80 % of the changes measured so far, with a
# median width below a factor of three (docs/advice-gains.md).
UNSURE, UNSURE_ON_GPU = 1.7, 2.05
# On a processor ops that go away save more than they take: what they push out of the caches, and the Python between
# them. The median of 140 changes (docs/advice-gains.md).
BESIDES = 1.15
# The first write to a page that the allocator got from Linux: 2 µs per 4 KiB in a virtual machine without huge pages
# (40 to 128 MiB, torch 2.13); a tenth of that with huge pages, nothing where the process has kept the memory.
_FRESH_S_PER_BYTE = 0.5e-9
# glibc takes blocks from this size on from Linux at each call and gives them back (DEFAULT_MMAP_THRESHOLD_MAX of
# malloc.c); smaller ones stay with the process until twice the size of the largest one freed, or of the second figure
# (DEFAULT_MMAP_THRESHOLD_MIN), is unused at the end of its heap.
_NEVER_KEPT, _LEAST_KEPT = 32 << 20, 128 << 10
# Of these, the elements that are read are those of the result: rows of a table, parts of a tensor.
_LOOKUPS = {"index", "gather", "embedding", "index_select"}
# With other exponents `pow` is a logarithm and an exponential; these are products and roots.
_CHEAP_EXPONENTS = (2, 3, 0.5, -0.5, -1, -2)
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
    known of a device that is predicted with its host. `fresh_s` is what ops take besides where the allocator does not
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
                own = self.call_pace * (VIEW_S if op.status == FREE else DISPATCH_S + _extra(op))
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

    def saved_range(self, ops: Collection[int]) -> tuple[float, float]:
        """The least and the most that it may be, with memory that is kept between runs and with fresh memory: what is
        predicted may be wrong by `UNSURE` either way."""
        unsure = 1.0 if self.basis == "measured" else UNSURE if self.queues is None else UNSURE_ON_GPU
        besides = BESIDES if self.basis == "predicted" and self.queues is None else 1.0
        shares = [self.saved(ops)]
        if self.fresh_s:
            fresh = sum([self.fresh_s.get(index, 0.0) for index in ops])
            shares.append((shares[0] * self.total + fresh) / (self.total + sum(self.fresh_s.values())))
        least, most = (besides * share / max(1 - share, 1e-9) for share in (min(shares), max(shares)))
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


def fresh_memory(ops: Iterable[OpRecord]) -> dict[int, float]:
    """By the index of the op, the seconds for pages that no earlier run has left in the process: those of large
    results, and those by which the heap grows again after glibc has given its unused end back."""
    made = [(op, op.signature.activation_bytes) for op in ops]
    largest = max((nbytes for _, nbytes in made if nbytes < _NEVER_KEPT), default=0)
    most_unused, heap = 2 * max(largest, _LEAST_KEPT), 0
    given = max(made[0][0].live_bytes - made[0][1], 0) if made else 0  # the inputs, which live between runs
    found: dict[int, float] = {}
    for _ in range(2):  # the second run finds what the first has left
        found = {}
        for op, nbytes in made:
            live = op.live_bytes - given
            fresh = nbytes if nbytes >= _NEVER_KEPT else max(live - heap, 0)
            if fresh:
                found[op.index] = fresh * _FRESH_S_PER_BYTE
            if live > heap or heap - live > most_unused:
                heap = live
        heap = 0 if heap > most_unused else heap
    return found


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
    elif not is_cuda and (part := threads / (peaks.threads or cores or threads)) < 1:
        used = {dtype: rate * part for dtype, rate in peaks.flops_per_s.items()}
        bandwidth = min(peaks.bytes_per_s, threads * _BYTES_PER_S)  # one core does not reach that of all
        least = replace(least, peaks=replace(peaks, flops_per_s=used, bytes_per_s=bandwidth))
    found, known = {}, dict[tuple[int, str], float]()  # equal calls share a signature
    ops = list(ops)
    each = 0.0 if is_cuda else module_calls * _MODULE_S * call_pace(least.peaks) / max(len(ops), 1)
    for op in ops:
        key = (id(op.signature), op.status)
        if key not in known:
            if not is_cuda:
                known[key] = _on_processor(op, least, threads) + each
            elif op.status == FREE:
                known[key] = 0.0
            else:  # the host launches ahead: the longer of the two is what a run takes
                kernel_s = _kernel(op, least, least.peaks.bytes_per_s or _BYTES_PER_S, _REACHED_ON_GPU)
                known[key] = max(kernel_s, DISPATCH_S)
        found[op.index] = known[key]
    return found


def _on_processor(op: OpRecord, least: LeastTime, threads: int) -> float:
    pace, calls = least.peaks.pace or _REFERENCE, call_pace(least.peaks)
    if op.status == FREE:
        return VIEW_S * calls
    signature = op.signature
    bandwidth = _IN_A_MODEL * pass_rate(pace, signature.cost.bytes_read + signature.cost.bytes_written)
    name = op.op.removeprefix("aten::").removesuffix("_")
    read = () if name in _LOOKUPS or op.category == "pooling" else signature.inputs[:1]
    elements = max((spec.numel for spec in (*signature.outputs, *read)), default=0)
    sharing = min(max(threads, 1), max(elements // _ELEMENTS_PER_THREAD, 1))
    wide = 2.0 if signature.dtype == "float64" else 1.0
    has_vectors = name not in _WITHOUT_VECTORS and op.category not in ("pooling", "sort", "resize")
    is_complex, has_statistics = (signature.dtype or "").startswith("complex"), signature.attributes.get("training")
    if not has_vectors or is_complex or (has_statistics and "batch_norm" in name):
        speed = pace.std_s / _REFERENCE.std_s
    elif name in _OF_MKL:
        speed = pace.tanh_s / _REFERENCE.tanh_s
    else:
        speed = pace.gelu_s / _REFERENCE.gelu_s
    functions = elements * _ns_per_element(op, name) * wide * speed * 1e-9 / sharing
    # Of the rate of a large product.
    reached, per_group = _REACHED.get(op.category, 0.5), _group(op)
    if per_group is not None:
        reached = _REACHED_DEPTHWISE if per_group < _LEAST_GROUP else reached * min(per_group / _FULL_GROUP, 1.0)
    elif op.category == "matmul" and signature.outputs:
        side = min(signature.outputs[0].shape[-2:], default=1)
        reached *= min(side / _LEAST_SIDE, 1.0) if side > 1 else 1.0  # a vector's product is bound by memory
    return DISPATCH_S * calls + _extra(op, pace) + max(_kernel(op, least, bandwidth, reached), functions)


def call_pace(peaks: Peaks | None) -> float:
    """What a call takes on a processor, in parts of the reference's."""
    return ((peaks.pace if peaks else None) or _REFERENCE).call_s / _REFERENCE.call_s


def gelu_seconds(elements: int, peaks: Peaks | None, threads: int) -> float:
    """Of torch's GELU by tanh on a processor."""
    pace = (peaks.pace if peaks else None) or _REFERENCE
    return elements * pace.gelu_s / min(max(threads, 1), max(elements // _ELEMENTS_PER_THREAD, 1))


def pass_rate(pace: Pace, nbytes: float) -> float:
    """Bytes per second of an op that reads and writes so many: between the sizes that were measured, on a line of
    logarithms."""
    known = sorted(pace.bytes_per_s.items())
    for (small, fast), (large, slow) in pairwise(known):
        if small < nbytes < large:
            return fast * (slow / fast) ** (log(nbytes / small) / log(large / small))
    return known[0][1] if nbytes <= known[0][0] else known[-1][1]


def _group(op: OpRecord) -> int | None:
    """The channels in a group of a convolution that has groups."""
    if op.category != "convolution" or int(op.signature.attributes.get("groups") or 1) == 1:
        return None
    return op.signature.inputs[1].shape[1]


def _extra(op: OpRecord, pace: Pace = _REFERENCE) -> float:
    """What a call takes in addition to its dispatch and the work per element."""
    calls = pace.call_s / _REFERENCE.call_s
    if op.category == "recurrent" and op.signature.inputs and len(op.signature.inputs[0].shape) > 2:
        return calls * _STEP_S * max(op.signature.inputs[0].shape[:2])
    if op.category == "convolution":
        per_group = _group(op)
        if per_group is not None and per_group < _LEAST_GROUP:
            return _EXTRA_DEPTHWISE_S * pace.depthwise_s / _REFERENCE.depthwise_s
    if op.op == "aten::_weight_norm_interface":
        return calls * _EXTRA_WEIGHT_NORM_S
    if op.category == "matmul" and op.weights:
        return calls * _EXTRA_LINEAR_S
    return calls * _EXTRA_S.get(op.category, 0.0)


def _ns_per_element(op: OpRecord, name: str) -> float:
    if name == "pow" and op.signature.attributes.get("exponent") in _CHEAP_EXPONENTS:
        return 0.0
    if name == "gelu" and op.signature.attributes.get("approximate") == "tanh":
        return _REFERENCE.gelu_s * 1e9
    if "batch_norm" in name and op.signature.attributes.get("training"):
        return _NS_BATCH_STATISTICS
    if op.category == "pooling":
        window = op.signature.attributes.get("kernel_size")
        return (
            _NS_AVERAGE
            if "max" not in name
            else _NS_MAXIMUM * (prod(window) if isinstance(window, list | tuple) else 1)
        )
    if name in _FUNCTIONS and (op.signature.dtype or "").startswith("complex"):
        return _NS_OF_COMPLEX
    inputs, outputs, made = op.signature.inputs, op.signature.outputs, op.signature.dtype
    known = _NS_PER_ELEMENT.get(name) or _NS_BY_CATEGORY.get(op.category) or 0.0
    is_narrow = made in ("bfloat16", "float16") and op.category in ("elementwise", "activation")
    if known or is_narrow or not inputs or not outputs:  # aten::equal gives a number to Python
        return max(known * _NARROW_FUNCTIONS, _NS_NARROW) if is_narrow else known
    first = inputs[0]
    is_broadcast = all(spec.numel < outputs[0].numel for spec in inputs)
    if (name in _COMPARISONS and first.is_floating) or (name in _LOGIC and is_broadcast):
        return _NS_OF_MASKS
    if op.category != "copy":
        is_widened = made == "float64" and any(spec.dtype == "float32" for spec in inputs)
        return _NS_WIDENED if is_widened and op.category == "elementwise" else 0.0
    if first.dtype != made and first.dtype in ("bool", "int64", "int32"):
        return _NS_OF_MASKS if first.dtype == "bool" else _NS_OF_INTEGERS
    step = next(
        (step for size, step in zip(first.shape[::-1], (first.stride or ())[::-1], strict=False) if size > 1), 1
    )
    if step <= 1:
        return 0.0 if first.stride is None else _NS_STRIDED_COPY
    return _NS_TURNED_COPY if step * first.itemsize % _ALIASED_BYTES else _NS_ALIASED_COPY


def _kernel(op: OpRecord, least: LeastTime, bandwidth: float, reached: float) -> float:
    cost = op.signature.cost
    return max(cost.flops / (least.rate_of(op) * reached), (cost.bytes_read + cost.bytes_written) / bandwidth)
