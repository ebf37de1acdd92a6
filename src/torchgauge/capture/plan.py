"""Plans of op calls, their results and costs: computed once per distinct call, replayed for equal ones.

Outputs follow from the metadata of the inputs: our shape rule, else torch's meta kernel, else its fake kernel.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import cast

import torch

from torchgauge.capture.argument_checks import INDEXING
from torchgauge.capture.fake_tensor import DataDependent, FakeTensor, Spec, Specs, dtype_name, meta_tensor
from torchgauge.capture.op_call import Arguments, FakeCall, Op, OpCall, OpInfo, Relation, Return, SomeTensor
from torchgauge.capture.shape_rules import find_rule
from torchgauge.capture.structure import map_tensors, tensors_in
from torchgauge.capture.values import FINITE_CHECKS, ROUTERS
from torchgauge.cost import Call, Work, assess, conversion_bytes
from torchgauge.cost.registry import Assessment, find, find_kernel, price
from torchgauge.facts import COUNTED, Signature, TensorSpec, tensor_specs
from torchgauge.facts.tensor import contiguous_stride
from torchgauge.nested import find_all
from torchgauge.source.torchscript.graphs import packed_tensors


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
    result: object
    info: OpInfo
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    # Whether it has indices to check, or a result that may have to be assumed.
    is_watched: bool


_NEW_MEMORY = (-1, False)
# Ops whose result stores elements where its sparse argument does.
_KEEP_SPARSE = frozenset(
    f"aten::{name}"
    for name in (
        "t", "transpose", "clone", "_to_copy", "detach", "alias", "coalesce", "_coalesce", "neg", "mul", "div", "abs",
        "relu", "sqrt", "sin", "tanh", "_sparse_softmax", "_sparse_log_softmax", "sparse_sampled_addmm", "sparse_mask",
    )
)  # fmt: skip
# Products of two matrices: where both are sparse, how many elements meet depends on where they lie.
MATRIX_PRODUCTS = frozenset(("aten::mm", "aten::addmm", "aten::_sparse_mm", "aten::_sparse_sparse_matmul"))

# Ops that work on the fake tensor of a sparse tensor; others need the positions of its elements, so a real run.
FOLLOWS_SPARSE = _KEEP_SPARSE | frozenset(
    f"aten::{name}"
    for name in (
        "mm", "addmm", "bmm", "mv", "addmv", "matmul", "_sparse_mm", "_sparse_addmm", "_sparse_mm_reduce_impl", "hspmm",
        "sspaddmm", "_sparse_sparse_matmul", "_nnz", "_version", "sym_size", "size", "is_same_size",
    )
)  # fmt: skip
_MAX_SHARED_PLANS = 1 << 16

# Specs and plans outlive a run: the next model with a layer of the same shape, or the same model again, finds them.
shared_specs = Specs()
PlanKey = tuple[object, ...]
_shared_plans: dict[torch.dtype, dict[PlanKey, Plan]] = {}


def shared_plans() -> dict[PlanKey, Plan]:
    """The plans of this process so far, for the current default dtype, which decides the type of numbers."""
    plans = _shared_plans.setdefault(torch.get_default_dtype(), {})
    if len(plans) > _MAX_SHARED_PLANS:
        plans.clear()
    return plans


def is_shareable(plan: Plan) -> bool:
    """Whether a plan is final: the user may still register a formula for other ops."""
    known = plan.info.name.startswith("aten::")
    return known and (find(plan.info.name) is not None or "view" in plan.info.tags)


class Planner:
    def __init__(self, specs: Specs, device: torch.device) -> None:
        self._specs = specs
        self._device = device

    def plan(self, call: FakeCall, inferred: object = None) -> Plan:
        """Plan a call; `inferred` is its result where that is known already."""
        if inferred is None:
            inferred = self._infer(call)
        result = self._result(call, self._keep_sparse(call, inferred))
        outputs = list(find_all(result, Output))
        signature = describe(
            call,
            outputs=tuple(output.spec.record for output in outputs),
            read=[fake.spec.record for fake in call.read],
            activation_bytes=sum(output.spec.nbytes for output in outputs if output.source < 0),
            spec_of=_record_of,
            result=inferred,
        )
        info = call.info
        ids = list(map(id, call.tensors))
        reads = tuple(ids.index(id(fake)) for fake in call.read)
        written = set(map(id, call.written))
        written_positions = tuple(index for index, fake in enumerate(call.tensors) if id(fake) in written)
        is_watched = info.name in INDEXING or info.name in ROUTERS or info.name in FINITE_CHECKS
        return Plan(signature, result, info, reads, written_positions, is_watched)

    def _infer(self, call: FakeCall) -> object:
        rule = find_rule(call.info.name, call.info.tags)
        inferred: object = rule(call.bind(), self._specs) if rule is not None else None
        # `fill_`, `relu_`, `uniform_`: nothing but its own tensor can decide the shape, and that it keeps.
        returns = call.info.returns
        writes_alone = len(call.tensors) == 1 and returns and all(ret.relation is Relation.SAME for ret in returns)
        if inferred is None and writes_alone:
            return call.tensors[0].spec
        is_custom = isinstance(call.func, torch._ops.OpOverload) and not call.info.name.startswith("aten::")
        if inferred is None and is_custom and call.tensors:
            inferred = self._kernel_result(call)
        return infer(call.func, call.args, call.kwargs) if inferred is None else inferred

    def _kernel_result(self, call: FakeCall) -> object:
        """The result of a third-party kernel according to its schema: nothing, tensors that it was given, or the known
        outputs of a kernel with these arguments. None if that is not enough."""
        returns, arguments = call.info.returns, call.bind()
        if all(ret.relation is Relation.SAME for ret in returns):
            given = [next(tensors_in(arguments[ret.argument or ""]), None) for ret in returns]
            specs = tuple(fake.spec for fake in given if isinstance(fake, FakeTensor))
            if len(specs) == len(returns):
                return specs[0] if len(specs) == 1 else specs
        kernel = find_kernel(call.info.name, arguments)
        if kernel is None or kernel.outputs is None:
            return None
        described = {name: _to_specs(value, _record_of) for name, value in arguments.items()}
        outputs = kernel.outputs(Call(call.info.name, described, ()))
        device = call.tensors[0].spec.device
        made = [
            self._specs.get(spec.shape, contiguous_stride(spec.shape), getattr(torch, spec.dtype), device)
            for spec in outputs
        ]
        kind = str(call.func._schema.returns[0].type)  # type: ignore[attr-defined]
        return made[0] if len(returns) == 1 and "[]" not in kind and "List" not in kind else made

    def _result(self, call: FakeCall, inferred: object) -> object:
        if isinstance(inferred, tuple) and not inferred and not call.info.returns:
            return None
        asked = call.kwargs.get("device")
        if asked is not None and torch.device(asked).type != "meta":
            device = torch.device(asked)
        else:
            specs = [fake.spec for fake in call.tensors]
            # A 0-dim CPU tensor follows the others.
            deciding = (spec for spec in specs if spec.shape or spec.device.type != "cpu")
            first = next(deciding, specs[0] if specs else None)
            device = self._device if first is None else first.device
        returns = call.info.returns or (Return(Relation.NEW),)
        shared = [_NEW_MEMORY] * len(returns)
        if any(ret.argument for ret in returns):
            arguments = call.bind()
            for place, ret in enumerate(returns):
                if ret.relation is not Relation.NEW and ret.argument is not None:
                    source = arguments[ret.argument]
                    position = next((index for index, fake in enumerate(call.tensors) if fake is source), -1)
                    shared[place] = position, position >= 0 and ret.relation is Relation.SAME
        if shared == [(0, True)] and not call.info.changes_metadata:
            # The written tensor is returned: it keeps its own spec.
            return Output(call.tensors[0].spec, 0, True)
        if len(returns) == 1:
            return self._outputs(inferred, shared[0], device)
        assert isinstance(inferred, list | tuple), f"{call.info.name} has several results"
        return tuple(self._outputs(value, sharing, device) for value, sharing in zip(inferred, shared, strict=True))

    def _keep_sparse(self, call: FakeCall, inferred: object) -> object:
        """Fake tensors of sparse tensors look dense to torch: an op that keeps the places keeps the sparsity."""
        source = next((fake.spec for fake in call.tensors if fake.spec.sparse is not None), None)
        if source is None or call.info.name.removesuffix("_") not in _KEEP_SPARSE:
            return inferred
        spec = self._specs.of(inferred, source.device) if isinstance(inferred, torch.Tensor) else inferred
        assert isinstance(spec, Spec)
        return self._specs.get(spec.shape, spec.stride, spec.dtype, spec.device, source.sparse)

    def _outputs(self, value: object, sharing: tuple[int, bool], device: torch.device) -> object:
        if isinstance(value, Spec):
            return Output(value, *sharing)
        if isinstance(value, torch.Tensor):
            return Output(self._specs.of(value, device), *sharing)
        if isinstance(value, list):
            return [self._outputs(item, sharing, device) for item in value]
        if isinstance(value, tuple):
            return tuple(self._outputs(item, sharing, device) for item in value)
        return value


def _record_of(fake: FakeTensor) -> TensorSpec:
    return fake.spec.record


_META = torch.device("meta")
_REAL_ELEMENTS = 1 << 27


def infer(func: Op, args: tuple[object, ...], kwargs: Arguments) -> object:
    """The op's result, with meta (or fake) tensors in place of tensors. Raises what torch raises."""

    def on_meta(tensor: torch.Tensor) -> torch.Tensor:
        return meta_tensor(tensor.spec) if isinstance(tensor, FakeTensor) else tensor

    def as_fake(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, FakeTensor):
            return tensor
        spec = tensor.spec
        return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)

    changed = dict(kwargs)
    if _is_factory(func) or "device" in changed:
        changed["device"] = _META
    changed.pop("pin_memory", None)
    modules = len(sys.modules)
    try:
        return func(*map_tensors(args, on_meta), **map_tensors(changed, on_meta))
    except (NotImplementedError, AttributeError):  # a few meta kernels ask for the real device
        if not func._schema.returns:  # type: ignore[attr-defined]
            return ()  # it only writes its arguments, as fused optimizers do
        # The last resort, slow to import and to run: torch's fake mode supports ops that have no meta kernel, and runs
        # those without any shape rule for real, on zeros of the same shapes.
        elements = sum(fake.numel() for fake in tensors_in((args, kwargs)))
        if elements > _REAL_ELEMENTS:
            raise NotImplementedError(
                f"{func} has no shape rule, and its {elements:,} elements are too many to run it"
            ) from None
        from torch._subclasses import fake_tensor

        mode = fake_tensor.FakeTensorMode(allow_fallback_kernels=True)
        # Its cache lasts as long as the process and compares arguments, which packed weights cannot be.
        mode.cache_enabled = False
        with mode:
            try:
                return func(*map_tensors(args, as_fake), **map_tensors(kwargs, as_fake))
            except (fake_tensor.DynamicOutputShapeException, fake_tensor.DataDependentOutputException):
                raise DataDependent(str(func)) from None
    finally:
        # Imports that torch makes at the first call of an op leave cycles of frames, which would keep the tensors of
        # the model's own frames: garbage is not collected during a capture.
        if len(sys.modules) != modules:
            gc.collect(0)


