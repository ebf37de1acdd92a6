"""`torch.distributed.checkpoint` folders: a pickled `.metadata`, and files with a small torch file per tensor or
shard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from torchgauge.checkpoint.byte_source import is_file_name, opened, printable
from torchgauge.checkpoint.dtypes import item_bytes
from torchgauge.checkpoint.entries import unpack_packed
from torchgauge.checkpoint.formats.torch_zip import open_torch_zip
from torchgauge.checkpoint.index import Chunk, Entry, Index
from torchgauge.checkpoint.pickle import PickleMachine
from torchgauge.checkpoint.pickle.imports import ImportLog
from torchgauge.checkpoint.pickle.rebuild import dtype_name, sizes, whole
from torchgauge.checkpoint.pickle.values import Instance, Key
from torchgauge.checkpoint.pickle.walk import attributes
from torchgauge.checkpoint.registry import FOLDERS, opens, silent
from torchgauge.checkpoint.tensor_names import classify, find_model_prefix
from torchgauge.checkpoint.zip_archive import ZIP_MARK, ZipArchive
from torchgauge.errors import FormatError
from torchgauge.facts import TensorSpec
from torchgauge.progress import Progress
from torchgauge.registry import grouped

METADATA = ".metadata"


@dataclass(frozen=True, slots=True)
class _Stored:
    """A part of a file: the tensor that it belongs to, and its corner in that tensor (None if it is not a tensor)."""

    name: str
    corner: tuple[int, ...] | None
    file: str
    offset: int
    length: int


def is_distributed(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, METADATA))


@opens(FOLDERS, "distributed", is_distributed)
def open_distributed(folder: str, progress: Progress) -> Index:
    with ImportLog() as log:
        with opened(os.path.join(folder, METADATA)) as source:
            metadata = PickleMachine(source, log).run()
        if not isinstance(metadata, Instance):
            raise FormatError(f"{folder}: its {METADATA} is not what torch.distributed.checkpoint writes")
        state = attributes(metadata)
        described = _described(state.get("state_dict_metadata"))
        stored = list(_stored(state.get("storage_data")))
        chunks = _find_chunks(folder, stored, described, log, progress)
        # The planner stores the path of each flattened name.
        planner = state.get("planner_data")
        pairs = _items(planner) if isinstance(planner, dict) else ()
        known = {key: path for key, path in pairs if isinstance(key, str)}  # a damaged one may have any key
        paths = {}
        for name in described:
            path = known.get(name)
            if isinstance(path, tuple) and path and all(isinstance(part, str | int) for part in path):
                paths[name] = tuple(printable(str(part)) for part in path)
            else:
                paths[name] = (name,)
        prefix = find_model_prefix(list(paths.values()))
        entries = []
        for name, spec in described.items():
            parts = chunks.get(name, [])
            if spec.numel and sum(prod(part.shape) for part in parts) != spec.numel:
                raise FormatError(
                    f"{folder}: the parts of {printable(name)} do not add up to the whole; is a file missing?"
                )
            file, nbytes = parts[0].file if parts else "", sum(part.nbytes for part in parts)
            role = classify(paths[name], spec, prefix)
            if len(parts) == 1:
                entries.append(Entry(name, spec, file, parts[0].offset, nbytes, role))
            else:
                entries.append(Entry(name, spec, file, None, nbytes, role, chunks=tuple(parts)))
        files = sorted({item.file for item in stored})
        return Index(
            path=folder,
            format="distributed",
            files=tuple(os.path.join(folder, file) for file in files),
            entries=unpack_packed(entries),
            imports=log.imports,
            model_prefix=".".join((*prefix, "")) if prefix else "",
        )


def _items(value: object) -> Iterator[tuple[object, object]]:
    if not isinstance(value, dict):
        raise FormatError("the metadata of the checkpoint is not what torch.distributed.checkpoint writes")
    yield from ((key.value if isinstance(key, Key) else key, item) for key, item in value.items())


def _described(value: object) -> dict[str, TensorSpec]:
    """Only tensors have a size; numbers and settings are pickled whole."""
    specs = {}
    for name, item in _items(value):
        fields = attributes(item) if isinstance(item, Instance) else {}
        if not isinstance(name, str) or "size" not in fields:
            continue
        properties = fields.get("properties")
        state = properties.state if isinstance(properties, Instance) else None
        dtype = state[0] if isinstance(state, tuple) and state else None
        specs[name] = TensorSpec(sizes(fields["size"]), dtype_name(dtype))
    return specs


def _stored(value: object) -> Iterator[_Stored]:
    for key, item in _items(value):
        index = attributes(key) if isinstance(key, Instance) else {}
        place = attributes(item) if isinstance(item, Instance) else {}
        name, file = index.get("fqn"), place.get("relative_path")
        if not isinstance(name, str) or not isinstance(file, str):
            raise FormatError("a piece of the checkpoint has no name or no file")
        if not is_file_name(file):
            raise FormatError(f"the checkpoint names the file {printable(file)}, which is not in the folder")
        corner = index.get("offset")
        yield _Stored(
            name,
            None if corner is None else sizes(corner),
            file,
            whole(place.get("offset")),
            whole(place.get("length")),
        )


def _find_chunks(
    folder: str, stored: list[_Stored], described: dict[str, TensorSpec], log: ImportLog, progress: Progress
) -> dict[str, list[Chunk]]:
    chunks: dict[str, list[Chunk]] = {}
    by_file = grouped((item.file, item) for item in stored)
    for number, (file, pieces) in enumerate(by_file.items()):
        progress(number, len(by_file), file)
        with opened(os.path.join(folder, file)) as source:
            for piece in pieces:
                part = source.part(piece.offset, piece.length, f"{file}:{printable(piece.name)}")
                spec = described.get(piece.name)
                if part.head(4) == ZIP_MARK:
                    # A torch file with one tensor; if it is not a tensor, only its imports matter.
                    index = open_torch_zip(ZipArchive(part), silent)
                    log.merge(tuple(replace(found, file=file) for found in index.imports))
                    if spec is None:
                        continue
                    if len(index.entries) != 1 or index.entries[0].spec.dtype != spec.dtype:
                        raise FormatError(f"{part.label}: does not hold the one tensor that the metadata describes")
                    entry, corner = index.entries[0], piece.corner or (0,) * len(spec.shape)
                    chunk = Chunk(corner, entry.spec.shape, part.path, entry.offset, entry.nbytes)
                elif spec is not None and part.size == spec.numel * item_bytes(spec.dtype):
                    # Other writers (safetensors) store raw bytes.
                    chunk = Chunk((0,) * len(spec.shape), spec.shape, part.path, part.position(0), part.size)
                else:
                    continue
                chunks.setdefault(piece.name, []).append(chunk)
    progress(len(by_file), len(by_file), "")
    return chunks
