"""Known content: small tensors made from constants or given inputs are computed along with their fake tensors.

These are integers and booleans, and floats that the forward itself makes (a mask of ones that is resized), but never a
model's float parameters or inputs. `Knowledge` limits how much is computed. Where a router's choice is needed and
unknown, it is assumed balanced; where a run may assume values, floating tensors are finite. The report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf, prod
from typing import TYPE_CHECKING, Any

import torch

from torchgauge.capture.fake_tensor import INFERRED_INPUT, DataDependent, FakeTensor, Storage
from torchgauge.capture.op_call import Arguments, FakeCall
from torchgauge.capture.structure import is_subclass, map_tensors, tensors_in
from torchgauge.nested import find_all

if TYPE_CHECKING:
    from torchgauge.capture.fake_run import FakeRun

HELD_LIMIT = 1 << 10  # floats in plain attributes of a module; larger ones are tables that code does not inspect
# Ops that choose among alternatives by score; in models that look at the choice, these are routers.
ROUTERS = frozenset(("aten::topk", "aten::argmax"))
# Checks for infinite or undefined values, and what they are made of.
FINITE_CHECKS = frozenset(("aten::eq", "aten::ne", "aten::isfinite", "aten::isinf", "aten::isnan"))

_CPU = torch.device("cpu")
_BALANCED = (
    "the choice of topk or argmax depends on data and was assumed balanced: every choice is taken equally often "
    "(in a mixture of experts, each expert gets an equal share of the tokens)"
)

_FINITE = "a check for infinite or undefined values depends on data; all values were assumed finite"
_OPTIMIZER_SCALAR = "the optimizer reads a number from its data ({op}); 1 was assumed"


def constant(knowledge: Knowledge, tensor: torch.Tensor, *, floats: bool) -> torch.Tensor | None:
    """A copy of the content of a tensor of the model or the user, which is never written to."""
    is_float = _is_float(tensor.dtype)
    if tensor.is_meta or tensor.layout is not torch.strided or is_subclass(tensor) or (is_float and not floats):
        return None
    small = tensor.numel() <= HELD_LIMIT or not is_float
    return tensor.detach().to(_CPU, copy=True) if small and knowledge.has_room(tensor.numel(), tensor.dtype) else None


def is_known(fake: FakeTensor) -> bool:
    return fake.value is not None and fake.storage_.known


def follow(knowledge: Knowledge, call: FakeCall, built: object, macs: int) -> None:
    """Carry known content through an op that was answered from metadata."""
    info, tensors = call.info, call.tensors
    is_random = "nondeterministic_seeded" in info.tags
    if info.written:
        # The written content is known afterwards only if everything that the op reads and writes was known.
        arguments = call.bind()
        known = not is_random and all(map(is_known, tensors)) and knowledge.affords(tensors, _fakes(built), macs)
        assumed = assumption_of(tensors)
        if known:
            _compute(call)
        for fake in _fakes([arguments[name] for name in info.written]):
            fake.storage_.known &= known
            fake.storage_.assumed = fake.storage_.assumed or assumed
        return
    if not all(map(is_known, tensors)) or (is_random and any(_is_float(fake.dtype) for fake in _fakes(built))):
        return
    if "view" not in info.tags and not knowledge.affords(tensors, _fakes(built), macs + _sorting_steps(call)):
        return
    real = _compute(call)
    if isinstance(real, torch.Tensor) and ("::empty" in info.name or "::new_empty" in info.name):
        real.zero_()
    attach(knowledge, built, real, assumption_of(tensors))


def overwrite(written: Iterable[FakeTensor], read: Iterable[FakeTensor]) -> None:
    """An op writes unknown content: that of the tensors it writes to is void."""
    assumed = assumption_of(read)
    for fake in written:
        fake.storage_.known = False
        fake.storage_.assumed = fake.storage_.assumed or assumed


# Each element is compared and moved several times: measured 15 to 50 times what a copy takes.
_SORTS = frozenset(
    f"aten::{name}"
    for name in ("sort", "argsort", "msort", "topk", "kthvalue", "median", "nanmedian", "mode", "_unique", "_unique2",
                 "unique_dim", "isin", "searchsorted", "bucketize")
)  # fmt: skip
_STEPS_OF_A_SORT = 16


def _sorting_steps(call: FakeCall) -> int:
    """Work of sorting beyond reading and writing."""
    if call.info.name not in _SORTS:
        return 0
    return _STEPS_OF_A_SORT * sum(fake.numel() for fake in call.tensors)


def assumption_of(tensors: Iterable[FakeTensor]) -> str:
    """The assumption that the content of the tensors depends on; "" where it is known."""
    found = [fake.storage_.assumed for fake in tensors if fake.storage_.assumed]
    return next((each for each in found if each != INFERRED_INPUT), INFERRED_INPUT if found else "")


def attach(knowledge: Knowledge, built: object, real: object, assumed: str) -> None:
    """Give the fake tensors of a result their content."""
    for fake, content in zip(_fakes(built), tensors_in(real), strict=True):
        if not content.is_meta:
            fake.value = content
            fake.storage_.assumed = fake.storage_.assumed or assumed
            knowledge.hold(fake.storage_, content)


def assume_balanced(run: FakeRun, call: FakeCall, built: object) -> None:
    """Give the unknown choice of a router the content it has when every alternative is chosen equally often."""
    *_, chosen = _fakes(built)  # topk gives the scores first
    shape, dim = call.tensors[0].spec.shape, call.bind()["dim"]
    # A router chooses along the last dimension, and for more than one token.
    if dim is None or dim % max(len(shape), 1) != len(shape) - 1 or chosen.numel() < 2:
        return
    # Scores without a dimension for tokens are not a router's: the strongest frequencies of a signal, for example.
    if len(shape) < 2 and not run.assume:
        return
    knowledge = run.knowledge
    if not knowledge.affords((), (chosen,)):
        return
    alternatives = shape[-1]
    content = torch.arange(chosen.numel(), dtype=torch.int64) % alternatives
    chosen.value = content.reshape(chosen.spec.shape)
    chosen.storage_.assumed = _BALANCED
    knowledge.hold(chosen.storage_, content)


def assume_finite(run: FakeRun, call: FakeCall, built: object) -> None:
    """Give a check for infinite or undefined values the content it has when there are none. `isfinite` arrives as its
    parts: a tensor equals itself, and its magnitude is not infinity."""
    name, first = call.info.name, call.tensors[0]
    if name in ("aten::eq", "aten::ne"):
        other, writer = call.args[1], first.storage_.writer
        is_magnitude = writer is not None and writer >= 0 and run.recorder.ops[writer].signature.op == "aten::abs"
        if not (other is first or (is_magnitude and other == inf)):
            return
        holds = (name == "aten::eq") is (other is first)
    else:
        holds = name == "aten::isfinite"
    (answer,) = _fakes(built)
    if not first.dtype.is_floating_point or not run.knowledge.affords((), (answer,)):
        return
    content = torch.full(answer.spec.shape, holds)
    answer.value = content
    answer.storage_.assumed = _FINITE
    run.knowledge.hold(answer.storage_, content)


Handler = Callable[["FakeRun", FakeCall], object]
_HANDLERS: dict[str, Handler] = {}


def _answers(*ops: str) -> Callable[[Handler], Handler]:
    """Register what answers an op whose outcome depends on values."""

    def register(handler: Handler) -> Handler:
        _HANDLERS.update(dict.fromkeys(ops, handler))
        return handler

    return register


def looks(call: FakeCall) -> bool:
    """Whether the outcome of the op depends on more than metadata."""
    if call.info.name == "aten::index":
        return any(_is_mask(index) for index in call.args[1])
    return call.info.looks_at_values or call.info.name in _HANDLERS


def look(run: FakeRun, call: FakeCall) -> object:
    handler = _HANDLERS.get(call.info.name)
    if handler is not None:
        return handler(run, call)
    if not all(map(is_known, call.tensors)):
        return _upper_bound(run, call)
    if not run.knowledge.affords(call.tensors, (), _sorting_steps(call)):
        raise DataDependent(call.info.name)
    run.note_assumption(call.tensors)
    described = _result_shape(call.info.name, map_tensors(call.bind(), _content))
    if described is None and call.info.name not in _BOUNDED:
        raise DataDependent(call.info.name)
    if described is None or run.knowledge.has_room(prod(described[0]), described[1]):
        return run.conclude(call, _compute(call))
    return run.conclude(call, torch.empty(described[0], dtype=described[1], device="meta"))


def _result_shape(op: str, given: Arguments) -> tuple[tuple[int, ...], torch.dtype] | None:
    """Shape and type of the result, from the contents of the arguments, before it is made: a few numbers can ask for
    any size. None for other ops."""
    x: Any = given.get("self")
    match op:
        case "aten::nonzero" | "aten::argwhere":
            return (int(x.count_nonzero()), x.dim()), torch.int64
        case "aten::masked_select":
            return (torch.broadcast_shapes(x.shape, given["mask"].shape).numel(),), x.dtype
        case "aten::repeat_interleave":
            return (int(given["repeats"].sum()),), given["repeats"].dtype
        case "aten::bincount":
            largest = int(x.max()) + 1 if x.numel() else 0
            return (max(largest, given["minlength"]),), torch.float64 if given["weights"] is not None else torch.int64
        case "aten::one_hot":
            classes = given["num_classes"]
            return (*x.shape, int(x.max()) + 1 if classes == -1 and x.numel() else classes), torch.int64
    return None


# Their results are numbers, or no larger than what they are given.
_BOUNDED = frozenset(
    f"aten::{name}"
    for name in ("_local_scalar_dense", "item", "equal", "allclose", "is_nonzero", "_unique", "_unique2",
                 "unique_consecutive", "unique_dim", "unique_dim_consecutive", "linalg_lstsq")
)  # fmt: skip


def _upper_bound(run: FakeRun, call: FakeCall) -> object:
    """With `assume`: the largest result there can be, as if every element were selected. A number that an optimizer
    reads scales its step and decides nothing about memory."""
    name = call.info.name
    source = call.tensors[0]
    if run.assume and run.recorder.phase == "optimizer" and name == "aten::_local_scalar_dense":
        run.recorder.warn(_OPTIMIZER_SCALAR.format(op=name))
        return 1.0 if source.dtype.is_floating_point else 1
    if not run.assume or name not in ("aten::nonzero", "aten::masked_select", "aten::_unique2"):
        raise DataDependent(name)
    warning = _bound_warning(name, run.recorder.path)
    run.recorder.warn(warning)
    if name == "aten::nonzero":
        return run.conclude(call, _every_position(run, source.spec.shape), warning)
    if name == "aten::_unique2":
        positions = _numbers(run, source.numel())
        flags = call.bind()
        inverse = positions.reshape(source.spec.shape) if flags["return_inverse"] else positions[:0]
        counts = torch.ones_like(positions) if flags["return_counts"] else positions[:0]
        found = torch.empty(len(positions), dtype=source.dtype, device="meta")
        return run.conclude(call, (found, inverse, counts), warning)
    shape = torch.broadcast_shapes(source.spec.shape, call.tensors[1].spec.shape)
    return run.conclude(call, torch.empty(shape.numel(), dtype=source.dtype, device="meta"))


def _numbers(run: FakeRun, count: int) -> torch.Tensor:
    """0, 1, 2, … where there is room for them; else their shape alone."""
    return torch.arange(count, device=None if run.knowledge.has_room(count, torch.int64) else "meta")


def _every_position(run: FakeRun, shape: tuple[int, ...]) -> torch.Tensor:
    """The result of `nonzero` for a tensor without zeros."""
    count = prod(shape)
    if not run.knowledge.has_room(count * max(len(shape), 1), torch.int64):
        return torch.empty(count, len(shape), dtype=torch.int64, device="meta")
    return torch.ones(shape, dtype=torch.bool).nonzero()


def _bound_warning(op: str, module: str) -> str:
    where = f" in '{module}'" if module else ""
    return f"the result size of {op}{where} depends on data; its upper bound was taken"


@_answers("aten::index")
def index_by_mask(run: FakeRun, call: FakeCall) -> object:
    """`x[mask]` is `x[positions]` with the positions of the mask's true elements."""
    indices: list[torch.Tensor | None] = []
    for index in call.args[1]:
        if not _is_mask(index):
            indices.append(index)
            continue
        place, shape = len(indices), index.spec.shape
        indexed = call.tensors[0].spec.shape[place : place + len(shape)]
        if indexed != shape:
            raise IndexError(f"the shape of the mask {list(shape)} at index {place} does not match {list(indexed)}")
        assumed, content = index.storage_.assumed, index.value
        if content is not None and is_known(index) and run.knowledge.affords((index,), ()):
            count = int(content.count_nonzero())
            if run.knowledge.has_room(count * max(content.dim(), 1), torch.int64):
                found = content.nonzero()
            else:
                found = torch.empty(count, content.dim(), dtype=torch.int64, device="meta")
        elif run.assume:
            found, assumed = _every_position(run, shape), _bound_warning("aten::index", run.recorder.path)
            run.recorder.warn(assumed)
        else:
            raise DataDependent("aten::index")
        positions = [run.wrap(position, assumed) for position in found.unbind(1)]
        for position in positions:  # they come from what made the mask
            position.storage_.writer = index.storage_.writer
        indices += positions
    return run.execute(torch.ops.aten.index.Tensor, call.args[0], indices)


