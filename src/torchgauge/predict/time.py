"""Time and energy of a run on a device: a time for every op, then two queues, the host's launches and the device's.

Where a figure comes from, best first: `measured` (kernels of this kind of device), `published` (NVIDIA's tables of bf16
matrix products and attention), `carried over` (from a similar device that was measured: the part that the roof explains
scales with the roof, the rest with a multiprocessor's speed), `data sheet` (the same from a device of another kind, or
the roofline of a kind of kernel that was not measured, with a wide interval).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import exp2, sqrt
from typing import NamedTuple

from torchgauge.cost import Call, assess
from torchgauge.errors import UsageError
from torchgauge.facts import (
    Compiled,
    ModuleForecast,
    OpForecast,
    OpRecord,
    Signature,
    TensorSpec,
    enclosing_paths,
    tensor_specs,
)
from torchgauge.facts.predictions import Bound
from torchgauge.hardware import Peaks, listed_devices, published_peaks
from torchgauge.predict.coordinates import Place, cold_inputs, is_silent, locate
from torchgauge.predict.devices import Device, find_device
from torchgauge.predict.host import CUDNN_ATTENTION, Host
from torchgauge.predict.kernel_tables import DISTANCES, CallKey, Estimate, KernelTable, Located, Rates, load_table
from torchgauge.predict.published import published_seconds
from torchgauge.registry import summed

MEASURED, PUBLISHED, CARRIED, DATA_SHEET = "measured", "published", "carried over", "data sheet"
EAGER, GRAPH, COMPILED = EXECUTIONS = ("eager", "graph", "compiled")
HOST: Bound = "host"
COMPUTE: Bound = "compute"
MEMORY: Bound = "memory"
LAUNCH: Bound = "launch"

# The device whose kernels are in the package.
_ORIGIN, _ORIGIN_TABLES = "h200", "h200_sxm"
# Half of a 90 % interval in octaves, used without held-out kernels; by family, from comparing the H200's kernels with
# the published tables of other devices (benchmarks/forecast_transfer.py, docs/accuracy.md). Published
# attention is a whole layer, with kernels that torch does not run: its figures are given a wide interval.
_UNSURE = {MEASURED: 0.25, PUBLISHED: 0.35, CARRIED: 0.6, DATA_SHEET: 1.0}
_UNSURE_BY_FAMILY = {
    (PUBLISHED, "matmul"): 0.5, (PUBLISHED, "attention"): 1.55, (CARRIED, "matmul"): 0.6, (CARRIED, "attention"): 0.8,
    (DATA_SHEET, "matmul"): 1.0, (DATA_SHEET, "attention"): 1.0,
}  # fmt: skip
# The share of an op's error (of its variance) that all ops of a run have in common. With it 93 % of 535 runs of the
# collection's models lie within their interval, each from the kernels of the others (tools/kernels/kernel_tables.py).
_SHARED_ERROR = 0.3
# Half of a 90 % interval, in octaves, for the part of a run that the sum of its kernels does not include.
_RUN_ERROR = 0.12
_NEAR_CLASS = 2  # of distance to the nearest measured kernel, for a kernel of a model that was not measured


@dataclass(frozen=True)
class Energy:
    """Watts of the idle device, and in addition of one that is busy with anything: all of it with a kernel that moves
    `full_bytes` or more, a part of it with a smaller one. Joules per operation by type and per byte (those that an op
    reads from memory, and the rest); no more than the limit."""

    idle_w: float
    busy_w: float
    full_bytes: float
    per_flop_j: Mapping[str, float]
    per_byte_j: float
    per_cold_byte_j: float
    limit_w: float
    low: float
    high: float

    def joules(self, place: Place) -> float:
        """Energy of a kernel's work, in addition to the power of an idle or busy device during that time."""
        rate = self.per_flop_j.get(place.rate) or self.per_flop_j.get("float32", 0.0)
        warm = place.nbytes - place.cold_bytes
        return place.flops * rate + warm * self.per_byte_j + place.cold_bytes * self.per_cold_byte_j

    def kernel_w(self, nbytes: float) -> float:
        """Watts while a kernel runs that moves so many bytes, in addition to the idle power."""
        return self.busy_w * min(nbytes / self.full_bytes, 1.0)


