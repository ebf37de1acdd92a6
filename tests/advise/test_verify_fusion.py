"""Batch norms folded into neighbouring layers."""

from __future__ import annotations

import pytest
from torch import nn

from tests.advise.trying import advised, apart, bench, changed, kinds, lively, not_applicable, x

pytestmark = pytest.mark.usefixtures("one_thread")


def test_batch_norms_are_folded_into_plain_and_transposed_convolutions() -> None:
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 2, 3), nn.BatchNorm2d(2))
    model = lively(nn.Sequential(*layers))
    place = bench(model, x(2, 3, 8, 8))

    side = changed(place, advised(model, "conv-bn-fusion", x(2, 3, 8, 8)))

    assert kinds(side).count("Identity") == 2
    assert apart(place, side) < 1e-6


def test_a_batch_norm_is_folded_into_the_linear_layer_before_it() -> None:
    model = lively(nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2)))
    place = bench(model, x(16, 8))

    side = changed(place, advised(model, "linear-bn-fusion", x(16, 8)))

    assert kinds(side).count("BatchNorm1d") == 0
    assert apart(place, side) < 1e-6


def test_a_batch_norm_is_folded_into_the_layer_behind_it() -> None:
    model = lively(nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, bias=False), nn.ReLU()))
    place = bench(model, x(2, 3, 8, 8))

    side = changed(place, advised(model, "norm-linear-fusion", x(2, 3, 8, 8)))

    assert "BatchNorm2d" not in kinds(side)
    assert apart(place, side) < 1e-6


def test_a_norm_that_does_more_is_left_alone() -> None:
    class Odd(nn.BatchNorm2d):
        pass

    model = lively(nn.Sequential(nn.Conv2d(3, 4, 3), Odd(4)))
    place = bench(model, x(1, 3, 8, 8))

    assert "not a separate plain module" in not_applicable(place, advised(model, "conv-bn-fusion", x(1, 3, 8, 8)))


def test_a_convolution_pads_by_itself() -> None:
    model = lively(nn.Sequential(nn.ZeroPad2d((2, 2, 1, 1)), nn.Conv2d(8, 8, (3, 5), padding=(0, 1)), nn.ReLU()))
    place = bench(model, x(2, 8, 20, 20))

    side = changed(place, advised(model, "padding-before-convolution", x(2, 8, 20, 20)))

    assert kinds(side).count("Identity") == 1
    assert apart(place, side) < 1e-6
