"""Reports of the weights' values."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from functools import partial
from math import nan
from pathlib import Path

import pytest
import torch

import torchgauge as tg
from tests.report.stored_sample import stored_view
from tests.report.weights_sample import APART, BLOCKS, QKV, UP, figures, weights_capture, weights_view
from torchgauge.errors import UsageError
from torchgauge.facts import Row, StoredRecord, StoredTensor, View, WeightStatistics, capture_from_document
from torchgauge.report import (
    SCAN,
    Options,
    advice,
    by_operation,
    cell_width,
    easiest_to_prune,
    examined,
    find_format,
    flat_rows,
    hardest,
    heat_maps,
    most_deviating,
    narrow,
    places,
    render,
    shade,
    sqnr_db,
    structured,
    structured_in_all,
    to_dataframe,
)

LAST = "blocks.7.mlp.up.weight"


def test_siblings_are_one_place_with_typical_and_extreme_figures() -> None:
    up, qkv = places(weights_view())  # matrices alone
    assert (up.pattern, qkv.pattern) == ("blocks.*.mlp.up.weight", "blocks.*.attn.qkv.weight")
    assert (up.count, up.elements, up.nbytes) == (BLOCKS, BLOCKS * UP.numel, BLOCKS * UP.nbytes)
    assert (up.std, up.abs_max, up.int8_db) == (0.1, 1.6, 22.0)
    assert qkv.sparsity == pytest.approx(0.5 / BLOCKS)
    assert up.removable == pytest.approx(0.06)


def test_tensors_without_values_and_second_names_are_not_examined() -> None:
    capture = weights_capture()
    assert capture.stored is not None
    twin = replace(capture.stored.tensors[0], shared_with=LAST)
    stored = replace(capture.stored, tensors=(twin, *capture.stored.tensors[1:]))
    names = [row.name for row in examined(View(replace(capture, stored=stored)))]
    assert len(names) == 3 * BLOCKS - 1
    assert twin.name not in names


def test_the_hardest_to_quantize_with_one_scale_comes_first() -> None:
    first, second = hardest(weights_view(), 2)
    assert first.name == f"blocks.{APART}.mlp.up.weight"
    assert (sqnr_db(first, "int8"), sqnr_db(second, "int8")) == (22.0, 40.0)
    assert sqnr_db(first, "int8", "per_channel") is None
    assert all(len(row.shape) > 1 for row in hardest(weights_view(), 99))


def _pruned_by_structure(tmp_path: Path) -> View:
    """A matrix of eight rows, two of them nearly nothing, and one that keeps all."""
    weight = torch.ones(8, 12)
    weight[:2] = 1e-6
    torch.save({"fc.weight": weight, "head.weight": torch.ones(4, 12)}, tmp_path / "weights.pt")
    return tg.scan_weights(tmp_path / "weights.pt", deep=True)


def test_energies_are_summed_also_if_the_squares_of_norms_overflow(tmp_path: Path) -> None:
    half = torch.tensor([1.0, 1.0, 0.0, 0.0]).repeat(4, 3).double()
    torch.save({"huge.weight": half * 1e200, "small.weight": torch.ones(4, 12)}, tmp_path / "weights.pt")
    assert structured_in_all(tg.scan_weights(tmp_path / "weights.pt", deep=True))["two_four"] == pytest.approx(1.0)


def test_shares_that_can_go_by_structure_are_weighed_by_elements(tmp_path: Path) -> None:
    view = _pruned_by_structure(tmp_path)
    fc, head = view.weights
    assert structured(fc) == {"rows": 0.25, "columns": 0.0}
    assert structured(head) == {"rows": 0.0, "columns": 0.0}
    assert structured_in_all(view) == pytest.approx({"rows": 0.25 * 96 / 144, "columns": 0.0, "two_four": 0.5})
    assert [row["name"] for row in easiest_to_prune(view, 5)] == ["fc.weight"]


def test_structured_pruning_is_in_the_text_reports(tmp_path: Path) -> None:
    view = _pruned_by_structure(tmp_path)
    text = render(view, "weights", Options(width=100))
    assert "Structured  rows 16.7 %" in text
    assert "columns 0.0 % at 1 % relative error; 2:4 keeps 50.0 % of the energy" in text
    table = text.partition("Structured pruning: what can be removed at 1 % relative error")[2].splitlines()
    assert table[1].split() == ["Tensor", "Shape", "Rows", "Columns", "Channels", "Heads", "2:4", "keeps"]
    assert table[2].split() == ["fc", "8×12", "25.0", "%", "0.0", "%", "-", "-", "50.0", "%"]
    detail = render(view, "comprehensive", Options(width=100))
    assert "by structure rows 25.0 %, columns 0.0 % at 1 % relative error" in " ".join(detail.split())
    shallow = tg.scan_weights(tmp_path / "weights.pt", deep=False)
    assert "Structured" not in render(shallow, "weights", Options(width=100))


def test_packed_weights_show_their_values_and_are_not_quantized_again() -> None:
    view = weights_view()
    row = next(row for row in view.weights if row.name == LAST)
    row |= {"dtype": "uint8", "logical_elements": 128, "dequantized": {"std": 7.0, "abs_max": 9.0}}
    shown = next(row for row in examined(view) if row.name == LAST)
    assert (shown.std, shown.abs_max) == (7.0, 9.0)
    assert sqnr_db(shown, "int8") is None


def test_advice_for_broken_values_comes_first_and_siblings_are_reported_once() -> None:
    broken, smaller = advice(weights_view())
    assert (broken.name, broken.siblings) == ("blocks.0.attn.qkv.weight", 0)
    assert (smaller.name, smaller.text, smaller.siblings) == (
        "blocks.1.mlp.up.weight",
        "int8 keeps 41.0 dB: 4.0× smaller",
        1,
    )


def test_ops_get_the_figures_of_their_weights() -> None:
    (share,) = by_operation(weights_view(has_ops=True))
    assert (share.op, share.module, share.calls) == ("aten::linear", "blocks.*.mlp.up", BLOCKS)
    assert share.nbytes == BLOCKS * UP.nbytes
    assert share.bytes_after == BLOCKS * 20
    assert share.smallest_30db == "int8"
    assert share.removable == pytest.approx(0.06)


def test_a_map_has_a_row_for_each_place_and_a_column_for_each_layer() -> None:
    (found,) = heat_maps(weights_view())
    assert found.stem == "blocks.*"
    assert found.columns == tuple((block,) for block in range(BLOCKS))
    assert [row.label for row in found.rows] == ["mlp.up", "attn.qkv"]
    assert found.rows[0].cells == (0.1,) * APART + (0.4,) + (0.1,) * 2
    assert (found.rows[0].median, found.rows[0].largest) == (0.1, 0.4)


def test_weights_of_some_layers_are_a_row_with_gaps() -> None:
    capture = weights_capture()
    blocks = ((1, 0), (1, 1), (2, 0), (2, 1))
    names = [f"layer{stage}.{block}.conv.weight" for stage, block in blocks]
    extra = "layer2.0.downsample.0.weight"
    tensors = tuple(StoredTensor(name, UP, UP.nbytes, "f", 0) for name in (*names, extra))
    statistics = WeightStatistics({name: figures() for name in (*names, extra)})
    (found,) = heat_maps(View(replace(capture, stored=StoredRecord(tensors), statistics=statistics)))
    assert (found.stem, found.columns) == ("layer*.*", blocks)
    assert [(row.label, row.cells) for row in found.rows] == [
        ("conv", (0.1,) * 4),
        ("downsample.*", (None, None, 0.1, None)),
    ]


@pytest.mark.parametrize(
    ("value", "mark"),
    [(0.4, "·"), (0.5, "·"), (0.7, "░"), (1.0, "▒"), (1.9, "▓"), (2.1, "█"), (None, " "), (nan, "?")],
)
def test_shades_have_one_scale(value: float | None, mark: str) -> None:
    assert shade(value, 1.0) == mark


def test_a_row_of_zeros_is_even_and_other_values_are_dark() -> None:
    assert (shade(0.0, 0.0), shade(1e-9, 0.0)) == ("▒", "█")


def test_many_layers_fit_and_outliers_stay_visible() -> None:
    cells: list[float | None] = [1.0] * 100
    cells[37] = 9.0
    pick = partial(most_deviating, middle=1.0)
    shown = narrow(cells, 20, pick)
    assert (len(shown), shown.count(9.0), shown[7]) == (20, 1, 9.0)
    nothing, odd = list[float | None]([None] * 4), list[float | None]([1.0, nan, 7.0])
    assert narrow(nothing, 2, pick) == [None, None]
    assert narrow(odd, 1, pick)[0] is nan


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_has_every_part_and_keeps_to_the_width(width: int) -> None:
    text = render(weights_view(), "weights", Options(width=width))
    for part in (
        "Values of the parameters", "Not finite", "2 NaN", "Left out", "2.00 MiB/s",
        "Values by kind of layer", "Largest weights",
        "Hardest to quantize", "Outliers among repeated layers", "Std by layer, blocks.*", "▒▒▒▒▒▒▒▒▒▒██▒▒▒▒",
        "Recommendations for weights", "(and 1 like it)", "could not be read", "the file ends early",
    ):  # fmt: skip
        assert part in text, part
    assert max(cell_width(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text


def test_an_analysis_with_values_shows_them_by_operation() -> None:
    text = render(weights_view(has_ops=True), "text", Options(width=100))
    assert "Pruning and quantization by operation" in text
    assert "Values of the parameters" in text


def test_without_values_nothing_is_said_of_them() -> None:
    for format in ("text", "weights"):
        text = render(stored_view(), format)
        for absent in ("Values", "Hardest", "Recommendations", "by layer", "None"):
            assert absent not in text


def test_the_map_is_narrow_where_the_page_is() -> None:
    text = render(weights_view(), "weights", Options(width=40))
    assert "█" in text


def test_flat_columns_have_distinct_names_and_omit_long_lists() -> None:
    found = {"int8": {"per_tensor": {"sqnr_db": 3.0}}}
    first = Row(name="a", quantiles={"0.5": 1.0}, quantization=found)
    second = Row(name="b", histogram={"edges": []}, pruning={"rows": {"0.01": 0.5}}, recommendations=["x", "y"])
    rows = flat_rows([first, second])
    assert list(rows[0]) == ["name", "quantile_0.5", "int8_per_tensor_sqnr_db", "pruning_rows_0.01", "recommendations"]
    assert rows[0]["pruning_rows_0.01"] is None
    assert (rows[1]["name"], rows[1]["recommendations"]) == ("b", "x; y")


def test_the_csv_is_flat_with_a_line_per_tensor() -> None:
    rows = list(csv.DictReader(io.StringIO(render(weights_view(), "weights.csv"))))
    assert len(rows) == 3 * BLOCKS + 1
    assert rows[0]["shape"] == "12x4"
    assert float(rows[0]["quantile_0.5"]) == 0
    assert float(rows[0]["int8_per_tensor_sqnr_db"]) == 40
    assert float(rows[0]["pruning_magnitude_0.05"]) == 0.2
    assert rows[-1]["std"] == ""
    assert "histogram" not in " ".join(rows[0])


def test_the_frame_has_the_same_columns_as_the_csv() -> None:
    frame = to_dataframe(weights_view(), "weights")
    assert list(frame.columns) == next(csv.reader(io.StringIO(render(weights_view(), "weights.csv"))))
    assert frame["std"].max() == 0.4
    assert frame["std"].isna().sum() == 1


def test_json_lines_hold_a_row_each() -> None:
    assert find_format("a.jsonl", SCAN).name == "weights.jsonl"
    rows = [json.loads(line) for line in render(weights_view(), "weights.jsonl").splitlines()]
    assert len(rows) == 3 * BLOCKS + 1
    assert rows[0]["quantiles"]["0.5"] == 0
    assert rows[0]["elements"] == QKV.numel


def test_json_lines_of_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="no weights to write"):
        render(View(replace(weights_capture(), stored=None, statistics=None)), "weights.jsonl")


def test_the_document_reads_back_as_the_same_capture() -> None:
    document = json.loads(render(weights_view(), "json"))
    assert capture_from_document(document, "it") == weights_capture()
    assert document["weight_summary"]["failures"][0]["reason"] == "the file ends early"


def test_the_nodes_of_a_frozen_norm_have_no_line_on_what_to_save(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).eval()
    a = tg.analyze(model, input_size=(1, 3, 8, 8), weights=True, deep=True)
    a.save(tmp_path / "comprehensive_model_analysis.txt")
    nodes = (tmp_path / "comprehensive_model_analysis.txt").read_text().split("Node ")[1:]
    saved = {node.split()[1].removesuffix(".default"): "to save" in node for node in nodes}
    assert saved["aten::convolution"]
    assert not saved["aten::native_batch_norm"]