@dataclass(frozen=True)
class Profile:
    """A device: its roof, kernels measured on it or on the H200, its host, its energy."""

    name: str
    title: str
    rates: Rates
    table: KernelTable | None
    source: str
    host: Host
    energy: Energy | None
    published: tuple[str, str] | None = None  # tables, and whether they are of this device or a similar one
    multiprocessors: int = 1
    is_serial: bool = False  # the host computes: a CPU
    unsure_times: float = 1.0  # how much wider than usual its intervals are

    def carry(self, seconds: float, place: Place, origin: Rates, multiprocessors: int) -> float:
        """The time here of a kernel that takes `seconds` on a device with these rates. The part that the roof explains
        scales with the roof. The rest is spent by multiprocessors that wait or are too few: part of that is latency,
        which is similar on all devices, and part is the speed of one multiprocessor, so it scales with the square root
        of that speed (the exponent with the least error over the published tables of four devices)."""
        beyond_launch = seconds - min(origin.launch_s * place.launches, 0.8 * seconds)
        # Less than the roof where the kernel reads from the cache.
        at_roof = min(origin.work_seconds(place), beyond_launch)
        times_roof = self.rates.work_seconds(place) / max(origin.work_seconds(place), 1e-12)
        # How much longer one multiprocessor of this device takes for the same arithmetic.
        times_one = origin.rate(place.rate) / multiprocessors * self.multiprocessors / self.rates.rate(place.rate)
        waiting = (beyond_launch - at_roof) * sqrt(times_one)
        return self.rates.launch_s * place.launches + at_roof * times_roof + waiting


class KernelTime(NamedTuple):
    seconds: float
    unsure: float  # half of a 90 % interval, in octaves
    source: str
    roof_s: float
    bound: Bound


@dataclass(frozen=True)
class RunTime:
    """A run: seconds and joules with their 90 % intervals, and its ops."""

    device: str
    execution: str
    time_s: float
    low_s: float
    high_s: float
    energy_j: float | None
    energy_low_j: float | None
    energy_high_j: float | None
    bound: Bound
    ops: list[OpForecast]
    device_s: float
    host_s: float
    sources: dict[str, float] = field(default_factory=dict)  # share of the device's time by source


# Compute capabilities whose kernels and memory are like the H200's: they reach about the same share of their roof.
_LIKE_ORIGIN = ((9, 0), (8, 0), (10, 0), (10, 3))
# How many octaves wider the interval is for a device with kernels of other libraries. An assumption: none was compared.
_OTHER_LIBRARIES = 1.6


@cache
def profile_of(device: Device | str) -> Profile:
    """The profile of a device, by its name."""
    found = find_device(device) if isinstance(device, str) else device
    own = load_table(found.name)
    origin = own or load_table(_ORIGIN)
    peaks = peaks_of_device(found)
    other = CARRIED if found.has_cuda and found.chip.capability in _LIKE_ORIGIN else DATA_SHEET
    source = MEASURED if own is not None else other
    launch_s = origin.rates.launch_s if origin is not None else 2e-6
    rates = own.rates if own is not None else Rates(_rates_of(peaks), float(peaks.bytes_per_s or 1e12), launch_s)
    facts = origin.facts.get("energy") if origin is not None else None
    measured = Energy(*(facts[item.name] for item in fields(Energy))) if facts else None
    return Profile(
        found.name,
        found.title,
        rates,
        origin,
        source,
        Host.of(None),
        _energy_of(measured, origin, peaks, is_own=own is not None),
        published=_published_tables(found),
        multiprocessors=found.chip.multiprocessors,
        unsure_times=1.0 if found.has_cuda else _OTHER_LIBRARIES,
    )


def _published_tables(device: Device) -> tuple[str, str] | None:
    """The published tables for a device, and how they are used: its own, or those of the same architecture."""
    listed = device.listed
    if listed is None or not (listed.tables or listed.similar_tables):
        return None
    return (listed.tables, PUBLISHED) if listed.tables else (str(listed.similar_tables), CARRIED)


@cache
def _device_of_tables(tables: str) -> str:
    """The device that published tables are of."""
    return next(listed.short for listed in listed_devices() if listed.tables == tables)


