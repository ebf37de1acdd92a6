"""Measured memory of a run: what torch allocated, and the growth of the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch

from torchgauge.measure.joining import Joined
from torchgauge.measure.profile import Profiled

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Memory, Moment, Pattern

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


def allocation_peak(run: Profiled, *, on_device: bool) -> int:
    """The most bytes that torch held at once beyond what it held before the run."""
    held = peak = 0
    for allocation in run.allocations:
        if allocation.on_device == on_device:
            held += allocation.nbytes
            peak = max(peak, held)
    return peak


def timeline(run: Profiled, joined: Mapping[int, Joined], *, on_device: bool) -> list[Moment]:
    """By op: bytes held when it ended, and bytes it held only while it worked (workspace)."""
    moments = [(a.at_ns, a.nbytes) for a in run.allocations if a.on_device == on_device]
    rows: list[Moment] = []
    held = place = 0
    for index, call in sorted(joined.items(), key=lambda item: item[1].event.start_ns):
        while place < len(moments) and moments[place][0] < call.event.start_ns:
            held += moments[place][1]
            place += 1
        before = peak = held
        while place < len(moments) and moments[place][0] < call.event.end_ns:
            held += moments[place][1]
            peak = max(peak, held)
            place += 1
        rows.append({"op": index, "held_bytes": held, "workspace_bytes": peak - max(before, held)})
    return rows


def process_peak(run: Callable[[], object]) -> Memory:
    """The growth of the process's resident memory over a run; exact where the kernel keeps the peak (Linux)."""
    process = psutil.Process()
    before = process.memory_info().rss
    try:
        _CLEAR.write_text("5")
        is_exact = True
    except OSError:
        is_exact = False
    run()
    peak = process.memory_info().rss
    if is_exact:
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        peak = int(line.split()[1]) * 1024
    return {
        "rss_before_bytes": before,
        "rss_peak_bytes": peak,
        "rss_growth_bytes": max(0, peak - before),
        "rss_method": "peak kept by the kernel" if is_exact else "read after the run: the peak may have been higher",
    }


def cuda_peak(run: Callable[[], object], device: torch.device) -> Memory:
    """What torch's CUDA allocator held at most over a run: in tensors (allocated), and from the driver (reserved)."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    # In split blocks: free, but too small for a larger tensor, and not returned to the driver.
    split = torch.cuda.memory_stats(device).get("inactive_split_bytes.all.peak", 0)
    return {
        "cuda_before_bytes": before,
        "cuda_split_peak_bytes": split,
        "cuda_allocated_peak_bytes": torch.cuda.max_memory_allocated(device),
        "cuda_reserved_peak_bytes": torch.cuda.max_memory_reserved(device),
    }


def allocation_pattern(runs: Sequence[Profiled], *, on_device: bool) -> Pattern:
    """The allocations of a run: how many, of what sizes, and how often memory is reused."""
    sizes = sorted(a.nbytes for a in runs[-1].allocations if a.on_device == on_device and a.nbytes > 0) if runs else []
    if not sizes:
        return {"allocations": 0}
    total = sum(sizes)
    peak = allocation_peak(runs[-1], on_device=on_device)
    # Counts by power of two: the key is the upper bound in bytes.
    counts: dict[str, int] = {}
    for size in sizes:
        bound = str(1 << max(0, (size - 1).bit_length()))
        counts[bound] = counts.get(bound, 0) + 1
    return {
        "allocations": len(sizes),
        "total_bytes": total,
        "median_bytes": sizes[len(sizes) // 2],
        "largest_bytes": sizes[-1],
        # Bytes asked for over the run per byte of the peak: how often the same memory is used again.
        "reuse": total / peak if peak else None,
        "by_size": counts,
    }


def fragmentation(figures: Memory) -> Pattern:
    """The share of the memory taken from the driver that lies in pieces; unknown for the CPU's allocator."""
    reserved = figures.get("cuda_reserved_peak_bytes")
    if reserved is None:
        return {"fragmentation": None, "fragmentation_reason": "the CPU's allocator does not report its free pieces"}
    share = (figures.get("cuda_split_peak_bytes") or 0) / reserved if reserved else None
    return {"fragmentation": share, "fragmentation_reason": None}
