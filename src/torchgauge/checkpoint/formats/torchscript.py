"""TorchScript archives: modules and tensors from `data.pkl`, constants, roles from the lists in the code."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TypeGuard

from torchgauge.checkpoint.byte_source import printable
from torchgauge.checkpoint.entries import list_entries
from torchgauge.checkpoint.formats.torch_zip import archive_metadata, read_pickle, scan_other_pickles, storage_places
from torchgauge.checkpoint.index import Entry, Index, PickledModule, Role
from torchgauge.checkpoint.limits import WALK_DEPTH
from torchgauge.checkpoint.pickle.imports import ImportLog
from torchgauge.checkpoint.pickle.values import Global, Instance, Tensor
from torchgauge.checkpoint.pickle.walk import Walk, attributes, continue_walk, walk
from torchgauge.checkpoint.registry import ARCHIVES, opens
from torchgauge.checkpoint.zip_archive import ZipArchive
from torchgauge.errors import FormatError
from torchgauge.facts import TensorSpec
from torchgauge.progress import Progress

_LISTS = re.compile(r"^class (\w+)\(.*?\):|^  __(parameters|buffers)__ = \[(.*?)\]", re.MULTILINE)
_MANGLED = re.compile(r"___torch_mangle_\d+\.")
_CPP_CLASSES = "__torch__.torch.classes."
_CODE_BYTES = 2**26
# A weight in oneDNN's layout: torch writes the node without its data.
_CONVERTED = "ops.prim.ConstantMKLDNNTensor()"
_NOT_SAVED = (
    "torch.jit.save does not write weights that torch.jit.optimize_for_inference converted, and torch.jit.load fails "
    "too; save the frozen model and optimize it after loading"
)
_MAX_MODULES = 10**6


def is_torchscript(archive: ZipArchive) -> bool:
    return all(archive.find(archive.root + name) is not None for name in ("data.pkl", "constants.pkl"))


@opens(ARCHIVES, "torchscript", is_torchscript)
def open_torchscript(archive: ZipArchive, progress: Progress) -> Index:
    with ImportLog() as log:
        read = {f"{archive.root}{name}" for name in ("data.pkl", "constants.pkl")}
        model = read_pickle(archive, f"{archive.root}data.pkl", log)
        code = _code(archive)
        found = _modules_and_tensors(model, _declared_roles(code))
        missing = sum(text.count(_CONVERTED) for text in code.values())
        if missing:
            archive.warnings.append(f"{missing} weights are missing from the file: {_NOT_SAVED}")
        listing = list_entries(
            found.tensors,
            storage_places(archive, f"{archive.root}data/"),
            archive.source.path,
            big_endian=archive.is_big_endian,
        )
        entries = [
            replace(entry, role=item.role or Role.OTHER)
            for entry, item in zip(listing.entries, found.tensors, strict=True)
        ]
        has_parameters = any(entry.role is Role.PARAMETER for entry in entries)
        constants = _constants(archive, log, has_parameters=has_parameters)
        scan_other_pickles(archive, log, read=read)
        return Index(
            path=archive.source.path,
            format="torchscript",
            files=(archive.source.path,),
            entries=(*entries, *constants),
            imports=log.imports,
            modules=tuple(found.modules),
            archive=archive_metadata(archive),
            missing_weights=missing,
            warnings=tuple(archive.warnings),
        )


def _code(archive: ZipArchive) -> dict[str, str]:
    """The source code of the archive, by module."""
    found: dict[str, str] = {}
    left = _CODE_BYTES
    for name, record in archive.records.items():
        path = record.name.removeprefix(f"{archive.root}code/")
        if path == record.name or not name.endswith(".py"):
            continue
        left -= record.size
        if left < 0:
            raise FormatError(f"{archive.source.label}: it contains more code than any model needs")
        found[path.removesuffix(".py").replace("/", ".")] = archive.read(record).decode("utf-8", "replace")
    return found


def _declared_roles(code: dict[str, str]) -> dict[str, dict[str, Role]]:
    """For each class in the code, the attributes that it declares as parameters and buffers."""
    roles: dict[str, dict[str, Role]] = {}
    for module, text in code.items():
        owner = ""
        for match in _LISTS.finditer(text):
            if match[1]:
                owner = match[1]
                continue
            role = Role.PARAMETER if match[2] == "parameters" else Role.BUFFER
            for attribute in re.findall(r'"([^"]*)"', match[3]):
                roles.setdefault(f"{module}.{owner}", {})[attribute] = role
    return roles


def _modules_and_tensors(model: object, roles: dict[str, dict[str, Role]]) -> Walk:
    """All modules of the archive in order, and the tensors among their attributes."""
    if not _is_script_module(model):
        raise FormatError("its data.pkl does not contain a TorchScript module")
    found = Walk()
    waiting: list[tuple[tuple[str, ...], Instance, frozenset[int]]] = [((), model, frozenset())]
    while waiting:
        path, module, above = waiting.pop()
        above |= {id(module)}
        if len(above) > WALK_DEPTH or len(found.modules) > _MAX_MODULES:
            raise FormatError("its modules are nested too deeply")
        type_name = printable(_MANGLED.sub("", module.type_path).removeprefix("__torch__."))
        found.modules.append(PickledModule(".".join(path), type_name))
        inner: list[tuple[tuple[str, ...], Instance, frozenset[int]]] = []
        if isinstance(module.state, tuple):  # quantized modules define their own state
            _add_packed(found, module, path)
        for key, item in attributes(module).items():
            name = (*path, printable(str(key)))
            if _is_script_module(item):
                inner += [] if id(item) in above else [(name, item, above)]
            elif isinstance(item, Instance):
                _add_packed(found, item, name)
            elif isinstance(item, Tensor | dict | list | tuple):
                continue_walk(found, item, name, roles.get(module.type_path, {}).get(str(key), Role.OTHER))
        waiting += reversed(inner)
    return found


def _add_packed(found: Walk, value: Instance, path: tuple[str, ...]) -> None:
    """The weights in the state of a C++ object; tensors that only describe the layer are not floating-point."""
    first = len(found.tensors)
    continue_walk(found, value.state, path, Role.OTHER)
    for part in found.tensors[first:]:
        spec = TensorSpec(part.tensor.shape, part.tensor.dtype)
        part.role = Role.PARAMETER if _may_be_weight(spec) else Role.OTHER


def _may_be_weight(spec: TensorSpec) -> bool:
    return bool(spec.shape) and (spec.is_arithmetic or spec.is_quantized)


def _is_script_module(value: object) -> TypeGuard[Instance]:
    """False for objects of C++ classes."""
    if not isinstance(value, Instance) or not isinstance(value.factory, Global):
        return False
    return value.type_path.startswith("__torch__.") and not value.type_path.startswith(_CPP_CLASSES)


def _constants(archive: ZipArchive, log: ImportLog, *, has_parameters: bool) -> list[Entry]:
    """Tensors that the code refers to: the weights of a frozen model, which has no parameters."""
    if archive.find(f"{archive.root}constants.pkl") is None:
        return []
    found = walk({"constants": read_pickle(archive, f"{archive.root}constants.pkl", log)}).tensors
    places = storage_places(archive, f"{archive.root}constants/")
    entries = list_entries(found, places, archive.source.path, big_endian=archive.is_big_endian).entries
    is_weight = (not has_parameters and _may_be_weight(entry.spec) for entry in entries)
    return [
        replace(entry, role=Role.PARAMETER if weight else Role.OTHER)
        for entry, weight in zip(entries, is_weight, strict=True)
    ]
