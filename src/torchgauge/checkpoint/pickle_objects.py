"""Opcodes that would import a name, call it, or set the state of what it made."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from torchgauge.checkpoint import limits
from torchgauge.checkpoint.byte_source import in_memory
from torchgauge.checkpoint.pickle_machine import PickleMachine, opcode
from torchgauge.checkpoint.pickle_values import Blob, Data, Global, Instance, Tensor, any_storage
from torchgauge.checkpoint.rebuild import REBUILDERS, rebuild_array
from torchgauge.errors import FormatError

_INSTANCE_BYTES = 400
_LONGEST_NESTED_BYTES = 2**26


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


@opcode(b"\x82", cost=_INSTANCE_BYTES)
def ext1(machine: PickleMachine) -> None:
    _push_extension(machine, machine.stream.unsigned(1))


@opcode(b"\x83", cost=_INSTANCE_BYTES)
def ext2(machine: PickleMachine) -> None:
    _push_extension(machine, machine.stream.unsigned(2))


@opcode(b"\x84", cost=_INSTANCE_BYTES)
def ext4(machine: PickleMachine) -> None:
    _push_extension(machine, machine.stream.unsigned(4))


def _push_extension(machine: PickleMachine, code: int) -> None:
    """A number that `copyreg` of the loading process maps to a name: it cannot be known here."""
    machine.log.note("copyreg.extension", str(code), machine.source.label)
    machine.push(Global("copyreg.extension", str(code)))


@opcode(b"P", cost=80)
def persid(machine: PickleMachine) -> None:
    machine.push(machine.persistent(machine.stream.line().decode("ascii")))


@opcode(b"Q", cost=_INSTANCE_BYTES)
def binpersid(machine: PickleMachine) -> None:
    machine.push(machine.persistent(machine.pop()))


@opcode(b"R", cost=_INSTANCE_BYTES)
def reduce(machine: PickleMachine) -> None:
    args, function = machine.pop(), machine.pop()
    machine.push(call(machine, function, args))


@opcode(b"\x81", cost=_INSTANCE_BYTES)
def newobj(machine: PickleMachine) -> None:
    args, factory = machine.pop(), machine.pop()
    machine.push(call(machine, factory, args))


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
    raise machine.broken("it needs buffers from outside of the file")


@opcode(b"\x98")
def readonly_buffer(machine: PickleMachine) -> None:
    machine.top()


def call(machine: PickleMachine, function: Any, args: Any) -> Any:
    """What the call would return where that is known and harmless, else a stand-in."""
    arguments = args if isinstance(args, tuple) else (args,)
    # A rebuilder may look at every item: one long list must not be handed to a million calls.
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


def _scan_nested(machine: PickleMachine, arguments: tuple[Any, ...]) -> None:
    """Byte strings handed to a function may be pickles that it would load."""
    for value in arguments[:4]:
        content = _bytes_of(machine, value) if isinstance(value, (Data, Blob)) else None
        if content is None or not _may_be_pickle(content):
            continue
        machine.nested += 1
        if machine.nested > limits.NESTED_PICKLES or machine.depth >= limits.NESTED_DEPTH:
            raise machine.broken("too many pickles are nested in it")
        _scan_bytes(machine, content)


def _scan_bytes(machine: PickleMachine, content: bytes) -> None:
    source = in_memory(content, machine.source.path, f"{machine.source.label} (nested pickle)")
    inner = PickleMachine(source, machine.log, persistent=any_storage, depth=machine.depth + 1)
    inner.memory_left = machine.memory_left
    # Bytes that only look like a pickle, or a broken one: what it imports until there is in the log.
    with suppress(FormatError):
        inner.run()
    machine.memory_left = min(machine.memory_left, inner.memory_left)


def _bytes_of(machine: PickleMachine, value: Any) -> bytes | None:
    if isinstance(value, Data):
        return value.content
    if isinstance(value, Blob) and value.size <= _LONGEST_NESTED_BYTES and machine.source.read(value.at, 1) == b"\x80":
        return machine.source.read(value.at, value.size)
    return None


def _may_be_pickle(content: bytes) -> bool:
    """Protocols from 2 on begin with their mark; older ones with an opcode and end with a full stop."""
    if content[:1] == b"\x80":
        return content[1:2] <= b"\x05"
    return content[-1:] == b"." and content[:1] in b"c(]}l" and b"\n" in content
