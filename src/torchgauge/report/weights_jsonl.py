from __future__ import annotations

from torchgauge.errors import UsageError
from torchgauge.facts import View
from torchgauge.report.document import json_line
from torchgauge.report.options import Options


def render_weights_jsonl(view: View, options: Options) -> str:
    """One JSON object per tensor, in the order of the files."""
    if not view.weights:
        raise UsageError("there are no weights to write as JSON lines: give a file of weights, or weights=True")
    return "".join(f"{json_line(row)}\n" for row in view.weights)
