"""A run leaves no trace: a replica of the model in the requested mode, compiled code disabled, and the settings of the
process restored afterwards. For runs on the model itself, its attributes are restored too.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import (  # type: ignore[attr-defined]
    UninitializedBuffer,
    UninitializedParameter,
    UninitializedTensorMixin,
)
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import _device, _python_dispatch
from torch.utils._python_dispatch import _disable_current_modes

from torchgauge.capture.copier import Copier, in_mode
from torchgauge.capture.leftovers import Variables
from torchgauge.capture.sharded import gather_parameters
from torchgauge.capture.structure import is_subclass, storage_key
from torchgauge.capture.threads import threads_followed
from torchgauge.errors import InputError, TorchgaugeError, first_line
from torchgauge.source.modules import all_modules
from torchgauge.source.process_state import hub_offline, replaced_here, rng_untouched

# Frames of torch and ours, at most, for one module in another.
_FRAMES_OF_A_LEVEL = 6


@contextmanager
def prepared(model: nn.Module, *, train: bool, copier: Copier) -> Iterator[nn.Module]:
    """A replica of the model in the requested mode, eager, outside inference mode; all settings are restored."""
    with ExitStack() as stack:
        stack.enter_context(process_state_kept())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(train))
        stack.enter_context(torch.jit.optimized_execution(False))  # type: ignore[attr-defined]
        stack.enter_context(_eager())
        stack.enter_context(_no_grad_for_inference_mode())
        stack.enter_context(threads_followed())
        stack.enter_context(hub_offline())
        replica = copier.copy(model)
        gather_parameters(model, copier)
        stack.enter_context(in_mode(replica, train=train))
        yield replica


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Leave the caller's dispatch modes, its trace and its compiled region. A transform of torch.func cannot be left:
    it changes what tensors are."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise InputError(
            "an analysis cannot run inside a transform of torch.func (vmap, grad, jvp, functionalize): call it outside"
        )
    with ExitStack() as stack:
        stack.enter_context(raised_recursion_limit(model))
        stack.enter_context(_disable_current_modes())
        engine: Any = torch._C
        if engine._get_tracing_state() is not None:
            stack.callback(engine._set_tracing_state, engine._get_tracing_state())
            engine._set_tracing_state(None)
        if "torch._dynamo" in sys.modules:
            frames = engine._dynamo.eval_frame
            stack.callback(frames.set_eval_frame, frames.set_eval_frame(None))
        yield


@contextmanager
def raised_recursion_limit(model: nn.Module) -> Iterator[None]:
    """Twice the recursion limit: an analysis adds frames between those of torch, and must not fail where the
    model alone would run. Deeper nesting raises InputError."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(2 * limit)
    try:
        yield
    except (RecursionError, TorchgaugeError) as error:
        levels = nesting(model)
        # A RecursionError may be raised anywhere, and be wrapped on its way.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, RecursionError):
            cause = cause.__cause__ or cause.__context__
        if cause is None or _FRAMES_OF_A_LEVEL * levels < limit:
            raise
        raise InputError(
            f"the modules of the model are nested {levels} deep, and torch calls itself several times for each: that "
            f"is more than Python's recursion limit of {limit}; raise it before the analysis, for example with "
            f"sys.setrecursionlimit({limit + _FRAMES_OF_A_LEVEL * levels})"
        ) from error
    finally:
        sys.setrecursionlimit(limit)


def nesting(model: nn.Module) -> int:
    """How many modules the longest path goes through, the model included; a module that holds itself ends it."""
    level, seen, depth = {model}, set[nn.Module](), 0
    while level and depth <= len(seen):
        seen |= level
        depth += 1
        level = {child for module in level for child in module._modules.values() if child is not None}
    return depth


@contextmanager
def _eager() -> Iterator[None]:
    """Compiled functions run as written. Parts of torch that are not loaded are left alone: loading takes a second."""
    flex = sys.modules.get("torch.nn.attention.flex_attention")

    def uncompiled(_: object, model: Callable[..., object] | None = None, **options: Any) -> Callable[..., object]:
        """Code that compiles a function while the model runs (`torch.cond` does) gets the function itself."""
        return (lambda function: function) if model is None else model

    with ExitStack() as stack:
        stack.enter_context(replaced_here(torch, "compile", uncompiled))
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if flex is not None:
            name = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
            stack.callback(setattr, flex, name, getattr(flex, name, False))
            setattr(flex, name, True)
        yield


