"""Memory that a model holds: tensors that stay after their last reader and, shown by a second call, attributes that
hold more tensors after every call (a list that is never emptied, a tensor that grows) and ops that only the first call
runs, such as those of a table that is cached."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchgauge.capture.copier import ATOMS, is_plain
from torchgauge.capture.fake_run import FakeRun
from torchgauge.capture.fake_tensor import FakeTensor
from torchgauge.capture.paths import ModulePaths
from torchgauge.capture.real import RealRun
from torchgauge.capture.recorder import source_line, spec_of_real
from torchgauge.capture.structure import tensors_within
from torchgauge.facts import GrowingAttribute, HeldTensor, OpRecord
from torchgauge.registry import grouped

# Attributes that every module has; of these a forward writes to buffers alone.
_OF_TORCH = frozenset(vars(nn.Module()))
_MAX_DEPTH, _MAX_ITEMS = 3, 10_000
_ADD = frozenset(("append", "appendleft", "extend", "add", "insert", "update", "setdefault"))
_EMPTY = frozenset(("clear", "pop", "popleft", "popitem", "reset"))
_FRESH = frozenset(("list", "dict", "set", "deque", "defaultdict", "OrderedDict", "zeros", "empty", "new_zeros"))

# In a short loop of eight rounds, the tensor of the last round is in use.
_MIN_HELD_TENSORS = 7

# The number of a module, and the name of one of its attributes.
AttributeKey = tuple[int, str]


class HeldBytes:
    """Bytes of tensors that the attributes of the modules hold now, by module and attribute. `live_bytes`
    is the memory of all tensors but parameters and buffers."""

    def __init__(self, paths: ModulePaths, live_bytes: int = 0) -> None:
        self.live_bytes = live_bytes
        # By number; the modules of torch keep nothing from one call to the next.
        self._modules = {
            number: module
            for number, (module, _) in enumerate(paths.modules())
            if not type(module).__module__.startswith("torch.") and not isinstance(module, torch.jit.ScriptModule)
        }
        self._bytes = dict(self._held())

    def grown(self) -> dict[AttributeKey, int]:
        """The attributes that hold more by now, and how much more."""
        more = ((place, nbytes - self._bytes.get(place, 0)) for place, nbytes in self._held())
        return {place: nbytes for place, nbytes in more if nbytes > 0}

    def _held(self) -> Iterator[tuple[AttributeKey, int]]:
        known: dict[int, int] = {}  # by the id of a value: all layers hold the same configuration
        for number, module in self._modules.items():
            attributes = vars(module).items()
            own = [(name, value) for name, value in attributes if name not in _OF_TORCH and type(value) not in ATOMS]
            for name, value in (*own, *module._buffers.items()):
                if (key := id(value)) not in known:
                    known[key] = _tensor_bytes(value)
                if known[key]:
                    yield (number, name), known[key]


def held_tensors(
    ops: Sequence[OpRecord], results: Collection[int], released: Mapping[int, int]
) -> tuple[HeldTensor, ...]:
    """Memory of a loop's rounds that is still held, although nothing reads it again, when the last round allocates its
    own; results are excluded. `released` is the ledger's, without memory that is still held."""
    made = [(op.index, (op.source, op.signature.op)) for op in ops if op.signature.activation_bytes]
    end_of = {line: index for index, line in made}
    # In most models no line's memory outlives the last round, and the readers do not matter.
    outliving = Counter(line for index, line in made if released.get(index, len(ops)) > end_of[line])
    if max(outliving.values(), default=0) < _MIN_HELD_TENSORS:
        return ()
    readers = grouped((source, op) for op in ops for source in dict.fromkeys(op.producers) if source is not None)
    last_read: dict[int, int] = {}
    found: dict[tuple[str | None, str], list[HeldTensor]] = {}
    for op in reversed(ops):
        reads = [op.index]
        for reader in readers.get(op.index, ()):
            # Memory that is written in place is read for as long as what was written.
            is_written = reader.op.endswith("_") and not reader.signature.activation_bytes
            is_written = is_written and reader.producers[0] == op.index
            reads.append(last_read[reader.index] if is_written else reader.index)
        last_read[op.index] = len(ops) if op.index in results else max(reads)
        line, gone, read = (op.source, op.op), released.get(op.index, len(ops)), last_read[op.index]
        if op.signature.activation_bytes and read <= end_of[line] < gone:
            found.setdefault(line, []).append(HeldTensor(op.index, read, gone))
    held = [tensor for tensors in found.values() if len(tensors) >= _MIN_HELD_TENSORS for tensor in tensors]
    return tuple(sorted(held, key=lambda tensor: tensor.op))


@dataclass(frozen=True, slots=True)
class SecondCall:
    """`growing`: attributes that hold more after each of two calls. `first_call_ops`: indices of the ops that the
    second call did not repeat. `peak_bytes`: the peak of the second call, without what the first one left; None where
    all ops were repeated."""

    growing: tuple[GrowingAttribute, ...] = ()
    first_call_ops: tuple[int, ...] = ()
    peak_bytes: int | None = None


