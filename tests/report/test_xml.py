from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import torchgauge.report
from tests.report.read_back import xml_document
from tests.report.sample import sample_capture
from tests.report.saved_runs import RUNS, load_run
from torchgauge.facts import View
from torchgauge.report import render
from torchgauge.report.formats import ORDER, ROWS, SCHEMA, SINGLES, attributes_of, schema_text


@pytest.fixture(scope="module")
def schema() -> Any:
    xmlschema = pytest.importorskip("xmlschema", reason="validating needs xmlschema")
    return xmlschema.XMLSchema(schema_text())


def test_the_shipped_schema_has_the_attributes_of_the_table_of_figures(request: pytest.FixtureRequest) -> None:
    shipped = Path(torchgauge.report.__file__).with_name(SCHEMA)
    if request.config.getoption("--regenerate"):
        shipped.write_text(schema_text(), encoding="utf-8")
    assert shipped.read_text(encoding="utf-8") == schema_text()


@pytest.mark.parametrize("run", RUNS)
def test_a_run_validates(run: str, schema: Any) -> None:
    schema.validate(render(load_run(run), "xml"))


@pytest.mark.parametrize("run", RUNS)
def test_plain_members_of_the_contract_are_attributes(run: str) -> None:
    """A new plain member belongs into the schema; until it is there it is a keyed child."""
    root = ElementTree.fromstring(render(load_run(run), "xml"))
    plain = {"integer", "number", "boolean", "text"}
    rows = [row for table in ("modules", "ops", "parameters", "inputs") for row in root.iterfind(f"{{*}}{table}/*")]
    rows += [row for single in SINGLES for row in root.iterfind(f"{{*}}{single}")]
    found = {child.attrib["key"] for row in rows for child in row if child.tag.rpartition("}")[2] in plain}
    assert found == set()


def test_the_schema_knows_every_row() -> None:
    for tag in (*ROWS.values(), *SINGLES):
        assert attributes_of(tag)
    assert set(ROWS) | set(SINGLES) <= set(ORDER)


def test_a_value_that_does_not_fit_its_attribute_is_a_keyed_child(schema: Any) -> None:
    view = load_run("cnn")
    view.totals |= {"macs": "many", "flops": -1, "params": 1.5, "time_s": float("inf"), "energy_j": 2**70}
    text = render(view, "xml")
    schema.validate(text)
    totals = xml_document(text)["totals"]
    expected = {"macs": "many", "flops": -1, "params": 1.5, "time_s": "inf", "energy_j": 2.0**70}
    assert {key: totals[key] for key in expected} == expected


def test_members_that_the_schema_does_not_know_come_last_and_validate(schema: Any) -> None:
    class Later(View):
        def to_dict(self) -> dict[str, Any]:
            document = super().to_dict()
            document["totals"] |= {"new_figure": 3, "new_list": [1, None, "a", [0.5, 1]]}
            return {"new_member": {"<key>": [True, {}]}, **document}

    view = Later(sample_capture())
    text = render(view, "xml")
    schema.validate(text)
    found = xml_document(text)
    assert found["new_member"] == {"<key>": [True, {}]}
    assert found["totals"]["new_figure"] == 3
    assert found["totals"]["new_list"] == [1, None, "a", [0.5, 1]]


def test_a_wrong_document_does_not_validate(schema: Any) -> None:
    text = render(load_run("cnn"), "xml")
    assert not schema.is_valid(text.replace(' macs="', ' mass="', 1))
    assert not schema.is_valid(text.replace(' macs="', ' macs="-', 1))
    assert not schema.is_valid(text.replace("<totals ", "<total ", 1))


def test_non_finite_values_have_the_text_of_the_json() -> None:
    view = View(sample_capture())
    document = json.loads(render(view, "json"))
    assert xml_document(render(view, "xml"))["ops"][4]["attributes"] == document["ops"][4]["attributes"]


def test_the_lines_of_code_stay_lines() -> None:
    advice: Any = dict(load_run("cnn").advice[0]) | {"code": "a = 1\nb = 2"}
    view = View(replace(sample_capture(), advice=(advice,)))
    assert xml_document(render(view, "xml"))["advice"][0]["code"] == "a = 1\nb = 2"


def test_an_op_is_a_line_of_a_bounded_length() -> None:
    capture = load_run("cnn").capture
    ops = tuple(replace(capture.ops[index % len(capture.ops)], index=index) for index in range(2_000))
    lines = [line for line in render(View(replace(capture, ops=ops)), "xml").splitlines() if line.startswith("<op ")]
    assert len(lines) == len(ops)
    assert sum(map(len, lines)) < 1_500 * len(ops)
