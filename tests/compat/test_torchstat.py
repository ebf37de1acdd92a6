from __future__ import annotations

import importlib
import re
from collections import OrderedDict

import pytest
from torch import nn

from tests.compat.stat_models import Net, nested, rows
from torchgauge.analysis import analyze
from torchgauge.compat.torchstat import ModelHook, StatNode, StatTree, report_format, stat
from torchgauge.source import torchvision_importable

COLUMNS = [
    "module name", "input shape", "output shape", "params", "memory(MB)", "MAdd", "Flops", "MemRead(B)", "MemWrite(B)",
    "duration[%]", "MemR+W(B)",
]  # fmt: skip


# What the README shows for its net: name, shapes, params, MAdd, Flops, bytes read and written.
README = [
    ("conv1", (3, 224, 224), (10, 220, 220), 760, 72_600_000, 36_784_000, (605_152, 1_936_000)),
    ("conv2", (10, 110, 110), (20, 106, 106), 5_020, 112_360_000, 56_404_720, (504_080, 898_880)),
    ("conv2_drop", (20, 106, 106), (20, 106, 106), 0, 0, 0, (0, 0)),
    ("fc1", (56180,), (50,), 2_809_050, 5_617_950, 2_809_000, (11_460_920, 200)),
    ("fc2", (50,), (10,), 510, 990, 500, (2_240, 40)),
]
README_FOOTER = [
    "Total params: 2,815,340",
    "Total memory: 3.56MB",
    "Total MAdd: 190.58MMAdd",
    "Total Flops: 96.0MFlops",
    "Total MemR+W: 14.69MB",
]


def table(text: str) -> list[list[str]]:
    """The cells of the printed rows, the label first; two blanks part cells, one is inside shapes."""
    lines = text.splitlines()
    end = next(index for index, line in enumerate(lines) if line.startswith("==="))
    return [re.split(r"\s{2,}", line.strip()) for line in lines[:end]]


def test_the_readme_net_has_its_recorded_rows() -> None:
    found = [
        (n.name, n.input_shape, n.output_shape, n.parameter_quantity, n.MAdd, n.Flops, n.Memory)
        for n in rows(Net(), (3, 224, 224))
    ]
    assert found == README


def test_the_report_has_the_recorded_columns_totals_and_footer(capsys: pytest.CaptureFixture[str]) -> None:
    assert stat(Net(), (3, 224, 224)) is None  # type: ignore[func-returns-value]
    text = capsys.readouterr().out
    header, *body, total = table(text)
    assert header == COLUMNS
    assert body[0][:10] == [
        "0", "conv1", "3 224 224", "10 220 220", "760", "1.85", "72,600,000", "36,784,000", "605152", "1936000",
    ]  # fmt: skip
    assert total[0] == "total"
    assert total[1:5] == ["2815340", "3.56", "190,578,940", "95,998,220"]
    assert total[-1] == "15407512"
    footer = [line for line in text.splitlines() if line.startswith("Total")]
    assert footer == README_FOOTER
    width = len(text.splitlines()[0])
    assert "=" * width in text.splitlines()
    assert "-" * width in text.splitlines()


def test_the_total_row_sums_what_is_read_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    stat(Net(), (3, 224, 224))
    total = table(capsys.readouterr().out)[-1]
    assert total[5:7] == [str(sum(row[6][0] for row in README)), str(sum(row[6][1] for row in README))]


def test_durations_are_shares_of_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    stat(nested(), (8,))
    _, *body, total = table(capsys.readouterr().out)
    shares = [float(row[-2].removesuffix("%")) for row in body]
    assert sum(shares) == pytest.approx(100, abs=0.1)
    assert total[-2] == "100.00%"


def test_small_totals_carry_no_suffix(capsys: pytest.CaptureFixture[str]) -> None:
    stat(nn.Linear(4, 2), (4,))
    text = capsys.readouterr().out
    assert "Total MAdd: 14MAdd\n" in text
    assert "Total Flops: 8Flops\n" in text
    assert "Total MemR+W: 64B\n" in text


# Published output of torchstat for torchvision's models: the first rows of one, the footer of the other.
RESNET18 = [
    ("conv1", 9_408, 235_225_088, 118_013_952, (639_744, 3_211_264)),
    ("bn1", 128, 3_211_264, 1_605_632, (3_211_776, 3_211_264)),
    ("relu", 0, 802_816, 802_816, (3_211_264, 3_211_264)),
    ("maxpool", 0, 1_605_632, 802_816, (3_211_264, 802_816)),
]
MOBILENET_V2 = ["3,504,872", "74.25MB", "627.69MMAdd", "320.24MFlops", "162.2MB"]


