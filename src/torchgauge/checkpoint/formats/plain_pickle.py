"""A pickle that torch did not write, such as numpy weights or an attack. It is read, never run."""

from __future__ import annotations

from dataclasses import replace

from torchgauge.checkpoint.byte_source import ByteSource, printable
from torchgauge.checkpoint.entries import Place
from torchgauge.checkpoint.formats.safetensors import is_safetensors
from torchgauge.checkpoint.formats.torch_legacy import is_legacy
from torchgauge.checkpoint.formats.torch_zip import index_of_pickle, storage_of
from torchgauge.checkpoint.index import Index
from torchgauge.checkpoint.pickle import GLOBAL_LINE, PROTOCOL_MARKS, PickleMachine, scan_followers
from torchgauge.checkpoint.pickle.imports import ImportLog
from torchgauge.checkpoint.pickle.machine import OPCODES
from torchgauge.checkpoint.pickle.values import Global, Instance, Storage, any_storage
from torchgauge.checkpoint.registry import FILES, opens
from torchgauge.errors import FormatError
from torchgauge.progress import Progress

_KINDS = ((dict, "a dict"), ((list, tuple), "a list"), (str, "a text"), ((int, float), "a number"))
_TRIED_BYTES = 2**20


def is_pickle(source: ByteSource) -> bool:
    """Protocols from 2 start with a mark; older ones are tried, because text that looks like a pickle soon fails."""
    head = source.head(2)
    if is_legacy(source) or is_safetensors(source):
        return False
    if head in PROTOCOL_MARKS:
        return True
    if not head or head[0] not in OPCODES:
        return False
    log = ImportLog()
    try:
        PickleMachine(source.part(0, min(source.size, _TRIED_BYTES), source.label), log, persistent=any_storage).run()
    except FormatError:
        return bool(log.dangerous) and GLOBAL_LINE.search(source.head(4096)) is not None
    return True


@opens(FILES, "pickle", is_pickle)
def open_pickle(source: ByteSource, progress: Progress) -> Index:
    with ImportLog() as log:
        machine = PickleMachine(source, log, persistent=storage_of)
        value = machine.run()
        warnings = scan_followers(source, log, machine.position)
        index = index_of_pickle("pickle", source.path, value, _no_place, log)
        if index.entries or index.modules:
            return replace(index, warnings=tuple(warnings))
        if isinstance(value, Instance):
            kind = f"what {printable(value.type_path)} makes"
        elif isinstance(value, Global):
            kind = f"the name {printable(value.path)}"
        else:
            kind = next((words for kind, words in _KINDS if isinstance(value, kind)), "a single value")
        raise FormatError(f"{source.label} is not a model file: it looks like a pickle of {kind}, without tensors")


def _no_place(storage: Storage) -> Place:
    raise FormatError("a torch pickle without its tensor data")
