"""Programs saved by `torch.export.save`: one record per weight, described by JSON files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torchgauge.checkpoint.byte_source import parse_json, printable
from torchgauge.checkpoint.dtypes import EXPORT_SCALARS
from torchgauge.checkpoint.entries import list_entries
from torchgauge.checkpoint.formats.torch_zip import archive_metadata, open_torch_zip, record_place, scan_other_pickles
from torchgauge.checkpoint.index import Entry, Index, Role
from torchgauge.checkpoint.limits import JSON_BYTES
from torchgauge.checkpoint.pickle.imports import ImportLog
from torchgauge.checkpoint.pickle.rebuild import sizes, whole
from torchgauge.checkpoint.pickle.values import Storage, Tensor
from torchgauge.checkpoint.pickle.walk import Found
from torchgauge.checkpoint.registry import ARCHIVES, opens, silent
from torchgauge.checkpoint.zip_archive import ZIP_MARK, ZipArchive
from torchgauge.errors import FormatError
from torchgauge.progress import Progress

_PROGRAM = "serialized_exported_program.json"


def is_exported(archive: ZipArchive) -> bool:
    return archive.find(archive.root + "archive_format") is not None or archive.find(_PROGRAM) is not None


@opens(ARCHIVES, "exported", is_exported)
def open_exported(archive: ZipArchive, progress: Progress) -> Index:
    if archive.find(_PROGRAM) is not None:
        # Before PyTorch 2.8: the program as JSON, whose signature names the parameters; the state dict and the
        # constants as torch files.
        specs: object = _read_json(archive, _PROGRAM)
        for key in ("graph_module", "signature", "input_specs"):
            specs = specs.get(key) if isinstance(specs, dict) else None
        found = (spec.get("parameter") for spec in specs if isinstance(spec, dict)) if isinstance(specs, list) else ()
        names = (spec.get("parameter_name") for spec in found if isinstance(spec, dict))
        signature = {name: Role.PARAMETER for name in names if isinstance(name, str)}
        parts = []
        for name in ("serialized_state_dict.pt", "serialized_constants.pt"):
            record = archive.find(name)
            if record is not None and record.size:
                parts.append(open_torch_zip(ZipArchive(archive.open(record)), progress))
        entries = [entry for part in parts for entry in part.entries]
        return Index(
            path=archive.source.path,
            format="exported",
            files=(archive.source.path,),
            entries=tuple(replace(entry, role=signature.get(entry.name, Role.BUFFER)) for entry in entries),
            imports=tuple(found for part in parts for found in part.imports),
            archive=archive_metadata(archive, _PROGRAM),
            warnings=(*archive.warnings, *(warning for part in parts for warning in part.warnings)),
        )
    with ImportLog() as log:
        return _open_new(archive, log)


def _open_new(archive: ZipArchive, log: ImportLog) -> Index:
    """From PyTorch 2.8: `data/weights/…` and `data/constants/…` with a JSON file per model."""
    folder = f"{archive.root}models/"
    names = [name.removeprefix(folder) for name in archive.names() if name.startswith(folder)]
    models = [name.removesuffix(".json") for name in names if name.endswith(".json") and "/" not in name]
    described: list[_Payload] = []
    for kind in ("weights", "constants"):
        data = f"{archive.root}data/{kind}/"
        for model in models:
            config = _read_json(archive, f"{data}{model}_{kind}_config.json").get("config")
            prefix = (model,) if len(models) > 1 else ()
            for name, fields in config.items() if isinstance(config, dict) else ():
                if isinstance(fields, dict):
                    described.append(_Payload((*prefix, name), f"{data}{fields.get('path_name')}", fields))
    tensors = [_found(item) for item in described if not item.is_pickled]
    listing = list_entries(tensors, lambda storage: record_place(archive, archive.require(storage.key)),
                           archive.source.path, big_endian=archive.is_big_endian)  # fmt: skip
    entries = [
        replace(entry, role=item.role or Role.OTHER) for entry, item in zip(listing.entries, tensors, strict=True)
    ]
    pickled = [entry for item in described if item.is_pickled for entry in _pickled_entries(archive, item, log)]
    scan_other_pickles(archive, log, read=set())
    program = f"{folder}{models[0]}.json" if len(models) == 1 else None
    return Index(
        path=archive.source.path,
        format="exported",
        files=(archive.source.path,),
        entries=(*entries, *pickled),
        imports=log.imports,
        archive=archive_metadata(archive, program),
        warnings=tuple(archive.warnings),
    )


@dataclass(frozen=True, slots=True)
class _Payload:
    path: tuple[str, ...]
    record: str
    fields: dict[str, object]

    @property
    def is_pickled(self) -> bool:
        return self.fields.get("use_pickle") is True

    @property
    def role(self) -> Role:
        return Role.PARAMETER if self.fields.get("is_param") is True else Role.BUFFER


def _pickled_entries(archive: ZipArchive, item: _Payload, log: ImportLog) -> Iterator[Entry]:
    """Sparse tensors, tensor subclasses and objects are stored as separate torch files."""
    part = archive.open(archive.require(item.record))
    if part.head(4) != ZIP_MARK:
        return
    index = open_torch_zip(ZipArchive(part), silent)
    log.merge(index.imports)
    for entry in index.entries:
        suffix = "" if entry.name == "tensor" else f".{entry.name}"
        yield replace(entry, name=".".join(item.path) + suffix, role=item.role)


def _read_json(archive: ZipArchive, name: str) -> dict[str, object]:
    record = archive.find(name)
    if record is None:
        return {}
    if record.size > JSON_BYTES:
        raise FormatError(f"{archive.source.label}: {printable(name)} is too large")
    return parse_json(archive.read(record), f"{archive.source.label}:{printable(name)}")


def _found(item: _Payload) -> Found:
    name = printable(item.path[-1])
    meta = item.fields.get("tensor_meta")
    meta = meta if isinstance(meta, dict) else {}
    code = meta.get("dtype")
    dtype = EXPORT_SCALARS.get(code) if type(code) is int else None
    if dtype is None:
        raise FormatError(f"the tensor {name} has an unknown type")

    def number(value: object) -> int:
        return whole(value.get("as_int") if isinstance(value, dict) else value)

    listed = (meta.get("sizes"), meta.get("strides"))
    shape, stride = (sizes([number(one) for one in item] if isinstance(item, list) else item) for item in listed)
    if len(shape) != len(stride):
        raise FormatError(f"the shape and the stride of {name} differ in length")
    offset = number(meta.get("storage_offset", 0))
    return Found(item.path, Tensor(Storage(item.record, dtype, 0), dtype, shape, stride, offset), item.role)
