"""The formats of files, and the suffixes that name them: the table that writers, help and documentation read.

A format is one function; it gives text, or bytes for a binary format, or text in pieces:

    @renderer("names", suffix=".names")
    def render_names(view: View, options: Options) -> str:
        return "\\n".join(row.path for row in view.modules)

Those of torchgauge are the files of `formats/`. Their decorators are read, not run: most runs need one format of many,
and `--help` none. A user's format registers when its module is imported. The module of an installed package is imported
when a format is first looked up, if the package's metadata name it in an entry point:

    [project.entry-points."torchgauge.renderers"]
    names = "my_package.names_report"
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torchgauge.errors import UsageError
from torchgauge.registry import Registry

if TYPE_CHECKING:
    from torchgauge.facts import View
    from torchgauge.report.options import Options

R = TypeVar("R", bound=Callable[..., Any])

ENTRY_POINTS = "torchgauge.renderers"
# The results that commands write: an analysis, a scan of weights, a comparison, verdicts on budgets, predictions, the
# machine.
ANALYSIS, SCAN, COMPARISON, CHECK, FIT, SYSTEM = "analysis", "scan", "comparison", "check", "fit", "system"
FORECAST, LLM = "forecast", "llm"
_DECLARED = re.compile(r"^@renderer\((.*?)\)\ndef (\w+)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Format:
    """`suffix` is None for a format that is never a separate file; `scans` are the suffixes that name it for a scan
    of weights. `contents` is for the documentation, `note` for the help. `home` is "module:function" below this package
    of a renderer that is imported when it is first used."""

    name: str
    suffix: str | None
    contents: str = ""
    note: str = ""
    scans: tuple[str, ...] = ()
    renderer: Callable[..., Any] | None = None
    home: str = ""

    @property
    def is_prose(self) -> bool:
        """Whether it renders sections (`report/model.py`) of any content."""
        return self.home.endswith(":write_sections")

    def render(self, *arguments: object) -> Any:
        """Text, bytes or pieces of text. The arguments depend on the result: a view and options, sections and a width,
        the reports of budgets."""
        if self.renderer is not None:
            return self.renderer(*arguments)
        module, _, function = self.home.partition(":")
        return getattr(import_module(f"torchgauge.report.{module}"), function)(*arguments)


FORMATS: Registry[str, Format] = Registry("format")


def _read_declarations() -> None:
    for file in sorted(files("torchgauge.report").joinpath("formats").iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".py"):
            continue
        for arguments, function in _DECLARED.findall(file.read_text(encoding="utf-8")):
            call = ast.parse(f"renderer({arguments})", mode="eval").body
            assert isinstance(call, ast.Call)
            facts = {"suffix": None, **{word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}}
            name, home = ast.literal_eval(call.args[0]), f"formats.{file.name.removesuffix('.py')}:{function}"
            FORMATS.insert(name, Format(name, **facts, home=home))


_read_declarations()


def _prediction_formats(picture: str, table: tuple[str, str] | None = None) -> tuple[Format, ...]:
    """The formats of `fit`, `forecast` and `llm`. `picture` describes the SVG file, `table` a row of the CSV file, in
    full and in short."""
    tables: tuple[Format, ...] = ()
    if table is not None:
        tables = (
            Format("csv", ".csv", f"one row per {table[0]}", f"a line per {table[1]}", home="predictions:render_csv"),
        )
    return (
        Format("json", ".json", "everything", home="predictions:render_json"),
        Format("html", ".html", "one page, offline", home="predictions:render_page"),
        Format("svg", ".svg", picture, home="predictions:render_picture"),
        *tables,
        Format("md", ".md", "tables", home="formats.markdown:write_sections"),
        Format("latex", ".tex", "tables", home="formats.latex:write_sections"),
        Format("text", ".txt", "the report of the terminal", home="formats.text:write_sections"),
    )


# The formats of other results. A name may repeat those of `FORMATS`, or another with a second suffix.
OTHERS: dict[str, tuple[Format, ...]] = {
    COMPARISON: (
        Format("html", ".html", "one page, offline", home="comparison.document:render_page"),
        Format("json", ".json", "everything", home="comparison.document:render_json"),
        Format("md", ".md", "tables for a pull request", home="formats.markdown:write_sections"),
        Format("csv", ".csv", "one row per module", "a line per module", home="comparison.document:render_csv"),
        Format("text", ".txt", "the report of the terminal", home="formats.text:write_sections"),
        Format("fragment", None, "what a notebook shows", home="formats.notebook:write_sections"),
    ),
    CHECK: (
        Format("junit", ".junit.xml", "JUnit, for CI systems", "JUnit", home="budgets.rendering:render_junit"),
        Format("junit", ".xml", "JUnit", "JUnit", home="budgets.rendering:render_junit"),
        Format("json", ".json", "the verdicts", home="budgets.rendering:render_json"),
        Format("text", ".txt", "the report of the terminal", home="budgets.rendering:render_text"),
    ),
    FIT: _prediction_formats("memory by class over a step, verdicts by batch"),
    FORECAST: _prediction_formats("throughput against batch, time against energy", ("device and batch", "device")),
    LLM: _prediction_formats("what fits, cost against context, rooflines", ("pass", "pass")),
    SYSTEM: (Format("json", ".json", "everything"), Format("text", ".txt", "the report of the terminal")),
}


def suffixes_of(result: str) -> dict[str, Format]:
    """The formats of a result's files by suffix."""
    if result == SCAN:
        return {suffix: format for format in FORMATS.values() for suffix in format.scans}
    formats = FORMATS.values() if result == ANALYSIS else OTHERS[result]
    return {format.suffix: format for format in formats if format.suffix}


