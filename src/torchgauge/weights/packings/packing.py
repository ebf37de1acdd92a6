"""What a layout gives: the values of a packed tensor in bounded blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint.index import Entry
from torchgauge.weights.symbols import symbol_of, values_of

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


_PLAIN = frozenset(
    {"float32", "float64", "float16", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
)
# The bytes of a scale type that numpy has none for, and of FP4 (E2M1): sign, two bits of exponent, one of mantissa.
E4M3, E8M0, E2M1 = "float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn_x2"


def is_readable(entry: Entry | None, *dtypes: str) -> bool:
    """Contiguous, and of one of the types."""
    return entry is not None and entry.spec.stride is None and (not dtypes or entry.spec.dtype in dtypes)


def stored(entry: Entry, read: Read, start: int = 0, stop: int | None = None) -> NDArray[Any]:
    """The elements from `start` to `stop`, flat: integers and wide floats as they are, other types as their codes."""
    width = entry.spec.itemsize
    end = entry.elements if stop is None else stop
    kind = entry.spec.dtype if entry.spec.dtype in _PLAIN else f"uint{8 * width}"
    dtype = np.dtype(kind).newbyteorder(">" if entry.big_endian else "<")
    return np.frombuffer(read(entry, start * width, (end - start) * width), dtype).astype(kind, copy=False)


def numbers(entry: Entry, read: Read, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
    """The values of the elements."""
    found = stored(entry, read, start, stop)
    dtype = entry.spec.dtype
    if dtype == "bfloat16":
        return (found.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return found.astype(np.float32) if dtype in _PLAIN else table(dtype)[found]


def table(dtype: str) -> NDArray[np.float32]:
    """What each code of a small type stands for."""
    pattern = symbol_of(dtype).pattern
    assert pattern is not None, f"{dtype} has no table"
    with np.errstate(over="ignore"):
        return values_of(pattern).astype(np.float32)


def nibbles(packed: NDArray[np.uint8], *, high_first: bool = False) -> NDArray[np.uint8]:
    """Two codes from each byte."""
    low, high = packed & 15, packed >> 4
    return np.stack((high, low) if high_first else (low, high), axis=-1).reshape(*packed.shape[:-1], -1)


def unpack_words(words: NDArray[np.uint32], bits: int) -> NDArray[np.uint8]:
    """Codes packed along the first dimension as one stream of bits, the lowest first: 3 bits fill 3 words with 32."""
    unit = unit_words(bits)
    count = 32 * unit // bits
    grouped = words.reshape(-1, unit, *words.shape[1:])
    codes = np.empty((grouped.shape[0], count, *words.shape[1:]), np.uint8)
    mask = np.uint32((1 << bits) - 1)
    for index in range(count):
        word, shift = divmod(index * bits, 32)
        found = grouped[:, word] >> np.uint32(shift)
        if shift + bits > 32:
            found = found | (grouped[:, word + 1] << np.uint32(32 - shift))
        codes[:, index] = found & mask
    return codes.reshape(-1, *words.shape[1:])


def unit_words(bits: int) -> int:
    """Words of 32 bits after which codes start at a word again."""
    return 3 if bits == 3 else 1
