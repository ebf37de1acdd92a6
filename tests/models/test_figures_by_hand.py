"""FLOPs, bytes and memory of models small enough to count on paper; all numbers are float32, 4 bytes."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from tests.models.checked import analyze_checked
from torchgauge.facts import OpRow

BYTES = 4


def computed(rows: list[OpRow]) -> list[OpRow]:
    return [row for row in rows if row.status == "counted"]


def test_a_linear_layer_and_a_relu() -> None:
    analysis = analyze_checked(nn.Sequential(nn.Linear(4, 5), nn.ReLU()), input_size=(3, 4))
    linear, relu = computed(analysis.ops)
    x, weight, bias, y = 3 * 4, 4 * 5, 5, 3 * 5
    assert (linear.macs, linear.flops) == (3 * 4 * 5, 2 * 3 * 4 * 5 + y)
    assert (linear.bytes_read, linear.bytes_written) == ((x + weight + bias) * BYTES, y * BYTES)
    assert (relu.macs, relu.flops) == (0, y)
    assert (relu.bytes_read, relu.bytes_written) == (y * BYTES, y * BYTES)
    assert analysis.totals.activation_bytes == 2 * y * BYTES
    assert analysis.totals.peak_activation_bytes == (x + 2 * y) * BYTES


def test_a_convolution_and_a_batch_norm() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
    analysis = analyze_checked(model, input_size=(2, 3, 6, 6))
    convolution, norm = computed(analysis.ops)
    x, weight, y = 2 * 3 * 36, 8 * 3 * 9, 2 * 8 * 36
    assert (convolution.macs, convolution.flops) == (y * 3 * 9, 2 * y * 3 * 9)
    assert (convolution.bytes_read, convolution.bytes_written) == ((x + weight) * BYTES, y * BYTES)
    # Minus the mean, times the inverse deviation, times the weight, plus the bias; per channel add ε, take the root.
    assert norm.flops == 4 * y + 2 * 8
    assert (norm.bytes_read, norm.bytes_written) == ((y + 4 * 8) * BYTES, y * BYTES)
    assert analysis.totals.peak_activation_bytes == (x + 2 * y) * BYTES


def test_the_memory_of_an_mlp_is_its_input_and_the_two_tensors_of_the_widest_step() -> None:
    rows, widths = 3, (4, 50, 40, 5)
    layers = [nn.Linear(before, after) for before, after in pairwise(widths)]
    analysis = analyze_checked(nn.Sequential(*layers), input_size=(rows, 4))
    assert [row.live_bytes for row in computed(analysis.ops)] == [
        (4 + 50) * rows * BYTES,
        (4 + 50 + 40) * rows * BYTES,
        (4 + 40 + 5) * rows * BYTES,
    ]
    assert analysis.totals.peak_activation_bytes == (4 + 50 + 40) * rows * BYTES
    assert analysis.totals.activation_bytes == (50 + 40 + 5) * rows * BYTES


def test_an_in_place_relu_makes_no_new_tensor() -> None:
    analysis = analyze_checked(nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True)), input_size=(3, 4))
    relu = computed(analysis.ops)[-1]
    assert relu.activation_bytes == 0
    assert (relu.bytes_read, relu.bytes_written) == (3 * 5 * BYTES, 3 * 5 * BYTES)
    assert analysis.totals.peak_activation_bytes == (3 * 4 + 3 * 5) * BYTES


def test_views_cost_nothing() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Unflatten(1, (2, 8)), nn.Identity())
    analysis = analyze_checked(model, input_size=(3, 4, 4))
    assert {row.status for row in analysis.ops} == {"free"}
    assert analysis.totals.flops == analysis.totals.bytes_read == analysis.totals.bytes_written == 0
    assert analysis.totals.peak_activation_bytes == 3 * 4 * 4 * BYTES


def test_parameters_and_buffers_are_counted_in_bytes_by_their_types() -> None:
    analysis = analyze_checked(nn.BatchNorm1d(6), input_size=(3, 6))
    assert analysis.totals.param_bytes == 2 * 6 * 4
    # The number of batches seen is one int64.
    assert analysis.totals.buffer_bytes == 2 * 6 * 4 + 8


def test_half_precision_moves_half_the_bytes_and_counts_the_same_flops() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    full, half = (analyze_checked(model, input_size=(3, 4), dtype=dtype).totals for dtype in ("float32", "bfloat16"))
    assert (half.macs, half.flops) == (full.macs, full.flops)
    for name in ("bytes_read", "bytes_written", "activation_bytes", "peak_activation_bytes"):
        assert 2 * half[name] == full[name]
