"""Model files: their tensors and where the bytes are, from headers alone. Nothing in a file is ever executed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.checkpoint.byte_source import *
    from torchgauge.checkpoint.dtypes import *
    from torchgauge.checkpoint.entries import *
    from torchgauge.checkpoint.index import *
    from torchgauge.checkpoint.opening import *
    from torchgauge.checkpoint.registry import *
    from torchgauge.checkpoint.sharing import *
    from torchgauge.checkpoint.signatures import *

_HOMES = {
    "byte_source": ("in_memory",),
    "dtypes": ("STORAGE_CLASSES",),
    "entries": ("unpack",),
    "index": ("Chunk", "Deflated", "Entry", "Import", "Index", "PickledModule", "Role", "Verdict"),
    "opening": ("describe_unknown", "open_checkpoint", "sniff"),
    "registry": ("ARCHIVES", "FILES", "FOLDERS"),
    "sharing": ("View", "find_owners", "overlap"),
    "signatures": ("OLD_SCRIPT", "SAVED_RUN", "refuse_foreign_file"),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