def find_format(path: str | Path, result: str = ANALYSIS) -> Format:
    """The format of a file by its name. The longest suffix of all wins: `.ops.csv` is not `.csv`, and a comparison
    under such a name would be taken for an analysis."""
    load_renderers()
    name = Path(path).name.lower()
    every = (suffix for kind in (ANALYSIS, SCAN, *OTHERS) for suffix in suffixes_of(kind) if name.endswith(suffix))
    own, longest = suffixes_of(result), max(every, key=len, default="")
    if longest not in own:
        raise UsageError(f"'{path}': the name must end in one of: {', '.join(sorted(own))}")
    return own[longest]


def suffix_help(result: str) -> str:
    """The suffixes in a line, for the help."""
    return " ".join(
        f"{suffix} ({format.note})" if format.note else suffix for suffix, format in suffixes_of(result).items()
    )


def renderer(
    name: str, *, suffix: str | None = None, contents: str = "", note: str = "", scans: tuple[str, ...] = ()
) -> Callable[[R], R]:
    """Register a renderer for a format and for the files whose names end in `suffix`, those of a scan of weights in one
    of `scans`. `contents` describes the files, `note` does so in a word for the help."""

    def register(render: R) -> R:
        home = f"{render.__module__.removeprefix('torchgauge.report.')}:{render.__name__}"
        if name in FORMATS and FORMATS[name].home == home:
            return render
        if suffix in suffixes_of(ANALYSIS):
            raise ValueError(f"suffix {suffix!r} is already registered")
        FORMATS.insert(name, Format(name, suffix, contents, note, scans, render))
        return render

    return register


def render(view: View, format: str = "text", options: Options | None = None) -> str:
    """The report as text; a binary format is a usage error: `render_bytes` and `save` give it."""
    found = _rendered(view, format, options)
    if isinstance(found, bytes):
        raise UsageError(f"the format '{format}' is binary: write it to a file")
    return found if isinstance(found, str) else "".join(found)


def render_bytes(view: View, format: str, options: Options | None = None) -> bytes:
    """The report as the bytes of a file."""
    return b"".join(render_pieces(view, format, options))


def render_pieces(view: View, format: str, options: Options | None = None) -> Iterator[bytes]:
    """The bytes of the file as they are made, so that a long report is never held whole."""
    found = _rendered(view, format, options)
    if isinstance(found, bytes):
        return iter((found,))
    return (piece.encode() for piece in ((found,) if isinstance(found, str) else found))


def _rendered(view: View, format: str, options: Options | None) -> str | bytes | Iterator[str]:
    from torchgauge.report.options import Options

    if format not in FORMATS:
        load_renderers()
    if format not in FORMATS:
        raise UsageError(f"there is no format '{format}'; choose from: {', '.join(sorted(FORMATS))}")
    rendered: str | bytes | Iterator[str] = FORMATS[format].render(view, options or Options())
    return rendered


@cache
def load_renderers() -> None:
    """Import the formats of installed packages; one that does not load gives a warning."""
    from importlib.metadata import entry_points  # slow to load, and few reports need it

    for entry in entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except (ImportError, AttributeError, ValueError) as error:
            warnings.warn(f"the report format '{entry.name}' ({entry.value}) does not load: {error}", stacklevel=2)
