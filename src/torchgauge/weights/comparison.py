"""Two checkpoints side by side: which tensors came, went and changed, and how far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import isfinite, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint.index import Entry, Index, Role
from torchgauge.checkpoint.wrappers import common_names
from torchgauge.errors import FormatError
from torchgauge.weights.kernels.jit import entry
from torchgauge.weights.packings.dequantize import packing_of
from torchgauge.weights.plan import plan_tensor
from torchgauge.weights.reader import Files, Reader, stamp_files
from torchgauge.weights.rows import FileRows
from torchgauge.weights.tensors import read_bytes
from torchgauge.weights.threads import Threads, in_order

Tell = Callable[[int, int, str], None]
Values = Iterator[NDArray[Any]]

PACKED = {".qweight": ".weight", ".weight_packed": ".weight", "_blocks": ""}
# A packed matrix that lies transposed is turned in memory.
TURNED_VALUES = 1 << 28


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: its tensors by the names that are compared."""

    index: Index
    entries: dict[str, Entry]


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of both, and all tensors of each side: the scales of a packed one are among them."""

    name: str
    new: Entry
    old: Entry
    new_names: dict[str, Entry]
    old_names: dict[str, Entry]


def compare(new: Index, old: Index, *, threads: int | None = None, tell: Tell | None = None) -> dict[str, Any]:
    """The `against` member of the document: what `new` has other than `old`; the largest change first."""
    sides = match_names(new, old)
    common = [name for name in sides[0].entries if name in sides[1].entries]
    names = _own_names(new), _own_names(old)
    pairs = [Pair(name, sides[0].entries[name], sides[1].entries[name], *names) for name in common]
    rows = list(_compared(pairs, threads, tell))
    compared = [row for row in rows if "relative_l2" in row]
    changed = sorted((row for row in compared if row["changed_share"]), key=_by_drift)
    return {
        "path": old.path,
        "added": [_plain(sides[0], name) for name in sides[0].entries if name not in sides[1].entries],
        "removed": [_plain(sides[1], name) for name in sides[1].entries if name not in sides[0].entries],
        "reshaped": [row for row in rows if "was" in row],
        "retyped": [row["name"] for row in compared if row["dtype"] != row["was_dtype"]],
        "changed": changed,
        "identical": len(compared) - len(changed),
        "identical_bytes": sum(row["bytes"] for row in compared if not row["changed_share"]),
        "failures": [row for row in rows if "reason" in row],
    }


def _by_drift(row: dict[str, Any]) -> tuple[bool, float, str]:
    """The largest first; what changed from nothing, or to what is no number, has no size and comes last."""
    amount = row["relative_l2"]
    is_defined = amount is not None and isfinite(amount)
    return not is_defined, -amount if is_defined else 0.0, row["name"]


def _plain(side: Side, name: str) -> dict[str, Any]:
    entry = side.entries[name]
    return {"name": name, "shape": list(entry.spec.shape), "dtype": entry.spec.dtype, "bytes": entry.nbytes}


def match_names(new: Index, old: Index) -> tuple[Side, Side]:
    """The model's tensors of both under names that fit best: with or without the wrappers that one of them has."""
    entries = _model_tensors(new), _model_tensors(old)
    ours, theirs = common_names(*({name: entry.spec.shape for name, entry in side.items()} for side in entries))
    return (
        Side(new, {name: entries[0][stored] for name, stored in ours.items()}),
        Side(old, {name: entries[1][stored] for name, stored in theirs.items()}),
    )


def _model_tensors(index: Index) -> dict[str, Entry]:
    prefix = str(index.metadata.get("model_prefix", ""))
    return {
        _unpacked_name(entry).removeprefix(prefix): entry
        for entry in index.entries
        if entry.role is not Role.OPTIMIZER and entry.logical_elements != 0 and entry.name.startswith(prefix)
    }


def _unpacked_name(entry: Entry) -> str:
    """What a packed parameter was called before."""
    suffix = next((s for s in PACKED if entry.logical_elements and entry.name.endswith(s)), None)
    return entry.name if suffix is None else entry.name.removesuffix(suffix) + PACKED[suffix]


