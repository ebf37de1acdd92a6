from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from torchgauge.errors import TargetError
from torchgauge.source import Recipe, build_without_weights, rng_untouched

pytestmark = pytest.mark.usefixtures("random_state_is_left_alone")


class LooksAtScale(nn.Module):
    """Computes a width from a small tensor, as RegNet does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(int(torch.arange(5).sum()), 3)


class LooksAtWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.norm = self.linear.weight.norm().item()


class Refuses(nn.Module):
    built = 0

    def __init__(self) -> None:
        super().__init__()
        Refuses.built += 1
        raise ValueError("heads must divide width")


def test_parameters_are_on_meta_and_the_model_in_eval_mode() -> None:
    model: Any = build_without_weights(lambda: nn.Sequential(nn.Linear(10**6, 10**6), nn.Dropout()))
    assert model[0].weight.is_meta
    assert not model.training
    assert not model[1].training


def test_a_constructor_that_reads_a_tensor_still_gets_its_parameters_on_meta() -> None:
    model: Any = build_without_weights(LooksAtScale)
    assert model.linear.in_features == 10
    assert model.linear.weight.is_meta


def test_a_constructor_that_reads_its_weights_gets_real_ones() -> None:
    model: Any = build_without_weights(LooksAtWeight)
    assert not model.linear.weight.is_meta
    assert model.norm > 0


def test_an_error_of_the_constructor_itself_is_not_tried_again_with_real_weights() -> None:
    Refuses.built = 0
    with pytest.raises(TargetError, match="the model of a test could not be built: ValueError: heads must divide"):
        Recipe("the model of a test", Refuses).build()
    assert Refuses.built == 1


def test_a_recipe_builds_for_real_on_request_and_where_values_are_looked_at() -> None:
    assert Recipe("linear", lambda: nn.Linear(2, 2)).build().weight.is_meta
    assert not Recipe("linear", lambda: nn.Linear(2, 2)).build_real().weight.is_meta
    assert not Recipe("linear", lambda: nn.Linear(2, 2), looks_at_values=True).build().weight.is_meta


@rng_untouched()
def _seed_everything_and_fail(numpy: Any) -> None:
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(3)
    raise KeyError


def test_all_global_generators_are_restored_also_after_an_error() -> None:
    numpy = pytest.importorskip("numpy")
    before = (torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist())
    with pytest.raises(KeyError):
        _seed_everything_and_fail(numpy)
    assert (torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist()) == before
