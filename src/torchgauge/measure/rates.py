"""How fast this machine multiplies matrices, copies memory and runs small ops. `calibrate` runs it in a separate
process:

    python -m torchgauge.measure.rates cpu float32 bfloat16 copy tanh pass-524288

It prints one line of JSON when a part begins and when it ends: an instruction that the processor lacks kills the
process, and the last line shows in which part.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import psutil
import torch

COPY = "copy"
# Single ops of a processor: calls per second, elements per second, and bytes per second of passes over tensors of
# 128 KiB to 32 MiB with their results, so that each cache has one.
CALL, DEPTHWISE, TANH, GELU, STD = "call", "depthwise", "tanh", "gelu", "std"
PASSES = {f"pass-{size}": size for size in (1 << 17, 1 << 19, 1 << 21, 1 << 23, 1 << 25)}
PACE = (CALL, DEPTHWISE, TANH, GELU, STD, *PASSES)
# A matmul grows until it takes long enough and is large enough to keep all units busy; then it is repeated for a while.
_LONG_ENOUGH_S = 0.03
_SMALLEST, _LARGE_ENOUGH, _LARGEST = 256, 1024, 8192
_REPEAT_S = 0.4
# Seconds for each part of the pace, and for the calls that are timed at once: reading the clock of a process takes
# 0.4 to 0.7 µs, as long as a small op.
_PACE_S, _GROUP_S = 0.06, 1e-3
_TIMED_LAUNCHES = 4
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_MEBI = 2**20


def main(device: str, parts: Sequence[str]) -> None:
    target = torch.device(device)
    for part in parts:
        report({"begin": part})
        report({"end": part} | outcome(part, target))


def report(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def outcome(part: str, device: torch.device) -> dict[str, object]:
    try:
        with torch.inference_mode():
            if part in PACE:
                return {"rate": op_rate(part, device)}
            return {"rate": copy_rate(device) if part == COPY else matmul_rate(part, device)}
    # The exception for arithmetic that a device lacks differs from op to op.
    except (RuntimeError, NotImplementedError, TypeError, AttributeError, ValueError) as error:
        return {"reason": (str(error).strip().splitlines() or [type(error).__name__])[0]}


def matmul_rate(dtype: str, device: torch.device) -> float:
    """Operations per second of square matmuls, the best of all that were tried."""
    size, best = _SMALLEST, 0.0
    while True:
        run = matmul(dtype, size, device)
        seconds = best_time(run, device, 0.0)
        best = max(best, 2 * size**3 / seconds)
        if seconds >= _REPEAT_S:
            return best
        if size >= _LARGEST or (size >= _LARGE_ENOUGH and seconds >= _LONG_ENOUGH_S):
            return max(best, 2 * size**3 / best_time(run, device, _REPEAT_S))
        size *= 2


def matmul(dtype: str, size: int, device: torch.device) -> Callable[[], object]:
    if dtype in ("float32", "tf32"):
        if dtype == "tf32" and device.type != "cuda":
            raise NotImplementedError("only CUDA devices have TF32")
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    if dtype == "int8":
        c, d = (torch.randint(-8, 8, (size, size), dtype=torch.int8, device=device) for _ in range(2))
        return lambda: torch._int_mm(c, d.t())
    numbers = {"tf32": torch.float32, "float8": torch.float8_e4m3fn}.get(dtype) or getattr(torch, dtype)
    a, b = (torch.randn(size, size, device=device).to(numbers) for _ in range(2))
    if dtype == "float8":
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    return lambda: torch.mm(a, b)


def copy_rate(device: torch.device) -> float:
    """Bytes read plus bytes written per second, from one buffer to another, both beyond every cache."""
    nbytes = buffer_bytes(device)
    source = torch.ones(nbytes, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2 * nbytes / best_time(lambda: target.copy_(source), device, _REPEAT_S)


def op_rate(part: str, device: torch.device) -> float:
    """The rate of one part of `PACE`."""
    done = 1
    if part == CALL:
        one = torch.ones(1, device=device)
        run = partial(torch.add, one, one)
    elif part == DEPTHWISE:
        image, weight = torch.ones(1, 32, 14, 14, device=device), torch.ones(32, 1, 3, 3, device=device)
        run = partial(torch.nn.functional.conv2d, image, weight, padding=1, groups=32)
    elif part in (TANH, GELU, STD):
        rows = torch.linspace(-2, 2, 1 << 14, device=device).view(64, 256)
        gelu = partial(torch.nn.functional.gelu, rows, approximate="tanh")
        run = {TANH: partial(torch.tanh, rows), GELU: gelu, STD: partial(torch.std, rows, -1)}[part]
        done = rows.numel()
    else:
        done = PASSES[part]
        a, b, result = torch.ones(3, done // 12, device=device)
        run = partial(torch.add, a, b, out=result)

    def several() -> None:
        for _ in range(calls):
            run()

    calls = 1
    while best_time(several, device, 0.0) < _GROUP_S:
        calls *= 2
    return done * calls / best_time(several, device, _PACE_S)


def buffer_bytes(device: torch.device) -> int:
    """Four times the last cache, within an eighth of the free memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return min(1024 * _MEBI, free // 8)
    return min(max(256 * _MEBI, 4 * last_cache_bytes()), psutil.virtual_memory().available // 8)


def last_cache_bytes(caches: Path = _CACHES) -> int:
    """The largest cache of a core, 64 MiB if unknown."""
    sizes = [path.read_text().strip() for path in caches.glob("index*/size")]
    known = [int(size[:-1]) * 1024 for size in sizes if size.endswith("K") and size[:-1].isdigit()]
    return max(known, default=64 * _MEBI)


def best_time(run: Callable[[], object], device: torch.device, seconds: float) -> float:
    """The shortest of several runs; the first warms up, and a very long one is not repeated."""
    # With one thread, processor time is used, which other work on the machine does not affect.
    clock = process_time if torch.get_num_threads() == 1 else perf_counter

    def once(run: Callable[[], object]) -> float:
        if device.type != "cuda":
            start = clock()
            run()
            return clock() - start
        # Several launches between two events, so that the device never waits for the next.
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(_TIMED_LAUNCHES):
            run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / _TIMED_LAUNCHES * 1e-3

    times = [once(run)]
    until = perf_counter() + seconds
    while times[0] < _REPEAT_S and (len(times) < 4 or perf_counter() < until):
        times.append(once(run))
    return min(times)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], sys.argv[2:])
