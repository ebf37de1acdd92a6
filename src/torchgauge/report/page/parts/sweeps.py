"""The same measurement over several batch sizes, lengths, types or numbers of threads."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torchgauge.facts import View
from torchgauge.report.content.sweep import sweep_points
from torchgauge.report.measurements import measured_member, measured_rows
from torchgauge.report.options import Options
from torchgauge.report.page.payload import part


@part("sweeps")
def sweeps(view: View, options: Options) -> dict[str, Any] | None:
    points = sweep_points(view)
    scaling = measured_rows(view, "scaling", within="threads")
    if not points and not scaling:
        return None
    threads = measured_member(view, "threads")
    serial = (threads.get("serial_share") or {}).items()
    return {
        "sweeps": [{"key": key, "points": [asdict(point) for point in found]} for key, found in points.items()],
        "scaling": scaling,
        "utilisation": threads.get("utilisation"),
        "serial_share": [{"name": kind, "share": share} for kind, share in serial if share is not None],
    }
