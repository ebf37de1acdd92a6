"""Statistics of the weights, tensor by tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

from torchgauge.facts import Row, View
from torchgauge.facts.figures import Members
from torchgauge.facts.weights import quantization_of, value_figures
from torchgauge.report.content.weights import FORMATS, by_dtype, by_role, kinds_section, value_facts
from torchgauge.report.options import Options
from torchgauge.report.page.payload import columns, part, section_data, shortened
from torchgauge.report.weight_statistics import advice, layer_grids, places, sqnr_db, summary_of
from torchgauge.units import format_shape

GRANULARITIES = ("per_tensor", "per_channel", "group128")
QUANTILES = ("0.001", "0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99", "0.999")
STRUCTURES = ("magnitude", "rows", "columns", "channels", "heads")
_AS_THEY_ARE = (
    "name", "dtype", "elements", "bytes", "role", "module", "duplicate_of", "nan", "inf", "zeros", "sparsity",
    "near_zero", "mean", "std", "min", "max", "abs_max", "skewness", "kurtosis", "l2", "entropy_bits",
    "entropy_symbol_bits", "compressibility", "spectral_norm", "stable_rank", "condition_estimate",
)  # fmt: skip
_MAX_PLACES, _MAX_OUTLIERS, _MAX_ADVICE = 40, 60, 40
_MAX_DISTRIBUTIONS = 4_000
_short = partial(shortened, digits=4)


@part("weights")
def weights(view: View, options: Options) -> dict[str, object] | None:
    rows = [Row(value_figures(row)) for row in view.weights]
    if not rows:
        return None
    summary = summary_of(view)
    total: dict[str, object] | None = None
    if summary and (whole := summary.get("total")) and whole.get("mean") is not None:
        total = {key: _short(whole.get(key)) for key in _AS_THEY_ARE if key in whole}
        total |= {"tensors": whole.get("tensors"), "not_unpacked": whole.get("not_unpacked")}
        total |= {"histogram": _histogram(whole), "quantile": _quantiles(whole)}
        total |= {"sqnr": _sqnr(whole), "pruning": _pruning(whole)}
    return {
        "has_values": any(row.get("mean") is not None for row in rows),
        "total": total,
        "tensors": columns(len(rows), _columns(rows)),
        "map": [asdict(grid) for grid in weight_map(rows)],
        "formats": list(FORMATS),
        "granularities": list(GRANULARITIES),
        "quantiles": list(QUANTILES),
        "structures": list(STRUCTURES),
        "facts": list(value_facts(view)),
        "kinds": (kinds := kinds_section(view)) and section_data(kinds),
        "places": [asdict(place) for place in places(view)[:_MAX_PLACES]],
        "outliers": list(summary.get("outliers", ()))[:_MAX_OUTLIERS] if summary else [],
        "recommendations": [asdict(entry) for entry in advice(view)[:_MAX_ADVICE]],
        "skipped": [
            {"reason": reason, "count": count}
            for reason, count in Counter(row["skipped"] for row in rows if row.get("skipped")).most_common()
        ],
        "failures": list(summary["failures"]) if summary else [],
        "dtypes": [asdict(group) for group in by_dtype(view)],
        "roles": [asdict(group) for group in by_role(view)],
    }


def _columns(rows: Sequence[Row]) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {key: [_short(row.get(key)) for row in rows] for key in _AS_THEY_ARE}
    found["shape"] = [format_shape(row["shape"]) for row in rows]
    # The places of the tensors whose distribution is on the page: of very many the largest.
    ranked = sorted(range(len(rows)), key=lambda place: -(rows[place]["bytes"] or 0))
    drawn = frozenset(ranked[:_MAX_DISTRIBUTIONS])
    found["histogram"] = [_histogram(row) if place in drawn else None for place, row in enumerate(rows)]
    found["quantile"] = [_quantiles(row) if place in drawn else None for place, row in enumerate(rows)]
    found["sqnr"] = [_sqnr(row) for row in rows]
    found["pruning"] = [_pruning(row) for row in rows]
    found["smallest_30db"] = [quantization_of(row).get("smallest_30db") for row in rows]
    found["outlier_share"] = [_short(quantization_of(row).get("outlier_share")) for row in rows]
    found["recommendations"] = ["\n".join(row.get("recommendations") or ()) or None for row in rows]
    found["int8_db"] = [_short(sqnr_db(row, "int8")) for row in rows]
    found["removable"] = [_short(((row.get("pruning") or {}).get("magnitude") or {}).get("0.01")) for row in rows]
    return found


def _histogram(row: Members) -> tuple[object, ...] | None:
    """The two ends, then the counts of the equal bins between them."""
    found = row.get("histogram")
    if not found or not found["counts"]:
        return None
    return _short(found["edges"][0]), _short(found["edges"][-1]), *found["counts"]


def _quantiles(row: Members) -> tuple[object, ...] | None:
    found = row.get("quantiles")
    return tuple(_short(found.get(key)) for key in QUANTILES) if found else None


def _sqnr(row: Members) -> tuple[object, ...] | None:
    """The decibels of all formats for each granularity; None if none is known."""
    known = quantization_of(row)
    if not known:
        return None
    formats = [known.get(format) or {} for format in FORMATS]
    found = tuple(_short((each.get(grain) or {}).get("sqnr_db")) for grain in GRANULARITIES for each in formats)
    return found if any(value is not None for value in found) else None


def _pruning(row: Members) -> tuple[object, ...] | None:
    """The shares that can be removed at errors of 1 % and 5 %, for each structure."""
    known = row.get("pruning") or {}
    found = tuple(_short((known.get(kind) or {}).get(error)) for kind in STRUCTURES for error in ("0.01", "0.05"))
    return found if any(value is not None for value in found) else None


@dataclass(frozen=True, slots=True)
class GridRow:
    """The tensors of one place of the block, by layer."""

    label: str
    cells: list[list[int]]


@dataclass(frozen=True, slots=True)
class Grid:
    stem: str | None
    columns: list[str]
    rows: list[GridRow]


def weight_map(rows: Sequence[Row]) -> list[Grid]:
    """One grid for each list of repeated blocks, the largest first; the tensors in none come last, in a grid with one
    row. A cell holds the places of its tensors among `rows`: several where experts share a layer."""
    shown = {
        row["name"]: place
        for place, row in enumerate(rows)
        if (row["role"] == "parameter" and row["shared_with"] is None and row.get("mean") is not None)
    }
    sizes = {name: rows[place]["bytes"] for name, place in shown.items()}
    kept = []
    for grid in layer_grids(sizes):
        lines = [
            GridRow(label, [[shown[name] for name in names.get(layer, [])] for layer in grid.layers])
            for label, names in grid.rows
        ]
        kept.append(Grid(grid.stem, [".".join(map(str, layer)) for layer in grid.layers], lines))
    placed = {place for one in kept for row in one.rows for cell in row.cells for place in cell}
    left = {name: place for name, place in shown.items() if place not in placed}
    if left:
        kept.append(Grid(None, list(left), [GridRow("", [[place] for place in left.values()])]))
    return kept
