"""A pickle that torch did not write: numpy weights, say, or an attack. It is read, not run."""

from __future__ import annotations

import re

from torchgauge.checkpoint.byte_source import ByteSource
from torchgauge.checkpoint.entries import Place, list_entries
from torchgauge.checkpoint.import_log import ImportLog
from torchgauge.checkpoint.index import Index
from torchgauge.checkpoint.legacy_stream import is_legacy
from torchgauge.checkpoint.pickle_machine import OPCODES
from torchgauge.checkpoint.pickle_values import Storage, any_storage
from torchgauge.checkpoint.pickles import PickleMachine, scan_followers
from torchgauge.checkpoint.registry import FILES, Progress, opens
from torchgauge.checkpoint.safetensors_file import is_safetensors
from torchgauge.checkpoint.torch_zip import storage_of, top_level_keys
from torchgauge.checkpoint.walking import walk
from torchgauge.errors import FormatError

_PROTOCOLS = frozenset(b"\x80" + bytes([version]) for version in range(6))
_TRIED_BYTES = 2**20
_GLOBAL_LINE = re.compile(rb"[ci][A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n")


def is_pickle(source: ByteSource) -> bool:
    """From protocol 2 on there is a mark; older ones are tried: text that happens to begin like one soon breaks."""
    head = source.head(2)
    if is_legacy(source) or is_safetensors(source):
        return False
    if head in _PROTOCOLS:
        return True
    if not head or head[0] not in OPCODES:
        return False
    log = ImportLog()
    try:
        PickleMachine(source.part(0, min(source.size, _TRIED_BYTES), source.label), log, persistent=any_storage).run()
    except FormatError:
        return bool(log.dangerous) and _GLOBAL_LINE.search(source.head(4096)) is not None
    return True


@opens(FILES, "pickle", is_pickle)
def open_pickle(source: ByteSource, progress: Progress) -> Index:
    with ImportLog() as log:
        return _read(source, log)


def _read(source: ByteSource, log: ImportLog) -> Index:
    machine = PickleMachine(source, log, persistent=storage_of)
    value = machine.run()
    warnings = scan_followers(source, log, machine.position)
    found = walk(value)
    listing = list_entries(found.tensors, _no_place, source.path, is_module=found.is_module)
    return Index(
        path=source.path,
        format="pickle",
        files=(source.path,),
        entries=listing.entries,
        imports=log.imports,
        modules=tuple(found.modules),
        metadata={"model_prefix": listing.model_prefix, "top_level_keys": top_level_keys(value)},
        warnings=tuple(warnings),
    )


def _no_place(storage: Storage) -> Place:
    raise FormatError("a pickle that torch wrote, without the data that belongs to it")
