"""A model that is ready to run for real: parameters and inputs on the device, mode and gradients set; no trace left."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import nn

from torchgauge.capture import unsupported
from torchgauge.capture.copier import Copier, TensorCopies, in_mode
from torchgauge.capture.restored_state import contents_kept, gradients_kept, is_lazy, untouched
from torchgauge.capture.structure import map_tensors, materialise
from torchgauge.capture.training import gradient_roots
from torchgauge.errors import InputError
from torchgauge.facts import OpRecord
from torchgauge.source import Candidate
from torchgauge.source.process_state import rng_untouched


@dataclass(frozen=True, slots=True)
class Subject:
    """A model call that can be measured: `model(*args, **kwargs)`; `dtype` is the requested type of floating tensors.

    `has_objects`: the inputs contain objects, such as a cache of keys and values. A run may write to them, so each run
    gets a copy; otherwise the cache would grow from run to run."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device
    notes: tuple[str, ...] = ()
    dtype: torch.dtype | None = None
    has_objects: bool = False
    is_compiled: bool = False  # by torch.compile: its modules are not called one by one

    def __call__(self) -> Any:
        args, kwargs = self.args, self.kwargs
        if self.has_objects:
            copier = Copier(lambda tensor: tensor.clone() if tensor.nbytes <= _MAX_COUNTER_BYTES else tensor)
            args, kwargs = copier.copy((args, kwargs))
        return self.model(*args, **kwargs)

    def run(self) -> None:
        """One whole run: when this returns, the device has finished."""
        self()
        self.synchronize()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()


@contextmanager
def ready(
    model: nn.Module,
    candidate: Candidate,
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    train: bool = False,
    build_real: Callable[[], nn.Module] | None = None,
    is_owned: bool = False,
    notes: tuple[str, ...] = (),
    ops: Sequence[OpRecord] = (),
) -> Iterator[Subject]:
    """The model as requested: the user's own if nothing has to change, otherwise a copy; a model that was made for this
    run (`is_owned`) is changed in place. `ops` are those of its forward: they say which parameters it writes to."""
    require_device(device)
    real = model
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        if build_real is None:
            raise InputError(
                "its parameters are on the meta device and have no values, so it cannot be run: "
                "give it real ones (for example model.to_empty(device='cpu'))"
            )
        real, notes = build_real(), (*notes, "random weights")
    if is_lazy(real):  # a copy whose lazy modules take their shapes from a call
        real, cpu = copy.deepcopy(real), torch.device("cpu")
        args, kwargs = map_tensors((candidate.args, candidate.kwargs), lambda tensor: materialise(tensor, cpu, None))
        with rng_untouched(), torch.no_grad(), in_mode(real, train=False):
            real(*args, **kwargs)
    is_owned = is_owned or real is not model
    # The model itself if it can be run unchanged; training needs a copy, because a step writes to the parameters.
    tensors = [*real.parameters(), *real.buffers()]
    elsewhere = any(tensor.device != device for tensor in tensors)
    retyped = dtype is not None and any(t.is_floating_point() and t.dtype != dtype for t in tensors)
    if not (elsewhere or retyped or (train and not is_owned)):
        subject = real
    else:
        subject = (real if is_owned else copy.deepcopy(real)).to(device=device, dtype=dtype)
    missing = unsupported(subject, device)
    if missing is not None:
        raise InputError(f"{missing}: choose another with dtype= (--dtype)")
    own_memory = TensorCopies()
    copier = Copier(lambda tensor: materialise(own_memory.copy(tensor), device, dtype))
    args, kwargs = copier.copy((candidate.args, candidate.kwargs))
    with ExitStack() as stack:
        stack.enter_context(untouched(subject))
        stack.enter_context(gradients_kept(subject))
        stack.enter_context(contents_kept(subject, written_parameters(ops)))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(train))
        stack.enter_context(in_mode(subject, train=train))
        yield Subject(subject, args, kwargs, device, notes, dtype, copier.objects > 0)


def written_parameters(ops: Sequence[OpRecord]) -> set[str]:
    """Parameters and buffers that ops in place name, such as those of a layer that its first call initialises."""
    return {name for op in ops if op.op.endswith("_") for name in op.weights}


# Tensors up to this size in an object among the inputs are positions and lengths: they are copied before each run.
_MAX_COUNTER_BYTES = 4096


def require_device(device: torch.device) -> None:
    """Raise `InputError` if the device is not available."""
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError(f"cannot measure on '{device}': this machine has no CUDA device")
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise InputError(f"cannot measure on '{device}': the last CUDA device of this machine is cuda:{count - 1}")
        torch.cuda.init()  # its random state can be kept from now on
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("cannot measure on 'mps': this machine has no MPS device")
    elif device.type not in ("cpu", "mps"):
        raise InputError(f"cannot measure on '{device}': supported devices are cpu, cuda and mps")


PHASES = ("forward", "backward", "optimizer")


class TrainingStep:
    """Training steps; the optimizer keeps its state from step to step."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        trained = [parameter for parameter in subject.model.parameters() if parameter.requires_grad]
        if not trained:
            raise InputError("nothing to train: no parameter requires a gradient")
        self.optimizer = torch.optim.AdamW(trained)

    def run(self) -> None:
        with self._deterministic():
            self._backward(self.subject())
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.subject.synchronize()

    def state_bytes(self) -> int:
        """Bytes of the optimizer's state."""
        kept = (value for state in self.optimizer.state.values() for value in state.values())
        return sum(value.nbytes for value in kept if isinstance(value, torch.Tensor))

    def phases(self) -> dict[str, float]:
        """The duration of each phase, from one step with a synchronisation between the phases."""
        marks = [perf_counter()]

        def mark() -> None:
            self.subject.synchronize()
            marks.append(perf_counter())

        with self._deterministic():
            output = self.subject()
            mark()
            self._backward(output)
            mark()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            mark()
        return {name: after - before for name, before, after in zip(PHASES, marks, marks[1:], strict=False)}

    def _backward(self, output: object) -> None:
        roots = gradient_roots(output)
        if not roots:
            raise InputError(
                "nothing to train: no floating-point output depends on a parameter that requires a gradient"
            )
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])

    @contextmanager
    def _deterministic(self) -> Iterator[None]:
        """Backward in the calling thread, so that ops run in the order of the static ops, in one sequence for the
        profiler."""
        with torch.autograd.set_multithreading_enabled(False):
            yield
