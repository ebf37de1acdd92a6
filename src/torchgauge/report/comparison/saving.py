"""The formats of a comparison, by name and by suffix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torchgauge.errors import MissingDependencyError, UsageError
from torchgauge.report.comparison.data import Compared
from torchgauge.report.options import Options
from torchgauge.report.registry import find_format, imported
from torchgauge.report.saving import write_whole

if TYPE_CHECKING:
    import pandas as pd

# "module:function", imported when it is first used.
RENDERERS = {
    "text": "text:render_text",
    "json": "document:render_json",
    "csv": "document:render_csv",
    "md": "markdown:render_markdown",
    "html": "page:render_page",
    "fragment": "fragment:render_fragment",
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
    found: str = imported(f"comparison.{RENDERERS[format]}")(compared, options or Options())
    return found


def save(compared: Compared, path: str | Path, options: Options | None = None) -> None:
    write_whole(Path(path), render(compared, comparison_format(path), options))


def to_dataframe(compared: Compared) -> pd.DataFrame:
    """One row per module, all figures of all sides."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependencyError("pandas", "a DataFrame") from error
    from torchgauge.report.comparison.document import flat_modules

    return pd.DataFrame.from_records([dict(row) for row in flat_modules(compared)])
