"""Figures of a matrix that the histogram of its values does not contain. A convolution is the matrix outputs × the
rest.

    rows ──one pass──▶ screen (dead, constant, duplicate rows and columns; Frobenius norm; largest value)
           ├─ smaller side ≤ 1024 ──▶ Gram matrix, float64 ──▶ σ₁ by Lanczos, the smallest by Lanczos on its inverse
           ├─ above ──▶ Lanczos, one pass over the rows per step ──▶ σ₁, a lower bound of the condition number
           └─ with spectrum ──▶ all singular values

`spectral_tolerance` is the relative error bound from the residual, not the requested tolerance. NaN and ±inf count as
0.
"""

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names
from torchgauge.weights.matrix.figures import FIGURES, matrix_figures, no_figures
from torchgauge.weights.matrix.operand import EXAMPLES, Screen, read_operand

if TYPE_CHECKING:
    from torchgauge.weights.matrix.lanczos import largest_eigenvalue

__all__ = ["EXAMPLES", "FIGURES", "Screen", "largest_eigenvalue", "matrix_figures", "no_figures", "read_operand"]

__getattr__ = lazy_names(__name__, {"lanczos": ["largest_eigenvalue"]})  # small files need no numba