@cache
def _is_factory(func: Op) -> bool:
    """Whether it makes a tensor from none: a graph that leaves out the device would get a real one."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    arguments = func._schema.arguments
    takes_tensors = any("Tensor" in str(argument.type) for argument in arguments)
    return not takes_tensors and any(argument.name == "device" for argument in arguments)


def infer_from_zeros(func: Op, args: tuple[object, ...], kwargs: Arguments) -> object:
    """The result of an op without a fake kernel for zeros on the CPU; None where it does not run there, or its
    arguments have too many elements."""
    if sum(fake.numel() for fake in tensors_in((args, kwargs))) > _REAL_ELEMENTS:
        return None
    zeros, named = map_tensors((args, kwargs), lambda fake: torch.zeros(fake.shape, dtype=fake.dtype))
    try:
        return func(*zeros, **named)
    except Exception:  # anything that a kernel raises which has no CPU version, or rejects zeros
        return None


def describe(
    call: OpCall[SomeTensor],
    *,
    outputs: tuple[TensorSpec, ...],
    read: list[TensorSpec],
    activation_bytes: int,
    spec_of: Callable[[SomeTensor], TensorSpec],
    result: object,
) -> Signature:
    """The signature of a call; `read` are the specs of the tensors it reads, `result` is what it returned."""
    info = call.info
    arguments = {name: _to_specs(value, spec_of) for name, value in call.bind().items()} | dict(call.facts)
    if info.name.startswith("quantized::conv"):  # their weight is in an object of C++
        packed = next((value for value in call.args if isinstance(value, torch._C.ScriptObject)), None)
        weight = next((tensor for _, tensor in packed_tensors(packed) if tensor.dim() > 1), None)
        arguments |= {} if weight is None else {"unpacked_weight": TensorSpec(tuple(weight.shape), "qint8")}
    if call.wanted is not None:
        arguments["output_mask"] = call.wanted
    returned = {ret.argument for ret in info.returns}
    written = tensor_specs([arguments[name] for name in info.written if name not in returned])
    priced = Call(info.name, arguments, outputs, tuple(read), info.tags, tuple(written))
    found = assess(priced)
    # A formula that the user registered with torch, where we have none. The module is loaded then; importing it here
    # would cost every analysis. A formula for a Triton kernel takes the grid too.
    counter = sys.modules.get("torch.utils.flop_counter")
    if counter is not None and isinstance(call.func, torch._ops.OpOverload):
        rule = counter.flop_registry.get(call.func._overloadpacket)
        if rule is not None and find(priced.op, priced.arguments) is None:
            flops = int(rule(*call.args, **call.kwargs, out_val=result))
            found = Assessment("other", COUNTED, price(priced, Work(macs=flops // 2, flops=flops)))
    return Signature(
        op=info.name,
        overload=info.overload,
        category=found.category,
        status=found.status,
        tags=tuple(sorted(info.tags)),
        inputs=priced.tensors,
        # A third-party kernel that returns nothing makes what it writes to.
        outputs=outputs or (() if info.name.startswith("aten::") else priced.written),
        attributes={name: plain for name, value in arguments.items() if (plain := _attribute(value)) is not None},
        cost=found.cost,
        activation_bytes=activation_bytes,
        conversion_bytes=conversion_bytes(priced) if call.tensors and call.tensors[0].device.type == "cpu" else 0,
    )


def _to_specs(value: object, spec_of: Callable[[SomeTensor], TensorSpec]) -> object:
    if isinstance(value, torch.Tensor):
        return spec_of(cast(SomeTensor, value))
    if isinstance(value, list | tuple):
        return [_to_specs(item, spec_of) for item in value]
    return value


def _attribute(value: object) -> object:
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
