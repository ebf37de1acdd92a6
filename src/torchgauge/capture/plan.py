"""What a call of a known kind returns: worked out once per distinct call, replayed for its equals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchgauge.capture.ghost import Ghost, Spec, Specs
from torchgauge.capture.infer import infer
from torchgauge.capture.opinfo import OpInfo, Relation, Return
from torchgauge.capture.rules import find_rule
from torchgauge.capture.signature import bind, describe
from torchgauge.records import Signature


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor of a result; `source` is the position of the input whose memory it shares, -1 for its own."""

    spec: Spec
    source: int = -1
    same: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """`result` is an `Output`, or a nested list or tuple of them with other values between."""

    signature: Signature
    result: Any
    info: OpInfo
    # Whether known content must be looked after whatever the inputs are: the op writes, or makes tensors from nothing.
    follows: bool


_NEW_MEMORY = [(-1, False)]


class Planner:
    def __init__(self, specs: Specs, device: torch.device) -> None:
        self._specs = specs
        self._device = device

    def plan(
        self,
        func: Any,
        info: OpInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Ghost],
        inferred: Any = None,
    ) -> Plan:
        """Plan a call; `inferred` is its result where that is known already."""
        device = self._output_device(kwargs, tensors)
        rule = find_rule(info.name, info.tags)
        if inferred is None and rule is not None:
            inferred = rule(bind(info, args, kwargs), self._specs)
        if inferred is None and _writes_alone(info, tensors):
            inferred = tensors[0].spec
        if inferred is None:
            inferred = infer(func, args, kwargs)
        result = self._result(inferred, info, args, kwargs, tensors, device)
        outputs = list(_outputs(result))
        signature = describe(
            func,
            info,
            args,
            kwargs,
            outputs=tuple(output.spec.record for output in outputs),
            distinct=[ghost.spec.record for ghost in {id(ghost): ghost for ghost in tensors}.values()],
            activation_bytes=sum(output.spec.nbytes for output in outputs if output.source < 0),
            spec_of=lambda tensor: tensor.spec.record,  # type: ignore[attr-defined]
            result=inferred,
        )
        return Plan(signature, result, info, bool(info.written) or not info.takes_tensors)

    def _result(
        self,
        inferred: Any,
        info: OpInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Ghost],
        device: torch.device,
    ) -> Any:
        returns = info.returns or (Return(Relation.NEW),)
        shared = _NEW_MEMORY
        if any(ret.argument for ret in returns):
            arguments = bind(info, args, kwargs)
            shared = [_sharing(ret, arguments, tensors) for ret in returns]
            if (
                shared == [(0, True)] and not info.changes_metadata
            ):  # what was written to is returned: it keeps its own spec
                return Output(tensors[0].spec, 0, True)
        if len(returns) == 1:
            return self._outputs(inferred, shared[0], device)
        each = shared if len(shared) == len(returns) else shared * len(returns)
        return tuple(self._outputs(value, sharing, device) for value, sharing in zip(inferred, each, strict=True))

    def _outputs(self, value: Any, sharing: tuple[int, bool], device: torch.device) -> Any:
        if isinstance(value, Spec):
            return Output(value, *sharing)
        if isinstance(value, torch.Tensor):
            return Output(self._specs.of(value, device), *sharing)
        if isinstance(value, list):
            return [self._outputs(item, sharing, device) for item in value]
        if isinstance(value, tuple):
            return tuple(self._outputs(item, sharing, device) for item in value)
        return value

    def _output_device(self, kwargs: dict[str, Any], tensors: list[Ghost]) -> torch.device:
        asked = kwargs.get("device")
        if asked is not None and torch.device(asked).type != "meta":
            return torch.device(asked)
        for ghost in tensors:
            # A 0-dim CPU tensor follows the others.
            if ghost.spec.shape or ghost.spec.device.type != "cpu":
                return ghost.spec.device
        return tensors[0].spec.device if tensors else self._device


def _writes_alone(info: OpInfo, tensors: list[Ghost]) -> bool:
    """`fill_`, `relu_`, `uniform_`: nothing but its own tensor can decide the shape, and that it keeps."""
    return len(tensors) == 1 and bool(info.returns) and all(r.relation is Relation.SAME for r in info.returns)


def _sharing(ret: Return, arguments: dict[str, Any], tensors: list[Ghost]) -> tuple[int, bool]:
    if ret.relation is Relation.NEW or ret.argument is None:
        return -1, False
    shared = arguments[ret.argument]
    position = next((index for index, ghost in enumerate(tensors) if ghost is shared), -1)
    return position, position >= 0 and ret.relation is Relation.SAME


def _outputs(result: Any) -> Any:
    if isinstance(result, Output):
        yield result
    elif isinstance(result, list | tuple):
        for item in result:
            yield from _outputs(item)
