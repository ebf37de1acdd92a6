"""The one place that depends on internals of Dynamo and Inductor (torch 2.6 to 2.13): records their decisions while
they compile.

Inductor's kernels are known after its scheduler has fused and its code is generated. Unless the code is to be run,
compiling ends there: each graph then runs op by op, on fake tensors too, so that neither memory nor time of a real run
is needed.
"""

from __future__ import annotations

import collections
import copy
import logging
import re
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor

from torchgauge.capture.paths import ModulePaths, unwrap
from torchgauge.capture.recorder import is_python_library, source_line
from torchgauge.errors import InputError
from torchgauge.facts.compiled import EXTERN, GENERATED, CompiledGraph, CompiledKernel, GraphBreak, Recompilation
from torchgauge.nested import leaves
from torchgauge.source.modules import all_modules
from torchgauge.source.process_state import replaced_here

Function = Callable[..., Any]  # of torch: its arguments are passed on unchanged

# Options that time variants on the device during compilation.
TUNING = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning")
UNTUNED = "autotuning was left out: it may choose other kernels for products and convolutions"


_BRANCH = "Data-dependent branching"


class _Generated(BaseException):
    """The code of a graph is generated; not an error, and not for torch to catch."""


class Call(NamedTuple):
    """A call of a graph. Modules of one class may share a graph: `moved` maps the paths of those it was compiled for to
    the paths of those that it runs for in this call."""

    graph: int
    moved: tuple[tuple[str, str], ...] = ()

    def path(self, path: str) -> str:
        for before, now in self.moved:
            if path == before or path.startswith(f"{before}."):
                return now + path[len(before) :]
        return path


