"""Factorisations and solves, with the leading terms of Golub and Van Loan's "Matrix Computations".

No MACs: what a solver multiplies inside is its own affair.

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
from torchgauge.cost.work import COMPLEX_SOLVER, argument, arithmetic
from torchgauge.facts import TensorSpec

_SQUARE: Mapping[str, Callable[[int], int]] = {
    "cholesky": lambda n: n**3 // 3,
    "linalg_cholesky_ex": lambda n: n**3 // 3,
    "cholesky_inverse": lambda n: 2 * n**3 // 3,
    "linalg_ldl_factor_ex": lambda n: n**3 // 3,
    "_linalg_det": lambda n: 2 * n**3 // 3,
    "_linalg_slogdet": lambda n: 2 * n**3 // 3,
    "linalg_inv_ex": lambda n: 2 * n**3,
    "linalg_eig": lambda n: 25 * n**3,
    "_linalg_eigvals": lambda n: 10 * n**3,
    "linalg_matrix_exp": lambda n: 10 * n**3,
}


for _name, _flops in _SQUARE.items():

    @formula(f"aten::{_name}", category="other")
    def factorise(call: Call, flops: Callable[[int], int] = _flops) -> Work:
        matrix = call.first
        return arithmetic(call, prod(matrix.shape[:-2]) * flops(matrix.shape[-1]), COMPLEX_SOLVER)


@formula("aten::_linalg_eigh", category="other")
def eigh(call: Call) -> Work:
    n = call["A"].shape[-1]
    return _batched(call, 9 * n**3 if call.get("compute_v", True) else 4 * n**3 // 3)


@formula("aten::linalg_lu_factor_ex", "aten::linalg_lu", category="other")
def lu(call: Call) -> Work:
    m, n = _sides(call.first)
    return _batched(call, m * n**2 - n**3 // 3)


@formula("aten::linalg_qr", category="other")
def qr(call: Call) -> Work:
    return _batched(call, _qr_flops(call.first) * (1 if call.get("mode") == "r" else 2))


@formula("aten::geqrf", "aten::linalg_householder_product", category="other")
def householder(call: Call) -> Work:
    return _batched(call, _qr_flops(call.first))


@formula("aten::ormqr", category="other")
def multiply_by_q(call: Call) -> Work:
    """Each of k reflections updates the other matrix: 4 flops per element."""
    return arithmetic(call, 4 * call["input3"].numel * call["input2"].shape[-1], COMPLEX_SOLVER)


@formula("aten::_linalg_svd", category="other")
def svd(call: Call) -> Work:
    m, n = _sides(call.first)
    vectors = call.get("compute_uv", True)
    return _batched(call, 14 * m * n**2 + 8 * n**3 if vectors else 4 * m * n**2 - 4 * n**3 // 3)


@formula("aten::linalg_pinv", category="other")
def pinv(call: Call) -> Work:
    """By singular values: V (1/s) Uᵀ."""
    m, n = _sides(call.first)
    return _batched(call, 14 * m * n**2 + 8 * n**3 + 2 * m * n**2)


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
    matrix, right = call["self"], call["b"]
    solved = 4 * right.numel * matrix.shape[-1]
    return arithmetic(call, prod(matrix.shape[:-2]) * _qr_flops(matrix) + solved, COMPLEX_SOLVER)


def _batched(call: Call, flops: int) -> Work:
    return arithmetic(call, prod(call.first.shape[:-2]) * flops, COMPLEX_SOLVER)


def _sides(matrix: TensorSpec) -> tuple[int, int]:
    """The longer and the shorter side."""
    return max(matrix.shape[-2:]), min(matrix.shape[-2:])


def _qr_flops(matrix: TensorSpec) -> int:
    m, n = _sides(matrix)
    return 2 * m * n**2 - 2 * n**3 // 3


# Fast Fourier transforms: 5 N log₂ N real operations for N complex points, half of it where one side is real. N is the
# number of points over all transformed dimensions together; on the real side where there is one.

_COMPLEX_FLOPS, _REAL_FLOPS = 5.0, 2.5


@formula("aten::_fft_c2c", category="fft")
def complex_fft(call: Call) -> Work:
    return Work(flops=_fft_flops(call["self"], call["dim"], _COMPLEX_FLOPS))


@formula("aten::_fft_r2c", category="fft")
def real_fft(call: Call) -> Work:
    return Work(flops=_fft_flops(call["self"], call["dim"], _REAL_FLOPS))


@formula("aten::_fft_c2r", category="fft")
def inverse_real_fft(call: Call) -> Work:
    return Work(flops=_fft_flops(call.out, call["dim"], _REAL_FLOPS))


def _fft_flops(points: TensorSpec, dims: list[int], rate: float) -> int:
    size = prod(points.shape[dim] for dim in dims)
    return round(rate * points.numel * log2(size)) if size > 1 else 0
