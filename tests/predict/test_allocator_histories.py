"""The simulated allocator against recorded histories of the real one (H200, torch 2.11): the same requests must lead to
the same segments, in the same order, and to the same peaks.

The recording is of tools/kernels/memory_device.py (`record_history`). Rows are [kind, number, bytes, stream]; kind 0
allocates, 1 frees, 2 and 3 are segments obtained and given back, 4 and 5 pages mapped and unmapped, 6 is out of memory.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from torchgauge.predict import UNLIMITED, AllocatorSettings, CachingAllocator

HISTORIES = Path(__file__).parents[1] / "data" / "allocator_histories.json.gz"
SETTINGS = {"expandable": "expandable_segments:True", "split": "max_split_size_mb:32"}


def history(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(HISTORIES.read_bytes()))[kind]
    return found


@pytest.mark.parametrize("kind", ["plain", "limit", "expandable", "split"])
def test_peaks_and_reserved_memory_follow_the_recorded_run(kind: str) -> None:
    recorded = history(kind)
    allocator = CachingAllocator(AllocatorSettings.parse(SETTINGS.get(kind, "")), recorded["limit"] or UNLIMITED)
    blocks = {}
    marks = {mark["allocations"]: mark for mark in recorded["marks"]}
    allocations = checked = 0
    for action, number, nbytes, stream in recorded["history"]:
        if action == 0:
            blocks[number] = allocator.allocate(nbytes, stream)
            allocations += 1
            if allocations in marks:
                reported = marks[allocations]
                ours = (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes, allocator.retries)
                assert ours == (reported["allocated_peak"], reported["reserved_peak"], reported["retries"])
                assert allocator.reserved_bytes == reported["reserved"]
                checked += 1
        elif action == 1:
            allocator.free(blocks.pop(number))
    assert checked == len(marks)


@pytest.mark.parametrize("kind", ["plain", "limit", "expandable", "split"])
def test_reserved_memory_grows_at_the_same_requests(kind: str) -> None:
    recorded = history(kind)
    allocator = CachingAllocator(AllocatorSettings.parse(SETTINGS.get(kind, "")), recorded["limit"] or UNLIMITED)
    blocks = {}
    reserved = 0
    for action, number, nbytes, stream in recorded["history"]:
        if action in (2, 4):
            reserved += nbytes
        elif action in (3, 5):
            reserved -= nbytes
        elif action == 0:
            blocks[number] = allocator.allocate(nbytes, stream)
            assert allocator.reserved_bytes == reserved
        elif action == 1:
            allocator.free(blocks.pop(number))
