"""Kernels of this machine: `torchgauge system --calibrate` measures them, `forecast --on this` uses them.

The table has the form of the package's table for the H200, from layers of random sizes. It is a file of numbers that
can be copied to another machine: `forecast --on kernels.npz`.
"""

from __future__ import annotations

import math
import statistics
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torchgauge.cache import kernel_file, replace_file
from torchgauge.errors import FormatError, InputError, TorchgaugeError
from torchgauge.predict.coordinates import Place, is_silent, locate
from torchgauge.predict.kernel_tables import KernelTable, Rates, held_out, read_table, write_table
from torchgauge.progress import Progress

if TYPE_CHECKING:
    import torch

    from torchgauge.predict.devices import Device
    from torchgauge.predict.kernels import Library
    from torchgauge.predict.time import Profile

Clock = Callable[[], float]
T = TypeVar("T")
# Nothing that torch runs is faster.
LAUNCH_S = 2e-6
# Limit of a layer, so that many sizes are measured in the time; larger ones are extrapolated.
_MAX_LAYER_FLOPS = {"cpu": 6e8, "cuda": 1e12}
# A processor is shared: a disturbance of one round is over in the next, so the median of three is free of it. The
# minimum is not: the kernel subtracts time that a hypervisor takes from that of a process, sometimes too much. A GPU's
# times are those of its queue.
_ROUNDS = {"cpu": 3, "cuda": 1}
# The share of the time for the first of three rounds, which also draws the layers.
_FIRST_ROUND = 0.42
# A table is far smaller; a larger archive is not one.
_MAX_TABLE_BYTES = 64 << 20


def present_profile(name: str) -> tuple[Profile, Device | None]:
    """This machine's GPU, or its processor if there is none or `name` is "cpu"; or the device of a file."""
    import torch

    from torchgauge.predict.devices import find_device
    from torchgauge.predict.host import Host
    from torchgauge.predict.time import packaged_name, profile_of

    is_cuda = name == "this" and torch.cuda.is_available()
    path = Path(name) if name.endswith(".npz") else kernel_file("cuda" if is_cuda else "cpu")
    if not path.is_file():
        what = "no such file" if name.endswith(".npz") else "run 'torchgauge system --calibrate' first"
        raise InputError(f"the kernels of '{name}' were not measured: {what}")
    table = open_table(path)
    device = find_device("this") if is_cuda else device_of(table)
    packaged = packaged_name(device.title) if device is not None else None
    if packaged is None:
        return profile_from(table), device
    # The package has more kernels of this device, in more types, than a calibration measures: it adds only the host.
    return replace(profile_of(packaged), host=Host.of(table.facts.get("host"))), device


def device_of(table: KernelTable) -> Device | None:
    """The GPU that a table was measured on; None for a processor."""
    from torchgauge.predict.devices import Chip, Device

    facts = table.facts.get("gpu")
    if not facts:
        return None
    chip = Chip(int(facts["multiprocessors"]), (int(facts["major"]), int(facts["minor"])), int(facts["threads"]))
    return Device(table.device, table.device, int(facts["bytes"]), chip, total_bytes=int(facts["bytes"]))


def open_table(path: Path) -> KernelTable:
    data = path.read_bytes()
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            size = sum(item.file_size for item in archive.infolist())
    except zipfile.BadZipFile as error:
        raise FormatError(f"'{path}' is not a table of kernels: {error}") from error
    if size > _MAX_TABLE_BYTES:
        raise FormatError(f"'{path}' is not a table of kernels: {size} bytes unpacked")
    return read_table(data, str(path))


def profile_from(table: KernelTable) -> Profile:
    from torchgauge.predict.host import Host
    from torchgauge.predict.time import MEASURED, Profile

    is_cpu = table.facts.get("kind") == "cpu"
    host = Host.of(table.facts.get("host"))
    return Profile(
        table.device, str(table.facts.get("title", table.device)), table.rates, table, MEASURED, host, None,
        is_serial=is_cpu,
    )  # fmt: skip


def calibrate_kernels(
    device: str,
    title: str,
    rates: Rates,
    measured: str,
    *,
    seconds: float = 100.0,
    progress: Progress | None = None,
    clock: Clock = time.perf_counter,
) -> Path:
    """Measure layers of many sizes for about `seconds`, and save their times. With one thread `time.process_time` is a
    clock that other processes do not disturb."""
    import torch

    from torchgauge.predict.devices import find_device
    from torchgauge.predict.host_sample import host_speed

    kind = device.partition(":")[0]
    rounds = _ROUNDS["cpu" if kind == "cpu" else "cuda"]
    taken: list[tuple[Layer, list[float]]] = []
    started = time.monotonic()
    ends, first_ends = started + seconds, started + seconds * (_FIRST_ROUND if rounds > 1 else 1.0)

    def is_over(end: float, count: int) -> bool:
        if progress is not None and count % 20 == 0:
            progress(int(100 * (time.monotonic() - started) / seconds), 100, f"{device} kernels")
        return time.monotonic() > end

    with torch.inference_mode():
        for number, layer in enumerate(drawn(device)):
            if is_over(first_ends, number):
                break
            taken.append((layer, [layer.best_seconds(device, clock)]))
        for _ in range(rounds - 1):
            for number, (layer, times) in enumerate(taken):
                if is_over(ends, number):
                    break
                times.append(layer.best_seconds(device, clock))
    found = [(layer.place, max(statistics.median(times), LAUNCH_S)) for layer, times in taken]
    host = host_speed(device, clock)
    spread, report = held_out(KernelTable.of(title, rates, found))
    facts: dict[str, object] = {"kind": kind, "title": title, "measured": measured, "host": host, "held_out": report}
    if kind == "cuda":
        gpu = find_device("this")
        major, minor = gpu.chip.capability
        facts["gpu"] = {"multiprocessors": gpu.chip.multiprocessors, "major": major, "minor": minor,
                        "threads": gpu.chip.threads_per_multiprocessor, "bytes": gpu.capacity_bytes}  # fmt: skip
    table = KernelTable.of(title, rates, found, spread=spread, facts=facts)
    path = kernel_file(kind)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, write_table(table))
    except OSError as error:
        raise TorchgaugeError(f"the kernels cannot be kept in '{path}': {error.strerror or error}") from error
    return path


