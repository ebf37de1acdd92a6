"""Run the opcodes of a pickle on inert stand-ins: nothing is imported and nothing is called.

The opcodes of one tensor, as `torch.save` writes them, have a fast path (`take_tensor`): a million tensors are 30
million opcodes. Anything that does not match exactly is left to the machine.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache

from torchgauge.checkpoint import limits
from torchgauge.checkpoint.byte_source import ByteSource
from torchgauge.checkpoint.pickle.imports import ImportLog
from torchgauge.checkpoint.pickle.values import Global, Storage, Tensor, any_storage
from torchgauge.errors import FormatError
from torchgauge.registry import Registry

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


Opcode = Callable[["PickleMachine"], object]
SizedOpcode = Callable[["PickleMachine", int], object]
OPCODES: Registry[int, tuple[Opcode, int]] = Registry("opcode")
_REFERENCE_BYTES = 16
# Opcodes between two checks of the limits: checking at each would cost more than most opcodes.
_OPCODES_PER_CHECK = 1024
_STOP = ord(".")
_RECALLS = b"hj"


def opcode(*codes: bytes, cost: int = _REFERENCE_BYTES) -> Callable[[Opcode], Opcode]:
    """Register opcodes; `cost` is roughly the memory that each takes, in bytes."""
    return OPCODES.register_as(lambda function: (function, cost), *(code[0] for code in codes))


def sized_opcode(widths: Mapping[bytes, int], *, cost: int = _REFERENCE_BYTES) -> Callable[[SizedOpcode], SizedOpcode]:
    """Register opcodes that differ only in the width (bytes) of the unsigned number that follows them."""

    def register(function: SizedOpcode) -> SizedOpcode:
        def read_first(width: int) -> Opcode:
            if width == 1:
                return lambda machine: function(machine, machine.stream.byte())
            return lambda machine: function(machine, machine.stream.unsigned(width))

        for code, width in widths.items():
            opcode(code, cost=cost)(read_first(width))
        return function

    return register


def no_persistent_ids(identifier: object) -> object:
    raise FormatError("the pickle refers to external storages, but there are none")


class PickleMachine:
    """Runs one pickle of `source` from `start`; afterwards `position` is the byte after it."""

    def __init__(
        self,
        source: ByteSource,
        log: ImportLog,
        *,
        start: int = 0,
        persistent: Callable[[object], object] = no_persistent_ids,
        depth: int = 0,
    ) -> None:
        self.source = source
        self.stream = PickleStream(source, start)
        self.log = log
        self.persistent = persistent
        self.depth = depth
        self.nested = 0
        self.stack: list[object] = []
        self.floor = 0  # the height of the stack at the last mark
        self.marks: list[int] = []  # the floors below it
        self.memo: list[object] = []
        self.far_memo: dict[int, object] = {}  # numbers beyond the end of the list
        # Memo values found by the fast path for tensors.
        self.known_calls: dict[tuple[bytes, ...], tuple[str, Global, str]] = {}
        # Inflated data does not earn a higher limit.
        size = source.size if source.is_mapped else 0
        self.memory_left = max(limits.PICKLE_MEMORY_BYTES, limits.PICKLE_MEMORY_PER_BYTE * size)
        self.opcodes_left = max(limits.PICKLE_OPCODES, size)

    @property
    def position(self) -> int:
        return self.stream.position

    def run(self) -> object:
        """The object that the pickle describes; raises `FormatError` if the pickle is invalid."""
        try:
            for _ in range(self.opcodes_left // _OPCODES_PER_CHECK):
                if self._interpret_block():
                    self.memo.clear()
                    return self.pop()
        except (ValueError, OverflowError, UnicodeError) as error:
            # Errors of malformed literals: invalid digits, numbers too long, invalid UTF-8.
            raise self.broken(str(error)) from error
        raise self._too_large()

    def _interpret_block(self) -> bool:
        """Run the next opcodes; True at the end of the pickle."""
        stream, table, cost = self.stream, OPCODES, 0
        for _ in range(_OPCODES_PER_CHECK):
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

    def remember(self, index: int, value: object) -> None:
        """Writers count up from 0, so the memo is a list; with other indices it becomes a dict."""
        if index == len(self.memo):
            self.memo.append(value)
            self.far_memo.pop(index, None)
        elif index < len(self.memo):
            self.memo[index] = value
            self.known_calls.clear()
        else:
            self.far_memo[index] = value

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self) -> object:
        """Pop the top of the stack, but not below the last mark."""
        if len(self.stack) <= self.floor:
            raise self._no_value()
        return self.stack.pop()

    def top(self) -> object:
        if len(self.stack) <= self.floor:
            raise self._no_value()
        return self.stack[-1]

    def _no_value(self) -> FormatError:
        return self.broken("the stack is empty but a value is needed")

    def pop_many(self, count: int) -> tuple[object, ...]:
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

    def pop_to_mark(self) -> list[object]:
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
        return FormatError(f"{self.source.label}: the pickle is broken at byte {self.stream.position}: {reason}")


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


# Remember, recall, an integer; a tuple of integers with its number in the memo, or the empty one.
_PUT, _GET, _INT = rb"(q.|r.{4})", rb"(h.|j.{4})", rb"(?:K.|M..|J.{3}[\x00-\x7f])"
_INTS = rb"(?:(I\x85|I{2}\x86|I{3}\x87|\(I*t)".replace(b"I", _INT) + _PUT + rb"|\))"
_TENSOR = re.compile(
    # torch._utils._rebuild_tensor_v2(("storage", torch.FloatStorage, "0", "cpu", numel),
    _GET + rb"\(\(" + _GET + _GET + rb"X(.)\0\0\0(\d{1,9})" + _PUT + _GET + rb"(" + _INT + rb")t" + _PUT + rb"Q"
    # offset, shape, stride, requires_grad, OrderedDict())
    + rb"(" + _INT + rb")" + _INTS + _INTS + rb"([\x88\x89])" + _GET + rb"\)R" + _PUT + rb"t" + _PUT + rb"R" + _PUT,
    re.DOTALL,
)  # fmt: skip
_LONGEST_TENSOR_BYTES = 256  # bytes: shapes of more dimensions than any tensor has are left to the machine
_TENSOR_VALUE_BYTES = 1300  # bytes of the values that a tensor is made of
_WIDTHS = {ord("K"): 1, ord("M"): 2, ord("J"): 4}


def take_tensor(machine: PickleMachine, at: int) -> int:
    """Run the opcodes of a tensor at `at` of the buffer; returns where they end, or 0 if they do not match."""
    found = _TENSOR.match(machine.stream.buffer, at, at + _LONGEST_TENSOR_BYTES)
    if found is None or machine.far_memo:
        return 0
    (rebuild, mark, kind, length, key, put_key, place, numel, put_id, offset, shape, put_shape, stride, put_stride,
     grad, hooks, put_hooks, put_args, put_tensor) = found.groups()  # fmt: skip
    memo, calls = machine.memo, (rebuild, mark, kind, place, hooks)
    known = machine.known_calls.get(calls) or _recall(machine, calls)
    sizes, steps = _integers(shape), _integers(stride)
    if known is None or length[0] != len(key) or len(sizes) != len(steps):
        return 0
    word, storage_kind, location = known
    puts = (put_key, put_id, put_shape or b"", put_stride or b"", put_hooks, put_args, put_tensor)
    if b"".join(puts) != _puts(len(memo), 7 if put_shape else 5):
        return 0
    text, first, requires_grad = key.decode(), _integers(offset)[0], grad == b"\x88"
    attached: dict[str, object] = {}
    identifier = (word, storage_kind, text, location, _integers(numel)[0])
    storage = machine.persistent(identifier)
    if not isinstance(storage, Storage):
        return 0
    tensor = Tensor(storage, storage.dtype or "uint8", sizes, steps, first)
    memo += (text, identifier)
    if put_shape is not None:
        memo += (sizes, steps)
    memo += (attached, (storage, first, sizes, steps, requires_grad, attached), tensor)
    machine.stack.append(tensor)
    machine.charge(_TENSOR_VALUE_BYTES)
    return found.end()


def _recall(machine: PickleMachine, gets: tuple[bytes, ...]) -> tuple[str, Global, str] | None:
    """The memo values of these indices; None unless they are the parts of a tensor. Cached until the memo changes."""
    # The operand of an opcode.
    numbers = [get[1] if len(get) == 2 else int.from_bytes(get[1:], "little") for get in gets]
    if max(numbers) >= len(machine.memo):
        return None
    function, word, kind, location, hooks = (machine.memo[number] for number in numbers)
    if not (isinstance(function, Global) and isinstance(kind, Global) and isinstance(hooks, Global)):
        return None
    if (function.path, hooks.path) != ("torch._utils._rebuild_tensor_v2", "collections.OrderedDict"):
        return None
    if word != "storage" or not isinstance(location, str):
        return None
    for called in (function, hooks):
        machine.log.note(called.module, called.name, machine.source.label, called=True)
    known = machine.known_calls[gets] = (word, kind, location)
    return known


def _puts(first: int, count: int) -> bytes:
    """The opcodes that store `count` values from this memo index; from 256, indices have four bytes."""
    if first < 256:
        numbers = range(first, first + count)
        return b"".join(b"q%c" % n if n < 256 else b"r" + n.to_bytes(4, "little") for n in numbers)
    r, n = 0x72, first
    wide = _SEVEN.pack(r, n, r, n + 1, r, n + 2, r, n + 3, r, n + 4, r, n + 5, r, n + 6)
    return wide[: 5 * count]


_SEVEN = struct.Struct("<" + "BI" * 7)


@lru_cache(maxsize=4096)
def _integers(operations: bytes | None) -> tuple[int, ...]:
    """The integers among the opcodes; the other opcodes build a tuple of them."""
    found, at = [], 0
    while operations and at < len(operations):
        width = _WIDTHS.get(operations[at], 0)
        if width:
            found.append(int.from_bytes(operations[at + 1 : at + 1 + width], "little"))
        at += 1 + width
    return tuple(found)
