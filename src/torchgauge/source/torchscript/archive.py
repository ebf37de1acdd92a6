"""Open an archive after its code was found harmless.

The records are listed and read by torch's own reader, so the code that is scanned is the code that torch compiles. The
tensors are mapped from the file: they have their values and take no memory until they are read.

Torch's reader copies every tensor into memory, and on the meta device it loses the constants, whose values torch
compares while it compiles. Only `torch.package` accepts storages from outside, so the code and the pickles are passed
in its layout, together with the storages.
"""

from __future__ import annotations

import io
import mmap
import pickletools
import sys
import warnings
import zipfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.jit._recursive import wrap_cpp_module

from torchgauge.checkpoint.byte_source import ByteSource, in_memory, opened
from torchgauge.checkpoint.pickle import PickleMachine
from torchgauge.checkpoint.pickle.imports import ImportLog
from torchgauge.checkpoint.pickle.values import Instance, Key, any_storage
from torchgauge.checkpoint.zip_archive import ZIP_MARK, ZipArchive
from torchgauge.errors import FormatError, first_line
from torchgauge.source.allowed_ops import mark_foreign, require_allowed
from torchgauge.source.archive_records import ArchiveRecords
from torchgauge.source.torchscript.code import require_harmless_reading, scan_code, scan_pickle
from torchgauge.source.torchscript.graphs import nodes_of, type_name

# `torch.package` has one set of storages for both pickles; here each has its own, numbered from 0.
_CONSTANTS = "constants/"
_ALIGNMENT = 16  # bytes: of the widest element, complex128
_LONGEST_KEY = 64


def import_mapped(unit: Any, path: str, contents: Mapping[str, bytes]) -> Any:
    """The inner object of a script module, as `torch._C.import_ir_module` gives it. `contents` are the records of the
    archive that are code, pickles and versions."""
    packaged = io.BytesIO()
    with zipfile.ZipFile(packaged, "w") as archive:
        for name, content in contents.items():
            if name == "constants.pkl":
                content = with_prefixed_storages(content, _CONSTANTS)
            folder = ".data/ts_code/" if name.startswith("code/") else ".data/ts_code/0/" if ".pkl" in name else ""
            archive.writestr(f"archive/{folder}{name}", content)
    packaged.seek(0)
    reader: Any = torch._C.PyTorchFileReader
    return torch._C._import_ir_module_from_package(
        unit, reader(packaged), _mapped_storages(path), torch.device("cpu"), "0"
    )


def _mapped_storages(path: str) -> Any:
    storages: Any = torch._C.DeserializationStorageContext()
    with opened(path) as source:
        archive = ZipArchive(source)
        view = _mapped(source.stream.fileno())
        for record in archive.records.values():
            folder, _, key = record.name.removeprefix(archive.root).partition("/")
            if not key or folder not in ("data", "constants"):
                continue
            offset = None if record.method else archive.source.position(archive.plain_offset(record))
            if not record.size:
                content = torch.empty(0, dtype=torch.uint8)
            elif offset is None or offset % _ALIGNMENT:  # compressed, or not aligned as torch needs it
                content = torch.frombuffer(bytearray(archive.read(record)), dtype=torch.uint8)
            else:
                with warnings.catch_warnings():
                    # Nothing writes to the mapping: a static pass computes on copies of small tensors.
                    warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
                    content = torch.frombuffer(view, dtype=torch.uint8, count=record.size, offset=offset)
            storages.add_storage(key if folder == "data" else f"{_CONSTANTS}{key}", content)
    return storages


def _mapped(descriptor: int) -> mmap.mmap:
    """The file as memory that cannot be written; private, because a reader without rights may share no memory."""
    if sys.platform == "win32":
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    return mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)


