"""An analysis in Weights & Biases: totals in the summary, modules and ops as tables, the page, weights as histograms.

with wandb.init(project="models") as run:
    torchgauge.integrations.wandb.log_analysis(run, torchgauge.analyze(model))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchgauge.errors import MissingDependencyError
from torchgauge.integrations.summary import module_cells, module_columns, total_scalars, weight_histograms
from torchgauge.report import render
from torchgauge.units import visible

if TYPE_CHECKING:
    from torchgauge.analysis import Analysis


def log_analysis(run: Any, analysis: Analysis, step: int | None = None) -> None:
    """`run` is the result of `wandb.init`."""
    try:
        import wandb
    except ImportError as error:
        raise MissingDependencyError("wandb", "logging to Weights & Biases") from error
    keys = module_columns(analysis)
    run.summary.update(total_scalars(analysis))
    logged: dict[str, Any] = {
        "torchgauge/modules": wandb.Table(columns=keys, data=module_cells(analysis, keys)),
        "torchgauge/report": wandb.Html(render(analysis, "html"), inject=False),
    }
    for histogram in weight_histograms(analysis):
        found = wandb.Histogram(np_histogram=(list(histogram.counts), list(histogram.edges)))
        logged[f"torchgauge/weights/{visible(histogram.name)}"] = found
    run.log(logged, step=step)
