"""Recommendations for single tensors, from the statistics of their values. A healthy tensor has none."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from torchgauge.advise.registry import TensorRow, tensor_rule
from torchgauge.advise.rules import low_rank as factorization
from torchgauge.advise.rules.prune import REMOVABLE_ROWS, TWO_FOUR_ENERGY
from torchgauge.advise.rules.quantize import KEPT_DB, LEAST_DB
from torchgauge.facts import TensorSpec
from torchgauge.units import format_bytes, format_count, format_exact, format_percent

# Converting a smaller tensor is not worth the effort.
MIN_BYTES = 1 << 20
# 6 % of normally distributed weights can be removed at 1 % error; five times as much is unusual.
MIN_PRUNABLE_SHARE = 0.3
# Sparse formats store an index per value: with fewer zeros they are no smaller.
MIN_SPARSITY = 0.5
# The stable rank of a random matrix is about a quarter of its side, that of trained ones a few percent.
MAX_STABLE_RANK_SHARE = 0.01
# Tensor cores take eight 16-bit elements at a time; a smaller dimension does not fill them anyway.
TILE, MIN_TILED_SIZE = 8, 256
# zstd with byte grouping shrinks float32 weights 1.1 times, bfloat16 1.3 to 1.5 times: more means structure.
MIN_ZSTD_RATIO = 1.6
MIN_SUBNORMAL_SHARE = 0.01
_FLOAT16_MAX, _BFLOAT16_MAX = 65504.0, 3.3895313892515355e38
_GRANULARITIES = {
    "per_tensor": "one scale per tensor",
    "per_channel": "one scale per channel",
    "group128": "one scale per 128 values",
}


@tensor_rule("tensor-non-finite", weights_only=False, of_state=True)
def non_finite(row: TensorRow) -> Iterator[str]:
    for key, name in (("nan", "NaN"), ("inf", "infinite")):
        if row.get(key):
            yield f"{format_exact(row[key])} of {_values(row)} are {name}: the tensor is not usable as stored"


@tensor_rule("tensor-stored-twice", weights_only=False)
def stored_twice(row: TensorRow) -> Iterator[str]:
    # Tensors that share a storage are in the file once.
    if row.get("duplicate_of") and not row.get("shared_with"):
        yield f"the same {format_bytes(row.get('bytes'))} as {row['duplicate_of']}: store it once"


@tensor_rule("tensor-order", weights_only=False)
def storage_order(row: TensorRow) -> Iterator[str]:
    placed = row.get("alignment") or {}
    lines = placed.get("cache_lines")
    if lines and _rank(row) == 2 and lines["touched"] > lines["contiguous"]:
        yield (
            f"elements of a row are {format_exact(placed['step_bytes'])} bytes apart ({placed['stride_class']}): a row "
            f"touches {format_exact(lines['touched'])} cache lines instead of {format_exact(lines['contiguous'])}"
        )
    offset = placed.get("offset_alignment")
    if offset is not None and row.get("elements") and offset < min(TensorSpec((), row["dtype"]).itemsize, 8):
        yield f"its file offset is a multiple of {offset} only, not of its element size: it cannot be memory-mapped"


@tensor_rule("tensor-constant")
def constant_values(row: TensorRow) -> Iterator[str]:
    if _rank(row) >= 2 and row.get("elements", 0) >= 2 and row.get("min") is not None and row["min"] == row.get("max"):
        yield f"all {_values(row)} are {row['min']:.6g}: it was never trained or never loaded"


@tensor_rule("tensor-precision")
def precision(row: TensorRow) -> Iterator[str]:
    fits, dtype = row.get("fits"), row.get("dtype")
    if fits and fits != dtype:
        ratio = TensorSpec((), row["dtype"]).itemsize / TensorSpec((), fits).itemsize
        yield f"stored as {dtype}, but every value is exact in {fits}: {ratio:.1f}× smaller without loss"
    if dtype in ("float32", "bfloat16", "float64") and _FLOAT16_MAX < (row.get("abs_max") or 0) <= _BFLOAT16_MAX:
        yield f"the largest magnitude {row['abs_max']:.4g} exceeds float16 (65,504): use bfloat16"


@tensor_rule("tensor-subnormal")
def subnormal(row: TensorRow) -> Iterator[str]:
    share = (row.get("subnormal") or 0) / max(row.get("elements") or 1, 1)
    if share < MIN_SUBNORMAL_SHARE:
        return
    if row.get("dtype") == "float16":
        yield f"{format_percent(share)} of the values are subnormal in float16 and have lost bits: use bfloat16"
    elif row.get("dtype") in ("float32", "float64"):
        yield f"{format_percent(share)} of the values are subnormal: slow on CPUs, and practically zero"


@tensor_rule("tensor-idle-rows")
def idle_rows(row: TensorRow) -> Iterator[str]:
    if _rank(row) < 2 or _is_all_zero(row):
        return
    remedies = {"dead": "removable", "constant": "each is a single number", "duplicate": "each repeats an earlier one"}
    for side, size in (("rows", row["shape"][0]), ("columns", prod(row["shape"][1:]))):
        for kind, remedy in remedies.items():
            if count := row.get(f"{kind}_{side}"):
                name = side if count > 1 else side.removesuffix("s")
                yield f"{format_exact(count)} {kind} {name} of {format_exact(size)}: {remedy}"


@tensor_rule("tensor-low-rank")
def low_rank(row: TensorRow) -> Iterator[str]:
    if _rank(row) < 2:
        return
    side = min(row["shape"][0], prod(row["shape"][1:]))
    approximation = ((row.get("spectrum") or {}).get("low_rank") or {}).get("0.01")
    if approximation is not None:
        if approximation["params_saved"] >= factorization.LEAST_SAVING * row["elements"]:
            saved = f"{format_count(approximation['params_saved'])} of {format_count(row['elements'])}"
            yield f"rank {approximation['rank']} of {side} has 1 % error: two factors save {saved} parameters"
    elif (
        (rank := row.get("stable_rank")) is not None and side >= MIN_TILED_SIZE and rank <= MAX_STABLE_RANK_SHARE * side
    ):
        yield f"stable rank {rank:.1f} of {side}: a few directions dominate; --spectrum shows the singular values"


@tensor_rule("tensor-pruning")
def pruning(row: TensorRow) -> Iterator[str]:
    if _is_all_zero(row):
        return
    potential, is_matrix = row.get("pruning") or {}, _rank(row) >= 2
    share = (potential.get("magnitude") or {}).get("0.01")
    if is_matrix and share is not None and share >= MIN_PRUNABLE_SHARE:
        yield f"{format_percent(share)} of the weights can be pruned at 1 % error"
    sparsity = row.get("sparsity")
    if is_matrix and sparsity is not None and MIN_SPARSITY <= sparsity < 1:
        yield f"{format_percent(sparsity)} of the weights are zero: a sparse format stores fewer bytes"
    energy = potential.get("two_four_energy")
    # Sparse tensor cores need rows that are a multiple of four.
    if energy is not None and energy >= TWO_FOUR_ENERGY and prod(row["shape"][1:]) % 4 == 0:
        yield f"2:4 sparsity keeps {energy * 100:.2f} % of the energy: sparse tensor cores run it at twice the rate"
    for key in ("rows", "columns", "channels", "heads"):
        share = (potential.get(key) or {}).get("0.01")
        if share is not None and share >= REMOVABLE_ROWS:
            yield f"{format_percent(share)} of the {key} can be pruned at 1 % error"


@tensor_rule("tensor-quantization")
def quantization(row: TensorRow) -> Iterator[str]:
    formats = row.get("quantization") or {}
    name = formats.get("smallest_30db")
    if name and (row.get("bytes") or 0) >= MIN_BYTES and _rank(row) >= 2:
        # The coarsest granularity that keeps enough: fewer scales, simpler kernels.
        for key, words in _GRANULARITIES.items():
            figure = (formats.get(name) or {}).get(key) or {}
            decibels, after = figure.get("sqnr_db"), figure.get("bytes")
            is_lossless = decibels is None and figure.get("max_error") == 0
            if after and (is_lossless or (decibels is not None and decibels >= KEPT_DB)):
                quality = "is lossless" if is_lossless else f"has an SQNR of {decibels:.1f} dB"
                if after < row["bytes"]:
                    yield f"{name} with {words} {quality}: {row['bytes'] / after:.1f}× smaller"
                break
    int8 = formats.get("int8") or {}
    coarse, fine = ((int8.get(grain) or {}).get("sqnr_db") for grain in ("per_tensor", "per_channel"))
    if coarse is not None and fine is not None and coarse < LEAST_DB and fine - coarse >= 6:
        yield f"int8 has an SQNR of {coarse:.1f} dB with one scale per tensor, {fine:.1f} dB with one per channel"


@tensor_rule("tensor-padding")
def padding(row: TensorRow) -> Iterator[str]:
    placed = row.get("alignment") or {}
    sizes = placed.get("dimensions")
    if not sizes or len(sizes) != 2 or not str(row.get("dtype")).startswith(("float", "bfloat")):
        return
    for name, dimension in zip(("rows", "columns"), sizes, strict=True):
        size = dimension["size"]
        if size >= MIN_TILED_SIZE and dimension["divisible_by"] < TILE:
            is_unaligned = name == "columns" and (placed.get("rows_aligned") or {}).get("16") is False
            also = ", which also aligns rows to 16 bytes" if is_unaligned else ""
            padded = format_exact(-(-size // TILE) * TILE)
            yield f"{format_exact(size)} {name} are not a multiple of {TILE}: pad to {padded}{also}"


@tensor_rule("tensor-compression")
def compression(row: TensorRow) -> Iterator[str]:
    ratios = {name: (row.get("zstd") or {}).get(name) or 0.0 for name in ("plain", "shuffled")}
    best = max(ratios, key=lambda name: ratios[name])
    if ratios[best] >= MIN_ZSTD_RATIO and (row.get("bytes") or 0) >= MIN_BYTES:
        how = " with bytes grouped by significance" if best == "shuffled" else ""
        yield f"zstd compresses it {ratios[best]:.1f}× without loss{how}"


def _rank(row: TensorRow) -> int:
    return len(row.get("shape") or ())


def _is_all_zero(row: TensorRow) -> bool:
    """Reported once, by `constant_values`."""
    return bool(row.get("elements")) and row.get("zeros") == row["elements"]


def _values(row: TensorRow) -> str:
    return f"{format_exact(row.get('elements'))} values"