@_answers("torchvision::nms")
def keep_boxes(run: FakeRun, call: FakeCall) -> object:
    """Non-maximum suppression keeps at most every box."""
    if not run.assume:
        raise DataDependent(call.info.name)
    warning = _bound_warning(call.info.name, run.recorder.path)
    run.recorder.warn(warning)
    return run.conclude(call, _numbers(run, call.tensors[0].spec.shape[0]), warning)


@_answers("aten::_pack_padded_sequence")
def pack(run: FakeRun, call: FakeCall) -> object:
    """A padded batch packed by its lengths. The sizes of the steps stay a real tensor: torch's RNNs read its memory."""
    x, lengths = call.tensors
    content = lengths.value
    if content is None or not is_known(lengths) or not run.knowledge.affords((lengths,), ()):
        raise DataDependent(call.info.name)
    longest = int(content.max()) if lengths.numel() else 0
    if not run.knowledge.has_room(longest * lengths.numel(), torch.bool):
        raise DataDependent(call.info.name)
    sizes = (content.unsqueeze(1) > torch.arange(longest)).sum(0)
    packed = torch.empty(int(sizes.sum()), *x.spec.shape[2:], dtype=x.dtype, device="meta")
    data, _ = _fakes(run.conclude(call, (packed, sizes)))
    return data, sizes


