"""Times of single ops on a processor, relative to each other: what `tools/cpu_ops.py` measures by class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.advise.planted import seen
from torchgauge.advise.op_time import predicted_times
from torchgauge.advise.processor import attention_seconds, workspace


class Applied(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(*tensors)


def seconds(function: Callable[..., Any], *inputs: Tensor) -> float:
    module = function if isinstance(function, nn.Module) else Applied(function)
    return sum(predicted_times(seen(module, inputs=inputs).forward, None, "cpu", 1, None).values())


def image(*shape: int) -> Tensor:
    return torch.zeros(shape)


def test_a_convolution_with_one_output_channel_takes_as_long_as_with_eight() -> None:
    one, eight = (seconds(nn.Conv2d(64, outputs, 3), image(4, 64, 48, 48)) for outputs in (1, 8))

    assert one > 0.7 * eight


@pytest.mark.parametrize(
    ("slow", "given"),
    [
        (nn.Conv2d(1, 40, (1, 25)), image(8, 1, 22, 600)),  # sums of few terms, and a large result
        (nn.Conv1d(150, 40, 16), image(20, 150, 16)),  # a result of one element
    ],
)
def test_kernels_along_one_side_reach_less_than_square_ones(slow: nn.Module, given: Tensor) -> None:
    """In FLOP per second, against a convolution that fills its kernel."""
    square = nn.Conv2d(64, 64, 3)
    rates = []
    for module, tensor in ((slow, given), (square, image(4, 64, 48, 48))):
        evidence = seen(module, inputs=(tensor,))
        flops = sum(op.cost.flops for op in evidence.forward)
        rates.append(flops / seconds(module, tensor))

    assert rates[0] < 0.6 * rates[1]


def test_many_small_matrices_take_longer_than_one_of_as_many_flops() -> None:
    many = seconds(torch.bmm, image(8000, 4, 16), image(8000, 16, 8))
    one = seconds(torch.bmm, image(1, 320, 400), image(1, 400, 32))

    assert many > 4 * one


def test_short_rows_take_longer_than_long_ones() -> None:
    for function in (lambda h: h.softmax(-1), lambda h: h.sum(-1), lambda h: h.amax(-1)):
        short, long = (seconds(function, image(60_000 // width, width)) for width in (6, 600))
        assert short > 3 * long


def test_a_sparse_product_is_paid_for_by_its_stored_elements() -> None:
    def product(stored: int) -> Callable[[Tensor], Tensor]:
        places = torch.arange(stored).repeat(2, 1) % 2000
        edges = torch.sparse_coo_tensor(places, torch.ones(stored), (2000, 2000), check_invariants=True)
        return lambda h: torch.sparse.mm(edges, h)

    few, many = (seconds(product(count), image(2000, 16)) for count in (2000, 60_000))

    assert many > 10 * few


def test_random_numbers_and_functions_of_the_c_library_take_longer_than_a_pass() -> None:
    plain = seconds(torch.relu, image(400, 500))

    for function in (lambda h: functional.dropout(h, 0.2, True), functional.mish, functional.elu, torch.randn_like):
        assert seconds(function, image(400, 500)) > 3 * plain


def test_an_operand_in_another_order_takes_longer() -> None:
    straight = seconds(torch.mul, image(64, 100, 50), image(100, 50))
    turned = seconds(lambda a, b: a * b.t(), image(64, 100, 50), image(50, 100))

    assert turned > 1.5 * straight


def test_padding_by_reflection_is_no_resampling() -> None:
    padded = seconds(lambda h: functional.pad(h, (1, 1, 1, 1), mode="reflect"), image(4, 16, 64, 64))
    resized = seconds(lambda h: functional.interpolate(h, size=(66, 66), mode="bilinear"), image(4, 16, 64, 64))

    assert padded < resized / 2


def test_depthwise_convolutions_beyond_onednns_kernels_run_in_a_plain_loop() -> None:
    short, long = (
        sum(seen(nn.Conv1d(64, 64, taps, padding=taps // 2, groups=64), 4, 64, 400).times.seconds.values())
        for taps in (13, 15)
    )

    assert long > 4 * short


def test_a_recurrent_layer_is_set_up_at_each_call() -> None:
    one, eight = (sum(seen(nn.LSTM(64, 64), steps, 4, 64).times.seconds.values()) for steps in (1, 8))

    assert one > 5e-5
    assert eight < 4 * one


def test_fused_attention_takes_longer_with_keys_that_do_not_fill_a_vector() -> None:
    """Measured for 128 heads of 16 features: 31 keys 0.72 ms, 32 keys 0.34 ms; 63 keys 1.74 ms, 64 keys 1.13 ms."""

    def seconds(keys: int) -> float:
        return attention_seconds((128, keys, keys), 1e-4, None, 1, is_masked=False, copied=0)

    assert seconds(31) > 1.5 * seconds(32)
    assert seconds(63) > 1.3 * seconds(64)
    assert seconds(256) < seconds(257) < 1.1 * seconds(256)


def test_fused_attention_shares_its_blocks_among_threads() -> None:
    work = [attention_seconds((heads, 16, 64), 0.0, None, 8, is_masked=False, copied=0) for heads in (1, 8)]

    assert work[0] == pytest.approx(work[1])


def test_a_norm_over_another_dimension_takes_time_for_each_result() -> None:
    """Measured for the lengths of 435,000 vectors of three: 42 ms along dimension 2, 2.2 ms along the last."""

    def seconds(dim: int, *shape: int) -> float:
        evidence = seen(Lengths(dim), inputs=(torch.zeros(*shape),))
        return max(evidence.times.seconds.values())

    assert seconds(2, 2, 85, 3, 256, 5) > 10 * seconds(-1, 2, 85, 256, 5, 3)


def test_an_operand_that_is_turned_has_no_vector_code() -> None:
    """Measured with one thread, nanoseconds an element: 0.1 in order, 0.5 to 1.1 turned, 1.0 to 1.7 beyond the caches,
    2.1 to 3.5 where neighbours are a multiple of 4 KiB apart."""

    def ns(rows: int, columns: int, *, is_turned: bool) -> float:
        evidence = seen(Adds(), inputs=(torch.zeros(rows, columns), torch.zeros(columns, rows).t()))
        plain = seen(Adds(), inputs=(torch.zeros(rows, columns), torch.zeros(rows, columns)))
        return max((evidence if is_turned else plain).times.seconds.values()) * 1e9 / (rows * columns)

    assert ns(500, 500, is_turned=True) > 2 * ns(500, 500, is_turned=False)
    assert ns(2000, 1000, is_turned=True) > 1.5 * ns(500, 500, is_turned=True)
    assert ns(1024, 500, is_turned=True) > 1.5 * ns(1000, 500, is_turned=True)


class Lengths(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, a: Tensor) -> Tensor:
        return torch.linalg.vector_norm(a, dim=self.dim)


class Adds(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


def test_the_variance_of_a_whole_tensor_takes_less_than_that_of_its_rows() -> None:
    whole, rows = (seconds(lambda h, dim=dim: h.std(dim), image(300, 900)) for dim in (None, -1))

    assert 4 * whole < rows


def test_a_scale_by_channel_of_an_image_in_channels_last_order_takes_no_longer() -> None:
    """torch goes through the image in its order; a second image in another order is the one that lies apart."""
    last = image(2, 24, 90, 90).to(memory_format=torch.channels_last)
    plain = seconds(torch.mul, image(1, 24, 1, 1), image(2, 24, 90, 90))

    assert seconds(torch.mul, image(1, 24, 1, 1), last) < 1.2 * plain
    assert seconds(torch.mul, last, last.clone()) < 2 * plain
    assert seconds(torch.mul, last, image(2, 24, 90, 90)) > 3 * plain


def test_a_product_of_few_columns_is_slow_where_they_lie_apart() -> None:
    by_rows = seconds(torch.mm, image(900, 400), image(400, 6))

    assert by_rows > 1.5 * seconds(torch.mm, image(900, 400), image(6, 400).t())
    assert by_rows > seconds(torch.mm, image(900, 400), image(400, 16))


def test_tensors_that_are_turned_take_longer_to_join() -> None:
    turned = [image(30, 70, 90).transpose(1, 2) for _ in range(4)]
    plain = [tensor.contiguous() for tensor in turned]

    for join in (torch.cat, torch.stack):
        assert seconds(lambda *parts, join=join: join(parts, 1), *turned) > 3 * seconds(
            lambda *parts, join=join: join(parts, 1), *plain
        )


@pytest.mark.parametrize("function", [torch.isnan, lambda h: (h > 0).any(), lambda h: (h > 0).all()])
def test_tests_of_each_element_take_longer_than_a_pass(function: Callable[[Tensor], Tensor]) -> None:
    assert seconds(function, image(400, 500)) > 1.5 * seconds(torch.neg, image(400, 500))


def test_small_systems_reach_less_of_the_rate_than_large_ones() -> None:
    rates = []
    for count, size in ((64, 12), (1, 256)):
        given = (image(count, size, size), image(count, size, 8))
        ops = seen(Applied(torch.linalg.solve), inputs=given).forward
        rates.append(sum(op.cost.flops for op in ops) / seconds(torch.linalg.solve, *given))

    assert 3 * rates[0] < rates[1]


def test_a_call_that_splits_a_tensor_takes_longer_for_more_parts() -> None:
    few, many = (seconds(lambda h, parts=parts: h.chunk(parts, 1), image(8, 120)) for parts in (2, 40))

    assert many > 4 * few


def test_a_weight_norm_by_the_last_of_few_columns_is_slow() -> None:
    first, last = (
        seconds(lambda v, g, dim=dim: torch._weight_norm(v, g, dim), image(96, 200, 5), torch.ones(shape))
        for dim, shape in ((0, (96, 1, 1)), (2, (1, 1, 5)))
    )

    assert last > 2 * first


def test_the_workspace_of_a_convolution_is_what_onednn_copies() -> None:
    def blocks(layer: nn.Module, *shape: int) -> list[int]:
        [conv] = [op for op in seen(layer, inputs=(image(*shape),)).forward if op.category == "convolution"]
        return [nbytes // 4 for nbytes in workspace(conv)]

    assert blocks(nn.Conv2d(32, 8, 3), 4, 32, 34, 34) == [4 * 32 * 34**2, 8 * 32 * 9, 4 * 8 * 32**2]
    assert blocks(nn.Conv2d(3, 8, 3), 4, 3, 66, 66)[0] == 0  # read as it is
    assert blocks(nn.Conv2d(32, 8, 1), 4, 32, 34, 34) == []  # a product
    assert blocks(nn.Conv2d(4, 8, 3), 1, 4, 18, 18) == [4 * 9 * 16**2]  # patches


def test_two_rows_read_a_large_weight_twice_and_four_once() -> None:
    """Measured on an EPYC: 1.5, 3.4 and 1.9 ms for one, two and four rows of 512 × 9,488."""
    layer = nn.Linear(512, 9488)
    one, two, four = (seconds(layer, image(rows, 512)) for rows in (1, 2, 4))

    assert two > 1.7 * one
    assert four < 1.2 * two


def test_a_weight_in_a_cache_is_read_faster_than_one_from_memory() -> None:
    small, large = (seconds(nn.Linear(side, side), image(2, side)) / side**2 for side in (256, 1024))

    assert large > 1.2 * small


def test_matrices_of_few_elements_are_multiplied_in_a_loop() -> None:
    """0.75 ms for 1,920 products of 1 × 8 and 8 × 32, of which a vectorized one would take a tenth."""
    first, rows = image(1920, 1, 8), image(1920, 8, 32)
    columns = image(1920, 32, 8).transpose(1, 2)

    assert seconds(torch.bmm, first, rows) > 0.3e-3
    assert seconds(torch.bmm, first, columns) < 0.6 * seconds(torch.bmm, first, rows)


def test_matrices_whose_rows_and_columns_lie_apart_are_copied_first() -> None:
    apart = image(32, 32, 512).permute(2, 0, 1)

    assert seconds(torch.bmm, image(512, 8, 32), apart) > 1.5 * seconds(
        torch.bmm, image(512, 8, 32), image(512, 32, 32)
    )


def test_convolutions_of_float64_copy_the_patches_of_the_image() -> None:
    layer, given = nn.Conv2d(32, 32, 3, padding=1), image(4, 32, 64, 64)
    narrow, wide = seconds(layer, given), seconds(layer.double(), given.double())

    assert wide > 2.5 * narrow


def test_a_small_volume_takes_longer_than_a_large_one_for_each_element() -> None:
    """oneDNN takes volumes from 20,480 elements × height on; 24 and 17 ms were measured for these."""
    layer = nn.Conv3d(32, 32, 3, padding=1)

    assert seconds(layer, image(1, 32, 24, 24, 24)) > 0.6 * seconds(layer, image(1, 32, 32, 32, 32))


def test_a_norm_over_the_last_dimension_is_slow_where_its_elements_lie_apart() -> None:
    def norm(tensor: Tensor) -> Tensor:
        return tensor.norm(dim=-1)

    given = image(8, 128, 200)

    assert seconds(norm, given.transpose(1, 2)) > 2 * seconds(norm, image(8, 200, 128))


def test_a_number_of_pythons_costs_a_call_more_than_a_tensor() -> None:
    def with_number(tensor: Tensor) -> Tensor:
        return tensor * 2.0

    assert seconds(with_number, image(8, 8)) > 1.3 * seconds(torch.mul, image(8, 8), image(8, 8))
