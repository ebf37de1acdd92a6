"""The data of the page, without a browser."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.page.large_sample import LARGE_BLOCKS, measured_large_view
from tests.report.sample import HOSTILE, sample_capture, sample_view
from tests.report.weights_sample import weights_view
from torchgauge.facts import View
from torchgauge.report import Options, render, save, save_weights, visible
from torchgauge.report.page import PARTS, assemble, build_payload, columns, encode, part, plain


def decoded(column: Any, length: int) -> list[Any]:
    """The values of a column, as the page reads it."""
    if isinstance(column, list):
        return column
    return [column["same"]] * length if "same" in column else [column["table"][place] for place in column["index"]]


def read_column(store: dict[str, Any], key: str) -> list[Any]:
    return decoded(store["columns"][key], store["length"])


def payload_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="payload">(.*?)</script>', page, re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.mark.parametrize("values", [[7, 7, 7], ["a", "b", "a", "a"], [1, 2, 3], [None, 0.5, None, None, 0.5]])
def test_an_encoded_column_holds_its_values(values: list[Any]) -> None:
    assert decoded(encode(values), len(values)) == values


def test_equal_values_are_written_once() -> None:
    assert encode(["aten::mul", "aten::add", "aten::mul", "aten::mul"]) == {
        "table": ["aten::mul", "aten::add"],
        "index": [0, 1, 0, 0],
    }


def test_a_column_without_values_is_left_out() -> None:
    assert columns(2, {"time_s": [None, None], "macs": [0, 5]}) == {"length": 2, "columns": {"macs": [0, 5]}}


def test_a_part_has_one_maker() -> None:
    with pytest.raises(ValueError, match="'modules'"):
        part("modules")(lambda view, options: None)
    assert "modules" in PARTS


def test_page_data_is_valid_json_without_control_characters() -> None:
    assert plain({"a": math.inf, "b": (1, math.nan), "\u202ename": "a\x1b[31m", "code": "x = 1\ny = 2"}) == {
        "a": None,
        "b": [1, None],
        "\\u202ename": "a\\x1b[31m",
        "code": "x = 1\ny = 2",
    }


def test_the_rows_of_modules_can_be_put_together_again() -> None:
    view = sample_view()
    store = build_payload(view, Options())["modules"]
    paths: list[str] = []
    for name, parent in zip(read_column(store, "name"), read_column(store, "parent"), strict=True):
        paths.append(f"{paths[parent]}.{name}" if parent is not None and paths[parent] else name)
    assert paths == [visible(row.path) for row in view.modules]
    assert read_column(store, "macs") == [row.macs for row in view.modules]
    assert visible(HOSTILE) in paths


def test_the_rows_of_ops_are_those_of_the_view() -> None:
    view = sample_view()
    payload = build_payload(view, Options())
    store = payload["ops"]
    modules = [view.modules[row].path for row in read_column(store, "module_row")]
    assert modules == [row.module for row in view.ops]
    for key in ("op", "flops", "live_bytes", "status"):
        assert read_column(store, key) == [row[key] for row in view.ops]
    assert read_column(store, "bytes_moved") == [row.bytes_read + row.bytes_written for row in view.ops]


def test_an_op_in_a_module_without_a_row_keeps_its_path() -> None:
    capture = sample_capture()
    ops = (replace(capture.ops[0], module="wrapper.inner"), *capture.ops[1:])
    store = build_payload(View(replace(capture, ops=ops)), Options())["ops"]
    assert read_column(store, "module")[0] == "wrapper.inner"
    assert "module_row" not in store["columns"]


def test_only_figures_that_a_module_has_can_be_chosen() -> None:
    keys = [figure["key"] for figure in build_payload(sample_view(), Options())["figures"]]
    assert keys == ["params", "param_bytes", "macs", "flops", "bytes_moved", "activation_bytes"]


def test_the_overview_warns_of_work_without_a_formula() -> None:
    warnings = build_payload(sample_view(), Options())["overview"]["warnings"]
    assert "autocast was on" in warnings
    assert any("MACs and FLOPs are missing" in text for text in warnings)


def test_data_cannot_end_its_script_element() -> None:
    hostile = "</script><script>alert(1)</script><!-- & \u2028"
    page = assemble(hostile, {"name": hostile}, [])
    assert page.count("<script") == 2
    assert "alert(1)<" not in page
    assert payload_of(page) == {"name": hostile}


def test_data_cannot_end_what_is_shown_without_scripts() -> None:
    hostile = "</noscript><script>alert(1)</script><img src=x onerror=alert(1)>\u202e"
    capture = sample_capture()
    page = render(View(replace(capture, target=replace(capture.target, name=hostile))), "html")
    shown = page.partition("<main")[2].partition("</main>")[0]
    assert shown.count("</noscript>") == 1
    assert "<img" not in shown
    assert "&lt;/noscript&gt;&lt;script&gt;" in shown
    assert "\u202e" not in shown


def test_only_the_script_of_the_page_may_run() -> None:
    page = render(sample_view(), "html")
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; script-src 'sha256-{digest}';" in page


def test_the_page_of_an_analysis_has_every_part_in_it() -> None:
    assert set(payload_of(render(sample_view(), "html"))) == set(PARTS)


@pytest.mark.parametrize("blocked", ["torch", "pandas"])
def test_a_saved_run_becomes_a_page_where_heavy_packages_are_missing(tmp_path: Path, blocked: str) -> None:
    saved, page = tmp_path / "run.json", tmp_path / "run.html"
    save(sample_view(), saved)
    code = (
        f"import sys; sys.modules[{blocked!r}] = None; import torchgauge as tg; tg.load(sys.argv[1]).save(sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", code, saved, page], check=True)
    assert payload_of(page.read_text(encoding="utf-8"))["overview"]["name"] == "sample.py:Sample"


def test_the_tensors_of_a_file_can_be_saved_as_a_page(tmp_path: Path) -> None:
    save_weights(weights_view(), tmp_path / "weights.html")
    payload = payload_of((tmp_path / "weights.html").read_text(encoding="utf-8"))
    assert payload["ops"] is None
    assert payload["modules"]["length"] == len(weights_view().modules)


def test_a_page_of_twenty_thousand_ops_is_small() -> None:
    view = measured_large_view(LARGE_BLOCKS)
    page = render(view, "html")
    assert len(view.ops) == 20_000
    assert len(page.encode()) < 12 * 10**6