def packaged_name(title: str) -> str | None:
    """The device with this driver name, if the package has its kernels."""
    names = (listed.short for listed in listed_devices() if title in listed.spellings)
    return next((name for name in names if load_table(name) is not None), None)


def peaks_of_device(device: Device) -> Peaks:
    """From the data sheet; a device that is given only by its memory size has none."""
    peaks = device.listed.peaks if device.listed is not None else published_peaks(device.title)
    if peaks is None or peaks.bytes_per_s is None:
        raise UsageError(f"the speed of '{device.name}' is not known: name a device, such as h200, a100 or rtx4090")
    if "float32" not in peaks.flops_per_s:
        raise UsageError(f"the arithmetic rate of '{device.name}' is not published: only its memory can be predicted")
    return peaks


def _rates_of(peaks: Peaks) -> dict[str, float]:
    """Types that a device has no units for run at the rate of float32."""
    known = dict(peaks.flops_per_s)
    for name in ("tf32", "float16", "bfloat16"):
        known.setdefault(name, known["float32"])
    return known


def _energy_of(measured: Energy | None, origin: KernelTable | None, peaks: Peaks, *, is_own: bool) -> Energy | None:
    """Energy of another device: peak power divided as for the origin, idle power by the limit."""
    if measured is None or origin is None or peaks.watts is None:
        return None
    if is_own:
        return measured
    times = peaks.watts / measured.limit_w
    own = _rates_of(peaks)
    per_flop = {
        name: joules * times * origin.rates.rate(name) / own.get(name, own["float32"])
        for name, joules in measured.per_flop_j.items()
    }
    moved = times * origin.rates.bytes_per_s / float(peaks.bytes_per_s or 1)
    idle, busy = measured.idle_w * times, measured.busy_w * times
    warm, cold = measured.per_byte_j * moved, measured.per_cold_byte_j * moved
    return Energy(idle, busy, measured.full_bytes / moved * times, per_flop, warm, cold, peaks.watts, 0.6, 1.6)


def kernel_time(profile: Profile, place: Place, estimate: Estimate | None = None) -> KernelTime:
    """The time of an op's kernels; `estimate` is what the profile's table says, where that is known already."""
    work = profile.rates.work_seconds(place)
    launch = profile.rates.launch_s * place.launches
    if work < launch:
        bound = LAUNCH
    else:
        is_compute = place.flops / profile.rates.rate(place.rate) >= place.nbytes / profile.rates.bytes_per_s
        bound = COMPUTE if is_compute else MEMORY
    table = profile.table
    if estimate is None and table is not None:
        estimate = table.estimate(place)
    published = _published_time(profile, place, estimate)
    if published is not None:
        return KernelTime(*published, work, bound)
    if table is None or estimate is None:
        return KernelTime(1.5 * profile.rates.seconds(place), _UNSURE[DATA_SHEET], DATA_SHEET, work, bound)
    seconds = exp2(estimate.log_s)
    unsure = half_width(table, place.family, estimate.reach)
    if profile.source == MEASURED:
        # The kind of kernel may be one that was not measured: then its time is the roofline's, as of similar kinds.
        source = MEASURED if estimate.reach < len(DISTANCES) else DATA_SHEET
        return KernelTime(seconds, unsure, source, work, bound)
    carried = profile.carry(seconds, place, table.rates, find_device(table.device).chip.multiprocessors)
    far = _unsure(profile.source, place.family) * profile.unsure_times
    return KernelTime(carried, sqrt(unsure**2 + far**2), profile.source, work, bound)


def _unsure(source: str, family: str) -> float:
    return _UNSURE_BY_FAMILY.get((source, family), _UNSURE[source])


def half_width(table: KernelTable, family: str, reach: int) -> float:
    spread = table.spread.get(family)
    if not spread:
        return _UNSURE[MEASURED] * (1 + reach / 3)
    return float(spread[min(reach, len(spread) - 1)][0])


