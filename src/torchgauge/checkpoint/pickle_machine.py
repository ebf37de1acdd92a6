"""Runs the opcodes of a pickle on inert stand-ins: nothing is imported and nothing is called.

The opcodes are in `pickle_literals`, `pickle_containers` and `pickle_objects`, each registered beside its function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchgauge.checkpoint import limits
from torchgauge.checkpoint.byte_source import ByteSource
from torchgauge.checkpoint.import_log import ImportLog
from torchgauge.checkpoint.pickle_stream import PickleStream
from torchgauge.errors import FormatError

Opcode = Callable[["PickleMachine"], None]
OPCODES: dict[int, tuple[Opcode, int]] = {}
_REFERENCE_BYTES = 16
_STOP = ord(".")


def opcode(code: bytes, *, cost: int = _REFERENCE_BYTES) -> Callable[[Opcode], Opcode]:
    """Register the meaning of `code`; `cost` is about how many bytes of memory it takes."""

    def register(function: Opcode) -> Opcode:
        if code[0] in OPCODES:
            raise ValueError(f"opcode {code!r} is registered twice")
        OPCODES[code[0]] = (function, cost)
        return function

    return register


def no_persistent_ids(identifier: Any) -> Any:
    raise FormatError("the pickle refers to storages outside of it, and there are none")


class PickleMachine:
    """One pickle of `source`, from `start`; after `run`, `position` is the byte after it."""

    def __init__(
        self,
        source: ByteSource,
        log: ImportLog,
        *,
        start: int = 0,
        persistent: Callable[[Any], Any] = no_persistent_ids,
        depth: int = 0,
    ) -> None:
        self.source = source
        self.stream = PickleStream(source, start)
        self.log = log
        self.persistent = persistent
        self.depth = depth
        self.nested = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.memory_left = limits.PICKLE_MEMORY_BYTES

    @property
    def position(self) -> int:
        return self.stream.position

    def run(self) -> Any:
        """The object the pickle describes; `FormatError` where it is broken."""
        try:
            self._interpret()
            return self.pop()
        except (ValueError, OverflowError, UnicodeError) as error:
            # What a literal's own text can raise: digits that are none, numbers too long, broken UTF-8.
            raise FormatError(f"{self._here()}: {error}") from error

    def _interpret(self) -> None:
        stream, table = self.stream, OPCODES
        left = limits.PICKLE_OPCODES
        while (code := stream.byte()) != _STOP:
            entry = table.get(code)
            if entry is None:
                raise self.broken(f"0x{code:02x} is no pickle opcode")
            self.memory_left -= entry[1]
            left -= 1
            if self.memory_left < 0 or left < 0:
                raise self.broken("it is too large to be interpreted safely")
            entry[0](self)

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        """The top of the stack, which may not reach below the last mark."""
        self.top()
        return self.stack.pop()

    def top(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise self.broken("its stack is empty where a value is needed")
        return self.stack[-1]

    def pop_to_mark(self) -> list[Any]:
        if not self.marks:
            raise self.broken("a mark is missing")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def charge(self, size: int) -> None:
        self.memory_left -= size
        if self.memory_left < 0:
            raise self.broken("it is too large to be interpreted safely")

    def broken(self, reason: str) -> FormatError:
        return FormatError(f"{self._here()}: {reason}")

    def _here(self) -> str:
        return f"{self.source.label}: the pickle is broken at byte {self.stream.position}"
