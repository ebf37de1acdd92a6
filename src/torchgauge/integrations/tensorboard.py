"""An analysis in TensorBoard: totals as scalars, the report and the modules as text, weights as histograms.

from torch.utils.tensorboard import SummaryWriter
from torchgauge.integrations.tensorboard import log_analysis

with SummaryWriter("runs/model") as writer:
    log_analysis(writer, torchgauge.analyze(model))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchgauge.integrations.summary import module_cells, module_columns, total_scalars, weight_histograms
from torchgauge.units import visible

if TYPE_CHECKING:
    from torchgauge.analysis import Analysis

# Names are data: what Markdown or HTML would act on is written as an entity.
_ENTITIES = str.maketrans({char: f"&#{ord(char)};" for char in "|<>&*_`[]\\~"})


def log_analysis(writer: Any, analysis: Analysis, step: int | None = None) -> None:
    """`writer` is a SummaryWriter."""
    for name, value in total_scalars(analysis).items():
        writer.add_scalar(name, value, global_step=step)
    # An indented block of Markdown shows the text verbatim, and nothing in it can end the block.
    writer.add_text(
        "torchgauge/report", "\n".join(f"    {line}" for line in str(analysis).splitlines()), global_step=step
    )
    keys = module_columns(analysis)
    rows = [keys, ["---"] * len(keys)]
    rows += [[str(cell).translate(_ENTITIES) for cell in row] for row in module_cells(analysis, keys)]
    writer.add_text("torchgauge/modules", "\n".join(f"| {' | '.join(row)} |" for row in rows), global_step=step)
    for histogram in weight_histograms(analysis):
        edges, counts = histogram.edges, histogram.counts
        writer.add_histogram_raw(
            f"torchgauge/weights/{visible(histogram.name)}",
            min=edges[0],
            max=edges[-1],
            num=sum(counts),
            sum=histogram.total,
            sum_squares=histogram.total_squares,
            bucket_limits=list(edges[1:]),
            bucket_counts=list(counts),
            global_step=step,
        )
