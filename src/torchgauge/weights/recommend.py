"""What a tensor's figures suggest, in words, with the figure behind each. A healthy tensor has nothing said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

from torchgauge.facts import TensorSpec
from torchgauge.units import format_bytes, format_count, format_exact, format_percent

Row = Mapping[str, Any]

# 30 dB is a relative error of 3 %, which networks mostly do not notice; at 20 dB (10 %) most do.
KEPT_DB, POOR_DB = 30.0, 20.0
# Smaller tensors do not pay for the trouble of another format.
WORTHWHILE_BYTES = 1 << 20
# Normally distributed weights let 6 % go at 1 % error; five times as much is a property of the tensor.
PRUNABLE_SHARE = 0.3
# Of rows and columns hardly any are removable in a dense tensor.
PRUNABLE_ROWS = 0.05
# Half of normally distributed values, the larger ones of each four, hold about 87 % of the energy.
TWO_FOUR_ENERGY = 0.99
# Formats for sparse matrices take an index per value: below half of zeros they are no smaller.
SPARSE_SHARE = 0.5
# Two factors cost a second kernel: a tenth saved is not worth that.
LOW_RANK_SAVING = 0.25
# A random matrix has a stable rank of about a quarter of its side, trained ones some percent.
LOW_STABLE_RANK = 0.01
# Tensor cores take eight elements of 16 bits at a time; below this size a dimension does not fill them anyway.
TILE, LEAST_TILED = 8, 256
# Float32 weights give 1.1, bfloat16 ones 1.3 to 1.5 after regrouping: more is structure.
ZSTD_RATIO = 1.6
# Subnormals of float16 have lost bits; of float32 they are slow on CPUs.
SUBNORMAL_SHARE = 0.01
_FLOAT16_LARGEST, _BFLOAT16_LARGEST = 65504.0, 3.3895313892515355e38
_GRANULARITIES = {"per_tensor": "per tensor", "per_channel": "per channel", "group128": "in groups of 128"}


def recommendations(row: Row) -> list[str]:
    """A rule is silent where the row lacks its figures."""
    # Nobody prunes optimizer state, a mask or the codes of a packing.
    is_weight = row.get("role") in (None, "parameter") and row.get("logical_elements") is None
    rules = (*_RULES, *_WEIGHT_RULES) if is_weight else _RULES
    return [sentence for rule in rules for sentence in rule(row)]


def _not_finite(row: Row) -> Iterator[str]:
    for key, name in (("nan", "NaN"), ("inf", "infinity")):
        if row.get(key):
            yield f"{name} in {format_exact(row[key])} of {_values(row)}: not usable as stored"


def _without_information(row: Row) -> Iterator[str]:
    if _dimensions(row) < 2 or row.get("min") is None or row["min"] != row.get("max") or row.get("elements", 0) < 2:
        return
    yield f"all {_values(row)} are {row['min']:.6g}: nothing was learned here, or it was never loaded"


def _stored_twice(row: Row) -> Iterator[str]:
    # Tensors that share their storage are in the file once.
    if row.get("duplicate_of") and not row.get("shared_with"):
        yield f"the same {format_bytes(row.get('bytes'))} as {row['duplicate_of']}: one of them is enough"


def _precision(row: Row) -> Iterator[str]:
    fits = row.get("fits")
    if fits and fits != row["dtype"]:
        ratio = TensorSpec((), row["dtype"]).itemsize / TensorSpec((), fits).itemsize
        yield f"stored as {row['dtype']}, but every value fits {fits}: {ratio:.1f}× smaller without loss"
    is_wide = row.get("dtype") in ("float32", "bfloat16", "float64")
    if is_wide and _FLOAT16_LARGEST < (row.get("abs_max") or 0) <= _BFLOAT16_LARGEST:
        yield f"the largest magnitude {row['abs_max']:.4g} is beyond float16 (65,504): bfloat16 holds it"


def _subnormal(row: Row) -> Iterator[str]:
    share = (row.get("subnormal") or 0) / max(row.get("elements") or 1, 1)
    if share < SUBNORMAL_SHARE:
        return
    if row.get("dtype") == "float16":
        yield f"{format_percent(share)} of the values are subnormal in float16 and lost bits: bfloat16 has the range"
    elif row.get("dtype") in ("float32", "float64"):
        yield f"{format_percent(share)} of the values are subnormal: slow on CPUs, and zero for every practical purpose"


def _quantization(row: Row) -> Iterator[str]:
    smallest = _at(row, "quantization", "smallest_30db")
    if smallest and (row.get("bytes") or 0) >= WORTHWHILE_BYTES and _dimensions(row) >= 2:
        yield from _fitting_format(row, smallest)
    coarse = _at(row, "quantization", "int8", "per_tensor", "sqnr_db")
    fine = _at(row, "quantization", "int8", "per_channel", "sqnr_db")
    if coarse is not None and fine is not None and coarse < POOR_DB and fine - coarse >= 6:
        yield f"one int8 scale for all keeps {coarse:.1f} dB only, one per channel {fine:.1f} dB: scale per channel"


def _fitting_format(row: Row, name: str) -> Iterator[str]:
    """The coarsest granularity that keeps enough: fewer scales, simpler kernels."""
    for key, words in _GRANULARITIES.items():
        figure = _at(row, "quantization", name, key) or {}
        decibels, after = figure.get("sqnr_db"), figure.get("bytes")
        is_exact = decibels is None and figure.get("max_error") == 0
        if after and (is_exact or (decibels is not None and decibels >= KEPT_DB)):
            kept = "loses nothing" if is_exact else f"keeps {decibels:.1f} dB"
            if after < row["bytes"]:
                yield f"{name} {words} {kept}: {row['bytes'] / after:.1f}× smaller"
            return


def _pruning(row: Row) -> Iterator[str]:
    if _is_zero(row):
        return
    share = _at(row, "pruning", "magnitude", "0.01")
    if share is not None and share >= PRUNABLE_SHARE and _dimensions(row) >= 2:
        yield f"{format_percent(share)} of the weights can go at 1 % error"
    zeros = row.get("sparsity")
    if zeros is not None and SPARSE_SHARE <= zeros < 1 and _dimensions(row) >= 2:
        yield f"{format_percent(zeros)} of the weights are zero: a sparse format stores fewer bytes"
    energy = _at(row, "pruning", "two_four_energy")
    # In rows that are no whole fours there is nothing for the hardware to leave out.
    if energy is not None and energy >= TWO_FOUR_ENERGY and prod(row["shape"][1:]) % 4 == 0:
        yield f"2:4 sparsity keeps {energy * 100:.2f} % of the energy: sparse tensor cores run it at twice the rate"


def _structured_pruning(row: Row) -> Iterator[str]:
    if _is_zero(row):
        return
    for key in ("rows", "columns", "channels", "heads"):
        share = _at(row, "pruning", key, "0.01")
        if share is not None and share >= PRUNABLE_ROWS:
            yield f"{format_percent(share)} of the {key} can go at 1 % error"


def _idle_rows(row: Row) -> Iterator[str]:
    if _dimensions(row) < 2 or _is_zero(row):
        return
    for side, size in (("rows", row["shape"][0]), ("columns", prod(row["shape"][1:]))):
        for kind, remedy in (
            ("dead", "removable"),
            ("constant", "each is one number"),
            ("duplicate", "each repeats an earlier one"),
        ):
            count = row.get(f"{kind}_{side}")
            if count:
                name = side if count > 1 else side.removesuffix("s")
                yield f"{format_exact(count)} {kind} {name} of {format_exact(size)}: {remedy}"


def _low_rank(row: Row) -> Iterator[str]:
    if _dimensions(row) < 2:
        return
    side = min(row["shape"][0], prod(row["shape"][1:]))
    found = _at(row, "spectrum", "low_rank", "0.01")
    if found is not None:
        if found["params_saved"] >= LOW_RANK_SAVING * row["elements"]:
            saved = f"{format_count(found['params_saved'])} of {format_count(row['elements'])}"
            yield f"rank {found['rank']} of {side} has 1 % error: two factors save {saved} parameters"
    elif row.get("stable_rank") is not None and side >= LEAST_TILED and row["stable_rank"] <= LOW_STABLE_RANK * side:
        yield f"stable rank {row['stable_rank']:.1f} of {side}: few directions dominate; --spectrum tells more"


def _padding(row: Row) -> Iterator[str]:
    sizes = _at(row, "alignment", "dimensions")
    if not sizes or len(sizes) != 2 or not str(row.get("dtype")).startswith(("float", "bfloat")):
        return
    for name, dimension in zip(("rows", "columns"), sizes, strict=True):
        size = dimension["size"]
        if size >= LEAST_TILED and dimension["divisible_by"] < TILE:
            padded = -(-size // TILE) * TILE
            yield f"{format_exact(size)} {name} do not divide by {TILE}: pad to {format_exact(padded)}{_off(row, name)}"


def _off(row: Row, name: str) -> str:
    aligned = _at(row, "alignment", "rows_aligned", "16")
    return ", then rows also start on 16-byte boundaries" if name == "columns" and aligned is False else ""


def _order(row: Row) -> Iterator[str]:
    placed = row.get("alignment") or {}
    lines = placed.get("cache_lines")
    if lines and _dimensions(row) == 2 and lines["touched"] > lines["contiguous"]:
        yield (
            f"stored with elements {format_exact(placed['step_bytes'])} bytes apart ({placed['stride_class']}): a row "
            f"touches {format_exact(lines['touched'])} cache lines instead of {format_exact(lines['contiguous'])}"
        )
    offset = placed.get("offset_alignment")
    if offset is not None and row.get("elements") and offset < min(TensorSpec((), row["dtype"]).itemsize, 8):
        yield f"its offset in the file divides by {offset} only, not by its type's size: it cannot be mapped in place"


def _compression(row: Row) -> Iterator[str]:
    ratios = {name: _at(row, "zstd", name) or 0.0 for name in ("plain", "shuffled")}
    best = max(ratios, key=lambda name: ratios[name])
    if ratios[best] >= ZSTD_RATIO and (row.get("bytes") or 0) >= WORTHWHILE_BYTES:
        how = " with its bytes regrouped" if best == "shuffled" else ""
        yield f"zstd makes it {ratios[best]:.1f}× smaller without loss{how}"


def _at(row: Row, *keys: str) -> Any:
    found: Any = row
    for key in keys:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def _dimensions(row: Row) -> int:
    return len(row.get("shape") or ())


def _is_zero(row: Row) -> bool:
    """Nothing but zeros: said once, by `_without_information`."""
    return bool(row.get("elements")) and row.get("zeros") == row["elements"]


def _values(row: Row) -> str:
    return f"{format_exact(row.get('elements'))} values"


_RULES: tuple[Callable[[Row], Iterator[str]], ...] = (_not_finite, _stored_twice, _order)
_WEIGHT_RULES: tuple[Callable[[Row], Iterator[str]], ...] = (
    _without_information, _precision, _subnormal, _idle_rows, _low_rank, _pruning, _structured_pruning, _quantization,
    _padding, _compression,
)  # fmt: skip
