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
from torchgauge.checkpoint.tensor_opcodes import take_tensor
from torchgauge.errors import FormatError

Opcode = Callable[["PickleMachine"], None]
OPCODES: dict[int, tuple[Opcode, int]] = {}
_REFERENCE_BYTES = 16
# Opcodes between two looks at the limits: looking at each would cost more than most of them do.
_BLOCK = 1024
_STOP = ord(".")
_RECALLS = b"hj"


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
        self.floor = 0  # the height of the stack at the last mark
        self.marks: list[int] = []  # the floors below it
        self.memo: list[Any] = []
        self.far_memo: dict[int, Any] = {}  # numbers beyond the end of the list
        self.known_calls: dict[tuple[bytes, ...], Any] = {}  # what `tensor_opcodes` found in the memo
        # What was inflated is not as large as it looks: it gets no more than the least.
        size = source.size if source.is_mapped else 0
        self.memory_left = max(limits.PICKLE_MEMORY_BYTES, limits.PICKLE_MEMORY_PER_BYTE * size)
        self.opcodes_left = max(limits.PICKLE_OPCODES, size)

    @property
    def position(self) -> int:
        return self.stream.position

    def run(self) -> Any:
        """The object the pickle describes; `FormatError` where it is broken."""
        try:
            self._interpret()
            self.memo.clear()
            return self.pop()
        except (ValueError, OverflowError, UnicodeError) as error:
            # What a literal's own text can raise: digits that are none, numbers too long, broken UTF-8.
            raise FormatError(f"{self._here()}: {error}") from error

    def _interpret(self) -> None:
        for _ in range(self.opcodes_left // _BLOCK):
            if self._interpret_block():
                return
        raise self._too_large()

    def _interpret_block(self) -> bool:
        """Run the next opcodes; True at the end of the pickle."""
        stream, table, cost = self.stream, OPCODES, 0
        for _ in range(_BLOCK):
            at, buffer = stream.at, stream.buffer
            if at < len(buffer):  # as `stream.byte` does, without a call for each opcode
                code = buffer[at]
                if code in _RECALLS and (end := take_tensor(self, at)):
                    stream.at = end
                    continue
                stream.at = at + 1
            else:
                code = stream.byte()
            if code == _STOP:
                return True
            if code not in table:
                raise self.broken(f"0x{code:02x} is no pickle opcode")
            function, price = table[code]
            cost += price
            function(self)
        self.charge(cost)
        return False

    def remember(self, index: int, value: Any) -> None:
        """Writers count up from 0, so the memo is a list; a pickle that skips numbers pays with a dict."""
        if index == len(self.memo):
            self.memo.append(value)
            self.far_memo.pop(index, None)
        elif index < len(self.memo):
            self.memo[index] = value
            self.known_calls.clear()
        else:
            self.far_memo[index] = value

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        """The top of the stack, which may not reach below the last mark."""
        if len(self.stack) <= self.floor:
            raise self._no_value()
        return self.stack.pop()

    def top(self) -> Any:
        if len(self.stack) <= self.floor:
            raise self._no_value()
        return self.stack[-1]

    def _no_value(self) -> FormatError:
        return self.broken("its stack is empty where a value is needed")

    def pop_many(self, count: int) -> tuple[Any, ...]:
        if len(self.stack) - count < self.floor:
            raise self._no_value()
        values = tuple(self.stack[-count:])
        del self.stack[-count:]
        return values

    def set_mark(self) -> None:
        self.marks.append(self.floor)
        self.floor = len(self.stack)

    def drop_mark(self) -> int:
        """Where the values above the last mark begin."""
        if not self.marks:
            raise self.broken("a mark is missing")
        start, self.floor = self.floor, self.marks.pop()
        return start

    def pop_to_mark(self) -> list[Any]:
        start = self.drop_mark()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def charge(self, size: int) -> None:
        self.memory_left -= size
        if self.memory_left < 0:
            raise self._too_large()

    def _too_large(self) -> FormatError:
        return FormatError(f"{self.source.label}: the pickle makes more values than it is safe to hold")

    def broken(self, reason: str) -> FormatError:
        return FormatError(f"{self._here()}: {reason}")

    def _here(self) -> str:
        return f"{self.source.label}: the pickle is broken at byte {self.stream.position}"
