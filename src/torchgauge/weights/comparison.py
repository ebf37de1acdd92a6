"""Compare two checkpoints: which tensors were added, removed and changed, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchgauge.checkpoint import Entry, Index, Role
from torchgauge.checkpoint.tensor_names import common_names
from torchgauge.errors import FormatError
from torchgauge.progress import Progress
from torchgauge.weights.kernels.jit import entry as kernel_entry
from torchgauge.weights.packings import find_packing
from torchgauge.weights.plan import plan_tensor
from torchgauge.weights.reader import FileReader, Reader, stamp_files
from torchgauge.weights.rows import FileRows
from torchgauge.weights.tensors import read_bytes
from torchgauge.weights.threads import Threads, in_order

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Against, DriftFigures, Failure, Named, Reshaped
    from torchgauge.facts.document_types import Drift as DriftRow

Values = Iterator[NDArray[np.floating]]

# The name of a packed parameter -> its name before packing.
_UNPACKED_SUFFIXES = {".qweight": ".weight", ".weight_packed": ".weight", "_blocks": ""}
# A packed matrix that is stored transposed is transposed back in memory, up to this size.
MAX_TRANSPOSED_VALUES = 1 << 28
# Products are summed in runs of this length, so that rounding grows only with the number of runs.
_SUM_RUN = 4096
# Beyond 2**±400, squares and their sums may leave float64; 2**±1000 are the largest units that are numbers themselves.
_MAX_SQUARED_EXPONENT, _MAX_UNIT_EXPONENT = 400, 1000


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of both checkpoints, and all tensors of each, among which are the scales of packed ones."""

    name: str
    new: Entry
    old: Entry
    new_tensors: Mapping[str, Entry]
    old_tensors: Mapping[str, Entry]


def compare_checkpoints(
    new: Index, old: Index, *, threads: int | None = None, progress: Progress | None = None
) -> Against:
    """The `against` member of the JSON document: how `new` differs from `old`, the largest change first."""
    # The model's tensors in both, by names with or without wrappers, whichever match best.
    model_tensors = _model_tensors(new), _model_tensors(old)
    names = common_names(*({name: entry.spec.shape for name, entry in side.items()} for side in model_tensors))
    ours = {name: model_tensors[0][stored] for name, stored in names[0].items()}
    theirs = {name: model_tensors[1][stored] for name, stored in names[1].items()}
    new_tensors, old_tensors = ({entry.name: entry for entry in index.entries} for index in (new, old))
    pairs = [Pair(name, ours[name], theirs[name], new_tensors, old_tensors) for name in ours if name in theirs]
    entries = [entry for pair in pairs for entry in (pair.new, pair.old)]
    files = {file for entry in entries for file in (entry.file, *(chunk.file for chunk in entry.chunks))}
    total, done, rows = sum(entry.nbytes for entry in entries), 0, []
    with FileReader(stamp_files(files)) as reader, Threads(reader, threads) as pool:
        for pair, row in zip(pairs, in_order(partial(pool.submit, compare_pair), pairs, pool.max_pending), strict=True):
            rows.append(row)
            done += pair.new.nbytes + pair.old.nbytes
            if progress is not None:
                progress(done, total, pair.name)

    def drift_order(row: DriftRow) -> tuple[bool, float, str]:
        """Rows without a drift come last: their old values are 0, or their new values are not finite."""
        amount = row["relative_l2"]
        is_known = amount is not None and math.isfinite(amount)
        return not is_known, -amount if amount is not None and is_known else 0.0, row["name"]

    compared = [row for row in rows if "relative_l2" in row]
    changed = sorted((row for row in compared if row["changed_share"]), key=drift_order)
    return {
        "path": old.path,
        "added": [_summary(name, entry) for name, entry in ours.items() if name not in theirs],
        "removed": [_summary(name, entry) for name, entry in theirs.items() if name not in ours],
        "reshaped": [row for row in rows if "was" in row],
        "retyped": [row["name"] for row in compared if row["dtype"] != row["was_dtype"]],
        "changed": changed,
        "identical": len(compared) - len(changed),
        "identical_bytes": sum(row["bytes"] for row in compared if not row["changed_share"]),
        "failures": [row for row in rows if "reason" in row],
    }


def _summary(name: str, entry: Entry) -> Named:
    return {"name": name, "shape": list(entry.spec.shape), "dtype": entry.spec.dtype, "bytes": entry.nbytes}


def _model_tensors(index: Index) -> dict[str, Entry]:
    """By name within the model; packed parameters by the name they had before packing."""
    prefix = index.model_prefix
    tensors = {}
    for entry in index.entries:
        if entry.role is Role.OPTIMIZER or entry.logical_elements == 0 or not entry.name.startswith(prefix):
            continue
        name = entry.name
        suffix = next((s for s in _UNPACKED_SUFFIXES if entry.logical_elements and name.endswith(s)), None)
        if suffix is not None:
            name = name.removesuffix(suffix) + _UNPACKED_SUFFIXES[suffix]
        tensors[name.removeprefix(prefix)] = entry
    return tensors