def compare_calls(
    paths: ModulePaths, run: FakeRun | RealRun, before: HeldBytes, output: object, call_again: Callable[[], object]
) -> SecondCall:
    """Call the model again where something still holds tensors that the first call made: an attribute, a dictionary of
    the module, a `functools.cache`. Nothing of the second call is recorded; what only the first one read on the host is
    forgotten, as a later call does not."""
    candidates, recorder = before.grown(), run.recorder
    if not candidates:
        # Does anything but the output hold memory of the forward pass? The backward pass keeps some anyway.
        returned = dict(map(run.storage_of, tensors_within(output)))
        live = sum(nbytes for born, nbytes in returned.values() if born >= 0)
        if recorder.phase != "forward" or recorder.ledger.live - live <= before.live_bytes:
            return SecondCall()
    modules = list(paths.modules()) if candidates else []
    lines = {(number, name): _adding_line(type(modules[number][0]), name) for number, name in candidates}
    between, first = HeldBytes(paths), list(recorder.ops)
    phase, recorder.phase = recorder.phase, "forward"
    held_bytes = recorder.ledger.live
    try:
        with recorder.rehearsal() as ops_again:
            call_again()
            repeated = Counter((op.op, op.module, op.source) for op in ops_again())
            grown_bytes = max((op.live_bytes - held_bytes for op in ops_again()), default=0)
            reads = recorder.host_reads
    except Exception:  # a model that runs once
        return SecondCall()
    finally:
        recorder.failure, recorder.phase = None, phase
    recorder.forget_host_reads(but=reads)
    growing = [
        GrowingAttribute(modules[number][1], name, nbytes, line)
        for (number, name), nbytes in between.grown().items()
        if (line := lines.get((number, name))) is not None
    ]
    once = []
    for op in reversed(first):
        key = (op.op, op.module, op.source)
        if op.phase == "forward" and repeated[key] <= 0:
            once.append(op.index)
        repeated[key] -= 1
    peak_bytes = before.live_bytes + max(grown_bytes, 0) if once else None
    return SecondCall(tuple(growing), tuple(reversed(once)), peak_bytes)


def _tensor_bytes(value: object, depth: int = _MAX_DEPTH) -> int:
    if type(value) is FakeTensor:
        return value.spec.nbytes
    if isinstance(value, torch.Tensor):
        return value.nbytes if value.layout is torch.strided else spec_of_real(value).nbytes
    # A subclass may forbid its length or iteration, as e3nn's Irrep does.
    base: Any = next((kind for kind in (list, tuple, set, dict, deque) if isinstance(value, kind)), None)
    if base is not None:
        is_bounded = isinstance(value, deque) and value.maxlen is not None
        if not depth or is_bounded or base.__len__(value) > _MAX_ITEMS:
            return 0
        items = dict.values(value) if isinstance(value, dict) else base.__iter__(value)
    elif isinstance(value, nn.Module) or not depth or not hasattr(value, "__dict__") or not is_plain(type(value)):
        return 0
    else:
        items = vars(value).values()
    return sum([_tensor_bytes(item, depth - 1) for item in items if type(item) not in ATOMS])


def _adding_line(kind: type, attribute: str) -> str | None:
    """The line of a class that adds to an attribute; None where none is found, or where one empties it."""
    found: str | None = None
    for owner in kind.__mro__:
        if owner.__module__.startswith("torch.") or owner is object:
            continue
        try:
            lines, first = inspect.getsourcelines(owner)
            file = inspect.getsourcefile(owner)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            return None
        for method in ast.walk(tree):
            if not isinstance(method, ast.FunctionDef) or method.name == "__init__" or not method.args.args:
                continue
            myself = method.args.args[0].arg
            for node in ast.walk(method):
                change = _change(node, myself, attribute)
                if change == "empties":
                    return None
                if change == "adds" and found is None and file is not None:
                    found = source_line(file, first + node.lineno - 1)  # type: ignore[attr-defined]
    return found


def _change(node: ast.AST, myself: str, attribute: str) -> str | None:
    """The effect of a statement on an attribute: "adds", "empties", or None."""

    def is_own(value: ast.AST) -> bool:
        """The attribute, or an item of it."""
        while isinstance(value, ast.Subscript):
            value = value.value
        is_attribute = isinstance(value, ast.Attribute) and value.attr == attribute
        return is_attribute and isinstance(value.value, ast.Name) and value.value.id == myself  # type: ignore[attr-defined]

    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_own(node.func.value):
        return "adds" if node.func.attr in _ADD else "empties" if node.func.attr in _EMPTY else None
    if isinstance(node, ast.Delete) and any(map(is_own, node.targets)):
        return "empties"
    if isinstance(node, ast.AugAssign) and is_own(node.target):
        return "adds"
    if isinstance(node, ast.Assign) and any(map(is_own, node.targets)):
        value = node.value
        made = value.func if isinstance(value, ast.Call) else None
        name = made.id if isinstance(made, ast.Name) else made.attr if isinstance(made, ast.Attribute) else None
        is_empty = isinstance(value, ast.Constant) or (isinstance(value, ast.List | ast.Tuple) and not value.elts)
        is_empty = is_empty or (isinstance(value, ast.Dict) and not value.keys) or name in _FRESH
        # The last so many of them.
        branches = (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
        is_cut = any(isinstance(branch, ast.Subscript) for branch in branches)
        return "empties" if is_empty or is_cut else "adds"
    return None
