"""Exported programs as models: from `torch.export` itself, or from a `.pt2` archive without torch's own reader."""

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.source.exported.document import load_exported
    from torchgauge.source.exported.live import from_program
    from torchgauge.source.exported.model import ExportedModel
    from torchgauge.source.exported.program import last_line

__all__ = ["ExportedModel", "from_program", "last_line", "load_exported"]

__getattr__ = lazy_names(__name__)