def _own_names(index: Index) -> dict[str, Entry]:
    return {entry.name: entry for entry in index.entries}


def _compared(pairs: list[Pair], threads: int | None, tell: Tell | None) -> Iterator[dict[str, Any]]:
    total = sum(pair.new.nbytes + pair.old.nbytes for pair in pairs)
    files = {file for pair in pairs for entry in (pair.new, pair.old) for file in _files(entry)}
    done = 0
    with Files(stamp_files(files)) as reader, Threads(reader, threads) as pool:
        for pair, row in zip(pairs, in_order(partial(pool.submit, compare_pair), pairs, pool.ahead), strict=True):
            done += pair.new.nbytes + pair.old.nbytes
            if tell is not None:
                tell(done, total, pair.name)
            yield row


def _files(entry: Entry) -> Iterator[str]:
    return chain((entry.file,), (chunk.file for chunk in entry.chunks))


def compare_pair(reader: Reader, pair: Pair) -> dict[str, Any]:
    """One row: the drift; or why there is none (`reason`), or that the shape is another (`was`)."""
    try:
        new, old = _Values(reader, pair.new, pair.new_names), _Values(reader, pair.old, pair.old_names)
        if new.shape != old.shape:
            return {"name": pair.name, "shape": list(new.shape), "was": list(old.shape)}
        if new.is_complex != old.is_complex:
            raise FormatError(f"{pair.new.spec.dtype} and {pair.old.spec.dtype} have no values in common")
        found = _drift(new, old)
    except FormatError as error:
        return {"name": pair.name, "reason": str(error)}
    facts = {"shape": list(new.shape), "bytes": pair.new.nbytes}
    types = {"dtype": pair.new.spec.dtype, "was_dtype": pair.old.spec.dtype}
    return {"name": pair.name, **facts, **types, **found.figures()}


def _drift(new: _Values, old: _Values) -> Drift:
    """Read again in another unit where squares leave the range of float64."""
    found = _drift_in_unit(new, old, 0)
    return found if found.is_in_range else _drift_in_unit(new, old, found.exponent)


def _drift_in_unit(new: _Values, old: _Values, exponent: int) -> Drift:
    steps = _in_step(new.in_order_of(old), old.in_order_of(new))
    return sum((drift(a, b, exponent) for a, b in steps), Drift())


class _Values:
    """The values of a tensor in the order of its indices, dequantized where that is known how."""

    def __init__(self, reader: Reader, entry: Entry, names: dict[str, Entry]) -> None:
        read = partial(read_bytes, reader)
        self._packing = packing_of(entry, names, read) if entry.logical_elements else None
        self.is_complex = entry.spec.dtype.startswith("complex")
        self._reader, self._entry = reader, real_parts(entry) if self.is_complex else entry
        stored = entry.spec.shape if self._packing is None else self._packing.shape
        self.is_turned = self._packing is not None and self._packing.is_transposed
        self.shape: tuple[int, ...] = tuple(reversed(stored)) if self.is_turned else tuple(stored)

    def in_order_of(self, other: _Values) -> Values:
        """A packed matrix that lies transposed is turned, unless the other lies so too."""
        blocks = self._blocks()
        if not self.is_turned or other.is_turned:
            return blocks
        if prod(self.shape) > TURNED_VALUES:
            raise FormatError("it is packed by columns, and too large to be put in order")
        whole = np.concatenate([block.reshape(-1) for block in blocks])
        return iter([np.ascontiguousarray(whole.reshape(tuple(reversed(self.shape))).T).reshape(-1)])

    def _blocks(self) -> Values:
        if self._packing is not None:
            return (block.values for block in self._packing.blocks())
        plan = plan_tensor(self._entry)
        if plan.skipped is not None:
            raise FormatError(plan.skipped)
        if not self._entry.elements:
            return iter(())
        return (block.reshape(-1) for block in FileRows(plan, self._reader, is_finite=False).blocks())


