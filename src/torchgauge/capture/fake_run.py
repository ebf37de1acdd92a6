"""The run on fake tensors: every op the model calls is answered from metadata, its cost recorded, nothing computed.

Exceptions are small tensors whose content is known (constants, given integer inputs, results computed from them):
models read their masks and positions, so those are computed for real as well (`values.py`).
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from torchgauge.capture import values
from torchgauge.capture.argument_checks import INDEXING, check_call, check_indices
from torchgauge.capture.attention_blocks import FLEX_OPS, computed_scores
from torchgauge.capture.copier import Copier
from torchgauge.capture.fake_tensor import (
    INFERRED_INPUT,
    WORKS_ON_SPARSE,
    Census,
    DataDependent,
    FakeTensor,
    Ledger,
    Spec,
    Storage,
    make_fake,
)
from torchgauge.capture.op_call import Arguments, FakeCall, Op, OpCall, is_composite, op_info
from torchgauge.capture.paths import Inlined, ModulePaths
from torchgauge.capture.plan import (
    FOLLOWS_SPARSE,
    MATRIX_PRODUCTS,
    Output,
    Plan,
    PlanKey,
    Planner,
    infer,
    infer_from_zeros,
    is_shareable,
    shared_plans,
    shared_specs,
)
from torchgauge.capture.recorder import Recorder
from torchgauge.capture.structure import map_tensors, tensors_in
from torchgauge.capture.triton_kernels import is_wrapped_launch, triton_op_body, wrapped_launch
from torchgauge.capture.values import Knowledge
from torchgauge.facts import Allocation
from torchgauge.source.allowed_ops import count_pieces, is_split

# Types whose equality says all about them. A number's type is part of the key: 2 and 2.0 promote differently.
_NUMBERS = frozenset((int, float, bool, complex))
_ATOMS = frozenset((type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format))
_LSTM_BACKWARD = torch.ops.aten.mkldnn_rnn_layer_backward.default
_SEQUENCES = frozenset((list, tuple, torch.Size))
_PLAIN_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer))
# Ops with meta kernels; what others raise for a tensor without data says nothing about the model.
_OWN = ("aten::", "prims::", "prim::", "torchvision::", "higher_order::", "quantized::", "_quantized::")
# Maximum size of a tensor outside the model's modules whose memory the model asks for; a larger one needs a real run.
_MAX_LENT_BYTES = 64 << 20
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_dispatch_mode = torch._C._get_dispatch_mode


class _Id(int):
    """The id of an object that has no equality to go by. It keeps the object, so that no other gets the id while a plan
    is kept under it: Python's objects for packed weights last no longer than a call."""

    kept: object

    @classmethod
    def of(cls, value: object) -> _Id:
        made = cls(id(value))
        made.kept = value
        return made


class _Stranger(Exception):  # noqa: N818 - a signal
    """A tensor that is not a fake one yet was found among the arguments."""


