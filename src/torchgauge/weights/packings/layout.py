"""What a layout gives: the values of a packed tensor in bounded blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint.index import Entry

# Bytes of a tensor as it lies contiguously: the entry, the first byte, how many.
Read = Callable[[Entry, int, int], bytes]
Names = Mapping[str, Entry]
# Values of a block: 4 MiB as float32, whatever the size of the tensor.
BLOCK_VALUES = 1 << 20


class Block(NamedTuple):
    """Consecutive values and the codes they were stored as, both flat."""

    values: NDArray[np.float32]
    codes: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Packing:
    """`blocks` gives the values in the row-major order of `shape`; torch's weight is the transpose of a matrix that
    `is_transposed`. `bits` are those of a code."""

    layout: str
    bits: int
    shape: tuple[int, ...]
    blocks: Callable[[], Iterator[Block]]
    is_transposed: bool = False


Layout = Callable[[Entry, Names, Read], Packing | None]
LAYOUTS: dict[str, Layout] = {}


def layout(name: str) -> Callable[[Layout], Layout]:
    """Register a layout. It gives None for a tensor that is not packed so, or whose parts do not fit together."""

    def register(function: Layout) -> Layout:
        if name in LAYOUTS:
            raise ValueError(f"the layout {name} is registered twice")
        LAYOUTS[name] = function
        return function

    return register


def sibling(names: Names, entry: Entry, own: str, other: str) -> Entry | None:
    """The tensor beside `entry` whose name has `other` where that of `entry` has `own` at its end."""
    if not entry.name.endswith(own):
        return None
    return names.get(entry.name.removesuffix(own) + other)


def row_steps(rows: int, columns: int, unit: int = 1) -> Iterator[tuple[int, int]]:
    """Runs of rows that fill a block, in multiples of `unit`."""
    step = max(BLOCK_VALUES // max(columns, 1) // unit, 1) * unit
    return ((start, min(start + step, rows)) for start in range(0, rows, step))
