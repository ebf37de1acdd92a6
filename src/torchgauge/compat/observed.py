"""A forward pass watched call by call: every module with what it was given, every op as the model's code calls it.

The capture keeps the ops that reach the kernels and the first call of each module. The interfaces here know the model
as its code is written: `linear` and not the `addmm` it comes down to, and each call of a module that is used twice.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from torchgauge import capture
from torchgauge.capture.fake_tensor import DataDependent
from torchgauge.capture.recorder import Recorder
from torchgauge.errors import ForwardError, TorchgaugeError
from torchgauge.facts import OpRecord
from torchgauge.source import Candidate


def require_module(model: object) -> None:
    """Raise AttributeError like the originals, with a clear message."""
    if not isinstance(model, nn.Module):
        raise AttributeError(f"the model is a torch.nn.Module, not a {type(model).__name__}; pass an instance")


def device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))


@contextmanager
def every_module_called() -> Iterator[None]:
    """Attention as `nn.MultiheadAttention` and the encoder layers write it out: their fast path is one op that passes
    their submodules over, and the originals see it written out."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def softmax_dim(module: nn.Softmax, ndim: int) -> int:
    """torch's rule for `dim=None`: the first dimension of scalars, vectors and three dimensions, else the second."""
    if module.dim is None:
        return 0 if ndim in (0, 1, 3) else 1
    return module.dim % ndim if ndim else 0


@dataclass(frozen=True, slots=True)
class OpCall:
    """One op call; `records` are the ops it came down to, with their costs."""

    func: Callable[..., Any]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    result: object
    records: tuple[OpRecord, ...]

    @property
    def macs(self) -> int:
        return sum(record.cost.macs for record in self.records)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """One call of a `torch.autograd.Function`; the tensors among its arguments by the names the caller has for them."""

    function: type[torch.autograd.Function]
    tensors: tuple[tuple[str, torch.Tensor], ...]
    result: object


class Observer:
    """Receives the events of a run. A pass may begin again (on data, if the model looks at it): `begin` resets."""

    def begin(self, root: nn.Module) -> None: ...

    def enter(self, module: nn.Module) -> None: ...

    def fail(self, module: nn.Module) -> None: ...

    def leave(self, module: nn.Module, args: tuple[object, ...], output: object) -> None: ...

    def op(self, call: OpCall) -> None: ...

    def enter_function(self) -> None: ...

    def leave_function(self, call: FunctionCall | None) -> None:
        """None for a call that failed."""

    def __deepcopy__(self, memo: dict[int, object]) -> Observer:
        # A lazy model is run as a copy, with the same observer.
        return self


def observe(
    model: nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    observer: Observer,
    *,
    train: bool | None = None,
    device: torch.device | None = None,
    whole: bool = False,
) -> capture.Trace:
    """Run the model on tensors without values, in the mode of `train`; None leaves each module in its own.

    `whole` reports ops as the code calls them and of the autograd functions around them; a model that takes gradients
    in its forward cannot be run so.
    """
    modes = {name: module.training if train is None else train for name, module in model.named_modules()}
    subject = _Subject(model, observer, modes, whole)
    request = capture.Request(device=device or device_of(model))
    try:
        return capture.trace(subject, [Candidate(args, kwargs, None)], request)
    except ForwardError as error:
        # The error with the path the module has in the model, not in what stands around it.
        path = error.module.removeprefix(_Subject.HELD).removeprefix(".")
        text = str(error).replace(f"forward() of '{error.module}'", f"forward() of '{path}'" if path else "forward()")
        raise ForwardError(text, module=path) from error.__cause__


class _Subject(nn.Module):
    """Stands around the model while it is watched."""

    HELD = "model"  # the name it holds the model by

    def __init__(self, model: nn.Module, observer: Observer, modes: dict[str, bool], whole: bool) -> None:
        super().__init__()
        self.model = model
        self.observer = observer
        self.modes = modes
        self.whole = whole

    def forward(self, *args: object, **kwargs: object) -> object:
        run: Any = torch.utils._python_dispatch._get_current_dispatch_mode()
        if run is None:  # lazy modules being initialised
            return self.model(*args, **kwargs)
        for name, module in self.model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                module.training = self.modes[name]
        original = run.recorder.original_of
        self.observer.begin(original(self.model))
        with ExitStack() as stack:
            stack.enter_context(every_module_called())
            stack.enter_context(_observe_modules(self.observer, original))
            if self.whole:
                # Below autograd an op is met before it falls apart into what it is made of.
                stack.enter_context(torch._C._AutoDispatchBelowAutograd())
                stack.enter_context(_observe_functions(self.observer))
            stack.enter_context(_OutermostOps(self.observer, run.recorder))
            return self.model(*args, **kwargs)


class _OutermostOps(TorchDispatchMode):
    """Reports ops as they are met; what they call in turn only adds to their records."""

    supports_higher_order_operators = True

    def __init__(self, observer: Observer, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._observer = observer
        self._recorder = recorder
        self._inside = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as the capture's own modes

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if self._inside:
            return self._run(func, args, kwargs)
        first = len(self._recorder.ops)
        self._inside = True
        try:
            result = self._run(func, args, kwargs)
        finally:
            self._inside = False
        self._observer.op(OpCall(func, args, kwargs, result, tuple(self._recorder.ops[first:])))
        return result

    def _run(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> object:
        if isinstance(func, torch._ops.OpOverload) and func._can_decompose():
            with self:  # what it is made of may have parts in turn
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)


@contextmanager
def _observe_modules(observer: Observer, original_of: Callable[[nn.Module], nn.Module]) -> Iterator[None]:
    """In the call of the class, so that modules made in the forward are seen too; hooks do not see failures."""
    original = nn.Module.__call__
    owner = threading.get_ident()

    def call(module: nn.Module, *args: object, **kwargs: object) -> object:
        if threading.get_ident() != owner:
            return original(module, *args, **kwargs)
        seen = original_of(module)
        observer.enter(seen)
        try:
            output = original(module, *args, **kwargs)
        except BaseException:
            observer.fail(seen)
            raise
        observer.leave(seen, args, output)
        return output

    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


@contextmanager
def _observe_functions(observer: Observer) -> Iterator[None]:
    """Patch the base class whose `apply` `Function.apply` calls: an `apply` kept under another name is seen too."""
    base: Any = torch.autograd.function._SingleLevelFunction
    owner = threading.get_ident()

    def apply(cls: Any, /, *args: object, **kwargs: object) -> object:
        inherited = super(base, cls).apply
        if threading.get_ident() != owner:
            return inherited(*args, **kwargs)
        caller = sys._getframe(2).f_locals  # past `Function.apply`
        names = {id(value): name for name, value in reversed(caller.items()) if isinstance(value, torch.Tensor)}
        tensors = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, torch.Tensor)]
        call = None
        observer.enter_function()
        try:
            result = inherited(*args, **kwargs)
            named = tuple((names.get(id(tensor), str(place)), tensor) for place, tensor in enumerate(tensors))
            call = FunctionCall(cls, named, result)
        finally:
            observer.leave_function(call)
        return result

    base.apply = classmethod(apply)
    try:
        yield
    finally:
        del base.apply


def own_error(error: TorchgaugeError) -> Exception:
    """What the model itself raised, with where it happened; else a RuntimeError of the same words."""
    cause = error.__cause__
    if isinstance(cause, Exception) and not isinstance(cause, DataDependent | TorchgaugeError):
        cause.add_note(str(error))
        return cause
    return RuntimeError(str(error))
