"""Memory needed on a device: weights, the caches of all sequences, activations, and the overhead of the process.

A server prefills one sequence at a time while the others wait with their caches, and decodes all of them together; the
larger of the two decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import TYPE_CHECKING

from torchgauge.predict.devices import Device
from torchgauge.predict.fit import ALLOCATED_MARGIN, CONTEXT_BYTES, CONTEXT_RANGE, CUBLAS_CONTEXT_BYTES, RESERVED_MARGIN

if TYPE_CHECKING:
    from torchgauge.facts.language import FitRow, HeldFacts, PointFacts


def fit_row(
    device: Device,
    context: int,
    concurrent: int,
    alone: PointFacts,
    together: PointFacts,
    cache_bytes: int,
    weights_bytes: int,
) -> FitRow:
    """`alone` is the pass of one prompt, `together` the step of all sequences, as `answers` has them; `cache_bytes` is
    the size of all caches, in the type they are stored in."""
    # Beyond the cache that is held when the pass ends, which `cache_bytes` has.
    prompt = alone["prefill"]["peak_bytes"] - sum(held["bytes"] for held in alone["cache"])
    step = together["decode"]["peak_bytes"] - sum(held["bytes"] for held in together["cache_after"])
    activation_bytes = max(prompt, step, 0)
    tensors = weights_bytes + cache_bytes + activation_bytes
    overhead = CONTEXT_BYTES + CUBLAS_CONTEXT_BYTES["forward"] + device.chip.cublas_bytes
    times = 1 if device.is_measured else 2
    narrow, wide = (1.0, 1.0) if device.is_measured else CONTEXT_RANGE
    low = int(tensors * (1 - ALLOCATED_MARGIN * times) + overhead * narrow)
    high = int(tensors * (1 + RESERVED_MARGIN * times) + overhead * wide)
    capacity = device.capacity_bytes
    return {
        "device": device.name,
        "context": context,
        "concurrent": concurrent,
        "verdict": "fits" if high <= capacity else "does not fit" if low > capacity else "too close",
        "used_bytes": tensors + overhead,
        "low_bytes": low,
        "high_bytes": high,
        "capacity_bytes": capacity,
        "weights_bytes": weights_bytes,
        "cache_bytes": cache_bytes,
        "activation_bytes": activation_bytes,
        "overhead_bytes": overhead,
        # With all tensors split evenly by tensor parallelism, a lower bound: some are repeated on every device, and
        # links need buffers too.
        "fewest_devices": ceil(tensors / (capacity - overhead)) if capacity > overhead else None,
    }


def length_of(held: HeldFacts, tokens: int) -> int | None:
    """How many of the last tokens a tensor of the cache holds: all, or those of a window; None for a fixed state."""
    shape = held["shape"]
    if len(shape) < 3:
        return None
    if tokens in shape[2:]:
        return tokens
    return int(shape[2]) if held["name"] in ("keys", "values") else None


def paged_bytes(held: Iterable[HeldFacts], tokens: int, page: int) -> int:
    """Cache memory as servers allocate it: the part that grows with the length is in pages of `page` tokens."""
    total = 0
    for one in held:
        length = length_of(one, tokens)
        total += one["bytes"] if not length else one["bytes"] // length * (ceil(length / page) * page)
    return total


def shared_bytes(held: Iterable[HeldFacts], tokens: int, prefix: int) -> int:
    """Bytes of the entries of the first `prefix` tokens in all sequences together; a window may have dropped some of
    them, and a state cannot be shared."""
    total = 0
    for one in held:
        length = length_of(one, tokens) if one["of"] == "text" else None
        if length:
            total += one["bytes"] // length * max(prefix - (tokens - length), 0)
    return total
