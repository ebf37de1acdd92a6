"""Against torchinfo itself: the same table, letter by letter, on models without its defects."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchgauge.compat import torchinfo as ours

original = pytest.importorskip("torchinfo")

ALL = ("kernel_size", "input_size", "output_size", "num_params", "params_percent", "mult_adds", "trainable")


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.ModuleList([nn.Conv2d(8, 8, 3, groups=4), nn.ModuleDict({"b": nn.Conv2d(8, 4, 1)})])
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(4, 5)
        self.scale = nn.Parameter(torch.ones(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, rest = self.blocks
        for block in (first, *rest.children()):
            x = block(x if block is not first else self.stem(x))
        return self.head(self.pool(x).flatten(1))


class Repeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 3, padding=1)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        for _ in range(3):
            x = self.act(self.conv(x))
        return [x, x]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.head(self.gru(x)[0][:, -1])}


def frozen() -> nn.Module:
    model = Blocks()
    model.stem.requires_grad_(False)
    model.head.bias.requires_grad_(False)
    return model


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "blocks": (Blocks, {"input_size": (2, 3, 8, 8)}),
    "partly frozen": (frozen, {"input_size": (2, 3, 8, 8)}),
    "in training": (Blocks, {"input_size": (2, 3, 8, 8), "mode": "train"}),
    "a batch put in": (Blocks, {"input_size": (3, 8, 8), "batch_dim": 0}),
    "repeated": (Repeated, {"input_data": torch.randn(1, 2, 6)}),
    "recurrent": (Recurrent, {"input_size": (2, 5, 3)}),
    "a batch put in, a dict out": (Recurrent, {"input_size": (5, 3), "batch_dim": 0}),
    "a list of inputs": (Recurrent, {"input_data": [torch.randn(2, 5, 3)]}),
    "a tuple of inputs": (Recurrent, {"input_data": (torch.randn(2, 5, 3),)}),
    "inputs by name": (Recurrent, {"input_data": {"x": torch.randn(2, 5, 3)}}),
    "nothing in it": (lambda: nn.Sequential(nn.Sequential()), {"input_size": (2, 4)}),
}
LOOKS: dict[str, dict[str, Any]] = {
    "default": {},
    "all columns": {"col_names": ALL, "depth": 5, "row_settings": ("var_names", "depth"), "col_width": 20},
    "shallow": {"col_names": ALL[1:4], "depth": 1, "row_settings": ("ascii_only",)},
    "no recursion": {"row_settings": ("depth", "hide_recursive_layers")},
}


def text_of(found: Any) -> str:
    # Since Python 3.11 the original prints the member for its value.
    return str(found).replace("Units.MEGABYTES", "M") if sys.version_info >= (3, 11) else str(found)


@pytest.mark.parametrize("look", list(LOOKS))
@pytest.mark.parametrize("case", list(CASES))
def test_the_table_equals_that_of_torchinfo(case: str, look: str) -> None:
    build, arguments = CASES[case]
    torch.manual_seed(0)
    model = build()
    given = {**arguments, **LOOKS[look], "verbose": 0}
    assert text_of(ours.summary(model, **given)) == text_of(original.summary(model, **given))


def test_weights_and_biases_are_shown_alike(capsys: pytest.CaptureFixture[str]) -> None:
    model = Recurrent()
    for tool in (original, ours):
        tool.summary(model, input_size=(2, 5, 3), col_names=("kernel_size", "num_params"), verbose=2)
    printed = text_of(capsys.readouterr().out)
    half = len(printed) // 2
    assert printed[:half] == printed[half:]


@pytest.mark.parametrize("case", list(CASES))
def test_totals_and_layers_equal_those_of_torchinfo(case: str) -> None:
    build, arguments = CASES[case]
    model = build()
    mine, theirs = (tool.summary(model, **arguments, verbose=0) for tool in (ours, original))
    for name in ("total_params", "trainable_params", "total_mult_adds", "total_output_bytes", "input_size"):
        assert getattr(mine, name) == getattr(theirs, name)
    names = (
        "class_name",
        "var_name",
        "depth",
        "depth_index",
        "input_size",
        "output_size",
        "num_params",
        "is_recursive",
    )
    rows = [[getattr(layer, name) for name in names] for layer in mine.summary_list]
    assert rows == [[getattr(layer, name) for name in names] for layer in theirs.summary_list]


def test_without_input_the_table_is_the_same() -> None:
    assert str(ours.summary(Blocks(), verbose=0)) == str(original.summary(Blocks(), verbose=0))


@pytest.mark.parametrize(
    "arguments",
    [
        {"input_size": (1, 2), "dtypes": ["float"]},
        {"input_size": (1, 2), "dtypes": [int]},
        {"input_size": (1, 2), "batch_dim": 7},
        {"input_size": (1, 2), "batch_dim": "first"},
        {"input_size": (1.5, 2)},
        {"input_size": (1, "2")},
        {"input_size": 5},
        {"input_size": (1, 2), "depth": "deep"},
        {"input_size": (1, 2), "device": "nowhere"},
        {"device": "lol"},
        {"input_size": (1, 2), "verbose": "1"},
        {"input_size": (1, 2), "col_names": "num_params"},
        {"input_size": (1, 2), "unknown": 3},
        {"input_size": [(1, 2), (3,)]},
        {"input_data": "text"},
        {"input_data": {"unknown": torch.ones(1)}},
        {"input_data": []},
    ],
    ids=str,
)
def test_wrong_use_raises_the_same_types(arguments: dict[str, Any]) -> None:
    def raised(tool: Any) -> type[BaseException]:
        with pytest.raises(Exception) as failure:  # noqa: PT011 - which one is what is compared
            tool.summary(nn.Identity(), **arguments)
        return failure.type

    assert raised(ours) is raised(original)
