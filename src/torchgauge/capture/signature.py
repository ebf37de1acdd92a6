"""From an op call to its `Signature`: arguments by name, specs for tensors, the cost assessed once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from torchgauge.capture.ghost import dtype_name
from torchgauge.capture.opinfo import OpInfo
from torchgauge.cost import Call, Work, assess
from torchgauge.cost.registry import Assessment, find, price
from torchgauge.records import COUNTED, Signature, TensorSpec, tensor_specs

SpecOf = Callable[[torch.Tensor], TensorSpec]


def describe(
    func: Any,
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    outputs: tuple[TensorSpec, ...],
    distinct: Iterable[TensorSpec],
    activation_bytes: int,
    spec_of: SpecOf,
    result: Any,
) -> Signature:
    """The signature of one call; `result` is what the call returned, for formulas registered with torch."""
    arguments = {name: _to_specs(value, spec_of) for name, value in bind(info, args, kwargs).items()}
    read = _without_out(distinct, arguments) if "out" in info.tags else distinct
    call = Call(info.name, arguments, outputs, tuple(read), info.tags)
    found = _assess(func, call, args, kwargs, result)
    return Signature(
        op=info.name,
        overload=info.overload,
        category=found.category,
        status=found.status,
        tags=tuple(sorted(info.tags)),
        inputs=call.tensors,
        outputs=outputs,
        attributes={name: plain for name, value in arguments.items() if (plain := _attribute(value)) is not None},
        cost=found.cost,
        activation_bytes=activation_bytes,
    )


def bind(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by their schema names, defaults filled in."""
    bound = dict(info.arguments)
    for index, value in enumerate(args):
        name = info.arguments[index][0] if index < len(info.arguments) else f"arg{index}"
        bound[name] = value
    bound.update(kwargs)
    return bound


def _without_out(distinct: Iterable[TensorSpec], arguments: dict[str, Any]) -> list[TensorSpec]:
    """The tensors an `out=` call reads: all but the last, which it only writes."""
    return list(distinct)[: -len(list(tensor_specs(arguments.get("out")))) or None]


def _assess(func: Any, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Assessment:
    """Our own formula first; one that the user registered with torch where we have none."""
    if find(call.op) is None:
        flops = _torch_formula(func, args, kwargs, result)
        if flops is not None:
            return Assessment("other", COUNTED, price(call, Work(macs=flops // 2, flops=flops)))
    return assess(call)


def _torch_formula(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int | None:
    # Whoever registered a formula has imported the module; importing it here would cost every analysis.
    counter = sys.modules.get("torch.utils.flop_counter")
    if counter is None or not isinstance(func, torch._ops.OpOverload):
        return None
    rule = counter.flop_registry.get(func._overloadpacket)
    return None if rule is None else int(rule(*args, **kwargs, out_val=result))


def _to_specs(value: Any, spec_of: SpecOf) -> Any:
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    if isinstance(value, list | tuple):
        return [_to_specs(item, spec_of) for item in value]
    return value


def _attribute(value: Any) -> Any:
    """A non-tensor argument as JSON can hold it; None where it cannot."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, torch.device | torch.memory_format | torch.layout):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, bool | int | float) for item in value):
        return list(value)
    return None
