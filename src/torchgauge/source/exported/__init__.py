"""Exported programs as models: from `torch.export` itself, or from a `.pt2` archive without torch's own reader."""

from torchgauge.source.exported.archive import load_exported
from torchgauge.source.exported.live import from_program
from torchgauge.source.exported.model import ExportedModel

__all__ = ["ExportedModel", "from_program", "load_exported"]
