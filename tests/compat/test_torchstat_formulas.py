from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchgauge.compat.torchstat import compute_flops, compute_madd, compute_memory

N = 2
# layer, shapes of its inputs, Flops, MAdd, (read, written) elements; written out by hand.
TABLE: list[tuple[nn.Module, list[tuple[int, ...]], int, int, tuple[int, int]]] = [
    (
        nn.Conv2d(4, 6, (3, 2), groups=2),
        [(N, 4, 9, 8)],
        N * 7 * 7 * (3 * 2 * 4 * (6 // 2) + 6),
        6 * 7 * 7 * (2 * 3 * 2 * (4 // 2) - 1 + 1),
        (N * (4 * 9 * 8 + 6 * 2 * 3 * 2 + 6), N * 6 * 7 * 7),
    ),
    (
        nn.Conv2d(4, 6, 3, bias=False),
        [(N, 4, 9, 8)],
        N * 7 * 6 * (3 * 3 * 4 * 6),
        6 * 7 * 6 * (2 * 3 * 3 * 4 - 1),
        (N * (4 * 9 * 8 + 6 * 4 * 3 * 3), N * 6 * 7 * 6),
    ),
    (nn.ConvTranspose2d(4, 6, 3), [(N, 4, 5, 6)], 0, 5 * 6 * 6 * (2 * 3 * 3 * 4), (0, 0)),
    (nn.ConvTranspose2d(4, 6, 3, bias=False), [(N, 4, 5, 6)], 0, 5 * 6 * 6 * (2 * 3 * 3 * 4 - 1), (0, 0)),
    (nn.BatchNorm2d(4), [(N, 4, 5, 6)], N * 120 * 2, 4 * 120, (N * (120 + 8), N * 120)),
    (nn.BatchNorm2d(4, affine=False), [(N, 4, 5, 6)], N * 120, 4 * 120, (N * (120 + 8), N * 120)),
    (nn.MaxPool2d(2), [(N, 4, 6, 8)], N * 192, 3 * 4 * 3 * 4, (N * 192, N * 48)),
    (nn.MaxPool2d((3, 2)), [(N, 4, 6, 8)], N * 192, 5 * 4 * 2 * 4, (N * 192, N * 32)),
    (nn.AvgPool2d(2), [(N, 4, 6, 8)], N * 192, 4 * 4 * 3 * 4, (N * 192, N * 48)),
    (nn.ReLU(), [(N, 4, 5)], N * 20, 20, (N * 20, N * 20)),
    (nn.ReLU6(), [(N, 4, 5)], N * 20, 20, (N * 20, N * 20)),
    (nn.ELU(), [(N, 4, 5)], N * 20, 0, (N * 20, N * 20)),
    (nn.LeakyReLU(), [(N, 4, 5)], N * 20, 0, (N * 20, N * 20)),
    (nn.PReLU(), [(N, 4, 5)], N * 20, 0, (N * (20 + 1), N * 20)),
    (nn.Linear(8, 5), [(N, 8)], N * 8 * 5, 5 * (2 * 8 - 1), (N * (8 + 45), N * 5)),
    (nn.Upsample(scale_factor=2), [(N, 3, 4, 5)], N * 8 * 10, 0, (0, 0)),
    (nn.Softmax(dim=1), [(N, 7)], 0, 3 * 7 - 1, (0, 0)),
    (nn.Softmax(dim=1), [(N, 2, 29, 29)], 0, 3 * (2 * 29 * 29) - 1, (0, 0)),
    (nn.Softmax(dim=-1), [(N, 6, 5)], 0, 3 * (6 * 5) - 1, (0, 0)),
    (nn.Softmax(dim=0), [(7,)], 0, 3 * 7 - 1, (0, 0)),
    (nn.Bilinear(3, 4, 5), [(N, 3), (N, 4)], 0, 5 * (2 * (3 * 4 + 4) - 1), (0, 0)),
]


def called(layer: nn.Module, shapes: list[tuple[int, ...]]) -> tuple[Any, Any]:
    inputs = tuple(torch.zeros(shape) for shape in shapes)
    with torch.no_grad():
        return (inputs[0] if len(inputs) == 1 else inputs), layer(*inputs)


@pytest.mark.parametrize(("layer", "shapes", "flops", "madd", "memory"), TABLE, ids=lambda value: str(value)[:40])
def test_a_layer_of_the_table_has_the_figures_of_its_formulas(
    layer: nn.Module, shapes: list[tuple[int, ...]], flops: int, madd: int, memory: tuple[int, int]
) -> None:
    given, out = called(layer, shapes)
    assert compute_flops(layer, given, out) == flops
    assert compute_madd(layer, given, out) == madd
    assert compute_memory(layer, given, out) == memory


def test_frozen_parameters_are_not_read() -> None:
    layer = nn.Linear(8, 5).requires_grad_(False)
    given, out = called(layer, [(N, 8)])
    assert compute_memory(layer, given, out) == (N * 8, N * 5)


def test_a_linear_layer_works_on_every_row_of_more_dimensions() -> None:
    layer = nn.Linear(8, 5)
    given, out = called(layer, [(N, 3, 4, 8)])
    assert compute_flops(layer, given, out) == N * 12 * 8 * 5
    assert compute_madd(layer, given, out) == 12 * 5 * (2 * 8 - 1)
    assert compute_memory(layer, given, out) == (N * (12 * 8 + 45), N * 12 * 5)


def test_a_layer_of_a_derived_class_has_the_formula_of_its_base() -> None:
    class Stem(nn.Conv2d):
        pass

    given, out = called(Stem(3, 4, 3), [(1, 3, 5, 5)])
    assert compute_flops(Stem(3, 4, 3), given, out) == 3 * 3 * (9 * 3 * 4 + 4)


def test_a_convolution_without_a_batch_is_one_sample() -> None:
    layer = nn.Conv2d(3, 4, 3)
    given, out = called(layer, [(3, 5, 5)])
    assert compute_flops(layer, given, out) == 3 * 3 * (9 * 3 * 4 + 4)
    assert compute_memory(layer, given, out) == (75 + 112, 36)


def test_a_layer_outside_the_table_has_the_projects_cost(capsys: pytest.CaptureFixture[str]) -> None:
    layer = nn.Conv3d(2, 3, 2)
    given, out = called(layer, [(1, 2, 4, 4, 4)])
    macs, biases = 27 * 8 * 2 * 3, 27 * 3
    assert compute_flops(layer, given, out) == macs + biases
    assert compute_madd(layer, given, out) == 2 * macs + biases
    assert compute_memory(layer, given, out) == (128 + 48 + 3, 81)
    assert compute_madd(layer, [given], out) == 2 * macs + biases
    assert "not supported" not in capsys.readouterr().out


def test_figures_do_not_overflow_32_bits() -> None:
    layer = nn.Linear(70_000, 70_000, device="meta")
    given = torch.empty(1, 70_000, device="meta")
    assert compute_flops(layer, given, given) == 70_000**2
    assert compute_madd(layer, given, given) == 70_000 * (2 * 70_000 - 1)
