"""One registry: the name of a format -> its suffix and renderer. Those of torchgauge are rows of `FORMATS`.

A format of one's own is one function; it gives text, or bytes for a binary format, or text in pieces:

    @renderer("names", suffix=".names")
    def render_names(view: View, options: Options) -> str:
        return "\\n".join(row.path for row in view.modules)

Importing its module registers it. An installed package is imported by itself, when a format is first looked for, where
its metadata name the module in an entry point:

    [project.entry-points."torchgauge.renderers"]
    names = "my_package.names_report"
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from torchgauge.errors import UsageError
from torchgauge.facts import View
from torchgauge.report.options import Options

Render = Callable[[View, Options], str | bytes | Iterator[str]]
R = TypeVar("R", bound=Render)

ENTRY_POINTS = "torchgauge.renderers"


@dataclass(frozen=True, slots=True)
class Format:
    """`suffix` is None for a format that is never a file of its own. `home` is "module:function" of a renderer that is
    imported when it is first used: most runs need one format of many."""

    name: str
    suffix: str | None
    renderer: Render | None = None
    home: str = ""

    def render(self, view: View, options: Options) -> str | bytes | Iterator[str]:
        if self.renderer is not None:
            return self.renderer(view, options)
        render: Render = imported(self.home)
        return render(view, options)


def imported(home: str) -> Any:
    """The function of a "module:function" below this package."""
    module, _, function = home.partition(":")
    return getattr(import_module(f"torchgauge.report.{module}"), function)


FORMATS: dict[str, Format] = {
    name: Format(name, suffix, home=home)
    for name, suffix, home in (
        ("comprehensive", "comprehensive_model_analysis.txt", "comprehensive:render_comprehensive"),
        ("json", ".json", "document:render_document"),
        ("dot", ".dot", "dot:render_dot"),
        ("fragment", None, "fragment:render_fragment"),
        ("jsonl", ".jsonl", "jsonl:render_jsonl"),
        ("latex", ".tex", "latex:render_latex"),
        ("markdown", ".md", "markdown:render_markdown"),
        ("csv", ".csv", "modules_csv:render_modules_csv"),
        ("ops.csv", ".ops.csv", "ops_csv:render_ops_csv"),
        ("html", ".html", "page:render_page"),
        ("parquet", ".parquet", "parquet:render_modules_parquet"),
        ("ops.parquet", ".ops.parquet", "parquet:render_ops_parquet"),
        ("weights.parquet", ".weights.parquet", "parquet:render_weights_parquet"),
        ("svg", ".svg", "svg:render_svg"),
        ("text", ".txt", "text:render_text"),
        ("trace", ".trace.json", "trace:render_trace"),
        ("against.csv", None, "weights_against:render_against_csv"),
        ("weights.csv", ".weights.csv", "weights_csv:render_weights_csv"),
        ("weights.jsonl", ".weights.jsonl", "weights_jsonl:render_weights_jsonl"),
        ("weights", None, "weights_text:render_weights"),
        ("xml", ".xml", "xml:render_xml"),
    )
}


def renderer(name: str, *, suffix: str | None = None) -> Callable[[R], R]:
    """Register a renderer for a format and for the files whose names end in `suffix`."""

    def register(render: R) -> R:
        if name in FORMATS or (suffix and suffix in _suffixes()):
            raise ValueError(f"the format '{name}' or the suffix '{suffix}' has a renderer already")
        FORMATS[name] = Format(name, suffix, render)
        return render

    return register


def known_suffixes() -> list[str]:
    load_renderers()
    return _suffixes()


def find_format(path: str | Path) -> Format:
    """The format of a file by its name; the longest suffix wins, so `.ops.csv` is not `.csv`."""
    load_renderers()
    name = Path(path).name.lower()
    fitting = [entry for entry in FORMATS.values() if entry.suffix and name.endswith(entry.suffix)]
    if not fitting:
        raise UsageError(f"'{path}': the name must end in one of: {', '.join(_suffixes())}")
    return max(fitting, key=lambda entry: len(entry.suffix or ""))


def render(view: View, format: str = "text", options: Options | None = None) -> str:
    """The report as text; a binary format is a usage error: `render_bytes` and `save` give it."""
    found = _named(format).render(view, options or Options())
    if isinstance(found, bytes):
        raise UsageError(f"the format '{format}' is binary: write it to a file")
    return found if isinstance(found, str) else "".join(found)


def render_bytes(view: View, format: str, options: Options | None = None) -> bytes:
    """The report as the bytes of a file."""
    return b"".join(render_pieces(view, format, options))


def render_pieces(view: View, format: str, options: Options | None = None) -> Iterator[bytes]:
    """The bytes of the file as they are made, so that a long report is never held whole."""
    found = _named(format).render(view, options or Options())
    if isinstance(found, bytes):
        return iter((found,))
    return (piece.encode() for piece in ((found,) if isinstance(found, str) else found))


@cache
def load_renderers() -> None:
    """Import what installed packages offer; one that does not load is told and left out."""
    from importlib.metadata import entry_points  # slow to load, and few reports need it

    for entry in entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except (ImportError, AttributeError, ValueError) as error:
            warnings.warn(f"the report format '{entry.name}' ({entry.value}) does not load: {error}", stacklevel=2)


def _suffixes() -> list[str]:
    return sorted(entry.suffix for entry in FORMATS.values() if entry.suffix)


def _named(format: str) -> Format:
    if format not in FORMATS:
        load_renderers()
    if format not in FORMATS:
        raise UsageError(f"there is no format '{format}'; choose from: {', '.join(sorted(FORMATS))}")
    return FORMATS[format]
