from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import timm
import torch
from torch import Tensor, nn

import torchgauge as tg
from tests.exported.models import Conditional, Tied
from tests.torchscript.models import small_resnet
from torchgauge.source import load_exported

Form = Callable[[Any, Path], Any]


def live(program: Any, folder: Path) -> Any:
    return program


def from_file(program: Any, folder: Path) -> Any:
    torch.export.save(program, folder / "model.pt2")
    return load_exported(folder / "model.pt2")


# What torch says of the flat weights of an LSTM.
pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights")
forms = pytest.mark.parametrize("form", [live, from_file], ids=["live", "file"])


def figures(analysis: tg.Analysis) -> dict[str, tuple[Any, ...]]:
    return {row.path: (row.aliases, row.params, row.macs, row.flops, row.ops) for row in analysis.modules}


def vision_transformer() -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", depth=2, img_size=32)


@forms
@pytest.mark.parametrize(
    ("build", "size"),
    [
        (small_resnet, (1, 3, 32, 32)),
        (vision_transformer, (1, 3, 32, 32)),
        (Tied, (2, 4)),
        (lambda: nn.LSTM(4, 5, batch_first=True), (2, 3, 4)),
    ],
    ids=["resnet", "vit", "tied", "lstm"],
)
def test_an_exported_model_has_the_figures_of_the_eager_one(
    build: Callable[[], nn.Module], size: tuple[int, ...], form: Form, tmp_path: Path
) -> None:
    model = build().eval()
    exported = tg.analyze(form(torch.export.export(model, (torch.zeros(size),)), tmp_path))
    eager = tg.analyze(model, input_size=size)
    assert figures(exported) == figures(eager)
    assert exported.totals.params == sum(parameter.numel() for parameter in model.parameters())


@forms
def test_calls_types_and_shapes_are_those_of_the_eager_model(form: Form, tmp_path: Path) -> None:
    model = small_resnet().eval()
    exported = tg.analyze(form(torch.export.export(model, (torch.zeros(1, 3, 32, 32),)), tmp_path))
    eager = tg.analyze(model, input_size=(1, 3, 32, 32))
    assert [(r.path, r.type, r.calls, r.input_shapes, r.output_shapes) for r in exported.modules] == [
        (r.path, r.type, r.calls, r.input_shapes, r.output_shapes) for r in eager.modules
    ]


@forms
def test_the_inputs_come_from_the_signature(form: Form, tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=2, max=16)
    arguments = (torch.zeros(3, 4), torch.tensor([1, 5], dtype=torch.int32))
    program = torch.export.export(Conditional(), arguments, dynamic_shapes={"x": {0: batch}, "choice": None})
    found = tg.analyze(form(program, tmp_path))
    assert [(i.name, i.spec.shape, i.spec.dtype) for i in found.capture.inputs] == [
        ("x", (3, 4), "float32"),
        ("choice", (2,), "int32"),
    ]
    assert all(i.inferred == "the signature of the export" for i in found.capture.inputs)


@forms
@pytest.mark.parametrize(("choice", "calls"), [([1, 5], 2), ([1, 1], 3)])
def test_a_branch_follows_the_values_given(form: Form, choice: list[int], calls: int, tmp_path: Path) -> None:
    program = torch.export.export(Conditional(), (torch.zeros(3, 4), torch.tensor([1, 5])))
    found = tg.analyze(form(program, tmp_path), inputs=(torch.zeros(3, 4), torch.tensor(choice)))
    assert found.totals.macs == calls * 3 * 16


@forms
def test_a_symbolic_size_may_be_given_another_value(form: Form, tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=2, max=16)
    program = torch.export.export(Tied(), (torch.zeros(3, 4),), dynamic_shapes={"x": {0: batch}})
    assert tg.analyze(form(program, tmp_path), input_size=(9, 4)).totals.macs == 9 * 3 * 32


@forms
def test_another_batch_keeps_the_other_sizes_of_the_signature(form: Form, tmp_path: Path) -> None:
    convolution = torch.export.export(nn.Conv2d(5, 4, 4, 4), (torch.zeros(1, 5, 64, 64),))
    found = tg.analyze(form(convolution, tmp_path), batch=2)
    assert found.to_dict()["inputs"][0]["shape"] == [2, 5, 64, 64]
    assert found.totals.macs == 2 * 16 * 16 * 4 * 5 * 16


@forms
def test_a_module_with_two_names_has_the_first(form: Form, tmp_path: Path) -> None:
    found = tg.analyze(form(torch.export.export(Tied(), (torch.zeros(3, 4),)), tmp_path))
    row = next(row for row in found.modules if row.path == "chain.0")
    assert (row.aliases, row.calls, row.macs) == (["again"], 2, 2 * 3 * 32)
    assert found.totals.params == sum(p.numel() for p in Tied().parameters())


def test_the_outputs_of_a_live_program_keep_their_structure() -> None:
    found = tg.analyze(torch.export.export(Tied(), (torch.zeros(3, 4),)))
    assert {name: spec.shape for name, spec in found.capture.modules[0].outputs.items()} == {"y": (3, 4), "z": (3, 8)}
    assert found.capture.target.kind == "exported"


class Looks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        size: Any = x.sum().to(torch.int64).item()
        torch._check(size >= 2)
        torch._check(size <= 9)
        return x.new_zeros(size)


def test_a_program_from_a_file_is_never_run_for_real(tmp_path: Path) -> None:
    model = from_file(torch.export.export(Looks(), (torch.ones(2),)), tmp_path)
    with pytest.raises(tg.ForwardError, match="a model from a file is not run for real"):
        tg.analyze(model, inputs=torch.ones(2))


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Pair:
        y = self.layer(x)
        return Pair(y, y.relu())


def test_a_program_that_returns_a_named_tuple_can_be_analyzed() -> None:
    exported = tg.analyze(torch.export.export(TwoOutputs().eval(), (torch.zeros(2, 4),)))
    assert exported.totals.macs == 2 * 4 * 4
