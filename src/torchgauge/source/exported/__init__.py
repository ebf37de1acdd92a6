"""Exported programs as models: from `torch.export` itself, or from a `.pt2` archive without torch's own reader."""

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.source.exported.document import *
    from torchgauge.source.exported.live import *
    from torchgauge.source.exported.model import *
    from torchgauge.source.exported.program import *

_HOMES = {
    "document": ("load_exported",),
    "live": ("from_program",),
    "model": ("ExportedModel",),
    "program": ("last_line",),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
