from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchgauge.errors import InputError
from torchgauge.source import forward_signature

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return (x + y) * scale


class Anything(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


class Images(nn.Module):
    def forward(self, images: list[Tensor]) -> Tensor:
        return images[0]


def doubled(forward: Any) -> Any:
    @functools.wraps(forward)
    def wrapper(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return 2 * forward(self, *args, **kwargs)

    return wrapper


class Wrapped(nn.Module):
    @doubled
    def forward(self, ids: Tensor, *, mask: Tensor) -> Tensor:
        return ids * mask


def test_required_parameters_are_those_without_a_default() -> None:
    signature = forward_signature(Two())
    assert [p.name for p in signature.required()] == ["x", "y"]
    assert [p.name for p in signature.required({"x"})] == ["y"]
    assert signature.names == ("x", "y", "scale")


def test_a_wrapped_forward_shows_its_own_parameters() -> None:
    signature = forward_signature(Wrapped())
    assert signature.names == ("ids", "mask")
    assert [p.name for p in signature.positional] == ["ids"]


def test_a_scripted_module_gives_its_schema() -> None:
    signature = forward_signature(torch.jit.script(Two()))
    assert [(p.name, p.is_required) for p in signature.parameters] == [("x", True), ("y", True), ("scale", False)]


def test_a_list_of_tensors_is_known_from_the_annotation() -> None:
    assert forward_signature(Images()).parameters[0].is_tensor_list
    assert forward_signature(torch.jit.script(Images())).parameters[0].is_tensor_list
    assert not forward_signature(Two()).parameters[0].is_tensor_list


def test_variadic_forwards_take_everything() -> None:
    forward_signature(Anything()).check(7, {"whatever"})


@pytest.mark.parametrize(
    ("positional", "keywords", "message"),
    [
        (4, (), "4 positional inputs are given, but forward takes x, y, scale"),
        (1, (), "forward also needs y"),
        (0, (), "forward also needs x, y"),
        (2, ("z",), "forward has no parameter 'z': it takes x, y, scale"),
        (2, ("x",), "'x' is given twice"),
    ],
)
def test_a_call_that_does_not_fit_is_an_input_error(positional: int, keywords: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        forward_signature(Two()).check(positional, keywords)


def test_values_are_placed_by_position_until_one_is_left_out() -> None:
    signature = forward_signature(Two())
    assert signature.place({"x": 1, "y": 2}) == ((1, 2), {})
    assert signature.place({"y": 2}) == ((), {"y": 2})
    assert forward_signature(Wrapped()).place({"ids": 1, "mask": 2}) == ((1,), {"mask": 2})
    assert forward_signature(Anything()).place({"input": 1}) == ((1,), {})
