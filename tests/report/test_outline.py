from __future__ import annotations

import pytest

from tests.report.sample import sample_view
from torchgauge.errors import UsageError
from torchgauge.report import COLUMNS, Options, fold
from torchgauge.report.content import fitting_depth, outline


def names(options: Options) -> list[str]:
    return [line.guide + line.name for line in outline(sample_view(), options)]


def test_the_depth_cuts_the_tree() -> None:
    assert names(Options(depth=0)) == [""]
    assert len(names(Options(depth=1))) == 6
    assert len(names(Options(depth=2))) == 9
    assert len(names(Options(depth=9))) == 10


def test_guides_show_who_belongs_to_whom() -> None:
    assert names(Options())[:8] == [
        "",
        "├─ stem",
        "│  ├─ 0",
        "│  └─ 1",
        "├─ blocks",
        "│  └─ 0–11",
        "│     └─ fc",
        "├─ shared",
    ]


@pytest.mark.parametrize(("limit", "depth"), [(1, 1), (6, 1), (8, 1), (9, 2), (10, 3), (100, 3)])
def test_without_a_depth_the_tree_is_as_deep_as_fits(limit: int, depth: int) -> None:
    assert fitting_depth(fold(sample_view()), limit) == depth


def test_siblings_are_sorted_from_the_largest_with_their_children() -> None:
    lines = outline(sample_view(), Options(sort="macs"))
    assert [line.name for line in lines[:4]] == ["", "blocks", "0–11", "fc"]
    top = [line.row.macs for line in lines if line.guide in ("├─ ", "└─ ")]
    assert top == sorted(top, reverse=True)


def test_text_is_sorted_from_a() -> None:
    lines = outline(sample_view(), Options(sort="type", depth=1))
    kinds = [line.row.type for line in lines[1:]]
    assert kinds == sorted(kinds)


def test_a_line_shows_aliases_and_repeated_calls() -> None:
    remarks = {line.name: line.remark for line in outline(sample_view(), Options())}
    assert remarks["shared"] == " (also again, 2 calls)"
    assert remarks["stem"] == remarks["0–11"] == ""


def test_every_key_of_a_module_row_is_a_column() -> None:
    assert set(COLUMNS) == set(sample_view().modules[0])


@pytest.mark.parametrize("options", [{"columns": ("params", "colour")}, {"sort": "colour"}])
def test_an_unknown_column_is_a_usage_error_that_lists_the_columns(options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"no column 'colour'; choose from: path, .*macs, flops"):
        Options(**options)  # type: ignore[arg-type]


def test_a_negative_depth_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="depth must be at least 0"):
        Options(depth=-1)
