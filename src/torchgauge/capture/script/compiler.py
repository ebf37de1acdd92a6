"""From a lowered graph to steps, grouped into the module calls they were inlined from."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING

import torch

from torchgauge.capture.fake_tensor import Endless
from torchgauge.capture.paths import join
from torchgauge.capture.recorder import source_line as model_source_line
from torchgauge.capture.script.operators import operator_of, require_spelled_length
from torchgauge.capture.script.program import (
    Block,
    Done,
    Instance,
    JitObject,
    Run,
    Step,
    Unsupported,
    Value,
    free_after_last_use,
    is_instance,
    reads_of,
)
from torchgauge.source.torchscript.graphs import (
    CALL,
    LINE,
    ONEDNN_CONSTANT,
    Scopes,
    is_flat,
    lower,
    onednn_constant,
    source_line,
)

if TYPE_CHECKING:
    from torchgauge.capture.script.interpreter import Frame


def compile_graph(graph: JitObject, module_types: frozenset[str]) -> Block:
    """The block of a method or function; raises `Unsupported` where a node is not known here."""
    lowered = lower(graph, module_types)
    scopes = Scopes(lowered) if is_flat(graph) else None
    block = _Compiler(module_types, scopes).block(lowered)
    free_after_last_use(block)
    if scopes is not None:
        group_by_scope(block)
    return block


class _Compiler:
    def __init__(self, module_types: frozenset[str], scopes: Scopes | None) -> None:
        self.module_types = module_types
        self.scopes = scopes
        # For inlined functions of torch, the line of the call: that of the constant that names the function.
        self.line: str | None = None

    def block(self, block: JitObject) -> Block:
        return Block(
            parameters=tuple(value.unique() for value in block.inputs()),
            results=tuple(value.unique() for value in block.outputs()),
            steps=[step for node in block.nodes() if (step := self._step(node)) is not None],
        )

    def _step(self, node: JitObject) -> Step | None:
        written = source_line(node)
        if written is not None:
            file, _, number = written.rpartition(":")
            self.line = model_source_line(file, int(number)) or self.line
        line = self.line
        if node.kind() == LINE:
            return None
        inputs = tuple(value.unique() for value in node.inputs())
        outputs = tuple(value.unique() for value in node.outputs())
        kind = node.kind()
        if kind == "prim::Constant":
            if node.output().type().kind() == "FunctionType":  # what called it is inlined by now
                return None
            value = node.output().toIValue()
            if isinstance(value, torch.Tensor):
                return Step(held(value), (), outputs, takes_frame=True, is_constant=True)
            return Step(lambda: value, (), outputs, is_constant=True)
        if kind == ONEDNN_CONSTANT:
            return Step(held(onednn_constant(node)), (), outputs, takes_frame=True, is_constant=True)
        blocks = tuple(map(self.block, node.blocks()))
        takes_frame = kind in _WITH_FRAME or kind == "prim::fork"
        if kind in _WITH_FRAME:
            run = _WITH_FRAME[kind](node, blocks)
        elif kind == "prim::fork":
            run = fork(compile_graph(node.g("Subgraph"), self.module_types))
        else:
            run = _WITHOUT_FRAME.get(kind, operator_of)(node)
        step = Step(run, inputs, outputs, takes_frame=takes_frame, blocks=blocks, source=line)
        step.scope = self.scopes.of(node) if self.scopes is not None else ()
        step.makes_tensors = any(value.type().kind() == "TensorType" for value in node.outputs())
        return step


def _isinstance(node: JitObject) -> Run:
    types = node.tys("types")

    def run(value: Value) -> bool:
        require_spelled_length((value,))
        return is_instance(value, types)

    return run


def _python_op(node: JitObject) -> Run:
    """A function left to Python (`torch.jit.ignore`): only a live model has one, and it is that model's own code."""
    if node.scalar_args():
        raise Unsupported("prim::PythonOp")
    return node.pyobj()


_WITHOUT_FRAME: dict[str, Callable[[JitObject], Run]] = {
    **dict.fromkeys(
        ("prim::TupleUnpack", "prim::ListUnpack"),
        lambda node: tuple if node.outputsSize() != 1 else operator.itemgetter(0),
    ),
    "prim::TupleSlice": lambda node: operator.itemgetter(slice(node.i("beg"), node.i("end"))),
    "prim::isinstance": _isinstance,
    "prim::RaiseException": lambda node: raise_exception,
    "prim::CreateObject": lambda node: creator(node.output().type().str()),
    "prim::Enter": lambda node: enterer(node.input().type().str()),
    "prim::Exit": lambda node: leave,
    "prim::PythonOp": _python_op,
    "prim::ModuleContainerIndex": lambda node: lambda module, key: module.getattr(str(key)),
    "aten::wait": lambda node: lambda done: done.value,
}
_WITH_FRAME: dict[str, Callable[[JitObject, tuple[Block, ...]], Run]] = {
    CALL: lambda node, blocks: call_method(node.s("name")),
    "prim::CallMethod": lambda node, blocks: call_method(node.s("name")),
    "prim::GetAttr": lambda node, blocks: get_attribute(node.s("name")),
    "prim::SetAttr": lambda node, blocks: set_attribute(node.s("name")),
    "prim::If": lambda node, blocks: choose(*blocks),
    "prim::Loop": lambda node, blocks: loop(blocks[0]),
}