@dataclass(slots=True)
class Recording:
    """Everything compiled so far. `paths` are the modules' paths by identity, `names` the parameters' names. Without
    `runs_code` compiling ends when the code of a graph is generated.

    Methods with the argument `original` replace functions of Dynamo and Inductor, and get the one that they replace."""

    paths: Mapping[int, str]
    names: Mapping[int, str]
    runs_code: bool
    graphs: list[CompiledGraph] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    recompilations: list[Recompilation] = field(default_factory=list)
    _kernels: dict[int, list[CompiledKernel]] = field(default_factory=dict)
    _parameters: dict[int, tuple[str | None, ...]] = field(default_factory=dict)
    _breaks: dict[tuple[str, str | None], GraphBreak] = field(default_factory=dict)
    attempts: collections.deque[Any] = field(default_factory=collections.deque)
    _frames: dict[str, int] = field(default_factory=dict)
    _defined: dict[str, str] = field(default_factory=dict)
    _unsupported: Any = None  # the last exception that Dynamo raised for code that it cannot trace
    _cause: Any = None  # the one that made it start again, to end the graph before that code
    _graph: int = 0
    _owners: dict[types.CodeType | str, str] = field(default_factory=dict)

    @property
    def breaks(self) -> tuple[GraphBreak, ...]:
        """Those that ended a graph, then frames that Dynamo gave up on."""
        found = dict(self._breaks)
        for attempt in self.attempts:
            file, line = attempt.fail_user_frame_filename, attempt.fail_user_frame_lineno
            if attempt.fail_reason is not None and not is_python_library(file or ""):
                source = source_line(file, line) if file else None
                reason, detail = _first_line(attempt.fail_reason), attempt.fail_reason.strip()
                if source is not None or all(reason != known for known, _ in found):
                    found.setdefault((reason, source), GraphBreak(reason, source, detail))
        return tuple(found.values())

    @property
    def called_graphs(self) -> tuple[CompiledGraph, ...]:
        """With the number of calls of each; a backward graph has as many as its forward graph."""
        counts = collections.Counter(self.graphs[call.graph].id for call in self.calls)
        return tuple(replace(graph, calls=counts[graph.id]) for graph in self.graphs)

    @property
    def kernels(self) -> tuple[CompiledKernel, ...]:
        """In the order in which they run: each call of a graph, then the backward graphs of the calls, last first."""
        backward = {graph.id: at for at, graph in enumerate(self.graphs) if graph.phase == "backward"}
        back = [Call(backward[one.id], c.moved) for c in self.calls if (one := self.graphs[c.graph]).id in backward]
        return tuple(
            replace(row, modules={call.path(path): share for path, share in row.modules.items()})
            for call in (*self.calls, *reversed(back))
            for row in self._kernels.get(call.graph, ())
        )

    def _note_call(self, graph: int, inputs: Sequence[object]) -> None:
        """Parameters are inputs of the graph, and show which module it belongs to."""
        given = tuple(self.names.get(id(value)) for value in inputs)
        first = self._parameters.setdefault(graph, given)
        moved: dict[str, str] = {}
        for before, now in zip(first, given, strict=False):
            if before is not None and now is not None and before != now:
                old, new = before.split("."), now.split(".")
                while old and new and old[-1] == new[-1]:
                    del old[-1], new[-1]
                moved[".".join(old)] = ".".join(new)
        self.calls.append(Call(graph, tuple(sorted(moved.items(), key=lambda pair: -len(pair[0])))))

    def find_failed_guards(self, original: Function, entries: Any, frame: Any, *args: object, **kwargs: object) -> Any:
        """A recompilation: of a function that was compiled before in this recording; for Dynamo also of one that
        another model compiled. A guard is written "0/0: tensor 'x' size mismatch …", with the number of the compilation
        whose guard it is."""
        guards, code = original(entries, frame, *args, **kwargs), frame.f_code
        place = (code.co_filename, code.co_firstlineno)
        if any((attempt.co_filename, attempt.co_firstlineno) == place for attempt in self.attempts):
            first = _first_line(guards[0]) if guards else "the failed guard is unknown"
            number, colon, rest = first.partition(": ")
            reason = rest if colon and "/" in number and " " not in number else first
            self.recompilations.append(Recompilation(reason, source_line(*place)))
        return guards

    def compile_subgraph(self, original: Function, output: Any, *args: object, **kwargs: object) -> object:
        from torch._dynamo.output_graph import GraphCompileReason

        self._note_owner(output)
        # Before 2.9 another argument came before it.
        given = (*args, *kwargs.values())
        reason = next(value for value in given if isinstance(value, GraphCompileReason))
        if reason.graph_break:
            self._note_break(reason)
        return original(output, *args, **kwargs)

    def raise_unsupported(self, original: Function, error: Any, *args: object, **kwargs: object) -> None:
        original(error, *args, **kwargs)
        self._unsupported = error

    def restart(self, original: Function, *args: object, **kwargs: object) -> object:
        self._cause = self._unsupported
        return original(*args, **kwargs)

    def _note_break(self, reason: Any) -> None:
        if all(is_python_library(frame.filename) for frame in reason.user_stack):
            return  # a function of Python's that runs between two graphs, and that Dynamo tried to compile too
        lines = [line for frame in reason.user_stack if (line := source_line(frame.filename, frame.lineno))]
        cause = self._cause
        if reason.reason == "step_unsupported" and cause is not None:
            # It cannot resume there (in `try`), so the graph ended at a line before it.
            reason = replace(reason, reason=str(getattr(cause, "msg", cause)), user_stack=cause.real_stack)
            lines = [line for frame in reason.user_stack if (line := source_line(frame.filename, frame.lineno))]
        # The frame that branches says "generic_jump", those that call it "Data-dependent branching".
        text = _BRANCH if reason.reason.startswith("generic_jump") else _first_line(reason.reason)
        source = lines[-1] if lines else None
        if source is None and any(text == known for known, _ in self._breaks):
            return  # the graph that the backend refused before, with its line
        known = self._breaks.get((text, source))
        self._breaks[text, source] = GraphBreak(text, source, reason.reason.strip(), known.count + 1 if known else 1)

    def call_compiler(
        self, original: Function, output: Any, module: fx.GraphModule, *args: object, **kwargs: object
    ) -> object:
        """A graph that the backend refuses is run by Python. The line of the op that it failed at is in the exception
        for a forward op, in a warning before it for a backward op; otherwise it is the line where the graph ends."""
        from torch._dynamo.exc import Unsupported

        code, graph = output.root_tx.f_code, len(self.graphs)
        source = source_line(code.co_filename, code.co_firstlineno)
        self.graphs.append(CompiledGraph(self._id(), "forward", code.co_name, source, _calls(module)))
        self._graph = graph
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always")
            try:
                compiled = original(output, module, *args, **kwargs)
            except BaseException as error:  # Dynamo starts again, or leaves the function to Python
                del self.graphs[graph:]
                self._kernels = {at: rows for at, rows in self._kernels.items() if at < graph}
                if isinstance(error, Unsupported):
                    warned = [str(warning.message) for warning in messages]
                    said = "\n".join((str(error), str(error.__cause__ or error.__context__ or ""), *warned))
                    places = re.findall(r'File "([^"]+)", line (\d+)', said)
                    lines = [line for file, at in places if (line := source_line(file, int(at)))]
                    reason, source = _first_line(error.msg), lines[-1] if lines else None
                    self._breaks.setdefault((reason, source), GraphBreak(reason, source, error.msg.strip()))
                raise

        def counted(*inputs: object) -> object:
            self._note_call(graph, inputs)
            return compiled(*inputs)

        return counted

    def example_inputs(self, original: Function, output: Any) -> list[Any]:
        """Before 2.11 a backend takes real tensors or those of Dynamo's fake mode; later it copies others itself."""
        context = output.tracing_context
        mode, inputs = context.fake_mode, []
        for value in original(output):
            if isinstance(value, FakeTensor) and value.fake_mode is not mode:
                sizes = context.tensor_to_context.get(value)
                source = getattr(sizes, "tensor_source", None)
                value = mode.from_tensor(value, static_shapes=False, symbolic_context=sizes, source=source)
            inputs.append(value)
        return inputs

    def _note_owner(self, output: Any) -> None:
        """Note the module whose method is compiled. The part of a function after a break only has the variables that it
        uses; it belongs to the same module as the function."""
        from torch._dynamo.resume_execution import ContinueExecutionCache

        code, values = output.root_tx.f_code, output.root_tx.f_locals
        parts = ContinueExecutionCache.generated_code_metadata
        whole = parts[code].code if code in parts else code
        held = (values.get(name) for name in code.co_varnames)
        owner = next((path for value in held if (path := self.paths.get(id(value))) is not None), None)
        if owner is not None:
            self._owners[whole] = owner
        self._owners[self._id()] = self._owners.get(whole, "")

    def generate(self, original: Function, module: fx.GraphModule, *args: object, **kwargs: object) -> object:
        """Inductor's code of a graph; a backward graph has the number of its forward graph."""
        if kwargs.get("is_backward"):
            number = self._id()
            known = next((g for g in reversed(self.graphs) if g.id == number and g.phase == "forward"), None)
            function, source = (known.function, known.source) if known else ("backward", None)
            self._graph = len(self.graphs)
            self.graphs.append(CompiledGraph(number, "backward", function, source, _calls(module)))
        plain = None if self.runs_code else fx.GraphModule(module, copy.copy(module.graph))
        try:
            return original(module, *args, **kwargs)
        except _Generated:
            return _op_by_op(plain)

    def compile_to_module(self, original: Function, lowering: Any) -> object:
        if self.runs_code:
            return original(lowering)
        lowering.codegen()
        raise _Generated

    def define_kernel(
        self, original: Function, scheduling: Any, source: str, nodes: Sequence[Any], *args: object, **kwargs: object
    ) -> object:
        """Each node that went into a kernel, by its name; among them are marks where a reduction begins and ends."""
        name = original(scheduling, source, nodes, *args, **kwargs)
        for node in nodes:
            for leaf in node.get_nodes() if hasattr(node, "get_nodes") else ():
                self._defined[leaf.get_name()] = name
        return name

    def codegen(self, original: Function, scheduler: Any, *args: object, **kwargs: object) -> object:
        result = original(scheduler, *args, **kwargs)
        self._note_kernels(scheduler)
        return result

    @property
    def _owner(self) -> str:
        """The module whose method was compiled to the current graph."""
        return self._owners.get(self.graphs[self._graph].id, "")

    def _id(self) -> str:
        """Dynamo numbers the frames of the whole process; here they start with 0."""
        frame, _, version = str(torch._guards.CompileContext.current_compile_id()).partition("/")
        return f"{self._frames.setdefault(frame, len(self._frames))}/{version}"

    def _note_kernels(self, scheduler: Any) -> None:
        """The nodes of a scheduler are what it fused, in the order in which they are launched."""
        from torch._inductor import ir
        from torch._inductor.virtualized import V

        # A part of what another kernel wrote, a buffer that only groups others, a number on the host.
        silent = {"MultiOutput", "NopKernel", "DynamicScalar", "AssertScalar"}
        removed = V.graph.removed_buffers
        parts: dict[str, int] = {}  # bytes of the outputs of a kernel that has several, by the kernel's buffer
        for node in scheduler.nodes:
            if isinstance(node.node, ir.MultiOutput):
                whole: Any = node.node.inputs[0]
                owner = whole.get_name()
                parts[owner] = parts.get(owner, 0) + _buffer_bytes(node.node.get_name())
        for node in scheduler.nodes:
            leaves = node.get_nodes()
            if all(silent & {kind.__name__ for kind in type(leaf.node).__mro__} for leaf in leaves):
                continue
            origins = _ordered({origin for leaf in leaves for origin in getattr(leaf.node, "origins", ())})
            if node.is_extern() and not node.is_template():
                # Its origins include the nodes of its arguments, although other kernels wrote those.
                own = getattr(node.node, "origin_node", None)
                origins = [own] if own is not None else origins[-1:]
                name, kind = _extern_name(node.node), EXTERN
                read, written = _extern_bytes(node, parts)
            else:
                found = dict.fromkeys(
                    self._defined[leaf.get_name()] for leaf in leaves if leaf.get_name() in self._defined
                )
                name, kind = ", ".join(found) or node.get_name(), GENERATED
                read, written = _fused_bytes(node, removed)
            ops, modules = self._divide(origins)
            if not modules:  # a copy of an input or a parameter in another layout, made for what reads it
                users = [user.node for buffer in node.get_outputs() for user in buffer.users]
                reading = {one for user in users for one in getattr(getattr(user, "node", None), "origins", ())}
                modules = self._divide(_ordered(reading)[-1:])[1] or {self._owner: 1.0}
            row = CompiledKernel(name, self._graph, kind, ops, modules, read, written)
            self._kernels.setdefault(self._graph, []).append(row)
        self._defined.clear()

    def _divide(self, origins: Sequence[fx.Node]) -> tuple[tuple[str, ...], dict[str, float]]:
        """The ops that became these nodes, and the share of each module by the bytes of its ops: an op reads what comes
        from outside its nodes and writes what others read."""
        groups: dict[tuple[str, str, str, bool], list[fx.Node]] = {}
        for node in origins:
            original = node.meta.get("original_aten") or node.target
            # The call in Dynamo's graph distinguishes two equal ops of a module.
            calls = node.meta.get("source_fn_stack") or node.meta.get("fwd_source_fn_stack") or [("", None)]
            is_view = bool(getattr(original, "is_view", False))
            schema = getattr(original, "_schema", None)
            name = getattr(original, "__name__", None) or original if schema is None else schema.name
            groups.setdefault((str(name), calls[-1][0], self._path(node), is_view), []).append(node)
        weights: dict[str, int] = {}
        for (_, _, path, _), nodes in groups.items():
            inside = set(nodes)
            read = {arg for node in nodes for arg in node.all_input_nodes} - inside
            written = [node for node in nodes if not node.users or any(user not in inside for user in node.users)]
            nbytes = sum(map(_value_bytes, read)) + sum(map(_value_bytes, written))
            weights[path] = weights.get(path, 0) + nbytes
        total = sum(weights.values())
        shares = {path: nbytes / total if total else 1 / len(weights) for path, nbytes in weights.items()}
        working = [name for name, _, _, is_view in groups if not is_view]
        return tuple(working or [name for name, *_ in groups]), shares

    def _path(self, node: fx.Node) -> str:
        """The innermost module that an op was called in: without one it was called by the function that was compiled.
        Passes of Inductor make nodes that nothing called; they belong to what reads them, or to what they read."""
        seen, waiting = {node}, collections.deque([node])
        while waiting:
            near = waiting.popleft()
            stack = near.meta.get("nn_module_stack") or near.meta.get("fwd_nn_module_stack")
            for key, (_name, _) in reversed((stack or {}).items()):
                # Since 2.5 the key is the identity of the module, behind an "@" the number of the call.
                number = key.partition("@")[0]
                path = self.paths.get(int(number)) if number.isdecimal() else None
                if path is not None:
                    return path
            if stack or near.meta.get("stack_trace") or len(seen) > 32:
                return self._owner
            neighbours = [n for n in (*near.users, *near.all_input_nodes) if n not in seen and n.op == "call_function"]
            seen.update(neighbours)
            waiting.extend(neighbours)
        return self._owner


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["unknown"])[0]


