"""Runs the opcodes of a pickle on inert stand-ins: nothing is imported and nothing is called."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torchgauge.checkpoint import limits
from torchgauge.checkpoint.byte_source import ByteSource
from torchgauge.checkpoint.pickle.imports import ImportLog
from torchgauge.checkpoint.pickle.tensor_opcodes import take_tensor
from torchgauge.checkpoint.pickle.values import any_storage
from torchgauge.errors import FormatError

_BUFFER_BYTES = 2**18


class PickleStream:
    """Reads a pickle through a buffer, whose next byte is at `at`, never beyond the end of its source."""

    def __init__(self, source: ByteSource, start: int = 0) -> None:
        self.source = source
        self._base = start
        self.buffer = b""
        self.at = 0

    @property
    def position(self) -> int:
        return self._base + self.at

    def byte(self) -> int:
        at = self.at
        if at >= len(self.buffer):
            self._fill(1)
            at = 0
        self.at = at + 1
        return self.buffer[at]

    def read(self, count: int) -> bytes:
        at = self.at
        if at + count > len(self.buffer):
            self._fill(count)
            at = 0
        self.at = at + count
        return self.buffer[at : at + count]

    def unsigned(self, width: int) -> int:
        return int.from_bytes(self.read(width), "little")

    def skip(self, count: int) -> None:
        self._require(count)
        self._base, self.buffer, self.at = self.position + count, b"", 0

    def line(self) -> bytes:
        """The bytes up to the next newline, which is skipped."""
        end = self.buffer.find(b"\n", self.at)
        if end < 0:
            self._fill(min(limits.PICKLE_LINE_BYTES, self.source.size - self.position))
            end = self.buffer.find(b"\n")
        if end < 0:
            raise FormatError(f"{self.source.label}: a line in the pickle at byte {self.position} does not end")
        data = self.buffer[self.at : end]
        self.at = end + 1
        return data

    def _require(self, count: int) -> None:
        if self.position + count > self.source.size:
            raise FormatError(f"{self.source.label}: the pickle is cut off at byte {self.source.size}")

    def _fill(self, count: int) -> None:
        """Refill the buffer from here with at least `count` bytes."""
        self._require(count)
        start = self.position
        wanted = min(max(count, _BUFFER_BYTES), self.source.size - start)
        self.buffer = self.source.read(start, wanted)
        self._base, self.at = start, 0


Opcode = Callable[["PickleMachine"], None]
OPCODES: dict[int, tuple[Opcode, int]] = {}
_REFERENCE_BYTES = 16
# Opcodes between two checks of the limits: checking at each would cost more than most opcodes.
_BLOCK = 1024
_STOP = ord(".")
_RECALLS = b"hj"


def opcode(code: bytes, *, cost: int = _REFERENCE_BYTES) -> Callable[[Opcode], Opcode]:
    """Register an opcode; `cost` is roughly the memory it takes, in bytes."""

    def register(function: Opcode) -> Opcode:
        if code[0] in OPCODES:
            raise ValueError(f"opcode {code!r} is already registered")
        OPCODES[code[0]] = (function, cost)
        return function

    return register


def no_persistent_ids(identifier: Any) -> Any:
    raise FormatError("the pickle refers to external storages, but there are none")


class PickleMachine:
    """Runs one pickle of `source` from `start`; afterwards `position` is the byte after it."""

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
        # Inflated data does not earn a higher limit.
        size = source.size if source.is_mapped else 0
        self.memory_left = max(limits.PICKLE_MEMORY_BYTES, limits.PICKLE_MEMORY_PER_BYTE * size)
        self.opcodes_left = max(limits.PICKLE_OPCODES, size)

    @property
    def position(self) -> int:
        return self.stream.position

    def run(self) -> Any:
        """The object that the pickle describes; raises `FormatError` if the pickle is invalid."""
        try:
            self._interpret()
            self.memo.clear()
            return self.pop()
        except (ValueError, OverflowError, UnicodeError) as error:
            # Errors of malformed literals: invalid digits, numbers too long, invalid UTF-8.
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
                raise self.broken(f"0x{code:02x} is not a pickle opcode")
            function, price = table[code]
            cost += price
            function(self)
        self.charge(cost)
        return False

    def remember(self, index: int, value: Any) -> None:
        """Writers count up from 0, so the memo is a list; with other indices it becomes a dict."""
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
        """Pop the top of the stack, but not below the last mark."""
        if len(self.stack) <= self.floor:
            raise self._no_value()
        return self.stack.pop()

    def top(self) -> Any:
        if len(self.stack) <= self.floor:
            raise self._no_value()
        return self.stack[-1]

    def _no_value(self) -> FormatError:
        return self.broken("the stack is empty but a value is needed")

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
        """Remove the last mark and return the position of the values above it."""
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
        return FormatError(f"{self.source.label}: the pickle creates more values than are safe to hold")

    def broken(self, reason: str) -> FormatError:
        return FormatError(f"{self._here()}: {reason}")

    def _here(self) -> str:
        return f"{self.source.label}: the pickle is broken at byte {self.stream.position}"


# Pickles that may follow one in a file.
_MAX_FOLLOWERS = 16
# How pickles begin from protocol 2 on; a wrong protocol number changes nothing.
PROTOCOL_MARKS = frozenset(b"\x80" + bytes([version]) for version in range(6))

# An import in older protocols, as lines of text.
GLOBAL_LINE = re.compile(rb"[ci][A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n")


def scan_followers(source: ByteSource, log: ImportLog, at: int) -> list[str]:
    """Log the imports of further pickles after the first one, which some readers load too."""
    for _ in range(_MAX_FOLLOWERS):
        if at >= source.size:
            return []
        machine = PickleMachine(source, log, start=at, persistent=any_storage)
        try:
            machine.run()
        except FormatError as error:
            return [f"after its pickle: {error}"]
        at = machine.position
    return []
