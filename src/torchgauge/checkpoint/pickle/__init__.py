"""Read a pickle without running it: opcodes act on inert stand-ins, and a log holds what it would import."""

from __future__ import annotations

from torchgauge.checkpoint.pickle import opcodes  # importing them registers them
from torchgauge.checkpoint.pickle.imports import ImportLog, judge
from torchgauge.checkpoint.pickle.machine import (
    GLOBAL_LINE,
    OPCODES,
    PROTOCOL_MARKS,
    PickleMachine,
    scan_followers,
    take_tensor,
)
from torchgauge.checkpoint.pickle.values import Blob, Data, Global, Instance, Key
from torchgauge.checkpoint.pickle.walk import walk

__all__ = [
    "GLOBAL_LINE", "OPCODES", "PROTOCOL_MARKS", "Blob", "Data", "Global", "ImportLog", "Instance", "Key",
    "PickleMachine", "judge", "opcodes", "scan_followers", "take_tensor", "walk",
]  # fmt: skip
