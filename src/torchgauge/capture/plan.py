"""What a call of a known kind returns: worked out once per distinct call, replayed for its equals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchgauge.capture.fake_tensor import FakeTensor, Spec, Specs
from torchgauge.capture.infer import infer
from torchgauge.capture.opcall import OpCall
from torchgauge.capture.opinfo import OpInfo, Relation, Return
from torchgauge.capture.rules import find_rule
from torchgauge.capture.signature import describe
from torchgauge.cost.registry import find
from torchgauge.facts import Signature


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor of a result; `source` is the position of the input whose memory it shares, -1 for its own."""

    spec: Spec
    source: int = -1
    same: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """`result` is an `Output`, or a nested list or tuple of them with other values between.

    `reads` are the positions of the distinct tensors that are the signature's inputs, `writes` of those written to.
    """

    signature: Signature
    result: Any
    info: OpInfo
    # Whether known content must be looked after whatever the inputs are: the op writes, or makes tensors from nothing.
    follows: bool
    reads: tuple[int, ...]
    writes: tuple[int, ...]


_NEW_MEMORY = (-1, False)
# Ops whose result stores elements where its sparse argument does.
_KEEP_SPARSE = frozenset(
    f"aten::{name}"
    for name in (
        "t", "transpose", "clone", "_to_copy", "detach", "alias", "coalesce", "_coalesce", "neg", "mul", "div", "abs",
        "relu", "sqrt", "sin", "tanh", "_sparse_softmax", "_sparse_log_softmax", "sparse_sampled_addmm", "sparse_mask",
    )
)  # fmt: skip
# What a fake tensor of a sparse tensor can be asked; the rest needs the places of its elements, so a real run.
FOLLOWS_SPARSE = _KEEP_SPARSE | frozenset(
    f"aten::{name}"
    for name in (
        "mm", "addmm", "bmm", "mv", "addmv", "matmul", "_sparse_mm", "_sparse_addmm", "_sparse_mm_reduce_impl", "hspmm",
        "sspaddmm", "_sparse_sparse_matmul", "_nnz", "_version", "sym_size", "size", "is_same_size",
    )
)  # fmt: skip
_MOST_SHARED_PLANS = 1 << 16

# Specs and plans outlive a run: the next model with a layer of the same shape, or the same model again, finds them.
shared_specs = Specs()
_shared_plans: dict[torch.dtype, dict[tuple[Any, ...], Plan]] = {}


def shared_plans() -> dict[tuple[Any, ...], Plan]:
    """The plans worked out so far in this process, for the default type in force: it decides what numbers become."""
    plans = _shared_plans.setdefault(torch.get_default_dtype(), {})
    if len(plans) > _MOST_SHARED_PLANS:
        plans.clear()
    return plans


def is_shareable(plan: Plan) -> bool:
    """Whether a plan holds for good: costs of other ops may still be given a formula by the user."""
    known = plan.info.name.startswith("aten::")
    return known and (find(plan.info.name) is not None or "view" in plan.info.tags)


class Planner:
    def __init__(self, specs: Specs, device: torch.device) -> None:
        self._specs = specs
        self._device = device

    def plan(self, call: OpCall, inferred: Any = None) -> Plan:
        """Plan a call; `inferred` is its result where that is known already."""
        if inferred is None:
            inferred = self._infer(call)
        result = self._result(call, self._keep_sparse(call, inferred))
        outputs = list(_outputs(result))
        signature = describe(
            call,
            outputs=tuple(output.spec.record for output in outputs),
            distinct=[fake.spec.record for fake in call.distinct],
            activation_bytes=sum(output.spec.nbytes for output in outputs if output.source < 0),
            spec_of=lambda tensor: tensor.spec.record,  # type: ignore[attr-defined]
            result=inferred,
        )
        info = call.info
        follows = bool(info.written) or not info.takes_tensors
        reads = _first_positions(call.tensors)[: len(signature.inputs)]
        return Plan(signature, result, info, follows, reads, _written_positions(call))

    def _infer(self, call: OpCall) -> Any:
        rule = find_rule(call.info.name, call.info.tags)
        inferred = rule(call.bind(), self._specs) if rule is not None else None
        if inferred is None and _writes_alone(call):
            return call.tensors[0].spec
        return infer(call.func, call.args, call.kwargs) if inferred is None else inferred

    def _result(self, call: OpCall, inferred: Any) -> Any:
        device = self._output_device(call.kwargs, call.tensors)
        returns = call.info.returns or (Return(Relation.NEW),)
        shared = [_NEW_MEMORY] * len(returns)
        if any(ret.argument for ret in returns):
            arguments = call.bind()
            shared = [_sharing(ret, arguments, call.tensors) for ret in returns]
        if shared == [(0, True)] and not call.info.changes_metadata:
            # What was written to is what is returned: it keeps its own spec.
            return Output(call.tensors[0].spec, 0, True)
        if len(returns) == 1:
            return self._outputs(inferred, shared[0], device)
        return tuple(self._outputs(value, sharing, device) for value, sharing in zip(inferred, shared, strict=True))

    def _keep_sparse(self, call: OpCall, inferred: Any) -> Any:
        """Fake tensors of sparse tensors look dense to torch: what keeps their places keeps their sparsity."""
        source = next((fake.spec for fake in call.tensors if fake.spec.sparse is not None), None)
        if source is None or call.info.name.removesuffix("_") not in _KEEP_SPARSE:
            return inferred
        spec = self._specs.of(inferred, source.device) if isinstance(inferred, torch.Tensor) else inferred
        return self._specs.get(spec.shape, spec.stride, spec.dtype, spec.device, source.sparse)

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

    def _output_device(self, kwargs: dict[str, Any], tensors: list[FakeTensor]) -> torch.device:
        asked = kwargs.get("device")
        if asked is not None and torch.device(asked).type != "meta":
            return torch.device(asked)
        for fake in tensors:
            # A 0-dim CPU tensor follows the others.
            if fake.spec.shape or fake.spec.device.type != "cpu":
                return fake.spec.device
        return tensors[0].spec.device if tensors else self._device


def _first_positions(tensors: list[FakeTensor]) -> tuple[int, ...]:
    ids = list(map(id, tensors))
    return tuple(index for index, own in enumerate(ids) if ids.index(own) == index)


def _written_positions(call: OpCall) -> tuple[int, ...]:
    written = set(map(id, call.written))
    return tuple(index for index, fake in enumerate(call.tensors) if id(fake) in written)


def _writes_alone(call: OpCall) -> bool:
    """`fill_`, `relu_`, `uniform_`: nothing but its own tensor can decide the shape, and that it keeps."""
    returns = call.info.returns
    return len(call.tensors) == 1 and bool(returns) and all(ret.relation is Relation.SAME for ret in returns)


def _sharing(ret: Return, arguments: dict[str, Any], tensors: list[FakeTensor]) -> tuple[int, bool]:
    if ret.relation is Relation.NEW or ret.argument is None:
        return -1, False
    shared = arguments[ret.argument]
    position = next((index for index, fake in enumerate(tensors) if fake is shared), -1)
    return position, position >= 0 and ret.relation is Relation.SAME


def _outputs(result: Any) -> Any:
    if isinstance(result, Output):
        yield result
    elif isinstance(result, list | tuple):
        for item in result:
            yield from _outputs(item)
