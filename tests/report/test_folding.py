from __future__ import annotations

import dataclasses

from tests.report.sample import BLOCKS, LINEAR_MACS, LINEAR_PARAMS, SQUARE, sample_capture, sample_view
from torchgauge.facts import CODE, MODULES, Capture, ModuleRecord, ParamRecord, TensorSpec, View, figures_of
from torchgauge.report import FoldedBlock, fold

ADDITIVE = [figure.key for figure in figures_of(MODULES) if figure.additive and figure.known is CODE]


def blocks_by_path(view: View) -> dict[str, FoldedBlock]:
    return {block.row.path: block for block in fold(view).walk()}


def capture_of(*modules: ModuleRecord, params: tuple[ParamRecord, ...] = ()) -> Capture:
    root = ModuleRecord("", "Root")
    return dataclasses.replace(sample_capture(), modules=(root, *modules), params=params, ops=())


def child_names(capture: Capture) -> list[tuple[str, int]]:
    return [(block.name, block.count) for block in fold(View(capture)).children]


def test_twelve_equal_blocks_become_one_line_with_the_figures_of_all() -> None:
    block = blocks_by_path(sample_view())["blocks.0–11"]
    assert (block.name, block.count, len(block.members)) == ("0–11", BLOCKS, BLOCKS)
    assert block.row.params == BLOCKS * LINEAR_PARAMS
    assert block.row.macs == BLOCKS * LINEAR_MACS
    assert block.row.calls == BLOCKS


def test_below_a_folded_block_the_figures_are_those_of_all_members_too() -> None:
    child = blocks_by_path(sample_view())["blocks.0–11.fc"]
    assert (child.count, len(child.members)) == (1, BLOCKS)
    assert child.row.macs == BLOCKS * LINEAR_MACS


def test_additive_figures_still_add_up_after_folding() -> None:
    view = sample_view()
    for block in fold(view).walk():
        for name in ADDITIVE:
            own = sum(getattr(member.own, name) for member in block.members)
            assert block.row[name] == own + sum(child.row[name] for child in block.children)
    assert {name: fold(view).row[name] for name in ADDITIVE} == {name: view.totals[name] for name in ADDITIVE}


def test_every_module_is_in_exactly_one_block() -> None:
    view = sample_view()
    members = [member.path for block in fold(view).walk() for member in block.members]
    assert sorted(members) == sorted(row.path for row in view.modules)


def test_a_block_that_differs_in_one_figure_is_not_folded() -> None:
    capture = sample_capture()
    ops = tuple(op for op in capture.ops if not (op.module == "blocks.5" and op.op == "my::mix"))
    names = [block.row.path for block in fold(View(dataclasses.replace(capture, ops=ops))).children[1].children]
    assert names == ["blocks.0–4", "blocks.5", "blocks.6–11"]


def test_a_block_that_differs_in_a_shape_is_not_folded() -> None:
    shapes = [(4, 8), (4, 8), (4, 9)]
    modules = [ModuleRecord(str(i), "Layer", outputs=TensorSpec(shape)) for i, shape in enumerate(shapes)]
    assert child_names(capture_of(*modules)) == [("0–1", 2), ("2", 1)]


def test_a_block_that_differs_deep_inside_is_not_folded() -> None:
    modules = []
    for index, kind in enumerate(("ReLU", "ReLU", "GELU")):
        modules += [ModuleRecord(f"{index}", "Layer"), ModuleRecord(f"{index}.act", kind)]
    assert child_names(capture_of(*modules)) == [("0–1", 2), ("2", 1)]


def test_numbered_names_fold_after_the_same_stem_only() -> None:
    names = ["block1", "block2", "tail3", "left", "right"]
    modules = [ModuleRecord(name, "Layer") for name in names]
    assert child_names(capture_of(*modules)) == [("block1–2", 2), ("tail3", 1), ("left", 1), ("right", 1)]


def test_equal_blocks_that_do_not_follow_each_other_stay_apart() -> None:
    kinds = ["Linear", "ReLU", "Linear"]
    modules = [ModuleRecord(str(index), kind) for index, kind in enumerate(kinds)]
    assert child_names(capture_of(*modules)) == [("0", 1), ("1", 1), ("2", 1)]


def test_blocks_fold_inside_folded_blocks() -> None:
    modules = []
    for outer in range(3):
        modules.append(ModuleRecord(f"{outer}", "Stage"))
        modules += [ModuleRecord(f"{outer}.{inner}", "Layer", calls=1) for inner in range(4)]
    stage = fold(View(capture_of(*modules))).children[0]
    layer = stage.children[0]
    assert (stage.name, stage.count) == ("0–2", 3)
    assert (layer.row.path, layer.count, layer.row.calls) == ("0–2.0–3", 4, 12)


def test_parameters_that_members_share_count_once() -> None:
    size = SQUARE.numel
    modules = [ModuleRecord(str(i), "Linear", params=size, trainable_params=size) for i in range(3)]
    tied = ParamRecord("0.weight", SQUARE, trainable=True, aliases=("1.weight",))
    other = ParamRecord("2.weight", SQUARE, trainable=True)
    block = fold(View(capture_of(*modules, params=(tied, other)))).children[0]
    assert (block.count, block.row.params, block.row.trainable_params) == (3, 2 * size, 2 * size)
    assert block.row.param_bytes == 2 * SQUARE.nbytes
