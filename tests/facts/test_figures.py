"""One table of figures: a row added to it shows up in every list that derives from it, and no list is kept by hand."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from tests.extended import SOURCE, copy_package, run_with
from tests.report.measured_sample import measured_view
from tests.report.saved_runs import load_run
from torchgauge.facts import (
    FIGURES,
    MODULES,
    OPS,
    STATIC,
    TOTALS,
    WEIGHTS,
    ModuleRow,
    OpRow,
    Row,
    TotalsRow,
    figures_of,
)
from torchgauge.report import render
from torchgauge.units import format_count

# What a contributor would write: two rows, the first with the code that computes it.
ROWS = """
    Figure("answers", "Answers", COUNT, (TOTALS, MODULES, OPS), "42 per call", additive=True, known=CODE,
           of_call=lambda call: 42),
    Figure("wait_s", "Waiting", SECONDS, (MODULES,), "for others", additive=True, origin=MEASURED, known=PROFILE),
"""
# The lists as a separate process sees them: only the table differs from this package.
SCRIPT = """
import json, sys
from pathlib import Path
import torchgauge
from torchgauge import report
from torchgauge.facts import View
from torchgauge.facts import capture_from_document
from torchgauge.integrations.summary import module_columns
from torchgauge.report.budgets import KEYS, check_view, limits
from torchgauge.report.comparison import compare_views
from torchgauge.report.comparison.document import comparison_document
from torchgauge.report import fold
from torchgauge.report.page import build_payload
from torchgauge.report.formats.xml import attributes_of
import torchgauge.report.page

document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
for row in document["modules"]:
    row["wait_s"] = 0.5
