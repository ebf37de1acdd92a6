"""Closed forms, and a plain search over sorted magnitudes and norms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.weights.blocked import BlockedRows
from torchgauge.weights import ArrayRows, structured_pruning, tally_bytes, unstructured_pruning

Matrix = NDArray[Any]
NOTHING = {"0.01": 0.0, "0.05": 0.0}
EVERYTHING = {"0.01": 1.0, "0.05": 1.0}


def by_magnitude(values: Any, dtype: str = "float32") -> dict[str, float | None]:
    tensor = torch.as_tensor(np.asarray(values)).to(getattr(torch, dtype))
    raw = tensor.view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)
    found = unstructured_pruning(tally_bytes(raw, dtype))["magnitude"]
    assert found is not None
    return found


def search(energies: Matrix) -> dict[str, float]:
    """The largest number of the smallest energies whose sum stays below, one by one."""
    ordered = np.sort(np.asarray(energies, np.float64).ravel())
    sums = np.cumsum(ordered)
    return {text: float((sums <= float(text) ** 2 * sums[-1]).sum() / len(sums)) for text in ("0.01", "0.05")}


def random_matrix(*shape: int, seed: int = 0) -> Matrix:
    random = np.random.default_rng(seed)
    scales = 10.0 ** random.uniform(-4, 0, (shape[0], *[1] * (len(shape) - 1)))
    return (random.standard_normal(shape) * scales).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_of_equal_values_the_square_of_the_error_may_go(dtype: str) -> None:
    assert by_magnitude(np.full(10_000, -3.0), dtype) == {"0.01": 1 / 10_000, "0.05": 25 / 10_000}
    assert by_magnitude(np.full(9_999, 3.0), dtype) == {"0.01": 0.0, "0.05": 24 / 9_999}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_zeros_go_for_nothing(dtype: str) -> None:
    assert by_magnitude([0.0, -0.0, 0.0, 1.0], dtype) == {"0.01": 0.75, "0.05": 0.75}
    assert by_magnitude([0.0] * 9, dtype) == EVERYTHING


def test_two_levels_go_one_after_the_other() -> None:
    """1000 values of 0.01 have an energy of 0.1 against 100: all of them are 3.2 % of the norm, and 98 are 1 %."""
    values = np.concatenate([np.full(1_000, 2.0**-7), np.full(6, 4.0)])
    small = 1_000 * 2.0**-14
    total = small + 96
    found = by_magnitude(values, "bfloat16")
    assert small < 0.05**2 * total
    assert found["0.05"] == 1_000 / 1_006
    assert found["0.01"] == int(1e-4 * total * 2**14) / 1_006


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_types_of_16_bits_agree_with_sorting_every_value(dtype: str) -> None:
    values = torch.randn(20_000, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    assert by_magnitude(values.double().numpy(), dtype) == pytest.approx(search(values.double().numpy() ** 2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wider_types_agree_to_the_width_of_a_range(dtype: str) -> None:
    values = np.random.default_rng(0).standard_t(3, 100_000)
    assert by_magnitude(values, dtype) == pytest.approx(search(values**2), rel=2e-3)


def test_normal_values_let_six_percent_go_at_one_percent() -> None:
    """With share p of the density around 0 removed, p = 2tφ(0) and the energy is 2t³φ(0)/3: t³ = 3e²/(2φ(0))."""
    density = 1 / np.sqrt(2 * np.pi)
    cut = (1.5 * 1e-4 / density) ** (1 / 3)
    values = np.random.default_rng(1).standard_normal(200_000)
    assert by_magnitude(values)["0.01"] == pytest.approx(2 * cut * density, rel=0.02)


def test_only_finite_values_count() -> None:
    assert by_magnitude([np.nan, np.inf, 0.0, 5.0]) == {"0.01": 0.5, "0.05": 0.5}
    for values in ([], [np.nan], [np.inf, -np.inf]):
        assert by_magnitude(np.array(values)) == {"0.01": None, "0.05": None}


@pytest.mark.parametrize("exponent", [1000, -1000])
def test_huge_and_tiny_doubles_are_judged_like_ordinary_ones(exponent: int) -> None:
    values = np.random.default_rng(2).standard_normal(5_000)
    assert by_magnitude(np.ldexp(values, exponent), "float64") == by_magnitude(values, "float64")
    matrix = random_matrix(30, 40).astype(np.float64)
    assert structured_pruning(BlockedRows("weight", np.ldexp(matrix, exponent))) == structured_pruning(
        BlockedRows("weight", matrix)
    )


@pytest.mark.parametrize("shape", [(50, 30), (7, 130), (31, 1)])
def test_rows_and_columns_agree_with_sorting_their_norms(shape: tuple[int, int]) -> None:
    for matrix in (random_matrix(*shape), random_matrix(*shape[::-1]).T):
        found: Any = structured_pruning(BlockedRows("weight", matrix))
        squares = matrix.astype(np.float64) ** 2
        assert found["rows"] == search(squares.sum(axis=1))
        assert found["columns"] == search(squares.sum(axis=0))
        assert found["channels"] is found["heads"] is None


def test_rows_of_zeros_can_always_go() -> None:
    matrix = np.ones((8, 4), np.float32)
    matrix[:2] = 0
    found: Any = structured_pruning(ArrayRows("weight", matrix))
    assert found["rows"] == {"0.01": 0.25, "0.05": 0.25}
    assert found["columns"] == NOTHING
    assert structured_pruning(ArrayRows("weight", np.zeros((3, 3))))["rows"] == EVERYTHING


@pytest.mark.parametrize("shape", [(20, 16, 3, 3), (10, 6, 5), (4, 3, 2, 2, 2)])
def test_channels_of_a_convolution_are_its_inputs(shape: tuple[int, ...]) -> None:
    weight = np.ascontiguousarray(np.swapaxes(random_matrix(shape[1], shape[0], *shape[2:]), 0, 1))
    found: Any = structured_pruning(BlockedRows("conv.weight", weight))
    squares = weight.astype(np.float64) ** 2
    others = tuple(range(2, len(shape)))
    assert found["channels"] == search(squares.sum(axis=(0, *others)))
    assert found["rows"] == search(squares.sum(axis=(1, *others)))
    assert found["channels"] != NOTHING


def headed(heads: int, width: int, columns: int, *, dead: int) -> Matrix:
    """Of the heads, the first `dead` are zeros."""
    matrix = np.ones((heads, width, columns), np.float32)
    matrix[:dead] = 0
    return matrix.reshape(heads * width, columns)


@pytest.mark.parametrize(
    "name", ["h.0.attn.q_proj.weight", "self.query.weight", "layer.SelfAttention.k", "to_v.weight"]
)
def test_heads_of_queries_keys_and_values_are_rows(name: str) -> None:
    found: Any = structured_pruning(ArrayRows(name, headed(8, 4, 32, dead=2)), heads=8)
    assert found["heads"] == {"0.01": 0.25, "0.05": 0.25}


@pytest.mark.parametrize(
    "name", ["attn.o_proj.weight", "attn.proj.weight", "attention.output.dense.weight", "to_out.0.weight"]
)
def test_heads_of_the_output_are_columns(name: str) -> None:
    matrix = np.ascontiguousarray(headed(8, 4, 32, dead=3).T)
    assert structured_pruning(ArrayRows(name, matrix), heads=8)["heads"] == {"0.01": 0.375, "0.05": 0.375}


def test_a_head_of_a_fused_projection_goes_with_its_query_key_and_value() -> None:
    parts = [headed(8, 4, 32, dead=dead) for dead in (4, 2, 3)]
    found: Any = structured_pruning(ArrayRows("blocks.0.attn.qkv.weight", np.concatenate(parts)), heads=8)
    assert found["heads"] == {"0.01": 0.25, "0.05": 0.25}


def test_grouped_queries_have_fewer_key_heads_of_the_same_width() -> None:
    matrix = headed(2, 4, 32, dead=1)
    assert structured_pruning(ArrayRows("attn.k_proj.weight", matrix), heads=8)["heads"] == {"0.01": 0.5, "0.05": 0.5}


@pytest.mark.parametrize(
    ("name", "heads"),
    [("mlp.up_proj.weight", 8), ("mlp.proj.weight", 8), ("attn.q_proj.weight", 5), ("attn.q_proj.weight", None),
     ("attn.k_proj.weight", 5), ("attn.qkv.weight", 7)],
)  # fmt: skip
def test_there_are_no_heads_where_name_or_shape_do_not_tell(name: str, heads: int | None) -> None:
    assert structured_pruning(ArrayRows(name, headed(8, 4, 33, dead=2)), heads=heads)["heads"] is None


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 7, 8, 130])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_two_of_four_keeps_the_largest(columns: int, dtype: type[Any]) -> None:
    matrix = np.random.default_rng(columns).standard_normal((10, columns)).astype(dtype)
    padded = np.zeros((10, -(-columns // 4) * 4))
    padded[:, :columns] = matrix.astype(np.float64) ** 2
    quads = np.sort(padded.reshape(-1, 4), axis=1)
    kept: Any = structured_pruning(BlockedRows("weight", matrix))["two_four_energy"]
    assert kept == pytest.approx(quads[:, 2:].sum() / padded.sum(), rel=1e-12)


def test_of_equal_values_two_of_four_keeps_half_and_of_a_sparse_matrix_all() -> None:
    assert structured_pruning(ArrayRows("weight", np.full((3, 8), -2.0, np.float32)))["two_four_energy"] == 0.5
    sparse = np.tile(np.array([0, 3, 0, -1], np.float32), (5, 2))
    assert structured_pruning(ArrayRows("weight", sparse))["two_four_energy"] == 1
    assert structured_pruning(ArrayRows("weight", np.zeros((2, 4))))["two_four_energy"] is None


@pytest.mark.parametrize("array", [np.ones(5), np.float32(3), np.empty((0, 4)), np.empty((4, 0))])
def test_vectors_and_empty_tensors_have_no_structure(array: Matrix) -> None:
    found: Any = structured_pruning(ArrayRows("bias", np.asarray(array)), heads=1)
    assert found == dict.fromkeys(("rows", "columns", "channels", "heads", "two_four_energy"))