def with_prefixed_storages(pickle: bytes, prefix: str) -> bytes:
    """The pickle with `prefix` before the key of every storage, `("storage", type, key, location, elements)`.

    A text that occurs again is referred to by a number: where its first place was a key, it is written out again.
    """
    memo: dict[int, tuple[str, int]] = {}  # texts by number, and where they were written
    edits: dict[int, tuple[int, str]] = {}  # by start: end and the replacement text
    last: deque[tuple[str, int, int, str | None, int]] = deque(maxlen=8)  # opcode, start, end, text, where written
    for (code, argument, position), (_, _, end) in pairwise(pickletools.genops(pickle)):
        start, text = int(position or 0), None
        written = start
        if code.name in ("BINPUT", "LONG_BINPUT"):
            memo.pop(int(str(argument)), None)
            if last and last[-1][3] is not None:
                memo[int(str(argument))] = (last[-1][3], last[-1][4])
            continue
        if code.name == "BINUNICODE":
            text = str(argument)
        elif code.name in ("BINGET", "LONG_BINGET") and int(str(argument)) in memo:
            text, written = memo[int(str(argument))]
            if written in edits:
                edits[start] = (int(end or 0), text)
        last.append((code.name, start, int(end or 0), text, written))
        if code.name != "BINPERSID":
            continue
        names = [item[0] for item in last]
        if len(last) < 8 or names[0] != "MARK" or names[-2] != "TUPLE" or last[1][3] != "storage":
            raise FormatError("a storage in its constants is not described in torch's format")
        _, begin, stop, key, _ = last[3]
        if key is None or len(key) > _LONGEST_KEY:
            raise FormatError("a storage in its constants has no name, or one that is too long")
        edits[begin] = (stop, prefix + key)
    pieces, done = [], 0
    for begin, (stop, text) in sorted(edits.items()):
        spelled = text.encode()
        pieces += [pickle[done:begin], b"X", len(spelled).to_bytes(4, "little"), spelled]
        done = stop
    return b"".join((*pieces, pickle[done:]))


SOURCE_LIMIT = 64 << 20


def load_torchscript(path: str | Path, *, values: bool = False) -> torch.jit.ScriptModule:
    """The script module of an archive. Raises `FormatError` if its code is not harmless or cannot be read.

    `values` reads its tensors into memory, to be run; otherwise they are mapped from the file and must not be written
    to.
    """
    name = str(path)
    contents = _scan(name)
    unit = torch._C.CompilationUnit()
    with torch.random.fork_rng(devices=[]):
        try:
            # Like `torch.jit.load`, which does not return the unit with all functions.
            script = (
                torch._C.import_ir_module(unit, name, torch.device("cpu"), {}, False)  # type: ignore[call-arg]
                if values
                else import_mapped(unit, name, contents)
            )
            _check_graphs(unit, name)
            module = wrap_cpp_module(script)
        except (RuntimeError, ValueError) as error:
            raise FormatError(f"'{name}' cannot be read as TorchScript: {first_line(error)}") from error
    mark_foreign(module)
    return module


def _scan(name: str) -> dict[str, bytes]:
    """Check the code and the pickles; returns their records and those of the versions."""
    try:
        with open(name, "rb") as file:
            head = file.read(8)
    except OSError as error:
        raise FormatError(f"cannot read '{name}': {error.strerror or error}") from error
    # Torch takes a file with this mark for another format, whatever else it is.
    if head[:4] != ZIP_MARK or head[4:] == b"PTMF":
        raise FormatError(f"'{name}' is not a TorchScript archive")
    records = ArchiveRecords(name)
    # An older layout keeps its code elsewhere.
    if any(record.lower() == "model.json" for record in records.names):
        raise FormatError(f"'{name}' is a TorchScript archive from before torch 1.3, which is not supported")
    contents: dict[str, bytes] = {}
    special: frozenset[str] = frozenset()
    for record in records.names:
        lowered = record.lower()
        if lowered.endswith(".py"):
            contents[record] = records.read(record, SOURCE_LIMIT)
            special |= scan_code(contents[record], f"'{name}' ({record})")
        elif lowered.endswith(".pkl") and not record.startswith("extra/"):
            content = records.read(record, SOURCE_LIMIT)
            scan_pickle(content, f"'{name}' ({record})")
            require_few_objects(in_memory(content, name, f"'{name}' ({record})"))
            if lowered in ("data.pkl", "constants.pkl"):
                contents[lowered] = content
        elif lowered.endswith(".debug_pkl"):
            contents[record] = records.read(record, SOURCE_LIMIT)
            require_few_objects(in_memory(contents[record], name, f"'{name}' ({record})"), is_table=True)
        elif lowered in ("version", "byteorder", ".data/version"):
            contents[record] = records.read(record, SOURCE_LIMIT)
    if not any(record.lower().endswith(".py") for record in contents):
        raise FormatError(f"'{name}' contains no TorchScript code")
    require_harmless_reading(special, f"'{name}'")
    return contents


# Nodes of a method with everything it calls inlined; the largest models have about 100,000.
INLINED_NODES = 1 << 20