view = View(capture_from_document(document, "edited"))
again = View(capture_from_document(json.loads(report.render(view, "json")), "again"))
compared = comparison_document(compare_views([view, view]))
payload = build_payload(view, report.Options())
options = report.Options(columns=("answers", "wait_s"), sort="answers")
folded = next(block for block in fold(view).walk() if len(block.members) > 1)
print(json.dumps({
    "file": torchgauge.__file__,
    "ops in all": len(view.ops),
    "totals": again.totals, "modules": again.modules[0], "ops": again.ops[0],
    "columns": list(report.COLUMNS), "table": report.render(view, "text", options),
    "budget": [KEYS["answers"].form(check_view(view, limits({"answers": "1"})).verdicts[0].value), *KEYS],
    "compared totals": [row["key"] for row in compared["totals"]], "compared modules": list(compared["modules"][0]),
    "pictures": [row["key"] for row in payload["figures"]], "page modules": list(payload["modules"]["columns"]),
    "page ops": list(payload["ops"]["columns"]), "op table": [row["key"] for row in payload["op_figures"]],
    "csv": report.render(view, "csv").splitlines()[0].split(","),
    "xml": [attributes_of("totals"), attributes_of("module"), attributes_of("op")],
    "folded": [folded.row.answers, folded.row.wait_s], "members": [m.total.ops for m in folded.members],
    "logs": module_columns(view), "frame": list(report.to_dataframe(view).columns),
}))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of torchgauge whose table has two rows more."""
    folder = tmp_path_factory.mktemp("extended")
    table = copy_package(folder) / "facts" / "figures.py"
    start, mark, rest = table.read_text(encoding="utf-8").partition('    Figure("kernels"')
    table.write_text(f"{start}{ROWS.lstrip()}{mark}{rest}", encoding="utf-8")
    (folder / "run.json").write_text(render(measured_view(), "json"), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def found(package: Path) -> Any:
    pytest.importorskip("pandas", reason="a DataFrame needs pandas")
    return json.loads(run_with(package, "-c", SCRIPT, str(package / "run.json")))


def test_a_new_figure_is_in_every_row_and_adds_up(found: Any, package: Path) -> None:
    assert Path(found["file"]).is_relative_to(package)
    assert found["totals"]["answers"] == 42 * found["ops in all"] == found["modules"]["answers"]
    assert found["ops"]["answers"] == 42
    # A measured one comes back from the JSON document.
    assert found["modules"]["wait_s"] == 0.5
    assert "wait_s" not in found["totals"]
    assert "wait_s" not in found["ops"]


def test_a_new_figure_is_a_column_everywhere(found: Any) -> None:
    for name in ("columns", "compared modules", "pictures", "page modules", "csv", "logs", "frame"):
        assert {"answers", "wait_s"} <= set(found[name]), name
    assert "Answers" in found["table"]
    assert "Waiting" in found["table"]
    assert "500 ms" in found["table"]
    assert {"answers"} <= set(found["page ops"]) & set(found["op table"]) & set(found["compared totals"])


def test_a_new_total_can_have_a_limit(found: Any) -> None:
    value, *keys = found["budget"]
    assert "answers" in keys
    assert "wait_s" not in keys
    assert value == format_count(42 * found["ops in all"])


def test_a_new_figure_is_an_attribute_of_the_schema(found: Any) -> None:
    assert [row.get("answers") for row in found["xml"]] == ["count"] * 3
    assert [row.get("wait_s") for row in found["xml"]] == [None, "seconds", None]


def test_folded_blocks_add_a_new_figure_up(found: Any) -> None:
    assert found["folded"] == [42 * sum(found["members"]), 0.5 * len(found["members"])]


def test_a_new_figure_has_its_type_in_parquet_and_its_line_in_the_reference(package: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    path = package / "modules.parquet"
    script = "import sys, torchgauge; torchgauge.load(sys.argv[1]).save(sys.argv[2])"
    run_with(package, "-c", script, str(package / "run.json"), str(path))
    schema = pyarrow.read_schema(path)
    assert [str(schema.field(key).type) for key in ("answers", "wait_s")] == ["int64", "double"]
    lines = run_with(package, "-c", "from tests.docs.tables import keys_table; print(keys_table('modules'))")
    assert "| `answers` | count | 42 per call |" in lines
    assert "| `wait_s` | seconds | for others |" in lines


@pytest.mark.parametrize("level", [TOTALS, MODULES, OPS, WEIGHTS])
def test_a_level_has_a_key_once(level: str) -> None:
    keys = [figure.key for figure in FIGURES if level in figure.levels]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("run", ["cnn", "measured"])
def test_rows_have_the_keys_of_the_table_in_its_order(run: str) -> None:
    view = load_run(run)
    for level, row in ((TOTALS, view.totals), (MODULES, view.modules[0]), (OPS, view.ops[0])):
        assert list(row) == [figure.key for figure in figures_of(level)]


# Five keys in one literal are a list of figures.
ENOUGH = 5
# A choice among them is none; nor is what says how something is computed.
CHOICES = {
    ("report/content/advice.py", "the quantities that advice can save, in words"),
    ("report/budgets/verdicts.py", "which tensors count for which total"),
    ("report/comparison/readings.py", "how the figures with an interval are read"),
    ("report/page/measured.py", "what ranked ops took together and the rates that they reached"),
    ("report/options.py", "the columns shown by default once time was measured"),
}


def test_no_list_of_figures_is_kept_by_hand() -> None:
    shown = ("report", "integrations", "cli", "analysis")
    files = [path for folder in shown for path in (SOURCE / folder).rglob("*.py")]
    listed = {path.relative_to(SOURCE).as_posix() for path in files for _ in hand_lists(path)}
    assert listed == {path for path, _ in CHOICES}


def hand_lists(path: Path) -> Iterator[set[str]]:
    """Literals that name several figures: tuples, lists and sets of keys, also as first arguments of calls, dicts."""
    keys = {figure.key for figure in FIGURES if figure.unit.is_number and WEIGHTS not in figure.levels}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            elements: list[ast.expr | None] = [
                element.args[0] if isinstance(element, ast.Call) and element.args else element for element in node.elts
            ]
        elif isinstance(node, ast.Dict):
            elements = list(node.keys)
        else:
            continue
        named = {str(element.value) for element in elements if isinstance(element, ast.Constant)}
        if len(named & keys) >= ENOUGH:
            yield named & keys


def test_a_hand_kept_list_would_be_found(tmp_path: Path) -> None:
    for text in (
        "KEYS = ('params', 'macs', 'flops', 'ops', 'time_s')",
        "KEYS = {'params': 1, 'macs': 2, 'flops': 3, 'ops': 4, 'time_s': 5}",
        "KEYS = [F('params'), F('macs'), F('flops'), F('ops'), F('time_s')]",
    ):
        (tmp_path / "kept.py").write_text(text)
        assert len(list(hand_lists(tmp_path / "kept.py"))) == 1, text


def test_estimates_and_measurements_carry_their_origin() -> None:
    for figure in FIGURES:
        assert figure.key.startswith(("estimated_", "predicted_")) == (figure.origin == "estimated")
        assert figure.of_call is None or (figure.origin == STATIC and figure.additive)


@pytest.mark.parametrize(("kind", "level"), [(TotalsRow, TOTALS), (ModuleRow, MODULES), (OpRow, OPS)])
def test_a_row_of_the_python_api_has_a_type_for_every_figure(kind: type[Row], level: str) -> None:
    assert list(get_type_hints(kind)) == [figure.key for figure in figures_of(level)]


def test_members_of_a_row_are_found_by_completion() -> None:
    row = ModuleRow(path="fc", macs=512)

    assert {"path", "macs", "items"} <= set(dir(row))
