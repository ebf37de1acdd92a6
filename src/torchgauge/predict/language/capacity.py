"""Memory needed on a device: weights, the caches of all sequences, activations, and the overhead of the process.

A server prefills one sequence at a time while the others wait with their caches, and decodes all of them together; the
larger of the two decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from torchgauge.predict import fit
from torchgauge.predict.devices import Device

if TYPE_CHECKING:
    from torchgauge.facts.language import FitRow, HeldFacts, PointFacts

FITS, TOO_CLOSE, DOES_NOT_FIT = "fits", "too close", "does not fit"


@dataclass(frozen=True)
class Need:
    """Bytes by class for some sequences of a length."""

    weights_bytes: int
    cache_bytes: int
    activation_bytes: int

    def row(self, device: Device, context: int, concurrent: int) -> FitRow:
        overhead = fit._CONTEXT_BYTES + fit._CUBLAS_CONTEXT_BYTES["forward"] + device.chip.cublas_bytes
        tensors = self.weights_bytes + self.cache_bytes + self.activation_bytes
        times = 1 if device.is_measured else 2
        narrow, wide = (1.0, 1.0) if device.is_measured else fit._CONTEXT_RANGE
        low = int(tensors * (1 - fit._ALLOCATED_MARGIN * times) + overhead * narrow)
        high = int(tensors * (1 + fit._RESERVED_MARGIN * times) + overhead * wide)
        capacity = device.capacity_bytes
        return {
            "device": device.name,
            "context": context,
            "concurrent": concurrent,
            "verdict": FITS if high <= capacity else DOES_NOT_FIT if low > capacity else TOO_CLOSE,
            "used_bytes": tensors + overhead,
            "low_bytes": low,
            "high_bytes": high,
            "capacity_bytes": capacity,
            "weights_bytes": self.weights_bytes,
            "cache_bytes": self.cache_bytes,
            "activation_bytes": self.activation_bytes,
            "overhead_bytes": overhead,
        }


def need(alone: PointFacts, together: PointFacts, cache_bytes: int, weights_bytes: int) -> Need:
    """`alone` is the pass of one prompt, `together` the step of all sequences, as `answers` has them; `cache_bytes` is
    the size of all caches, in the type they are stored in."""
    one, all_ = alone["prefill"], together["decode"]
    # Beyond the cache that is held when the pass ends, which `cache_bytes` has.
    prompt = one["peak_bytes"] - sum(held["bytes"] for held in alone["cache"])
    step = all_["peak_bytes"] - sum(held["bytes"] for held in together["cache_after"])
    return Need(weights_bytes, cache_bytes, max(prompt, step, 0))


def fewest_devices(row: FitRow) -> int | None:
    """With weights, cache and activations split evenly by tensor parallelism, a lower bound: some is repeated on every
    device, and links need buffers too."""
    room = row["capacity_bytes"] - row["overhead_bytes"]
    split = row["weights_bytes"] + row["cache_bytes"] + row["activation_bytes"]
    return ceil(split / room) if room > 0 else None


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