def real_parts(entry: Entry) -> Entry:
    """A complex tensor as a real one with a dimension more: the two parts of each number."""
    spec = entry.spec
    stride = None if spec.stride is None else (*(2 * step for step in spec.stride), 1)
    dtype = f"float{4 * spec.itemsize}"
    chunks = tuple(replace(chunk, corner=(*chunk.corner, 0), shape=(*chunk.shape, 2)) for chunk in entry.chunks)
    return replace(entry, spec=replace(spec, shape=(*spec.shape, 2), dtype=dtype, stride=stride), chunks=chunks)


def _in_step(first: Values, second: Values) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Both in equal blocks, as far as the shorter of the two reaches each time."""
    a = b = np.empty(0)
    while True:
        a = a if len(a) else next(first, np.empty(0))
        b = b if len(b) else next(second, np.empty(0))
        size = min(len(a), len(b))
        if not size:
            return
        yield a[:size], b[:size]
        a, b = a[size:], b[size:]


# Sums of so many products are added up in turn: rounding then grows with the number of runs only.
_RUN = 4096
# Beyond these powers of two, squares and their sums may leave float64; and the largest unit that is a number itself.
_SQUARED, _MOST = 400, 1000


@dataclass(frozen=True, slots=True)
class Drift:
    """Sums over pairs of finite values (a, b), in a unit of their own; `changed` counts all values that differ, NaN
    being equal to NaN. `largest` is the largest difference, `peak` the largest magnitude, both as they are."""

    count: int = 0
    changed: int = 0
    squared_difference: float = 0.0
    squared_a: float = 0.0
    squared_b: float = 0.0
    product: float = 0.0
    largest: float = 0.0
    peak: float = 0.0

    def __add__(self, other: Drift) -> Drift:
        return Drift(
            self.count + other.count,
            self.changed + other.changed,
            self.squared_difference + other.squared_difference,
            self.squared_a + other.squared_a,
            self.squared_b + other.squared_b,
            self.product + other.product,
            max(self.largest, other.largest),
            max(self.peak, other.peak),
        )

    @property
    def exponent(self) -> int:
        """Of the unit in which squares neither overflow nor vanish."""
        return max(min(math.frexp(self.peak)[1], _MOST), -_MOST)

    @property
    def is_in_range(self) -> bool:
        return self.peak == 0 or -_SQUARED <= self.exponent <= _SQUARED

    def figures(self) -> dict[str, Any]:
        """Relative to b; null where that is nothing to relate to."""
        norm = math.sqrt(self.squared_b)
        norms = math.sqrt(self.squared_a) * norm
        return {
            "relative_l2": math.sqrt(self.squared_difference) / norm if norm else None,
            "cosine": max(min(self.product / norms, 1.0), -1.0) if norms else None,
            "changed_share": self.changed / self.count if self.count else 0.0,
            "max_abs_difference": self.largest if math.isfinite(self.largest) else None,
        }


def drift(a: NDArray[Any], b: NDArray[Any], exponent: int = 0) -> Drift:
    """Of two flat arrays of the same length; squares are summed in units of 2**exponent."""
    changed, *sums = _sums(a, b, math.ldexp(1.0, -exponent))
    return Drift(len(a), int(changed), *(float(value) for value in sums))


@entry
def _sums(a: NDArray[Any], b: NDArray[Any], unit: float) -> tuple[int, float, float, float, float, float, float]:
    changed = 0
    difference = square_a = square_b = product = largest = peak = 0.0
    for start in range(0, len(a), _RUN):
        run_difference = run_a = run_b = run_product = 0.0
        for place in range(start, min(start + _RUN, len(a))):
            x, y = np.float64(a[place]), np.float64(b[place])
            changed += x != y and not (math.isnan(x) and math.isnan(y))
            if math.isfinite(x) and math.isfinite(y):
                largest = max(largest, abs(x - y))
                peak = max(peak, abs(x), abs(y))
                x, y = x * unit, y * unit
                step = x - y
                run_difference += step * step
                run_a += x * x
                run_b += y * y
                run_product += x * y
        difference += run_difference
        square_a += run_a
        square_b += run_b
        product += run_product
    return changed, difference, square_a, square_b, product, largest, peak
