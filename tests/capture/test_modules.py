from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

import torchgauge as tg
from tests import zoo
from torchgauge.facts import TensorSpec


def rows(analysis: tg.Analysis) -> dict[str, dict[str, object]]:
    return {row.path: row for row in analysis.modules}


def test_a_tied_tensor_counts_once_and_its_other_name_is_an_alias() -> None:
    found = tg.analyze(zoo.Tied(), inputs=torch.ones(1, 5, dtype=torch.int64))
    assert found.totals.params == 50 * 16
    assert [(p.name, p.aliases) for p in found.capture.params] == [("embed.weight", ("head.weight",))]
    assert rows(found)["head"]["params"] == rows(found)["embed"]["params"] == 50 * 16


def test_a_module_with_two_names_has_the_first_and_all_its_calls() -> None:
    row = rows(tg.analyze(zoo.Reused(), input_size=(2, 8)))["first"]
    assert (row["calls"], row["aliases"], row["macs"]) == (3, ["second"], 3 * 2 * 64)


def test_modules_and_parameters_that_never_run_are_listed() -> None:
    found = tg.analyze(zoo.Unused(), input_size=(2, 4))
    assert rows(found)["never"]["calls"] == rows(found)["never"]["macs"] == 0
    assert found.totals.params == 20 + 500 + 7


def test_parameters_in_a_list_are_named_and_their_ops_name_them() -> None:
    found = tg.analyze(zoo.Functional(), input_size=(2, 8))
    used = [op.weights for op in found.ops if op.op == "aten::mm"]
    assert used == [["weights.0"], ["weights.1"], ["weights.2"]]


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel], ids=["compiled", "data-parallel"])
def test_wrappers_leave_no_segment_in_the_paths(wrap: object) -> None:
    plain = tg.analyze(zoo.Residual(), input_size=(2, 8))
    wrapped = tg.analyze(wrap(zoo.Residual()), input_size=(2, 8))  # type: ignore[operator]
    assert [row.path for row in wrapped.modules] == [row.path for row in plain.modules]
    assert wrapped.totals == plain.totals
    assert wrapped.capture.target.name == "Residual"


def test_a_compiled_part_inside_runs_as_written() -> None:
    model = zoo.Residual()
    model.blocks[1] = torch.compile(model.blocks[1])  # type: ignore[assignment]
    found = tg.analyze(model, input_size=(2, 8))
    assert found.totals.macs == 6 * 2 * 64
    assert "blocks.1.0" in rows(found)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_ops_of_a_scripted_part_belong_to_it() -> None:
    found = tg.analyze(zoo.Scripted(), input_size=(2, 4))
    assert (rows(found)["stem"]["macs"], rows(found)["part"]["macs"]) == (64, 128)


def test_lazy_modules_are_analysed_on_a_copy() -> None:
    model = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(10))
    found = tg.analyze(model, input_size=(2, 3, 8, 8))
    assert found.totals.params == 8 * 27 + 8 + 16 + 288 * 10 + 10
    assert found.totals.macs == 2 * (8 * 27 * 36 + 2880)
    assert isinstance(model[0], nn.LazyConv2d)


def test_a_lazy_module_that_cannot_be_initialised_says_what_to_do() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LazyLinear(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) if float(x.sum()) > 0 else x

    with pytest.raises(tg.InputError, match="call the model once with real inputs"):
        tg.analyze(Looks(), input_size=(2, 3))


def test_structures_of_inputs_and_outputs_are_kept() -> None:
    batch = {"x": torch.ones(2, 4)}
    found = tg.analyze(zoo.DictInOut(), inputs=(batch,), kwargs={"scale": 2.0, "mask": None})
    record = found.capture.modules[0]
    assert record.inputs == {"0": {"x": TensorSpec((2, 4))}, "scale": 2.0, "mask": None}
    assert record.outputs == {"y": TensorSpec((2, 4)), "x": TensorSpec((2, 4))}
    assert [(i.name, i.spec.shape) for i in found.capture.inputs] == [("batch.x", (2, 4))]


def test_dataclasses_in_and_named_tuples_out() -> None:
    found = tg.analyze(zoo.Structured(), inputs=(zoo.Batch(torch.ones(2, 4), [1, 2]),))
    assert found.capture.modules[0].inputs == [{"x": TensorSpec((2, 4)), "sizes": [1, 2], "mask": None}]
    assert found.capture.modules[0].outputs == [TensorSpec((2, 4)), TensorSpec((4,))]


def test_a_module_made_in_the_forward_belongs_to_its_caller() -> None:
    class Makes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.Linear(4, 4)(x)

    found = tg.analyze(Makes(), input_size=(2, 4))
    assert [row.path for row in found.modules] == [""]
    assert found.totals.macs == 32


_HELPER = """
from torch import nn

class Transposed(nn.Module):
    def forward(self, x):
        return flipped(x)

def flipped(x):
    return x.mT.contiguous()
"""
_LAYERS = """
from torch import nn
from tensor_helper import Transposed, flipped

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.turn = nn.Linear(4, 4), Transposed()

    def forward(self, x):
        return self.turn(self.layer(flipped(x)))
"""


def test_an_op_of_an_installed_package_without_weights_belongs_to_the_line_that_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    for name, text in (("tensor_helper", _HELPER), ("model_layers", _LAYERS)):
        (folder / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(folder))

    found = tg.analyze(import_module("model_layers").Layer(), input_size=(2, 4, 4))

    assert {op.source for op in found.capture.ops} == {"model_layers.py:11"}


class WithOwnParameters(nn.Module):
    """Gives an optimizer a part of what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.discriminator = nn.Linear(4, 4), nn.Linear(40, 40)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return self.body.parameters(recurse)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def test_a_model_whose_parameters_method_leaves_some_out_is_counted_in_full_and_named() -> None:
    found = tg.analyze(WithOwnParameters(), inputs=torch.ones(1, 4), advice=False)
    assert found.totals.params == 20 + 40 * 41
    remark = "WithOwnParameters.parameters() yields 20 of the 1,660 parameter elements that the model holds"
    assert any(remark in warning for warning in found.capture.run.warnings)
    plain = tg.analyze(nn.Linear(4, 4), inputs=torch.ones(1, 4), advice=False)
    assert not any("parameters()" in warning for warning in plain.capture.run.warnings)