class FakeRun(TorchDispatchMode):
    """`strict`: the values of the inputs are the user's, so indices from them that are out of range are refused."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise torch wraps every call to exclude its compiler, which costs 5 µs per op and a second at the
        first."""
        return False

    def __init__(self, recorder: Recorder, device: torch.device, *, assume: bool = False, strict: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if device.type == "cuda" and not torch.cuda.is_available():
            # As in torch's own fake mode: otherwise creating a tensor there starts the driver before any mode is
            # called.
            self._mode_key = _FAKE
            ensure = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
            if ensure is not None:  # torch 2.6 does without
                ensure()
        self.recorder = recorder
        self.knowledge = Knowledge()
        self.device = device
        self.assume = assume
        self._strict = strict
        self.specs = shared_specs
        self._planner = Planner(self.specs, device)
        self._shared = shared_plans()
        self._plans: dict[PlanKey, Plan] = {}
        self._reads: dict[PlanKey, Plan] = {}  # of single numbers
        # Adopted tensors are kept, so that no other gets their id during the run.
        self._adopted: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        self._held = Ledger()  # theirs: no part of the live memory
        self._lent: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        # Counts of flex attention by its mask, which is kept alive so that no other object gets its id.
        self._scores: dict[PlanKey, tuple[torch.Tensor, int | None]] = {}

    def adopt(self, tensor: torch.Tensor, *, name: str = "", dtype: torch.dtype | None = None) -> FakeTensor:
        """The fake tensor of a parameter, buffer or constant: the model holds it, so it is not live memory."""
        found = self._adopted.get(id(tensor))
        if found is not None:
            return found[1]
        kind = type(tensor)
        is_plain = kind in _PLAIN_TENSORS
        if not is_plain and is_wrapper(tensor):
            return self._wrap(tensor, lambda inner: self.adopt(inner, name=name))
        spec = self._spec(tensor, dtype)
        fake = make_fake(spec, Storage(spec.nbytes, self._held, name))
        self._know(fake, values.constant(self.knowledge, tensor, floats=not name))
        if tensor.requires_grad:
            fake.requires_grad_()
        if kind is torch.nn.Parameter or (not is_plain and isinstance(tensor, torch.nn.Parameter)):
            fake._is_param = True  # what isinstance(…, nn.Parameter) looks at
        self._adopted[id(tensor)] = (tensor, fake)
        carried = vars(tensor)
        if carried:  # scales of a quantized weight, marks of a framework
            own = vars(fake)
            copier = Copier(self.adopt)
            own.update({key: copier.copy(value) for key, value in carried.items() if key not in own})
        if not is_plain:
            fake.replaces = kind
        return fake

    def admit(self, tensor: torch.Tensor, *, dtype: torch.dtype | None = None) -> FakeTensor:
        """The fake tensor of an input: it counts as live memory. One tensor given twice is one fake tensor."""
        found = self._adopted.get(id(tensor))
        if found is not None:
            return found[1]
        if is_wrapper(tensor):
            return self._wrap(tensor, self.admit)
        spec = self._spec(tensor, dtype)
        fake = make_fake(spec, Storage(spec.nbytes, self.recorder.ledger))
        self._know(fake, values.constant(self.knowledge, tensor, floats=False))
        fake.storage_.assumed = "" if self._strict else INFERRED_INPUT
        self._adopted[id(tensor)] = (tensor, fake)
        return fake

    def _wrap(self, tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> FakeTensor:
        """A wrapper subclass handles ops with ops on its inner tensors, so it replaces a fake tensor itself."""
        replica = cast(FakeTensor, rewrapped(tensor, change))
        self._adopted[id(tensor)] = (tensor, replica)
        return replica

    def lend(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a real tensor, the same every time, whose memory the model may have."""
        lent = self._lent.get(id(tensor))
        if lent is None:
            if tensor.nbytes > _MAX_LENT_BYTES:
                raise DataDependent("memory of a tensor", self.recorder.path)
            with torch._C._DisableTorchDispatch():
                lent = self._lent[id(tensor)] = (tensor, tensor.detach().clone())
        return lent[1]

    def dismiss(self) -> Census:
        """Release all fake tensors; returns which of them something else still holds."""
        self._adopted.clear()
        self._lent.clear()
        self._scores.clear()
        self.recorder.clear_traceback()
        return Census(self.recorder.ledger, self._held)

    def mark(self, tensor: torch.Tensor, origin: int) -> int:
        """Use `origin` for an input among the producers of its readers; an input that has a mark keeps it."""
        for fake in fakes_of(tensor):
            if fake.storage_.writer is None:
                fake.storage_.writer = origin
            origin = int(fake.storage_.writer)
        return origin

    def writer_of(self, tensor: torch.Tensor) -> int | None:
        """The op that last wrote the memory of a tensor."""
        return next((fake.storage_.writer for fake in fakes_of(tensor)), None)

    def note_host_read(self, call: str, tensor: torch.Tensor) -> None:
        is_weight = any(fake.storage_.name for fake in fakes_of(tensor))
        self.recorder.note_host_read(call, self.writer_of(tensor), is_weight=is_weight)
        if call in ("numpy", "tolist", "tensor"):
            self.note_assumption(fakes_of(tensor))

    def note_assumption(self, read: Iterable[FakeTensor]) -> None:
        """The model reads values; say what they rest on where they were assumed."""
        if (assumption := values.assumption_of(read)) not in ("", INFERRED_INPUT):
            self.recorder.warn(assumption)
            self.recorder.has_read_assumed_values = True

    def storage_of(self, tensor: torch.Tensor) -> tuple[int, Allocation]:
        """A number for the storage of a tensor, and its allocation."""
        storage = next((fake.storage_ for fake in fakes_of(tensor)), None) or self.adopt(tensor).storage_
        return id(storage), (storage.born, storage.nbytes)

    def _spec(self, tensor: torch.Tensor, dtype: torch.dtype | None) -> Spec:
        if tensor.is_nested:
            raise DataDependent("nested tensor", self.recorder.path, "uses nested (jagged) tensors")
        spec = self.specs.of(tensor, self.device)
        self.recorder.has_sparse |= spec.sparse is not None
        if dtype is None or not tensor.dtype.is_floating_point:
            return spec
        return self.specs.get(spec.shape, spec.stride, dtype, self.device, spec.sparse)

    def _is_decomposed(self, func: Op) -> bool:
        """Whether the op is recorded as the ops that it consists of."""
        return is_composite(func)

    def __torch_dispatch__(
        self, func: Op, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Arguments | None = None
    ) -> object:
        kwargs = kwargs or {}
        if _dispatch_mode(_FAKE) is not None:
            return func(*args, **kwargs)  # torch itself asks for the shape of a result, as DTensor does
        is_higher_order = not isinstance(func, OpOverload)
        if is_higher_order and is_wrapped_launch(func):
            # The functional form writes to copies of what the kernel writes to, and gives them back.
            clone, given = torch.ops.aten.clone.default, kwargs["kwargs"]
            copies = {name: self.execute(clone, given[name]) for name in kwargs.get("tensors_to_clone", ())}
            self.launch(wrapped_launch(func, kwargs | {"kwargs": given | copies}))
            return copies if "tensors_to_clone" in kwargs else None
        tensors: list[FakeTensor] = []
        key: list[object] = [func]
        try:
            _read(args, key, tensors)
            if kwargs:
                for name, value in kwargs.items():
                    key.append(name)
                    _read((value,), key, tensors)
        except _Stranger:
            if func is torch.ops.aten.lift_fresh.default:
                return self._lift(args[0])
            if any(map(is_wrapper, tensors_in((args, kwargs)))):
                return NotImplemented  # the wrapper handles it, with ops on its fake tensors
            args, kwargs = map_tensors((args, kwargs), self._adopt_stranger)
            return self.__torch_dispatch__(func, types, args, kwargs)
        if len(tensors) > 1:
            ids = list(map(id, tensors))
            if len(set(ids)) < len(ids):  # `x * x`: which arguments are one tensor
                key.append(tuple(map(ids.index, ids)))
        elif not tensors:
            key.append(self.device)  # where a tensor made from nothing is made
        if func is _LSTM_BACKWARD:
            key.append(tuple(fake.requires_grad for fake in tensors))  # see `OpCall.wanted`
        scores: int | None = None
        is_flex = is_higher_order and op_info(func).name in FLEX_OPS
        if is_flex:
            scores = self._computed_scores(OpCall(func, op_info(func), args, kwargs, tensors))
            key.append(scores)
        known = tuple(key)
        plan = self._shared.get(known) or self._plans.get(known)
        if plan is None:
            facts = {"computed_scores": scores} if is_flex else {}
            return self._first_time(OpCall(func, op_info(func), args, kwargs, tensors, facts), known)
        if plan.is_watched and plan.info.name in INDEXING:
            check_indices(OpCall(func, plan.info, args, kwargs, tensors))
        built = self._replay(plan, tensors)
        if _have_values(tensors):
            values.follow(
                self.knowledge, OpCall(func, plan.info, args, kwargs, tensors), built, plan.signature.cost.macs
            )
        elif plan.writes:
            values.overwrite([tensors[position] for position in plan.writes], tensors)
        elif plan.is_watched:
            if plan.info.name in values.ROUTERS:
                values.assume_balanced(self, OpCall(func, plan.info, args, kwargs, tensors), built)
            elif self.assume and plan.info.name in values.FINITE_CHECKS:
                values.assume_finite(self, OpCall(func, plan.info, args, kwargs, tensors), built)
        return built

    def launch(self, call: OpCall[torch.Tensor]) -> None:
        """A Triton kernel that is launched past the dispatcher."""
        if any(type(tensor) is not FakeTensor for tensor in call.tensors):
            bound = map_tensors(call.kwargs, self._adopt_stranger)
            call = replace(call, kwargs=bound, tensors=list(tensors_in(bound)))
        fake_call = cast(FakeCall, call)
        for fake in fake_call.written:
            fake.storage_.known = False
        self._replay(self._planner.plan(fake_call, inferred=()), fake_call.tensors)

    def _computed_scores(self, call: FakeCall) -> int | None:
        """The number of scores that a flex attention computes; layers that share a mask share the count."""
        arguments = call.bind()
        mask = next(item for item in arguments["block_mask"] if isinstance(item, torch.Tensor))
        key = (id(mask), tuple(arguments["query"].shape), tuple(arguments["key"].shape))
        if key not in self._scores:

            def content(tensor: torch.Tensor) -> torch.Tensor | None:
                if type(tensor) is not FakeTensor:
                    return tensor
                return tensor.value if values.is_known(tensor) else None

            self._scores[key] = mask, computed_scores(call, content)
        scores = self._scores[key][1]
        if scores is None:
            where = f" in '{self.recorder.path}'" if self.recorder.path else ""
            self.recorder.warn(f"the block mask of flex_attention{where} depends on data: all blocks were counted")
        return scores

    def _first_time(self, call: FakeCall, key: PlanKey) -> object:
        if call.info.name in INDEXING:
            check_indices(call)
        if values.looks(call):
            # Its result depends on values: answered from known ones, or assumed where that is asked for.
            try:
                return values.look(self, call)
            except DataDependent as signal:
                raise DataDependent(call.info.name, self.recorder.path) from signal
        body = triton_op_body(call.func)
        if body is not None:
            with self:
                return body(*call.args, **call.kwargs)
        if self._is_decomposed(call.func):
            with self:
                return call.func.decompose(*call.args, **call.kwargs)  # type: ignore[attr-defined]
        if call.info.changes_metadata:
            return self._change_metadata(call)
        if is_split(call.info.name):
            self.recorder.budget.require_tensors(count_pieces(call.info.name, call.bind()))
        sparse = sum(fake.spec.sparse is not None for fake in call.tensors)
        follows = call.info.name.removesuffix("_") in FOLLOWS_SPARSE
        follows = follows and not (sparse > 1 and call.info.name in MATRIX_PRODUCTS)
        if sparse and not follows and not self.assume:
            raise DataDependent(call.info.name, self.recorder.path, WORKS_ON_SPARSE)
        try:
            check_call(call)
            if call.info.only_written and call.info.name.startswith("aten::") and self._resize_outputs(call):
                return self.execute(call.func, *call.args, **call.kwargs)
            plan = self._planner.plan(call)
        except DataDependent:
            raise
        except Exception as error:
            if not call.info.name.startswith(_OWN):
                zeros = infer_from_zeros(call.func, call.args, call.kwargs) if self.assume else None
                if zeros is not None:
                    self.recorder.warn(
                        f"{call.info.name} has no fake kernel: it was run on zeros to see what it returns"
                    )
                    return self._replay(self._planner.plan(call, inferred=zeros), call.tensors)
                why = "calls an op that has no fake kernel"
                raise DataDependent(call.info.name, self.recorder.path, why) from error
            self.recorder.failing_op = (call.info.name, [fake.spec.record for fake in call.tensors])
            raise
        # A key with an id in it holds for this run alone.
        is_general = is_shareable(plan) and not self.assume
        plans = self._shared if is_general and not any(type(part) is _Id for part in key) else self._plans
        plans[key] = plan
        return self.execute(call.func, *call.args, **call.kwargs)

    def _replay(self, plan: Plan, tensors: list[FakeTensor]) -> Any:
        result, recorder = plan.result, self.recorder
        producers = tuple([tensors[position].storage_.writer for position in plan.reads])
        if recorder.phase == "backward":
            for fake in tensors:
                storage = fake.storage_
                if storage.ledger is not self._held:
                    recorder.note_backward_read(id(storage), (storage.born, storage.nbytes))
        built = self._build(result, tensors) if type(result) is Output else self._build_all(result, tensors)
        for position in plan.writes:
            recorder.note_write(tensors[position])
            tensors[position].storage_.writer = len(recorder.ops)
        recorder.record(plan.signature, _weights(tensors), producers)
        return built

    def _build(self, output: Output, tensors: list[FakeTensor]) -> FakeTensor:
        if output.source < 0:
            spec, recorder = output.spec, self.recorder
            now = len(recorder.ops)
            return make_fake(spec, Storage(spec.nbytes, recorder.ledger, writer=now, born=now))
        source = tensors[output.source]
        return source if output.same else make_fake(output.spec, source.storage_)

    def _build_all(self, result: object, tensors: list[FakeTensor]) -> object:
        if isinstance(result, Output):
            return self._build(result, tensors)
        if isinstance(result, list | tuple):
            return type(result)(self._build_all(item, tensors) for item in result)
        return result

    def _change_metadata(self, call: FakeCall) -> FakeTensor:
        """`t_`, `squeeze_` and others change the fake tensor itself; the signature describes the change."""
        fake = call.tensors[0]
        with torch._C._DisableTorchDispatch():
            call.func(*call.args, **call.kwargs)
        spec = self.specs.get(tuple(fake.shape), fake.stride(), fake.dtype, fake.spec.device)
        plan = self._planner.plan(call, inferred=spec)
        fake.spec = spec
        if fake.value is not None:
            call.func(fake.value, *call.args[1:], **call.kwargs)
        self.recorder.record(plan.signature, _weights(call.tensors), (fake.storage_.writer,))
        return fake

    def _resize_outputs(self, call: FakeCall) -> bool:
        """Give each `out=` tensor the shape of the result, as torch does; whether one of them changed."""
        made = infer(call.func, call.args, call.kwargs)
        arguments, is_changed = call.bind(), False
        for result, each in zip(made if isinstance(made, tuple) else (made,), call.info.returns, strict=False):
            fake = arguments.get(each.argument or "")
            if not isinstance(result, torch.Tensor) or not isinstance(fake, FakeTensor) or fake.shape == result.shape:
                continue
            with torch._C._DisableTorchDispatch():
                fake.resize_(result.shape)
            fake.spec = self.specs.get(tuple(fake.shape), fake.stride(), fake.dtype, fake.spec.device)
            fake.value, is_changed = None, True
        return is_changed

    def conclude(self, call: FakeCall, result: object, assumed: str = "") -> object:
        """Take `result`, which was computed or `assumed` (the sentence that says what), as what the op returned."""
        if isinstance(result, int | float) and len(call.args) == len(call.tensors) == 1:
            # Optimizers read the step counts of all parameters, which are alike.
            key = (call.func, call.tensors[0].spec, repr(result))
            plan = self._reads.get(key) or self._planner.plan(call, inferred=result)
            self._reads[key] = plan
        else:
            plan = self._planner.plan(call, inferred=result)
        built = self._replay(plan, call.tensors)
        values.attach(self.knowledge, built, result, assumed or values.assumption_of(call.tensors))
        return built

    def wrap(self, real: torch.Tensor, assumed: str = "") -> FakeTensor:
        """A fake tensor with a new storage for a value that was computed; without content for one on meta."""
        spec = self.specs.of(real, self.device)
        fake = make_fake(spec, Storage(spec.nbytes, self.recorder.ledger, born=len(self.recorder.ops)))
        self._know(fake, None if real.is_meta else real)
        fake.storage_.assumed = assumed
        return fake

    def _know(self, fake: FakeTensor, content: torch.Tensor | None) -> None:
        if content is not None:
            fake.value = content
            self.knowledge.hold(fake.storage_, content)

    def execute(self, func: Op, *args: object, **kwargs: object) -> Any:
        """Run an op as if the model had called it."""
        return self.__torch_dispatch__(func, (), args, kwargs)

    def _lift(self, constant: torch.Tensor) -> FakeTensor:
        """`torch.tensor(…)` in the forward: new memory, its content known."""
        source = make_fake(self.specs.of(constant, self.device), Storage(0, self._held), constant)
        lifted: FakeTensor = self.execute(torch.ops.aten.lift_fresh.default, source)
        return lifted

    def _adopt_stranger(self, tensor: torch.Tensor) -> FakeTensor:
        return tensor if isinstance(tensor, FakeTensor) else self.adopt(tensor)


def is_wrapper(tensor: object) -> bool:
    """Whether a tensor consists of others and handles ops itself; nested tensors need a real run."""
    if type(tensor) is FakeTensor or not isinstance(tensor, torch.Tensor) or tensor.is_nested:
        return False
    return bool(is_traceable_wrapper_subclass(tensor))


def rewrapped(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A tensor that is made of others (`DTensor`, the quantized ones of torchao) over what `change` makes of those."""
    wrapper: Any = tensor
    names, context = wrapper.__tensor_flatten__()
    parts = {name: getattr(tensor, name) for name in names}  # a DTensor names its mesh too
    inner = {name: change(part) if isinstance(part, torch.Tensor) else part for name, part in parts.items()}
    replica: torch.Tensor = type(wrapper).__tensor_unflatten__(inner, context, tensor.shape, tensor.stride())
    if isinstance(tensor, torch.nn.Parameter):
        replica._is_param = True
    return replica if replica.grad_fn is not None else replica.requires_grad_(tensor.requires_grad)


def fakes_of(tensor: torch.Tensor) -> Iterator[FakeTensor]:
    """The tensor itself, or the fake tensors that it is made of."""
    if type(tensor) is FakeTensor:
        yield tensor
    elif is_wrapper(tensor):
        for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            yield from fakes_of(getattr(tensor, name))


def _read(items: Iterable[Any], key: list[object], tensors: list[FakeTensor]) -> None:
    """Append to `key` what decides the outcome of a call, and to `tensors` its fake tensors in order."""
    for value in items:
        kind = type(value)
        if kind is FakeTensor:
            key.append(value.spec)
            tensors.append(value)
        elif kind in _NUMBERS:
            key.append(kind)
            key.append(value)
        elif kind in _ATOMS:
            key.append(value)
        elif kind in _SEQUENCES:
            key.append(len(value))
            _read(value, key, tensors)
        elif isinstance(value, torch.Tensor):
            raise _Stranger
        else:
            key.append(_Id.of(value))  # generators, packed weights, callables of higher-order ops


def _weights(tensors: list[FakeTensor]) -> tuple[str, ...]:
    """The names of the parameters and buffers among them."""
    return tuple([name for fake in tensors if (name := fake.storage_.name)])


def _have_values(tensors: list[FakeTensor]) -> bool:
    for fake in tensors:  # noqa: SIM110 - a generator takes twice as long, for every op
        if fake.value is None:
            return False
    return True


# Fake tensors in place of a model's tensors for the length of a run; `untouched` puts the originals back.

# Most attributes of most modules; one look at the type settles them.
_NO_TENSORS = frozenset((bool, int, float, str, type(None), dict, OrderedDict, set))


def swap_tensors(paths: ModulePaths, run: FakeRun, dtype: torch.dtype | None) -> None:
    """Parameters, buffers, and tensors held in plain attributes (an RNN keeps a list of its weights)."""
    for owned in paths.owned:
        run.adopt(owned.tensor, name=owned.name, dtype=dtype)
    for member in paths.members:
        if not isinstance(member.module, torch.jit.ScriptModule | Inlined):
            module = member.module
            for kind in ("_parameters", "_buffers"):
                registry = getattr(module, kind)
                if type(registry) not in (dict, OrderedDict):
                    # A mapping of a library would move to another device what is put into it.
                    registry = module.__dict__[kind] = dict(registry.items())
                if registry:
                    registry.update({name: run.adopt(each) for name, each in registry.items() if each is not None})
            for name, value in module.__dict__.items():
                if type(value) in _NO_TENSORS:
                    continue
                if isinstance(value, torch.Tensor):
                    module.__dict__[name] = run.adopt(value)
                elif (
                    isinstance(value, list | tuple)
                    and not _NO_TENSORS.issuperset(map(type, value))
                    and any(_tensor(item) is not None for item in value)
                ):
                    fakes: list[object] = []
                    for item in value:
                        tensor = _tensor(item)
                        fake = item if tensor is None else run.adopt(tensor)
                        is_weak = tensor is not None and isinstance(item, weakref.ref)
                        fakes.append(weakref.ref(fake) if is_weak else fake)
                    module.__dict__[name] = fakes


def _tensor(item: object) -> torch.Tensor | None:
    """The tensor that an item is or refers to: an RNN keeps weak references too, to see whether its weights changed."""
    target = item() if isinstance(item, weakref.ref) else item
    return target if isinstance(target, torch.Tensor) else None