@_answers("aten::set_")
def set_storage(run: FakeRun, call: FakeCall) -> object:
    """cuDNN's RNNs ask whether their weights lie in one buffer, through an empty tensor set to the first one's memory;
    left empty, it says no. Anything else that takes over memory needs a real run."""
    target = call.tensors[0]
    if call.info.overload != "source_Storage" or target.numel():
        raise DataDependent(call.info.name)
    return target


@_answers("aten::_nested_tensor_from_mask_left_aligned")
def not_aligned(run: FakeRun, call: FakeCall) -> bool:
    """Padding is counted in full: the nested-tensor path, which skips it, is not taken."""
    return False


@_answers("aten::_assert_async", "aten::_functional_assert_async")
def no_check(run: FakeRun, call: FakeCall) -> None:
    """An assertion about values: there are none to check."""


def _is_mask(index: object) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def _compute(call: FakeCall) -> object:
    kwargs = call.kwargs | {"device": _CPU} if "device" in call.kwargs else call.kwargs
    if not call.tensors:
        return call.func(*call.args, **kwargs)
    return call.func(*map(_with_content, call.args), **{name: _with_content(value) for name, value in kwargs.items()})


def _with_content(argument: object) -> object:
    if type(argument) is FakeTensor:
        return argument.value
    return argument if type(argument) in _PLAIN else map_tensors(argument, _content)


_PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device))


def _content(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.value if isinstance(tensor, FakeTensor) else tensor


def _fakes(built: object) -> Iterator[FakeTensor]:
    return find_all(built, FakeTensor)


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


# How much tensor content a run may know: computing it takes real memory and real time.

# Elements of one tensor. Integers and booleans are masks and positions; floats are those that the forward itself
# creates.
MAX_ELEMENTS = 1 << 22
MAX_FLOAT_ELEMENTS = 1 << 20
# Elements of all live tensors together: as many as sixteen of the largest.
HELD_BYTES = 1 << 29
# Multiply-accumulates of one op: kernels of convolutions and products may unfold their inputs into as many numbers.
OP_MACS = 1 << 26
# Elements read and written, and multiply-accumulates, of a whole run: a few seconds.
MAX_WORK = 1 << 31


class Knowledge:
    """The budget of one run. Content beyond it is unknown, as if it came from data."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.work = 0

    def has_room(self, elements: int, dtype: torch.dtype) -> bool:
        is_float = dtype.is_floating_point or dtype.is_complex
        fits = self.held_bytes + elements * dtype.itemsize <= HELD_BYTES
        return fits and elements <= (MAX_FLOAT_ELEMENTS if is_float else MAX_ELEMENTS)

    def affords(self, read: Iterable[FakeTensor], made: Iterable[FakeTensor], macs: int = 0) -> bool:
        """Whether an op may be computed for real; if so, its work is added to the budget. An expanded tensor is small
        in memory and as large as its shape for a kernel that reads it."""
        work = macs
        for fake in read:
            elements = fake.numel()
            if elements > MAX_ELEMENTS:
                return False
            work += elements
        for fake in made:
            elements = fake.numel()
            if not self.has_room(elements, fake.dtype):
                return False
            work += elements
        if macs > OP_MACS or self.work + work > MAX_WORK:
            return False
        self.work += work
        return True

    def hold(self, storage: Storage, content: torch.Tensor) -> None:
        """Count the content of a storage as long as the storage lives."""
        if storage.content is None:
            storage.content = _Hold(self, content.numel() * content.itemsize)


class _Hold:
    __slots__ = ("_knowledge", "_nbytes")

    def __init__(self, knowledge: Knowledge, nbytes: int) -> None:
        self._knowledge, self._nbytes = knowledge, nbytes
        knowledge.held_bytes += nbytes

    def __del__(self) -> None:
        self._knowledge.held_bytes -= self._nbytes
