"""Work whose result nothing reads."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import accumulate

from torchgauge.advise.dataflow import RANDOM
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.flow import Flow
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import LEAST_PREDICTED_TIME, rule
from torchgauge.advise.rules.broadcast import CLOSED
from torchgauge.facts import FOREIGN_READ, FREE, OpRecord

# Of the largest of several places: less, as the states that a recurrent layer also returns, is not worth naming.
_LEAST_PART = 0.02


@rule("unread-result", family="unused", least_time=LEAST_PREDICTED_TIME)
def unread_result(evidence: Evidence) -> Iterator[Advice]:
    """Ops that lead to nothing: not to a result, an attribute, a number that Python asks for, or a tensor that is
    written in place. Reported by the outermost module that does nothing else, else by line."""
    dead = unread_ops(evidence)
    if not dead:
        return
    ops, unread = Counter[str](), Counter[str]()
    for op in evidence.flow.steps:
        for path in _around(op):
            ops[path] += 1
            unread[path] += op.index in dead
    # Lines that another call of the module runs for a result that is read: which call is idle is not known.
    read = {(op.source, op.op, op.module) for op in evidence.flow.steps if op.index not in dead}
    groups: dict[tuple[str, str | None], list[OpRecord]] = {}
    for op in evidence.flow.steps:
        if op.index not in dead:
            continue
        whole = next((path for path in _around(op) if ops[path] == unread[path]), None)
        if whole is not None:
            groups.setdefault((whole, evidence.call_line(whole)), []).append(op)
        elif _is_own(evidence, op) and (op.source, op.op, op.module) not in read:
            groups.setdefault((op.module, evidence.line_of(op.index)), []).append(op)
    read_lines = {evidence.call_line(path) for path in ops if unread[path] < ops[path]}
    shares = {place: evidence.share(found) for place, found in groups.items()}
    least = _LEAST_PART * max((share.value for share in shares.values()), default=0.0)
    for (module, line), found in groups.items():
        share = shares[module, line]
        if share.value < least:
            continue
        is_overwritten = module != "" and line in read_lines and _is_overwritten(evidence, line)
        yield Advice(
            rule="unread-result",
            where=Where(module, tuple(op.index for op in found), source=line),
            evidence={"ops": len(found), "macs": sum(op.cost.macs for op in found)},
            recommendation="chain these layers, or remove all but the last: the loop overwrites their results"
            if is_overwritten
            else "leave this out: nothing in this call reads its result",
            change=None,
            expected_gain=share.gain(0.9, 1.0, "these ops go away"),
            risk="other inputs, or another mode such as training, may read it",
            confidence="high",
            kind="bug" if is_overwritten else "gain",
        )


def _is_overwritten(evidence: Evidence, line: str | None) -> bool:
    """Whether a loop assigns this to a variable which it does not read, as `for layer in layers: out = layer(x)`."""
    place = evidence.code_at(line)
    statement = None if place is None else place[0].statement(place[1])
    loop = None if place is None else place[0].enclosing(statement, ast.For, ast.While)
    if loop is None or not isinstance(statement, ast.Assign):
        return False
    names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
    read = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return bool(names) and names.isdisjoint(read)


def _is_own(evidence: Evidence, op: OpRecord) -> bool:
    """Whether the model's own code computes it: a library does so for all its users, as the mean of attention weights
    that `nn.MultiheadAttention` returns."""
    record = evidence.modules.get(op.module)
    return evidence.library_of(op) is None and (record is None or record.type not in CLOSED)


def _around(op: OpRecord) -> Iterator[str]:
    """The paths of the modules that an op runs in, the outermost first, without the model."""
    return accumulate(op.module.split("."), lambda path, name: f"{path}.{name}") if op.module else iter(())


def unread_ops(evidence: Evidence) -> frozenset[int]:
    """The ops of inference whose results nothing reads, or only such ops. Those that draw random numbers change what
    the next ones draw, and ops of extensions may do more than their results say."""
    flow, run = evidence.flow, evidence.capture.run
    if evidence.is_train or not flow.results or not evidence.dataflow.is_known or evidence.is_by_accident:
        return frozenset()
    # Which tensors it reads is not known.
    if FOREIGN_READ in (run.reason or ""):
        return frozenset()
    needed = {*flow.results, *run.kept_ops, *(made for read in run.host_reads for made in read.made_by or ())}
    asking = (op for op in evidence.forward if not op.signature.outputs)  # for numbers that Python reads
    needed.update(source for op in asking for source in op.producers)
    dead = set[int]()
    for op in reversed(evidence.forward):
        signature, is_written = op.signature, op.op.endswith("_")
        is_pure = op.op.startswith("aten::") and "out" not in (signature.overload or "")
        is_pure = is_pure and bool(signature.outputs) and RANDOM not in signature.tags
        # A single truth is there to be checked, as by `torch._assert_async`.
        is_pure = is_pure and (signature.outputs[0].dtype, signature.outputs[0].numel) != ("bool", 1)
        is_pure = is_pure and (not is_written or _writes_for_dead_ops(flow, op, needed, dead))
        if (
            op.status != FREE
            and is_pure
            and op.index not in needed
            and all(user.index in dead for user in flow.users(op))
        ):
            dead.add(op.index)
        elif is_written:
            needed.update(op.producers)
    return frozenset(dead)


def _writes_for_dead_ops(flow: Flow, op: OpRecord, needed: Collection[int | None], dead: Collection[int]) -> bool:
    """Whether an op in place, as most activations of networks for images are, changes a whole tensor of this run that
    only idle ops read afterwards."""
    made = flow.op(op.producers[0]) if op.producers and op.producers[0] is not None else None
    if made is None or made.index in needed or len(made.signature.outputs) != 1:
        return False
    is_whole = op.signature.inputs[0].numel == made.signature.outputs[0].numel
    return is_whole and all(user.index <= op.index or user.index in dead for user in flow.users(made))
