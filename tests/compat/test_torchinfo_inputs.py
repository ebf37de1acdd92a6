"""The arguments of torchinfo's summary: inputs in every form, the mode, the cache; and those that it refuses."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from torchgauge.compat.torchinfo import summary
from torchgauge.compat.torchinfo.torchinfo import clear_cached_forward_pass


class Keyed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, scale: float = 1.0, *, extra: Any = None) -> dict[str, Any]:
        assert extra is None or isinstance(extra, torch.Tensor)
        return {"first": None, "last": [self.fc(x) * scale]}


def test_inputs_are_given_in_every_documented_way() -> None:
    tensor = torch.randn(4, 3)
    for data in (tensor, [tensor], (tensor,), {"x": tensor}):
        found = summary(Keyed(), input_data=data, verbose=0)
        assert found.summary_list[0].output_size == [4, 2]
    assert summary(Keyed(), input_size=(4, 3), verbose=0, scale=2.0, extra=tensor).total_mult_adds == 32
    assert summary(Keyed(), input_size=[(4, 3)], dtypes=[torch.float32], verbose=0).input_size == [(4, 3)]
    typed = summary(nn.Embedding(5, 2), input_size=(4, 3), dtypes=[torch.LongTensor], verbose=0)
    assert typed.summary_list[0].output_size == [4, 3, 2]
    bilinear = summary(nn.Bilinear(3, 2, 4), input_size=[(5, 3), (5, 2)], verbose=0)
    assert bilinear.summary_list[0].output_size == [5, 4]


def test_numpy_arrays_reach_the_model_as_they_are() -> None:
    class Takes(nn.Module):
        def forward(self, x: np.ndarray[Any, Any]) -> torch.Tensor:
            return torch.from_numpy(x) + 1

    found = summary(Takes(), input_data=np.ones((2, 3), dtype=np.float32), verbose=0)
    assert (found.summary_list[0].input_size, found.total_input) == ([2, 3], 24)


def test_batch_dim_puts_a_batch_of_one_into_the_size() -> None:
    found = summary(nn.Conv2d(1, 4, 3), input_size=(1, 8, 8), batch_dim=0, verbose=0)
    assert found.summary_list[0].input_size == [1, 1, 8, 8]
    found = summary(nn.Linear(3, 2), input_data=torch.randn(4, 3), batch_dim=0, verbose=0)
    assert found.summary_list[0].input_size == [1, 3]


def test_half_precision_needs_no_device_that_computes_it() -> None:
    found = summary(nn.Linear(4, 2).half(), input_size=(3, 4), dtypes=[torch.float16], verbose=0)
    assert (found.total_param_bytes, found.total_input) == (20, 24)


def test_the_mode_asked_for_is_used_and_the_model_keeps_its_own() -> None:
    class Tells(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:1] if self.training else x

    model = nn.Sequential(Tells(), nn.BatchNorm1d(3).eval()).train()
    before = [module.training for module in model.modules()]
    assert summary(model, input_size=(4, 3), verbose=0).summary_list[1].output_size == [4, 3]
    assert summary(model[0], input_size=(4, 3), verbose=0, mode="train").summary_list[0].output_size == [1, 3]
    assert [module.training for module in model.modules()] == before


def test_the_mode_may_stay_the_same() -> None:
    class Seen(list[bool]):
        """A call puts back what it wrote to plain containers."""

    seen = Seen()

    class Watched(nn.Dropout):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(self.training)
            return x

    model = nn.Sequential(Watched(), Watched().eval())
    summary(model, input_size=(1, 2), mode="same", verbose=0)
    assert seen == [True, False]


def test_lazy_modules_are_summarised_without_being_initialised() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    assert summary(model, input_size=(1, 3), verbose=0).total_params == 16
    assert isinstance(model[0], nn.LazyLinear)
    assert summary(model, verbose=0).summary_list[1].contains_lazy_param


def test_the_cache_belongs_to_the_model_and_its_inputs() -> None:
    first, second = nn.Linear(2, 3), nn.Linear(2, 5)
    kept = summary(first, input_size=(1, 2), cache_forward_pass=True, verbose=0)
    assert summary(first, input_size=(1, 2), cache_forward_pass=True, verbose=0).summary_list is kept.summary_list
    assert summary(second, input_size=(1, 2), cache_forward_pass=True, verbose=0).total_params == 15
    assert summary(first, input_size=(4, 2), cache_forward_pass=True, verbose=0).total_mult_adds == 36
    wide = nn.Linear(2, 3).double()
    assert (
        summary(wide, torch.Size((1, 2)), dtypes=[torch.double], cache_forward_pass=True, verbose=0).total_output_bytes
        == 48
    )
    clear_cached_forward_pass()
    assert summary(first, input_size=(1, 2), cache_forward_pass=True, verbose=0).summary_list is not kept.summary_list
    clear_cached_forward_pass()


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (ValueError, {"verbose": 4}),
        (ValueError, {"input_size": (1, 3), "col_names": ("invalid",)}),
        (ValueError, {"col_width": 0}),
        (ValueError, {"row_settings": ("invalid",)}),
        (ValueError, {"col_names": ("output_size",)}),
        (ValueError, {"input_size": (1, 3), "mode": "other"}),
        (RuntimeError, {"input_size": (1, 3), "input_data": torch.ones(1, 3)}),
        (ValueError, {"input_size": [(3, 0)]}),
        (ValueError, {"input_size": ()}),
        (TypeError, {"input_size": {0: 1}}),
        (TypeError, {"input_size": "hello"}),
        (RuntimeError, {"input_size": (1, 5)}),
        (RuntimeError, {"input_data": 3}),
        (ValueError, {"input_size": (1, 3), "dtypes": [int]}),
        (IndexError, {"input_size": (3,), "batch_dim": 2}),
    ],
)
def test_wrong_use_raises_what_torchinfo_raises(error: type[Exception], arguments: dict[str, Any]) -> None:
    with pytest.raises(error):
        summary(nn.Linear(3, 4), **arguments)


def test_targets_that_are_not_models_are_named() -> None:
    with pytest.raises(AttributeError, match=r"torch\.nn\.Module instance, got type"):
        summary(nn.Linear)  # type: ignore[arg-type]


def test_a_failing_model_says_where_and_is_left_unchanged() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 6)).train()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        RuntimeError, match=r"forward\(\) of '1' \(Linear\) raised.*Executed layers up to: \[Linear: 1\]"
    ):
        summary(model, input_size=(2, 3))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model[0]._forward_hooks
    with pytest.raises(RuntimeError, match=r"forward\(\) \(Linear\) raised"):
        summary(nn.Linear(3, 4), input_size=(2, 5))


def test_a_layer_that_returns_text_is_an_error() -> None:
    class Text(nn.Module):
        def forward(self, x: torch.Tensor) -> str:
            return "text"

    with pytest.raises(RuntimeError, match="text"):
        summary(Text(), input_size=(1,))


def test_a_parameter_that_the_forward_makes_is_counted_and_the_model_stays_without_it() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale: nn.Parameter | nn.UninitializedParameter = nn.UninitializedParameter()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.scale = nn.Parameter(torch.ones(x.shape[-1], device=x.device))
            return x * self.scale

    model = Late()
    assert summary(model, verbose=0).total_params == 0
    assert summary(model, input_size=(2, 7), verbose=0).total_params == 7
    assert isinstance(model.scale, nn.UninitializedParameter)