@contextmanager
def _no_grad_for_inference_mode() -> Iterator[None]:
    """A forward that enters inference mode runs without gradients only: in that mode torch makes no views of tensors
    without data. The same ops run."""
    before: list[bool] = []

    def enter(_: object, mode: torch.inference_mode) -> None:
        before.append(torch.is_grad_enabled())
        torch._C._set_grad_enabled(not mode.mode)

    def leave(_: object, *error: object) -> None:
        torch._C._set_grad_enabled(before.pop())

    with (
        replaced_here(torch.inference_mode, "__enter__", enter),
        replaced_here(torch.inference_mode, "__exit__", leave),
    ):
        yield


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restore attributes, containers, plain objects, modes and hooks of every module, the memory of its tensors, the
    variables that its code names, and the settings of the process, on exit."""
    with process_state_kept():
        modules = list(model.modules())
        snapshot = Variables({type(module) for module in modules})
        restores = [_remember(module) for module in modules if isinstance(module, torch.jit.ScriptModule)]
        for module in modules:
            if not isinstance(module, torch.jit.ScriptModule):
                snapshot.note_attributes(module)
        restores += [_remember_memory(tensor) for tensor in (*model.parameters(), *model.buffers())]
        try:
            yield
        finally:
            snapshot.put_back()
            for restore in restores:
                restore()


@contextmanager
def gradients_kept(model: nn.Module) -> Iterator[None]:
    """Restore the gradients that the parameters had."""
    before = [(parameter, parameter.grad) for parameter in model.parameters() if parameter.is_leaf]
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


@contextmanager
def contents_kept(model: nn.Module, written: Collection[str] = ()) -> Iterator[None]:
    """Put back what the model writes to its buffers (running statistics, caches), and to the parameters `written`."""
    parameters = [parameter for name, parameter in model.named_parameters() if name in written]
    before = [(tensor, tensor.detach().clone()) for tensor in (*model.buffers(), *parameters)]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, content in before:
                if not torch.equal(tensor, content):
                    tensor.copy_(content)


def _remember(module: torch.jit.ScriptModule) -> Callable[[], object]:
    """A function that puts the mode of a script module back."""
    if not hasattr(module, "training"):  # frozen; it is given one when the mode is set
        return lambda: module.__dict__.pop("training", None)
    training = module.training
    return lambda: module.train(training) if module.training != training else None


def _remember_memory(tensor: torch.Tensor) -> Callable[[], object]:
    """A function that gives a tensor back the memory that it had before a forward assigned to its `data`."""
    if is_subclass(tensor) or tensor.layout is not torch.strided:
        return lambda: None
    before = tensor.detach()

    def restore() -> None:
        if storage_key(tensor) != storage_key(before) or tensor.shape != before.shape or tensor.dtype != before.dtype:
            tensor.data = before

    return restore


# Uninitialised lazy modules: analysed on a copy on the meta device that one plain call initialises.

_Uninitialized: tuple[Any, ...] = (UninitializedParameter, UninitializedBuffer)


def is_lazy(model: nn.Module) -> bool:
    """Whether a parameter or buffer waits for its shape, in a lazy module or in one that makes it in its forward."""
    kinds = {
        type(tensor)
        for module in all_modules(model)
        for registry in (module._parameters, module._buffers)
        for tensor in registry.values()
    }
    return any(issubclass(kind, UninitializedTensorMixin) for kind in kinds)


def initialised_copy(model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> nn.Module:
    """A copy whose lazy modules have taken their shapes from a call; the user's model is not touched."""
    memo: dict[int, object] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        lazy = next((kind for kind in _Uninitialized if isinstance(tensor, kind)), None)
        if lazy is not None:
            memo[id(tensor)] = lazy(requires_grad=tensor.requires_grad, device="meta", dtype=tensor.dtype)
        else:
            on_meta = torch.empty_like(tensor, device="meta")
            is_parameter = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(on_meta, tensor.requires_grad) if is_parameter else on_meta
    duplicate = copy.deepcopy(model, memo)
    args, kwargs = Copier(lambda tensor: torch.empty_like(tensor, device="meta")).copy((args, kwargs))
    try:
        with process_state_kept(), torch.no_grad(), in_mode(duplicate, train=False):
            duplicate(*args, **kwargs)
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError) as error:
        raise InputError(
            "the model has lazy modules that are not initialised, and a copy could not be initialised on the meta "
            f"device ({first_line(error)}): call the model once with real inputs first"
        ) from error
    return duplicate


# Settings of the process that a forward may change: torch's defaults and switches, random states, modes. One table says
# how each is read and set. Settings that differ at the end are restored, also after an error.

Setting = tuple[Callable[[], Any], Callable[[Any], object]]

