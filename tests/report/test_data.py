"""The data of the reports, against the closed forms of the sample."""

from __future__ import annotations

import dataclasses

import pytest
from torch import nn

import torchgauge as tg
from tests.report.sample import (
    BLOCKS,
    CONV_MACS,
    CONV_WEIGHT,
    FEATURES,
    HIDDEN,
    HOSTILE,
    LINEAR_MACS,
    LINEAR_PARAMS,
    LINEARS,
    sample_capture,
    sample_view,
)
from torchgauge.facts import View
from torchgauge.report import BY_FLOPS, join_paths, path_pattern, top_modules, top_ops
from torchgauge.report.content import (
    LayerKind,
    UncountedOp,
    by_category,
    by_phase,
    coverage,
    find_peak,
    layer_kinds,
    unused_modules,
)

LINEAR_FLOPS = 2 * LINEAR_MACS + HIDDEN.numel
FLOPS = 2 * CONV_MACS + FEATURES.numel + (BLOCKS + 3) * LINEAR_FLOPS


def test_modules_at_one_place_of_repeated_blocks_rank_together() -> None:
    first, second, *_ = top_modules(sample_view(), BY_FLOPS, 10)
    assert (first.paths, first.kind, first.count) == ("blocks.0–11.fc", "Linear", BLOCKS)
    assert (first.macs, first.flops) == (BLOCKS * LINEAR_MACS, BLOCKS * LINEAR_FLOPS)
    assert first.share == BLOCKS * LINEAR_FLOPS / FLOPS
    assert (second.paths, second.count, second.macs) == ("stem.0", 1, CONV_MACS)


def test_the_shares_of_all_modules_sum_to_one() -> None:
    assert sum(entry.share or 0 for entry in top_modules(sample_view(), BY_FLOPS, 100)) == pytest.approx(1)


def test_equal_calls_of_an_op_rank_together() -> None:
    first, second, *_ = top_ops(sample_view(), BY_FLOPS, 10)
    assert (first.op, first.calls, first.flops) == ("aten::addmm", BLOCKS + 3, (BLOCKS + 3) * LINEAR_FLOPS)
    assert first.output_shapes == (HIDDEN.shape,)
    assert (second.op, second.calls, second.macs) == ("aten::convolution", 1, CONV_MACS)


def test_an_op_without_a_formula_is_ranked_as_unknown() -> None:
    (mystery,) = [entry for entry in top_ops(sample_view(), BY_FLOPS, 10) if not entry.is_counted]
    assert (mystery.op, mystery.calls) == ("my::mix", BLOCKS)
    assert mystery.bytes_moved == 2 * BLOCKS * HIDDEN.nbytes


def test_ranks_are_limited_and_free_ops_left_out() -> None:
    assert len(top_ops(sample_view(), BY_FLOPS, 2)) == 2
    assert "aten::view" not in {entry.op for entry in top_ops(sample_view(), BY_FLOPS, 100)}


@pytest.mark.parametrize(
    ("path", "pattern"), [("layers.3.fc", "layers.*.fc"), ("", ""), ("conv1", "conv1"), ("0", "*"), ("a.0.1", "a.*.*")]
)
def test_a_path_pattern_has_a_star_for_each_index(path: str, pattern: str) -> None:
    assert path_pattern(path) == pattern


@pytest.mark.parametrize(
    ("paths", "joined"),
    [
        (["conv1"], "conv1"),
        (["layers.0.fc", "layers.1.fc", "layers.2.fc"], "layers.0–2.fc"),
        ([f"layers.{index}" for index in range(12)], "layers.0–11"),
        (["features.24", "features.26", "features.28"], "features.{24,26,28}"),
        ([f"features.{index}" for index in (2, 4, 6, 8)], "features.*"),
        (["a.0.b.1", "a.1.b.1", "a.0.b.2", "a.1.b.2"], "a.0–1.b.1–2"),
        ([""], ""),
    ],
)
def test_paths_that_differ_in_indices_are_joined(paths: list[str], joined: str) -> None:
    assert join_paths(paths) == joined


def test_modules_at_one_place_with_other_figures_rank_apart() -> None:
    capture = sample_capture()
    ops = tuple(dataclasses.replace(op, module="blocks.0.fc") if op.module == HOSTILE else op for op in capture.ops)
    ranked = top_modules(View(dataclasses.replace(capture, ops=ops)), BY_FLOPS, 100)
    assert [entry.paths for entry in ranked if "blocks" in entry.paths] == ["blocks.1–11.fc", "blocks.0.fc"]


