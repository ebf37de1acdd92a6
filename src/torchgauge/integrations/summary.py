"""Shared by callbacks and loggers: a summary when training begins, which must never stop it; rows of modules, and
distributions of the weights whose values were read."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchgauge.errors import TorchgaugeError
from torchgauge.facts import View
from torchgauge.facts.figures import MODULES, Use, shown_in
from torchgauge.units import visible

if TYPE_CHECKING:
    import torch

    from torchgauge.analysis import Analysis


@dataclass(frozen=True, slots=True)
class Summary:
    """`save` are files, their format by suffix; `options` are those of `analyze`."""

    depth: int | None = None
    columns: Sequence[str] | None = None
    save: Sequence[str | Path] = ()
    show: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    def of(self, model: torch.nn.Module, **given: Any) -> Analysis | None:
        """Analyse, save and print; failures are warnings, since they must not stop the training."""
        from torchgauge.analysis import analyze
        from torchgauge.report import DEFAULT_COLUMNS, Options
        from torchgauge.report.content import modules, summary
        from torchgauge.report.formats.text import sections_lines, title_line
        from torchgauge.report.layout import terminal_width, write_lines

        try:
            found = analyze(model, **{"progress": False, "advice": False, **given, **self.options})
            for path in self.save:
                found.save(path)
            if self.show:
                columns = DEFAULT_COLUMNS if self.columns is None else tuple(self.columns)
                options = Options(depth=self.depth, columns=columns, width=terminal_width())
                sections = [*summary.sections(found, options), *modules.sections(found, options)]
                write_lines([title_line(found), *sections_lines(sections, options.width), ()], sys.stdout)
                sys.stdout.flush()
        except TorchgaugeError as error:
            warnings.warn(f"torchgauge has no summary of the model: {error}", stacklevel=2)
            return None
        return found


def given_inputs(model: torch.nn.Module, batch: Any) -> Any:
    """The inputs of `forward` in a batch: a tensor, the first of a tuple (the rest are labels), or the entries of a
    dict that `forward` has parameters for."""
    if isinstance(batch, Mapping):
        names = inspect.signature(model.forward).parameters
        return {key: value for key, value in batch.items() if key in names}
    if isinstance(batch, list | tuple) and batch:
        return given_inputs(model, batch[0])
    return batch


def total_scalars(found: Analysis) -> dict[str, float]:
    """The known totals, by their names in a logger."""
    return {f"torchgauge/{key}": value for key, value in found.totals.items() if value is not None}


_COLUMNS = tuple(figure.key for figure in shown_in(Use.LOGS, MODULES))


@dataclass(frozen=True, slots=True)
class Histogram:
    """`total` and `total_squares` are of the finite values."""

    name: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    total_squares: float


def module_columns(view: View) -> list[str]:
    """The columns in which some module has a figure."""
    return [key for key in _COLUMNS if any(row[key] is not None for row in view.modules)]


def module_cells(view: View, keys: list[str]) -> list[list[Any]]:
    return [[visible(row[key]) if isinstance(row[key], str) else row[key] for key in keys] for row in view.modules]


def weight_histograms(view: View) -> Iterator[Histogram]:
    for row in view.weights:
        found = row.get("histogram")
        if found and found["counts"] and row.get("mean") is not None:
            counts = tuple(int(count) for count in found["counts"])
            squares = (row["l2"] or 0.0) ** 2
            yield Histogram(row["name"], tuple(found["edges"]), counts, row["mean"] * sum(counts), squares)
