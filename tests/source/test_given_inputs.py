from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from torchgauge.errors import InputError, UsageError
from torchgauge.source import Candidate, candidate_inputs, parse_input


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        return self.linear(x if y is None else x + y)


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return self.table(x)


class Batch(nn.Module):
    def forward(self, batch: Any) -> Any:
        return batch["image"]


class Point(NamedTuple):
    x: Tensor
    y: Tensor


def only(model: nn.Module, **options: Any) -> Candidate:
    (candidate,) = candidate_inputs(model, **options)
    return candidate


def describe(tensors: Any) -> list[tuple[tuple[int, ...], torch.dtype, str]]:
    return [(tuple(tensor.shape), tensor.dtype, tensor.device.type) for tensor in tensors]


def test_a_tensor_is_the_one_argument_and_stays_as_it_is() -> None:
    x = torch.zeros(1, 4)
    candidate = only(Pair(), inputs=x)
    assert candidate.args[0] is x
    assert candidate.kwargs == {}
    assert candidate.reason is None


def test_a_tuple_is_the_arguments_and_a_dict_the_keywords() -> None:
    x, y = torch.zeros(1, 4), torch.ones(1, 4)
    assert only(Pair(), inputs=(x, y)).args == (x, y)
    assert only(Pair(), inputs={"y": y, "x": x}).kwargs == {"y": y, "x": x}


def test_a_list_and_a_named_tuple_are_one_argument() -> None:
    images, point = [torch.zeros(3, 8, 8)], Point(torch.zeros(1), torch.zeros(1))
    assert only(Batch(), inputs=images).args == (images,)
    assert only(Batch(), inputs=point).args == (point,)


def test_a_dict_of_names_that_forward_lacks_is_its_one_argument() -> None:
    batch = {"image": torch.zeros(1, 3)}
    candidate = only(Batch(), inputs=batch)
    assert candidate.args == (batch,)
    assert candidate.kwargs == {}


def test_keywords_are_added_to_the_inputs() -> None:
    x, y = torch.zeros(1, 4), torch.ones(1, 4)
    candidate = only(Pair(), inputs=x, kwargs={"y": y})
    assert candidate.args == (x,)
    assert candidate.kwargs == {"y": y}


def test_keywords_that_hold_all_the_tensors_are_the_inputs() -> None:
    x = torch.zeros(1, 4)
    candidate = only(Pair(), kwargs={"x": x})
    assert candidate == Candidate((), {"x": x}, None, has_values=True)


def test_one_size_makes_one_tensor_without_values_of_the_models_type() -> None:
    candidate = only(Pair().to(torch.bfloat16), input_size=(2, 4))
    assert describe(candidate.args) == [((2, 4), torch.bfloat16, "meta")]
    assert candidate.reason is None


def test_several_sizes_make_the_arguments_in_order() -> None:
    candidate = only(Pair(), input_size=[(1, 4), (3, 4)], dtype=torch.float64)
    assert describe(candidate.args) == [((1, 4), torch.float64, "meta"), ((3, 4), torch.float64, "meta")]


def test_sizes_by_name_make_keywords() -> None:
    candidate = only(Pair(), input_size={"x": (1, 4), "y": [1, 4]})
    assert candidate.args == ()
    assert describe(candidate.kwargs.values()) == [((1, 4), torch.float32, "meta")] * 2


def test_a_size_for_a_model_with_an_embedding_is_tried_as_ids_too() -> None:
    as_floats, as_ids = candidate_inputs(Text(), input_size=(1, 7))
    assert describe(as_floats.args) == [((1, 7), torch.float32, "meta")]
    assert as_floats.reason is None
    assert describe(as_ids.args) == [((1, 7), torch.int64, "cpu")]
    assert as_ids.args[0].unique().tolist() == [1]
    assert as_ids.reason == "x int64: the model has an embedding"


def test_ids_stay_within_a_vocabulary_of_one() -> None:
    model = nn.Sequential(nn.Embedding(1, 4))
    *_, as_ids = candidate_inputs(model, input_size=(1, 3))
    assert as_ids.args[0].tolist() == [[0, 0, 0]]


def test_specs_of_the_command_line_fill_positions_and_names() -> None:
    specs = [parse_input("1x7:int64"), parse_input("mask=1x7:bool")]
    candidate = only(Text(), specs=specs)
    assert describe(candidate.args) == [((1, 7), torch.int64, "cpu")]
    assert describe(candidate.kwargs.values()) == [((1, 7), torch.bool, "cpu")]
    assert candidate.kwargs["mask"].all()
    assert candidate.reason is None


def test_a_mask_of_unknown_type_is_tried_as_bool_first() -> None:
    first = next(candidate_inputs(Text(), specs=[parse_input("1x7:int64"), parse_input("mask=1x7")]))
    assert first.kwargs["mask"].dtype is torch.bool
    assert first.reason == "mask bool: from its name"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"specs": [parse_input("z=1x4")]}, "forward has no parameter 'z': it takes x, y"),
        ({"specs": [parse_input("y=1x4")]}, "forward also needs x"),
        ({"specs": [parse_input("x=1x4"), parse_input("x=1x4")]}, "'x' is given twice"),
        ({"input_size": [(1, 4)] * 3}, "3 positional inputs are given"),
        ({"input_size": (1, -4)}, "is not a shape"),
        ({"input_size": "1x4"}, "is not a shape"),
        ({"input_size": (1, True)}, "is not a shape"),
        ({"input_size": [(1, 4), 4.5]}, "is not a shape"),
        ({"inputs": (1, 2, 3)}, "3 positional inputs are given"),
        ({"inputs": torch.zeros(1), "kwargs": {"z": 1}}, "no parameter 'z'"),
        ({"kwargs": {"z": 1}}, "no parameter 'z'"),
    ],
)
def test_inputs_that_do_not_fit_are_an_input_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        next(candidate_inputs(Pair(), **options))


@pytest.mark.parametrize(
    "options",
    [
        {"inputs": torch.zeros(1, 4), "input_size": (1, 4)},
        {"input_size": (1, 4), "specs": [parse_input("1x4")]},
        {"input_size": (1, 4), "batch": 2},
        {"inputs": torch.zeros(1, 4), "seq": 2},
        {"batch": 0},
    ],
)
def test_contradicting_ways_of_giving_inputs_are_a_usage_error(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        next(candidate_inputs(Pair(), **options))