def compare_pair(reader: Reader, pair: Pair) -> DriftRow | Reshaped | Failure:
    """The drift of a tensor; or the `reason` why it cannot be computed; or its former shape (`was`)."""
    try:
        new = _Values(reader, pair.new, pair.new_tensors)
        old = _Values(reader, pair.old, pair.old_tensors)
        if new.shape != old.shape:
            return {"name": pair.name, "shape": list(new.shape), "was": list(old.shape)}
        if new.is_complex != old.is_complex:
            raise FormatError(f"cannot compare {pair.new.spec.dtype} with {pair.old.spec.dtype}")
        drift = _sum_drift(new, old, exponent=0)
        if drift.peak and abs(drift.exponent) > _MAX_SQUARED_EXPONENT:
            # Squares left the range of float64: read again in another unit.
            drift = _sum_drift(new, old, exponent=drift.exponent)
    except FormatError as error:
        return {"name": pair.name, "reason": str(error)}
    return {
        "name": pair.name,
        "shape": list(new.shape),
        "bytes": pair.new.nbytes,
        "dtype": pair.new.spec.dtype,
        "was_dtype": pair.old.spec.dtype,
        **drift.figures(),
    }


def _sum_drift(new: _Values, old: _Values, *, exponent: int) -> Drift:
    """The blocks of both need not end at the same values; squares are summed in units of 2**exponent."""
    first, second, total = new.in_order_of(old), old.in_order_of(new), Drift()
    a: NDArray[np.floating] = np.empty(0)
    b = a
    while True:
        a = a if len(a) else next(first, a)
        b = b if len(b) else next(second, b)
        size = min(len(a), len(b))
        if not size:
            return total
        changed, *sums = _drift_sums(a[:size], b[:size], math.ldexp(1.0, -exponent))
        total += Drift(size, int(changed), *(float(value) for value in sums))
        a, b = a[size:], b[size:]


class _Values:
    """The values of a tensor in index order, dequantized if its packing is known."""

    def __init__(self, reader: Reader, entry: Entry, tensors: Mapping[str, Entry]) -> None:
        read = partial(read_bytes, reader)
        self._packing = find_packing(entry, tensors, read) if entry.logical_elements else None
        self.is_complex = entry.spec.dtype.startswith("complex")
        self._reader, self._entry = reader, real_parts(entry) if self.is_complex else entry
        stored = entry.spec.shape if self._packing is None else self._packing.shape
        self.is_transposed = self._packing is not None and self._packing.is_transposed
        self.shape: tuple[int, ...] = tuple(reversed(stored)) if self.is_transposed else tuple(stored)

    def in_order_of(self, other: _Values) -> Values:
        """A matrix that is stored transposed is transposed back, unless the other one is stored transposed too."""
        blocks = self._blocks()
        if not self.is_transposed or other.is_transposed:
            return blocks
        if math.prod(self.shape) > MAX_TRANSPOSED_VALUES:
            raise FormatError("it is packed by columns and too large to transpose in memory")
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
    """A complex tensor as a real one with another dimension of size 2, like `torch.view_as_real`."""
    spec = entry.spec
    stride = None if spec.stride is None else (*(2 * step for step in spec.stride), 1)
    dtype = f"float{4 * spec.itemsize}"
    chunks = tuple(replace(chunk, corner=(*chunk.corner, 0), shape=(*chunk.shape, 2)) for chunk in entry.chunks)
    return replace(entry, spec=replace(spec, shape=(*spec.shape, 2), dtype=dtype, stride=stride), chunks=chunks)


@dataclass(frozen=True, slots=True)
class Drift:
    """Sums over pairs of finite values (a, b) in a common unit. `changed` counts all values that differ, where NaN
    equals NaN. `largest` is the largest difference and `peak` the largest magnitude, both unscaled."""

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
        """The exponent of the unit in which squares neither overflow nor vanish."""
        return max(min(math.frexp(self.peak)[1], _MAX_UNIT_EXPONENT), -_MAX_UNIT_EXPONENT)

    def figures(self) -> DriftFigures:
        """Relative to b; null if b is all zeros."""
        norm = math.sqrt(self.squared_b)
        norms = math.sqrt(self.squared_a) * norm
        return {
            "relative_l2": math.sqrt(self.squared_difference) / norm if norm else None,
            "cosine": max(min(self.product / norms, 1.0), -1.0) if norms else None,
            "changed_share": self.changed / self.count if self.count else 0.0,
            "max_abs_difference": self.largest if math.isfinite(self.largest) else None,
        }


@kernel_entry
def _drift_sums(
    a: NDArray[np.floating], b: NDArray[np.floating], unit: float
) -> tuple[int, float, float, float, float, float, float]:
    changed = 0
    difference = square_a = square_b = product = largest = peak = 0.0
    for start in range(0, len(a), _SUM_RUN):
        run_difference = run_a = run_b = run_product = 0.0
        for index in range(start, min(start + _SUM_RUN, len(a))):
            x, y = np.float64(a[index]), np.float64(b[index])
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