def torchvision_rows(name: str) -> list[StatNode]:
    with torchvision_importable():
        from torchvision import models
    return rows(getattr(models, name)(), (3, 224, 224))


@pytest.mark.slow
def test_resnet18_has_its_published_rows() -> None:
    found = torchvision_rows("resnet18")[:4]
    assert [(n.name, n.parameter_quantity, n.MAdd, n.Flops, n.Memory) for n in found] == RESNET18


@pytest.mark.slow
def test_mobilenet_has_its_published_totals() -> None:
    report = report_format(torchvision_rows("mobilenet_v2"))
    assert [line.split(": ")[1] for line in report.splitlines() if line.startswith("Total")] == MOBILENET_V2


def test_leaves_come_by_name_in_order() -> None:
    leaves = ModelHook(nested(), (8,)).retrieve_leaf_modules()
    assert isinstance(leaves, OrderedDict)
    assert list(leaves) == [
        "stem", "body.0.first", "body.0.act", "body.0.second", "body.1.first", "body.1.act", "body.1.second", "head",
    ]  # fmt: skip


def test_a_subclass_chooses_the_modules_that_get_a_row() -> None:
    class Blocks(ModelHook):
        @staticmethod
        def _retrieve_leaf_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
            return list(model.named_children())

    hook = Blocks(nested(), (8,))
    assert list(hook.retrieve_leaf_modules()) == list(hook.stats) == ["stem", "body", "head"]
    assert hook.stats["body"].parameter_quantity == 4 * 20
    own = analyze(nested().get_submodule("body"), input_size=(1, 4), weights=False).totals
    assert hook.stats["body"].madd == own.flops
    assert hook._input_size == (8,)


def test_a_node_is_collected_by_its_height_or_next_to_a_higher_one() -> None:
    names = {granularity: [node.name for node in rows(nested(), (8,), granularity)] for granularity in (2, 3, 4)}
    assert names[2] == ["stem", "body.0", "body.1", "head"]
    assert names[3] == ["stem", "body", "head"]
    assert names[4] == ["root"]


def test_a_collected_inner_node_sums_its_leaves_and_spans_their_shapes() -> None:
    model = nested()
    body = next(node for node in rows(model, (8,), 3) if node.name == "body")
    leaves = [node for node in rows(model, (8,)) if node.name.startswith("body")]
    assert (body.input_shape, body.output_shape) == ((4,), (4,))
    assert body.parameter_quantity == 4 * 20
    for name in ("MAdd", "Flops", "inference_memory"):
        assert getattr(body, name) == sum(getattr(leaf, name) for leaf in leaves)
    assert body.Memory == (sum(leaf.Memory[0] for leaf in leaves), sum(leaf.Memory[1] for leaf in leaves))


@pytest.mark.parametrize("granularity", [0, 9])
def test_a_granularity_without_rows_is_a_value_error(granularity: int) -> None:
    with pytest.raises(ValueError, match="query_granularity is 1 to 4"):
        stat(nested(), (8,), granularity)


def test_a_tree_can_be_built_by_hand() -> None:
    root = StatNode("root")
    child = StatNode("child", parent=root)
    child.MAdd, child.Memory, child.input_shape = 7, (3, 4), (2,)
    root.add_child(child)
    root.add_child(StatNode("child", parent=root))
    assert root.children == [child]
    assert (root.MAdd, root.Memory, root.input_shape, root.depth) == (7, (3, 4), (2,), 2)
    assert (StatNode().name, StatNode().parent, root.find_child_index("absent")) == ("", None, -1)
    assert StatTree(root).get_collected_stat_nodes(1) == [child]


def test_the_counts_are_importable_by_their_modules_and_by_the_package() -> None:
    package = importlib.import_module("torchgauge.compat.torchstat")
    for name in ("compute_flops", "compute_madd", "compute_memory"):
        function = getattr(importlib.import_module(f"torchgauge.compat.torchstat.{name}"), name)
        assert getattr(package, name) is function


def test_the_granularity_of_a_node_is_the_largest_height_beside_it() -> None:
    root = StatNode("root")
    low, high = StatNode("low", root), StatNode("high", root)
    inner = StatNode("inner", high)
    root.add_child(low)
    root.add_child(high)
    high.add_child(inner)
    StatTree(root).update_stat_nodes_granularity()
    assert [node.granularity for node in (root, low, high, inner)] == [0, 2, 2, 1]
