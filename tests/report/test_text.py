from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import pytest

import torchgauge as tg
from tests import zoo
from tests.report.sample import HOSTILE, sample_capture, sample_view
from torchgauge.facts import InputRecord, RunRecord, StepMemory, TensorSpec, View
from torchgauge.report import Options, line_width, render, terminal_width, write_lines
from torchgauge.report.formats import report_lines

GOLDEN = Path(__file__).parent / "golden"
LAYOUTS = {
    "default": Options(),
    "narrow": Options(width=60),
    "ops": Options(ops=True),
    "columns": Options(
        width=80, depth=1, sort="params", columns=("calls", "params", "param_bytes", "input_shapes", "ops")
    ),
}


OPS_HEADINGS = (
    "Most expensive modules", "Most expensive ops", "Distribution by kind of op", "Coverage of ops",
    "Layers and parameters by type",
)  # fmt: skip


def with_advice(code: str) -> View:
    row: Any = {
        "rule": "a-rule",
        "where": {"module": "", "ops": [], "weight": None},
        "evidence": {},
        "recommendation": "do it",
        "code": code,
        "expected_gain": {"quantity": "time_s", "low": 0.1, "high": 0.2, "how": ""},
        "risk": "none",
        "confidence": "high",
        "verified": None,
    }
    return View(dataclasses.replace(sample_capture(), advice=(row,)))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_text_equals_the_golden_file(name: str, request: pytest.FixtureRequest) -> None:
    text = render(sample_view(), "text", LAYOUTS[name])
    golden = GOLDEN / f"{name}.txt"
    if request.config.getoption("--regenerate"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [72, 80, 100, 200])
def test_no_line_is_wider_than_asked(width: int) -> None:
    assert max(line_width(line) for line in report_lines(sample_view(), Options(width=width))) <= width


def test_figures_are_never_cut() -> None:
    wide, tight = (render(sample_view(), "text", Options(width=width)) for width in (200, 30))
    assert "1.18 M  2.38 M" in wide
    for text in ("1.18 M", "1,179,648", "74,688"):
        assert text in wide
        assert text in tight


def test_names_act_neither_on_the_terminal_nor_on_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    write_lines(report_lines(sample_view(), Options()), terminal)
    assert HOSTILE not in terminal.getvalue()
    assert r"\x1b[31m[b]<i>" in terminal.getvalue()
    assert "\x1b[" in terminal.getvalue()  # the report's own colours


def test_a_pipe_gets_plain_text() -> None:
    pipe = io.StringIO()
    write_lines(report_lines(sample_view(), Options()), pipe)
    assert pipe.getvalue() == render(sample_view(), "text")
    assert "\x1b" not in pipe.getvalue()


def test_a_terminal_shows_the_same_text_as_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    write_lines(report_lines(sample_view(), Options(width=140)), terminal)
    lines = [line.rstrip() for line in terminal.getvalue().splitlines()]
    assert lines == render(sample_view(), "text", Options(width=140)).splitlines()


def test_the_width_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "66")
    assert terminal_width() == 66


def test_active_parameters_and_given_inputs_are_shown() -> None:
    capture = dataclasses.replace(sample_capture(), inputs=(InputRecord("ids", TensorSpec((1, 8), "int64")),))
    view = View(capture)
    view.totals["active_params"] = 50_000
    text = render(view)
    assert "50,000 active per token" in text
    assert re.search(r"^Input +ids 1×8 int64$", text, re.MULTILINE)
    assert "Assumed" not in text


def test_a_reason_that_covers_several_inputs_is_reported_once() -> None:
    names = ("input_ids", "mask")
    inputs = tuple(InputRecord(name, TensorSpec((1, 8), "int64"), "an ordinary prompt") for name in names)
    text = render(View(dataclasses.replace(sample_capture(), inputs=inputs)))
    assert re.search(r"^Input +mask 1×8 int64\nAssumed +an ordinary prompt$", text, re.MULTILINE)


