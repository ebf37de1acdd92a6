"""What a graph asks a tensor without changing it: shape, type, device, or its one value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchgauge.capture.script.scalar_types import dtype_of, plain
from torchgauge.capture.script.texts import require_spelled_length


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
    """A number that a trace carries as a tensor; making it is no op of the model."""
    with torch._C._DisableTorchDispatch():
        return torch.tensor(number)
