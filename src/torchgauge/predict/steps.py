"""The events of a run on a CUDA device: what is allocated and freed, op by op, over two steps.

Nothing is computed and no device is needed: the model runs on tensors without data. The second step is a steady one
(the first creates the optimizer's state), and every later one repeats it.
"""

from __future__ import annotations

import contextvars
import fnmatch
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from torchgauge.capture import undisturbed, unwrap
from torchgauge.capture.calls import watch_modules
from torchgauge.capture.copier import Copier
from torchgauge.capture.failures import call_model, clear_traceback, step_errors
from torchgauge.capture.fake_run import FakeRun, swap_tensors
from torchgauge.capture.fake_tensor import DataDependent, FakeTensor, Spec, Specs, Storage, make_fake
from torchgauge.capture.leftovers import Leftovers, Variables
from torchgauge.capture.op_call import FakeCall, Op
from torchgauge.capture.patched_functions import elements_given, real_memory_for_numpy
from torchgauge.capture.paths import ModulePaths
from torchgauge.capture.plan import Output, Plan, Planner
from torchgauge.capture.recorder import UNKNOWN_LINE, ModuleCalls, Recorder
from torchgauge.capture.restored_state import prepared
from torchgauge.capture.run import one_at_a_time
from torchgauge.capture.shape_rules import preserved_stride
from torchgauge.capture.structure import tensors_within
from torchgauge.errors import InputError
from torchgauge.facts import OpRecord
from torchgauge.facts.tensor import contiguous_stride
from torchgauge.predict.convolutions import Workspace
from torchgauge.predict.devices import Chip
from torchgauge.predict.kernels import CudaKernels, Library
from torchgauge.predict.optimizers import MakeOptimizer
from torchgauge.predict.weight_types import WEIGHT_BITS
from torchgauge.predict.workspaces import CUBLAS_LT_BYTES, EARLY, TEMPORARIES, OpArguments, Phases, Recurrent
from torchgauge.registry import Registry, collector_paused
from torchgauge.source import Candidate
from torchgauge.source.modules import all_modules

OP = 0  # the number of the event that starts an op: (0, index of the op)


@dataclass(frozen=True)
class Setting:
    """How the model is run. `loss` gives the loss of an output; `captured`: the run is captured into a CUDA graph."""

    library: Library
    train: bool = False
    dtype: torch.dtype | None = None
    amp: torch.dtype | None = None
    optimizer: MakeOptimizer | None = None
    accumulate: int = 1
    checkpoint: str | None = None
    frozen: Sequence[str] = ()
    lora: tuple[int, str] | None = None
    weights_dtype: str | None = None  # of the matrices of layers, in fewer than 16 bits
    channels_last: bool = False
    loss: Callable[..., torch.Tensor] | None = None
    captured: bool = False


@dataclass
class Trace:
    """`steps` are events: (number, bytes) for memory taken, (number, -1) for memory freed, (OP, index) where an op
    starts. Numbers are never used twice. `placed` are the tensors before the first step: (class, name, bytes)."""

    placed: list[tuple[str, str, int]]
    steps: list[list[tuple[int, int]]]
    ops: list[OpRecord]
    classes: dict[int, str]
    loss: str = ""
    warnings: list[str] = field(default_factory=list)
    # By number, the least and the most that a workspace may take whose size is an estimate.
    workspace_range: dict[int, tuple[int, int]] = field(default_factory=dict)
    # Those that call cuBLAS: "forward", "backward".
    cublas_threads: tuple[str, ...] = ()
    # How often a module is called in a step: work of the host.
    module_calls: int = 0

    @property
    def step_ops(self) -> list[OpRecord]:
        """The ops of the steady step."""
        indices = (index for number, index in self.steps[1] if number == OP)
        return [self.ops[index] for index in indices if index < len(self.ops)]

    @property
    def step_flops(self) -> int:
        """FLOPs of the steady step, including recomputation; ops without a formula count as 0."""
        return sum(op.cost.flops or 0 for op in self.step_ops)


class KernelMemory(NamedTuple):
    """Memory of an op's kernels in addition to its results: `early` is allocated before these and freed when the op
    ends, `phases` follow one another."""

    early: list[int]
    phases: Phases


@dataclass
class CudaPlans:
    """Plans that all runs of this process share, as those of the analysis are. `calls` has, by id, those whose kernels
    take memory in addition to their results, with the arguments; `memory` says how much, by chip."""

    plans: dict[tuple[object, ...], Plan] = field(default_factory=dict)
    calls: dict[int, tuple[Plan, OpArguments]] = field(default_factory=dict)
    memory: dict[Chip, dict[int, KernelMemory]] = field(default_factory=dict)

    @classmethod
    def shared(cls) -> CudaPlans:
        """For the current default dtype, which decides the type of numbers."""
        key = torch.get_default_dtype()
        if key not in _cuda_plans or len(_cuda_plans[key].plans) + len(_cuda_plans[key].calls) > _MAX_PLANS:
            _cuda_plans[key] = cls()
        return _cuda_plans[key]

    def memory_of(self, plan: Plan, chip: Chip) -> KernelMemory | None:
        """None for ops whose kernels take nothing."""
        known, key = self.memory.setdefault(chip, {}), id(plan)
        if key not in known and key in self.calls:
            arguments, name = self.calls[key][1], plan.info.name
            made = plan.signature.outputs
            if made and not any(spec.numel for spec in made):  # nothing is launched
                return known.setdefault(key, KernelMemory([], []))
            early = EARLY[name](arguments, chip) if name in EARLY else []
            known[key] = KernelMemory(early, TEMPORARIES[name](arguments, chip) if name in TEMPORARIES else [])
        return known.get(key)


