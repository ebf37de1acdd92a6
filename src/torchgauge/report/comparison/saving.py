"""Comparisons rendered and saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torchgauge.errors import MissingDependencyError, UsageError
from torchgauge.report.comparison.data import Compared
from torchgauge.report.comparison.sections import comparison_sections
from torchgauge.report.options import Options
from torchgauge.report.registry import COMPARISON, OTHERS, find_format, imported
from torchgauge.report.saving import write_whole

if TYPE_CHECKING:
    import pandas as pd


def render(compared: Compared, format: str = "text", options: Options | None = None) -> str:
    formats = {entry.name: entry for entry in OTHERS[COMPARISON]}
    if format not in formats:
        raise UsageError(f"there is no format '{format}'; choose from: {', '.join(sorted(formats))}")
    options, write = options or Options(), imported(formats[format].home)
    if formats[format].is_prose:
        return str(write(comparison_sections(compared, options), options.width))
    return str(write(compared, options))


def save(compared: Compared, path: str | Path, options: Options | None = None) -> None:
    write_whole(Path(path), render(compared, find_format(path, COMPARISON).name, options))


def to_dataframe(compared: Compared) -> pd.DataFrame:
    """One row per module, all figures of all sides."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependencyError("pandas", "a DataFrame") from error
    from torchgauge.report.comparison.document import flat_modules

    return pd.DataFrame.from_records([dict(row) for row in flat_modules(compared)])
