"""From a `.pt2` archive: its graph is JSON and its weights are raw bytes, so nothing needs to be unpickled.

Torch's own reader would unpickle sample inputs and evaluate the text of symbolic sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchgauge.checkpoint.byte_source import opened
from torchgauge.checkpoint.file_text import parse_json
from torchgauge.checkpoint.zip_archive import ZipArchive
from torchgauge.errors import FormatError
from torchgauge.source.allowed_ops import mark_foreign
from torchgauge.source.archive_records import ArchiveRecords
from torchgauge.source.exported.document import read_program
from torchgauge.source.exported.model import ExportedModel
from torchgauge.source.exported.stored_tensors import StoredTensors, Values

# Of a JSON record: as long as the file where that is longer, since torch stores them as they are. Unpacked from a small
# file, more than this would take a gigabyte of memory as values.
DOCUMENT_BYTES = 32 << 20
_OLD_DOCUMENT = "serialized_exported_program.json"


def load_exported(path: str | Path, *, values: Values | None = None) -> ExportedModel:
    """The model of an archive. Raises `FormatError` where it cannot be read or calls what is not harmless.

    `values` gives the tensors of the model by name; without, they have none.
    """
    name = str(path)
    document, tensors = _parts(name, values)
    try:
        exported = ExportedModel(read_program(document, tensors, f"'{name}'"))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, RecursionError) as error:
        raise FormatError(f"'{name}' is not a complete exported program: {type(error).__name__} at {error}") from error
    mark_foreign(exported)
    return exported


_KINDS = ("weights", "constants")


def _parts(name: str, values: Values | None) -> tuple[dict[str, Any], StoredTensors]:
    try:
        records = ArchiveRecords(name)
    except FormatError:
        document = _old_document(name)
        if document is None:
            raise
        return document, StoredTensors(None, {}, {}, values=values)
    models = [record for record in records.names if record.startswith("models/") and record.endswith(".json")]
    if len(models) != 1:
        raise FormatError(f"'{name}' holds {len(models)} exported programs; one is needed")
    record = models[0]
    model = record.removeprefix("models/").removesuffix(".json")
    configs = (_config(records, f"data/{kind}/{model}_{kind}_config.json", name) for kind in _KINDS)
    return _json(records, record, name), StoredTensors(records, *configs, values=values)


def _old_document(name: str) -> dict[str, Any] | None:
    """Before PyTorch 2.8 an archive had no folder, which torch's own reader asks for; weights were pickled."""
    with opened(name) as source:
        archive = ZipArchive(source)
        record = archive.find(_OLD_DOCUMENT)
        if record is None:
            return None
        return parse_json(archive.read(record), f"'{name}': {_OLD_DOCUMENT}")


def _config(records: ArchiveRecords, record: str, name: str) -> dict[str, Any]:
    found = _json(records, record, name).get("config") if record in records.names else {}
    return found if isinstance(found, dict) else {}


def _json(records: ArchiveRecords, record: str, name: str) -> dict[str, Any]:
    limit = max(DOCUMENT_BYTES, Path(name).stat().st_size)
    return parse_json(records.read(record, limit), f"'{name}': {record}")
