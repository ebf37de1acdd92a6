"""Branches and loops that a model writes as ops (`torch.cond`, `torch.while_loop`): run as Python would, in place.

Torch's own way compiles them, which cannot be done with ghosts, and hides their modules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from torch._higher_order_ops.cond import CondOp
from torch._higher_order_ops.while_loop import WhileLoopOp

from torchgauge.capture.recorder import Recorder
from torchgauge.capture.signals import DataDependent, Endless
from torchgauge.records import Cost

Branch = Callable[..., Any]

# As for the loops of TorchScript: no model of use repeats one so often.
LOOP_LIMIT = 1 << 18


@contextmanager
def branches_followed(recorder: Recorder) -> Iterator[None]:
    """`torch.cond` and `torch.while_loop` run their functions directly for the length of the block, in this thread."""
    before: Any = CondOp.__call__, WhileLoopOp.__call__
    owner = threading.get_ident()

    def cond(op: Any, condition: Any, yes: Branch, no: Branch, operands: Sequence[Any] = ()) -> Any:
        if threading.get_ident() != owner:
            return before[0](op, condition, yes, no, operands)
        return _choose(recorder, condition, yes, no, operands)

    def while_loop(op: Any, condition: Branch, body: Branch, carried: Any, additional: Any) -> Any:
        if threading.get_ident() != owner:
            return before[1](op, condition, body, carried, additional)
        values = tuple(carried)
        while bool(condition(*values, *additional)):
            values = tuple(body(*values, *additional))
            recorder.budget.spend_steps()
            if next(turns) > LOOP_LIMIT:
                raise Endless(f"torch.while_loop ran {LOOP_LIMIT} times and did not end")
        return values

    turns = count()  # of all loops together: they may be nested
    CondOp.__call__, WhileLoopOp.__call__ = cond, while_loop  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        CondOp.__call__, WhileLoopOp.__call__ = before  # type: ignore[method-assign]


def _choose(recorder: Recorder, condition: Any, yes: Branch, no: Branch, operands: Sequence[Any]) -> Any:
    recorder.budget.spend_steps()  # where branches are nested, each is priced anew for every one around it
    try:
        is_true = bool(condition)
    except DataDependent:
        is_true = _price(recorder, yes, operands) >= _price(recorder, no, operands)
        where = f" in '{recorder.path}'" if recorder.path else ""
        recorder.warn(
            f"which branch torch.cond{where} takes depends on data: the dearer one was assumed, that for "
            f"{'true' if is_true else 'false'}"
        )
    return (yes if is_true else no)(*operands)


def _price(recorder: Recorder, branch: Branch, operands: Sequence[Any]) -> tuple[int, int, int]:
    """What a branch costs; the recorder forgets that it ran."""
    with recorder.rehearsal() as ops:
        branch(*operands)
        total = sum((op.cost for op in ops()), Cost())
    return total.macs, total.flops, total.bytes_read + total.bytes_written
