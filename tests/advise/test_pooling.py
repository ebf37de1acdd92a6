"""Maximum pooling with large windows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.pasting import check_code
from tests.advise.planted import gain_of, said, seen
from tests.advise.trying import advised, apart, bench, changed, lively
from torchgauge.advise import Advice


def pools(model: nn.Module, given: Tensor) -> list[Advice]:
    return [advice for advice in said(seen(model, inputs=(given,))) if advice.rule == "large-max-pool"]


@pytest.mark.parametrize(
    ("pool", "given"),
    [
        (nn.MaxPool2d(7, 1, 3), x(1, 8, 24, 24)),
        (nn.MaxPool2d((9, 5), 1, (4, 0)), x(2, 4, 30, 30)),
        (nn.MaxPool2d(13, 1, 6), x(1, 16, 12, 12)),
        (nn.MaxPool3d(5, 1, 2), x(1, 4, 8, 12, 12)),
    ],
    ids=["plane", "not square", "larger than the image", "volume"],
)
def test_a_large_window_is_pooled_by_row_and_by_column(pool: nn.Module, given: Tensor) -> None:
    model = nn.Sequential(nn.Identity(), pool).eval()
    (found,) = pools(model, given)

    assert found.where.module == "1"
    assert gain_of(found).low > 0.1
    assert found.code is not None
    check_code(found, model, (given,))


@pytest.mark.parametrize(
    ("pool", "given"),
    [
        (nn.MaxPool2d(3, 1, 1), x(1, 8, 24, 24)),
        (nn.MaxPool2d(7), x(1, 8, 28, 28)),
        (nn.MaxPool2d(7, 2, 3), x(1, 8, 24, 24)),
        (nn.MaxPool2d((1, 9), 1, (0, 4)), x(1, 8, 24, 24)),
        (nn.AvgPool2d(7, 1, 3), x(1, 8, 24, 24)),
        (nn.MaxPool1d(9, 1, 4), x(1, 8, 24)),
    ],
    ids=["small", "stride of the window", "stride", "one row", "average", "one dimension"],
)
def test_other_pools_stay(pool: nn.Module, given: Tensor) -> None:
    assert pools(nn.Sequential(nn.Identity(), pool), given) == []


def test_a_pool_whose_places_are_read_stays() -> None:
    def unpooled(self: Any, h: Tensor) -> Tensor:
        found, places = nn.functional.max_pool2d(h, 7, 1, 3, return_indices=True)
        return found + places.remainder(2)

    assert pools(Does(unpooled), x(1, 8, 24, 24)) == []


def test_a_function_has_no_code() -> None:
    def by_function(self: Any, h: Tensor) -> Tensor:
        return nn.functional.max_pool2d(h, 7, 1, 3)

    (found,) = pools(Does(by_function), x(1, 8, 24, 24))
    assert found.code is None


@pytest.mark.usefixtures("one_thread")
def test_verification_pools_by_row() -> None:
    model = lively(nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(7, 1, 3), nn.MaxPool2d(5, 1, 2)))
    place = bench(model, x(2, 3, 20, 20))

    side = changed(place, advised(model, "large-max-pool", x(2, 3, 20, 20)))

    assert [type(each).__name__ for each in side.subject.model.children()] == ["Conv2d", "Sequential", "Sequential"]
    assert apart(place, side) == 0


@pytest.mark.parametrize("gives_positions", [False, True])
def test_a_pool_that_gives_the_positions_of_its_maxima_stays(gives_positions: bool) -> None:
    def forward(m: Any, image: Tensor) -> Any:
        found = m.pool(torch.tanh(image))
        return found if gives_positions else torch.relu(found)

    model = Does(forward, pool=nn.MaxPool2d(9, 1, 4, return_indices=gives_positions))
    rules = {advice.rule for advice in said(seen(model, inputs=(x(1, 8, 40, 40),)))}
    assert ("large-max-pool" in rules) is not gives_positions
