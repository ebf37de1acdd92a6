"""Settings of the process that a forward may change: torch's defaults and switches, random states, modes.

One table says how each is read and set. What differs at the end is set back, whatever happened.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import _device, _python_dispatch

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]

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
            found[getter] = (getattr(table, getter), partial(_call, getattr(table, setter)))
    found["attention fast path"] = (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled)
    found["recursion limit"] = (sys.getrecursionlimit, sys.setrecursionlimit)
    found["warning filters"] = (lambda: list(warnings.filters), _set_warning_filters)
    options, hooks = vars(torch._tensor_str.PRINT_OPTS), vars(torch.nn.modules.module)
    found["print options"] = (partial(dict, options), partial(_refill, options))
    for name, table in hooks.items():  # hooks of all modules
        if name.startswith("_global_") and isinstance(table, dict):
            found[name] = (partial(dict, table), partial(_refill, table))
    return found


def _call(function: Callable[..., Any], value: Any) -> None:
    function(*value) if isinstance(value, tuple) else function(value)


def _set_warning_filters(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _refill(table: dict[Any, Any], content: dict[Any, Any]) -> None:
    table.clear()
    table.update(content)


SETTINGS = _settings()


def _read(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except RuntimeError:  # torch refuses to name the old TF32 switches after the new ones were used
        return None


@contextmanager
def process_state_kept() -> Iterator[None]:
    """Set back at the end: the table above, random states, the default device, modes that were entered and not left."""
    before = [_read(read) for read, _ in SETTINGS.values()]
    # How each random state is set back.
    python, cpu = random.getstate(), torch.get_rng_state()
    states: list[Callable[[], Any]] = [lambda: random.setstate(python), lambda: torch.set_rng_state(cpu)]
    numpy = sys.modules.get("numpy.random")  # not loaded, it has drawn nothing and will begin with a fresh seed
    if numpy is not None:
        legacy = numpy.get_state()
        states.append(lambda: numpy.set_state(legacy))
    if torch.cuda.is_initialized():
        cuda = torch.cuda.get_rng_state_all()
        states.append(lambda: torch.cuda.set_rng_state_all(cuda))
    if torch.backends.mps.is_available():
        mps = torch.mps.get_rng_state()
        states.append(lambda: torch.mps.set_rng_state(mps))
    # Without a default device it is empty; a None in it is an error to torch 2.6.
    default_device = dict(vars(torch._GLOBAL_DEVICE_CONTEXT))
    device, modes = _device.CURRENT_DEVICE, _get_current_function_mode_stack()
    depth = torch._C._len_torch_dispatch_stack()
    try:
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
        for restore in states:
            restore()
