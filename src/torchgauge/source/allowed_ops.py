"""The ops that a model from a file may call: known ops of torch and torchvision without effects outside the model, and
ops of the user's own that are registered in this process with a fake kernel and a formula.

An op is found by looking its full name (`aten::add.Tensor`) up in torch's own list. The text of a file is never used to
look up an attribute: `torch.ops.aten.relu.__setattr__` is an attribute, not an op.

Ops that split a tensor are bounded: a tensor without data costs nothing, but each of its pieces does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch._ops import OpOverload

from torchgauge.cost.registry import find
from torchgauge.errors import FormatError, ForwardError
from torchgauge.source.modules import all_modules

_NAMESPACES = frozenset(("aten", "prims", "quantized", "_quantized", "torchvision", "profiler"))
# The other namespaces of torch and torchvision, some with ops that talk to processes: no formula makes them a user's.
_TORCHS_OWN = _NAMESPACES | {
    "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_native", "_test", "c10d", "cuda", "debug_mode_ops",
    "debugprims", "export", "fbgemm", "higher_order", "image", "inductor", "inductor_prims", "mkl", "mkldnn",
    "mkldnn_prepacked", "onednn", "onnx", "prepacked", "prim", "quantization", "rngprims", "sparse", "static_runtime",
    "symm_mem", "video_reader", "xnnpack",
}  # fmt: skip
# They touch files, the interpreter, other processes or the settings of torch.
_DENIED_BY_NAME = frozenset(
    (
        "aten::save", "aten::from_file", "aten::backward", "aten::_backward", "aten::dist_backward", "aten::_set_data",
        "aten::set_data", "aten::_print", "aten::record_stream", "aten::_propagate_xla_data",
        "aten::_cufft_set_plan_cache_max_size", "aten::_cufft_clear_plan_cache", "prim::PythonOp",
        "prim::IgnoredPythonOp", "prim::CallFunctionPython", "prim::rpc_async", "prim::rpc_sync", "prim::rpc_remote",
        "prim::AddStatValue", "prim::TimePoint", "prim::FallbackGraph", "prim::BailOut", "prim::BailoutTemplate",
    )
)  # fmt: skip
# Their names alone are refused in the source of an archive: there a method may be called on anything.
DENIED_NAMES = frozenset(name.partition("::")[2] for name in _DENIED_BY_NAME)
# Work for other processes. Only refused as ops, because attributes may have these names.
_REMOTE = ("to_here", "local_value", "owner", "owner_name", "is_owner", "confirmed_by_owner", "get_gradients")
_DENIED = _DENIED_BY_NAME | {f"aten::{name}" for name in _REMOTE}
# Nodes of saved graphs that are not ops; nodes that torch only creates while it optimises are never saved.
_PRIMS = frozenset(
    f"prim::{name}"
    for name in (
        "AutogradAdd", "AutogradZero", "BroadcastSizes", "CallFunction", "CallMethod", "ChunkSizes", "Constant",
        "ConstantChunk", "CreateObject", "DictConstruct", "Enter", "EnumName", "EnumValue", "Exit", "FusedConcat",
        "GetAttr", "Guard", "If", "IfThenElse", "ListConstruct", "ListUnpack", "Loop", "MMBatchSide", "MMTreeReduce",
        "ModuleContainerIndex", "NumToTensor", "Param", "Print", "RaiseException", "ReductionSizes", "Return",
        "SetAttr", "StringIndex", "TupleConstruct", "TupleIndex", "TupleSlice", "TupleUnpack", "Uninitialized",
        "VarConcat", "VarStack", "abs", "annotate", "awaitable", "awaitable_nowait", "awaitable_wait", "data", "device",
        "dtype", "fork", "grad", "id", "index", "is_cpu", "is_cuda", "is_ipu", "is_maia", "is_meta", "is_mkldnn",
        "is_mps", "is_mtia", "is_nested", "is_quantized", "is_sparse", "is_sparse_csr", "is_vulkan", "is_xla", "is_xpu",
        "isinstance", "itemsize", "layout", "max", "min", "name", "nbytes", "rangelist", "requires_grad", "shape",
        "tolist", "type", "unchecked_cast", "unchecked_unwrap_optional", "uninitialized",
    )
)  # fmt: skip

_foreign: WeakSet[nn.Module] = WeakSet()


def is_denied(op: str) -> bool:
    """Whether the op (`aten::save`) has an effect outside the model."""
    return op in _DENIED


def require_allowed(op: str, where: str) -> None:
    """Raise `FormatError` unless an op may run."""
    namespace = op.partition("::")[0]
    if is_denied(op):
        raise FormatError(f"{where} calls {op}, which has effects outside the model, so it is not run")
    if op in _PRIMS or (namespace in _NAMESPACES and op in _registry_with(op).names):
        return
    missing = _missing(op) if namespace not in _TORCHS_OWN else ""
    if missing is not None:
        advice = f". If it is yours, {missing}" if missing else ""
        raise FormatError(f"{where} calls {op}, which is not an op of torch, so it is not run{advice}")


def _missing(op: str) -> str | None:
    """What an op of the user's own lacks before a file may call it; None if nothing. A formula says that the user knows
    the op, the fake kernel lets it run without its real one."""
    entry = find(op)  # first: the formulas of an installed package may register its ops
    if op not in _registry_with(op).names:
        return (
            "register it in the process that reads the file. That is a new process with --mode train, for CUDA, and "
            "where processes cannot be forked; tg.analyze(torch.jit.load(file)) works everywhere"
        )
    if entry is None or getattr(entry.rule, "__module__", "").startswith("torchgauge."):
        return "give it a formula (tg.formula)"
    schemas: list[torch.FunctionSchema] = torch._C._jit_get_schemas_for_operator(op)
    names = [f"{op}.{schema.overload_name}".removesuffix(".") for schema in schemas]
    if all(torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta") for name in names):
        return None
    return "give it a fake kernel (torch.library.register_fake)"


def find_operator(op: str, overload: str) -> OpOverload | None:
    """The operator of this name (`aten::add`) and overload (`Tensor`, `default`), or None."""
    return _operator(*found) if (found := _registry_with(op).overloads.get(f"{op}.{overload}")) else None


def find_dispatched(op: str, overload: str) -> OpOverload | None:
    """The same for exported programs, which contain only ops of the dispatcher, not those that only TorchScript has."""
    is_dispatched = f"{op}.{overload}".removesuffix(".default") in _registry_with(op).dispatched
    return find_operator(op, overload) if is_dispatched else None


@dataclass(frozen=True, slots=True)
class _Registry:
    """Torch's list of operators. `overloads` maps a whole name to its parts."""

    names: frozenset[str]
    overloads: dict[str, tuple[str, str, str]]
    dispatched: frozenset[str]