def test_categories_partition_the_ops() -> None:
    view = sample_view()
    slices = by_category(view)
    assert [entry.name for entry in slices] == ["matmul", "convolution", "activation", "other", "view"]
    assert sum(entry.ops for entry in slices) == view.totals.ops
    assert sum(entry.bytes_moved for entry in slices) == view.totals.bytes_read + view.totals.bytes_written
    for share in ("macs_share", "flops_share", "bytes_share"):
        assert sum(getattr(entry, share) for entry in slices) == pytest.approx(1)
    assert {entry.name: entry.uncounted for entry in slices if entry.uncounted} == {"other": BLOCKS}


def test_a_category_has_the_modules_that_run_its_ops_themselves() -> None:
    shared = nn.ReLU()
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), shared, nn.Conv2d(4, 4, 1), shared, nn.GELU()).eval()
    slices = by_category(View(tg.analyze(model, input_size=(1, 3, 8, 8), weights=False).capture))
    found = {entry.name: (entry.modules, entry.ops) for entry in slices}
    assert found["convolution"] == (2, 2)
    assert found["normalization"] == (1, 1)
    assert found["activation"] == (2, 3)


def test_phases_keep_the_order_they_ran_in() -> None:
    capture = sample_capture()
    backward = tuple(dataclasses.replace(op, phase="backward") for op in capture.ops)
    slices = by_phase(View(dataclasses.replace(capture, ops=capture.ops + backward)))
    assert [(entry.name, entry.flops) for entry in slices] == [("forward", FLOPS), ("backward", FLOPS)]


def test_layer_kinds_hold_every_parameter_once() -> None:
    conv, linears = CONV_WEIGHT.numel, len(LINEARS) * LINEAR_PARAMS
    assert layer_kinds(sample_view()) == [
        LayerKind("Linear", len(LINEARS), linears, 4 * linears, linears / (conv + linears)),
        LayerKind("Conv2d", 1, conv, 4 * conv, conv / (conv + linears)),
        LayerKind("ReLU", 1, 0, 0, 0.0),
    ]


def test_coverage_names_what_was_not_counted_and_its_share() -> None:
    view = sample_view()
    facts = coverage(view)
    moved = 2 * BLOCKS * HIDDEN.nbytes
    assert (facts.counted, facts.free, facts.uncounted) == (BLOCKS + 5, 1, BLOCKS)
    assert facts.uncounted_ops == (UncountedOp("my::mix", BLOCKS, moved),)
    assert facts.ops_share == BLOCKS / view.totals.ops
    assert facts.bytes_share == moved / (view.totals.bytes_read + view.totals.bytes_written)


def test_a_module_with_parameters_that_nothing_used_is_named() -> None:
    assert [node.path for node in unused_modules(sample_view())] == ["unused"]


def test_a_module_whose_parameters_an_op_used_is_not_unused_though_never_called() -> None:
    capture = sample_capture()
    used = dataclasses.replace(capture.ops[-1], weights=("unused.weight",))
    assert unused_modules(View(dataclasses.replace(capture, ops=(*capture.ops[:-1], used)))) == []


def test_a_tied_parameter_marks_all_its_modules_as_used() -> None:
    capture = sample_capture()
    params = tuple(
        dataclasses.replace(param, aliases=("unused.weight",)) if param.name == "shared.weight" else param
        for param in capture.params
    )
    assert unused_modules(View(dataclasses.replace(capture, params=params))) == []


def test_a_list_of_modules_that_have_their_first_name_elsewhere_is_used() -> None:
    capture = sample_capture()
    record = next(module for module in capture.modules if module.path == "unused")
    named = next(param for param in capture.params if param.name == "shared.weight")
    params = (*(p for p in capture.params if p is not named), dataclasses.replace(named, aliases=("unused.0.weight",)))
    view = View(dataclasses.replace(capture, params=params))

    assert record.calls == 0
    assert unused_modules(view) == []


def test_the_peak_is_at_the_op_with_most_memory_alive() -> None:
    peak = find_peak(sample_view())
    assert peak.activation_bytes == 40_000
    assert peak.place == "aten::addmm (op 27) in shared"


def test_the_inputs_are_the_peak_of_a_model_without_ops() -> None:
    capture = dataclasses.replace(sample_capture(), ops=())
    peak = find_peak(View(capture))
    assert (peak.activation_bytes, peak.op, peak.place) == (capture.input_bytes, None, "the inputs")
