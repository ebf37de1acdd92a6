"""Model files: what tensors they hold and where, from their headers alone. Nothing in them is ever executed."""

from __future__ import annotations

from torchgauge.checkpoint.index import Chunk, Deflated, Entry, Import, Index, PickledModule, Role, Verdict
from torchgauge.checkpoint.opening import describe_unknown, open_checkpoint, sniff

__all__ = [
    "Chunk",
    "Deflated",
    "Entry",
    "Import",
    "Index",
    "PickledModule",
    "Role",
    "Verdict",
    "describe_unknown",
    "open_checkpoint",
    "sniff",
]
