"""The messages that a reader may send: their fields, sizes and numbers. It is untrusted: everything else is refused
before it is used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchgauge.units import format_bytes

Check = Callable[[Any], bool]

# Longer messages are split (`PIECE_BYTES`) or cut (`TEXT_CHARACTERS`) by whoever sends them.
MAX_HEADER_BYTES = 1 << 19
PIECE_BYTES = 1 << 20
TEXT_CHARACTERS = 1 << 14
# What errors know in addition to their message (`errors`).
ERROR_ATTRIBUTES = {"module", "package"}
# A line of a journal or a row of figures: histograms take most of it.
_LINE_BYTES = 1 << 22
# Output files, text and rows of one reader. The report of a million tensors takes 2 GB as JSON.
MAX_OUTPUT_BYTES = 8 << 30


class BadMessageError(Exception):
    """The other side violates the protocol."""


class TooLongError(BadMessageError):
    """A result is longer than the memory that the reader may use."""


class TooMuchOutputError(BadMessageError):
    """All messages together are longer than any output."""


@dataclass(frozen=True, slots=True)
class Form:
    """`fields` are all required, others refused. `payload_bytes`: of the longest payload; None: what the result may
    take. `most`: messages of this kind by one reader; None: any number."""

    fields: Mapping[str, Check] = field(default_factory=dict)
    payload_bytes: int | None = 0
    most: int | None = None


def _text(value: Any) -> bool:
    # A character outside the basic plane takes two.
    return type(value) is str and len(value) <= 2 * TEXT_CHARACTERS


def _path(value: Any) -> bool:
    return _text(value) and "\0" not in value


def _device(value: Any) -> bool:
    return type(value) is str and re.fullmatch(r"[a-z]{1,20}(:[0-9]{1,3})?", value, re.ASCII) is not None


def _one_of(*choices: str) -> Check:
    return lambda value: type(value) is str and value in choices


def _list_of(check: Check, most: int) -> Check:
    return lambda value: type(value) is list and len(value) <= most and all(map(check, value))


def _attributes(value: Any) -> bool:
    return type(value) is dict and value.keys() <= ERROR_ATTRIBUTES and all(map(_text, value.values()))


def _type_names(value: Any, levels: int = 3) -> bool:
    """The types of a kernel's arguments; those of a tuple are a list."""
    return type(value) is list and len(value) <= 64 and all(
        _text(kind) or (levels > 0 and _type_names(kind, levels - 1)) for kind in value
    )  # fmt: skip


def _kernel(value: Any) -> bool:
    return type(value) is list and len(value) == 2 and _text(value[0]) and _type_names(value[1])


FORMS: dict[str, Form] = {
    "ready": Form(most=1),
    # How its work ended.
    "result": Form(payload_bytes=None),
    "error": Form({"type": _text, "message": _text, "attributes": _attributes}),
    "crash": Form({"type": _text, "message": _text, "traceback": _text}),
    "package": Form({"name": _text}),
    "threads": Form(),
    "exceeded": Form(),
    "interrupted": Form(),
    # What the parent shows and writes.
    "text": Form({"stream": _one_of("stdout", "stderr")}, PIECE_BYTES),
    "warning": Form({"category": _text, "message": _text}, most=10_000),
    "draft.open": Form({"path": _path}, most=1000),
    "draft.write": Form({"path": _path}, PIECE_BYTES),
    "draft.commit": Form({"path": _path}, most=1000),
    "draft.discard": Form({"path": _path}, most=1000),
    "append": Form({"path": _path}, _LINE_BYTES),
    "remove": Form({"path": _path}, most=1000),
    "row": Form(payload_bytes=_LINE_BYTES),
    # What it may not do itself. There are some 40 kernels, each used with a few types.
    "compile": Form({"kernel": _text, "types": _type_names}, most=200),
    "accelerator": Form({"device": _device}, most=100),
    "loaded": Form({"packages": _list_of(_text, 100), "kernels": _list_of(_kernel, 500)}, most=100),
}


class Admission:
    """Refuses the messages of one reader that have no known form or are too many."""

    def __init__(self, longest_result: int) -> None:
        self._longest_result = longest_result
        self._counts: Counter[str] = Counter()
        self._output_bytes = 0

    def admit(self, kind: str, facts: Mapping[str, Any], payload_bytes: int) -> None:
        """Called with the header, before the payload is received."""
        form = FORMS.get(kind)
        if form is None:
            raise BadMessageError(f"a request for {kind[:40]!r}")
        if facts.keys() != form.fields.keys() or not all(check(facts[name]) for name, check in form.fields.items()):
            raise BadMessageError(f"'{kind}' with wrong fields")
        self._counts[kind] += 1
        if form.most is not None and self._counts[kind] > form.most:
            raise BadMessageError(f"'{kind}' more than {form.most:,} times")
        size = format_bytes(payload_bytes)
        if form.payload_bytes is None:
            if payload_bytes > self._longest_result:
                raise TooLongError(f"a result of {size}")
            return
        if payload_bytes > form.payload_bytes:
            raise BadMessageError(f"'{kind}' of {size}")
        self._output_bytes += payload_bytes
        if self._output_bytes > MAX_OUTPUT_BYTES:
            raise TooMuchOutputError(f"more than {format_bytes(MAX_OUTPUT_BYTES)}")
