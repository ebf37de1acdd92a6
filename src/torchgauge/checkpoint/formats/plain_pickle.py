"""A pickle that torch did not write, such as numpy weights or an attack. It is read, never run."""

from __future__ import annotations

from typing import Any

from torchgauge.checkpoint.byte_source import ByteSource
from torchgauge.checkpoint.entries import Place, list_entries
from torchgauge.checkpoint.file_text import printable
from torchgauge.checkpoint.formats.safetensors import is_safetensors
from torchgauge.checkpoint.formats.torch_legacy import is_legacy
from torchgauge.checkpoint.formats.torch_zip import storage_of, top_level_keys
from torchgauge.checkpoint.index import Index
from torchgauge.checkpoint.pickle import GLOBAL_LINE, PROTOCOL_MARKS, PickleMachine, scan_followers
from torchgauge.checkpoint.pickle.imports import ImportLog
from torchgauge.checkpoint.pickle.machine import OPCODES
from torchgauge.checkpoint.pickle.values import Global, Instance, Storage, any_storage
from torchgauge.checkpoint.pickle.walk import walk
from torchgauge.checkpoint.registry import FILES, Progress, opens
from torchgauge.checkpoint.training import describe_training
from torchgauge.errors import FormatError

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
        found = walk(value)
        if not found.tensors and not found.modules:
            raise FormatError(
                f"{source.label} is not a model file: it looks like a pickle of {_kind(value)}, without tensors"
            )
        listing = list_entries(found.tensors, _no_place, source.path, is_module=found.is_module)
        return Index(
            path=source.path,
            format="pickle",
            files=(source.path,),
            entries=listing.entries,
            imports=log.imports,
            modules=tuple(found.modules),
            training=describe_training(value, listing.entries),
            metadata={"model_prefix": listing.model_prefix, "top_level_keys": top_level_keys(value)},
            warnings=tuple(warnings),
        )


def _kind(value: Any) -> str:
    if isinstance(value, Instance):
        return f"what {printable(value.type_path)} makes"
    if isinstance(value, Global):
        return f"the name {printable(value.path)}"
    return next((words for kind, words in _KINDS if isinstance(value, kind)), "a single value")


def _no_place(storage: Storage) -> Place:
    raise FormatError("a torch pickle without its tensor data")
