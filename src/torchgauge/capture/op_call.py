"""One call of an op: its schema (name, tags, which outputs share memory with which arguments) and its tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, Generic, TypeVar, cast

import torch

from torchgauge.capture.fake_tensor import FakeTensor
from torchgauge.capture.structure import tensors_in

# Arguments of an op by the names in its schema: tensors, numbers, lists of them, devices, whatever a kernel takes.
Arguments = dict[str, Any]
# An op of torch, a higher-order op, or a Triton kernel.
Op = Callable[..., Any]
SomeTensor = TypeVar("SomeTensor", bound=torch.Tensor)


class Relation(Enum):
    NEW = "new"  # freshly allocated memory
    VIEW = "view"  # a new tensor over an argument's memory
    SAME = "same"  # the argument itself, written to


@dataclass(frozen=True, slots=True)
class Return:
    relation: Relation
    argument: str | None = None


@dataclass(frozen=True, slots=True)
class OpInfo:
    name: str
    overload: str
    tags: frozenset[str]
    arguments: tuple[tuple[str, object], ...]  # names and defaults
    returns: tuple[Return, ...]
    written: tuple[str, ...]
    only_written: tuple[str, ...] = ()  # of these, the ones whose old content is not read

    @property
    def looks_at_values(self) -> bool:
        return not self.tags.isdisjoint(("data_dependent_output", "dynamic_output_shape"))

    @property
    def changes_metadata(self) -> bool:
        """`t_`, `squeeze_`, `as_strided_`: the tensor's own shape or stride changes."""
        return "inplace_view" in self.tags


# Schemas that claim new memory where the kernel hands out the input's.
_SILENT_VIEWS = {
    f"aten::{name}": "self" for name in ("_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk")
}

# Schemas that claim a view where the result is, to the model, new: a constant that its forward makes.
_FRESH = frozenset(("aten::lift_fresh",))

_infos: dict[Hashable, OpInfo] = {}


def op_info(func: Op) -> OpInfo:
    info = _infos.get(func)
    if info is not None:
        return info
    if not isinstance(func, torch._ops.OpOverload):
        # A higher-order op has no schema; its call names the arguments.
        names = [name for name in inspect.signature(type(func).__call__).parameters if name not in ("self", "kwargs")]
        name = cast(torch._ops.HigherOrderOperator, func).name()
        info = OpInfo(f"higher_order::{name}", "", frozenset(), tuple((n, None) for n in names), (), ())
    else:
        schema = func._schema
        written = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
        returns = tuple(_relation(schema, ret) for ret in schema.returns)
        is_view = bool(returns) and all(each.relation is Relation.VIEW for each in returns)
        info = OpInfo(
            name=schema.name,
            overload=schema.overload_name,
            tags=frozenset((*(str(tag).removeprefix("Tag.") for tag in func.tags), *(["view"] if is_view else []))),
            arguments=tuple((a.name, a.default_value if a.has_default_value() else None) for a in schema.arguments),
            returns=returns,
            written=written,
            # `out=` of torch; kernels of others name theirs `out`, `output`, `out1` …
            only_written=tuple(name for name in written if name.startswith("out")),
        )
    _infos[func] = info
    return info


@cache
def is_composite(func: Op) -> bool:
    """Whether torch itself decomposes the op. It does so before a mode sees the op, but not in the handler
    of a tensor subclass nor in inference mode: there the mode has to, so that the ops are the same everywhere."""
    # One with a decomposition in Python (upsampling into an index) has kernels too, and eager mode runs those.
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    if not isinstance(func, torch._ops.OpOverload) or not torch._C._dispatch_has_kernel(func.name()):
        return False  # `prim::device` and similar ops are not in the dispatcher
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CPU"):
        return False  # its parts are only for other devices, as those of the gradients of SiLU and Mish
    return func._can_decompose() and composite not in func.py_kernels


def _relation(schema: torch._C.FunctionSchema, ret: torch._C.Argument) -> Return:
    if schema.name in _FRESH:
        return Return(Relation.NEW)
    if schema.name in _SILENT_VIEWS:
        return Return(Relation.VIEW, _SILENT_VIEWS[schema.name])
    for argument in schema.arguments:
        alias = argument.alias_info
        # A list of views (`split`, `unbind`) hides its alias set: the argument's alone shows that it is one.
        if alias is not None and not alias.is_write:
            return Return(Relation.VIEW, argument.name)
        if alias is not None and ret.alias_info is not None and ret.alias_info.after_set == alias.after_set:
            return Return(Relation.SAME, argument.name)
    return Return(Relation.NEW)


@dataclass(slots=True)  # not frozen: see `OpRecord`
class OpCall(Generic[SomeTensor]):
    """`tensors` are the tensors among the arguments, in order, one entry per occurrence."""

    func: Op
    info: OpInfo
    args: tuple[Any, ...]
    kwargs: Arguments
    tensors: list[SomeTensor]
    # Further arguments of its cost formula, where the metadata of its arguments is not enough.
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def distinct(self) -> list[SomeTensor]:
        """The tensors, each once."""
        return list({id(tensor): tensor for tensor in self.tensors}.values())

    @property
    def read(self) -> list[SomeTensor]:
        """The tensors whose content it reads, each once."""
        if not self.info.only_written:
            return self.distinct
        arguments = self.bind()
        outputs = {id(tensor) for name in self.info.only_written for tensor in tensors_in(arguments[name])}
        others = [value for name, value in arguments.items() if name not in self.info.only_written]
        outputs -= {id(tensor) for tensor in tensors_in(others)}
        return [tensor for tensor in self.distinct if id(tensor) not in outputs]

    @property
    def written(self) -> list[SomeTensor]:
        """The tensors it writes to."""
        if not self.info.written:
            return []
        arguments = self.bind()
        return cast("list[SomeTensor]", list(tensors_in([arguments[name] for name in self.info.written])))

    @property
    def wanted(self) -> list[bool] | None:
        """Which gradients autograd uses, for an op that always computes all of them (oneDNN's LSTM); like the
        `output_mask` of other ops."""
        if self.info.name != "aten::mkldnn_rnn_layer_backward":
            return None
        given = dict(zip([name for name, _ in self.info.arguments], self.args, strict=False))
        return [given[name].requires_grad for name in ("input", "hx_", "cx_tmp", "weight1")]

    def bind(self) -> Arguments:
        """Arguments by their schema names, defaults filled in."""
        bound: Arguments = dict(self.info.arguments)
        for index, value in enumerate(self.args):
            name = self.info.arguments[index][0] if index < len(self.info.arguments) else f"arg{index}"
            bound[name] = value
        bound.update(self.kwargs)
        return bound


FakeCall = OpCall[FakeTensor]
