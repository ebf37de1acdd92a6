"""One registry: the name of a format -> its suffix and renderer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchgauge.errors import UsageError
from torchgauge.report.options import Options
from torchgauge.view import View

Render = Callable[[View, Options], str]


@dataclass(frozen=True, slots=True)
class Format:
    """`suffix` is None for a format that is never a file of its own."""

    name: str
    suffix: str | None
    render: Render


FORMATS: dict[str, Format] = {}


def renderer(name: str, *, suffix: str | None = None) -> Callable[[Render], Render]:
    """Register a renderer for a format and for the files whose names end in `suffix`."""

    def register(render: Render) -> Render:
        if name in FORMATS or (suffix and suffix in known_suffixes()):
            raise ValueError(f"the format '{name}' or the suffix '{suffix}' has a renderer already")
        FORMATS[name] = Format(name, suffix, render)
        return render

    return register


def known_suffixes() -> list[str]:
    return sorted(entry.suffix for entry in FORMATS.values() if entry.suffix)


def find_format(path: str | Path) -> Format:
    """The format of a file by its name; the longest suffix wins, so `.ops.csv` is not `.csv`."""
    name = Path(path).name.lower()
    fitting = [entry for entry in FORMATS.values() if entry.suffix and name.endswith(entry.suffix)]
    if not fitting:
        raise UsageError(f"'{path}': the name must end in one of: {', '.join(known_suffixes())}")
    return max(fitting, key=lambda entry: len(entry.suffix or ""))


def render(view: View, format: str = "text", options: Options | None = None) -> str:
    if format not in FORMATS:
        raise UsageError(f"there is no format '{format}'; choose from: {', '.join(sorted(FORMATS))}")
    return FORMATS[format].render(view, options or Options())
