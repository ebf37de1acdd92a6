"""The function behind a node that is an operator: Python's own for plain values, else torch's by the dispatcher.

A graph may ask a tensor for its shape, type, device or single value. What `torch.jit.optimize_for_inference` puts into
a graph for oneDNN is run as the ops it stands for; tensors in oneDNN's own layouts are ordinary fake tensors here, and
bringing them there and back copies them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from torchgauge.capture.script.builtins import BUILTINS, require_spelled_length
from torchgauge.capture.script.program import Unsupported
from torchgauge.errors import ForwardError
from torchgauge.source.allowed_ops import bounded, find_operator, is_denied

# The numbers are part of the file format, so they do not change; types that this torch lacks are left out.
_NAMES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64",
    "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16", "quint4x2", "quint2x4", "bits1x8", "bits2x4",
    "bits4x2", "bits8", "bits16", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16",
    "uint32", "uint64",
)  # fmt: skip
_DTYPES = {number: getattr(torch, name) for number, name in enumerate(_NAMES) if hasattr(torch, name)}
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_LAYOUTS = {torch.strided: 0, torch.sparse_coo: 1, torch.sparse_csr: 2}


def dtype_of(number: int | None) -> torch.dtype | None:
    return None if number is None else _DTYPES[number]


def plain(value: Any) -> Any:
    """A value as TorchScript holds it."""
    if isinstance(value, torch.dtype):
        return _NUMBERS[value]
    if isinstance(value, torch.layout):
        return _LAYOUTS[value]
    return value


def _size(tensor: torch.Tensor, dim: int | None = None) -> Any:
    return list(tensor.shape) if dim is None else tensor.shape[dim]


def _strides(tensor: torch.Tensor, dim: int | None = None) -> Any:
    return list(tensor.stride()) if dim is None else tensor.stride(dim)


QUESTIONS: dict[str, Callable[..., Any]] = {
    "aten::size": _size,
    "aten::stride": _strides,
    "aten::dim": torch.Tensor.dim,
    "aten::len": len,
    "aten::numel": torch.Tensor.numel,
    "aten::Int": int,
    "aten::Float": float,
    "aten::Bool": bool,
    "aten::IntImplicit": int,
    "aten::FloatImplicit": float,
    "aten::ScalarImplicit": torch.Tensor.item,
    "aten::item": torch.Tensor.item,
    "aten::is_floating_point": torch.Tensor.is_floating_point,
    "aten::is_complex": torch.Tensor.is_complex,
    "aten::is_contiguous": torch.Tensor.is_contiguous,
    "aten::get_device": torch.Tensor.get_device,
    "aten::__is__": lambda tensor, other: tensor is other,
    "aten::__isnot__": lambda tensor, other: tensor is not other,
    "aten::_unwrap_optional": lambda tensor: tensor,
    "prim::dtype": lambda tensor: plain(tensor.dtype),
    "prim::layout": lambda tensor: plain(tensor.layout),
    "prim::device": lambda tensor: tensor.device,
    "prim::requires_grad": lambda tensor: tensor.requires_grad,
    "prim::is_cuda": lambda tensor: tensor.is_cuda,
    "prim::is_cpu": lambda tensor: tensor.is_cpu,
    "prim::is_mps": lambda tensor: tensor.is_mps,
    "prim::is_xla": lambda tensor: tensor.is_xla,
    "prim::is_xpu": lambda tensor: tensor.is_xpu,
    "prim::is_meta": lambda tensor: tensor.is_meta,
    "prim::is_sparse": lambda tensor: tensor.is_sparse,
    "prim::is_sparse_csr": lambda tensor: tensor.is_sparse_csr,
    "prim::is_mkldnn": lambda tensor: tensor.is_mkldnn,
    "prim::is_quantized": lambda tensor: tensor.is_quantized,
    "prim::is_nested": lambda tensor: tensor.is_nested,
    "prim::itemsize": lambda tensor: tensor.itemsize,
    "prim::nbytes": lambda tensor: tensor.nbytes,
    "prim::data": lambda tensor: tensor.detach(),
}


def make_tensor(
    data: Any, dtype: int | None = None, device: torch.device | None = None, requires_grad: bool = False
) -> torch.Tensor:
    require_spelled_length((data,))
    return torch.tensor(data, dtype=dtype_of(dtype), device=device, requires_grad=requires_grad)


def as_tensor(data: Any, dtype: int | None = None, device: torch.device | None = None) -> torch.Tensor:
    require_spelled_length((data,))
    return torch.as_tensor(data, dtype=dtype_of(dtype), device=device)


def number_to_tensor(number: complex) -> torch.Tensor:
    """A number that a trace carries as a tensor; making it is not an op of the model."""
    with torch._C._DisableTorchDispatch():
        return torch.tensor(number)


_MAKERS: dict[str, Callable[..., Any]] = {
    "aten::tensor": make_tensor,
    "aten::as_tensor": as_tensor,
    "prim::NumToTensor": number_to_tensor,
}
_NESTING = (list, tuple, dict)
_TENSORS = ("Tensor", "Optional[Tensor]")


def operator_of(node: Any) -> Callable[..., Any]:
    kind = node.kind()
    if kind in ONEDNN:
        return ONEDNN[kind]
    text = node.schema()
    if text.startswith("(") or "(...)" in text:  # "(no schema)": the number of arguments varies
        found = BUILTINS.get(kind)
        if found is None:
            raise Unsupported(kind)
        return found
    return _by_schema(text)


@cache
def _by_schema(text: str) -> Callable[..., Any]:
    schema = torch._C.parse_schema(text)
    name = schema.name
    asks_tensor = bool(schema.arguments) and str(schema.arguments[0].type) in _TENSORS
    found = _MAKERS.get(name) or (QUESTIONS if asks_tensor else BUILTINS).get(name)
    return found or _dispatched(schema)


def _refuse(op: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> None:
        raise ForwardError(f"the graph calls {op}, which has effects outside the model, so it is not run")

    return refuse


def _dispatched(schema: Any) -> Callable[..., Any]:
    if is_denied(schema.name):
        return _refuse(schema.name)
    function = find_operator(schema.name, schema.overload_name or "default")
    if function is None:
        raise Unsupported(schema.name)
    run = bounded(schema.name, function)
    keywords = tuple(argument.name for argument in schema.arguments if argument.kwarg_only)
    positional = len(schema.arguments) - len(keywords)

    def call(*args: Any) -> Any:
        for value in args:
            # Handing it to torch copies every list in it as often as it occurs.
            if type(value) in _NESTING and value and type(next(iter(value))) in _NESTING:
                require_spelled_length(value)
        return run(*args[:positional], **dict(zip(keywords, args[positional:], strict=True)))

    return call


_aten: Any = torch.ops.aten


def _convolution(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    return _aten.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


ONEDNN: dict[str, Callable[..., Any]] = {
    "prim::mkldnn_convolution": _convolution,
    "prim::BroadcastMKLDNNTensors": lambda *tensors: tuple(torch.broadcast_tensors(*tensors)),
    "prim::MKLDNNScalarMul": lambda x, factor: _aten.mul(x, factor),
    "prim::MKLDNNScalarMul_": lambda x, factor: _aten.mul_(x, factor),
    "prim::MKLDNNLayerNorm": lambda x, *rest: _aten.layer_norm(x, *rest),
    "prim::MKLDNNLayerNorm_": lambda x, *rest: _aten.layer_norm(x, *rest),
    "aten::to_mkldnn": lambda x, *dtype: _aten.clone(x),
    "prim::MKLDNNHardSwish": _aten.hardswish,
    "prim::MKLDNNHardSwish_": _aten.hardswish_,
    "prim::MKLDNNHardSigmoid": _aten.hardsigmoid,
    "prim::MKLDNNHardSigmoid_": _aten.hardsigmoid_,
    "prim::MKLDNNHardTanh": _aten.hardtanh,
    "prim::MKLDNNHardTanh_": _aten.hardtanh_,
    "prim::MKLDNNRelu6": _aten.relu6,
    "prim::MKLDNNRelu6_": _aten.relu6_,
    "prim::MKLDNNClamp": _aten.clamp,
    "prim::MKLDNNClamp_": _aten.clamp_,
}