def _registry_with(op: str) -> _Registry:
    """Libraries add ops when they are imported: the list is rebuilt if it lacks this op and has grown."""
    global _size
    found = _registry(_size)
    if op not in found.names:
        _size = len(torch._C._dispatch_get_all_op_names())
        found = _registry(_size)
    return found


_size = 0


@lru_cache(maxsize=1)
def _registry(_: int) -> _Registry:
    parts = [
        (*schema.name.split("::", 1), schema.overload_name or "default") for schema in torch._C._jit_get_all_schemas()
    ]
    return _Registry(
        names=frozenset(f"{namespace}::{name}" for namespace, name, _ in parts),
        overloads={
            f"{namespace}::{name}.{overload}": (namespace, name, overload) for namespace, name, overload in parts
        },
        dispatched=frozenset(torch._C._dispatch_get_all_op_names()),
    )


@cache
def _operator(namespace: str, name: str, overload: str) -> OpOverload | None:
    """By names from torch's own registry; torch creates the object on first access."""
    found = getattr(getattr(getattr(torch.ops, namespace), name, None), overload, None)
    return found if isinstance(found, OpOverload) else None


def mark_foreign(model: nn.Module) -> None:
    """Note that a model came from a file: it is only analysed statically."""
    _foreign.add(model)


def is_foreign(model: nn.Module) -> bool:
    return model in _foreign


def holds_foreign(model: nn.Module) -> bool:
    """Whether the model, or a module in it, came from a file."""
    return bool(_foreign) and any(map(is_foreign, all_modules(model)))


MAX_PIECES = 1 << 20  # more than any model needs
_SPLITTING = frozenset(("unbind", "split", "split_with_sizes", "chunk", "tensor_split", "hsplit", "vsplit", "dsplit",
                        "combinations"))  # fmt: skip


def count_pieces(op: str, arguments: Mapping[str, Any]) -> int:
    """The number of tensors that an op that splits a tensor would return for these arguments, which are named as in its
    schema; 0 for any other op."""
    if not is_split(op):
        return 0
    shape, dim = arguments["self"].shape, arguments.get("dim") or 0
    length = int(shape[dim]) if shape and -len(shape) <= dim < len(shape) else 0
    for given in ("split_size", "split_sizes", "chunks", "sections", "indices", "r"):
        value = arguments.get(given)
        if isinstance(value, list | tuple):
            return len(value) + 1
        if isinstance(value, int):
            return -(-length // max(value, 1)) if given == "split_size" else max(value, 0)
    return length


def is_split(op: str) -> bool:
    return op.partition("::")[2].removeprefix("unsafe_").removesuffix("_copy") in _SPLITTING


def bounded(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The operator; if it splits tensors, a wrapper that refuses too many pieces. Some ops allocate room for all pieces
    before the first one is made, where no dispatch mode sees it."""
    if not is_split(op):
        return function
    schema: Any = function._schema  # type: ignore[attr-defined]
    names = [argument.name for argument in schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        count = count_pieces(op, dict(zip(names, args, strict=False)) | kwargs)
        if count > MAX_PIECES:
            raise ForwardError(f"the graph splits a tensor into {count:,} pieces ({op}); the limit is {MAX_PIECES:,}")
        return function(*args, **kwargs)

    run._schema = schema  # type: ignore[attr-defined]
    return run
