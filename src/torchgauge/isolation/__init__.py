"""A process without rights reads files for its parent: limited memory and time, no writing, no network, no processes.

limits      how much memory and time reading may take
rights      giving up rights: Landlock, seccomp, capabilities
channel     messages between the two processes, data only
process     starts the reader, watches it, serves what it asks for
reader      the reader's own side: what it cannot do itself, it asks its parent for
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

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
    """Whether this process is a reader without rights. One that is not need not load what a reader needs."""
    reader = sys.modules.get("torchgauge.isolation.reader")
    return reader is not None and bool(reader.is_reader())
