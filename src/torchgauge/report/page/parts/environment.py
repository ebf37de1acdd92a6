"""The machine, the versions and the files that the figures are of."""

from __future__ import annotations

from typing import Any

from torchgauge.facts import View
from torchgauge.report.options import Options
from torchgauge.report.page.parts.roofline import device_peaks
from torchgauge.report.page.payload import part

_MOST_FILES = 40


@part("environment")
def environment(view: View, options: Options) -> dict[str, Any]:
    capture, here = view.capture, view.capture.environment
    return {
        "created": capture.created,
        "version": capture.version,
        "device": capture.run.device,
        "python": here.python,
        "torch": here.torch,
        "platform": here.platform,
        "cpu": here.cpu,
        "cpu_cores": here.cpu_cores,
        "memory_bytes": here.memory_bytes,
        "threads": here.threads,
        "accelerator": here.device,
        "settings": [{"name": name, "value": value} for name, value in here.settings.items()],
        "packages": [{"name": name, "version": version} for name, version in here.packages.items()],
        "peaks": device_peaks(view),
        "target": {
            "name": capture.target.name,
            "kind": capture.target.kind,
            "format": capture.target.format,
            "files": list(capture.target.files[:_MOST_FILES]),
            "file_count": len(capture.target.files),
            "metadata": [{"name": name, "value": value} for name, value in capture.target.metadata.items()],
        },
    }
