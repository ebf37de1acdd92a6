from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from torchgauge.verify import Difference, compare_outputs, output_tensors


def apart(before: Any, after: Any) -> Difference:
    return compare_outputs(output_tensors(before), output_tensors(after))


def test_the_error_is_relative_to_the_norm_of_all_outputs_together() -> None:
    before = {"a": torch.tensor([3.0]), "b": [torch.tensor([4.0])]}
    after = {"a": torch.tensor([3.0]), "b": [torch.tensor([4.5])]}

    found = apart(before, after)

    assert found.relative == pytest.approx(0.1)
    assert found.cosine == pytest.approx((9 + 18) / (5 * (9 + 4.5**2) ** 0.5))
    assert found.reason is None


@dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor


def test_the_first_choice_is_that_of_the_logits() -> None:
    before = Output(torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.ones(2, 3))
    after = Output(torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.ones(2, 3))

    assert apart(before, after).top1 == 0.5
    assert apart(before.logits, after.logits).top1 == 0.5
    assert apart(before.hidden[None], after.hidden[None]).top1 is None


def test_outputs_are_kept_from_what_later_runs_write() -> None:
    static = torch.ones(2)
    kept = output_tensors((static, "words", None))
    static.zero_()

    assert [name for name, _ in kept] == [""]
    assert kept[0][1].tolist() == [1.0, 1.0]


def test_other_shapes_cannot_be_compared() -> None:
    assert apart(torch.ones(2), torch.ones(3)).reason == "the outputs have different shapes"
    assert apart(torch.ones(2), (torch.ones(2), torch.ones(2))).reason == "the outputs have different shapes"
    assert "no tensors" in str(apart("words", "words").reason)


def test_what_is_not_finite_cannot_be_compared() -> None:
    nothing = torch.tensor([math.nan, math.inf])

    assert "only one of the two outputs is finite" in str(apart(torch.ones(2), nothing).reason)
    assert "only one of the two outputs is finite" in str(apart(nothing, torch.ones(2)).reason)
    assert "the model's outputs are not finite" in str(apart(nothing, nothing).reason)


def test_what_is_infinite_in_both_is_a_mask() -> None:
    assert apart(torch.tensor([4.0, -math.inf]), torch.tensor([4.4, -math.inf])).relative == pytest.approx(0.1)


def test_without_elements_nothing_differs() -> None:
    assert apart(torch.zeros(0, 4), torch.zeros(0, 4)).relative == 0


class Answer:
    def __init__(self, scores: torch.Tensor) -> None:
        self.scores = scores


def test_objects_are_looked_into_where_there_is_nothing_else() -> None:
    assert [tensor.shape for _, tensor in output_tensors(Answer(torch.ones(2)))] == [(2,)]
    assert [tensor.shape for _, tensor in output_tensors((torch.ones(3), Answer(torch.ones(2))))] == [(3,)]


@pytest.mark.parametrize(("after", "relative"), [([1, 2], 0.0), ([1, 3], 1.0)])
def test_whole_numbers_are_the_same_or_not(after: list[int], relative: float) -> None:
    assert apart(torch.tensor([1, 2]), torch.tensor(after)).relative == relative


@pytest.mark.parametrize(("after", "relative"), [(0.0, 0.0), (1.0, 1.0)])
def test_beside_zero_there_is_no_norm(after: float, relative: float) -> None:
    assert apart(torch.zeros(2), torch.full((2,), after)).relative == relative


def test_a_narrower_type_is_compared_by_its_values_and_complex_numbers_by_their_parts() -> None:
    assert apart(torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.bfloat16)).relative == 0
    assert apart(torch.tensor([3 + 4j]), torch.tensor([3 + 4.5j])).relative == pytest.approx(0.1)
