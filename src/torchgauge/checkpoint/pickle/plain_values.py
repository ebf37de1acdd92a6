"""Values of a pickle as JSON: literals unchanged, objects as names and attributes. Nothing is instantiated."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

from torchgauge.checkpoint.byte_source import printable
from torchgauge.checkpoint.entries import read_small
from torchgauge.checkpoint.index import Entry
from torchgauge.checkpoint.pickle.values import Blob, Data, Global, Instance, Key, Storage, Tensor
from torchgauge.checkpoint.pickle.walk import attributes, is_module, key_text
from torchgauge.units import format_shape

# Settings of a training run are dozens of words and numbers; logs and vocabularies are not settings.
_MAX_VALUES, _MAX_ITEMS, _MAX_DEPTH = 2000, 256, 5
_MAX_INTEGER = 2**63
_FORMS = {
    "float64": "d", "float32": "f", "float16": "e", "int64": "q", "int32": "i", "int16": "h", "int8": "b",
    "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "bool": "?",
}  # fmt: skip
_NUMPY_FORMS = {"f8": "d", "f4": "f", "f2": "e", "i8": "q", "i4": "i", "i2": "h", "i1": "b", "u1": "B", "b1": "?"}


def plain_value(value: object) -> object:
    """The value as JSON, shortened with an ellipsis if it is too large."""
    return _Plain().of(value, 0)


class _Plain:
    def __init__(self) -> None:
        self.left = _MAX_VALUES

    def of(self, value: object, depth: int) -> object:
        self.left -= 1
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return printable(value)
        if isinstance(value, int):
            return value if abs(value) < _MAX_INTEGER else printable(hex(value))
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if self.left < 0 or depth > _MAX_DEPTH:
            return "…"
        if isinstance(value, dict):
            return self._mapping(value, depth)
        if isinstance(value, list | tuple):
            items = [self.of(item, depth + 1) for item in value[:_MAX_ITEMS]]
            return [*items, "…"] if len(value) > _MAX_ITEMS else items
        if isinstance(value, Instance):
            return self._instance(value, depth)
        if isinstance(value, Global):
            return printable(value.path)
        if isinstance(value, Tensor):
            return f"tensor {format_shape(value.shape) or 'scalar'} {value.dtype}"
        if isinstance(value, Data | Blob | bytes | Storage):
            return "bytes"
        return printable(key_text(value)) if isinstance(value, Key) else type(value).__name__

    def _mapping(self, value: Mapping[object, object], depth: int) -> dict[str, object]:
        shown = list(value.items())[:_MAX_ITEMS]
        return {printable(key_text(key)): self.of(item, depth + 1) for key, item in shown}

    def _instance(self, value: Instance, depth: int) -> object:
        """A namespace or dataclass as its attributes; an enum member or path as its value."""
        number = numpy_scalar(value)
        if number is not None:
            return number
        if value.type_path.startswith("pathlib.") and value.type_path.endswith("Path"):
            return printable("/".join(str(part) for part in value.args).replace("//", "/"))
        held = {**value.mapping, **attributes(value)}
        if "_content" in held and isinstance(held["_content"], dict | list):  # OmegaConf
            return self.of(held["_content"], depth)
        if "_val" in held:
            return self.of(held["_val"], depth)
        if held and not is_module(value):
            shown = {key: item for key, item in held.items() if not (isinstance(key, str) and key.startswith("__"))}
            return self._mapping(shown, depth)
        if value.items:
            return self.of(value.items, depth)
        if len(value.args) == 1 and not isinstance(value.args[0], Instance | Global):
            return self.of(value.args[0], depth + 1)
        return printable(value.type_path)


def number_of(value: object, entry: Entry | None = None) -> float | None:
    """The value of a number: a literal, a numpy scalar, or a tensor with one element whose entry is given."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return value if abs(value) < _MAX_INTEGER else None
    if isinstance(value, Instance):
        return numpy_scalar(value)
    if isinstance(value, Tensor) and entry is not None and entry.elements == 1:
        content = read_small(entry)
        if content is None:
            return None
        if entry.spec.dtype == "bfloat16" and len(content) == 2:
            content = content + b"\0\0" if entry.big_endian else b"\0\0" + content
        form = _FORMS.get("float32" if entry.spec.dtype == "bfloat16" else entry.spec.dtype)
        return None if form is None else _unpacked(form, content, is_big=entry.big_endian)
    return None


def numpy_scalar(value: Instance) -> float | None:
    """`numpy.float64(0.5)`: the name of its type and its bytes."""
    if not value.type_path.endswith("multiarray.scalar") or len(value.args) != 2:
        return None
    dtype, content = value.args
    name = dtype.args[0] if isinstance(dtype, Instance) and dtype.args else None
    form = _NUMPY_FORMS.get(str(name).lstrip("<|=>"))
    raw = content.content if isinstance(content, Data) else content
    if isinstance(raw, str):
        raw = raw.encode("latin-1", "ignore")
    return _unpacked(form, raw, is_big=False) if form is not None and isinstance(raw, bytes) else None


def _unpacked(form: str, content: bytes, *, is_big: bool) -> float | None:
    if len(content) != struct.calcsize(form):
        return None
    (number,) = struct.unpack((">" if is_big else "<") + form, content)
    return number if math.isfinite(number) else None
