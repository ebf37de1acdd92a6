"""fvcore's tables and texts: parameters, FLOPs and activations of every module."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchgauge.compat.fvcore import nn as ours
from torchgauge.compat.fvcore.nn.jit_handles import conv_flop_count
from torchgauge.compat.fvcore.nn.parameter_count import pipe_table


class Wrapped(nn.Module):
    """A module that only wraps another, and one that is called through another method."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Sequential(nn.Sequential(nn.Linear(10, 10)))
        self.inner = nn.Linear(10, 5)
        self.scale = nn.Parameter(torch.ones(5))
        self.unused = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner.forward(self.outer(x)) * self.scale


def images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 300, 3), nn.BatchNorm2d(300), nn.ReLU(), nn.AdaptiveAvgPool2d(1)).eval()


CASES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "one layer": (lambda: nn.Linear(3, 4), torch.randn(1, 3)),
    "numbers only": (lambda: nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 1)), torch.randn(1, 2)),
    "wrapped": (Wrapped, torch.randn(2, 10)),
    "nothing but a wrapper": (lambda: nn.Sequential(nn.Sequential(nn.Linear(300, 400))), torch.randn(1, 300)),
    "images": (images, torch.randn(1, 3, 20, 20)),
}


@pytest.fixture
def original(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = pytest.importorskip("fvcore.nn")
    tabulate = pytest.importorskip("tabulate")
    if "preserve_whitespace" in inspect.signature(tabulate.tabulate).parameters:
        # fvcore asks for it in the way of older releases, and loses its indentation with newer ones.
        kept = functools.partial(tabulate.tabulate, preserve_whitespace=True)
        monkeypatch.setattr(tabulate, "tabulate", kept)
    return found


def test_the_documented_table_is_indented_by_depth() -> None:
    flops = ours.FlopCountAnalysis(Wrapped(), torch.randn(2, 10))
    assert ours.flop_count_table(flops, max_depth=1) == (
        "| module     | #parameters or shape   | #flops   |\n"
        "|:-----------|:-----------------------|:---------|\n"
        "| model      | 0.172K                 | 0.3K     |\n"
        "|  scale     |  (5,)                  |          |\n"
        "|  outer.0.0 |  0.11K                 |  0.2K    |\n"
        "|  inner     |  55                    |          |\n"
        "|  unused    |  2                     |          |"
    )


def test_the_text_of_the_model_holds_its_figures() -> None:
    flops = ours.FlopCountAnalysis(nn.Sequential(nn.Linear(10, 10), nn.ReLU()), torch.randn(1, 10))
    assert ours.flop_count_str(flops) == (
        "Sequential(\n"
        "  #params: 0.11K, #flops: 100\n"
        "  (0): Linear(\n"
        "    in_features=10, out_features=10, bias=True\n"
        "    #params: 0.11K, #flops: 100\n"
        "  )\n"
        "  (1): ReLU()\n"
        ")"
    )


def test_modules_that_were_not_called_are_marked() -> None:
    text = ours.flop_count_str(ours.FlopCountAnalysis(Wrapped(), torch.randn(2, 10)))
    assert text.startswith("N/A indicates a possibly missing statistic")
    assert "#params: 2, #flops: N/A" in text


def test_a_module_slot_that_is_empty_is_written_as_torch_does() -> None:
    model = nn.Linear(2, 3)
    model.register_module("off", None)
    text = ours.flop_count_str(ours.FlopCountAnalysis(model, torch.randn(1, 2)))
    assert "  (off): None\n" in text


def test_parameters_count_for_every_owner_and_once_where_they_are_shared() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    found = ours.parameter_count(model)
    assert found == {"": 24, "0": 20, "0.weight": 16, "0.bias": 4, "1": 4, "1.bias": 4}
    assert found["unknown"] == 0
    assert "(4, 4)" in ours.parameter_count_table(model)


def test_a_model_without_parameters_has_a_table_too() -> None:
    assert ours.parameter_count_table(nn.ReLU()).splitlines()[-1].split() == ["|", "model", "|", "0", "|"]


def test_numbers_are_right_aligned() -> None:
    assert pipe_table(("name", "n", "x"), [("a", "1", "2.5"), ("b", " 10", "10"), ("c", "", "1.25")]) == (
        "| name   |   n |     x |\n"
        "|:-------|----:|------:|\n"
        "| a      |   1 |  2.5  |\n"
        "| b      |  10 | 10    |\n"
        "| c      |     |  1.25 |"
    )


def test_a_convolution_is_counted_from_its_shapes() -> None:
    assert conv_flop_count([2, 3, 8, 8], [4, 3, 3, 3], [2, 4, 6, 6]) == 2 * 36 * 4 * 27
    assert conv_flop_count([2, 4, 6, 6], [4, 3, 3, 3], [2, 3, 8, 8], transposed=True) == 2 * 36 * 4 * 27


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("with_activations", [False, True])
@pytest.mark.parametrize("case", list(CASES))
def test_the_output_equals_that_of_fvcore(case: str, with_activations: bool, original: Any) -> None:
    build, x = CASES[case]
    model = build()

    def printed(tool: Any) -> list[str]:
        flops = tool.FlopCountAnalysis(model, x)
        activations = tool.ActivationCountAnalysis(model, x) if with_activations else None
        tables = [tool.flop_count_table(flops, depth, activations, shapes) for depth in (0, 3) for shapes in (1, 0)]
        return [tool.flop_count_str(flops, activations), tool.parameter_count_table(model, 2), *tables]

    assert printed(ours) == printed(original)


@pytest.mark.parametrize(
    "name",
    ["activation_count", "flop_count", "jit_analysis", "jit_handles", "parameter_count", "print_model_statistics"],
)
def test_every_public_name_of_fvcores_counting_modules_takes_the_same_arguments(name: str, original: Any) -> None:
    theirs = importlib.import_module(f"{original.__name__}.{name}")
    mine = importlib.import_module(f"{ours.__name__}.{name}")
    public = [key for key, value in vars(theirs).items() if inspect.isroutine(value) and key[0] != "_"]
    own = [key for key in public if vars(theirs)[key].__module__ == theirs.__name__]
    assert own or name == "jit_analysis"
    for key in own:
        expected, found = (inspect.signature(getattr(tool, key)).parameters for tool in (theirs, mine))
        assert [(p.name, p.default) for p in found.values()] == [(p.name, p.default) for p in expected.values()]


def test_the_steps_of_a_table_work_on_figures_of_ones_own(original: Any) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU(), nn.Linear(2, 2))
    figures = {"time": {"": 3000, "0": 1000, "0.0": 1000, "2": 2000}, "calls": {"": 2, "2": 0}}

    def steps(package: str) -> list[Any]:
        tool = importlib.import_module(f"{package}.print_model_statistics")
        filled = tool._fill_missing_statistics(model, figures)
        kept = tool._remove_zero_statistics(tool._group_by_module(filled))
        texts = tool._indicate_uncalled_modules(tool._pretty_statistics(kept), "calls", {"2"})
        table = tool._model_stats_table(texts, max_depth=1, stat_columns=["calls", "time"])
        return [filled, texts, table, tool._model_stats_str(model, texts)]

    assert steps(ours.__name__) == steps(original.__name__)


def test_the_columns_of_a_table_are_the_titles_in_the_order_they_come() -> None:
    from torchgauge.compat.fvcore.nn.print_model_statistics import _model_stats_table

    table = _model_stats_table({"": {"a": "1"}, "x": {"b": "2", "a": "1"}, "y": {}})
    assert table.splitlines()[0].split() == ["|", "module", "|", "a", "|", "b", "|"]