def _published_time(profile: Profile, place: Place, estimate: Estimate | None) -> tuple[float, float, str] | None:
    """From the published tables: for the measured device only if its own kernels are far away, for other devices first.
    The tables give the ratio of a device to the H200, whose kernels were measured as torch runs them."""
    if profile.published is None:
        return None
    name, source = profile.published
    is_near = estimate is not None and estimate.reach < len(DISTANCES)  # the kind was measured
    if profile.source == MEASURED and is_near:
        return None
    seconds = published_seconds(name, place)
    if seconds is None:
        return None
    unsure = _unsure(PUBLISHED, place.family)
    known = published_seconds(_ORIGIN_TABLES, place)
    if estimate is not None and is_near and known is not None and profile.table is not None:
        seconds *= exp2(estimate.log_s) / known
        unsure = sqrt(_UNSURE[PUBLISHED] ** 2 + half_width(profile.table, place.family, estimate.reach) ** 2)
    if source == PUBLISHED:
        return seconds, unsure, PUBLISHED
    # Of another device of the same architecture.
    twin = profile_of(_device_of_tables(name))
    carried = profile.carry(seconds, place, twin.rates, twin.multiprocessors)
    return carried, sqrt(unsure**2 + _UNSURE[CARRIED] ** 2), CARRIED


def predict_kernel(
    op: str,
    arguments: Mapping[str, object],
    outputs: Sequence[TensorSpec],
    device: Device | Profile | str,
    *,
    is_cold: bool = True,
) -> KernelTime:
    """One op without a model around it, arguments by their schema names: `predict_kernel("aten::mm", {"self": a,
    "mat2": b}, (c,), "h200")` with a `TensorSpec` for each tensor. `is_cold`: the inputs come from memory, not from the
    cache."""
    profile = device if isinstance(device, Profile) else profile_of(device)
    inputs = tuple(tensor_specs(arguments))
    found = assess(Call(op, arguments, tuple(outputs), inputs))
    plain = {name: value for name, value in arguments.items() if not isinstance(value, TensorSpec)}
    signature = Signature(op, "", found.category, found.status, (), inputs, tuple(outputs), plain, found.cost, 0)
    return kernel_time(profile, locate(signature, [is_cold] * len(inputs)))


def predict_ops(
    ops: Sequence[OpRecord],
    device: Device | Profile | str,
    *,
    execution: str = EAGER,
    module_calls: int = 0,
    host: Host | None = None,
    compiled: Compiled | None = None,
    new_lengths: Collection[int] = (),
) -> RunTime:
    """The time of the ops of one run, in the order in which they run. `module_calls` is how often a module is called:
    part of what the host has to do. `compiled` has the kernels of a compiled run, where Inductor was asked.
    `new_lengths` are lengths of keys that no earlier run had (each step of decoding has one): in eager execution
    cuDNN's attention builds a plan for each."""
    if execution not in EXECUTIONS:
        raise UsageError(f"no execution '{execution}'; one of: {', '.join(EXECUTIONS)}")
    profile = device if isinstance(device, Profile) else profile_of(device)
    profile = profile if host is None else replace(profile, host=host)
    if execution == COMPILED:
        from torchgauge.predict.fusion import fused, fused_by

        ops = fused(ops) if compiled is None else fused_by(compiled, ops)
    kernels = _kernels(profile, ops)
    devices = [0.0 if kernel is None else kernel.time.seconds for kernel in kernels]
    hosts, later = [0.0] * len(ops), [0.0] * len(ops)
    if execution == EAGER and ops:
        hosts, later = _hosts(profile, ops, module_calls, new_lengths)
    counts = Counter(map(id, kernels))
    distinct = [
        (kernel, counts[key]) for key, kernel in {id(one): one for one in kernels}.items() if kernel is not None
    ]
    # Half of the 90 % interval of the run, in octaves; equal calls err alike.
    share = combined_error([(kernel.time.seconds * count, kernel.time.unsure) for kernel, count in distinct])
    # Python asks for a value: the host goes on when the device has computed it.
    waits = [op.signature.op == _VALUE_READ and op.phase == "forward" for op in ops]
    ends = simulate_queues(devices, hosts, later, waits, is_serial=profile.is_serial)
    total = ends[-1] if ends else 0.0
    low, high = (
        simulate_queues(
            [s * device_times for s in devices],
            [s * host_times for s in hosts],
            [s * host_times for s in later],
            waits,
            is_serial=profile.is_serial,
        )
        for device_times, host_times in ((exp2(-share), profile.host.low), (exp2(share), profile.host.high))
    )
    rows = _rows(ops, kernels, ends, profile)
    least_s, most_s = low[-1] if low else 0.0, high[-1] if high else 0.0
    energy = _run_energy(profile.energy, distinct, (total, least_s, most_s), share)
    by_source = summed((kernel.time.source, kernel.time.seconds * count) for kernel, count in distinct)
    device_s = sum(devices)
    return RunTime(
        profile.name,
        execution,
        total,
        least_s,
        most_s,
        *energy,
        bound=_bound(rows, sum(hosts), device_s, profile),
        ops=rows,
        device_s=device_s,
        host_s=sum(hosts),
        sources={name: seconds / device_s for name, seconds in by_source.items()} if device_s else {},
    )


