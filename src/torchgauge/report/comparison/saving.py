"""The formats of a comparison, by name and by suffix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from torchgauge.errors import MissingDependencyError, UsageError
from torchgauge.report.comparison.data import Compared
from torchgauge.report.comparison.document import flat_modules, render_csv, render_json
from torchgauge.report.comparison.fragment import render_fragment
from torchgauge.report.comparison.markdown import render_markdown
from torchgauge.report.comparison.page import render_page
from torchgauge.report.comparison.text import render_text
from torchgauge.report.options import Options
from torchgauge.report.registry import find_format
from torchgauge.report.saving import write_whole

if TYPE_CHECKING:
    import pandas as pd

Render = Callable[[Compared, Options], str]
RENDERERS: dict[str, Render] = {
    "text": render_text,
    "json": render_json,
    "csv": render_csv,
    "md": render_markdown,
    "html": render_page,
    "fragment": render_fragment,
}
SUFFIXES = {".txt": "text", ".json": "json", ".csv": "csv", ".md": "md", ".html": "html"}


def comparison_format(path: str | Path) -> str:
    suffix = Path(path).suffix.lower()
    found = SUFFIXES.get(suffix)
    # `.ops.csv` and the like are of one analysis: a comparison under such a name would be taken for it.
    if found is None or find_format(path).suffix != suffix:
        raise UsageError(f"'{path}': the name must end in one of: {', '.join(sorted(SUFFIXES))}")
    return found


def render(compared: Compared, format: str = "text", options: Options | None = None) -> str:
    if format not in RENDERERS:
        raise UsageError(f"there is no format '{format}'; choose from: {', '.join(sorted(RENDERERS))}")
    return RENDERERS[format](compared, options or Options())


def save(compared: Compared, path: str | Path, options: Options | None = None) -> None:
    write_whole(Path(path), render(compared, comparison_format(path), options))


def to_dataframe(compared: Compared) -> pd.DataFrame:
    """One row per module, all figures of all sides."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependencyError("pandas", "a DataFrame") from error
    return pd.DataFrame.from_records([dict(row) for row in flat_modules(compared)])