def test_a_model_without_modules_ops_or_parameters_has_a_report() -> None:
    full = sample_capture()
    run = RunRecord("fake", None, "cpu", True)
    root = dataclasses.replace(full.modules[0], params=0, trainable_params=0, param_bytes=0)
    view = View(dataclasses.replace(full, modules=(root,), params=(), ops=(), inputs=(), run=run))
    text = render(view, "text", Options(ops=True))
    assert "training on cpu, no parameters, static (nothing computed)" in text
    assert "0 in all: 0 counted, 0 free, 0 uncounted" in text
    assert "Notes" not in text


def test_several_phases_are_shown() -> None:
    full = sample_capture()
    backward = tuple(dataclasses.replace(op, phase="backward") for op in full.ops)
    both = View(dataclasses.replace(full, ops=full.ops + backward))
    assert "Distribution by phase" not in render(View(full), "text", Options(ops=True))
    assert "Distribution by phase" in render(both, "text", Options(ops=True))


def test_the_first_screen_is_what_it_is_totals_memory_tree_and_advice() -> None:
    view = with_advice("a = 1")
    text = render(view)
    order = ["Input", "Run", "Parameters", "MACs", "Memory", "Module ", "Advice", "Notes", "More: --ops"]
    places = [text.index(f"\n{word}") for word in order]
    assert places == sorted(places)
    for behind in OPS_HEADINGS:
        assert behind not in text


def test_ops_distributions_and_coverage_are_shown_on_request() -> None:
    text = render(sample_view(), "text", Options(ops=True))
    places = [text.index(heading) for heading in OPS_HEADINGS]
    assert places == sorted(places)
    assert "More: --ops" not in text


def test_ops_without_a_formula_are_named_in_every_report() -> None:
    text = " ".join(render(sample_view()).split())
    assert "; not counted: my::mix ×12 (no formula, " in text


def test_memory_is_shown_in_total_and_by_purpose() -> None:
    """Two hundred bytes of gradients and a state of 600 are not activations."""
    full = sample_capture()
    last = full.ops[-1].index
    step = StepMemory("AdamW", ((0, 100),), ((last, 200),), ((last, 600),))
    ops = (*full.ops[:-1], dataclasses.replace(full.ops[-1], live_bytes=50_000, phase="backward"))
    view = View(dataclasses.replace(full, ops=ops, run=dataclasses.replace(full.run, train=True, step=step)))
    totals = view.totals
    assert totals.total_bytes == totals.param_bytes + totals.buffer_bytes + 50_000
    assert (totals.gradient_bytes, totals.optimizer_bytes, totals.saved_activation_bytes) == (200, 600, 100)
    text = " ".join(render(view).split())
    assert "48.0 KiB activations + 200 B gradients + 600 B optimizer state (AdamW)" in text
    assert "the forward pass saves 100 B for the backward pass" in text


@pytest.mark.parametrize("width", [30, 80, 100])
def test_code_to_paste_is_never_cut(width: int) -> None:
    long = "layers = [" + ", ".join(f"'block.{index}.attention'" for index in range(0, 90, 2)) + "]"
    lines = ["for name in layers:", *(f"    use(model, name, {index})" for index in range(30))]
    text = render(with_advice("\n".join([long, *lines])), "text", Options(width=width))
    assert all(f"\n{line}\n" in text for line in (long, *lines))


def test_tied_weights_are_marked_where_they_appear_again() -> None:
    text = render(tg.analyze(zoo.Tied()))
    assert "Linear (tied to embed)" in text
    assert text.count("tied to") == 1


def test_a_narrow_terminal_gives_the_names_room() -> None:
    wide, narrow = (render(sample_view(), "text", Options(width=width)) for width in (100, 50))
    assert "Output" in wide
    assert "Output" not in narrow
    asked = Options(width=50, columns=("output_shapes", "flops"))
    assert "Output" in render(sample_view(), "text", asked)
