"""All figures of a matrix, by the keys of the JSON document."""

from __future__ import annotations

from math import isfinite
from typing import Any

from torchgauge.weights.matrix.norms import Norms, compute_norms, norms_of_singular_values
from torchgauge.weights.matrix.operand import Operand, read_operand
from torchgauge.weights.matrix.spectrum import MAX_SIDE, singular_values, spectrum_figures
from torchgauge.weights.rows import Rows

FIGURES = (
    "spectral_norm", "spectral_tolerance", "stable_rank", "condition_estimate", "condition_is_lower_bound",
    "condition_note", "dead_rows", "constant_rows", "duplicate_rows", "dead_columns", "constant_columns",
    "duplicate_columns", "matrix_examples", "matrix_note", "spectrum",
)  # fmt: skip

# Types of codes and scales, whose own singular values mean nothing.
_CODE_DTYPES = ("float4", "float8_e8m0fnu")


def matrix_figures(rows: Rows, *, spectrum: bool = False) -> dict[str, Any]:
    """Every key of `FIGURES`; null if a figure does not apply, with the reason in `matrix_note`."""
    if not rows.dtype.startswith(("float", "bfloat")) or rows.dtype.startswith(_CODE_DTYPES):
        return no_figures(f"{rows.dtype} values are codes, not the numbers of a matrix")
    if min(rows.shape) < 2:
        return no_figures("fewer than two rows or columns")
    operand = read_operand(rows)
    figures = no_figures(None) | operand.screen.counts() | {"matrix_examples": operand.screen.examples()}
    if operand.screen.largest == 0:
        return figures | {"spectral_norm": 0.0, "spectral_tolerance": 0.0, "matrix_note": "all values are zero"}
    if not spectrum:
        return figures | _norm_figures(operand, compute_norms(operand))
    side = min(operand.shape)
    if side > MAX_SIDE:
        note = f"no spectrum: the smaller side is {side:,}, more than {MAX_SIDE:,}"
        return figures | _norm_figures(operand, compute_norms(operand)) | {"matrix_note": note}
    values, floor = singular_values(operand)
    return (
        figures
        | _norm_figures(operand, norms_of_singular_values(values, floor))
        | {"spectrum": spectrum_figures(values, floor, operand.shape, operand.unit)}
    )


def no_figures(reason: str | None) -> dict[str, Any]:
    return dict.fromkeys(FIGURES) | {"matrix_note": reason}


def _norm_figures(operand: Operand, norms: Norms) -> dict[str, Any]:
    spectral_norm = norms.norm * operand.unit
    return {
        "spectral_norm": spectral_norm if isfinite(spectral_norm) else None,
        "spectral_tolerance": norms.tolerance,
        # Rounding must not give a rank below one.
        "stable_rank": max(1.0, operand.squared_norm / norms.norm**2),
        "condition_estimate": norms.condition,
        "condition_is_lower_bound": norms.is_lower_bound if norms.condition is not None else None,
        "condition_note": norms.note,
    }