# Pairs of functions of torch._C; a release of torch that lacks one has no such setting.
_SWITCHES = (
    ("_get_cudnn_enabled", "_set_cudnn_enabled"),
    ("_get_cudnn_benchmark", "_set_cudnn_benchmark"),
    ("_get_cudnn_deterministic", "_set_cudnn_deterministic"),
    ("_get_cudnn_allow_tf32", "_set_cudnn_allow_tf32"),
    ("_get_cublas_allow_tf32", "_set_cublas_allow_tf32"),
    ("_get_cublas_allow_fp16_accumulation", "_set_cublas_allow_fp16_accumulation"),
    ("_get_cublas_allow_fp16_reduced_precision_reduction", "_set_cublas_allow_fp16_reduced_precision_reduction"),
    ("_get_cublas_allow_bf16_reduced_precision_reduction", "_set_cublas_allow_bf16_reduced_precision_reduction"),
    ("_get_blas_preferred_backend", "_set_blas_preferred_backend"),
    ("_get_linalg_preferred_backend", "_set_linalg_preferred_backend"),
    ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    ("_get_math_sdp_enabled", "_set_sdp_use_math"),
    ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    ("_get_overrideable_sdp_enabled", "_set_sdp_use_overrideable"),
    ("_get_math_sdp_allow_fp16_bf16_reduction", "_set_math_sdp_allow_fp16_bf16_reduction"),
    ("_get_mkldnn_enabled", "_set_mkldnn_enabled"),
    ("_get_mkldnn_deterministic", "_set_mkldnn_deterministic"),
    ("_get_nnpack_enabled", "_set_nnpack_enabled"),
    ("_get_deterministic_fill_uninitialized_memory", "_set_deterministic_fill_uninitialized_memory"),
    ("_is_multithreading_enabled", "_set_multithreading_enabled"),
    ("_is_view_replay_enabled", "_set_view_replay_enabled"),
    ("_get_warnAlways", "_set_warnAlways"),
    ("_get_qengine", "_set_qengine"),
)
# The newer names of the TF32 switches, by backend and kind of op; they come first, because the older ones follow them.
_PRECISIONS = [
    *(("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")),
    *(("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
]


def _autocast(device: str) -> Setting:
    def write(value: tuple[bool, torch.dtype]) -> None:
        torch.set_autocast_enabled(device, value[0])
        torch.set_autocast_dtype(device, value[1])

    return lambda: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)), write


def _settings() -> dict[str, Setting]:
    """By name: how it is read, how it is set."""

    def call(function: Callable[..., object], value: object) -> None:
        function(*value) if isinstance(value, tuple) else function(value)

    def set_warning_filters(filters: list[object]) -> None:
        warnings.filters[:] = filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]

    table: Any = torch._C
    found: dict[str, Setting] = {
        "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "grad mode": (torch.is_grad_enabled, torch._C._set_grad_enabled),
        "threads": (torch.get_num_threads, torch.set_num_threads),
        "determinism": (
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
        ),
        "anomaly detection": (
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda value: torch.set_anomaly_enabled(*value),
        ),
        "autocast cache": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
        "autocast on cpu": _autocast("cpu"),
        "autocast on cuda": _autocast("cuda"),
    }
    if hasattr(table, "_get_fp32_precision_getter"):
        for place in _PRECISIONS:
            read, write = table._get_fp32_precision_getter, table._set_fp32_precision_setter
            found[f"precision of {place}"] = (partial(read, *place), partial(write, *place))
    found["float32 matmul precision"] = (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
    for getter, setter in _SWITCHES:
        if hasattr(table, getter) and hasattr(table, setter):
            found[getter] = (getattr(table, getter), partial(call, getattr(table, setter)))
    found["attention fast path"] = (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled)
    found["recursion limit"] = (sys.getrecursionlimit, sys.setrecursionlimit)
    found["warning filters"] = (lambda: list(warnings.filters), set_warning_filters)
    options, hooks = vars(torch._tensor_str.PRINT_OPTS), vars(torch.nn.modules.module)
    found["print options"] = (partial(dict, options), partial(_refill, options))
    for name, table in hooks.items():  # hooks of all modules
        if name.startswith("_global_") and isinstance(table, dict):
            found[name] = (partial(dict, table), partial(_refill, table))
    return found


def _refill(table: dict[str, object], content: dict[str, object]) -> None:
    table.clear()
    table.update(content)


SETTINGS = _settings()


def _read(read: Callable[[], object]) -> object:
    try:
        return read()
    except RuntimeError:  # torch refuses to name the old TF32 switches after the new ones were used
        return None


@contextmanager
def process_state_kept() -> Iterator[None]:
    """Set back at the end: the table above, random states, the default device, modes that were entered and not left."""
    before = [_read(read) for read, _ in SETTINGS.values()]
    # Without a default device it is empty; a None in it is an error to torch 2.6.
    default_device = dict(vars(torch._GLOBAL_DEVICE_CONTEXT))
    device, modes = _device.CURRENT_DEVICE, _get_current_function_mode_stack()
    depth = torch._C._len_torch_dispatch_stack()
    try:
        with rng_untouched():
            yield
    finally:
        while torch._C._len_torch_dispatch_stack() > depth:
            _python_dispatch._pop_mode()
        if _get_current_function_mode_stack() != modes:
            for _ in _get_current_function_mode_stack():
                _pop_mode()
            for mode in modes:
                _push_mode(mode)
        vars(torch._GLOBAL_DEVICE_CONTEXT).clear()
        vars(torch._GLOBAL_DEVICE_CONTEXT).update(default_device)
        _device.CURRENT_DEVICE = device
        for value, (read, write) in zip(before, SETTINGS.values(), strict=True):
            if value is not None and _read(read) != value:
                write(value)
