"""Torch Profiling Utils: the code blocks of its page, on a small model, and its defects put right."""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from torchgauge.compat.torch_profiling_utils.fvcorewriter import FVCoreWriter
from torchgauge.compat.torch_profiling_utils.torchinfowriter import TorchinfoWriter


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).transpose(1, 2)


class Forecaster(nn.Module):
    """Two inputs, a container that is not called, a layer without parameters, one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.act = nn.ReLU()
        self.projection = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, mark: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(x) + mark
        for layer in self.layers:
            hidden = self.act(layer(hidden))
        return self.projection(hidden)


@pytest.fixture
def input_data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 2, 5), torch.randn(2, 5, 4)


@pytest.fixture
def torchinfo_writer(input_data: tuple[torch.Tensor, torch.Tensor]) -> TorchinfoWriter:
    writer = TorchinfoWriter(Forecaster(), input_data=input_data, verbose=0)
    writer.construct_model_tree()
    return writer


CONV, LAYER, PROJECTION = 2 * 5 * 4 * 2 * 3, 2 * 5 * 20, 2 * 5 * 5
TREE = f"""\
Forecaster [Parameters=69, MACs={CONV + 2 * LAYER + PROJECTION}]
├── embedding [Parameters=24, MACs={CONV}]
│   └── conv [Parameters=24, MACs={CONV}]
├── layers [Parameters=40, MACs={2 * LAYER}]
│   ├── 0 [Parameters=20, MACs={LAYER}]
│   └── 1 [Parameters=20, MACs={LAYER}]
└── projection [Parameters=5, MACs={PROJECTION}]
"""


def test_flops_and_activations_come_by_module_and_by_operator(input_data: tuple[torch.Tensor, ...]) -> None:
    fvcore_writer = FVCoreWriter(Forecaster(), input_data)
    products = 2 * 5 * (24 + 16 + 16 + 4)
    assert fvcore_writer.get_flop_dict("by_operator") == {"conv": 240, "linear": products - 240, "add": 40}
    by_module = fvcore_writer.get_flop_dict("by_module")
    assert by_module[""] == products + 40
    assert by_module["layers"] == by_module["layers.0"] + by_module["layers.1"] == 320
    assert fvcore_writer.get_activation_dict("by_operator") == {"conv": 40, "linear": 40 + 40 + 10}
    assert fvcore_writer.get_activation_dict("by_module")["projection"] == 10
    assert fvcore_writer.get_flop_dict() == by_module


def test_counts_are_written_as_json(input_data: tuple[torch.Tensor, ...], tmp_path: Path) -> None:
    fvcore_writer = FVCoreWriter(Forecaster(), input_data)
    output = str(tmp_path / "counts.json")
    for by in ("by_module", "by_operator"):
        fvcore_writer.write_flops_to_json(output, by)
        assert json.loads(Path(output).read_text()) == fvcore_writer.get_flop_dict(by)
        fvcore_writer.write_activations_to_json(output, by)
        assert json.loads(Path(output).read_text()) == fvcore_writer.get_activation_dict(by)


def test_arithmetic_counts_one_per_element_of_its_result() -> None:
    class Arithmetic(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return ((x + y) * 2 - y) / x.new_ones(()) + x.sum() + x.mean(0) + x.cumsum(1)

    writer = FVCoreWriter(Arithmetic(), (torch.randn(3, 4), torch.randn(2, 3, 1)))
    whole = 2 * 3 * 4
    assert writer.get_flop_dict("by_operator") == {
        "add": 4 * whole, "mul": whole, "sub": whole, "div": whole, "sum": 12 - 1, "mean": (12 - 4) + 4, "cumsum": 3 * 3
    }  # fmt: skip


def test_the_writer_can_be_given_a_model_later_and_refuses_other_orders() -> None:
    writer = FVCoreWriter()
    with pytest.raises(RuntimeError, match="analyze"):
        writer.get_flop_dict()
    writer.analyze(nn.Linear(3, 4), torch.randn(1, 3))
    assert writer.get_flop_dict()[""] == 12
    with pytest.raises(ValueError, match="by_operator"):
        writer.get_flop_dict("by_layer")
    with pytest.raises(ValueError, match="by_operator"):
        writer.get_activation_dict("by_layer")


def test_the_tree_shows_modules_with_parameters_and_what_runs_inside(
    torchinfo_writer: TorchinfoWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    torchinfo_writer.show_model_tree(attr_list=["Parameters", "MACs"])
    assert capsys.readouterr().out == TREE


def test_the_tree_can_be_cut_and_styled(torchinfo_writer: TorchinfoWriter, capsys: pytest.CaptureFixture[str]) -> None:
    torchinfo_writer.show_model_tree(max_depth=2, style="ascii")
    assert capsys.readouterr().out == "Forecaster\n|-- embedding\n|-- layers\n+-- projection\n"
    for where in ("layers", ".Forecaster.layers", "Forecaster/layers"):
        torchinfo_writer.show_model_tree(where, style="custom", custom_style=["a ", "b ", "c "])
        assert capsys.readouterr().out == "layers\nb 0\nc 1\n"
    torchinfo_writer.show_model_tree("conv", attr_list=["Type", "Kernel Size"], attr_bracket=["(", ")"])
    assert capsys.readouterr().out == "conv (Type=Conv1d, Kernel Size=[3])\n"
    torchinfo_writer.show_model_tree("projection", all_attrs=True, attr_omit_null=True)
    shown = "[Input Size=[2, 5, 4], MACs=50, Output Size=[2, 5, 1], Parameters=5, Type=Linear]"
    assert capsys.readouterr().out == f"projection {shown}\n"


def test_the_dataframe_has_a_row_per_module(torchinfo_writer: TorchinfoWriter) -> None:
    frame = torchinfo_writer.get_dataframe()
    assert frame.index.name == "Path"
    assert list(frame.index[:3]) == [".Forecaster", ".Forecaster.embedding", ".Forecaster.embedding.conv"]
    columns = ["Name", "Input Size", "Kernel Size", "MACs", "Output Size", "Parameters", "Type"]
    assert list(frame.columns) == columns
    conv = frame.loc[".Forecaster.embedding.conv"]
    assert list(conv) == ["conv", [2, 2, 5], [3], CONV, [2, 4, 5], 24, "Conv1d"]
    stripped = torchinfo_writer.get_dataframe(strip_leading_dot=True)
    assert stripped.index[0] == "Forecaster"
    assert "Forecaster.act" not in stripped.index


def test_the_graph_is_written_as_svg(torchinfo_writer: TorchinfoWriter, tmp_path: Path) -> None:
    pytest.importorskip("pydot")
    dot_repr = torchinfo_writer.get_dot()
    text = dot_repr.to_string()
    assert text.startswith("strict digraph")
    # A node is called by its name and its number among those of that name.
    assert [node.get_name() for node in dot_repr.get_node_list()] == [
        "Forecaster0", "embedding0", "conv0", "layers0", "00", "10", "projection0",
    ]  # fmt: skip
    assert [node.get("label") for node in dot_repr.get_node("conv0")] == ["conv"]
    assert "layers0 -> 00" in text
    dot_repr.write_svg(str(tmp_path / "model_tree_example.svg"))
    root = ElementTree.parse(tmp_path / "model_tree_example.svg").getroot()
    texts = {"".join(element.itertext()).strip() for element in root.iter() if element.tag.endswith("text")}
    assert {"Forecaster", "embedding", "conv", "layers", "0", "1", "projection"} <= texts


def test_nodes_of_one_name_are_numbered_and_never_merged() -> None:
    pytest.importorskip("pydot")
    block = {"conv": nn.Linear(3, 3), "conv1": nn.Linear(3, 3), "a:b": nn.Linear(3, 3)}
    model = nn.Sequential(
        nn.Sequential(OrderedDict(block)), nn.Sequential(OrderedDict(conv=nn.Linear(3, 3), conv1=nn.Linear(3, 3)))
    )
    writer = TorchinfoWriter(model, input_size=(1, 3), verbose=0)
    writer.construct_model_tree()
    names = [node.get_name() for node in writer.get_dot().get_node_list()]
    assert names == ["Sequential0", "00", "conv0", "conv10", '"a:b0"', "10", "conv1", "conv11"]
    many = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) for _ in range(12)])
    writer.update_model(many, input_size=(1, 3), verbose=0)
    writer.construct_model_tree()
    names = [node.get_name() for node in writer.get_dot().get_node_list()]
    assert len(set(names)) == len(names) == 1 + 12 * 3


def test_the_graph_takes_colours_and_direction(torchinfo_writer: TorchinfoWriter) -> None:
    pytest.importorskip("pydot")
    text = torchinfo_writer.get_dot(
        directed=False, rankdir="LR", bg_color="white", node_color="gold", node_shape="box", edge_color="blue"
    ).to_string()
    assert text.startswith("strict graph")
    for setting in ("rankdir=LR", "bgcolor=white", "fillcolor=gold", "shape=box", "color=blue"):
        assert setting in text


def test_every_argument_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    writer = TorchinfoWriter(nn.Linear(3, 2), input_size=(3,), batch_dim=0)
    writer.construct_model_tree()
    assert "Total params: 8" in capsys.readouterr().out
    assert writer.get_dataframe().loc[".Linear", "Input Size"] == [1, 3]
    writer.update_model(nn.Linear(3, 5), input_size=(7, 3), verbose=0)
    with pytest.raises(RuntimeError, match="construct_model_tree"):
        writer.get_dataframe()
    writer.construct_model_tree()
    assert writer.get_dataframe().loc[".Linear", "Output Size"] == [7, 5]


def test_a_graph_without_pydot_says_what_is_missing(
    torchinfo_writer: TorchinfoWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pydot", None)
    with pytest.raises(ImportError, match=r"pydot.*torchgauge\[compat\]"):
        torchinfo_writer.get_dot()


def test_frozen_modules_are_in_the_tree() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)).requires_grad_(False)
    writer = TorchinfoWriter(model, input_size=(1, 3), verbose=0)
    writer.construct_model_tree()
    assert list(writer.get_dataframe()["Parameters"]) == [20, 12, 8]


def test_a_layer_called_twice_is_one_node_with_all_its_work() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.fc(x))

    writer = TorchinfoWriter(Twice(), input_size=(2, 3), verbose=0)
    writer.construct_model_tree()
    assert list(writer.get_dataframe()["MACs"]) == [36, 36]


def test_wrong_use_is_refused(torchinfo_writer: TorchinfoWriter) -> None:
    for look in (TorchinfoWriter().show_model_tree, TorchinfoWriter().get_dataframe, TorchinfoWriter().get_dot):
        with pytest.raises(RuntimeError, match="construct_model_tree"):
            look()
    with pytest.raises(RuntimeError, match="no model"):
        TorchinfoWriter().construct_model_tree()
    for arguments in (
        {"style": "other"}, {"attr_bracket": ["("]}, {"style": "custom", "custom_style": ["a"]},
        {"node_name_or_path": "nowhere"},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"style|bracket|nowhere"):
            torchinfo_writer.show_model_tree(**arguments)
