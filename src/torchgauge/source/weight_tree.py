"""The module tree of a file without code: a folder of names for each module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchgauge.checkpoint import Entry, Index, Role
from torchgauge.records import ModuleRecord, ParamRecord, PickleImport, StoredRecord, StoredTensor
from torchgauge.source.state_names import model_entries

_VERDICTS = ("dangerous", "unknown", "expected")


def stored_record(index: Index, *, executed: bool = False) -> StoredRecord:
    """The files as facts of a capture; of what a pickle would import, the dangerous comes first."""
    imports = {(i.name, i.verdict.value, i.called) for i in index.imports}
    return StoredRecord(
        tensors=tuple(_stored_tensor(entry) for entry in index.entries),
        imports=tuple(PickleImport(*i) for i in sorted(imports, key=lambda i: (_VERDICTS.index(i[1]), i))),
        modules=tuple((module.path, module.type) for module in index.modules),
        executed=executed,
    )


def _stored_tensor(entry: Entry) -> StoredTensor:
    return StoredTensor(
        name=entry.name,
        spec=entry.spec,
        nbytes=entry.nbytes,
        file=entry.file,
        offset=entry.offset,
        role=entry.role.value,
        duplicate_of=entry.shared_with,
        logical_elements=entry.logical_elements,
    )


def param_records(index: Index) -> tuple[ParamRecord, ...]:
    """The model's tensors; floating ones that are no known buffers are its parameters."""
    entries = model_entries(index)
    names = {entry.name: name for name, entry in entries.items()}
    aliases: dict[str, list[str]] = {}
    for name, entry in entries.items():
        if entry.shared_with in names:
            aliases.setdefault(names[entry.shared_with], []).append(name)
    twins = {name for group in aliases.values() for name in group}
    return tuple(
        ParamRecord(name, entry.spec, False, not _is_parameter(entry), tuple(aliases.get(name, ())))
        for name, entry in entries.items()
        if name not in twins
    )


def _is_parameter(entry: Entry) -> bool:
    return entry.role is Role.PARAMETER and entry.spec.is_arithmetic


def module_records(index: Index, params: tuple[ParamRecord, ...]) -> tuple[ModuleRecord, ...]:
    """The root and every folder of names, in the order of the names; the class is known where a pickle names it."""
    types = _types(index)
    elements: dict[str, int] = {"": 0}
    nbytes: dict[str, int] = {"": 0}
    for param in params:
        numel, size = (0, 0) if param.is_buffer else (param.spec.numel, param.spec.nbytes)
        for path in dict.fromkeys(path for name in (param.name, *param.aliases) for path in _folders(name)):
            elements[path] = elements.get(path, 0) + numel
            nbytes[path] = nbytes.get(path, 0) + size
    return tuple(
        ModuleRecord(path, types.get(path, ""), params=elements[path], param_bytes=nbytes[path]) for path in elements
    )


def _folders(name: str) -> Iterator[str]:
    """From the root down: a parent comes before its children."""
    parts = name.split(".")[:-1]
    return (".".join(parts[:depth]) for depth in range(len(parts) + 1))


def _types(index: Index) -> Mapping[str, str]:
    prefix = str(index.metadata.get("model_prefix", "")).rstrip(".")
    types: dict[str, str] = {}
    for module in index.modules:
        if not prefix or module.path == prefix or module.path.startswith(f"{prefix}."):
            path = module.path.removeprefix(prefix).removeprefix(".") if prefix else module.path
            types[path] = module.type.rpartition(".")[2]
    return types
