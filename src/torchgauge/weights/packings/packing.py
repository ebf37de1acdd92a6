"""The interface of a packing layout, reading its parts, and the statistics of the dequantized values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint import Entry
from torchgauge.registry import Registry
from torchgauge.weights.passes import tally_bytes
from torchgauge.weights.pruning import unstructured_pruning
from torchgauge.weights.statistics import NOT_STORED, value_statistics
from torchgauge.weights.symbols import symbol_of, values_of
from torchgauge.weights.tally import Tally, empty_tally, merge_tallies

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Spread, TensorFigures

# Bytes of a contiguous tensor: the entry, the first byte, how many.
ReadBytes = Callable[[Entry, int, int], bytes]
Tensors = Mapping[str, Entry]
# Values per block: 4 MiB as float32, whatever the size of the tensor.
BLOCK_VALUES = 1 << 20


class Block(NamedTuple):
    """Consecutive values and their stored codes, both flat."""

    values: NDArray[np.float32]
    codes: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Packing:
    """`blocks` yields the values in row-major order of `shape`; with `is_transposed`, the weight is the transpose of
    that matrix. `bits` is the width of a code."""

    layout: str
    bits: int
    shape: tuple[int, ...]
    blocks: Callable[[], Iterator[Block]]
    is_transposed: bool = False


Layout = Callable[[Entry, Tensors, ReadBytes], Packing | None]
# A layout returns None for a tensor that is packed differently or whose parts do not match.
LAYOUTS: Registry[str, Layout] = Registry("packing layout")
layout = LAYOUTS.register


def sibling(tensors: Tensors, entry: Entry, own: str, other: str) -> Entry | None:
    """The tensor whose name ends in `other` where that of `entry` ends in `own`."""
    if not entry.name.endswith(own):
        return None
    return tensors.get(entry.name.removesuffix(own) + other)


def row_steps(rows: int, columns: int, unit: int = 1) -> Iterator[tuple[int, int]]:
    """Ranges of rows that fill a block, in multiples of `unit`."""
    step = max(BLOCK_VALUES // max(columns, 1) // unit, 1) * unit
    return ((start, min(start + step, rows)) for start in range(0, rows, step))


_NUMPY_DTYPES = frozenset(
    {"float32", "float64", "float16", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
)
# Types without a numpy equivalent: scales, and FP4 (E2M1: sign, two exponent bits, one mantissa bit).
E4M3, E8M0, E2M1 = "float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn_x2"


def is_readable(entry: Entry | None, *dtypes: str) -> bool:
    """Whether the tensor exists, is contiguous and has one of the types (any, if none is given)."""
    return entry is not None and entry.spec.stride is None and (not dtypes or entry.spec.dtype in dtypes)


def read_elements(entry: Entry, read: ReadBytes, start: int = 0, stop: int | None = None) -> NDArray[Any]:
    """The elements from `start` to `stop`, flat: as numpy values if numpy has the type, otherwise as codes."""
    width = entry.spec.itemsize
    end = entry.elements if stop is None else stop
    kind = entry.spec.dtype if entry.spec.dtype in _NUMPY_DTYPES else f"uint{8 * width}"
    dtype = np.dtype(kind).newbyteorder(">" if entry.big_endian else "<")
    return np.frombuffer(read(entry, start * width, (end - start) * width), dtype).astype(kind, copy=False)


def read_float32(entry: Entry, read: ReadBytes, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
    """The elements from `start` to `stop` as float32."""
    elements = read_elements(entry, read, start, stop)
    dtype = entry.spec.dtype
    if dtype == "bfloat16":
        return (elements.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return elements.astype(np.float32) if dtype in _NUMPY_DTYPES else value_table(dtype)[elements]


def value_table(dtype: str) -> NDArray[np.float32]:
    """The value of each code of a type of up to 16 bits."""
    pattern = symbol_of(dtype).pattern
    assert pattern is not None, f"{dtype} has no table"
    with np.errstate(over="ignore"):
        return values_of(pattern).astype(np.float32)


def nibbles(packed: NDArray[np.uint8], *, high_first: bool = False) -> NDArray[np.uint8]:
    """Split each byte into two 4-bit codes."""
    low, high = packed & 15, packed >> 4
    return np.stack((high, low) if high_first else (low, high), axis=-1).reshape(*packed.shape[:-1], -1)


def unpack_words(words: NDArray[np.uint32], bits: int) -> NDArray[np.uint8]:
    """Unpack codes along the first dimension from a bit stream, lowest bits first: 32 codes of 3 bits fill 3 words."""
    unit = unit_words(bits)
    count = 32 * unit // bits
    grouped = words.reshape(-1, unit, *words.shape[1:])
    codes = np.empty((grouped.shape[0], count, *words.shape[1:]), np.uint8)
    mask = np.uint32((1 << bits) - 1)
    for index in range(count):
        word, shift = divmod(index * bits, 32)
        code = grouped[:, word] >> np.uint32(shift)
        if shift + bits > 32:
            code = code | (grouped[:, word + 1] << np.uint32(32 - shift))
        codes[:, index] = code & mask
    return codes.reshape(-1, *words.shape[1:])


def unit_words(bits: int) -> int:
    """The number of 32-bit words after which a code starts at a word boundary again."""
    return 3 if bits == 3 else 1


class Unpacked(NamedTuple):
    """A packed tensor after one pass over its values."""

    packing: Packing
    tally: Tally
    code_counts: NDArray[np.int64]


def find_packing(entry: Entry, tensors: Mapping[str, Entry], read: ReadBytes) -> Packing | None:
    """How the tensor is packed; None if it is not, or in an unknown layout. `tensors` contains its scales."""
    if entry.shared_with is not None or not entry.logical_elements or not _is_contiguous(entry):
        return None
    packings = (layout(entry, _ContiguousTensors(tensors), read) for layout in LAYOUTS.values())
    return next((packing for packing in packings if packing is not None), None)


def _is_contiguous(entry: Entry) -> bool:
    return entry.offset is not None and entry.spec.stride is None


class _ContiguousTensors(Mapping[str, Entry]):
    """The tensors that are contiguous in one file: layouts read parts of them. A view, because there may be many."""

    def __init__(self, tensors: Mapping[str, Entry]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Entry:
        entry = self._tensors[name]
        if not _is_contiguous(entry):
            raise KeyError(name)
        return entry

    def __iter__(self) -> Iterator[str]:
        return (name for name, entry in self._tensors.items() if _is_contiguous(entry))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def unpack(entry: Entry, tensors: Mapping[str, Entry], read: ReadBytes) -> Unpacked | None:
    """Tally the dequantized values; None if the tensor is not packed in a known layout."""
    packing = find_packing(entry, tensors, read)
    if packing is None:
        return None
    total = empty_tally("float32")
    code_counts = np.zeros(1 << packing.bits, np.int64)
    for block in packing.blocks():
        values = np.ascontiguousarray(block.values, np.float32)
        total = merge_tallies(total, tally_bytes(values.view(np.uint8), "float32"))
        code_counts += np.bincount(block.codes, minlength=len(code_counts))
    return Unpacked(packing, total, code_counts)


def dequantized_figures(unpacked: Unpacked) -> TensorFigures:
    """The additional figures of a packed tensor's row."""
    statistics = value_statistics(unpacked.tally)
    of_values = cast("Spread", {key: value for key, value in statistics.items() if key not in NOT_STORED})
    total = int(unpacked.code_counts.sum())
    shares = [count / total for count in unpacked.code_counts.tolist() if count]
    return {
        "packing": {
            "layout": unpacked.packing.layout,
            "bits": unpacked.packing.bits,
            "shape": list(unpacked.packing.shape),
            "is_transposed": unpacked.packing.is_transposed,
        },
        "dequantized": {**of_values, "pruning": unstructured_pruning(unpacked.tally)},
        "code_counts": unpacked.code_counts.tolist(),
        # Bits of information per code; + 0.0 turns the −0 of a single code into 0.
        "code_entropy_bits": -math.fsum(share * math.log2(share) for share in shares) + 0.0 if shares else None,
    }
