from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchgauge.errors import InputError
from torchgauge.source import Candidate, candidate_inputs, layer_rule

FirstThatRuns = Callable[..., Candidate]


def shapes(candidate: Candidate) -> list[tuple[int, ...]]:
    return [tuple(value.shape) for value in (*candidate.args, *candidate.kwargs.values())]


def first(model: nn.Module, **options: Any) -> Candidate:
    return next(candidate_inputs(model, **options))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Conv2d(3, 4, 3), (1, 3, 224, 224)),
        (nn.Conv2d(1, 4, 3), (1, 1, 28, 28)),
        (nn.Conv1d(8, 4, 3), (1, 8, 128)),
        (nn.Conv1d(1, 4, 3), (1, 1, 16000)),
        (nn.Conv3d(3, 4, 3), (1, 3, 16, 112, 112)),
        (nn.ConvTranspose2d(100, 8, 4), (1, 100, 1, 1)),
        (nn.Embedding(9, 4), (1, 128)),
        (nn.EmbeddingBag(9, 4), (1, 128)),
        (nn.Linear(5, 4), (1, 5)),
        (nn.LSTM(5, 4), (128, 1, 5)),
        (nn.GRU(5, 4, batch_first=True), (1, 128, 5)),
        (nn.LSTMCell(5, 4), (1, 5)),
        (nn.TransformerEncoderLayer(8, 2), (128, 1, 8)),
        (nn.TransformerEncoderLayer(8, 2, batch_first=True), (1, 128, 8)),
        (nn.BatchNorm1d(6), (1, 6)),
        (nn.BatchNorm2d(6), (1, 6, 224, 224)),
        (nn.BatchNorm3d(6), (1, 6, 16, 112, 112)),
        (nn.LayerNorm(6), (1, 16, 6)),
        (nn.GroupNorm(2, 6), (1, 6, 32, 32)),
        (nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), (1, 784)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(1, 1)), (1, 3, 224, 224)),
    ],
)
def test_the_first_layer_determines_the_shape(model: nn.Module, shape: tuple[int, ...]) -> None:
    assert shapes(first(model)) == [shape]


@pytest.mark.parametrize(
    "model",
    [
        nn.LSTM(5, 4),
        nn.MultiheadAttention(8, 2),
        nn.MultiheadAttention(8, 2, kdim=4, vdim=6),
        nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
    ],
)
def test_layers_of_torch_run_with_their_first_candidate(model: nn.Module, run: Callable[..., Any]) -> None:
    run(model, first(model))


def test_the_reason_names_the_layer_and_what_it_takes() -> None:
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3)))
    assert first(model).reason == "input 1×3×224×224: Conv2d '0.0' takes 3 channels"


def test_floats_have_no_values_and_ids_are_real_ones() -> None:
    assert first(nn.Linear(5, 4)).args[0].is_meta
    ids = first(nn.Embedding(9, 4)).args[0]
    assert ids.dtype is torch.int64
    assert not ids.is_meta
    assert ids.unique().tolist() == [1]


def test_floats_take_the_given_type_else_that_of_the_parameters() -> None:
    assert first(nn.Linear(5, 4).half()).args[0].dtype is torch.float16
    assert first(nn.Linear(5, 4).half(), dtype=torch.bfloat16).args[0].dtype is torch.bfloat16


def test_batch_and_seq_replace_the_inferred_ones() -> None:
    assert shapes(first(nn.Conv2d(3, 4, 3), batch=8)) == [(8, 3, 224, 224)]
    assert shapes(first(nn.Embedding(9, 4), batch=2, seq=40)) == [(2, 40)]
    assert shapes(first(nn.LSTM(5, 4), batch=2, seq=40)) == [(40, 2, 5)]
    assert shapes(first(nn.Linear(5, 4), seq=40)) == [(1, 40, 5)]


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_scripted_model_is_read_like_its_source(first_that_runs: FirstThatRuns) -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()))
    assert shapes(first_that_runs(scripted)) == [(1, 1, 28, 28)]
    traced = torch.jit.trace(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.zeros(1, 3, 8, 8))
    assert shapes(first_that_runs(traced)) == [(1, 3, 8, 8)]


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Sequential(nn.LazyLinear(3)), nn.Bilinear(3, 4, 5)])
def test_where_nothing_can_be_inferred_the_error_says_what_to_give(model: nn.Module) -> None:
    with pytest.raises(InputError, match=r"input_size=.* or --input"):
        next(candidate_inputs(model))


def test_a_class_with_the_name_of_a_layer_but_not_its_attributes_is_looked_into() -> None:
    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv1d(8, 4, 3)

        def forward(self, x: Tensor) -> Any:
            return self.inner(x)

    assert shapes(first(Linear())) == [(1, 8, 128)]


def test_a_second_rule_for_a_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear"):
        layer_rule("Linear", kind="linear", attribute="in_features", says="")(lambda layer, defaults: iter(()))


def test_a_forward_without_arguments_is_called_without_inputs() -> None:
    class OverItsGraph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.edges, self.layer = nn.Buffer(torch.eye(5)), nn.Linear(5, 2)

        def forward(self) -> Tensor:
            made: Tensor = self.layer(self.edges)
            return made

    (found,) = candidate_inputs(OverItsGraph())
    assert (found.args, found.kwargs) == ((), {})
