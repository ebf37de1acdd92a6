"""Model files: their tensors and where the bytes are, from headers alone. Nothing in a file is ever executed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
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

_HOMES = {
    "index": ("Chunk", "Deflated", "Entry", "Import", "Index", "PickledModule", "Role", "Verdict"),
    "opening": ("describe_unknown", "open_checkpoint", "sniff"),
}
__getattr__ = lazy_names(__name__, _HOMES)
