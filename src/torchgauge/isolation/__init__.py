"""A sandboxed process reads files for its parent: limited memory and time, no writing, no network, no processes.

limits      limits on memory and time
rights      dropping rights: Landlock, seccomp, capabilities
channel     messages between the two processes, data only
process     the parent's side: starts the reader, watches it, serves its requests
reader      the reader's side: requests from the parent what it may not do itself
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.isolation.channel import Message
    from torchgauge.isolation.limits import Limits, limits_for
    from torchgauge.isolation.process import run_isolated
    from torchgauge.isolation.reader import NeedsPackageError, ask_parent, stop_clock, threads_of_caller
    from torchgauge.isolation.rights import Barrier, barriers

__all__ = [
    "Barrier", "Limits", "Message", "NeedsPackageError", "ask_parent", "barriers", "is_isolated", "limits_for",
    "run_isolated", "stop_clock", "threads_of_caller",
]  # fmt: skip

_HOMES = {
    "channel": ("Message",),
    "limits": ("Limits", "limits_for"),
    "process": ("run_isolated",),
    "reader": ("NeedsPackageError", "ask_parent", "stop_clock", "threads_of_caller"),
    "rights": ("Barrier", "barriers"),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)


def is_isolated() -> bool:
    """Whether this process is a sandboxed reader; checked without loading the reader's modules."""
    reader = sys.modules.get("torchgauge.isolation.reader")
    return reader is not None and bool(reader.is_reader())
