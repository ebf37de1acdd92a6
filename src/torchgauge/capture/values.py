"""Known content: small tensors that come from constants or given inputs are computed for real beside their ghosts.

Integers and booleans up to `LIMIT` elements, floats up to `FLOAT_LIMIT` where the forward itself makes them (a mask of
ones that is resized): never a model's float parameters or inputs.
Where a router's choice is asked for and cannot be known, it is assumed balanced, and the report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from torchgauge.capture.ghost import Ghost
from torchgauge.capture.opcall import OpCall
from torchgauge.capture.signals import DataDependent
from torchgauge.capture.structure import is_subclass

if TYPE_CHECKING:
    from torchgauge.capture.fake import FakeRun

LIMIT = 1 << 22
FLOAT_LIMIT = 1 << 20
HELD_LIMIT = 1 << 10  # floats in plain attributes of a module; larger ones are tables, which nobody looks at
# Ops that choose among alternatives by score; in models that look at the choice, these are routers.
ROUTERS = frozenset(("aten::topk", "aten::argmax"))

_CPU = torch.device("cpu")
_BALANCED = (
    "what topk or argmax chooses depends on data and was assumed balanced: every choice is taken equally often "
    "(in a mixture of experts, each expert is given its equal share of the tokens)"
)


def constant(tensor: torch.Tensor, *, floats: bool) -> torch.Tensor | None:
    """A copy of the content of a tensor that the model or the user holds; theirs is never written to."""
    is_float = _is_float(tensor.dtype)
    if tensor.is_meta or tensor.layout is not torch.strided or is_subclass(tensor) or (is_float and not floats):
        return None
    small = tensor.numel() <= (HELD_LIMIT if is_float else LIMIT)
    return tensor.detach().to(_CPU, copy=True) if small else None


def is_known(ghost: Ghost) -> bool:
    return ghost.value is not None and ghost.storage_.known


def follow(call: OpCall, built: Any) -> None:
    """Carry known content through an op that was answered from metadata."""
    info, tensors = call.info, call.tensors
    random = "nondeterministic_seeded" in info.tags
    if info.written:
        _follow_write(call, computable=not random and _all_small(built))
        return
    if "view" not in info.tags and not _all_small(built):
        return
    if not all(map(is_known, tensors)) or (random and _has_floats(built)):
        return
    assumed = any(ghost.storage_.assumed for ghost in tensors)
    real = _compute(call)
    if "::empty" in info.name or "::new_empty" in info.name:
        real.zero_()
    attach(built, real, assumed=assumed)


def _follow_write(call: OpCall, *, computable: bool) -> None:
    """What an op writes is known afterwards if all that it reads and writes was, else no longer."""
    arguments = call.bind()
    known = computable and all(map(is_known, call.tensors))
    assumed = any(ghost.storage_.assumed for ghost in call.tensors)
    if known:
        _compute(call)
    for ghost in _ghosts([arguments[name] for name in call.info.written]):
        ghost.storage_.known &= known
        ghost.storage_.assumed |= assumed


def attach(built: Any, real: Any, *, assumed: bool) -> None:
    """Give the ghosts of a result their content."""
    for ghost, content in zip(_ghosts(built), _tensors(real), strict=True):
        if not content.is_meta:
            ghost.value = content
            ghost.storage_.assumed |= assumed


def assume_balanced(call: OpCall, built: Any) -> None:
    """Give the unknown choice of a router the content it has when every alternative is chosen equally often."""
    chosen = built[1] if call.info.name == "aten::topk" else built
    shape, dim = call.tensors[0].spec.shape, call.bind()["dim"]
    # A router chooses along the last dimension, and for more than one token.
    if dim is None or dim % max(len(shape), 1) != len(shape) - 1 or not 1 < chosen.numel() <= LIMIT:
        return
    alternatives = shape[-1]
    content = torch.arange(chosen.numel(), dtype=torch.int64) % alternatives
    chosen.value = content.reshape(chosen.spec.shape)
    chosen.storage_.assumed = True


def looks(call: OpCall) -> bool:
    """Whether the outcome of the op depends on more than metadata."""
    if call.info.name == "aten::index":
        return any(_is_mask(index) for index in call.args[1])
    return call.info.looks_at_values or call.info.name in _LOOKS


def look(run: FakeRun, call: OpCall) -> Any:
    handler = _LOOKS.get(call.info.name)
    if handler is not None:
        return handler(run, call)
    if not all(map(is_known, call.tensors)):
        return _upper_bound(run, call)
    if any(ghost.storage_.assumed for ghost in call.tensors):
        run.recorder.warn(_BALANCED)
    return run.conclude(call, _compute(call))


def _upper_bound(run: FakeRun, call: OpCall) -> Any:
    """With `assume`: the largest result there can be, as if every element were selected."""
    name = call.info.name
    if not run.assume or name not in ("aten::nonzero", "aten::masked_select", "aten::_unique2"):
        raise DataDependent(name)
    run.recorder.warn(_bound_warning(name, run.recorder.path))
    source = call.tensors[0]
    if name == "aten::nonzero":
        everything = torch.ones(source.spec.shape, dtype=torch.bool).nonzero()
        return run.conclude(call, everything, assumed=True)
    if name == "aten::_unique2":
        positions = torch.arange(source.spec.record.numel)
        flags = call.bind()
        inverse = positions.reshape(source.spec.shape) if flags["return_inverse"] else positions[:0]
        counts = torch.ones_like(positions) if flags["return_counts"] else positions[:0]
        found = torch.empty(len(positions), dtype=source.dtype, device="meta")
        return run.conclude(call, (found, inverse, counts), assumed=True)
    shape = torch.broadcast_shapes(source.spec.shape, call.tensors[1].spec.shape)
    return run.conclude(call, torch.empty(shape.numel(), dtype=source.dtype, device="meta"))


def _bound_warning(op: str, module: str) -> str:
    where = f" in '{module}'" if module else ""
    return f"the size of the result of {op}{where} depends on data; its upper bound was taken"


def _index_by_mask(run: FakeRun, call: OpCall) -> Any:
    """`x[mask]` is `x[positions]` with the positions of the mask's true elements."""
    indices: list[Any] = []
    for index in call.args[1]:
        if _is_mask(index):
            indices.extend(_positions(run, index))
        else:
            indices.append(index)
    return run.execute(torch.ops.aten.index.Tensor, call.args[0], indices)


