"""Opcodes for the stack, the memo, and tuples, lists, sets and dicts."""

from __future__ import annotations

from typing import Any

from torchgauge.checkpoint.pickle_machine import PickleMachine, opcode
from torchgauge.checkpoint.pickle_values import Instance, as_key


@opcode(b"(", cost=48)
def mark(machine: PickleMachine) -> None:
    machine.set_mark()


@opcode(b"0")
def pop(machine: PickleMachine) -> None:
    # On an empty frame the opcode takes the mark itself.
    if machine.marks and machine.floor == len(machine.stack):
        machine.drop_mark()
    else:
        machine.pop()


@opcode(b"1")
def pop_mark(machine: PickleMachine) -> None:
    machine.pop_to_mark()


@opcode(b"2")
def dup(machine: PickleMachine) -> None:
    machine.push(machine.top())


@opcode(b"p", cost=100)
def put(machine: PickleMachine) -> None:
    index = int(machine.stream.line())
    # Indices that hash alike would make the memo slow: beyond 32 bits there is no honest one.
    if not 0 <= index < 2**32:
        raise machine.broken(f"memo index {index}")
    machine.remember(index, machine.top())


@opcode(b"q", cost=100)
def binput(machine: PickleMachine) -> None:
    machine.remember(machine.stream.byte(), machine.top())


@opcode(b"r", cost=100)
def long_binput(machine: PickleMachine) -> None:
    machine.remember(machine.stream.unsigned(4), machine.top())


@opcode(b"\x94", cost=100)
def memoize(machine: PickleMachine) -> None:
    machine.remember(len(machine.memo) + len(machine.far_memo), machine.top())


@opcode(b"g")
def get(machine: PickleMachine) -> None:
    _recall(machine, int(machine.stream.line()))


@opcode(b"h")
def binget(machine: PickleMachine) -> None:
    _recall(machine, machine.stream.byte())


@opcode(b"j")
def long_binget(machine: PickleMachine) -> None:
    _recall(machine, machine.stream.unsigned(4))


def _recall(machine: PickleMachine, index: int) -> None:
    if 0 <= index < len(machine.memo):
        machine.stack.append(machine.memo[index])
    elif index in machine.far_memo:
        machine.stack.append(machine.far_memo[index])
    else:
        raise machine.broken(f"nothing was stored under memo index {index}")


@opcode(b")")
def empty_tuple(machine: PickleMachine) -> None:
    machine.push(())


@opcode(b"\x85", cost=48)
def tuple1(machine: PickleMachine) -> None:
    machine.stack.append(machine.pop_many(1))


@opcode(b"\x86", cost=56)
def tuple2(machine: PickleMachine) -> None:
    machine.stack.append(machine.pop_many(2))


@opcode(b"\x87", cost=64)
def tuple3(machine: PickleMachine) -> None:
    machine.stack.append(machine.pop_many(3))


@opcode(b"t", cost=56)
def tuple_to_mark(machine: PickleMachine) -> None:
    machine.push(tuple(machine.pop_to_mark()))


@opcode(b"]", cost=120)
def empty_list(machine: PickleMachine) -> None:
    machine.push([])


@opcode(b"\x8f", cost=120)
def empty_set(machine: PickleMachine) -> None:
    machine.push([])  # kept as a list: the members are never hashed


@opcode(b"l", cost=120)
def list_to_mark(machine: PickleMachine) -> None:
    machine.push(machine.pop_to_mark())


@opcode(b"\x91", cost=120)
def frozenset_to_mark(machine: PickleMachine) -> None:
    machine.push(machine.pop_to_mark())


@opcode(b"}", cost=240)
def empty_dict(machine: PickleMachine) -> None:
    machine.push({})


@opcode(b"d", cost=240)
def dict_to_mark(machine: PickleMachine) -> None:
    values = machine.pop_to_mark()
    made: dict[Any, Any] = {}
    _store(machine, made, values)
    machine.push(made)


@opcode(b"a")
def append(machine: PickleMachine) -> None:
    value = machine.pop()
    _extend(machine, machine.top(), [value])


@opcode(b"e")
def appends(machine: PickleMachine) -> None:
    values = machine.pop_to_mark()
    _extend(machine, machine.top(), values)


@opcode(b"\x90")
def additems(machine: PickleMachine) -> None:
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


def _extend(machine: PickleMachine, target: Any, values: list[Any]) -> None:
    if isinstance(target, list):
        target.extend(values)
    elif isinstance(target, Instance):
        target.items.extend(values)
    else:
        raise machine.broken("values are appended to something that is no list")


def _store(machine: PickleMachine, target: Any, values: list[Any]) -> None:
    if len(values) % 2:
        raise machine.broken("a key without a value")
    mapping = target.mapping if isinstance(target, Instance) else target
    if not isinstance(mapping, dict):
        raise machine.broken("an item is set on something that is no dict")
    machine.charge(60 * len(values))
    for key, value in zip(values[::2], values[1::2], strict=True):
        mapping[as_key(key)] = value
