"""A forward pass observed call by call: every module with its inputs, every op as the model's code calls it.

The capture keeps the ops that reach the kernels and the first call of each module. The interfaces here show the model
as its code is written: `linear` and not the `addmm` that it becomes, and each call of a module that is used twice.
`observe` runs the model on tensors without values, `observe_calls` watches a real run.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode

from torchgauge import capture
from torchgauge.analysis import Analysis, analyze
from torchgauge.capture.calls import intercept_calls
from torchgauge.capture.fake_tensor import DataDependent
from torchgauge.capture.recorder import Recorder
from torchgauge.capture.structure import map_tensors
from torchgauge.errors import ForwardError, TorchgaugeError
from torchgauge.facts import OpRecord
from torchgauge.measure import Subject, ready
from torchgauge.source import Candidate


def require_module(model: object) -> None:
    """Raise AttributeError like the originals, with a clear message."""
    if not isinstance(model, nn.Module):
        raise AttributeError(f"expected a torch.nn.Module instance, got {type(model).__name__}")


def device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))


@contextmanager
def every_module_called() -> Iterator[None]:
    """Disable the fast path of `nn.MultiheadAttention` and the encoder layers: it is one op that skips their
    submodules, which the original tools see."""
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
    """One op call; `records` are the ops that it decomposed into, with their costs."""

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
    """One call of a `torch.autograd.Function`; its tensor arguments by the names of the caller's variables."""

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
    """Run the model on tensors without values, in the mode of `train`; None keeps each module's mode.

    `whole` reports ops as the code calls them, and the autograd functions around them; a model that takes gradients in
    its forward cannot run this way.
    """
    modes = {name: module.training if train is None else train for name, module in model.named_modules()}
    subject = _Subject(model, observer, modes, whole)
    request = capture.Request(device=device or device_of(model))
    try:
        return capture.trace(subject, [Candidate(args, kwargs, None)], request)
    except ForwardError as error:
        # The error with the path that the module has in the model, not in the wrapper.
        path = error.module.removeprefix(_Subject.HELD).removeprefix(".")
        text = str(error).replace(f"forward() of '{error.module}'", f"forward() of '{path}'" if path else "forward()")
        raise ForwardError(text, module=path) from error.__cause__


class _Subject(nn.Module):
    """Wraps the model while it is observed."""

    HELD = "model"  # the attribute that holds the model

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
        original_of = run.recorder.original_of
        self.observer.begin(original_of(self.model))

        def call(inner: Callable[..., object], module: nn.Module, /, *args: object, **kwargs: object) -> object:
            # Class-wide, so that modules made in the forward are seen too; hooks do not see failures.
            own = original_of(module)
            self.observer.enter(own)
            try:
                output = inner(module, *args, **kwargs)
            except BaseException:
                self.observer.fail(own)
                raise
            self.observer.leave(own, args, output)
            return output

        with ExitStack() as stack:
            stack.enter_context(every_module_called())
            stack.enter_context(intercept_calls(call))
            if self.whole:
                # Below autograd an op is seen before it is decomposed.
                stack.enter_context(torch._C._AutoDispatchBelowAutograd())
                stack.enter_context(_observe_functions(self.observer))
            stack.enter_context(_OutermostOps(self.observer, run.recorder))
            return self.model(*args, **kwargs)


class _OutermostOps(TorchDispatchMode):
    """Reports the outermost ops; ops that they call only add to their records."""

    supports_higher_order_operators = True

    def __init__(self, observer: Observer, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._observer = observer
        self._recorder = recorder
        self._inside = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # like the capture's own modes

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
            with self:  # its parts may decompose in turn
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)


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
    """The exception that the model raised, with a note on where; otherwise a RuntimeError with the same message."""
    cause = error.__cause__
    if isinstance(cause, Exception) and not isinstance(cause, DataDependent | TorchgaugeError):
        cause.add_note(str(error))
        return cause
    return RuntimeError(str(error))


@dataclass(frozen=True, slots=True)
class ModuleCall:
    module: nn.Module
    args: tuple[object, ...]
    kwargs: dict[str, object]
    output: object

    def without_values(self) -> ModuleCall:
        """Costs no memory to keep. Integers stay: models look at their ids, masks and positions."""

        def on_meta(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().to("meta") if tensor.is_floating_point() or tensor.is_complex() else tensor

        args, kwargs, output = map_tensors((self.args, self.kwargs, self.output), on_meta)
        return replace(self, args=args, kwargs=kwargs, output=output)

    def analyze(self) -> Analysis:
        """torchgauge's own analysis of this call."""
        given = self.without_values()
        return analyze(self.module, inputs=given.args, kwargs=given.kwargs, weights=False, progress=False)


@contextmanager
def running(model: nn.Module, candidate: Candidate, *, evaluate: bool = True) -> Iterator[Subject]:
    """The model ready to run without gradients, in eval mode or in its own modes; restored at the end."""
    modes = [module.training for module in model.modules()]
    with ready(model, candidate, device=device_of(model)) as subject:
        if not evaluate:
            for module, training in zip(subject.model.modules(), modes, strict=True):
                module.training = training
        yield subject


@contextmanager
def observe_calls(modules: Collection[nn.Module], observer: Callable[[ModuleCall], None]) -> Iterator[None]:
    """`observer` gets every call of the modules when it has returned, in this thread, inner ones first; not the calls
    that it makes itself, to analyse what it was given."""
    known = {id(module) for module in modules}
    owner = threading.get_ident()
    is_observing = False

    def hook(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
        nonlocal is_observing
        if id(module) in known and threading.get_ident() == owner and not is_observing:
            is_observing = True
            try:
                observer(ModuleCall(module, args, kwargs, output))
            finally:
                is_observing = False

    handle = register_module_forward_hook(hook, with_kwargs=True)
    try:
        with every_module_called():
            yield
    finally:
        handle.remove()
