"""Model files: their tensors and where the bytes are, from headers alone. Nothing in a file is ever executed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.checkpoint.byte_source import in_memory
    from torchgauge.checkpoint.dtypes import STORAGE_CLASSES
    from torchgauge.checkpoint.entries import unpack
    from torchgauge.checkpoint.index import Chunk, Deflated, Entry, Import, Index, PickledModule, Role, Verdict
    from torchgauge.checkpoint.opening import describe_unknown, open_checkpoint, sniff
    from torchgauge.checkpoint.registry import ARCHIVES, FILES, FOLDERS
    from torchgauge.checkpoint.sharing import View, find_owners, overlap
    from torchgauge.checkpoint.signatures import OLD_SCRIPT, SAVED_RUN, refuse_foreign_file

__all__ = [
    "ARCHIVES", "FILES", "FOLDERS", "OLD_SCRIPT", "SAVED_RUN", "STORAGE_CLASSES", "Chunk", "Deflated", "Entry",
    "Import", "Index", "PickledModule", "Role", "Verdict", "View", "describe_unknown", "find_owners", "in_memory",
    "open_checkpoint", "overlap", "refuse_foreign_file", "sniff", "unpack",
]  # fmt: skip

__getattr__ = lazy_names(__name__)
