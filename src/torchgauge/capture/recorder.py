"""Records a run: op calls in order, module calls, live memory, warnings."""

from __future__ import annotations

import linecache
import os
import re
import sys
import tokenize
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from math import inf
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import NamedTuple

import torch
from torch import nn

import torchgauge
from torchgauge.capture.fake_tensor import Content, Endless, FakeTensor, Ledger, dtype_name, sparsity
from torchgauge.capture.paths import AnyModule, Inlined, ModulePaths
from torchgauge.capture.structure import packed
from torchgauge.facts import Allocation, HostRead, OpRecord, Signature, TensorSpec
from torchgauge.facts.tensor import is_contiguous

# Ops whose layer was not called from a line of the model's code: not searched again.
UNKNOWN_LINE = ""
_NO_MODEL = ModulePaths(nn.Module())


@dataclass(frozen=True, slots=True)
class Failure:
    """The innermost module that was running when the model raised, and what it had been given."""

    path: str
    type: str
    inputs: object
    module: nn.Module | Inlined | None = None


@dataclass(slots=True)
class ModuleCalls:
    """`lines` are those of the model's code that it is called from."""

    count: int = 0
    inputs: object = None
    outputs: object = None
    lines: dict[str, None] = field(default_factory=dict)


class Recorder:
    """`original_of` returns the user's module for one of the replica that runs; `is_foreign`: the model came from a
    file, so the work that it can cause is limited."""

    def __init__(
        self,
        paths: ModulePaths,
        *,
        train: bool = False,
        is_foreign: bool = False,
        original_of: Callable[[nn.Module], nn.Module] = lambda module: module,
    ) -> None:
        self.budget = Budget(is_limited=is_foreign)
        self.original_of = original_of
        self.ops: list[OpRecord] = []
        self.ledger = Ledger(self.ops)
        self.calls: dict[str, ModuleCalls] = {}
        self.warnings: dict[str, None] = {}
        self._host_reads: dict[tuple[str, str, str], list[int | None]] = {}
        self.paths_with_numpy: dict[str, None] = {}  # of modules that hand memory to numpy while they run
        self.failure: Failure | None = None
        self.failing_op: tuple[str, list[TensorSpec]] | None = None
        self.has_sparse = False
        self.has_read_assumed_values = False
        self.path = ""
        self.source: str | None = None
        self.phase = "forward"
        # By storage, what the forward pass left for the backward pass to read.
        self.saved: dict[tuple[int, Allocation], None] = {}
        self.recomputed: list[int] = []  # indices of forward ops that run again during the backward pass
        self._forward_ops = 0
        self._paths = paths
        self.packages = paths.packages
        self._train = train
        # Tensors that a rehearsal wrote to, with their earlier content.
        self._written: dict[int, Content] | None = None
        # Autograd numbers its nodes; the number says in which module a backward op's forward ran.
        self._path_of_node: dict[int, str] = {}

    def clear_traceback(self) -> None:
        """Forget the model: frames of an error may hold the recorder for longer than the run lasts."""
        self._paths, self.failure = _NO_MODEL, None
        self.original_of = lambda module: module

    def record(self, signature: Signature, weights: tuple[str, ...], producers: tuple[int | None, ...]) -> None:
        path = self._attribute(weights) if self._train else self.path
        if self.budget.is_limited:
            self.budget.spend_op(len(signature.outputs))
        source = self.source
        if source is None and self.phase == "forward":
            source = model_line(self.packages)
        elif source is UNKNOWN_LINE:
            source = None
        # A backward pass runs without autograd, and what it computes again of the forward pass with it.
        if self.phase == "backward" and torch.is_grad_enabled():
            self.recomputed.append(len(self.ops))
        live = self.ledger.live + signature.conversion_bytes
        self.ops.append(OpRecord(len(self.ops), signature, path, live, weights, self.phase, source, producers))

    def begin_backward(self) -> None:
        self.phase = "backward"
        self._forward_ops = len(self.ops)

    def note_backward_read(self, storage: int, allocation: Allocation) -> None:
        """A backward op reads a storage that is neither a parameter nor a buffer."""
        if allocation[0] < self._forward_ops and allocation[1]:
            self.saved[storage, allocation] = None

    @contextmanager
    def rehearsal(self) -> Iterator[Callable[[], list[OpRecord]]]:
        """Run something to see what it does: gives a way to its ops; forgets them, the calls and all that was written
        to fake tensors at the end."""
        ops, calls, source = len(self.ops), {path: replace(calls) for path, calls in self.calls.items()}, self.source
        around, self._written = self._written, {}
        reads, self._host_reads = self._host_reads, {}
        try:
            yield lambda: self.ops[ops:]
        finally:
            for content in self._written.values():
                content.restore()
            del self.ops[ops:]
            self.calls, self.source, self._written = calls, source, around
            self._host_reads = reads

    def note_write(self, fake: FakeTensor) -> None:
        """Call before an op writes to a fake tensor."""
        if self._written is not None and id(fake.storage_) not in self._written:
            self._written[id(fake.storage_)] = Content(fake)

    def forget_host_reads(self, *, but: Sequence[HostRead]) -> None:
        """Forget the calls that a second run of the model did not make."""
        again = {(read.call, read.module, read.source) for read in but}
        self._host_reads = {place: made for place, made in self._host_reads.items() if place in again}

    def note_line(self, source: str | None) -> None:
        """The line of code, `file:line`, that the ops to come are made from."""
        self.source = source

    def note_host_read(self, call: str, writer: int | None, *, is_weight: bool) -> None:
        """The model's code brings values of a tensor to the host, which the op `writer` made."""
        if call == "numpy":
            self.paths_with_numpy[self.path] = None
        line = model_line(self.packages)
        if line is not None and self.phase == "forward":
            made = self._host_reads.setdefault((call, self.path, line), [])
            if (writer is not None or is_weight) and writer not in made:
                made.append(writer)

    @property
    def host_reads(self) -> tuple[HostRead, ...]:
        return tuple(HostRead(*place, tuple(made)) for place, made in self._host_reads.items())

    def warn(self, message: str) -> None:
        self.warnings[message] = None

    def enter(self, module: AnyModule, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """Note that a module starts; returns the path to come back to."""
        path = self._paths.path_of(module)
        return self.path if path is None else self.enter_path(path, args, kwargs)

    def enter_path(self, path: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        previous, self.path = self.path, path
        calls = self.calls.get(path)
        if calls is None:
            calls = self.calls[path] = ModuleCalls(inputs=describe_call(args, kwargs, self.budget.spend_elements))
        calls.count += 1
        if (line := model_line(self.packages) if self.source is None else self.source) and self.phase == "forward":
            calls.lines[line] = None
        return previous

    def leave(self, module: AnyModule, previous: str, output: object) -> None:
        if self._paths.path_of(module) is not None:
            self.leave_path(previous, output)

    def leave_path(self, previous: str, output: object) -> None:
        calls = self.calls[self.path]
        if calls.outputs is None:
            calls.outputs = describe_value(output, self.budget.spend_elements)
        self.path = previous

    def fail(self, previous: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        if self.failure is None:
            module, kind = self._paths.module_at(self.path), self._paths.type_at(self.path)
            self.failure = Failure(self.path, kind, describe_call(args, kwargs, self.budget.spend_elements), module)
        self.path = previous

    def _attribute(self, weights: tuple[str, ...]) -> str:
        if self.phase == "forward":
            # The node of the op that runs now was made just before it: the last number given out. Ops without a node
            # see the number of an earlier one, so the first to come keeps it.
            self._path_of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, self.path)
            return self.path
        if self.phase == "backward":
            node = torch._C._current_autograd_node()
            return self._path_of_node.get(node._sequence_nr(), "") if node is not None else ""
        owners = {weight.rpartition(".")[0] for weight in weights}
        return owners.pop() if len(owners) == 1 else ""


Spend = Callable[[int], None]


def _free(count: int) -> None:
    """No limit on the length of a description."""


def describe_call(args: tuple[object, ...], kwargs: Mapping[str, object], spend: Spend = _free) -> object:
    """Positional arguments as a list; with keywords a dict, positions as "0", "1", …"""
    if not kwargs:
        return [describe_value(value, spend) for value in args]
    named = {str(index): describe_value(value, spend) for index, value in enumerate(args)}
    return named | {name: describe_value(value, spend) for name, value in kwargs.items()}


def describe_value(value: object, spend: Spend = _free) -> object:
    """A value with its structure kept and its tensors as specs; other objects are given by their type. `spend` gets
    the length of each list, as often as it occurs: a list that holds one list a thousand times is described so."""
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        spend(len(value))
        return {str(key): describe_value(item, spend) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        spend(len(value))
        return [describe_value(item, spend) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: describe_value(getattr(value, f.name, None), spend) for f in fields(value)}
    return f"<{type(value).__name__}>"


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    return tensor.spec.record if isinstance(tensor, FakeTensor) else spec_of_real(tensor)


def spec_of_real(tensor: torch.Tensor) -> TensorSpec:
    tensor = packed(tensor)
    shape, dtype = tuple(tensor.shape), dtype_name(tensor.dtype)
    if tensor.layout is not torch.strided:
        return TensorSpec(shape, dtype, None, *(sparsity(tensor) or ()))
    if is_contiguous(shape, tensor.stride()):
        return TensorSpec(shape, dtype)
    return TensorSpec(shape, dtype, tensor.stride())


# How much a model from a file may make an analysis do. Each limit is far above what models need. A graph of a few
# kilobytes can loop for ever, call itself an exponential number of times, or make lists that fill the memory. The model
# of a caller's own code has no such limits: there a long run is the caller's decision.

MAX_OPS = 1 << 17  # each is a row of the report
MAX_TENSORS = 1 << 20  # that ops return, all together: `unbind` gives many at once
MAX_STEPS = 1 << 22  # nodes, branches and turns of loops that are interpreted; most are not ops
MAX_ELEMENTS = 1 << 23  # of lists, tuples and dicts, and sixteenths of the letters of texts


class Budget:
    """The rest of each limit; raises `Endless` when one is used up."""

    __slots__ = ("elements_left", "is_limited", "ops_left", "steps_left", "tensors_left")

    def __init__(self, *, is_limited: bool) -> None:
        self.is_limited = is_limited
        self.ops_left: float = MAX_OPS if is_limited else inf
        self.tensors_left: float = MAX_TENSORS if is_limited else inf
        self.steps_left: float = MAX_STEPS if is_limited else inf
        self.elements_left: float = MAX_ELEMENTS if is_limited else inf

    def spend_op(self, tensors: int) -> None:
        self.ops_left -= 1
        if self.ops_left < 0:
            raise Endless(f"the graph runs more than {MAX_OPS:,} ops")
        self.tensors_left -= tensors
        self.require_tensors(0)

    def require_tensors(self, count: int) -> None:
        """To be asked before an op makes as many."""
        if count > self.tensors_left:
            raise Endless(f"the ops of the graph return more than {MAX_TENSORS:,} tensors")

    def spend_steps(self, count: int = 1) -> None:
        self.steps_left -= count
        if self.steps_left < 0:
            raise Endless(f"the graph takes more than {MAX_STEPS:,} steps and does not end")

    def spend_elements(self, count: int) -> None:
        self.elements_left -= count
        self.require_elements(0)

    def require_elements(self, count: int) -> None:
        """To be asked before a list or text of this length is made."""
        if count > self.elements_left:
            raise Endless(f"the graph makes lists and texts of more than {MAX_ELEMENTS:,} elements")


# The line of the model's code that an op is called from.

# Frames of these packages are not the model's code.
_OWN = tuple(str(Path(str(package.__file__)).parent / "_")[:-1] for package in (torch, torchgauge))
# Python's library, below which packages are installed, does not count either.
_PYTHON = str(Path(os.__file__).parent / "_")[:-1]
_RUNS_MODEL = "call_model"
# What torch.fx calls the code that it makes of a graph, and how a line of it starts.
_TRACED, _ASSIGNED = "<eval_with_key>", re.compile(r"\s*(\w+) = ")
_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")

# By the name of a code object's file, the name to report; None for frames to skip.
_known: dict[str, str | None] = {}
# Files whose code ran as Python. A script names files too, which need not be those that it was made from.
_ran: set[str] = set()


def model_line(packages: Container[str]) -> str | None:
    """`file.py:LINE` of the innermost frame that is neither torch's nor Python's nor ours, with the folders from the
    package on for installed packages; None where there is none, as in a Sequential of torch's layers. `packages` hold
    the model's classes: another installed package, as einops, works for the code that calls it. About 1 µs."""
    frame: FrameType | None = sys._getframe(2)
    helper: str | None = None
    while frame is not None:
        code = frame.f_code
        if code.co_filename not in _skipped_files:
            known = _code_lines.get(id(code)) or _note_code(code)
            if known is not None:
                # Python counts lines from the start of the function to find `f_lineno`: 7 µs in a long one.
                line = known.lines.get(frame.f_lasti)
                if line is None:
                    line = _traced_line(frame) if known.is_traced else f"{known.name}:{frame.f_lineno}"
                    known.lines[frame.f_lasti] = line
                if line and (known.package is None or known.package in packages):
                    return line
                helper = helper or line or None
        if code.co_name == _RUNS_MODEL:
            break  # beyond is the caller of the analysis
        frame = frame.f_back
    return helper


class _CodeLines(NamedTuple):
    """`code` is kept, so that no other gets its id; `name` is that of its file, `package` the installed one that it is
    part of; `lines` are those that ops were called from, by the position in the bytecode. `is_traced`: torch.fx has
    made it of a graph, whose nodes may know their lines."""

    code: CodeType
    name: str
    package: str | None
    lines: dict[int, str]
    is_traced: bool = False


_code_lines: dict[int, _CodeLines] = {}
_skipped_files: set[str] = set()  # whose frames are not the model's code
_MAX_CACHED_CODES = 1 << 14  # a notebook defines functions again and again


def _note_code(code: CodeType) -> _CodeLines | None:
    """None for the code of a file to skip."""
    if code.co_filename.startswith(_TRACED):
        known = _code_lines[id(code)] = _CodeLines(code, "", None, {}, is_traced=True)
        return known
    name = _reported_name(code.co_filename)
    if name is None:
        _skipped_files.add(code.co_filename)
        return None
    _ran.add(code.co_filename)
    if len(_code_lines) >= _MAX_CACHED_CODES:
        _code_lines.clear()
    # A module without a folder is a package too.
    package = name.partition("/")[0].removesuffix(".py") if _PACKAGES.match(code.co_filename) else None
    known = _code_lines[id(code)] = _CodeLines(code, name, package, {})
    return known


def _traced_line(frame: FrameType) -> str:
    """The line that a node of a graph was traced or exported from; empty where it does not know."""
    from torchgauge.source.exported.program import last_line

    written = _ASSIGNED.match(linecache.getline(frame.f_code.co_filename, frame.f_lineno))
    graph = frame.f_locals.get("self")
    nodes = graph.graph.nodes if written and isinstance(graph, torch.fx.GraphModule) else ()
    trace = next((node.meta.get("stack_trace") for node in nodes if written and node.name == written[1]), None)
    file, _, line = (last_line(trace) or "").rpartition(":")
    return (source_line(file, int(line)) or "") if file else ""


def source_line(file: str, line: int | None) -> str | None:
    """The same for a file and a line; None where it is not the model's code."""
    name = _reported_name(file)
    return name if name is None else f"{name}:{line}"


def _reported_name(file: str) -> str | None:
    """None for a file that is not the model's code."""
    if file not in _known:
        # The code of a TorchScript archive is made from the model's.
        is_archive = "__torch__" in Path(file).parts
        if not file or is_archive or file.startswith((*_OWN, "<")) or is_python_library(file):
            _known[file] = None
        elif not _PACKAGES.match(file):
            _known[file] = Path(file).name
        else:
            installed = _PACKAGES.sub("", file).replace("\\", "/")
            _known[file] = None if installed.startswith("torch/") else installed  # of another machine, in a script
    return _known[file]


def imported_module(name: str) -> ModuleType | None:
    """The module of the file that is reported by this name; None where several are, or none that was imported."""
    files = {file for file, reported in _known.items() if reported == name}
    # Not by attribute access, at which a lazy module imports what may not be installed.
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    found = [module for module in modules if vars(module).get("__file__") in files]
    return found[0] if len(files) == 1 and found else None


def source_text(name: str) -> str | None:
    """The text of the file that is reported by this name; None where several are, or where this process neither ran
    nor imported it: a path that only a file names is not opened."""
    files = [file for file, reported in _known.items() if reported == name]
    if len(files) != 1 or not (files[0] in _ran or imported_module(name)) or not Path(files[0]).is_file():
        return None
    try:
        with open(files[0], "rb") as start:
            encoding, _ = tokenize.detect_encoding(start.readline)
        # Line ends stay as they are: a diff has to match them.
        with open(files[0], encoding=encoding, newline="") as text:
            return text.read() or None
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def is_python_library(file: str) -> bool:
    return file.startswith(_PYTHON) and not _PACKAGES.match(file)