class _Kernel(NamedTuple):
    """The kernels of a call in a run, which equal calls share. `own_j` is the energy of their work without the device's
    power, which is `busy_w` more than that of an idle one; `times` is half of their 90 % interval as a factor."""

    time: KernelTime
    place: Place
    own_j: float
    busy_w: float
    times: float
    roof_share: float | None


_MAX_LOCATED_CALLS = 1 << 14
_VALUE_READ = "aten::_local_scalar_dense"


def _kernels(profile: Profile, ops: Sequence[OpRecord]) -> list[_Kernel | None]:
    """One entry per op, None if it launches nothing. Equal calls are looked up once."""
    # Kernels take longer in a run than repeated: clocks fall, and the code of each has to be fetched.
    table = profile.table
    facts = {} if table is None else table.facts
    factor, launch_s = (float(facts.get(name, usual)) for name, usual in (("run_factor", 1.0), ("run_launch_s", 0.0)))
    located = {} if table is None else table.located
    keys: list[CallKey | None] = []
    silent: dict[int, bool] = {}
    wanted: dict[CallKey, Signature] = {}
    # A CPU's kernels were measured as a model meets them: weights from memory, the rest from the cache.
    everywhere = [()] * len(ops) if profile.is_serial else cold_inputs(ops)
    for op, cold in zip(ops, everywhere, strict=True):
        signature = op.signature
        call = id(signature)
        launches_nothing = silent.get(call)
        if launches_nothing is None:
            launches_nothing = silent[call] = is_silent(signature)
        # An optimizer that reads its step count keeps it on the host; a fused one does not read it.
        reads_step = op.phase == "optimizer" and signature.op == _VALUE_READ and not profile.is_serial
        if launches_nothing or reads_step:
            keys.append(None)
            continue
        key = (call, cold)
        wanted[key] = signature
        keys.append(key)
    fresh = {key: locate(signature, key[1]) for key, signature in wanted.items() if key not in located}
    estimates = [None] * len(fresh) if table is None else table.estimates([*fresh.values()])
    for (key, place), estimate in zip(fresh.items(), estimates, strict=True):
        located[key] = Located(wanted[key], place, estimate)
    known: dict[CallKey | None, _Kernel] = {}
    for key in wanted:
        _, place, estimate = located[key]
        alone = kernel_time(profile, place, estimate)
        seconds = alone.seconds * factor + launch_s
        own_j = 0.0 if profile.energy is None else profile.energy.joules(place)
        busy_w = 0.0 if profile.energy is None else profile.energy.kernel_w(place.nbytes)
        time = KernelTime(seconds, alone.unsure, alone.source, alone.roof_s, alone.bound)
        known[key] = _Kernel(time, place, own_j, busy_w, exp2(time.unsure), time.roof_s / seconds if seconds else None)
    if len(located) > _MAX_LOCATED_CALLS:
        located.clear()
    return [known.get(key) for key in keys]


def run_error(profile: Profile) -> float:
    """Half of the 90 % interval, in octaves, of a run of many kernels at a usual distance from measured ones."""
    table = profile.table
    own = _UNSURE[MEASURED] if table is None else half_width(table, "convolution", _NEAR_CLASS)
    source = profile.published[1] if profile.published and profile.source != MEASURED else profile.source
    far = 0.0 if source == MEASURED else _UNSURE[source] * profile.unsure_times
    return sqrt(_SHARED_ERROR * (own**2 + far**2) + _RUN_ERROR**2)


