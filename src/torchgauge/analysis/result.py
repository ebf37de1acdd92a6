"""The result of an analysis, and `load` for a saved one; neither needs torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchgauge import report
from torchgauge.errors import FormatError, errors_as_torchgauge
from torchgauge.facts import View
from torchgauge.units import format_things

if TYPE_CHECKING:
    import pandas


SCAN_MEMBERS = (
    "schema_version", "tool", "created", "environment", "target", "capture", "architecture", "totals", "weights",
    "weight_summary", "against", "pickle", "training", "adapter",
)  # fmt: skip


class Analysis(View):
    """The analysis of a model: totals, modules, ops, and every report about them."""

    def to_dataframe(self, table: str = "modules") -> pandas.DataFrame:
        """The rows of "modules", "ops" or "weights" as a pandas DataFrame."""
        return report.to_dataframe(self, table)

    def save(self, path: str | Path) -> None:
        """Write a report; the suffix names the format."""
        report.save(self, path)

    def __str__(self) -> str:
        return report.render(self, "text")

    def __repr__(self) -> str:
        totals = self.totals
        macs = f"{totals.macs} MACs" if self.capture.has_code else "no code"
        return f"<Analysis of {self.capture.target.name}: {totals.params} params, {macs}>"

    def _repr_html_(self) -> str:
        return report.render(self, "fragment")


class WeightScan(Analysis):
    """The tensors of a checkpoint: one row each, and their totals."""

    def members(self) -> dict[str, Callable[[], Any]]:
        """The members of the JSON document, without what only a model that runs has."""
        members = super().members()
        return {key: members[key] for key in SCAN_MEMBERS}

    def to_dataframe(self, table: str = "weights") -> pandas.DataFrame:
        return report.to_dataframe(self, table)

    def save(self, path: str | Path) -> None:
        """Write the list of tensors; the suffix names the format."""
        report.save_weights(self, path)

    def __str__(self) -> str:
        return report.render(self, "weights")

    def __repr__(self) -> str:
        return f"<WeightScan of {self.capture.target.name}: {format_things(len(self.weights), 'tensor')}>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def load(path: str | Path) -> Analysis:
    """Load a saved run (`.json`): an analysis or a scan of weights. torch is not needed."""
    from torchgauge.facts.document import capture_from_document

    with errors_as_torchgauge(path):
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise FormatError(f"'{path}' is not a JSON file: {error}") from error
        capture = capture_from_document(document, str(path))
        return Analysis(capture) if "modules" in document else WeightScan(capture)