_MAX_PLANS = 1 << 15
_cuda_plans: dict[torch.dtype, CudaPlans] = {}


class CudaPlanner(Planner):
    """Plans of ops as CUDA runs them: shapes that differ from the CPU's, and the memory of the kernels."""

    def __init__(self, specs: Specs, device: torch.device) -> None:
        super().__init__(specs, device)
        self.known = CudaPlans.shared()

    def plan(self, call: FakeCall, inferred: object = None) -> Plan:
        plan = super().plan(call, inferred)
        if call.info.name in TEMPORARIES or call.info.name in EARLY:
            self.known.calls[id(plan)] = plan, OpArguments.of(call)
        return plan

    def _infer(self, call: FakeCall) -> object:
        rule = CUDA_RULES.get(call.info.name)
        found = rule(OpArguments.of(call), self._specs) if rule is not None else None
        return super()._infer(call) if found is None else found


# The result of an op: specs of tensors, with other values between them as in the op's schema.
Returned = tuple[Spec | int | None, ...]
CudaRule = Callable[[OpArguments, Specs], Returned]
CUDA_RULES: Registry[str, CudaRule] = Registry("rule for the results of")
cuda_rule = CUDA_RULES.register


def _dense(specs: Specs, like: Spec, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Spec:
    return specs.get(shape, contiguous_stride(shape), dtype or like.dtype, like.device)


def _like(specs: Specs, spec: Spec) -> Spec:
    stride = preserved_stride(spec) or contiguous_stride(spec.shape)
    return specs.get(spec.shape, stride, spec.dtype, spec.device)


def _rows_first(specs: Specs, spec: Spec, width: int) -> Spec:
    """(batch, heads, length, width), kept as (batch, length, heads, width)."""
    batch, heads, length, _ = spec.shape
    stride = (length * heads * width, width, heads * width, 1)
    return specs.get((batch, heads, length, width), stride, spec.dtype, spec.device)


@cuda_rule("aten::_scaled_dot_product_cudnn_attention")
def cudnn_attention(arguments: OpArguments, specs: Specs) -> Returned:
    query, value = arguments.tensor("query"), arguments.tensor("value")
    batch, heads, length, _ = query.shape
    out = _like(specs, query) if value.shape[-1] == query.shape[-1] else _rows_first(specs, query, value.shape[-1])
    rows = (batch, heads, length, 1) if arguments.flag("compute_log_sumexp") else (0,)
    number = _dense(specs, query, (), torch.int64)
    sums = _dense(specs, query, rows, torch.float32)
    return out, sums, None, None, length, arguments.tensor("key").shape[2], number, number, None


@cuda_rule("aten::_scaled_dot_product_flash_attention")
def flash_attention(arguments: OpArguments, specs: Specs) -> Returned:
    query = arguments.tensor("query")
    batch, heads, length, width = query.shape
    number = _dense(specs, query, (2,), torch.uint64)
    sums = _dense(specs, query, (batch, heads, length), torch.float32)
    none = _dense(specs, query, (0,))
    return (
        _rows_first(specs, query, width),
        sums,
        None,
        None,
        length,
        arguments.tensor("key").shape[2],
        number,
        none,
        none,
    )


@cuda_rule("aten::_scaled_dot_product_efficient_attention")
def efficient_attention(arguments: OpArguments, specs: Specs) -> Returned:
    query, value = arguments.tensor("query"), arguments.tensor("value")
    batch, heads, length, _ = query.shape
    padded = -(-length // 32) * 32 if arguments.flag("compute_log_sumexp") else 0
    number = _dense(specs, query, (), torch.int64)
    sums = _dense(specs, query, (batch, heads, padded), torch.float32)
    return _rows_first(specs, query, value.shape[-1]), sums, number, number


@cuda_rule("aten::_scaled_dot_product_cudnn_attention_backward", "aten::_scaled_dot_product_flash_attention_backward")
def attention_backward(arguments: OpArguments, specs: Specs) -> Returned:
    return tuple(_like(specs, arguments.tensor(name)) for name in ("query", "key", "value"))


@cuda_rule("aten::_scaled_dot_product_efficient_attention_backward")
def efficient_backward(arguments: OpArguments, specs: Specs) -> Returned:
    found = []
    for name in ("query", "key", "value"):
        spec = arguments.tensor(name)
        found.append(_rows_first(specs, spec, spec.shape[-1]))
    bias, mask = arguments.optional_tensor("attn_bias"), arguments.numbers("grad_input_mask")
    return (*found, _like(specs, bias) if bias is not None and mask[3] else None)


@cuda_rule("aten::native_layer_norm")
def layer_norm(arguments: OpArguments, specs: Specs) -> Returned:
    """Statistics in float32."""
    spec = arguments.tensor("input")
    rows = spec.shape[: len(spec.shape) - len(arguments.numbers("normalized_shape"))]
    shape = (*rows, *(1 for _ in arguments.numbers("normalized_shape")))
    sums = _dense(specs, spec, shape, torch.float32)
    return _dense(specs, spec, spec.shape), sums, sums


@cuda_rule("aten::_fused_rms_norm")
def fused_rms_norm(arguments: OpArguments, specs: Specs) -> Returned:
    spec = arguments.tensor("input")
    rows = spec.shape[: len(spec.shape) - len(arguments.numbers("normalized_shape"))]
    shape = (*rows, *(1 for _ in arguments.numbers("normalized_shape")))
    return _dense(specs, spec, spec.shape), _dense(specs, spec, shape, torch.float32)


@cuda_rule("aten::_fused_rms_norm_backward")
def fused_rms_norm_backward(arguments: OpArguments, specs: Specs) -> Returned:
    data, weight = arguments.tensor("input"), arguments.optional_tensor("weight")
    wanted = arguments.numbers("output_mask")
    return (
        _dense(specs, data, data.shape) if wanted[0] else None,
        _dense(specs, data, weight.shape) if weight is not None and wanted[1] else None,
    )


@cuda_rule("aten::_thnn_fused_lstm_cell")
def fused_lstm_cell(arguments: OpArguments, specs: Specs) -> Returned:
    """New states, and the gates for a backward pass."""
    cell, gates = arguments.tensor("cx"), arguments.tensor("input_gates")
    state = _dense(specs, cell, cell.shape)
    return state, state, _dense(specs, gates, gates.shape)


@cuda_rule("aten::_thnn_fused_lstm_cell_backward_impl")
def fused_lstm_cell_backward(arguments: OpArguments, specs: Specs) -> Returned:
    cell, gates = arguments.tensor("cx"), arguments.tensor("workspace")
    bias = _dense(specs, gates, gates.shape[1:]) if arguments.flag("has_bias") else None
    return _dense(specs, gates, gates.shape), _dense(specs, cell, cell.shape), bias


@cuda_rule("aten::_thnn_fused_gru_cell")
def fused_gru_cell(arguments: OpArguments, specs: Specs) -> Returned:
    """A new state, and five values of each unit for a backward pass."""
    state = arguments.tensor("hx")
    batch, units = state.shape
    return _dense(specs, state, state.shape), _dense(specs, state, (batch, 5 * units))


@cuda_rule("aten::_thnn_fused_gru_cell_backward")
def fused_gru_cell_backward(arguments: OpArguments, specs: Specs) -> Returned:
    state = arguments.tensor("grad_hy")
    batch, units = state.shape
    gates = _dense(specs, state, (batch, 3 * units))
    bias = _dense(specs, state, (3 * units,)) if arguments.flag("has_bias") else None
    return gates, gates, _dense(specs, state, state.shape), bias, bias


@cuda_rule("aten::_cudnn_rnn")
def cudnn_rnn(arguments: OpArguments, specs: Specs) -> Returned:
    """The result is kept time first, as cuDNN has it; `reserve` is what training keeps."""
    data, hidden, cell = arguments.tensor("input"), arguments.tensor("hx"), arguments.optional_tensor("cx")
    shape = Recurrent.of(arguments)
    width = shape.units * shape.directions
    if arguments.flag("batch_first"):
        out = specs.get((shape.batch, shape.steps, width), (width, shape.batch * width, 1), data.dtype, data.device)
    else:
        out = _dense(specs, data, (shape.steps, shape.batch, width))
    none = _dense(specs, data, (0,))
    reserve = _dense(specs, data, (shape.reserve_bytes if arguments.flag("train") else 0,), torch.uint8)
    state = _dense(specs, data, hidden.shape)
    # The weights are in one buffer from the start; in bfloat16 they are gathered for every call.
    buffer = _dense(specs, data, (shape.weight_elements(),)) if data.dtype == torch.bfloat16 else none
    return out, state, none if cell is None else state, reserve, buffer


_MATMULS = frozenset(
    f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "_grouped_mm", "linear")
)


# Ops that do more to the tape than start and allocate their results.
_NOTED = frozenset((*_MATMULS, *TEMPORARIES, *EARLY, "aten::add", "aten::rand"))

_FUSED_RMS_NORM = getattr(getattr(torch.ops.aten, "_fused_rms_norm", None), "default", None)  # torch 2.8


class CudaRun(FakeRun):
    """A run on fake tensors that keeps a tape of memory taken and freed."""

    def __init__(
        self, recorder: Recorder, kernels: CudaKernels, *, assume: bool, strict: bool, channels_last: bool
    ) -> None:
        super().__init__(recorder, torch.device("cpu"), assume=assume, strict=strict)
        self.kernels = kernels
        self._chip = kernels.library.chip
        planner = CudaPlanner(self.specs, self.device)
        self._planner, self._known = planner, planner.known
        self._shared = planner.known.plans
        self._channels_last = channels_last
        self.tape: list[tuple[int, int]] = []
        recorder.ledger.events = self.tape
        self._next = 0
        self.workspaces: dict[tuple[str, str], int] = {}
        self.ranges: dict[int, tuple[int, int]] = {}

    def _spec(self, tensor: torch.Tensor, dtype: torch.dtype | None) -> Spec:
        spec = super()._spec(tensor, dtype)
        if self._channels_last and len(spec.shape) == 4 and spec.dtype.is_floating_point:
            _, channels, height, width = spec.shape
            stride = (channels * height * width, 1, width * channels, channels)
            spec = self.specs.get(spec.shape, stride, spec.dtype, spec.device)
        return spec

    def _replay(self, plan: Plan, tensors: list[FakeTensor]) -> Any:
        tape, name = self.tape, plan.info.name
        tape.append((OP, len(self.recorder.ops)))
        if name not in _NOTED:
            return super()._replay(plan, tensors)
        if name in _MATMULS:
            self._hold_workspace("cublas", self._chip.cublas_bytes)
            if name == "aten::addmm":
                self._hold_workspace("cublaslt", CUBLAS_LT_BYTES)
        if name == "aten::add" and "add" not in self.kernels.calling and _adds_in_place(plan, tensors):
            plan = replace(plan, result=Output(tensors[0].spec, 0))
        early, phases = self._known.memory_of(plan, self._chip) or KernelMemory([], [])
        numbers = range(self._next - 1, self._next - 1 - len(early), -1)
        tape += zip(numbers, early, strict=True)
        self._next -= len(early)
        before = len(tape)
        built = super()._replay(plan, tensors)
        if name == "aten::rand" and built.dim() == 0:
            # Layers that are dropped at random (LayerDrop) are kept: a draw that is neither low nor high.
            self._know(built, torch.full((), 0.5, dtype=built.dtype))
        if name == "aten::_cudnn_rnn_backward" and built[3]:
            del tape[before:]
            self._join(built)
        for phase in phases:
            for size in phase:
                self._next -= 1
                if isinstance(size, Workspace):
                    if size.high > size.low:
                        self.ranges[self._next] = (size.low, size.high)
                    size = max(size.nbytes, 1 if size.high else 0)
                tape.append((self._next, size))
            tape += [(self._next + place, -1) for place in range(len(phase))]
        tape += [(number, -1) for number in numbers]
        return built

    def _is_decomposed(self, func: Op) -> bool:
        """Fused RMS norm is composite in a CPU build, and a kernel in a CUDA build."""
        return func is not _FUSED_RMS_NORM and super()._is_decomposed(func)

    @property
    def keeps_nothing(self) -> bool:
        """Whether everything allocated on the tape was freed again, except workspaces of libraries: then the model
        keeps no state, and a second run repeats the first."""
        held: set[int] = set()
        for number, nbytes in self.tape:
            if number != OP:
                held.add(number) if nbytes >= 0 else held.discard(number)
        return held <= set(self.workspaces.values())

    def _lift(self, constant: torch.Tensor) -> FakeTensor:
        """Optimizers count their steps in tensors on the CPU, unless they are fused."""
        if self.recorder.phase != "optimizer":
            return super()._lift(constant)
        fake = make_fake(self.specs.of(constant, self.device), Storage(constant.nbytes, self._held))
        self._know(fake, constant)
        return fake

    def _join(self, built: Any) -> None:
        """The gradients of a recurrent layer's weights are parts of one buffer."""
        ledger = self.recorder.ledger
        for fake in (tensor for tensor in built[:3] if tensor is not None):
            self.tape.append((id(fake.storage_), fake.storage_.nbytes))
        whole = Storage(sum(fake.storage_.nbytes for fake in built[3]), ledger, born=len(self.recorder.ops))
        ledger.events = None
        for fake in built[3]:
            fake.storage_ = whole
        ledger.events = self.tape

    def _hold_workspace(self, kind: str, nbytes: int) -> None:
        """One per thread that calls the library; the backward pass runs in another thread."""
        thread = "backward" if self.recorder.phase == "backward" else "forward"
        if (kind, thread) not in self.workspaces:
            self._next -= 1
            self.workspaces[kind, thread] = self._next
            self.tape.append((self._next, nbytes))


# References to a tensor that only torch's C++ code holds, while the op runs: its own, the dispatcher's and ours.
_HELD_BY_TORCH = 4


def _adds_in_place(plan: Plan, tensors: list[FakeTensor]) -> bool:
    """Whether torch's own code adds into the first tensor. It does if nothing else holds that tensor or its memory: a
    second gradient (`accumulate` of torch/csrc/autograd/input_buffer.cpp), the bias of a linear layer, the mask of an
    attention; but not for subclasses of Tensor, as fake tensors are."""
    if len(tensors) != 2 or type(plan.result) is not Output or plan.result.spec is not tensors[0].spec:
        return False
    return tensors[0]._use_count() == _HELD_BY_TORCH and sys.getrefcount(tensors[0].storage_) == 2


class StepRecorder(Recorder):
    """Without details that only the reports of an analysis show: lines of code, and the inputs and outputs of
    modules."""

    def __init__(self, paths: ModulePaths, *, train: bool, original_of: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__(paths, train=train, original_of=original_of)
        self.source = UNKNOWN_LINE

    def enter_path(self, path: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        previous, self.path = self.path, path
        if path not in self.calls:
            self.calls[path] = ModuleCalls()
        self.calls[path].count += 1
        return previous

    def leave_path(self, previous: str, output: object) -> None:
        self.path = previous


def trace(model: nn.Module, candidate: Candidate, setting: Setting) -> Trace:
    """Trace two steps on a copy of the model's structure. A model that reads tensor values runs on assumed values where
    that is possible (balanced routing)."""
    with one_at_a_time, collector_paused(), undisturbed(model):
        context = contextvars.copy_context()
        try:
            return context.run(_trace, unwrap(model), candidate, setting, assume=False)
        except DataDependent as signal:
            try:
                return context.run(_trace, unwrap(model), candidate, setting, assume=True)
            except DataDependent:
                where = f" in '{signal.module}'" if signal.module else ""
                raise InputError(
                    f"the model {signal.why} ({signal.op}{where}), so its memory depends on them "
                    "and cannot be predicted without running it"
                ) from signal


def _trace(model: nn.Module, candidate: Candidate, setting: Setting, *, assume: bool) -> Trace:
    leftovers = Leftovers()
    try:
        return _on_fakes(model, candidate, setting, leftovers, assume=assume)
    except BaseException as error:
        clear_traceback(error)
        raise
    finally:
        leftovers.release()


def _on_fakes(model: nn.Module, candidate: Candidate, setting: Setting, leftovers: Leftovers, *, assume: bool) -> Trace:
    copier = Copier()
    with prepared(model, train=setting.train, copier=copier) as twin:
        if setting.lora is not None:
            add_adapters(twin, *setting.lora)
        if setting.weights_dtype is not None:
            store_weights(twin, WEIGHT_BITS[setting.weights_dtype])
        paths = ModulePaths(twin)
        recorder = StepRecorder(paths, train=setting.train, original_of=copier.original_of)
        mode = CudaKernels(setting.library, setting.amp)
        run = CudaRun(recorder, mode, assume=assume, strict=candidate.has_values, channels_last=setting.channels_last)
        leftovers.watch(run, Variables(copier.code, copier.shared))
        if setting.checkpoint not in (None, "none"):
            _checkpoint(twin, str(setting.checkpoint))
        swap_tensors(paths, run, setting.dtype)
        parameters = {o.name: run.adopt(o.tensor) for o in paths.owned if not o.is_buffer}
        for name, parameter in parameters.items():
            is_adapter = ".lora_" in name
            if (setting.lora and not is_adapter) or any(fnmatch.fnmatchcase(name, p) for p in setting.frozen):
                parameter.requires_grad_(False)
        admit = Copier(lambda tensor: run.admit(tensor, dtype=setting.dtype))
        args, kwargs = admit.copy((candidate.args, candidate.kwargs))
        placed = _placed(twin, paths, run, (args, kwargs))
        run.tape.clear()  # the inputs are placed
        loop = Loop(twin, args, kwargs, setting, run, recorder, list(parameters.values()))
        unhandled = _past_mode(twin) if setting.amp is None else nullcontext()
        with real_memory_for_numpy(run.lend), elements_given(), watch_modules(paths, recorder, run.adopt), unhandled:
            loop.step(mode)
            is_repeated = loop.repeats
            traced_steps = 1 if is_repeated else 2
            if is_repeated:
                first_events = loop.repeat()
            else:
                first_events = loop.drop_second_update()
                loop.step(mode)
    tape, classes, workspaces = _renumbered(run.tape, loop.marks)
    return Trace(
        placed=placed,
        steps=[tape[:first_events], tape[first_events:]],
        ops=recorder.ops,
        classes=classes,
        loss=loop.loss_used,
        warnings=list(recorder.warnings),
        workspace_range={workspaces[number]: span for number, span in run.ranges.items() if number in workspaces},
        cublas_threads=tuple(thread for kind, thread in run.workspaces if kind == "cublas"),
        module_calls=sum(calls.count for calls in recorder.calls.values()) // traced_steps,
    )


# Layers that call none of the functions that `CudaKernels` replaces.
_UNHANDLED = frozenset((
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm,
    nn.Embedding, nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Hardswish, nn.Hardsigmoid, nn.Sigmoid, nn.Tanh,
    nn.LeakyReLU, nn.ELU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Identity,
))  # fmt: skip


@contextmanager
def _past_mode(twin: nn.Module) -> Iterator[None]:
    """These layers run without the mode, which takes about 20 µs a call. Autocast needs it everywhere."""

    def run(forward: Callable[..., object], *args: object, **kwargs: object) -> object:
        with torch._C.DisableTorchFunction():
            return forward(*args, **kwargs)

    layers = [layer for layer in all_modules(twin) if type(layer) in _UNHANDLED and "forward" not in vars(layer)]
    for layer in layers:
        layer.__dict__["forward"] = partial(run, layer.forward)
    try:
        yield
    finally:
        for layer in layers:  # else the layer would hold itself
            layer.__dict__.pop("forward", None)


# Allocations of a second step are numbered from here on; the numbers of the first are addresses in memory.
_SECOND_STEP = 1 << 62


class _Updates(NamedTuple):
    """Two updates of the optimizer in the first step: one makes its state, the other is that of a steady step. On the
    tape: where forward starts, the first update, the second, its end; and the numbers of their first ops and the end.
    """

    places: tuple[int, int, int, int]
    ops: tuple[int, int, int]


class Loop:
    """A training loop as people write it, or one call of the model."""

    def __init__(
        self,
        model: nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        setting: Setting,
        run: CudaRun,
        recorder: Recorder,
        parameters: list[FakeTensor],
    ) -> None:
        self.model, self.args, self.kwargs = model, args, kwargs
        self.setting, self.run, self.recorder = setting, run, recorder
        self.trained = [parameter for parameter in parameters if parameter.requires_grad]
        self.optimizer: torch.optim.Optimizer | None = None
        self.loss_used = ""
        # Positions on the tape, with the class of the memory that is held there.
        self.marks: list[tuple[int, str, list[int]]] = []
        self._updates: _Updates | None = None
        if setting.train:
            assert setting.optimizer is not None
            # Modules that torch imports at the first step also run ops.
            setting.optimizer([nn.Parameter(torch.empty(0))]).step()
            if not self.trained:
                raise InputError("nothing to train: no parameter requires a gradient")

    def step(self, mode: CudaKernels) -> None:
        make = self.setting.optimizer
        if make is None:
            with self.run, mode, self._autocast(), _capturing(self.setting.captured):
                output = call_model(self.model, self.args, self.kwargs, self.recorder)
                self._mark("results", tensors_within(output))
                del output
            return
        output = loss = None
        # Without threads: ops in the engine's threads would not be recorded.
        with step_errors(self.recorder), self.run, mode, torch.autograd.set_multithreading_enabled(False):
            if self.optimizer is None:
                self.recorder.phase = "optimizer"  # some make their state here
                self.optimizer = make(self.trained)
            start = len(self.run.tape)
            for _ in range(self.setting.accumulate):
                self.recorder.phase = "forward"
                with self._autocast(), _capturing(self.setting.captured):
                    output = call_model(self.model, self.args, self.kwargs, self.recorder)
                    loss = self._loss(output)
                if not loss.requires_grad:
                    raise InputError("nothing to train: the loss depends on no parameter that requires a gradient")
                self.recorder.begin_backward()
                _run_backward(loss)
            gradients = [parameter.grad for parameter in self.trained if parameter.grad is not None]
            self._mark("gradients", gradients)
            del gradients
            self.recorder.phase = "optimizer"
            update, first_op = len(self.run.tape), len(self.recorder.ops)
            self.optimizer.step()
            self._mark("optimizer_state", tensors_within(list(self.optimizer.state.values())))
            if self._updates is None:
                steady, steady_op = len(self.run.tape), len(self.recorder.ops)
                self.optimizer.step()
                places = start, update, steady, len(self.run.tape)
                self._updates = _Updates(places, (first_op, steady_op, len(self.recorder.ops)))
            for parameter in self.trained:
                parameter.grad = None
            del output, loss

    @property
    def repeats(self) -> bool:
        """Whether a second step would repeat the first: nothing that forward and backward allocated is still held."""
        if self._updates is None:
            return self.run.keeps_nothing
        start, update, steady, _ = self._updates.places
        workspaces, taken = set(self.run.workspaces.values()), dict[int, int]()
        for place, (number, nbytes) in enumerate(self.run.tape):
            if number == OP or number in workspaces:
                continue
            if nbytes >= 0:
                taken[number] = place
            elif start <= taken.pop(number, -1) < update <= place < steady:
                return False  # the second update cannot free it again
        return all(place < start or update <= place < steady for place in taken.values())

    def repeat(self) -> int:
        """Append a second step that repeats the first: libraries have their workspaces by then, and the optimizer its
        state. Its allocations get new numbers, since a live one may have the number of a freed one. Returns the length
        of the first step."""
        run, workspaces = self.run, set(self.run.workspaces.values())
        start, update, steady, end = self._updates.places if self._updates else (0, *[len(run.tape)] * 3)
        first, second = [*run.tape[:steady], *run.tape[end:]], list[tuple[int, int]]()
        marked, places = {place for place, _, _ in self.marks}, dict[int, int]()
        renamed: dict[int, int] = {}
        for place, (number, nbytes) in enumerate([*run.tape, (OP, -1)]):
            if place in marked:
                places[place] = len(second)
            if place < start or update <= place < steady or number in workspaces:
                continue
            if number != OP and nbytes >= 0:
                renamed[number] = number + (run._next if number < 0 else _SECOND_STEP)
            second.append((number if number == OP else renamed.get(number, number), nbytes))
        second.pop()
        run.ranges |= {number + run._next: span for number, span in run.ranges.items()}
        self.marks += [
            (len(first) + places[place], name, [*ids, *(one + _SECOND_STEP for one in ids)])
            for place, name, ids in self.marks
        ]
        run.tape[:] = first + second
        if self._updates is not None:
            begin, middle, last = self._updates.ops
            for index in range(middle, last):  # what the first update wrote was there before the second step
                op = self.recorder.ops[index]
                known = (None if one is not None and begin <= one < middle else one for one in op.producers)
                self.recorder.ops[index] = replace(op, producers=tuple(known))
        return len(first)

    def drop_second_update(self) -> int:
        """For a run whose second step is traced in full. Returns the length of the first step."""
        if self._updates is not None:
            steady, end = self._updates.places[2:]
            del self.run.tape[steady:end]
        return len(self.run.tape)

    def _autocast(self) -> torch.autocast:
        amp = self.setting.amp
        return torch.autocast("cpu", amp or torch.bfloat16, enabled=amp is not None)

    def _mark(self, name: str, tensors: Iterable[torch.Tensor]) -> None:
        ids = [id(tensor.storage_) for tensor in tensors if isinstance(tensor, FakeTensor)]
        self.marks.append((len(self.run.tape), name, ids))

    def _loss(self, output: object) -> torch.Tensor:
        if self.setting.loss is not None:
            self.loss_used = "the loss= that was given"
            return self.setting.loss(output)
        own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if isinstance(own, torch.Tensor):
            self.loss_used = "the loss that the model returns"
            return own
        for value in tensors_within(output):
            if value.is_floating_point():
                self.loss_used = "the mean of the squares of the first floating-point output, in float32"
                return value.float().pow(2).mean()
        raise InputError("nothing to train: the model returns no floating-point tensor; give loss=")


@contextmanager
def _capturing(is_captured: bool) -> Iterator[None]:
    """Tell code that asks that a CUDA stream is being captured. transformers then creates masks that it omits
    otherwise, since it cannot read their values."""
    original = torch.cuda.is_current_stream_capturing
    if is_captured:
        torch.cuda.is_current_stream_capturing = lambda: True
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = original


def _run_backward(loss: torch.Tensor) -> None:
    """`loss.backward()` without `__torch_function__`, which would disable the mode that replaces kernels."""
    engine: Any = torch.autograd.Variable._execution_engine
    start = torch.ones_like(loss, memory_format=torch.preserve_format)
    engine.run_backward((loss,), (start,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def _placed(twin: nn.Module, paths: ModulePaths, run: CudaRun, given: object) -> list[tuple[str, str, int]]:
    """The tensors on the device before the first step, in the order in which `model.to(device)` places them: the
    tensors of a module after those of the modules in it. Recurrent layers have their weights in one buffer, except in
    bfloat16."""
    fakes = [(run.adopt(owned.tensor), owned) for owned in paths.owned]
    named = {id(fake): owned for fake, owned in fakes}
    found: list[tuple[str, str, int]] = []
    seen: set[int] = set()
    for module in _postorder(twin):
        tensors = [t for registry in (module._parameters, module._buffers) for t in registry.values() if t is not None]
        fresh: list[tuple[str, str, int]] = []
        for tensor in tensors:
            if isinstance(tensor, FakeTensor) and id(tensor) not in seen:
                seen.add(id(tensor))
                owned = named.get(id(tensor))
                kind = "buffers" if owned is not None and owned.is_buffer else "parameters"
                fresh.append((kind, owned.name if owned else "", tensor.storage_.nbytes))
        if isinstance(module, nn.RNNBase) and fresh and all(t.dtype != torch.bfloat16 for t in tensors):
            fresh = [("parameters", fresh[0][1].rpartition(".")[0], sum(nbytes for _, _, nbytes in fresh))]
        found += fresh
    found += [
        ("parameters" if not owned.is_buffer else "buffers", owned.name, fake.storage_.nbytes)
        for fake, owned in fakes
        if id(fake) not in seen and isinstance(fake, FakeTensor)
    ]
    inputs = {
        id(tensor.storage_): tensor.storage_.nbytes
        for tensor in tensors_within(given)
        if isinstance(tensor, FakeTensor)
    }
    return found + [("inputs", "", nbytes) for nbytes in inputs.values()]


def _postorder(root: nn.Module) -> list[nn.Module]:
    """The modules in a module before it, each once."""
    found: dict[int, nn.Module] = {}
    waiting: list[nn.Module | None] = [root]
    while waiting:  # a module before its children, the last child first
        module = waiting.pop()
        if module is not None and id(module) not in found:
            found[id(module)] = module
            waiting += module._modules.values()
    return [*reversed(found.values())]


def _renumbered(
    tape: list[tuple[int, int]], marks: list[tuple[int, str, list[int]]]
) -> tuple[list[tuple[int, int]], dict[int, str], dict[int, int]]:
    """A number for every allocation (Python reuses the ids of freed objects), the classes of those that are live at the
    marks, and the numbers of workspaces."""
    found: list[tuple[int, int]] = []
    numbers: dict[int, int] = {}
    classes: dict[int, str] = {}
    workspaces: dict[int, int] = {}
    waiting = iter([*sorted(marks, key=lambda mark: mark[0]), (len(tape) + 1, "", [])])
    mark = next(waiting)
    count = 0
    for place, (number, nbytes) in enumerate([*tape, (OP, -1)]):
        while mark[0] <= place:
            classes |= {numbers[held]: mark[1] for held in mark[2] if held in numbers}
            mark = next(waiting)
        if number == OP:
            found.append((OP, nbytes))
        elif nbytes >= 0:
            count += 1
            numbers[number] = count
            if number < 0:
                classes[count] = "workspaces"
                workspaces[number] = count
            found.append((count, nbytes))
        else:  # memory placed before the steps has no number here
            found.append((numbers.pop(number, -1), -1))
    return found[:-1], classes, workspaces


def _checkpoint(model: nn.Module, name: str) -> None:
    """Blocks are recomputed in the backward pass instead of keeping their activations."""
    from torch.utils.checkpoint import checkpoint

    chosen = (
        repeated_blocks(model)
        if name == "blocks"
        else [m for path, m in model.named_modules() if fnmatch.fnmatchcase(path, name) or type(m).__name__ == name]
    )
    if not chosen:
        raise InputError(f"no module to checkpoint: '{name}' is neither a path pattern nor a class of the model")
    for block in chosen:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)


class _Adapted(nn.Module):
    """A linear layer with a low-rank adapter, as in peft without dropout."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        dtype = base.weight.dtype
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, device="meta", dtype=dtype)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, device="meta", dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base_layer(x)
        return result + self.lora_B(self.lora_A(x)) * 2.0


def add_adapters(model: nn.Module, rank: int, pattern: str) -> None:
    chosen = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and fnmatch.fnmatchcase(f"{path}.weight", pattern)
    ]
    if not chosen:
        raise InputError(f"no linear layer has a weight that matches '{pattern}'")
    for path, module in chosen:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, _Adapted(module, rank))


class _Stored(nn.Module):
    """A linear layer whose weight is stored in few bits and not trained. It is restored for each product, as
    bitsandbytes and torchao do."""

    def __init__(self, base: nn.Linear, bits: float) -> None:
        super().__init__()
        self.out_features = base.out_features
        nbytes = math.ceil(base.weight.numel() * bits / 8)
        self.weight = nn.Parameter(torch.empty(nbytes, dtype=torch.uint8, device="meta"), requires_grad=False)
        self.bias = base.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        apply: Callable[..., torch.Tensor] = _Restored.apply
        made = apply(x, self.weight, self.out_features)
        return made if self.bias is None else made + self.bias


class _Restored(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, stored: torch.Tensor, width: int) -> torch.Tensor:
        ctx.save_for_backward(stored)
        ctx.shape = width, x.shape[-1]
        return nn.functional.linear(x, x.new_empty(ctx.shape))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return gradients[0] @ gradients[0].new_empty(ctx.shape), None, None


def store_weights(model: nn.Module, bits: float) -> None:
    """Store the matrices of linear layers in blocks that repeat; adapters, embeddings and heads stay as they are."""
    chosen = {
        id(layer)
        for holder in model.modules()
        if isinstance(holder, nn.ModuleList | nn.Sequential) and len({type(child) for child in holder}) < len(holder)
        for layer in holder.modules()
    }
    layers = [
        (path, layer) for path, layer in model.named_modules() if type(layer) is nn.Linear and id(layer) in chosen
    ]
    if not layers:
        raise InputError("no linear layer in blocks that repeat: there are no weights to store in another type")
    for path, layer in layers:
        parent, _, name = path.rpartition(".")
        if not name.startswith("lora_"):
            setattr(model.get_submodule(parent), name, _Stored(layer, bits))


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The members of the largest module list or sequence that holds several modules of one class."""
    best: list[nn.Module] = []
    most = -1
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1:
            members = list(module)
            if len({type(child) for child in members}) == 1 and any(True for _ in members[0].children()):
                size = sum(math.prod(parameter.shape) for parameter in module.parameters())
                if size > most:
                    best, most = members, size
    return best
