"""The allocator's rules on closed forms, and as invariants over random histories."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from torchgauge.errors import UsageError
from torchgauge.predict import AllocatorSettings, Block, CachingAllocator, Event, OutOfMemory, replay, smallest_limit

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        # The rest of the 12 MiB segment is not worth splitting, so it counts as allocated.
        (11 * MIB + 1, 12 * MIB, 12 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
    ],
)
def test_sizes_of_one_request(asked: int, allocated: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(asked)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (allocated, reserved)


def test_nothing_is_allocated_for_no_bytes() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(0))
    assert allocator.reserved_bytes == 0


def test_the_smallest_free_block_is_reused_and_neighbours_merge() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(64 * MIB), allocator.allocate(32 * MIB)
    allocator.free(large)
    allocator.free(small)
    first = allocator.allocate(20 * MIB)
    assert first is not None
    assert allocator.reserved_bytes == 96 * MIB
    second = allocator.allocate(12 * MIB)  # the rest of the 32 MiB segment
    assert second is not None
    assert second.before is first
    allocator.free(first)
    allocator.free(second)
    assert allocator.allocate(32 * MIB) is not None
    assert allocator.reserved_bytes == 96 * MIB


def test_streams_do_not_share_blocks() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(64 * MIB))
    allocator.allocate(64 * MIB, stream=1)
    assert allocator.reserved_bytes == 128 * MIB


def test_cached_segments_are_given_back_before_memory_runs_out() -> None:
    allocator = CachingAllocator(limit_bytes=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert allocator.retries == 1
    assert allocator.reserved_bytes == 80 * MIB
    with pytest.raises(OutOfMemory):
        allocator.allocate(30 * MIB)


def test_a_split_segment_is_not_given_back() -> None:
    allocator = CachingAllocator(limit_bytes=100 * MIB)
    block = allocator.allocate(60 * MIB)
    allocator.free(block)
    allocator.allocate(4 * MIB)  # taken from the 60
    with pytest.raises(OutOfMemory):
        allocator.allocate(60 * MIB)


def test_expandable_segments_grow_by_pages_and_have_no_holes() -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True))
    first = allocator.allocate(30 * MIB)
    assert allocator.reserved_bytes == 40 * MIB
    second = allocator.allocate(30 * MIB)
    assert allocator.reserved_bytes == 60 * MIB
    allocator.free(first)
    allocator.free(second)
    allocator.allocate(60 * MIB)
    assert allocator.reserved_bytes == 60 * MIB


def test_free_pages_of_an_expandable_segment_are_given_back() -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True))
    first, second, third = (allocator.allocate(20 * MIB) for _ in range(3))
    allocator.free(second)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 40 * MIB
    allocator.allocate(20 * MIB)
    assert allocator.reserved_bytes == 60 * MIB
    assert first is not None
    assert third is not None


def test_blocks_above_the_largest_split_stay_whole() -> None:
    allocator = CachingAllocator(AllocatorSettings.parse("max_split_size_mb:32"))
    allocator.free(allocator.allocate(64 * MIB))
    allocator.allocate(8 * MIB)  # does not take the oversize block
    assert allocator.reserved_bytes == 84 * MIB
    allocator.allocate(50 * MIB)  # within 20 MiB of it: takes it whole
    assert allocator.reserved_bytes == 84 * MIB
    assert allocator.allocated_bytes == 72 * MIB


def test_settings_are_read_from_the_environment_variable() -> None:
    text = "expandable_segments:True,max_split_size_mb:64,roundup_power2_divisions:[256:1,512:2,>:4],backend:native"
    settings = AllocatorSettings.parse(text)
    assert settings.expandable_segments
    assert settings.max_split_bytes == 64 * MIB
    assert settings.roundup_power2_divisions == ((256, 1), (512, 2), (0, 4))
    with pytest.raises(UsageError, match="max_split_size_mb"):
        AllocatorSettings.parse("max_split_size_mb:much")


@pytest.mark.parametrize(("asked", "rounded"), [(1200, 1280), (1024, 1024), (1300, 1536), (5000, 5120)])
def test_sizes_are_rounded_between_powers_of_two(asked: int, rounded: int) -> None:
    # Closed form: the next multiple of a quarter of the power of two below, from 4 * 512 bytes on; else of 512.
    settings = AllocatorSettings.parse("roundup_power2_divisions:4")
    expected = rounded if asked > 4 * 512 else -(-asked // 512) * 512
    assert settings.round(asked) == expected


@pytest.mark.parametrize("options", ["", "expandable_segments:True", "max_split_size_mb:16"])
@pytest.mark.parametrize("seed", range(4))
def test_blocks_never_overlap_and_add_up(options: str, seed: int) -> None:
    draw = random.Random(seed)
    allocator = CachingAllocator(AllocatorSettings.parse(options), limit_bytes=3 << 30)
    held: list[Block | None] = []
    for _ in range(2000):
        if held and (draw.random() < 0.5 or len(held) > 60):
            allocator.free(held.pop(draw.randrange(len(held))))
        else:
            held.append(allocator.allocate(int(2 ** draw.uniform(4, 25))))
        if draw.random() < 0.01:
            allocator.empty_cache()
    used = sorted((block.address, block.address + block.nbytes) for block in held if block is not None)
    assert all(end <= start for (_, end), (start, _) in pairwise(used))
    assert allocator.allocated_bytes == sum(end - start for start, end in used)
    free = sum(b.nbytes for pool in (allocator._small, allocator._large) for b in pool.blocks.values())
    assert allocator.reserved_bytes == allocator.allocated_bytes + free
    for block in held:
        allocator.free(block)
    allocator.empty_cache()
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)


def test_the_smallest_limit_is_found_by_search() -> None:
    events = [Event(0, 60 * MIB), Event(0, 0), Event(1, 80 * MIB), Event(2, 30 * MIB)]

    def succeeds(limit: int) -> bool:
        try:
            replay(events, CachingAllocator(limit_bytes=limit))
        except OutOfMemory:
            return False
        return True

    # The cached 60 MiB are given back on the way; without a limit 170 would be reserved.
    assert smallest_limit(succeeds, 0, 170 * MIB) == 110 * MIB