def _calls(module: fx.GraphModule) -> int:
    return sum(node.op.startswith("call") for node in module.graph.nodes)


def _ordered(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    found = [node for node in nodes if node.op not in ("placeholder", "get_attr", "output")]
    place = {node: at for graph in {node.graph for node in found} for at, node in enumerate(graph.nodes)}
    return sorted(found, key=lambda node: place.get(node, 0))


def _value_bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    tensors = [
        item for item in (value if isinstance(value, list | tuple) else [value]) if isinstance(item, torch.Tensor)
    ]
    total = 0
    for tensor in tensors:
        size: int | torch.SymInt = tensor.numel()
        # A dynamic size counts with its value in this run.
        hint = size if isinstance(size, int) else getattr(getattr(size, "node", None), "hint", None)
        total += int(hint or 0) * tensor.element_size()
    return total


def _size_hint(expression: object) -> int:
    """The same for Inductor's expressions."""
    from torch._inductor.virtualized import V

    sizes: Any = V.graph.sizevars
    ask = getattr(sizes, "optimization_hint", None) or sizes.size_hint  # the name changed in 2.11
    return int(ask(expression, fallback=0))


def _buffer_bytes(name: str) -> int:
    from torch._inductor.virtualized import V

    try:
        return _size_hint(V.graph.get_numel(name)) * int(V.graph.get_dtype(name).itemsize)
    except (NotImplementedError, AttributeError, KeyError):  # without a layout
        return 0


def _fused_bytes(node: Any, removed: Any) -> tuple[int, int]:
    """Bytes that a generated kernel reads and writes, each element once. Buffers that are only read inside the kernel
    were removed: they stay in registers."""
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for found, deps in ((read, node.read_writes.reads), (written, node.read_writes.writes)):
        for dep in deps:
            if type(dep).__name__ not in ("MemoryDep", "StarDep") or dep.name in removed:
                continue
            whole = _buffer_bytes(dep.name)
            if type(dep).__name__ == "MemoryDep" and dep.is_indirect():
                # An index that is read from memory: at most one element for each point of the loop.
                from torch._inductor.virtualized import V

                one = prod(map(_size_hint, dep.size)) * int(V.graph.get_dtype(dep.name).itemsize)
            else:
                one = dep.numbytes_hint()
            found[dep.name] = min(found.get(dep.name, 0) + one, whole)
    return sum(read.values()), sum(written.values())


def _extern_bytes(node: Any, parts: Mapping[str, int]) -> tuple[int, int]:
    """A call of a library reads its arguments as they are seen, so of a view only that, and writes its results."""
    read: dict[str, int] = {}
    for value in leaves(node.node.inputs):
        if not hasattr(value, "get_size") or not hasattr(value, "get_name"):
            continue
        try:
            sizes, strides = value.get_size(), value.get_stride()
            seen = prod(_size_hint(size) for size, stride in zip(sizes, strides, strict=True) if stride != 0)
            name = value.get_name()
            seen *= int(value.get_dtype().itemsize)
        except (NotImplementedError, AttributeError):  # a number, or a buffer without a layout
            continue
        read[name] = min(read.get(name, 0) + seen, _buffer_bytes(name) or seen)
    own = [buffer.get_name() for buffer in node.get_outputs()]
    written = sum(parts.get(name, 0) or _buffer_bytes(name) for name in own)
    changed = node.node.get_mutation_names() if hasattr(node.node, "get_mutation_names") else ()
    return sum(read.values()), written + sum(map(_buffer_bytes, changed))


def _extern_name(node: Any) -> str:
    """A library's function, an op that Inductor leaves to torch, or the user's own Triton kernel."""
    if hasattr(node, "kernel_idx"):
        from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

        kernel: Any = kernel_side_table.get_kernel(node.kernel_idx)
        function = getattr(kernel, "fn", kernel)
        return str(getattr(function, "__name__", function))
    overload: Any = getattr(node, "op_overload", None)
    if getattr(overload, "_schema", None) is not None:
        return str(overload._schema.name)
    return str(getattr(node, "python_kernel_name", None) or type(node).__name__)


def _op_by_op(plain: fx.GraphModule | None) -> Any:
    """The graph itself as the code that Inductor would have compiled."""
    from torch._inductor import output_code

    class OpByOp(output_code.OutputCode):
        def __init__(self) -> None:
            super().__init__()
            self._boxed_call = True

        def __call__(self, inputs: Sequence[object]) -> object:
            # The outputs of generated code share storage and are not views to autograd, so that a part of the model
            # behind a break may write into them. Without this key the outputs of the graph are not views either.
            keys = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
            with torch._C._ExcludeDispatchKeyGuard(keys):
                assert plain is not None
                return plain(*inputs)

        def post_compile(self, *args: object, **kwargs: object) -> None:
            pass

        def set_triton_bundle(self, triton_bundle: object) -> None:
            pass

    return OpByOp()


@contextmanager
def recording(model: nn.Module, *, runs_code: bool) -> Iterator[Recording]:
    """Record what this thread compiles of the model. Without `runs_code` Inductor's code is generated and not
    compiled, and the graphs run op by op."""
    from torch._dynamo import convert_frame, exc, output_graph, symbolic_convert
    from torch._dynamo import utils as dynamo_utils
    from torch._inductor import compile_fx, config, graph, scheduler
    from torch._inductor.codegen import cpp, triton

    paths = ModulePaths(model)
    found = Recording(
        {id(module): path for module, path in paths.modules()},
        {id(owned.tensor): owned.name for owned in paths.owned},
        runs_code,
    )
    guards = "get_and_maybe_log_recompilation_reasons"  # without the last "s" in 2.6
    guards = guards if hasattr(convert_frame, guards) else guards[:-1]
    replaced: list[tuple[Any, str, Function]] = [
        (output_graph.OutputGraph, "compile_subgraph", found.compile_subgraph),
        (exc.Unsupported, "__init__", found.raise_unsupported),
        (symbolic_convert.SpeculationEntry, "fail_and_restart_analysis", found.restart),
        (output_graph.OutputGraph, "call_user_compiler", found.call_compiler),
        (output_graph.OutputGraph, "example_inputs", found.example_inputs),
        (convert_frame, guards, found.find_failed_guards),
        (compile_fx, "fx_codegen_and_compile", found.generate),
        (scheduler.Scheduler, "codegen", found.codegen),
        (cpp.CppScheduling, "define_kernel", found.define_kernel),
        (triton.TritonScheduling, "define_kernel", found.define_kernel),
        (graph.GraphLowering, "compile_to_module", found.compile_to_module),
    ]
    with ExitStack() as stack:
        for place, name, replacement in replaced:
            stack.enter_context(replaced_here(place, name, replacement))
        stack.callback(setattr, dynamo_utils, "_compilation_metrics", dynamo_utils._compilation_metrics)
        dynamo_utils._compilation_metrics = found.attempts
        stack.enter_context(_caches_kept())
        stack.enter_context(config.patch(fx_graph_cache=False, cpp_wrapper=False))
        stack.enter_context(torch._functorch.config.patch(enable_autograd_cache=False))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", module=r"torch\b")  # torch itself, not the model
        for name in ("torch._dynamo", "torch._inductor", "torch._functorch"):
            logger = logging.getLogger(name)  # their warnings are in the report
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(max(logger.level, logging.ERROR))
        if not runs_code:
            # Which vector instructions there are is otherwise found by compiling a test, for seconds.
            stack.enter_context(config.patch({"cpp.vec_isa_ok": True, **dict.fromkeys(TUNING, False)}))
        yield found


@contextmanager
def _caches_kept() -> Iterator[None]:
    """Discards what was compiled in the block: the user's code must not run our graphs, nor count our compilations.
    Code that the user compiled before is kept."""
    from torch._dynamo import convert_frame, pgo
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    eval_frame = torch._C._dynamo.eval_frame
    entries_of = eval_frame._debug_get_cache_entry_list
    known = {code: entries_of(code) for ref in convert_frame.input_codes.seen if (code := ref()) is not None}
    sizes_seen = pgo._CODE_STATE  # sizes that varied, so that the next compilation takes them as variables
    pgo._CODE_STATE = None
    try:
        yield
    finally:
        pgo._CODE_STATE = sizes_seen
        for code in [code for ref in convert_frame.input_codes.seen if (code := ref()) is not None]:
            if not known.get(code):
                eval_frame.reset_code(code)
                continue
            for entry in entries_of(code):
                state = entry.guard_manager.extra_state
                if state is not None and not any(entry is old for old in known[code]):
                    state.invalidate(entry, DeletedGuardManagerWrapper("compiled by torchgauge"))


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of `torch.compile`. `changes` are options of Inductor; those of other backends are unknown."""

    backend: Function
    name: str = "inductor"
    dynamic: bool | None = None
    fullgraph: bool = False
    changes: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def default(cls) -> Options:
        from torch._dynamo import lookup_backend

        return cls(lookup_backend("inductor"))

    def fresh_backend(self, *, runs_code: bool) -> Function:
        """The same backend as a new object. Dynamo reuses graphs compiled by an equal backend, and graphs that the user
        compiled must not be taken for those to be recorded."""

        def backend(module: fx.GraphModule, inputs: object, **kwargs: object) -> object:
            tuning = [] if runs_code else [name for name in TUNING if self.changes.get(name)]
            if not tuning:
                return self.backend(module, inputs, **kwargs)
            return self.backend(module, inputs, config_patches=dict.fromkeys(tuning, False), **kwargs)

        return backend


def is_compiled(model: nn.Module) -> bool:
    """Whether torch.compile was applied to the module, or to one inside it."""
    if "torch._dynamo" not in sys.modules:
        return False
    from torch._dynamo import OptimizedModule

    for module in all_modules(model):
        state = vars(module)
        has_own_call = "_compiled_call_impl" in state or "forward" in state  # most modules have those of their class
        if (has_own_call or isinstance(module, OptimizedModule)) and options_of(module) is not None:
            return True
    return False


def options_of(part: Any) -> Options | None:
    """How a module was compiled: wrapped by `torch.compile`, by its own `compile()`, or with a compiled forward."""
    from torch._dynamo import OptimizedModule
    from torch._dynamo.eval_frame import _TorchDynamoContext

    if isinstance(part, OptimizedModule):
        context: Any = part.dynamo_ctx
    else:
        state = vars(part) if isinstance(part, nn.Module) else {"forward": part}
        function = state.get("_compiled_call_impl") or state.get("forward")
        if function is None or not hasattr(function, "_torchdynamo_orig_callable"):
            return None
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        context = next((value for value in cells if isinstance(value, _TorchDynamoContext)), None)
        if context is None:
            return None
    backend: Any = context.callback
    while True:  # the name changed in 2.8
        inner = getattr(backend, "_torchdynamo_orig_backend", None) or vars(backend).get("_torchdynamo_orig_callable")
        if inner is None:
            break
        backend = inner
    own = getattr(backend, "compiler_fn", backend)  # of a backend that is given as a function
    name = getattr(own, "compiler_name", None) or getattr(own, "__name__", type(own).__name__)
    dynamic = context._dynamic if hasattr(context, "_dynamic") else getattr(context, "dynamic", None)
    whole = bool(getattr(context, "fullgraph", False) or getattr(context, "error_on_graph_break", False))
    return Options(own, str(name), dynamic, whole, dict(getattr(own, "config", None) or {}))


def root_options(target: object) -> Options | None:
    """The options of the outermost torch.compile wrapper of a whole model, which may be inside those of data
    parallelism; None if only parts of it are compiled, or the target is not a model."""
    if not isinstance(target, nn.Module) or "torch._dynamo" not in sys.modules:
        return None
    from torch._dynamo import OptimizedModule

    inner = unwrap(target)
    module: Any = target
    while module is not inner and not isinstance(module, OptimizedModule):
        module = module.module
    return options_of(module) if isinstance(module, OptimizedModule) else None


def compile_parts(model: nn.Module, root: Options | None, *, runs_code: bool) -> tuple[Any, list[Options]]:
    """The model compiled again: as a whole with the options of `root`, its compiled parts with their own, or as a whole
    with torch's defaults; and the options that were used. Changes the model's modules. A break is to be reported, so
    `fullgraph`, which raises at the first, is not passed on."""
    from torch._dynamo import OptimizedModule

    used: list[tuple[Options, Any]] = []

    def compiled(part: Any, options: Options) -> Any:
        backend = next((backend for known, backend in used if known == options), None)
        if backend is None:  # parts with equal options share what is compiled for one of them
            backend = options.fresh_backend(runs_code=runs_code)
            used.append((options, backend))
        return torch.compile(part, backend=backend, dynamic=options.dynamic)

    result: Any = model
    if root is not None or not is_compiled(model):
        result = compiled(model, root or Options.default())
    else:
        for module in list(model.modules()):
            for name, child in module._modules.items():
                if isinstance(child, OptimizedModule) and (options := options_of(child)) is not None:
                    module._modules[name] = compiled(child._orig_mod, options)
            options = None if isinstance(module, OptimizedModule) else options_of(module)
            if options is None:
                continue
            if module._compiled_call_impl is not None:
                module._compiled_call_impl = compiled(module._call_impl, options)
            else:
                plain = vars(module)["forward"]._torchdynamo_orig_callable
                bound = types.MethodType(plain.__func__, module) if isinstance(plain, types.MethodType) else plain
                module.__dict__["forward"] = compiled(bound, options)
    return result, [options for options, _ in used]


def require_compiler(device: torch.device) -> None:
    """Raise `InputError` if Inductor cannot compile for the device."""
    if device.type != "cpu":
        return
    from torch._inductor import config
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        subprocess.run([get_cpp_compiler(), "--version"], capture_output=True, check=True)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        tried = config.cpp.cxx if isinstance(config.cpp.cxx, str) else [name for name in config.cpp.cxx if name]
        raise InputError(
            "torch.compile on the CPU needs a C++ compiler, and none was found "
            f"(tried: {tried if isinstance(tried, str) else ', '.join(tried)}): install one (g++ or clang++), or set "
            "CXX to its path; --execution eager needs none"
        ) from error
