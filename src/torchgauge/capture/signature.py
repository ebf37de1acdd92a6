"""From an op call to its `Signature`: arguments by name, specs for tensors, the cost assessed once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from torchgauge.capture.fake_tensor import dtype_name
from torchgauge.capture.opcall import OpCall
from torchgauge.cost import Call, Work, assess
from torchgauge.cost.registry import Assessment, find, price
from torchgauge.facts import COUNTED, Signature, TensorSpec, tensor_specs

SpecOf = Callable[[torch.Tensor], TensorSpec]


def describe(
    call: OpCall,
    *,
    outputs: tuple[TensorSpec, ...],
    distinct: list[TensorSpec],
    activation_bytes: int,
    spec_of: SpecOf,
    result: Any,
) -> Signature:
    """The signature of a call; `distinct` are the specs of its distinct tensors, `result` is what it returned."""
    info = call.info
    arguments = {name: _to_specs(value, spec_of) for name, value in call.bind().items()}
    if call.wanted is not None:
        arguments["output_mask"] = call.wanted
    read = _without_out(distinct, arguments) if "out" in info.tags else distinct
    priced = Call(info.name, arguments, outputs, tuple(read), info.tags)
    found = _assess(call, priced, result)
    return Signature(
        op=info.name,
        overload=info.overload,
        category=found.category,
        status=found.status,
        tags=tuple(sorted(info.tags)),
        inputs=priced.tensors,
        outputs=outputs,
        attributes={name: plain for name, value in arguments.items() if (plain := _attribute(value)) is not None},
        cost=found.cost,
        activation_bytes=activation_bytes,
    )


def _without_out(distinct: list[TensorSpec], arguments: dict[str, Any]) -> list[TensorSpec]:
    """The tensors an `out=` call reads: all but the last, which it only writes."""
    return distinct[: -len(list(tensor_specs(arguments.get("out")))) or None]


def _assess(call: OpCall, priced: Call, result: Any) -> Assessment:
    """Our own formula first; one that the user registered with torch where we have none."""
    if find(priced.op) is None:
        flops = _torch_formula(call, result)
        if flops is not None:
            return Assessment("other", COUNTED, price(priced, Work(macs=flops // 2, flops=flops)))
    return assess(priced)


def _torch_formula(call: OpCall, result: Any) -> int | None:
    # Whoever registered a formula has imported the module; importing it here would cost every analysis.
    counter = sys.modules.get("torch.utils.flop_counter")
    if counter is None or not isinstance(call.func, torch._ops.OpOverload):
        return None
    rule = counter.flop_registry.get(call.func._overloadpacket)
    return None if rule is None else int(rule(*call.args, **call.kwargs, out_val=result))


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
