"""Modules nested thousands deep: no view and no report calls itself for each level."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import torchgauge as tg
from tests.report.deep_sample import LEVELS, deep_capture
from torchgauge.analysis import Analysis
from torchgauge.facts import View
from torchgauge.report import FORMATS, Options, fold, render_bytes
from torchgauge.report.content import outline, sort_blocks, unused_modules
from torchgauge.report.graph import READABLE_LEVELS, Runs, build_graph, build_scene, opening, walk
from torchgauge.source import entries
from torchgauge.source.architecture import find_blocks


@pytest.fixture(scope="module")
def view() -> View:
    return View(deep_capture())


def test_the_tree_sums_and_walks(view: View) -> None:
    view.tree.self_check(view.capture)
    assert [node.record.depth for node in view.tree.walk()] == list(range(LEVELS + 1))
    assert {row.macs for row in view.modules} == {128}


# Those of measured runs and of weight scans have nothing to say here.
@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"trace", "against.csv", "weights.jsonl"}))
def test_every_format_is_written(view: View, name: str) -> None:
    assert render_bytes(view, name)


def test_a_depth_that_is_asked_for_is_drawn_in_full(view: View) -> None:
    text = render_bytes(view, "dot", Options(depth=LEVELS)).decode()
    assert text.count("subgraph") == text.count("}") - 1 == LEVELS - 1


def test_the_outline_goes_to_any_depth_and_can_be_sorted(view: View) -> None:
    lines = outline(view, Options(depth=LEVELS, sort="macs"))
    assert len(lines) == LEVELS + 1
    assert lines[-1].guide == "   " * (LEVELS - 1) + "└─ "
    assert len(list(sort_blocks(fold(view), "params").walk())) == LEVELS + 1


def test_the_graph_opens_at_first_no_deeper_than_one_can_read(view: View) -> None:
    graph = build_graph(view)
    runs = Runs(graph)
    scene = build_scene(graph, runs, opening(graph, runs, None))
    frames = [item for item in walk(scene.root) if item.inside]
    assert len(frames) == READABLE_LEVELS


def test_the_topmost_module_that_never_ran_is_found() -> None:
    capture = deep_capture()
    idle = tuple(replace(module, calls=0) if module.depth >= 5 else module for module in capture.modules)
    elsewhere = tuple(replace(op, module="", weights=()) for op in capture.ops)
    unused = unused_modules(View(replace(capture, modules=idle, ops=elsewhere)))
    assert [node.record.depth for node in unused] == [5]


def test_it_is_saved_loaded_and_compared(view: View, tmp_path: Path) -> None:
    Analysis(view.capture).save(tmp_path / "deep.json")
    loaded = tg.load(tmp_path / "deep.json")
    assert loaded.capture.modules == view.capture.modules
    assert "Linear" in str(tg.compare(loaded, Analysis(deep_capture(LEVELS - 1))))


def test_a_file_with_such_names_is_described(tmp_path: Path) -> None:
    path = ".".join(["a"] * LEVELS)
    torch.save({f"{path}.weight": torch.ones(2, 3), f"{path}.bias": torch.ones(2)}, tmp_path / "deep.pt")
    found = tg.analyze(tmp_path / "deep.pt")
    assert found.totals.params == 8
    assert render_bytes(found, "svg")


def test_repeated_blocks_and_first_layers_are_found_below_many_levels() -> None:
    prefix = "a." * LEVELS
    shapes = {f"{prefix}{block}.{part}.weight": (4, 4) for block in range(3) for part in ("up", "down")}
    assert [(blocks.path, blocks.count) for blocks in find_blocks(shapes)] == [(prefix.rstrip("."), 3)]
    model: torch.nn.Module = torch.nn.Linear(4, 4)
    for _ in range(LEVELS):
        model = torch.nn.Sequential(model, torch.nn.ReLU())
    assert [entry.path.count("0") for entry in entries(model)] == [LEVELS]