def _positions(run: FakeRun, mask: Ghost) -> list[Ghost]:
    if is_known(mask):
        content, assumed = mask.value, mask.storage_.assumed
    elif run.assume:
        content, assumed = torch.ones(mask.spec.shape, dtype=torch.bool), True
        run.recorder.warn(_bound_warning("aten::index", run.recorder.path))
    else:
        raise DataDependent("aten::index")
    assert content is not None
    return [run.wrap(position, assumed=assumed) for position in content.nonzero().unbind(1)]


def _keep_boxes(run: FakeRun, call: OpCall) -> Any:
    """Non-maximum suppression keeps at most every box."""
    if not run.assume:
        raise DataDependent(call.info.name)
    run.recorder.warn(_bound_warning(call.info.name, run.recorder.path))
    return run.conclude(call, torch.arange(call.tensors[0].spec.shape[0]), assumed=True)


def _pack(run: FakeRun, call: OpCall) -> Any:
    """A padded batch packed by its lengths. The sizes of the steps stay a real tensor: torch's RNNs read its memory."""
    x, lengths = call.tensors
    if not is_known(lengths):
        raise DataDependent(call.info.name)
    steps = torch.arange(int(lengths.value.max()))
    sizes = (lengths.value.unsqueeze(1) > steps).sum(0)
    packed = torch.empty(int(sizes.sum()), *x.spec.shape[2:], dtype=x.dtype, device="meta")
    data, _ = run.conclude(call, (packed, sizes))
    return data, sizes


def _set_storage(run: FakeRun, call: OpCall) -> Any:
    """cuDNN's RNNs ask whether their weights lie in one buffer, through an empty tensor set to the first one's memory;
    left empty, it says no. Anything else that takes over memory needs a real run."""
    target = call.tensors[0]
    if call.info.overload != "source_Storage" or target.numel():
        raise DataDependent(call.info.name)
    return target


def _not_aligned(run: FakeRun, call: OpCall) -> bool:
    """Padding is counted in full: the nested-tensor path, which skips it, is not taken."""
    return False


def _no_check(run: FakeRun, call: OpCall) -> None:
    """An assertion about values: there are none to check."""


_LOOKS: dict[str, Callable[[FakeRun, OpCall], Any]] = {
    "aten::index": _index_by_mask,
    "torchvision::nms": _keep_boxes,
    "aten::_pack_padded_sequence": _pack,
    "aten::set_": _set_storage,
    "aten::_nested_tensor_from_mask_left_aligned": _not_aligned,
    "aten::_assert_async": _no_check,
    "aten::_functional_assert_async": _no_check,
}


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def _compute(call: OpCall) -> Any:
    kwargs = call.kwargs | {"device": _CPU} if "device" in call.kwargs else call.kwargs
    return call.func(*_contents(call.args), **_contents(kwargs))


def _contents(value: Any) -> Any:
    if isinstance(value, Ghost):
        return value.value
    if isinstance(value, dict):
        return {name: _contents(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_contents(item) for item in value)
    return value


def _ghosts(built: Any) -> Iterator[Ghost]:
    if isinstance(built, Ghost):
        yield built
    elif isinstance(built, list | tuple):
        for item in built:
            yield from _ghosts(item)


def _tensors(real: Any) -> Iterator[torch.Tensor]:
    if isinstance(real, torch.Tensor):
        yield real
    elif isinstance(real, list | tuple):
        for item in real:
            yield from _tensors(item)


def _all_small(built: Any) -> bool:
    return all(ghost.numel() <= (FLOAT_LIMIT if _is_float(ghost.dtype) else LIMIT) for ghost in _ghosts(built))


def _has_floats(built: Any) -> bool:
    return any(_is_float(ghost.dtype) for ghost in _ghosts(built))


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
