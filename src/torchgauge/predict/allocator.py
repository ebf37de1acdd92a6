"""torch's CUDA caching allocator, replayed on sizes alone.

The rules are those of c10/cuda/CUDACachingAllocator.cpp, the constants those of c10/core/AllocatorConfig.h (torch 2.6
to 2.13). Requests are rounded to 512 bytes; those up to 1 MiB come from segments of 2 MiB, larger ones up to 10 MiB
from segments of 20 MiB, the rest from separate segments, rounded to 2 MiB. The smallest free block of the stream that
is large enough is taken, the lowest address among equals; it is split if the rest is worth keeping. If CUDA has no
memory left, the request is tried again after cached segments are released.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from torchgauge.errors import UsageError

MIN_BLOCK_BYTES = 512
SMALL_BYTES = 1 << 20
SMALL_SEGMENT_BYTES = 2 << 20
MIN_LARGE_BYTES = 10 << 20
LARGE_SEGMENT_BYTES = 20 << 20
ROUND_LARGE_BYTES = 2 << 20
UNLIMITED = 1 << 62

# Addresses of simulated segments are far enough apart for an expandable one to grow to any device's size.
_ADDRESS_STEP = 1 << 44


class OutOfMemory(Exception):  # noqa: N818 what torch raises is named so
    """The allocator could not serve a request, even after releasing everything it can."""

    def __init__(self, asked_bytes: int, reserved_bytes: int) -> None:
        super().__init__(f"{asked_bytes} bytes asked for with {reserved_bytes} reserved")
        self.asked_bytes, self.reserved_bytes = asked_bytes, reserved_bytes


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """The options of PYTORCH_CUDA_ALLOC_CONF that affect device memory; sizes in bytes."""

    expandable_segments: bool = False
    max_split_bytes: int = UNLIMITED
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    # (up to this size in MiB, divisions between two powers of two), the last one for all that is larger
    roundup_power2_divisions: tuple[tuple[int, int], ...] = ()
    garbage_collection_threshold: float = 0.0
    large_segment_bytes: int = LARGE_SEGMENT_BYTES

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """The value of PYTORCH_CUDA_ALLOC_CONF; options that do not affect device memory are ignored."""
        settings, rest = cls(), text.replace(" ", "")
        while rest:
            key, colon, rest = rest.partition(":")
            if not colon:
                raise UsageError(f"PYTORCH_CUDA_ALLOC_CONF: '{key}' has no value")
            if rest.startswith("["):  # a value in brackets may contain commas and colons
                value, _, rest = rest[1:].partition("]")
                rest = rest.removeprefix(",")
            else:
                value, _, rest = rest.partition(",")
            try:
                settings = settings._with(key, value)
            except ValueError as error:
                raise UsageError(f"PYTORCH_CUDA_ALLOC_CONF: '{value}' is not a value of {key}") from error
        return settings

    def _with(self, key: str, value: str) -> AllocatorSettings:
        if key == "expandable_segments":
            return replace(self, expandable_segments=value.lower() == "true")
        if key == "max_split_size_mb":
            return replace(self, max_split_bytes=int(value) << 20)
        if key == "max_non_split_rounding_mb":
            return replace(self, max_non_split_rounding_bytes=int(value) << 20)
        if key == "garbage_collection_threshold":
            return replace(self, garbage_collection_threshold=float(value))
        if key == "large_segment_size_mb":
            return replace(self, large_segment_bytes=int(value) << 20)
        if key == "roundup_power2_divisions":
            pairs = [pair.split(":") for pair in value.split(",") if pair] if ":" in value else [["0", value]]
            divisions = tuple((0 if limit == ">" else int(limit), int(count)) for limit, count in pairs)
            return replace(self, roundup_power2_divisions=divisions)
        return self

    def round(self, nbytes: int) -> int:
        """Bytes taken for a request."""
        if nbytes < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        divisions = self._divisions_of(nbytes)
        if divisions > 1 and nbytes > MIN_BLOCK_BYTES * divisions:
            power = 1 << (nbytes.bit_length() - 1)
            if power == nbytes:
                return nbytes
            step = power // divisions
            return nbytes if step == 0 else -(-nbytes // step) * step
        return -(-nbytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES

    def _divisions_of(self, nbytes: int) -> int:
        # The interval of a size is that of the power of two below it.
        for limit_mib, divisions in self.roundup_power2_divisions:
            if limit_mib == 0 or (1 << (nbytes.bit_length() - 1)) <= limit_mib << 20:
                return divisions
        return 0

    def segment_bytes(self, nbytes: int) -> int:
        """The size of a new segment for a rounded request."""
        if nbytes <= SMALL_BYTES:
            return SMALL_SEGMENT_BYTES
        if nbytes < MIN_LARGE_BYTES:
            return self.large_segment_bytes
        return -(-nbytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


class Block:
    """A piece of a segment; its neighbours in the segment are `before` and `after`."""

    __slots__ = (
        "address",
        "after",
        "before",
        "born",
        "is_expandable",
        "is_mapped",
        "is_used",
        "nbytes",
        "pool",
        "stream",
    )

    def __init__(self, address: int, nbytes: int, pool: Pool, stream: int, *, is_expandable: bool = False) -> None:
        self.address, self.nbytes, self.pool, self.stream = address, nbytes, pool, stream
        self.is_used = False
        self.is_expandable = is_expandable
        self.is_mapped = True
        self.before: Block | None = None
        self.after: Block | None = None
        self.born = 0  # the pool's count of searches when it was put there; for garbage collection

    @property
    def is_split(self) -> bool:
        return self.before is not None or self.after is not None


class Pool:
    """Free blocks in the order that they are searched: by stream, size and address."""

    def __init__(self, *, is_small: bool) -> None:
        self.is_small = is_small
        self.keys: list[tuple[int, int, int]] = []
        self.blocks: dict[int, Block] = {}
        self.unmapped: dict[int, Block] = {}
        self.searches = 0

    def add(self, block: Block) -> None:
        block.born = self.searches
        insort(self.keys, (block.stream, block.nbytes, block.address))
        self.blocks[block.address] = block

    def remove(self, block: Block) -> None:
        del self.keys[bisect_left(self.keys, (block.stream, block.nbytes, block.address))]
        del self.blocks[block.address]


class CachingAllocator:
    """`limit_bytes` is the most that may be reserved, as `set_per_process_memory_fraction` sets it; a device's capacity
    acts the same way."""

    def __init__(self, settings: AllocatorSettings | None = None, limit_bytes: int = UNLIMITED) -> None:
        self.settings = settings or AllocatorSettings()
        self.limit_bytes = limit_bytes
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0
        self.retries = 0
        self._small, self._large = Pool(is_small=True), Pool(is_small=False)
        self._next_address = _ADDRESS_STEP
        self._rounded: dict[int, int] = {}  # by the bytes asked for

    def allocate(self, nbytes: int, stream: int = 0) -> Block | None:
        """None for zero bytes, for which torch allocates nothing."""
        if nbytes == 0:
            return None
        size = self._rounded.get(nbytes)
        if size is None:
            size = self._rounded[nbytes] = self.settings.round(nbytes)
        pool = self._small if size <= SMALL_BYTES else self._large
        block = self._find(pool, size, stream) or self._obtain(pool, size, stream)
        if self._is_worth_splitting(block, size):
            rest = block
            block = Block(rest.address, size, pool, stream, is_expandable=rest.is_expandable)
            block.before, block.after = rest.before, rest
            if rest.before is not None:
                rest.before.after = block
            rest.before = block
            rest.address += size
            rest.nbytes -= size
            pool.add(rest)
        block.is_used = True
        self.allocated_bytes += block.nbytes
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return block

    def free(self, block: Block | None) -> None:
        if block is None:
            return
        self.allocated_bytes -= block.nbytes
        block.is_used = False
        for neighbour in (block.before, block.after):
            if neighbour is not None and not neighbour.is_used:
                self._merge(block, neighbour)
        block.pool.add(block)

    def empty_cache(self) -> None:
        """Release every segment that is completely free, and the free pages of expandable ones."""
        for pool in (self._large, self._small):
            free = list(pool.blocks.values())
            for block in free:
                if not block.is_expandable and not block.is_split:
                    self._release(block)
            for block in free:
                if block.is_expandable:
                    self._unmap(block)

    def reset_peaks(self) -> None:
        self.peak_allocated_bytes, self.peak_reserved_bytes = self.allocated_bytes, self.reserved_bytes

    def _find(self, pool: Pool, size: int, stream: int) -> Block | None:
        if self.settings.garbage_collection_threshold > 0 and self.limit_bytes < UNLIMITED:
            pool.searches += 1
        keys = pool.keys
        index = bisect_left(keys, (stream, size, 0))
        if index == len(keys) or keys[index][0] != stream:
            return None
        block = pool.blocks[keys[index][2]]
        if block.is_expandable:
            # The last block of a segment counts with the size it can grow to, so that inner blocks are filled first.
            while block.is_expandable and index + 1 < len(keys) and keys[index + 1][0] == stream:
                following = pool.blocks[keys[index + 1][2]]
                if _expandable_bytes(following) >= _expandable_bytes(block):
                    break
                index, block = index + 1, following
        most = self.settings.max_split_bytes
        if size < most <= block.nbytes:
            return None
        if size >= most and block.nbytes >= size + self.settings.max_non_split_rounding_bytes:
            return None
        del keys[index], pool.blocks[block.address]
        return block

    def _obtain(self, pool: Pool, size: int, stream: int) -> Block:
        if self.settings.garbage_collection_threshold > 0 and self.limit_bytes < UNLIMITED:
            self._collect_garbage()
        block = self._new_segment(pool, size, stream)
        if block is None and self._release_oversize(pool, size, stream):
            block = self._new_segment(pool, size, stream)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._new_segment(pool, size, stream)
        if block is None:
            raise OutOfMemory(size, self.reserved_bytes)
        return block

    def _new_segment(self, pool: Pool, size: int, stream: int) -> Block | None:
        nbytes = self.settings.segment_bytes(size)
        if self.reserved_bytes + nbytes > self.limit_bytes:
            return None
        if self.settings.expandable_segments:
            return self._expand(pool, size, stream)
        block = Block(self._next_address, nbytes, pool, stream)
        self._next_address += _ADDRESS_STEP
        self._reserve(nbytes)
        return block

    def _reserve(self, nbytes: int) -> None:
        self.reserved_bytes += nbytes
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes

    def _is_worth_splitting(self, block: Block, size: int) -> bool:
        rest = block.nbytes - size
        if block.pool.is_small or self.settings.expandable_segments:
            return rest >= MIN_BLOCK_BYTES
        return size < self.settings.max_split_bytes and rest > SMALL_BYTES

    def _merge(self, block: Block, other: Block | None) -> bool:
        """Merge a neighbour into `block` if it is free too."""
        if other is None or other.is_used or other.is_mapped != block.is_mapped:
            return False
        if other.is_mapped:
            other.pool.remove(other)
        else:
            del other.pool.unmapped[other.address]
        if block.before is other:
            block.address = other.address
            block.before = other.before
            if block.before is not None:
                block.before.after = block
        else:
            block.after = other.after
            if block.after is not None:
                block.after.before = block
        block.nbytes += other.nbytes
        return True

    def _release(self, block: Block) -> None:
        self.reserved_bytes -= block.nbytes
        block.pool.remove(block)

    def _release_oversize(self, pool: Pool, size: int, stream: int) -> bool:
        """With `max_split_size_mb`: release one cached block that is large enough, or several of the largest."""
        most = self.settings.max_split_bytes
        if most == UNLIMITED:
            return False
        wanted = max(size, most)
        index = bisect_left(pool.keys, (stream, wanted, 0))
        if index < len(pool.keys) and pool.keys[index][0] == stream:
            self._release(pool.blocks[pool.keys[index][2]])
            return True
        oversize = [key for key in pool.keys[:index] if key[0] == stream and key[1] >= most]
        released = 0
        while oversize and released < wanted:
            block = pool.blocks[oversize.pop()[2]]
            if not block.is_expandable:
                released += block.nbytes
                self._release(block)
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Release whole free segments, the oldest first, until less than the threshold is reserved."""
        threshold = int(self.settings.garbage_collection_threshold * self.limit_bytes)
        if self.reserved_bytes <= threshold:
            return
        target, reclaimed = self.reserved_bytes - threshold, 0
        pool = self._large
        while reclaimed < target:
            whole = [b for b in pool.blocks.values() if not b.is_split and not b.is_expandable]
            if not whole:
                return
            average = sum(pool.searches - block.born for block in whole) / len(whole)
            old = [block for block in whole if pool.searches - block.born >= average]
            for block in old:
                if reclaimed >= target:
                    break
                reclaimed += block.nbytes
                self._release(block)

    # Expandable segments: one range of addresses per stream and pool, its pages mapped as they are needed.

    def _expand(self, pool: Pool, size: int, stream: int) -> Block | None:
        block = self._find_expandable(pool, size, stream)
        if not block.is_mapped and not self._map(block, min(block.nbytes, size)):
            return None
        while block.nbytes < size:
            following = block.after
            assert following is not None
            if not self._map(following, min(size - block.nbytes, following.nbytes)):
                return None
            block = following
        pool.remove(block)
        return block

    def _find_expandable(self, pool: Pool, size: int, stream: int) -> Block:
        for address in sorted(pool.unmapped):
            block = pool.unmapped[address]
            if block.stream != stream:
                continue
            if block.before is not None and not block.before.is_used:
                block = block.before
            room, part = 0, block
            while room < size and part is not None and not part.is_used:
                room += part.nbytes
                part = part.after  # type: ignore[assignment]
            if room >= size:
                return block
        block = Block(self._next_address, _ADDRESS_STEP // 2, pool, stream, is_expandable=True)
        block.is_mapped = False
        self._next_address += _ADDRESS_STEP
        pool.unmapped[block.address] = block
        return block

    def _map(self, block: Block, nbytes: int) -> bool:
        """Back the start of an unmapped block by whole pages; it merges with free neighbours that are mapped."""
        page = SMALL_SEGMENT_BYTES if block.pool.is_small else self.settings.large_segment_bytes
        mapped = min(-(-nbytes // page) * page, block.nbytes)
        if self.reserved_bytes + mapped > self.limit_bytes:
            return False
        pool = block.pool
        del pool.unmapped[block.address]
        block.is_mapped = True
        if mapped < block.nbytes:
            rest = Block(block.address + mapped, block.nbytes - mapped, pool, block.stream, is_expandable=True)
            rest.is_mapped = False
            rest.before, rest.after = block, block.after
            if rest.after is not None:
                rest.after.before = rest
            block.after, block.nbytes = rest, mapped
            pool.unmapped[rest.address] = rest
        self._merge(block, block.before)
        self._merge(block, block.after)
        pool.add(block)
        self._reserve(mapped)
        return True

    def _unmap(self, block: Block) -> None:
        pool = block.pool
        page = SMALL_SEGMENT_BYTES if pool.is_small else self.settings.large_segment_bytes
        base = block.address // _ADDRESS_STEP * _ADDRESS_STEP
        start = base - (base - block.address) // page * page
        end = base + (block.address + block.nbytes - base) // page * page
        if start >= end:
            return
        pool.remove(block)
        self._cut(block, start, before=True)
        self._cut(block, end, before=False)
        block.is_mapped = False
        self.reserved_bytes -= block.nbytes
        self._merge(block, block.before)
        self._merge(block, block.after)
        pool.unmapped[block.address] = block

    def _cut(self, block: Block, address: int, *, before: bool) -> None:
        """Split a block at an address; the rest becomes a free block."""
        nbytes = address - block.address if before else block.address + block.nbytes - address
        if nbytes == 0:
            return
        piece = Block(block.address if before else address, nbytes, block.pool, block.stream, is_expandable=True)
        if before:
            piece.before, piece.after = block.before, block
            if piece.before is not None:
                piece.before.after = piece
            block.before, block.address = piece, address
        else:
            piece.before, piece.after = block, block.after
            if piece.after is not None:
                piece.after.before = piece
            block.after = piece
        block.nbytes -= nbytes
        block.pool.add(piece)


def _expandable_bytes(block: Block) -> int:
    following = block.after
    return block.nbytes + (following.nbytes if following is not None and not following.is_mapped else 0)


class Event(NamedTuple):
    """An allocation (`nbytes` > 0) or the free of an earlier one with the same number (`nbytes` 0)."""

    number: int
    nbytes: int
    stream: int = 0


def replay(events: Iterable[Event], allocator: CachingAllocator, held: dict[int, Block | None] | None = None) -> None:
    """Run events through an allocator; `held` are the blocks that are in use, by number."""
    blocks = {} if held is None else held
    for number, nbytes, stream in events:
        if nbytes:
            blocks[number] = allocator.allocate(nbytes, stream)
        else:
            allocator.free(blocks.pop(number))


def smallest_limit(succeeds: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest limit, to 2 MiB, under which a replay succeeds; it succeeds under `high` and cannot below `low`."""
    step = ROUND_LARGE_BYTES
    first, last = low // step, -(-high // step)
    while first < last:
        middle = (first + last) // 2
        if succeeds(middle * step):
            last = middle
        else:
            first = middle + 1
    return last * step
