"""Opcodes that push a value written in the pickle itself."""

from __future__ import annotations

import re
import struct

from torchgauge.checkpoint import limits
from torchgauge.checkpoint.pickle_machine import PickleMachine, opcode
from torchgauge.checkpoint.pickle_values import Blob, Data

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[0-7]{1,3}|[\\'\"abfnrtv])")
_ESCAPED = dict(zip((b"\\", b"'", b'"', b"a", b"b", b"f", b"n", b"r", b"t", b"v"),
                    (b"\\", b"'", b'"', b"\a", b"\b", b"\f", b"\n", b"\r", b"\t", b"\v"), strict=True))  # fmt: skip


@opcode(b"\x80")
def proto(machine: PickleMachine) -> None:
    version = machine.stream.byte()
    if version > 5:
        raise machine.broken(f"protocol {version} is not known")


@opcode(b"\x95")
def frame(machine: PickleMachine) -> None:
    machine.stream.read(8)  # frames only help buffering


@opcode(b"N")
def none(machine: PickleMachine) -> None:
    machine.push(None)


@opcode(b"\x88")
def true(machine: PickleMachine) -> None:
    machine.push(True)


@opcode(b"\x89")
def false(machine: PickleMachine) -> None:
    machine.push(False)


@opcode(b"I", cost=48)
def int_line(machine: PickleMachine) -> None:
    text = machine.stream.line()
    machine.push(text == b"01" if text in (b"00", b"01") else int(text, 0))


@opcode(b"L", cost=48)
def long_line(machine: PickleMachine) -> None:
    machine.push(int(machine.stream.line().removesuffix(b"L"), 0))


@opcode(b"F", cost=48)
def float_line(machine: PickleMachine) -> None:
    machine.push(float(machine.stream.line()))


@opcode(b"J", cost=48)
def binint(machine: PickleMachine) -> None:
    machine.push(int.from_bytes(machine.stream.read(4), "little", signed=True))


@opcode(b"K")
def binint1(machine: PickleMachine) -> None:
    machine.stack.append(machine.stream.byte())


@opcode(b"M", cost=48)
def binint2(machine: PickleMachine) -> None:
    machine.push(machine.stream.unsigned(2))


@opcode(b"G", cost=48)
def binfloat(machine: PickleMachine) -> None:
    machine.push(struct.unpack(">d", machine.stream.read(8))[0])


@opcode(b"\x8a", cost=48)
def long1(machine: PickleMachine) -> None:
    _push_long(machine, machine.stream.byte())


@opcode(b"\x8b", cost=48)
def long4(machine: PickleMachine) -> None:
    _push_long(machine, int.from_bytes(machine.stream.read(4), "little", signed=True))


def _push_long(machine: PickleMachine, size: int) -> None:
    if not 0 <= size <= limits.PICKLE_LINE_BYTES:
        raise machine.broken(f"an integer of {size} bytes")
    machine.charge(size)
    machine.push(int.from_bytes(machine.stream.read(size), "little", signed=True))


@opcode(b"V", cost=80)
def unicode_line(machine: PickleMachine) -> None:
    line = machine.stream.line()
    machine.charge(4 * len(line))
    machine.push(line.decode("raw-unicode-escape"))


@opcode(b"X", cost=80)
def binunicode(machine: PickleMachine) -> None:
    _push_text(machine, machine.stream.unsigned(4))


@opcode(b"\x8c", cost=80)
def short_binunicode(machine: PickleMachine) -> None:
    _push_text(machine, machine.stream.byte())


@opcode(b"\x8d", cost=80)
def binunicode8(machine: PickleMachine) -> None:
    _push_text(machine, machine.stream.unsigned(8))


def _push_text(machine: PickleMachine, size: int) -> None:
    machine.charge(4 * size)
    machine.push(machine.stream.read(size).decode("utf-8", "surrogatepass"))


@opcode(b"S", cost=80)
def string_line(machine: PickleMachine) -> None:
    text = machine.stream.line()
    if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in (b'"', b"'"):
        raise machine.broken("a string without its quotes")
    machine.charge(len(text))
    _push_old_string(machine, _ESCAPE.sub(_unescape, text[1:-1]))


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match[1]
    if code[:1] == b"x":
        return bytes([int(code[1:], 16)])
    return bytes([int(code, 8) & 0xFF]) if code.isdigit() else _ESCAPED[code]


@opcode(b"T", cost=80)
def binstring(machine: PickleMachine) -> None:
    size = int.from_bytes(machine.stream.read(4), "little", signed=True)
    if size < 0:
        raise machine.broken(f"a string of {size} bytes")
    machine.charge(size)
    _push_old_string(machine, machine.stream.read(size))


@opcode(b"U", cost=80)
def short_binstring(machine: PickleMachine) -> None:
    _push_old_string(machine, machine.stream.read(machine.stream.byte()))


def _push_old_string(machine: PickleMachine, content: bytes) -> None:
    """Python 2's strings are text or bytes; only text can be a name or a key."""
    try:
        machine.push(content.decode("utf-8"))
    except UnicodeDecodeError:
        machine.push(Data(content, machine.position - len(content)))


@opcode(b"B", cost=120)
def binbytes(machine: PickleMachine) -> None:
    _push_bytes(machine, machine.stream.unsigned(4))


@opcode(b"C", cost=120)
def short_binbytes(machine: PickleMachine) -> None:
    _push_bytes(machine, machine.stream.byte())


@opcode(b"\x8e", cost=120)
def binbytes8(machine: PickleMachine) -> None:
    _push_bytes(machine, machine.stream.unsigned(8))


@opcode(b"\x96", cost=120)
def bytearray8(machine: PickleMachine) -> None:
    _push_bytes(machine, machine.stream.unsigned(8))


def _push_bytes(machine: PickleMachine, size: int) -> None:
    at = machine.position
    if size > limits.BLOB_BYTES:
        machine.stream.skip(size)
        machine.push(Blob(at, size))
        return
    machine.charge(size)
    machine.push(Data(machine.stream.read(size), at))
