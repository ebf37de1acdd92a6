from __future__ import annotations

import re
import shutil
import subprocess
from xml.etree import ElementTree

import pytest

from tests.page.large_sample import large_view
from tests.report.graph_sample import graph_view, looping_view, module, residual_view
from tests.report.sample import sample_view
from tests.report.stored_sample import stored_view
from torchgauge.facts import View
from torchgauge.report import Options, render, shorten, visible
from torchgauge.report.formats import quoted
from torchgauge.report.graph import NAME_WIDTH

HOSTILE = 'a"];evil [label=<b>&lt;\\N\\l</svg>\u202e\x1b'


SHOWN = shorten(visible(HOSTILE), NAME_WIDTH)


def hostile_view() -> View:
    return graph_view([module(HOSTILE, HOSTILE)], [("relu", HOSTILE, ("x",)), ("relu", HOSTILE, (0,))])


def labels(text: str) -> list[str]:
    return re.findall(r'^ +n\d+ \[label="((?:[^"\\]|\\.)*)"', text, re.MULTILINE)


def graphviz(text: str) -> ElementTree.Element:
    command = shutil.which("dot")
    if command is None:
        pytest.skip("Graphviz is not installed")
    run = subprocess.run([command, "-Tsvg"], input=text.encode(), capture_output=True, check=False)
    assert (run.returncode, run.stderr.decode()) == (0, "")
    return ElementTree.fromstring(run.stdout)


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(element.itertext()) for element in root.iter() if element.tag.endswith("}text")]


def test_modules_are_clusters_and_data_flow_along_edges() -> None:
    text = render(residual_view(), "dot", Options(depth=3))
    assert len(re.findall(r"subgraph cluster_\w+ \{", text)) == 1
    assert text.count(" -> ") == 7
    assert labels(text) == [
        "x\\ninput", "relu\\nReLU", "fc\\nLinear · 1.02 k MACs", "act\\nReLU", "add", "head\\nLinear · 1.02 k MACs",
        "output",
    ]  # fmt: skip
    assert 'label="blocks.0–2 ×3  Block · 1.02 k MACs each"' in text
    assert 'label="2×8", tooltip="2×8 float32, 64 B"' in text


@pytest.mark.parametrize("depth", [None, 0, 1, 9])
@pytest.mark.parametrize("view", [residual_view(), looping_view(20), sample_view(), stored_view(), hostile_view()])
def test_graphviz_draws_it(view: View, depth: int | None) -> None:
    assert texts(graphviz(render(view, "dot", Options(depth=depth))))


def test_a_hostile_name_is_text() -> None:
    found = texts(graphviz(render(hostile_view(), "dot", Options(depth=1))))
    assert SHOWN in found


def test_a_quoted_text_has_one_meaning() -> None:
    assert quoted('a"b\\', "&lt;") == '"a\\"b\\\\\\n&amp;lt;"'


def test_twenty_thousand_ops_stay_small() -> None:
    text = render(large_view(5000), "dot")
    assert len(text) < 20_000
    assert "… 4970 more" in text
