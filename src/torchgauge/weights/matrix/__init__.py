"""Figures of a matrix that its values' histogram does not hold. A convolution is its matrix: outputs × the rest.

    rows ──one pass──▶ screen (dead, constant, repeated rows and columns; Frobenius norm; largest value)
           ├─ smaller side ≤ 1024 ──▶ Gram matrix, float64 ──▶ σ₁ by Lanczos, the smallest by Lanczos on its inverse
           ├─ above ──▶ Lanczos, a pass over the rows per step ──▶ σ₁, a lower bound of the condition
           └─ spectrum asked for ──▶ all singular values

`spectral_tolerance` is the relative error that the residual admits, not the one asked for. Values that are not finite
count as zero here.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from torchgauge.weights.matrix import norms, spectrum
from torchgauge.weights.matrix.norms import Norms
from torchgauge.weights.matrix.operand import Operand, read
from torchgauge.weights.rows import Rows

__all__ = ["FIGURES", "examine", "nothing"]

FIGURES = (
    "spectral_norm", "spectral_tolerance", "stable_rank", "condition_estimate", "condition_is_lower_bound",
    "condition_note", "dead_rows", "constant_rows", "duplicate_rows", "dead_columns", "constant_columns",
    "duplicate_columns", "matrix_examples", "matrix_note", "spectrum",
)  # fmt: skip

# Bit patterns and scales: what they stand for is decided elsewhere, and their own singular values say nothing.
_CODES = ("float4", "float8_e8m0fnu")


def examine(rows: Rows, *, spectrum: bool = False) -> dict[str, Any]:
    """Every key of `FIGURES`; null where a figure does not apply, `matrix_note` then says why."""
    reason = _no_matrix(rows)
    if reason is not None:
        return nothing(reason)
    operand = read(rows)
    found = nothing(None) | operand.screen.counts() | {"matrix_examples": operand.screen.examples()}
    if operand.screen.largest == 0:
        return found | {"spectral_norm": 0.0, "spectral_tolerance": 0.0, "matrix_note": "all values are zero"}
    return found | (_with_spectrum(operand) if spectrum else _figures(operand, norms.norms_of(operand)))


def nothing(reason: str | None) -> dict[str, Any]:
    return dict.fromkeys(FIGURES) | {"matrix_note": reason}


def _no_matrix(rows: Rows) -> str | None:
    if not rows.dtype.startswith(("float", "bfloat")) or rows.dtype.startswith(_CODES):
        return f"{rows.dtype} values are codes, not numbers of a matrix"
    return "fewer than two rows or columns" if min(rows.shape) < 2 else None


def _figures(operand: Operand, found: Norms) -> dict[str, Any]:
    norm = found.norm * _unit(operand)
    return {
        "spectral_norm": norm if isfinite(norm) else None,
        "spectral_tolerance": found.tolerance,
        # Rounding must not make a rank below one.
        "stable_rank": max(1.0, operand.squared_norm / found.norm**2),
        "condition_estimate": found.condition,
        "condition_is_lower_bound": found.is_lower_bound if found.condition is not None else None,
        "condition_note": found.note,
    }


def _with_spectrum(operand: Operand) -> dict[str, Any]:
    side = min(operand.shape)
    if side > spectrum.LARGEST_SIDE:
        reason = f"no spectrum: the smaller side is {side:,}, above {spectrum.LARGEST_SIDE:,}"
        return _figures(operand, norms.norms_of(operand)) | {"matrix_note": reason}
    values, floor = spectrum.singular_values(operand)
    found = norms.from_values(values, floor)
    return _figures(operand, found) | {"spectrum": spectrum.describe(values, floor, operand.shape, _unit(operand))}


def _unit(operand: Operand) -> float:
    return float(2.0**operand.exponent)
