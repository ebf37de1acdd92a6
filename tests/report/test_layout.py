from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchgauge.report import (
    MIN_TEXT_WIDTH,
    Heading,
    Line,
    Span,
    cell_width,
    lay_out,
    line_width,
    plain,
    shorten,
    shorten_line,
    wrap,
)

TEXT, FIGURE = Heading("Name", is_figure=False), Heading("MACs")


def row(*cells: str) -> list[Line]:
    return [(Span(cell),) for cell in cells]


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [
        ("encoder.layers.0.fc", 30, "encoder.layers.0.fc"),
        ("encoder.layers.0.fc", 11, "encod….0.fc"),
        ("abc", 1, "…"),
        ("日本語の名前", 5, "日…前"),
    ],
)
def test_text_is_cut_in_the_middle(text: str, width: int, short: str) -> None:
    assert shorten(text, width) == short


@given(st.text(max_size=40), st.integers(min_value=1, max_value=30))
def test_shortened_text_fits(text: str, width: int) -> None:
    assert cell_width(shorten(text, width)) <= width


def test_the_type_gives_way_before_the_name_and_guide_and_count_stay() -> None:
    line = (Span("├─ ", "guide"), Span("0–11", "name"), Span(" ×12 ", "count"), Span("TransformerLayer", "dim"))
    short = shorten_line(line, 20)
    assert [span.text for span in short] == ["├─ ", "0–11", " ×12 ", "Tran…yer"]


def test_a_table_takes_the_width_it_needs() -> None:
    lines = lay_out([TEXT, FIGURE], [row("conv", "4.09 G"), row("relu", "0")], 80)
    assert plain(lines) == "Name    MACs\nconv  4.09 G\nrelu       0\n"


def test_text_gives_way_and_figures_do_not() -> None:
    lines = lay_out([TEXT, FIGURE], [row("a.very.long.path.to.a.module", "123,456,789,012")], 32)
    assert all(line_width(line) == 32 for line in lines)
    assert plain(lines).splitlines()[1].endswith("123,456,789,012")
    assert "…" in plain(lines)


def test_figures_that_do_not_fit_make_the_table_wider_than_asked() -> None:
    lines = lay_out([TEXT, FIGURE, FIGURE], [row("a.long.module.path", "123,456,789", "987,654,321")], 20)
    assert line_width(lines[1]) == 12 + 2 + 11 + 2 + 11
    assert plain(lines).splitlines()[1].endswith("123,456,789  987,654,321")


def test_wide_characters_keep_columns_aligned() -> None:
    lines = lay_out([TEXT, FIGURE], [row("名前", "1"), row("name", "22")], 80)
    assert len({line_width(line) for line in lines}) == 1


def test_a_long_remark_wraps_behind_its_lead() -> None:
    lines = wrap("one two three four", 13, lead=(Span("- "),))
    assert plain(lines) == "- one two\n  three four\n"


def test_a_figure_stays_with_its_unit() -> None:
    text = "the median is known to ±12.5 % only, of 43 ms and 1.20 GB"
    for width in range(MIN_TEXT_WIDTH, len(text)):
        lines = plain(wrap(text, width)).splitlines()
        assert " ".join(lines) == text
        assert not any(line.startswith(("%", "ms", "GB")) for line in lines)
