"""A fast path for the opcodes of one tensor, as `torch.save` writes them: checkpoint pickles are mostly tensors.

A million tensors are 30 million opcodes. Anything that does not match exactly is left to the machine.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import TYPE_CHECKING

from torchgauge.checkpoint.pickle.values import Global, Storage, Tensor

if TYPE_CHECKING:
    from torchgauge.checkpoint.pickle.machine import PickleMachine

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
_LONGEST = 256  # bytes: shapes of more dimensions than any tensor has are left to the machine
_COST = 1300  # bytes of the values that a tensor is made of
_WIDTHS = {ord("K"): 1, ord("M"): 2, ord("J"): 4}


def take_tensor(machine: PickleMachine, at: int) -> int:
    """Run the opcodes of a tensor at `at` of the buffer; returns where they end, or 0 if they do not match."""
    found = _TENSOR.match(machine.stream.buffer, at, at + _LONGEST)
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
    tensor = Tensor(storage, storage.dtype or "uint8", sizes, steps, first, requires_grad=requires_grad)
    memo += (text, identifier)
    if put_shape is not None:
        memo += (sizes, steps)
    memo += (attached, (storage, first, sizes, steps, requires_grad, attached), tensor)
    machine.stack.append(tensor)
    machine.charge(_COST)
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
    """The opcodes that store so many values from this memo index; from 256, indices have four bytes."""
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
