"""A sandboxed process reads files for its parent: limited memory and time, no writing, no network, no processes.

limits      limits on memory and time
rights      dropping rights: Landlock, capabilities, and the filter of system calls
seccomp     that filter; system_calls: the calls that it allows
channel     messages between the two processes, data only
messages    the forms of a reader's messages: everything else is refused
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
    from torchgauge.isolation.process import run_isolated, unexpected_message
    from torchgauge.isolation.reader import NeedsPackageError, ask_parent, threads_of_caller
    from torchgauge.isolation.rights import Barrier, barriers, missing_barriers, require_barriers

__all__ = [
    "Barrier", "Limits", "Message", "NeedsPackageError", "ask_parent", "barriers", "is_isolated", "limits_for",
    "missing_barriers", "require_barriers", "run_isolated", "threads_of_caller", "unexpected_message",
]  # fmt: skip

_HOMES = {
    "channel": ("Message",),
    "limits": ("Limits", "limits_for"),
    "process": ("run_isolated", "unexpected_message"),
    "reader": ("NeedsPackageError", "ask_parent", "threads_of_caller"),
    "rights": ("Barrier", "barriers", "missing_barriers", "require_barriers"),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)


def is_isolated() -> bool:
    """Whether this process is a sandboxed reader; checked without loading the reader's modules."""
    reader = sys.modules.get("torchgauge.isolation.reader")
    return reader is not None and bool(reader.is_reader())
