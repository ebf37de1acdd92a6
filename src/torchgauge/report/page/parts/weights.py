"""What the values of the weights tell, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torchgauge.report.options import Options
from torchgauge.report.page.column_store import columns
from torchgauge.report.page.parts.weight_map import weight_map
from torchgauge.report.page.payload import part
from torchgauge.report.weight_groups import by_dtype, by_role
from torchgauge.report.weight_statistics import advice, places, summary_part
from torchgauge.units import format_shape
from torchgauge.view import Row, View
from torchgauge.weights.whole.value_figures import quantization_of, value_figures

FORMATS = ("int8", "fp8_e4m3", "fp8_e5m2", "int4", "nf4")
GRANULARITIES = ("per_tensor", "per_channel", "group128")
QUANTILES = ("0.001", "0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99", "0.999")
STRUCTURES = ("magnitude", "rows", "columns", "channels", "heads")
_AS_THEY_ARE = (
    "name", "dtype", "elements", "bytes", "role", "module", "duplicate_of", "nan", "inf", "zeros", "sparsity",
    "near_zero", "mean", "std", "min", "max", "abs_max", "skewness", "kurtosis", "l1", "l2", "entropy_bits",
    "entropy_symbol_bits", "compressibility", "spectral_norm", "stable_rank", "condition_estimate",
)  # fmt: skip
_PLACES, _OUTLIERS, _ADVICE = 40, 60, 40
# A figure needs no more digits for a picture; a page with thousands of tensors must stay small.
_DIGITS = 4

Figures = Mapping[str, Any]


@part("weights")
def weights(view: View, options: Options) -> dict[str, Any] | None:
    rows = [Row(value_figures(row)) for row in view.weights]
    if not rows:
        return None
    total = summary_part(view, "total") or {}
    return {
        "has_values": any(row.get("mean") is not None for row in rows),
        "total": _total(total) if total.get("mean") is not None else None,
        "tensors": columns(len(rows), _columns(rows)),
        "map": weight_map(rows),
        "formats": list(FORMATS),
        "granularities": list(GRANULARITIES),
        "quantiles": list(QUANTILES),
        "structures": list(STRUCTURES),
        "kinds": [_kind(kind) for kind in summary_part(view, "by_kind") or ()],
        "places": [asdict(place) for place in places(view)[:_PLACES]],
        "outliers": list(summary_part(view, "outliers") or ())[:_OUTLIERS],
        "recommendations": [asdict(entry) for entry in advice(view)[:_ADVICE]],
        "failures": list(summary_part(view, "failures") or ()),
        "dtypes": [asdict(group) for group in by_dtype(view)],
        "roles": [asdict(group) for group in by_role(view)],
    }


def _columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {key: [_short(row.get(key)) for row in rows] for key in _AS_THEY_ARE}
    found["shape"] = [format_shape(row["shape"]) for row in rows]
    found["rank"] = [len(row["shape"]) for row in rows]
    found["histogram"] = [_histogram(row) for row in rows]
    found["quantile"] = [_quantiles(row) for row in rows]
    found["sqnr"] = [_sqnr(row) for row in rows]
    found["pruning"] = [_pruning(row) for row in rows]
    found["smallest_30db"] = [quantization_of(row).get("smallest_30db") for row in rows]
    found["outlier_share"] = [_short(quantization_of(row).get("outlier_share")) for row in rows]
    found["recommendations"] = ["\n".join(row.get("recommendations") or ()) or None for row in rows]
    found["int8_db"] = [_short(_decibels(row, "int8", "per_tensor")) for row in rows]
    found["removable"] = [_short(((row.get("pruning") or {}).get("magnitude") or {}).get("0.01")) for row in rows]
    return found


def _short(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _histogram(row: Figures) -> tuple[Any, ...] | None:
    """The two ends, then the counts of the equal bins between them."""
    found = row.get("histogram")
    if not found or not found["counts"]:
        return None
    return _short(found["edges"][0]), _short(found["edges"][-1]), *found["counts"]


def _quantiles(row: Figures) -> tuple[Any, ...] | None:
    found = row.get("quantiles")
    return tuple(_short(found.get(key)) for key in QUANTILES) if found else None


def _decibels(row: Figures, format: str, granularity: str) -> float | None:
    found: float | None = ((quantization_of(row).get(format) or {}).get(granularity) or {}).get("sqnr_db")
    return found


def _sqnr(row: Figures) -> tuple[Any, ...] | None:
    """For each granularity the decibels of all formats; None where nothing is known."""
    found = tuple(_short(_decibels(row, format, grain)) for grain in GRANULARITIES for format in FORMATS)
    return found if any(value is not None for value in found) else None


def _pruning(row: Figures) -> tuple[Any, ...] | None:
    """For each structure the share that may go at an error of 1 % and of 5 %."""
    known = row.get("pruning") or {}
    found = tuple(_short((known.get(kind) or {}).get(error)) for kind in STRUCTURES for error in ("0.01", "0.05"))
    return found if any(value is not None for value in found) else None


def _total(total: Figures) -> dict[str, Any]:
    figures = {key: _short(total.get(key)) for key in _AS_THEY_ARE if key in total}
    return figures | {
        "tensors": total.get("tensors"),
        "not_unpacked": total.get("not_unpacked"),
        "histogram": _histogram(total),
        "quantile": _quantiles(total),
        "sqnr": _sqnr(total),
        "pruning": _pruning(total),
    }


def _kind(kind: Figures) -> dict[str, Any]:
    keys = ("kind", "tensors", "bytes", "mean", "std", "abs_max", "sparsity")
    magnitude = (kind.get("pruning") or {}).get("magnitude") or {}
    return {key: _short(kind.get(key)) for key in keys} | {
        "removable": magnitude.get("0.01"),
        "int8_db": _decibels(kind, "int8", "per_tensor"),
    }