@dataclass(frozen=True)
class Layer:
    """A layer and its inputs on the meta device, and the place of its only op."""

    module: torch.nn.Module
    shown: tuple[torch.Tensor, ...]
    place: Place

    def best_seconds(self, device: str, clock: Clock = time.perf_counter) -> float:
        """The fastest of a few runs. The layer is made for them, and memory is free again afterwards."""
        module = self.module.to_empty(device=device)
        try:
            for tensor in (*module.parameters(), *module.buffers()):
                tensor.fill_(1)
            run = partial(module, *(_filled(tensor, device) for tensor in self.shown))
            # In a model weights come from memory: if they are most of the bytes read, other memory is read before each
            # run.
            is_cold = sum(tensor.nbytes for tensor in module.parameters()) > self.place.nbytes / 2
            evict = partial(_evict, device) if is_cold else None
            return _fastest(run, evict, clock) if device == "cpu" else _replayed(run, evict)
        finally:
            module.to_empty(device="meta")


def _fastest(run: Callable[[], object], evict: Callable[[], None] | None, clock: Clock) -> float:
    from torchgauge.predict.host_sample import elapsed_seconds

    best, spent, runs = float("inf"), 0.0, 0
    while runs < 2 or (spent < 0.01 and runs < (8 if evict is None else 2)):
        if evict is not None:
            evict()
        took = elapsed_seconds(run, "cpu", clock)
        best, spent, runs = min(best, took), spent + took, runs + 1
        if spent > 0.1:
            break
    return best


def _replayed(run: Callable[[], object], evict: Callable[[], None] | None) -> float:
    if evict is None:
        return _replayed_seconds(run)

    def evicted() -> None:
        evict()
        run()

    return max(_replayed_seconds(evicted) - _replayed_seconds(evict), 1e-6)


# The wait of the device before each timed part (about 200 µs), so that the host has launched it when its time begins.
_HEAD_START_CYCLES = 400_000


def _replayed_seconds(run: Callable[[], object]) -> float:
    """Device time of a run: several runs in a CUDA graph, so that the host's launches do not count."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
        torch.cuda._sleep(_HEAD_START_CYCLES)
        begin.record()
        run()
        end.record()
        end.synchronize()
        once = begin.elapsed_time(end) * 1e-3
        count = min(20, max(1, math.ceil(3e-4 / max(once, 1e-6))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(count):
                run()
        times = []
        for _ in range(4):
            torch.cuda._sleep(_HEAD_START_CYCLES)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e-3 / count)
    return min(times[1:])


_evicted: dict[str, torch.Tensor] = {}


def _evict(device: str) -> None:
    import torch

    if device not in _evicted:
        _evicted[device] = torch.zeros(16 << 20, device=device)
    _evicted[device].add_(1.0)


def drawn(device: str) -> Iterator[Layer]:
    """Layers of one op each, in random order."""
    import torch

    from torchgauge.predict.devices import find_device
    from torchgauge.predict.kernels import Library
    from torchgauge.predict.layer_draw import LayerDraw

    draw = LayerDraw()
    library = Library(find_device("this").chip) if device != "cpu" else None
    while True:
        # On the meta device: drawing weights takes longer than measuring them.
        with torch.device("meta"):
            layer, shown = draw.layer()
        if library is not None:  # a GPU runs other kernels by type
            dtype = draw.pick(torch.float32, torch.bfloat16, torch.bfloat16, torch.float16)
            layer = layer.to(dtype)
            shown = tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in shown)
        place = only_place(layer.eval(), shown, library)
        if place is None or place.flops > _MAX_LAYER_FLOPS["cpu" if device == "cpu" else "cuda"]:
            continue
        yield Layer(layer, shown, place)


def _filled(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A tensor of the same shape and strides with content."""
    import torch

    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return made.fill_(0.5) if tensor.is_floating_point() else made.random_(0, 100)


def only_place(
    layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...], library: Library | None = None
) -> Place | None:
    """The place of a layer's only computing op, with the kernels of the CPU or of a CUDA device's library; None if it
    has several."""
    import torch

    from torchgauge.capture import Request, trace
    from torchgauge.predict import steps
    from torchgauge.source import candidate_inputs

    with torch.inference_mode(False):
        candidates = candidate_inputs(layer, inputs=inputs)
        if library is None:
            ops = list(trace(layer, candidates, Request(torch.device("cpu"))).ops)
        else:
            ops = steps.trace(layer, next(iter(candidates)), steps.Setting(library)).step_ops
    busy = [op for op in ops if not is_silent(op)]
    return locate(busy[0].signature) if len(busy) == 1 else None
