"""Factorisations and solves, with the leading terms of Golub and Van Loan's "Matrix Computations".

There are no MACs: products inside a solver are not counted separately.

    n × n            Cholesky n³/3; LU and determinant 2n³/3; inverse 2n³; matrix exponential 10n³ (five products of
                     the Taylor polynomial of degree 18; the squarings depend on the data)
                     eigenvalues of symmetric matrices 4n³/3, with vectors 9n³; of others 10n³ and 25n³
    m × n, m ≥ n     QR 2mn² − 2n³/3, as much again for an explicit Q
                     singular values 4mn² − 4n³/3, with vectors 14mn² + 8n³
    solving          n²k per triangular factor for k right-hand sides
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log2, prod

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import COMPLEX_SOLVER, argument, arithmetic, qualified
from torchgauge.facts import TensorSpec


def _qr(m: int, n: int) -> int:
    return 2 * m * n**2 - 2 * n**3 // 3


# Flops by the longer and the shorter side of the matrix, which are equal where only square ones are allowed.
_FACTORISATIONS: Mapping[str, Callable[[int, int], int]] = {
    "cholesky": lambda _, n: n**3 // 3,
    "linalg_cholesky_ex": lambda _, n: n**3 // 3,
    "cholesky_inverse": lambda _, n: 2 * n**3 // 3,
    "linalg_ldl_factor_ex": lambda _, n: n**3 // 3,
    "_linalg_det": lambda _, n: 2 * n**3 // 3,
    "_linalg_slogdet": lambda _, n: 2 * n**3 // 3,
    "linalg_inv_ex": lambda _, n: 2 * n**3,
    "linalg_eig": lambda _, n: 25 * n**3,
    "_linalg_eigvals": lambda _, n: 10 * n**3,
    "_linalg_eigh": lambda _, n: 9 * n**3,
    "linalg_matrix_exp": lambda _, n: 10 * n**3,
    "linalg_lu": lambda m, n: m * n**2 - n**3 // 3,
    "linalg_lu_factor_ex": lambda m, n: m * n**2 - n**3 // 3,
    "linalg_qr": lambda m, n: 2 * _qr(m, n),
    "geqrf": _qr,
    "linalg_householder_product": _qr,
    "_linalg_svd": lambda m, n: 14 * m * n**2 + 8 * n**3,
    "linalg_pinv": lambda m, n: 16 * m * n**2 + 8 * n**3,  # by singular values: V (1/s) Uᵀ
}
# Without the vectors, or without an explicit Q: the argument that says so, its value, and what is left to do.
_REDUCED: Mapping[str, tuple[str, bool | str, Callable[[int, int], int]]] = {
    "_linalg_eigh": ("compute_v", False, lambda _, n: 4 * n**3 // 3),
    "_linalg_svd": ("compute_uv", False, lambda m, n: 4 * m * n**2 - 4 * n**3 // 3),
    "linalg_qr": ("mode", "r", _qr),
}


@formula(*qualified(*_FACTORISATIONS), category="other")
def factorise(call: Call) -> Work:
    name, matrix = call.op.removeprefix("aten::"), call.first
    flops = _FACTORISATIONS[name]
    if name in _REDUCED:
        option, value, reduced_flops = _REDUCED[name]
        flops = reduced_flops if call.get(option) == value else flops
    m, n = max(matrix.shape[-2:]), min(matrix.shape[-2:])
    return arithmetic(call, prod(matrix.shape[:-2]) * flops(m, n), COMPLEX_SOLVER)


@formula("aten::ormqr", category="other")
def multiply_by_q(call: Call) -> Work:
    """Each of k reflections updates the other matrix: 4 flops per element."""
    return arithmetic(call, 4 * call["input3"].numel * call["input2"].shape[-1], COMPLEX_SOLVER)


@formula("aten::_linalg_solve_ex", category="other")
def solve(call: Call) -> Work:
    n = call["A"].shape[-1]
    return arithmetic(call, prod(call["A"].shape[:-2]) * (2 * n**3 // 3) + 2 * n * call.out.numel, COMPLEX_SOLVER)


@formula("aten::linalg_solve_triangular", "aten::triangular_solve", category="other")
def solve_triangular(call: Call) -> Work:
    matrix = argument(call, "A", "self")
    return arithmetic(call, matrix.shape[-1] * call.out.numel, COMPLEX_SOLVER)


@formula(
    "aten::cholesky_solve", "aten::_cholesky_solve_helper", "aten::linalg_lu_solve", "aten::linalg_ldl_solve",
    category="other",
)  # fmt: skip
def solve_factored(call: Call) -> Work:
    matrix = argument(call, "A", "input2", "LU", "LD")
    return arithmetic(call, 2 * matrix.shape[-1] * call.out.numel, COMPLEX_SOLVER)


@formula("aten::linalg_lstsq", category="other")
def least_squares(call: Call) -> Work:
    """By QR: factorise, apply Qᵀ to the right-hand sides, solve."""
    *batch, height, width = call["self"].shape
    factorised = prod(batch) * _qr(max(height, width), min(height, width))
    return arithmetic(call, factorised + 4 * call["b"].numel * width, COMPLEX_SOLVER)


# Fast Fourier transforms: 5 N log₂ N real operations for N complex points, half of that if one side is real. N is the
# number of points over all transformed dimensions together, on the real side if there is one.


@formula("aten::_fft_c2c", "aten::_fft_r2c", "aten::_fft_c2r", category="fft")
def fft(call: Call) -> Work:
    points: TensorSpec = call.out if call.op.endswith("c2r") else call["self"]
    size = prod(points.shape[dim] for dim in call["dim"])
    rate = 5.0 if call.op.endswith("c2c") else 2.5
    return Work(flops=round(rate * points.numel * log2(size)) if size > 1 else 0)
