from __future__ import annotations

import torch
from torch import nn

from tests.torchscript.models import Branching, Listed
from torchgauge.source.torchscript import graph_nodes


def test_a_node_has_its_module_its_line_and_its_constants() -> None:
    nodes = graph_nodes(torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU())))
    convolution = next(node for node in nodes if node.kind == "aten::conv2d")
    assert convolution.module == "0"
    assert convolution.attributes["stride"] == [2, 2]
    assert convolution.source is not None
    assert "conv.py:" in convolution.source


def test_every_module_has_its_nodes_and_functions_are_inlined() -> None:
    nodes = graph_nodes(torch.jit.script(Listed()))
    assert {node.module for node in nodes if node.kind == "aten::layer_norm"} == {
        f"{part}.{index}.norm" for part in ("lower", "upper") for index in (0, 1)
    }
    assert not any(node.kind == "prim::CallFunction" for node in nodes)


def test_nodes_inside_branches_and_loops_are_there() -> None:
    kinds = [node.kind for node in graph_nodes(torch.jit.script(Branching()))]
    assert {"prim::If", "prim::Loop", "aten::append", "aten::div", "aten::stack"} <= set(kinds)


def test_nodes_of_a_frozen_model_keep_their_module() -> None:
    model = Listed().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    nodes = graph_nodes(torch.jit.freeze(torch.jit.script(model)))
    assert [node.module for node in nodes if node.kind == "aten::linear"] == [
        f"{part}.{index}.linear" for part in ("lower", "upper") for index in (0, 1)
    ]
