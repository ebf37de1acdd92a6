"""Runs script modules node by node, so that every op is seen in the module it belongs to.

Nothing is written to the modules: attributes that a method sets are kept here and forgotten after the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from torchgauge.capture.recorder import Recorder
from torchgauge.capture.script.compiler import compile_graph
from torchgauge.capture.script.program import Block, EnumClass, Instance, JitObject, Step, Unsupported, Value
from torchgauge.capture.structure import map_tensors
from torchgauge.errors import ForwardError
from torchgauge.source.allowed_ops import is_foreign
from torchgauge.source.process_state import replaced_here
from torchgauge.source.torchscript.graphs import module_types

# A second call of a module is traced into `forward1`; overloads are compiled into `forward__0`.
_FORWARD = re.compile(r"forward(__)?\d*")

Adopt = Callable[[torch.Tensor], torch.Tensor]


class Frame:
    """The values of one call; `path` is the module whose graph is run."""

    __slots__ = ("interpreter", "path", "source", "values")

    def __init__(self, interpreter: ScriptInterpreter) -> None:
        self.interpreter = interpreter
        self.path = interpreter.recorder.path
        self.source = interpreter.recorder.source  # the line that calls the method, where its own are torch's
        self.values: dict[int, Value] = {}

    def apart(self) -> Frame:
        return Frame(self.interpreter)

    def run(self, block: Block, args: tuple[Value, ...]) -> list[Value]:
        values = self.values
        values.update(zip(block.parameters, args, strict=True))
        self.run_steps(block.steps)
        return [values[slot] for slot in block.results]

    def run_steps(self, steps: list[Step]) -> None:
        values = self.values
        recorder = self.interpreter.recorder
        recorder.budget.spend_steps(len(steps))
        for step in steps:
            args = [values[slot] for slot in step.inputs]
            recorder.source = step.source or self.source
            if step.takes_frame:
                result = step.run(self, *args)
            else:
                # A function of its inputs: what it makes, or adds to its first input, takes memory.
                target = args[0] if args and type(args[0]) in _GROWING else None
                before = 0 if target is None else len(target)
                result = step.run(*args)
                made = 0 if target is None else max(len(target) - before, 0)
                kind = type(result)
                if kind is str:
                    made += len(result) >> 4
                elif kind in _SIZED and result is not target:
                    made += len(result)
                if made:
                    recorder.budget.spend_elements(made)
                del target
            if len(step.outputs) == 1:
                values[step.outputs[0]] = result
            elif step.outputs:
                values.update(zip(step.outputs, result, strict=True))
            del args, result
            for slot in step.dead:
                values.pop(slot, None)


_GROWING = frozenset((list, dict))
_SIZED = frozenset((list, dict, tuple))


class ScriptInterpreter:
    def __init__(self, recorder: Recorder, adopt: Adopt) -> None:
        self.recorder = recorder
        self._adopt = adopt
        self._types: frozenset[str] = frozenset()
        # The types are kept, so that an id stays theirs for the whole run.
        self._programs: dict[tuple[int, str], tuple[JitObject, Block]] = {}
        self._attributes: dict[tuple[JitObject, str], Value] = {}
        self._held: set[int] = set()
        self._is_foreign = False
        self.iterations = 0  # of all loops so far

    def run(self, module: JitObject, *args: Value, **kwargs: Value) -> Value:
        """Run the module's forward. The caller records this call, inner calls are recorded here."""
        script = module._c
        self._types = module_types(script)
        self._is_foreign = is_foreign(module)
        # The arguments in the order of the schema, defaults filled in.
        declared = script._get_method("forward").schema.arguments[1:]
        if len(args) > len(declared):
            raise TypeError(f"forward takes {len(declared)} arguments, {len(args)} were given")
        unknown = kwargs.keys() - {argument.name for argument in declared[len(args) :]}
        if unknown:
            raise TypeError(f"forward has no argument '{min(unknown)}', or it is given twice")
        arguments = list(args)
        for argument in declared[len(args) :]:
            if argument.name not in kwargs and not argument.has_default_value():
                raise TypeError(f"forward needs '{argument.name}'")
            is_given = argument.name in kwargs
            arguments.append(kwargs[argument.name] if is_given else argument.default_value)
        with replaced_here(torch.jit._state, "_get_python_class", self._python_class):
            return self._invoke(script, "forward", tuple(arguments))

    def _python_class(self, find: Callable[[str], Value], name: str) -> Value:
        """The class of an enum. A file's names do not reach the classes of this process."""
        found = None if self._is_foreign else find(name)
        return EnumClass(name) if found is None else found

    def call_method(self, owner: JitObject, name: str, args: tuple[Value, ...]) -> Value:
        if not _FORWARD.fullmatch(name):
            return self._invoke(owner, name, args)
        # A trace hands a module that is used twice its own parts as arguments.
        shown = tuple(v for v in args if not isinstance(v, torch._C.ScriptModule) and id(v) not in self._held)
        previous = self.recorder.enter(owner, shown, {})
        try:
            output = self._invoke(owner, name, args)
        except BaseException:
            self.recorder.fail(previous, shown, {})
            raise
        self.recorder.leave(owner, previous, output)
        return output

    def adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """The run's tensor for a tensor of the model; making it is not an op of the model."""
        with torch._C._DisableTorchDispatch():
            return self._adopt(tensor)

    def attribute(self, owner: JitObject, name: str) -> Value:
        if isinstance(owner, Instance):
            return owner.attributes[name]
        key = (owner, name)
        if key not in self._attributes:
            value = self._attributes[key] = map_tensors(owner.getattr(name), self.adopt)
            self._held |= {id(value)} if isinstance(value, torch.Tensor) else set()
        return self._attributes[key]

    def set_attribute(self, owner: JitObject, name: str, value: Value) -> None:
        if isinstance(owner, Instance):
            owner.attributes[name] = value
        else:
            self._attributes[owner, name] = value

    def _invoke(self, owner: JitObject, name: str, args: tuple[Value, ...]) -> Value:
        try:
            kind = owner._type()
            found = self._programs.get((id(kind), name))
            if found is None:
                block = compile_graph(owner._get_method(name).graph, self._types)
                found = self._programs[id(kind), name] = (kind, block)
            block = found[1]
        except Unsupported as node:
            if self._is_foreign:
                # There loops have no limit, Ctrl-C is not heard, and what a graph prints is really printed.
                raise ForwardError(
                    f"{owner._type().name()} uses {node}, which torchgauge does not interpret: "
                    "code from a file does not run in torch's own engine"
                ) from None
            what = f"{owner._type().name()} runs in torch's own engine because of {node}"
            self.recorder.warn(f"{what}: its submodules are not shown")
            return owner._get_method(name)(*args)
        source = self.recorder.source
        results = Frame(self).run(block, (owner, *args))
        self.recorder.source = source
        return results[0]
