"""The module tree of a file, from the names of its tensors; classes from code or a pickle, if there is one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from torchgauge.checkpoint import Chunk, Entry, Index, Role
from torchgauge.facts import ModuleRecord, ParamRecord, PickleImport, StoredRecord, TensorSpec, is_within
from torchgauge.registry import collector_paused, grouped
from torchgauge.source.attributes import attribute_of
from torchgauge.source.source import Source
from torchgauge.source.state_names import block_shape, model_entries

_VERDICTS = ("dangerous", "unknown", "expected")


@collector_paused()
def stored_record(source: Source) -> StoredRecord:
    """The files as facts of a capture; of the imports of a pickle, dangerous ones come first."""
    index, types = source.stored, module_types(source)
    imports = {(i.name, i.verdict.value, i.called) for i in index.imports}
    modules = {entry.name: name.rpartition(".")[0] for name, entry in model_entries(index).items()}
    return StoredRecord(
        tensors=tuple(
            entry.record(module := modules.get(entry.name), None if module is None else types.get(module))
            for entry in index.entries
        ),
        imports=tuple(PickleImport(*i) for i in sorted(imports, key=lambda i: (_VERDICTS.index(i[1]), i))),
        modules=tuple((module.path, module.type) for module in index.modules),
        executed=source.is_unpickled,
    )


def lost_tensors(index: Index) -> int:
    """The number of tensors whose bytes lie beyond the end of their file: it was truncated."""
    sizes = {file: os.path.getsize(file) for file in index.files if os.path.isfile(file)}

    def is_lost(part: Entry | Chunk) -> bool:
        end = None if part.offset is None else part.offset + part.nbytes
        return bool(part.nbytes) and end is not None and end > sizes.get(part.file, end)

    return sum(any(map(is_lost, entry.chunks or (entry,))) for entry in index.entries)


@collector_paused()
def param_records(index: Index) -> tuple[ParamRecord, ...]:
    """The model's tensors; floating-point ones are its parameters, known buffers excluded. A tensor of blocks (GGUF) is
    the matrix that it holds, in the half precision to which it is unpacked for computing."""
    entries = model_entries(index)
    names = {entry.name: name for name, entry in entries.items()}
    aliases = grouped((names[entry.shared_with], name) for name, entry in entries.items() if entry.shared_with in names)
    twins = {name for group in aliases.values() for name in group}
    records = []
    for name, entry in entries.items():
        if name in twins:
            continue
        is_of_blocks = entry.encoding is not None
        spec = TensorSpec(block_shape(entry), "float16") if is_of_blocks else entry.spec
        is_buffer = not (entry.role is Role.PARAMETER and (spec.is_arithmetic or spec.is_quantized))
        stored = (entry.spec,) if is_of_blocks else ()
        other_names = tuple(aliases.get(name, ()))
        records.append(ParamRecord(name, spec, False, is_buffer, other_names, entry.logical_elements, stored))
    return tuple(records)


@collector_paused()
def module_records(params: tuple[ParamRecord, ...], types: Mapping[str, str]) -> tuple[ModuleRecord, ...]:
    """The root and every prefix of a name, in the order of the names; `types` are the known classes."""
    folders: dict[str, _Folder] = {"": _Folder("")}
    for param in params:
        owners = _chain(folders, param.module)
        for alias in param.aliases:
            owners = list(dict.fromkeys([*owners, *_chain(folders, alias.rpartition(".")[0])]))
        if not param.is_buffer:
            numel, size = param.spec.numel, param.nbytes
            for owner in owners:
                owner.params += numel
                owner.nbytes += size
    return tuple(
        ModuleRecord(path, types.get(path, ""), params=folder.params, param_bytes=folder.nbytes)
        for path, folder in folders.items()
    )


@dataclass(slots=True, eq=False)
class _Folder:
    path: str
    above: _Folder | None = None
    params: int = 0
    nbytes: int = 0


def _chain(folders: dict[str, _Folder], path: str) -> list[_Folder]:
    """The folder of a path and all its parents, created from the root down if missing."""
    missing: list[str] = []
    while path not in folders:
        missing.append(path)
        path = path.rpartition(".")[0]
    folder: _Folder | None = folders[path]
    for new in reversed(missing):
        folders[new] = folder = _Folder(new, folder)
    chain = []
    while folder is not None:
        chain.append(folder)
        folder = folder.above
    return chain


def module_types(source: Source) -> Mapping[str, str]:
    """The class of each module by its path in the model, from the code or, without code, from the pickle."""
    if source.model is not None and not source.is_inferred:
        # A scripted module has the name of its original class.
        return {
            path: str(attribute_of(module, "original_name", type(module).__name__))
            for path, module in source.model.named_modules(remove_duplicate=False)
        }
    if source.index is None:
        return {}
    prefix = source.index.model_prefix.rstrip(".")
    types: dict[str, str] = {}
    for module in source.index.modules:
        if is_within(module.path, prefix):
            path = module.path.removeprefix(prefix).removeprefix(".") if prefix else module.path
            types[path] = module.type.rpartition(".")[2]
    return types
