"""The opcodes of a pickle: literals, stack and memo, containers, and objects that would import or call a name."""

from __future__ import annotations

import re
import struct
from contextlib import suppress

from torchgauge.checkpoint import limits
from torchgauge.checkpoint.byte_source import in_memory
from torchgauge.checkpoint.pickle.machine import Opcode, PickleMachine, opcode, sized_opcode
from torchgauge.checkpoint.pickle.rebuild import REBUILDERS, rebuild_array
from torchgauge.checkpoint.pickle.values import Blob, Data, Global, Instance, Tensor, any_storage, as_key
from torchgauge.errors import FormatError

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[0-7]{1,3}|[\\'\"abfnrtv])")
_ESCAPED = dict(zip((b"\\", b"'", b'"', b"a", b"b", b"f", b"n", b"r", b"t", b"v"),
                    (b"\\", b"'", b'"', b"\a", b"\b", b"\f", b"\n", b"\r", b"\t", b"\v"), strict=True))  # fmt: skip


_INSTANCE_BYTES = 400
_LONGEST_NESTED_BYTES = 2**26

# The opcodes of one expression, and the memory that each takes. Sets are kept as lists: their members are never hashed.
_BRIEF: dict[bytes, tuple[int, Opcode]] = {
    b"\x95": (16, lambda machine: machine.stream.read(8)),  # a frame, which only helps buffering
    b"N": (16, lambda machine: machine.stack.append(None)),
    b"\x88": (16, lambda machine: machine.stack.append(True)),
    b"\x89": (16, lambda machine: machine.stack.append(False)),
    b"L": (48, lambda machine: machine.stack.append(int(machine.stream.line().removesuffix(b"L"), 0))),
    b"F": (48, lambda machine: machine.stack.append(float(machine.stream.line()))),
    b"J": (48, lambda machine: machine.stack.append(int.from_bytes(machine.stream.read(4), "little", signed=True))),
    b"K": (16, lambda machine: machine.stack.append(machine.stream.byte())),
    b"M": (48, lambda machine: machine.stack.append(machine.stream.unsigned(2))),
    b"G": (48, lambda machine: machine.stack.append(struct.unpack(">d", machine.stream.read(8))[0])),
    b"U": (80, lambda machine: _push_old_string(machine, machine.stream.read(machine.stream.byte()))),
    b"(": (48, PickleMachine.set_mark),
    b"1": (16, PickleMachine.pop_to_mark),
    b"2": (16, lambda machine: machine.stack.append(machine.top())),
    b"\x94": (100, lambda machine: machine.remember(len(machine.memo) + len(machine.far_memo), machine.top())),
    b")": (16, lambda machine: machine.stack.append(())),
    b"\x85": (48, lambda machine: machine.stack.append(machine.pop_many(1))),
    b"\x86": (56, lambda machine: machine.stack.append(machine.pop_many(2))),
    b"\x87": (64, lambda machine: machine.stack.append(machine.pop_many(3))),
    b"t": (56, lambda machine: machine.stack.append(tuple(machine.pop_to_mark()))),
    b"]": (120, lambda machine: machine.stack.append([])),
    b"\x8f": (120, lambda machine: machine.stack.append([])),
    b"l": (120, lambda machine: machine.stack.append(machine.pop_to_mark())),
    b"\x91": (120, lambda machine: machine.stack.append(machine.pop_to_mark())),
    b"}": (240, lambda machine: machine.stack.append({})),
    b"P": (80, lambda machine: machine.stack.append(machine.persistent(machine.stream.line().decode("ascii")))),
    b"Q": (_INSTANCE_BYTES, lambda machine: machine.stack.append(machine.persistent(machine.pop()))),
    b"\x98": (16, PickleMachine.top),  # the buffer on top becomes read-only
}
for _code, (_cost, _function) in _BRIEF.items():
    opcode(_code, cost=_cost)(_function)


@opcode(b"\x80")
def proto(machine: PickleMachine) -> None:
    version = machine.stream.byte()
    if version > 5:
        raise machine.broken(f"protocol {version} is not known")


@opcode(b"I", cost=48)
def int_line(machine: PickleMachine) -> None:
    text = machine.stream.line()
    machine.push(text == b"01" if text in (b"00", b"01") else int(text, 0))


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


@sized_opcode({b"X": 4, b"\x8c": 1, b"\x8d": 8}, cost=80)
def binunicode(machine: PickleMachine, size: int) -> None:
    content = machine.stream.read(size)  # a length beyond the end of the pickle is the first error
    machine.charge(4 * size)
    machine.push(content.decode("utf-8", "surrogatepass"))


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


def _push_old_string(machine: PickleMachine, content: bytes) -> None:
    """Python 2 strings are text or bytes; only text can be a name or a key."""
    try:
        machine.push(content.decode("utf-8"))
    except UnicodeDecodeError:
        machine.push(Data(content, machine.position - len(content)))


@sized_opcode({b"B": 4, b"C": 1, b"\x8e": 8, b"\x96": 8}, cost=120)
def binbytes(machine: PickleMachine, size: int) -> None:
    at = machine.position
    if size > limits.BLOB_BYTES:
        machine.stream.skip(size)
        machine.push(Blob(at, size))
        return
    machine.charge(size)
    machine.push(Data(machine.stream.read(size), at))


@opcode(b"0")
def pop(machine: PickleMachine) -> None:
    # On an empty frame, the opcode removes the mark itself.
    if machine.marks and machine.floor == len(machine.stack):
        machine.drop_mark()
    else:
        machine.pop()


@opcode(b"p", cost=100)
def put(machine: PickleMachine) -> None:
    index = int(machine.stream.line())
    # Colliding hashes would make the memo slow; no writer uses indices beyond 32 bits.
    if not 0 <= index < 2**32:
        raise machine.broken(f"memo index {index}")
    machine.remember(index, machine.top())


@sized_opcode({b"q": 1, b"r": 4}, cost=100)
def binput(machine: PickleMachine, index: int) -> None:
    machine.remember(index, machine.top())


@opcode(b"g")
def get(machine: PickleMachine) -> None:
    binget(machine, int(machine.stream.line()))


@sized_opcode({b"h": 1, b"j": 4})
def binget(machine: PickleMachine, index: int) -> None:
    if 0 <= index < len(machine.memo):
        machine.stack.append(machine.memo[index])
    elif index in machine.far_memo:
        machine.stack.append(machine.far_memo[index])
    else:
        raise machine.broken(f"nothing was stored under memo index {index}")


@opcode(b"d", cost=240)
def dict_to_mark(machine: PickleMachine) -> None:
    values = machine.pop_to_mark()
    made: dict[object, object] = {}
    _store(machine, made, values)
    machine.push(made)


@opcode(b"a")
def append(machine: PickleMachine) -> None:
    value = machine.pop()
    _extend(machine, machine.top(), [value])


@opcode(b"e", b"\x90")
def appends(machine: PickleMachine) -> None:
    values = machine.pop_to_mark()
    _extend(machine, machine.top(), values)


@opcode(b"s", cost=120)
def setitem(machine: PickleMachine) -> None:
    value, key = machine.pop(), machine.pop()
    _store(machine, machine.top(), [key, value])


@opcode(b"u")
def setitems(machine: PickleMachine) -> None:
    values = machine.pop_to_mark()
    _store(machine, machine.top(), values)


def _extend(machine: PickleMachine, target: object, values: list[object]) -> None:
    if isinstance(target, list):
        target.extend(values)
    elif isinstance(target, Instance):
        target.items.extend(values)
    else:
        raise machine.broken("values are appended to something other than a list")


def _store(machine: PickleMachine, target: object, values: list[object]) -> None:
    if len(values) % 2:
        raise machine.broken("a key without a value")
    mapping = target.mapping if isinstance(target, Instance) else target
    if not isinstance(mapping, dict):
        raise machine.broken("an item is set on something other than a dict")
    machine.charge(60 * len(values))
    for key, value in zip(values[::2], values[1::2], strict=True):
        mapping[as_key(key)] = value


@opcode(b"c", cost=150)
def global_lines(machine: PickleMachine) -> None:
    module = machine.stream.line().decode("utf-8")
    _push_global(machine, module, machine.stream.line().decode("utf-8"))


@opcode(b"\x93", cost=150)
def stack_global(machine: PickleMachine) -> None:
    name, module = machine.pop(), machine.pop()
    if isinstance(name, str) and isinstance(module, str):
        _push_global(machine, module, name)
        return
    machine.log.note_computed(machine.source.label)
    machine.push(Instance(Global("", "computed"), (module, name)))


def _push_global(machine: PickleMachine, module: str, name: str) -> None:
    machine.log.note(module, name, machine.source.label)
    machine.push(Global(module, name))


@sized_opcode({b"\x82": 1, b"\x83": 2, b"\x84": 4}, cost=_INSTANCE_BYTES)
def extension(machine: PickleMachine, code: int) -> None:
    """A number that `copyreg` maps to a name in the loading process; unknown here."""
    _push_global(machine, "copyreg.extension", str(code))


@opcode(b"R", b"\x81", cost=_INSTANCE_BYTES)
def reduce_or_newobj(machine: PickleMachine) -> None:
    args, function = machine.pop(), machine.pop()
    machine.push(call(machine, function, args))


@opcode(b"\x92", cost=_INSTANCE_BYTES)
def newobj_ex(machine: PickleMachine) -> None:
    kwargs, args, factory = machine.pop(), machine.pop(), machine.pop()
    made = call(machine, factory, args)
    if isinstance(made, Instance) and isinstance(kwargs, dict):
        made.mapping.update(kwargs)
    machine.push(made)


@opcode(b"i", cost=_INSTANCE_BYTES)
def inst(machine: PickleMachine) -> None:
    module, name = machine.stream.line().decode("utf-8"), machine.stream.line().decode("utf-8")
    machine.log.note(module, name, machine.source.label)
    machine.push(call(machine, Global(module, name), tuple(machine.pop_to_mark())))


@opcode(b"o", cost=_INSTANCE_BYTES)
def obj(machine: PickleMachine) -> None:
    values = machine.pop_to_mark()
    if not values:
        raise machine.broken("an object without a class")
    machine.push(call(machine, values[0], tuple(values[1:])))


@opcode(b"b", cost=48)
def build(machine: PickleMachine) -> None:
    state = machine.pop()
    target = machine.top()
    if isinstance(target, Tensor):
        rebuild_array(target, state, machine.source)
    elif isinstance(target, Instance):
        # A second state adds to the first; the tuple keeps both for whoever walks the values.
        target.state = state if target.state is None else (target.state, state)


@opcode(b"\x97")
def next_buffer(machine: PickleMachine) -> None:
    raise machine.broken("it needs buffers that are not in the file")


def call(machine: PickleMachine, function: object, args: object) -> object:
    """The result of the call if it is known and harmless; otherwise a stand-in."""
    arguments = args if isinstance(args, tuple) else (args,)
    # A rebuilder may read every item: a long list must not be passed to a million calls.
    items = 0
    for value in arguments:
        if isinstance(value, (list, dict, tuple)):
            items += len(value)
    machine.charge(40 * items)
    if not isinstance(function, Global):
        return Instance(function, arguments)
    machine.log.note(function.module, function.name, machine.source.label, called=True)
    _scan_nested(machine, arguments)
    rebuild = REBUILDERS.get(function.path)
    return Instance(function, arguments) if rebuild is None else rebuild(function, arguments)


def _scan_nested(machine: PickleMachine, arguments: tuple[object, ...]) -> None:
    """Byte strings passed to a function may be pickles that it loads."""
    for value in arguments[:4]:
        content = b""
        if isinstance(value, Data):
            content = value.content
        elif isinstance(value, Blob) and value.size <= _LONGEST_NESTED_BYTES:
            content = machine.source.read(value.at, 1)
            content = machine.source.read(value.at, value.size) if content == b"\x80" else b""
        # Protocols from 2 start with a mark; older ones start with an opcode and end with a full stop.
        is_new = content[:1] == b"\x80" and content[1:2] <= b"\x05"
        is_old = content[-1:] == b"." and content[:1] in b"c(]}l" and b"\n" in content
        if not (is_new or is_old):
            continue
        machine.nested += 1
        if machine.nested > limits.NESTED_PICKLES or machine.depth >= limits.NESTED_DEPTH:
            raise machine.broken("too many pickles are nested in it")
        source = in_memory(content, machine.source.path, f"{machine.source.label} (nested pickle)")
        inner = PickleMachine(source, machine.log, persistent=any_storage, depth=machine.depth + 1)
        inner.memory_left = machine.memory_left
        # Not a pickle, or an invalid one: its imports up to here are in the log.
        with suppress(FormatError):
            inner.run()
        machine.memory_left = min(machine.memory_left, inner.memory_left)