def _check_graphs(unit: Any, name: str) -> None:
    """The scan of the source errs on the safe side; the graphs are exact. Torch inlines the functions that a graph
    calls: if each calls the next one twice, a few kilobytes of code need more memory than any machine has."""
    nodes: dict[str, int] = {}
    calls: dict[str, list[str]] = {}
    for function in unit.get_functions():
        place = function.qualified_name
        nodes[place], calls[place] = 0, []
        for node in nodes_of(function.graph, subgraphs=True):
            require_allowed(node.kind(), f"'{name}' ({place.removeprefix('__torch__.')})")
            nodes[place] += 1
            if node.kind() == "prim::CallFunction":
                calls[place].append(next(node.inputs()).type().annotation_str)
            elif node.kind() == "prim::CallMethod":
                calls[place].append(f"{type_name(next(node.inputs()))}.{node.s('name')}")
    sizes: dict[str, int] = {}
    for place in nodes:
        waiting = [place]
        while waiting:
            inner = [callee for callee in calls[waiting[-1]] if callee in nodes and callee not in sizes]
            if inner and len(waiting) <= len(nodes):
                waiting.append(inner[0])
                continue
            done = waiting.pop()
            # Through an interface, methods may call each other in a cycle, which torch does not inline.
            sizes[done] = nodes[done] + sum(sizes.get(callee, 1) for callee in calls[done])
            if sizes[done] > INLINED_NODES:
                raise FormatError(
                    f"'{name}' ({done.removeprefix('__torch__.')}): inlined with everything it calls it has more than "
                    f"{INLINED_NODES:,} nodes, so it is not run"
                )


MAX_VALUES = 1 << 22
# Torch reads and frees values by recursion: a million lists in each other overflow the stack.
MAX_NESTING = 1000
_VALUES_OF_OBJECT = 32  # memory of a Python module in units of a list; at most 131,072 modules


def require_few_objects(source: ByteSource, *, is_table: bool = False) -> None:
    """Raise `FormatError` if following every reference of the pickle gives too many values, values nested too deeply,
    or keys that torch cannot hold. `is_table`: lists, tuples and plain values alone.

    Torch creates an object for each reference: a list of a list twice, thirty levels deep, is a few hundred bytes in a
    pickle and a billion lists in Python; so is a module that has another one under two names.
    """
    root = PickleMachine(source, ImportLog(), persistent=any_storage).run()
    sizes: dict[int, int] = {}
    heights: dict[int, int] = {}
    open_: set[int] = set()
    waiting = [(root, False)]
    while waiting:
        value, is_done = waiting.pop()
        if id(value) in sizes:
            continue
        children = [child for child in _children(value) if isinstance(child, list | tuple | dict | Instance)]
        if is_done or not children:
            own = _VALUES_OF_OBJECT if isinstance(value, Instance) else 1
            sizes[id(value)] = own + sum(1 for _ in _children(value)) + sum(sizes[id(child)] for child in children)
            heights[id(value)] = 1 + max((heights[id(child)] for child in children), default=0)
            open_.discard(id(value))
            if sizes[id(value)] > MAX_VALUES:
                raise FormatError(f"{source.label}: its objects refer to each other too often to be read")
            if heights[id(value)] > MAX_NESTING:
                raise FormatError(f"{source.label}: its values are nested more than {MAX_NESTING:,} deep")
            if isinstance(value, dict | Instance) and is_table:
                raise FormatError(f"{source.label}: it is not a table of source lines")
            if isinstance(value, dict) and _are_colliding(value):
                raise FormatError(f"{source.label}: the keys of a dictionary all have the same hash")
        elif id(value) in open_:
            raise FormatError(f"{source.label}: an object contains itself")
        else:
            open_.add(id(value))
            waiting.append((value, True))
            waiting.extend((child, False) for child in children if id(child) not in sizes)


# Torch doubles its table until no slot is wanted by more keys than this; slots are the upper bits of this product.
_KEYS_PER_SLOT = 4
_HASH_FACTOR = 11400714819323198485
_SPARSEST = 10  # doublings beyond the number of keys: chance needs one or two


def _are_colliding(keys: Iterable[object]) -> bool:
    """Whether integers are chosen so that torch's table would grow until the memory ends."""
    numbers = (key.value if isinstance(key, Key) else key for key in keys)
    hashes = [number * _HASH_FACTOR & (1 << 64) - 1 for number in numbers if isinstance(number, int)]
    bits = len(hashes).bit_length()
    return len(hashes) > _KEYS_PER_SLOT and all(
        max(Counter(hash_ >> 64 - width for hash_ in hashes).values()) > _KEYS_PER_SLOT
        for width in range(bits, bits + _SPARSEST)
    )


def _children(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, Instance):
        yield from (value.args, value.state, value.items, value.mapping)