def combined_error(parts: Sequence[tuple[float, float]], shared: float = _SHARED_ERROR) -> float:
    """Half of the 90 % interval of a sum of times, each given with its half, in octaves: their errors are partly
    independent and partly common, since kernels of one model are similar."""
    total = sum(seconds for seconds, _ in parts)
    if not total:
        return 0.0
    widths = [seconds / total * unsure for seconds, unsure in parts]
    apart, together = sum(width**2 for width in widths), sum(widths) ** 2
    return sqrt((1 - shared) * apart + shared * together + _RUN_ERROR**2)


def _hosts(
    profile: Profile, ops: Sequence[OpRecord], module_calls: int, new_lengths: Collection[int]
) -> tuple[list[float], list[float]]:
    """Host time of each op, an even share of the modules' calls included, and how much of that comes after
    its first kernel."""
    host, trains = profile.host, any(op.phase == "backward" for op in ops)
    each = module_calls * host.module_seconds(trains=trains) / len(ops)
    if profile.is_serial:  # what an op takes the host is in its own time
        return [each + (host.view_s if is_silent(op) else 0.0) for op in ops], [0.0] * len(ops)
    planned: set[int] = set()
    known: dict[tuple[int, str], tuple[float, float]] = {}  # equal calls in one phase take as long
    whole, later = [], []
    for op in ops:
        key = (id(op.signature), op.phase)
        times = known.get(key)
        if times is None:
            times = each + host.seconds(op, trains=trains), host.later_seconds(op.signature, trains=trains)
            known[key] = times
        seconds, later_s = times
        if new_lengths and op.op == CUDNN_ATTENTION and id(op.signature) not in planned:
            planned.add(id(op.signature))
            seconds += host.plan_s if op.signature.inputs[1].shape[-2] in new_lengths else 0.0
        whole.append(seconds)
        later.append(later_s)
    return whole, later


# Number of kernels that fit in a CUDA stream's queue; when it is full, the host waits.
_QUEUED_KERNELS = 1024


def simulate_queues(
    devices: Sequence[float], hosts: Sequence[float], later: Sequence[float], waits: Sequence[bool], *, is_serial: bool
) -> list[float]:
    """When each op ends: the host launches one op after the other, and the device runs them in order. Of an op with
    several kernels the device runs the first while the host launches the others, which takes `later` of the op's host
    time. On a CPU host and device alternate."""
    ends, host, busy = [], 0.0, 0.0
    done: list[float] = []  # of the device's kernels
    for device_s, host_s, later_s, is_waiting in zip(devices, hosts, later, waits, strict=True):
        # Comparisons instead of `max`: this runs three times for every op of a forecast.
        host += host_s
        if is_serial:
            host += device_s
        elif device_s:
            if len(done) >= _QUEUED_KERNELS and done[-_QUEUED_KERNELS] > host:
                host = done[-_QUEUED_KERNELS]
            start = host - later_s
            busy = (start if start > busy else busy) + device_s
            busy = host if host > busy else busy
            done.append(busy)
        if is_waiting and busy > host:
            host = busy
        ends.append(busy if busy > host else host)
    return ends


