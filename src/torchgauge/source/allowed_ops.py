"""The ops that a model from a file may hold: known ones of torch and torchvision without effects outside the model."""

from __future__ import annotations

from functools import cache
from weakref import WeakSet

import torch
from torch import nn

from torchgauge.errors import FormatError

_NAMESPACES = frozenset(("aten", "prims", "quantized", "_quantized", "torchvision", "profiler"))
# They touch files, the interpreter or the settings of torch.
_DENIED_BY_NAME = frozenset(
    (
        "aten::save", "aten::from_file", "aten::backward", "aten::_set_data", "aten::set_data", "aten::_print",
        "aten::_cufft_set_plan_cache_max_size", "aten::_cufft_clear_plan_cache", "prim::PythonOp",
        "prim::IgnoredPythonOp", "prim::CallFunctionPython", "prim::rpc_async", "prim::rpc_sync", "prim::rpc_remote",
        "prim::AddStatValue", "prim::TimePoint", "prim::FallbackGraph", "prim::BailOut", "prim::BailoutTemplate",
    )
)  # fmt: skip
# Their names alone are refused in the source of an archive: there a method may be called on anything.
DENIED_NAMES = frozenset(name.partition("::")[2] for name in _DENIED_BY_NAME)
# Work for other processes; an attribute may well have such a name.
_REMOTE = ("to_here", "local_value", "owner", "owner_name", "is_owner", "confirmed_by_owner", "get_gradients")
_DENIED = _DENIED_BY_NAME | {f"aten::{name}" for name in _REMOTE}
# What the graphs of archives are made of besides ops; what torch makes while it optimises is not saved.
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
    if op not in _PRIMS and (namespace not in _NAMESPACES or op not in _known_ops()):
        raise FormatError(
            f"{where} calls {op}, which is no op that torchgauge knows, so it is not run: only torch's own are"
        )


@cache
def _known_ops() -> frozenset[str]:
    return frozenset(schema.name for schema in torch._C._jit_get_all_schemas())


def mark_foreign(model: nn.Module) -> None:
    """Note that a model came from a file: it is analysed without arithmetic only."""
    _foreign.add(model)


def is_foreign(model: nn.Module) -> bool:
    return model in _foreign
