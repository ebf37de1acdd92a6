"""Reports of files: bare weights without a run, and the list of tensors."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import torchgauge as tg
from tests.report.sample import HOSTILE
from tests.report.stored_sample import FILE, MATRIX, PACKED_VALUES, stored_capture, stored_view
from torchgauge.errors import UsageError
from torchgauge.facts import View, capture_from_document
from torchgauge.report import SCAN, Options, find_format, render, to_dataframe
from torchgauge.report.content import by_dtype, by_folder, by_role, tied
from torchgauge.report.content.findings import findings
from torchgauge.report.formats.text import report_lines
from torchgauge.report.layout import STYLES
from torchgauge.report.page.overview import cards, warnings


def test_totals_count_shared_bytes_once_and_unpack_values() -> None:
    totals = stored_view().totals
    assert totals.stored_bytes == 2 * 128 + 16 + 32 + 40
    assert totals.stored_elements == 2 * MATRIX.numel + 16 + 8 + 10
    assert totals.logical_params == 2 * MATRIX.numel + PACKED_VALUES
    assert totals.optimizer_elements == 10


def test_figures_that_need_a_run_are_null() -> None:
    view = stored_view()
    for name in ("macs", "flops", "bytes_read", "activation_bytes", "peak_activation_bytes", "ops", "trainable_params"):
        assert view.totals[name] is None
        assert name not in view.modules[0] or view.modules[0][name] is None


def test_a_live_module_has_no_stored_figures() -> None:
    view = View(replace(stored_capture(), stored=None))
    assert view.totals.stored_bytes is None
    assert view.to_dict()["pickle"] is None
    assert view.weights == []


def test_the_document_of_a_file_reads_back_as_the_same_capture() -> None:
    document = json.loads(render(stored_view(), "json"))
    assert capture_from_document(document, "it") == stored_capture()
    assert document["capture"]["mode"] is None


def test_a_report_without_a_run_has_no_tables_of_ops() -> None:
    text = render(stored_view(), "text")
    reported = " ".join(text.split())
    assert "Run weights only; add --as file.py:Net for FLOPs; float32" in reported
    assert "Family MLP: width 8, heads 2?" in reported
    assert "Logical parameters 96" in reported
    assert "blocks" in text
    for absent in ("MACs", "Coverage", "Most expensive", "None", "--ops"):
        assert absent not in text


def test_equal_folders_of_names_fold() -> None:
    assert "└─ 0–1 ×2" in render(stored_view(), "text")


def test_dangerous_imports_come_first_and_expected_ones_are_only_counted() -> None:
    lines = render(stored_view(), "text").split("What its pickle would import\n")[1].splitlines()
    assert lines[0] == "1 expected names, 2 others; nothing was executed"
    assert [line.split()[0] for line in lines[2:4]] == ["dangerous", "unknown"]
    assert "OrderedDict" not in "\n".join(lines)


@pytest.mark.parametrize("format", ["text", "weights", "comprehensive"])
def test_a_dangerous_pickle_is_the_first_line_of_a_text(format: str) -> None:
    assert render(stored_view(), format).startswith("Dangerous pickle: do not load this file; unpickling it would call")


def test_a_dangerous_pickle_is_in_red_above_the_title() -> None:
    first, *_ = report_lines(stored_view(), Options())
    assert {STYLES[span.style] for span in first} == {"bold red"}


@pytest.mark.parametrize("format", ["markdown", "fragment"])
def test_a_dangerous_pickle_comes_before_the_summary(format: str) -> None:
    text = render(stored_view(), format)
    assert text.index("Dangerous pickle") < text.index("Parameters")


def test_a_dangerous_pickle_is_the_first_tile_and_the_first_warning_of_the_page() -> None:
    first, *_ = cards(stored_view())
    assert (first.label, first.value, first.kind) == ("Pickle", "dangerous", "alarm")
    assert warnings(stored_view())[0].startswith("Dangerous pickle: ")


def test_a_pickle_of_unknown_names_raises_no_alarm() -> None:
    capture = stored_capture()
    assert capture.stored is not None
    harmless = tuple(entry for entry in capture.stored.imports if entry.verdict != "dangerous")
    view = View(replace(capture, stored=replace(capture.stored, imports=harmless)))
    assert harmless
    assert findings(view) == []
    assert "Dangerous" not in render(view, "text")


def test_a_pickle_that_ran_is_not_said_to_be_unexecuted() -> None:
    capture = stored_capture()
    assert capture.stored is not None
    text = render(View(replace(capture, stored=replace(capture.stored, executed=True))), "text")
    assert "What its pickle imported" in text
    assert "nothing was executed" not in text


@pytest.mark.parametrize("format", ["text", "weights", "fragment", "weights.csv"])
def test_hostile_names_show_as_text(format: str) -> None:
    rendered = render(stored_view(), format)
    assert "\x1b" not in rendered
    assert format != "fragment" or HOSTILE[5:] not in rendered


def test_the_list_groups_by_folder_type_and_role_the_largest_first() -> None:
    view = stored_view()
    first, *_ = by_folder(view)
    assert (first.name, first.tensors, first.nbytes) == ("blocks.*", 2, 256)
    assert {group.name: group.elements for group in by_dtype(view)} == {"float32": 82, "uint8": 16}
    assert [group.name for group in by_role(view)] == ["parameter", "optimizer", "buffer"]
    assert sum(group.share for group in by_role(view)) == pytest.approx(1)
    assert tied(view) == [("head.weight", "blocks.0.weight")]


def test_the_list_as_text_has_every_part() -> None:
    text = render(stored_view(), "weights", Options(width=100))
    for part in (FILE, "Tensors by name", "By type", "By role", "Shared tensors", "What its pickle", "it has a flaw"):
        assert part in text


def test_the_list_as_csv_has_a_line_per_tensor() -> None:
    rows = list(csv.DictReader(io.StringIO(render(stored_view(), "weights.csv"))))
    assert len(rows) == 6
    assert (rows[0]["name"], rows[0]["shape"], rows[0]["offset"]) == ("blocks.0.weight", "8x4", "64")
    assert rows[3]["offset"] == ""


def test_the_list_as_a_frame_has_a_row_per_tensor() -> None:
    frame = to_dataframe(stored_view(), "weights")
    assert frame["bytes"].sum() == 3 * 128 + 16 + 32 + 40


@pytest.mark.parametrize(
    ("name", "format"),
    [("a.json", "json"), ("a.csv", "weights.csv"), ("a.weights.csv", "weights.csv"), ("a.txt", "weights")],
)
def test_a_list_of_tensors_has_its_own_suffixes(name: str, format: str) -> None:
    assert find_format(name, SCAN).name == format
    with pytest.raises(UsageError, match="must end in one of"):
        find_format("a.ops", SCAN)


def cut_file(folder: Path, suffix: str) -> Path:
    """Ten tensors, of which the end of the file is missing."""
    state = {f"layers.{number}.weight": torch.randn(64, 64) for number in range(10)}
    path = folder / f"cut{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    return path


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("weights", [True, False])
def test_a_truncated_file_is_the_first_line_of_the_report(suffix: str, weights: bool, tmp_path: Path) -> None:
    found = tg.analyze(cut_file(tmp_path, suffix), weights=weights, progress=False)
    first = str(found).splitlines()[0]

    assert re.fullmatch(r"Truncated file: [34] of 10 tensors are missing; download or copy it again", first)
    found.save(tmp_path / "run.json")
    assert str(tg.load(tmp_path / "run.json")).splitlines()[0] == first


def test_weights_that_are_not_finite_come_first_and_masks_with_infinities_do_not(tmp_path: Path) -> None:
    state = {f"layers.{number}.weight": torch.ones(8, 8) for number in range(4)}
    state["layers.1.weight"][0, 0] = float("nan")
    state["layers.2.weight"][0, 0] = float("inf")
    state["attn.mask"] = torch.full((8, 8), float("-inf"))
    torch.save(state, tmp_path / "w.pt")
    scan = tg.scan_weights(tmp_path / "w.pt", progress=False)

    assert [found.text for found in findings(scan)] == [
        "Unusable weights: NaN in 1 of 4 parameter tensors (layers.1.weight)",
        "Unusable weights: infinite values in 1 of 4 parameter tensors (layers.2.weight)",
    ]


def test_a_whole_file_of_finite_weights_has_no_findings(tmp_path: Path) -> None:
    torch.save({"layers.0.weight": torch.ones(8, 8)}, tmp_path / "w.pt")

    assert findings(tg.analyze(tmp_path / "w.pt", progress=False)) == []
