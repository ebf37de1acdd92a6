"""Read a pickle without running it. Importing this module registers every opcode."""

from __future__ import annotations

import re

from torchgauge.checkpoint import pickle_containers, pickle_literals, pickle_objects
from torchgauge.checkpoint.byte_source import ByteSource
from torchgauge.checkpoint.import_log import ImportLog
from torchgauge.checkpoint.pickle_machine import PickleMachine
from torchgauge.checkpoint.pickle_values import any_storage
from torchgauge.errors import FormatError

__all__ = [
    "GLOBAL_LINE",
    "PROTOCOL_MARKS",
    "PickleMachine",
    "pickle_containers",
    "pickle_literals",
    "pickle_objects",
    "scan_followers",
]

_FOLLOWERS = 16
# How pickles begin from protocol 2 on; a lie about the protocol changes nothing.
PROTOCOL_MARKS = frozenset(b"\x80" + bytes([version]) for version in range(6))

# An import as older protocols write it, in lines of text.
GLOBAL_LINE = re.compile(rb"[ci][A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n")


def scan_followers(source: ByteSource, log: ImportLog, at: int) -> list[str]:
    """What stands after a pickle may be loaded as further ones: what they import counts as well."""
    for _ in range(_FOLLOWERS):
        if at >= source.size:
            return []
        machine = PickleMachine(source, log, start=at, persistent=any_storage)
        try:
            machine.run()
        except FormatError as error:
            return [f"after its pickle: {error}"]
        at = machine.position
    return []
