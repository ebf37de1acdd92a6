"""The function behind a node that is an operator: Python's own for plain values, else torch's by the dispatcher.

A graph may ask a tensor for its shape, type, device or single value. Nodes that `torch.jit.optimize_for_inference` adds
for oneDNN run as the ops that they replace; tensors in oneDNN's own layouts are ordinary fake tensors here, and
converting them copies them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import cache

import torch

from torchgauge.capture.fake_tensor import Endless
from torchgauge.capture.script.program import EnumMember, JitObject, Run, Unsupported, Value
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


def plain(value: Value) -> Value:
    """A value as TorchScript holds it."""
    if isinstance(value, torch.dtype):
        return _NUMBERS[value]
    if isinstance(value, torch.layout):
        return _LAYOUTS[value]
    return value


QUESTIONS: dict[str, Run] = {
    "aten::size": lambda tensor, dim=None: list(tensor.shape) if dim is None else tensor.shape[dim],
    "aten::stride": lambda tensor, dim=None: list(tensor.stride()) if dim is None else tensor.stride(dim),
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
    data: Value, dtype: int | None = None, device: torch.device | None = None, requires_grad: bool = False
) -> torch.Tensor:
    require_spelled_length((data,))
    return torch.tensor(data, dtype=dtype_of(dtype), device=device, requires_grad=requires_grad)


def as_tensor(data: Value, dtype: int | None = None, device: torch.device | None = None) -> torch.Tensor:
    require_spelled_length((data,))
    return torch.as_tensor(data, dtype=dtype_of(dtype), device=device)


def number_to_tensor(number: complex) -> torch.Tensor:
    """A number that a trace carries as a tensor; making it is not an op of the model."""
    with torch._C._DisableTorchDispatch():
        return torch.tensor(number)


_MAKERS: dict[str, Run] = {
    "aten::tensor": make_tensor,
    "aten::as_tensor": as_tensor,
    "prim::NumToTensor": number_to_tensor,
}
_NESTING = (list, tuple, dict)
_TENSORS = ("Tensor", "Optional[Tensor]")


def _register(table: dict[str, Run], *kinds: str) -> Callable[[Run], Run]:
    def add(run: Run) -> Run:
        table.update(dict.fromkeys(kinds, run))
        return run

    return add


def operator_of(node: JitObject) -> Run:
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
def _by_schema(text: str) -> Run:
    schema = torch._C.parse_schema(text)
    name = schema.name
    asks_tensor = bool(schema.arguments) and str(schema.arguments[0].type) in _TENSORS
    found = _MAKERS.get(name) or (QUESTIONS if asks_tensor else BUILTINS).get(name)
    if found is not None:
        return found
    if is_denied(name):

        def refuse(*_: Value) -> None:
            raise ForwardError(f"the graph calls {name}, which has effects outside the model, so it is not run")

        return refuse
    function = find_operator(name, schema.overload_name or "default")
    if function is None:
        raise Unsupported(name)
    run = bounded(name, function)
    keywords = tuple(argument.name for argument in schema.arguments if argument.kwarg_only)
    positional = len(schema.arguments) - len(keywords)

    def call(*args: Value) -> Value:
        for value in args:
            # Handing it to torch copies every list in it as often as it occurs.
            if type(value) in _NESTING and value and type(next(iter(value))) in _NESTING:
                require_spelled_length(value)
        return run(*args[:positional], **dict(zip(keywords, args[positional:], strict=True)))

    return call


_aten = torch.ops.aten


ONEDNN: dict[str, Run] = {
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


@_register(ONEDNN, "prim::mkldnn_convolution")
def convolution(x: Value, weight: Value, bias: Value, stride: list[int], *rest: Value) -> Value:
    *sizes, groups = rest  # padding and dilation
    return _aten.convolution(x, weight, bias, stride, *sizes, False, [0] * len(stride), groups)


# TorchScript's operators for numbers, texts, lists and dicts, in Python: torch's own would work on copies, and an
# `append` would be lost. Methods that make a text longer check its length first: torch's own would fill the memory.

MAX_ELEMENTS = 1 << 22  # elements of one list or text that a graph may make; `Budget` has the limit for all of them


def _changed(items: Value, _: None) -> Value:
    return items


def enum_value(member: Value) -> Value:
    if isinstance(member, EnumMember):
        raise ForwardError(f"the graph reads the value of {member.type}.{member.name}, which only torch's engine knows")
    return member.value


BUILTINS: dict[str, Run] = {
    "aten::sub": operator.sub,
    "aten::neg": operator.neg,
    "aten::floordiv": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::div": operator.truediv,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
    "aten::__xor__": operator.xor,
    "aten::__not__": operator.not_,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::__contains__": operator.contains,
    "aten::__getitem__": operator.getitem,
    "aten::len": len,
    "aten::Int": int,
    "aten::Float": float,
    "aten::Bool": bool,
    "aten::append": lambda items, item: _changed(items, items.append(item)),
    "aten::insert": lambda items, index, item: items.insert(index, item),
    "aten::pop": lambda items, *where: items.pop(*where),
    "aten::popitem": lambda items: items.popitem(),
    "aten::clear": lambda items: items.clear(),
    "aten::remove": lambda items, item: items.remove(item),
    "aten::reverse": lambda items: items.reverse(),
    "aten::copy": lambda items: items.copy(),
    "aten::index": lambda items, *item: items.index(*item),
    "aten::count": lambda items, *item: items.count(*item),
    "aten::list": list,
    "aten::dict": dict,
    "aten::keys": lambda items: list(items.keys()),
    "aten::values": lambda items: list(items.values()),
    "aten::items": lambda items: list(items.items()),
    "aten::get": lambda items, *key: items.get(*key),
    "aten::setdefault": lambda items, *key: items.setdefault(*key),
    "aten::update": lambda items, other: items.update(other),
    "aten::_set_item": lambda items, key, item: _changed(items, operator.setitem(items, key, item)),
    "aten::Delete": operator.delitem,
    "aten::slice": lambda items, start, stop, step: items[slice(start, stop, step)],
    "aten::__range_length": lambda start, stop, step: len(range(start, stop, step)),
    "aten::__derive_index": lambda index, start, step: start + index * step,
    "aten::ceil": math.ceil,
    "aten::floor": math.floor,
    "aten::sqrt": math.sqrt,
    "aten::log": math.log,
    "aten::exp": math.exp,
    "aten::warn": lambda *message: None,
    "aten::_unwrap_optional": lambda value: value,
    "aten::is_scripting": lambda: True,
    "aten::_get_tracing_state": lambda: False,
    "aten::has_torch_function": lambda *values: False,
    "aten::manual_seed": lambda *seed: None,
    "prim::min": min,
    "prim::max": max,
    "prim::abs": abs,
    "prim::StringIndex": operator.getitem,
    "prim::unchecked_cast": lambda value: value,
    "prim::unchecked_unwrap_optional": lambda value: value,
    "prim::Print": lambda *values: None,
    "prim::ListConstruct": lambda *items: list(items),
    "prim::TupleConstruct": lambda *items: items,
    "prim::TupleIndex": operator.getitem,
    "prim::DictConstruct": lambda *items: dict(zip(items[::2], items[1::2], strict=True)),
    "prim::IfThenElse": lambda condition, yes, no: yes if condition else no,
    "prim::Uninitialized": lambda: None,
    "prim::EnumName": lambda member: member.name,
    "prim::EnumValue": enum_value,
}


def require_length(count: int) -> None:
    if count > MAX_ELEMENTS:
        raise Endless(f"the graph makes a list or text of {count:,} elements")


def require_spelled_length(*values: Value) -> None:
    """For operators that visit every nested list: one list repeated a thousand times is short in memory and long when
    written out."""
    waiting: list[Value] = [values]
    count = 0
    while waiting:
        items = waiting.pop()
        count += len(items)
        require_length(count)
        nested = items.values() if isinstance(items, dict) else items
        waiting.extend(item for item in nested if isinstance(item, list | tuple | dict))


def _padded(pad: Callable[..., str]) -> Run:
    def run(text: str, width: int, *fill: str) -> str:
        require_length(width)
        return pad(text, width, *fill)

    return run


BUILTINS |= {
    "aten::ljust": _padded(str.ljust),
    "aten::rjust": _padded(str.rjust),
    "aten::center": _padded(str.center),
    "aten::zfill": _padded(str.zfill),
}


@_register(BUILTINS, "aten::expandtabs")
def expand_tabs(text: str, size: int = 8) -> str:
    require_length(len(text) + text.count("\t") * size)
    return text.expandtabs(size)


@_register(BUILTINS, "aten::replace")
def replace_text(text: str, old: str, new: str, limit: int = -1) -> str:
    found = text.count(old)
    times = found if limit < 0 else min(found, limit)
    require_length(len(text) + times * (len(new) - len(old)))
    return text.replace(old, new, limit)


@_register(BUILTINS, "aten::join")
def join_texts(separator: str, parts: list[str]) -> str:
    require_length(len(separator) * len(parts) + sum(map(len, parts)))
    return separator.join(parts)


@_register(BUILTINS, "aten::mul")
def multiply(left: Value, right: Value) -> Value:
    for items, times in ((left, right), (right, left)):
        if isinstance(items, list | str):
            require_length(len(items) * times)
    return _wrapped(left * right)


@_register(BUILTINS, "aten::add")
def add(left: Value, right: Value) -> Value:
    if isinstance(left, list | str):
        require_length(len(left) + len(right))
    return _wrapped(left + right)


@_register(BUILTINS, "aten::add_", "aten::extend")
def extend(items: list[Value], more: list[Value]) -> list[Value]:
    require_length(len(items) + len(more))
    items += more
    return items


@_register(BUILTINS, "aten::mul_")
def repeat(items: list[Value], times: int) -> list[Value]:
    require_length(len(items) * times)
    items *= times
    return items


@_register(BUILTINS, "prim::rangelist")
def make_range(count: int) -> list[int]:
    require_length(count)
    return list(range(count))


def _wrapped(value: Value) -> Value:
    """An integer has 64 bits; without end, a loop could make one that fills the memory."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63) if type(value) is int else value


@_register(BUILTINS, "aten::format")
def fill(text: str, *values: Value) -> str:
    """Each `{}` is the next value. Python's own `format` would also look up attributes that a text names."""
    require_spelled_length(values)
    parts = text.split("{}")
    filled = [part + str(value) for part, value in zip(parts, values, strict=False)]
    result = "".join(filled) + "{}".join(parts[len(filled) :])
    require_length(len(result))
    return result


@_register(BUILTINS, "aten::str")
def to_text(value: Value) -> str:
    require_spelled_length((value,))
    return str(value)


@_register(BUILTINS, "prim::tolist")
def to_list(tensor: Value, dim: int, kind: int) -> Value:
    require_length(tensor.numel())
    return tensor.tolist()
