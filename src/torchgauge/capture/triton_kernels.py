"""Launches of Triton kernels: each is an op, `triton::` and the name of the kernel, with the kernel's own arguments.

A kernel is launched through an op of torch (`wrap_triton`, `triton_op`) or directly, bypassing the dispatcher. Its
source shows what it reads and writes: the pointers that it loads from and stores to.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from torchgauge.capture.op_call import Arguments, Op, OpCall, OpInfo
from torchgauge.capture.structure import tensors_in
from torchgauge.cost import find
from torchgauge.source.process_state import replaced_here

_WRAPPERS = ("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional")
# The classes of Triton that launch kernels: a kernel, wrappers that choose its settings, and the interpreter's kernels.
_LAUNCHERS = (
    ("triton.runtime.jit", "JITFunction"),
    ("triton.runtime.autotuner", "Autotuner"),
    ("triton.runtime.autotuner", "Heuristics"),
    ("triton.runtime.interpreter", "InterpretedFunction"),
)


class Access(NamedTuple):
    """Names of a kernel's arguments; a kernel without source is assumed to read all of them."""

    loaded: frozenset[str]
    stored: frozenset[str]


TritonCall = OpCall[torch.Tensor]
Launch = Callable[[TritonCall], object]


def is_wrapped_launch(func: Op) -> bool:
    """Whether a higher-order op launches a Triton kernel."""
    return getattr(func, "__name__", "") in _WRAPPERS


def wrapped_launch(func: Op, kwargs: Arguments) -> TritonCall:
    """The launch behind a call of torch's own wrapper."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    kernel = kernel_side_table.get_kernel(kwargs["kernel_idx"])
    constants = kernel_side_table.get_constant_args(kwargs["constant_args_idx"])
    return _describe(func, kernel, {**constants, **kwargs["kwargs"]})


def triton_op_body(func: Op) -> Callable[..., object] | None:
    """The Python function of an op made by `triton_op`: torch itself looks into it when it compiles. None for another
    op, and for one with a registered formula."""
    known = getattr(sys.modules.get("torch._library.triton"), "triton_ops_to_kernels", {})
    if not known or not isinstance(func, torch._ops.OpOverload) or func._schema.name not in known:
        return None
    from torch._library.custom_ops import OPDEFS

    definition = OPDEFS.get(func._schema.name)
    return None if definition is None or find(func._schema.name) is not None else definition._abstract_fn


@contextmanager
def launches_seen(launch: Launch, *, runs: bool) -> Iterator[None]:
    """Give direct launches of kernels in this thread to `launch`; with `runs` they also take place."""
    is_launching = False

    def run(original: Callable[..., object], kernel: Any, *args: object, **kwargs: object) -> object:
        nonlocal is_launching
        if is_launching or kwargs.get("warmup"):
            return original(kernel, *args, **kwargs)
        is_launching = True  # a wrapper launches the kernel that it holds
        try:
            given = dict(zip(_innermost(kernel).arg_names, args, strict=False))
            given |= {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
            launch(_describe(kernel, kernel, given))
            return original(kernel, *args, **kwargs) if runs else None
        finally:
            is_launching = False

    with ExitStack() as stack:
        for module, name in _LAUNCHERS:
            kind = getattr(sys.modules.get(module), name, None)  # where Triton is not loaded, nothing launches
            if kind is not None:
                stack.enter_context(replaced_here(kind, "run", run))
        yield


def _innermost(kernel: Any) -> Any:
    """The kernel in its wrappers: each holds the next in `fn`, the last one a Python function."""
    while not inspect.isfunction(getattr(kernel, "fn", None)) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


def _describe(func: Op, kernel: Any, given: Arguments) -> TritonCall:
    kernel = _innermost(kernel)
    function = getattr(kernel, "fn", kernel)
    names = [name for name in kernel.arg_names if name in given]
    access = _access(function)
    tensors = {name for name in names if any(True for _ in tensors_in(given[name]))}
    stored = tuple(name for name in names if name in access.stored & tensors)
    info = OpInfo(
        name=f"triton::{function.__name__}",
        overload="",
        tags=frozenset(),
        arguments=tuple((name, None) for name in names),
        returns=(),
        written=stored,
        only_written=tuple(name for name in stored if name not in access.loaded),
    )
    bound = {name: given[name] for name in names}
    return OpCall(func, info, (), bound, list(tensors_in(bound)))


@lru_cache(256)
def _access(function: Callable[..., object]) -> Access:
    """The arguments that a kernel loads from and stores to, from its source and followed through assignments."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return Access(frozenset(inspect.signature(function).parameters), frozenset())
    sources: dict[str, set[str]] = {}
    loaded, stored = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for name in (part.id for part in ast.walk(target) if isinstance(part, ast.Name)):
                    sources.setdefault(name, set()).update(_addresses(node.value))
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            # `tl.store(pointer, …)`, and `descriptor.store(…)` of a tensor descriptor.
            is_method = isinstance(owner, ast.Name) and owner.id not in ("tl", "triton", "libdevice", "math")
            places = [owner] if is_method and owner is not None else node.args[:1]
            used = {name for place in places for name in _addresses(place)}
            if called == "store" or called.startswith("atomic_"):
                stored |= used
            if called == "load" or called.startswith("atomic_"):
                loaded |= used
            if isinstance(node.func, ast.Name) and node.func.id not in ("range", "min", "max", "float", "int"):
                # Another kernel may do either.
                passed = {name for argument in node.args for name in _addresses(argument)}
                loaded, stored = loaded | passed, stored | passed
    return Access(_origins(loaded, sources), _origins(stored, sources))


def _addresses(node: ast.AST) -> Iterator[str]:
    """The names in an expression that may be part of an address: what a load gives is a value."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load":
        return
    if isinstance(node, ast.Name):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _addresses(child)


def _origins(names: set[str], sources: Mapping[str, set[str]]) -> frozenset[str]:
    """The names and all that they were assigned from."""
    found, waiting = set[str](), list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += sources.get(name, ())
    return frozenset(found)