def _rows(
    ops: Sequence[OpRecord], kernels: Sequence[_Kernel | None], ends: Sequence[float], profile: Profile
) -> list[OpForecast]:
    rows: list[OpForecast] = []
    before, low, high, energy = 0.0, profile.host.low, profile.host.high, profile.energy
    described: dict[int, tuple[str | None, list[list[int]]]] = {}  # by signature: its type, its outputs
    for op, kernel, end in zip(ops, kernels, ends, strict=True):
        took = end - before if end > before else 0.0
        before = end if end > before else before
        call = op.signature
        description = described.get(id(call))
        if description is None:
            description = described[id(call)] = call.dtype, [list(spec.shape) for spec in call.outputs]
        dtype, shapes = description
        if kernel is None:
            rows.append({
                "index": op.index, "op": call.op, "module": op.module, "phase": op.phase, "category": call.category,
                "time_s": took, "low_s": took * low, "high_s": took * high, "device_s": 0.0, "energy_j": None,
                "source": MEASURED, "bound": HOST, "roof_share": None, "flops": 0.0, "nbytes": 0.0, "dtype": dtype,
                "output_shapes": shapes,
            })  # fmt: skip
            continue
        seconds, _, source, _, bound = kernel.time
        times = kernel.times
        # Time beyond the kernel's own is the device waiting for the host.
        waits = took - seconds if took > seconds else 0.0
        busy = seconds if took > seconds else took
        joules = None
        if energy is not None:
            drawn_j = kernel.own_j + kernel.busy_w * seconds + energy.idle_w * took
            most_j = energy.limit_w * (took if took > seconds else seconds)
            joules = drawn_j if drawn_j < most_j else most_j
        rows.append({
            "index": op.index, "op": call.op, "module": op.module, "phase": op.phase, "category": call.category,
            "time_s": took, "low_s": busy / times + waits * low, "high_s": busy * times + waits * high,
            "device_s": seconds, "energy_j": joules, "source": source, "bound": HOST if waits > seconds else bound,
            "roof_share": kernel.roof_share, "flops": kernel.place.flops, "nbytes": kernel.place.nbytes,
            "dtype": dtype, "output_shapes": shapes,
        })  # fmt: skip
    return rows


def _run_energy(
    energy: Energy | None, kernels: Sequence[tuple[_Kernel, int]], totals: Sequence[float], share: float
) -> tuple[float | None, float | None, float | None]:
    """Joules with their 90 % interval. `kernels` come with how often each runs; `totals` are the seconds of the run,
    least seconds and most; `share` is how far the kernels' own may be off, in octaves. The uncertainty of the energy
    model is added to it."""
    if energy is None:
        return None, None, None
    spare_w = max(energy.limit_w - energy.idle_w, 0.0)
    found = []
    for total, octaves in zip(totals, (0.0, -share, share), strict=True):
        times = exp2(octaves)
        # A kernel cannot draw more power than the card's limit.
        work = sum(
            count * min(one.own_j + one.busy_w * one.time.seconds * times, spare_w * one.time.seconds * times)
            for one, count in kernels
        )
        found.append(energy.idle_w * total + work)
    return found[0], found[1] * energy.low, found[2] * energy.high


def _bound(rows: Sequence[OpForecast], host_s: float, device_s: float, profile: Profile) -> Bound:
    """The part that takes most of the time: the host if launching takes longer than the kernels, which a faster device
    would not change."""
    if not profile.is_serial and host_s > device_s:
        return HOST
    shares = summed(
        (bound, row["time_s"]) for row in rows if (bound := row["bound"]) and (bound != HOST or row["device_s"])
    )
    return max(shares, key=lambda name: shares[name]) if shares else HOST


def module_times(rows: Iterable[OpForecast]) -> list[ModuleForecast]:
    """The ops of each module and of the modules in it, in the order of their first op."""
    own: dict[str, tuple[float, float, float, float | None, int]] = {}  # of the ops in the module itself
    for row in rows:
        time_s, low_s, high_s, energy_j, ops = own.get(row["module"], (0.0, 0.0, 0.0, None, 0))
        if row["energy_j"] is not None:
            energy_j = (energy_j or 0.0) + row["energy_j"]
        own[row["module"]] = time_s + row["time_s"], low_s + row["low_s"], high_s + row["high_s"], energy_j, ops + 1
    found: dict[str, ModuleForecast] = {}
    for path, (time_s, low_s, high_s, energy_j, ops) in own.items():
        for depth, around in enumerate(enclosing_paths(path)):
            whole = found.get(around)
            if whole is None:
                whole = found[around] = {
                    "path": around, "depth": depth, "time_s": 0.0, "low_s": 0.0, "high_s": 0.0, "energy_j": None,
                    "ops": 0,
                }  # fmt: skip
            whole["time_s"] += time_s
            whole["low_s"] += low_s
            whole["high_s"] += high_s
            whole["ops"] += ops
            if energy_j is not None:
                whole["energy_j"] = (whole["energy_j"] or 0.0) + energy_j
    return [*found.values()]
