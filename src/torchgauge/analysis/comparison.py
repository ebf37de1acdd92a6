"""`compare`: analyses side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from torchgauge.analysis.isolated import read_data
from torchgauge.analysis.options import WEIGHTS_BYTES
from torchgauge.analysis.pipeline import analyze
from torchgauge.analysis.result import Analysis, load
from torchgauge.errors import errors_as_torchgauge
from torchgauge.facts.schema import conform
from torchgauge.isolation import is_isolated
from torchgauge.progress import stage, transfer
from torchgauge.report.comparison import Compared, compare_views, render, save, to_dataframe
from torchgauge.report.comparison.document import comparison_document
from torchgauge.report.options import Options
from torchgauge.units import visible

if TYPE_CHECKING:
    import pandas
    import torch

    from torchgauge.facts.document_types import Against

    Target = str | os.PathLike[str] | torch.nn.Module | Analysis


class Comparison:
    """Analyses compared with the first of them. `data` has the results."""

    def __init__(self, analyses: Sequence[Analysis], drifts: Sequence[Against | None] = ()) -> None:
        self.analyses = tuple(analyses)
        self.data: Compared = compare_views(self.analyses, drifts)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: sides, totals with their changes, structure, modules, weights."""
        return comparison_document(self.data)

    def to_dataframe(self) -> pandas.DataFrame:
        """One row per module, all figures of all sides."""
        return to_dataframe(self.data)

    def save(self, path: str | Path, options: Options | None = None) -> None:
        """Write the comparison; the suffix names the format."""
        save(self.data, path, options)

    def render(self, format: str = "text", options: Options | None = None) -> str:
        return render(self.data, format, options)

    def __str__(self) -> str:
        return self.render()

    def __repr__(self) -> str:
        names = ", ".join(visible(side.name or side.kind) for side in self.data.sides)
        return f"<Comparison of {names}>"

    def _repr_html_(self) -> str:
        return self.render("fragment")


def compare(first: Target, second: Target, *more: Target, **options: Any) -> Comparison:
    """Compare analyses, models or targets; a target that ends in `.json` is a saved run.

    `options` are those of `analyze`, for targets that are not analysed yet. Weights are compared by their figures;
    if two targets are files or folders (up to 4 GiB), also tensor by tensor, unless `weights` is False.
    """
    # Reject unknown options even if every target is a saved run.
    unknown = options.keys() - signature(analyze).parameters.keys()
    if unknown:
        raise TypeError(f"compare() got an unexpected keyword argument '{min(unknown)}'")
    targets, progress = (first, second, *more), options.get("progress")
    analyses = [open_analysis(target, **options) for target in targets]
    reads = options.get("weights", "auto") is not False
    sides = list(zip(targets, analyses, strict=True))
    limits = options.get("memory_limit"), options.get("time_limit")
    drifts = [_drift(sides[0], side, *limits, progress) if reads else None for side in sides[1:]]
    with stage("comparing", shown=progress):
        return Comparison(analyses, drifts)


def open_analysis(target: Target, **options: Any) -> Analysis:
    """An analysis as it is, a saved run read, anything else analysed."""
    if isinstance(target, Analysis):
        return target
    if not is_saved_run(target):
        return analyze(target, **options)
    with stage(f"reading {Path(target).name}", shown=options.get("progress")):
        return load(os.fspath(target))


def is_saved_run(target: Any) -> TypeGuard[str | os.PathLike[str]]:
    """Decided by the name; `hf:config.json` is a configuration."""
    if not isinstance(target, str | os.PathLike):
        return False
    name = os.fspath(target).lower()
    return name.endswith(".json") and not name.startswith("hf:")


def _drift(
    base: tuple[Target, Analysis],
    other: tuple[Target, Analysis],
    memory_limit: int | str | None,
    time_limit: float | None,
    progress: bool | None,
) -> Against | None:
    """How far the files' values are apart; None where not both are files that are small enough."""
    places = []
    for target, found in (base, other):
        # The file or folder of a target that was read here, not of a saved run.
        if not isinstance(target, str | os.PathLike) or is_saved_run(target) or found.capture.stored is None:
            return None
        places.append(os.fspath(target))
    if not all(map(os.path.exists, places)):
        return None
    job = partial(_compare_values, places, progress)
    if is_isolated():
        return job()
    from torchgauge.facts.document_types import Against

    check = partial(conform, kind=cast("type[Against | None]", Against | None), what="the comparison")
    return read_data(job, places, check, memory_limit=memory_limit, time_limit=time_limit)


def _compare_values(places: list[str], progress: bool | None) -> Against | None:
    from torchgauge.checkpoint import open_checkpoint
    from torchgauge.weights import compare_checkpoints

    with errors_as_torchgauge(places[1]):
        old, new = (open_checkpoint(place) for place in places)
        if max(old.stored_bytes, new.stored_bytes) > WEIGHTS_BYTES:
            return None
        with transfer("comparing values", shown=progress) as report_progress:
            return compare_checkpoints(new, old, progress=report_progress)