# Steps that are more than a function of their inputs: branches, loops, attributes, calls, exceptions.

# A graph may loop for ever; no model of use repeats its loops so often, all of them together.
LOOP_LIMIT = 1 << 18
_GRAD_MODES = {
    "__torch__.torch.autograd.grad_mode.no_grad": False,
    "__torch__.torch.autograd.grad_mode.inference_mode": False,
    "__torch__.torch.autograd.grad_mode.enable_grad": True,
}
_INERT = ("__torch__.torch.autograd.profiler.record_function",)


def choose(yes: Block, no: Block) -> Run:
    def run(frame: Frame, condition: Value) -> Value:
        return _one_or_all(frame.run(yes if condition else no, ()))

    return run


def loop(body: Block) -> Run:
    def run(frame: Frame, limit: int, condition: Value, *carried: Value) -> Value:
        values: tuple[Value, ...] = carried
        count = 0
        while condition and count < limit:
            condition, *rest = frame.run(body, (count, *values))
            values = tuple(rest)
            count += 1
            frame.interpreter.iterations += 1
            if frame.interpreter.iterations > LOOP_LIMIT:
                raise Endless(f"the loops of the graph ran {LOOP_LIMIT} times and did not end")
        return _one_or_all(values)

    return run


def _one_or_all(values: Value) -> Value:
    return values[0] if len(values) == 1 else values


def fork(body: Block) -> Run:
    def run(frame: Frame, *args: Value) -> Done:
        return Done(_one_or_all(frame.apart().run(body, args)))

    return run


def held(tensor: torch.Tensor) -> Run:
    return lambda frame: frame.interpreter.adopt(tensor)


def get_attribute(name: str) -> Run:
    return lambda frame, owner: frame.interpreter.attribute(owner, name)


def set_attribute(name: str) -> Run:
    return lambda frame, owner, value: frame.interpreter.set_attribute(owner, name, value)


def call_method(name: str) -> Run:
    return lambda frame, owner, *args: frame.interpreter.call_method(owner, name, args)


def raise_exception(message: str, kind: str | None = None) -> None:
    raise RuntimeError(message)


def creator(kind: str) -> Run:
    return lambda: Instance(kind)


def enterer(kind: str) -> Run:
    if kind in _INERT:
        return lambda manager: None
    if kind not in _GRAD_MODES:
        raise Unsupported(f"with {kind}")

    def enter(manager: Instance) -> None:
        manager.attributes["before"] = torch.is_grad_enabled()
        torch.set_grad_enabled(_GRAD_MODES[kind])

    return enter


def leave(manager: Instance) -> None:
    if "before" in manager.attributes:
        torch.set_grad_enabled(manager.attributes["before"])


# Groups the steps of a flat graph into the calls they were inlined from.


def group_by_scope(block: Block, outer: frozenset[int] = frozenset()) -> None:
    """Replace each run of steps of one module by one step that enters it, runs them and leaves it.

    `outer` are the constants of the blocks around: no inputs of a module.
    """
    constants = [step for step in block.steps if step.is_constant]
    others = [step for step in block.steps if not step.is_constant]
    slots = outer.union(*(step.outputs for step in constants))
    block.steps = constants + _grouped(others, 0, slots, set(block.results))
    for step in others:
        for inner in step.blocks:
            group_by_scope(inner, slots)


def _grouped(steps: list[Step], depth: int, constants: frozenset[int], wanted: set[int]) -> list[Step]:
    paths = iter(_paths(steps, depth))
    groups = [(path, list(group)) for path, group in groupby(steps, lambda _: next(paths))]
    later = set(wanted)
    grouped: list[Step] = []
    for path, group in reversed(groups):
        if path is None:
            grouped.extend(reversed(group))
        else:
            made = {slot for step in group for slot in step.outputs}
            given = tuple(sorted(reads_of(group) - made - constants))
            left = tuple(sorted(made & later))
            inner = _grouped(group, depth + 1, constants, later)
            stage = Step(_runner(path, inner, left), given, (), takes_frame=True)
            grouped.append(stage)
        later |= reads_of(group)
    return grouped[::-1]


def _paths(steps: list[Step], depth: int) -> list[str | None]:
    """The module of each step. Lists and checks that lost theirs belong where the tensors around them do."""
    paths = [step.scope[depth] if len(step.scope) > depth else None for step in steps]
    before: str | None = None
    lost: list[int] = []
    for index, step in enumerate(steps):
        if paths[index] is None and not step.makes_tensors:
            lost.append(index)
            continue
        if paths[index] is not None and paths[index] == before:
            for place in lost:
                paths[place] = before
        before = paths[index]
        lost.clear()
    return paths


def _runner(path: str, steps: list[Step], left: tuple[int, ...]) -> Run:
    def run(frame: Frame, *args: Value) -> None:
        recorder = frame.interpreter.recorder
        given = _tensors(args)
        previous = recorder.enter_path(join(frame.path, path), given, {})
        try:
            frame.run_steps(steps)
        except BaseException:
            recorder.fail(previous, given, {})
            raise
        results = _tensors(tuple(frame.values[slot] for slot in left))
        recorder.leave_path(previous, results[0] if len(results) == 1 else results)

    return run


def _tensors(values: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(value for value in values if isinstance(value, torch.Tensor))
