"""Calls the model, and reports where it failed: the module, its inputs, the op and its shapes.

For a layer that got the wrong size, an input of the model that would fit is suggested. The size that a layer takes is
one of its attributes. The input that leads to it is found by trying: a size that the layer gets straight from the input
is set, and sizes that shrink on their way through the model (pixels, samples) are bisected.
"""

from __future__ import annotations

import inspect
import linecache
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import prod

import torch
from torch import Tensor, nn

from torchgauge import units
from torchgauge.capture.fake_tensor import WORKS_ON_SPARSE, DataDependent
from torchgauge.capture.recorder import Recorder, describe_call, source_line
from torchgauge.errors import ForwardError, TorchgaugeError, first_line
from torchgauge.facts import FOREIGN_READ, OpRecord, TensorSpec, tensor_specs
from torchgauge.source import Candidate
from torchgauge.source.attributes import attribute_of
from torchgauge.units import format_shape

# Messages of torch where C++ code accesses the memory of a tensor that has none.
_READS_MEMORY = ("data is not allocated yet", "on an invalid python storage", "Cannot access data pointer")


def call_model(
    model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], recorder: Recorder, *, is_real: bool = False
) -> object:
    try:
        return model(*args, **kwargs)
    except (DataDependent, ForwardError):
        raise
    except Exception as error:  # whatever the user's code raises
        path = recorder.failure.path if recorder.failure else ""
        if any(text in str(error) for text in _READS_MEMORY):
            raise DataDependent(FOREIGN_READ, path) from error
        if not is_real and isinstance(error, NotImplementedError) and str(error).startswith("Could not run '"):
            # Torch has no kernel for dense tensors: those of the model are quantized, or of another kind.
            op = str(error).split("'")[1]
            raise DataDependent(op, path, "calls an op that has no fake kernel") from error
        fault = _fault_of_code(error, recorder.failure.module if recorder.failure else model)
        if fault is not None:
            raise ForwardError(fault, module=path, is_in_code=True) from error
        is_sparse = recorder.has_sparse or any(spec.is_sparse for op in recorder.ops for spec in op.signature.outputs)
        if is_sparse and not is_real:
            # A fake tensor knows how many elements are stored, but C++ code takes it for a dense tensor.
            raise DataDependent(str(error).partition("\n")[0].partition(". ")[0], path, WORKS_ON_SPARSE) from error
        if recorder.has_read_assumed_values and not is_real:
            # The values may be what fails: a real run knows.
            raise DataDependent(first_line(error).rstrip("."), path) from error
        if not is_real and _compares_types(error):
            raise DataDependent(first_line(error).rstrip("."), path, "compares types of tensors") from error
        failure = recorder.failure
        where = f"forward() of '{path}' ({failure.type})" if failure and path else "forward()"
        given = failure.inputs if failure else describe_call(args, kwargs)
        said = first_line(error)
        if recorder.failing_op is not None:
            name, specs = recorder.failing_op
            said = f"{said.rstrip('.')} ({name} of {_describe(specs)})"
        misfit = None
        if failure is not None and failure.module is not None:
            misfit = find_misfit(failure.module, path, next(tensor_specs(given), None))
        lead = "" if misfit is None else f"{misfit}: "
        message = f"{lead}{where} raised, given {_describe(given)}: {said}"
        raise ForwardError(message, module=path, misfit=misfit) from error


# What torch says where there is no CUDA device.
_NO_CUDA = ("Torch not compiled with CUDA enabled", "Found no NVIDIA driver", "No CUDA GPUs are available")


def _fault_of_code(error: Exception, module: object) -> str | None:
    """A mistake in the model's code that no input mends, with its line; None for other errors."""
    if any(text in str(error) for text in _NO_CUDA):
        place = _last_own_line(error)
        return None if place is None else (
            f"{place} moves a tensor to a CUDA device in forward(), and this machine has none: take the device of an "
            "input (x.device), or make the tensor a buffer of the module"
        )  # fmt: skip
    if isinstance(error, NotImplementedError) and 'is missing the required "forward" function' in str(error):
        kind = type(module)
        file, line = _place_of_class(kind)
        name = source_line(file, line)
        close = get_close_matches("forward", [name for name in vars(kind) if name != "forward"], n=1)
        meant = f"; did you mean '{close[0]}'?" if close else ""
        return f"{kind.__name__}{f' ({name})' if name else ''} has no forward(){meant}"
    return None


def _last_own_line(error: BaseException) -> str | None:
    """The innermost line of the model's code that an error came through: "net.py:9 (`x = x.cuda()`)"."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        place = source_line(frame.f_code.co_filename, line)
        if place is not None:
            text = linecache.getline(frame.f_code.co_filename, line).strip()
            return f"{place} (`{text}`)" if text else place
    return None


def _place_of_class(kind: type) -> tuple[str, int | None]:
    """The file and line of a class; an empty name where it has no source."""
    try:
        return inspect.getfile(kind), inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):
        return "", None


def _compares_types(error: BaseException) -> bool:
    """Whether a function of the model that it went through has code like `type(x) == torch.Tensor`, which is false for
    a fake tensor."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [frame for frame in frames if source_line(frame.f_code.co_filename, frame.f_lineno) is not None]
    return any({"type", "Tensor"} <= set(frame.f_code.co_names) for frame in own)


@contextmanager
def step_errors(recorder: Recorder) -> Iterator[None]:
    """Errors of a backward pass or an optimizer, raised like those of the forward."""
    try:
        yield
    except (DataDependent, TorchgaugeError):
        raise
    except Exception as error:  # of the user's autograd functions too
        if any(text in str(error) for text in _READS_MEMORY):
            raise DataDependent(FOREIGN_READ) from error
        raise ForwardError(f"the {recorder.phase} step raised: {first_line(error)}") from error


def clear_traceback(error: BaseException | None, seen: set[int] | None = None) -> None:
    """Empty the frames that an error, and those behind it, came through: they hold the tensors of the run."""
    seen = set() if seen is None else seen
    if error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        clear_traceback(error.__cause__, seen)
        clear_traceback(error.__context__, seen)


def _describe(structure: object) -> str:
    specs = list(tensor_specs(structure))
    if not specs:
        return "no tensors"
    return ", ".join(f"{units.format_shape(spec.shape)} {spec.dtype}" for spec in specs[:6])


# Models of one kind are often made for one of these sizes.
_USUAL_SIZES = (224, 256, 299, 384, 512, 128, 160, 192, 96, 64, 32, 28, 48, 16)
_LARGEST_SIZE, _MAX_TRIALS, _MAX_SECONDS = 4096, 40, 10.0
_MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Misfit:
    """`layer` takes `needed` of what it calls `unit`, and got `got`."""

    layer: str
    unit: str
    needed: int
    got: int

    def __str__(self) -> str:
        return f"{self.layer} takes {self.needed} {self.unit} and got {self.got}"


def find_misfit(module: object, path: str, spec: TensorSpec | None) -> Misfit | None:
    """The mismatch between a layer of torch and the shape it was given; None if its attributes do not show one."""
    if spec is None:
        return None
    shape, name = spec.shape, path or type(module).__name__
    kind = str(attribute_of(module, "original_name", type(module).__name__))
    spatial = next((int(kind[at - 1]) for at in [kind.find("d")] if at > 0 and kind[at - 1 : at].isdigit()), None)
    # The attribute that says what a layer takes, the word for it, and the dimension it is about.
    takes: tuple[str, str, int | None] | None = None
    if "Conv" in kind and spatial is not None:
        takes = "in_channels", "channels", -spatial - 1
    elif "Norm" in kind and spatial is not None:
        # One dimension may be missing: (batch, features).
        takes = "num_features", "channels", 1 if len(shape) > 1 else None
    elif kind == "GroupNorm":
        takes = "num_channels", "channels", 1 if len(shape) > 1 else None
    elif "Linear" in kind:
        takes = "in_features", "features", -1
    elif kind in ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"):
        takes = "input_size", "features", -1
    elif kind == "MultiheadAttention":
        takes = "embed_dim", "features", -1
    if takes is not None:
        attribute, unit, place = takes
        needed = getattr(module, attribute, None)
        if isinstance(needed, int) and not isinstance(needed, bool):
            if place is None or not -len(shape) <= place < len(shape):
                return None
            if shape[place] != needed:
                return Misfit(name, unit, needed, shape[place])
    wanted = attribute_of(module, "normalized_shape")
    if isinstance(wanted, tuple) and shape[-len(wanted) :] != wanted:
        return Misfit(name, "features", prod(wanted), prod(shape[-len(wanted) :]))
    return None


# Runs a candidate: None where it works, the misfit where a layer got the wrong size, False for any other error.
Trial = Callable[[Candidate], "Misfit | bool | None"]


def fitting_input(candidate: Candidate, misfit: Misfit, attempt: Trial) -> Candidate | None:
    """The candidate with a shape of its main input for which the model runs; None where none is found."""
    if not _shape(candidate):
        return None
    deadline, left = time.monotonic() + _MAX_SECONDS, _MAX_TRIALS

    def tried(changed: Candidate) -> Misfit | bool | None:
        nonlocal left
        left -= 1
        return False if left < 0 or time.monotonic() > deadline else attempt(changed)

    for _ in range(_MAX_ROUNDS):
        following: tuple[Candidate, Misfit] | None = None
        for shape in _direct(_shape(candidate), misfit):
            changed = _with_shape(candidate, shape)
            outcome = tried(changed)
            if outcome is None:
                return changed
            # This layer is satisfied: another one is next.
            if isinstance(outcome, Misfit) and following is None and outcome.layer != misfit.layer:
                following = changed, outcome
        found = _by_size(candidate, misfit, tried)
        if found is not None or following is None:
            return found
        candidate, misfit = following
    return None


def _direct(shape: tuple[int, ...], misfit: Misfit) -> Iterator[tuple[int, ...]]:
    """Shapes in which the wrong size is replaced by the needed one."""
    if len(shape) > 2 and prod(shape[1:]) == misfit.needed:
        yield (shape[0], misfit.needed)
    if misfit.unit == "channels" and len(shape) >= 3:
        if shape[-1] == misfit.needed:  # channels last
            yield (shape[0], shape[-1], *shape[1:-1])
            yield (shape[-1], *shape[:-1])
        places = [place for place in (1, 0) if place < len(shape) and shape[place] == misfit.got]
    else:
        places = [place for place in (len(shape) - 1, 1) if 0 <= place < len(shape) and shape[place] == misfit.got]
    for place in places:
        yield (*shape[:place], misfit.needed, *shape[place + 1 :])


def _by_size(candidate: Candidate, misfit: Misfit, tried: Trial) -> Candidate | None:
    """Bisect the pixels of a square image or the samples of a signal: the size at the layer grows with them."""
    shape = _shape(candidate)
    if len(shape) < 3:
        return None

    def sized(size: int) -> Candidate:
        return _with_shape(candidate, (*shape[:2], *(size for _ in shape[2:])))

    def outcome(size: int) -> int:
        """-1: too small, or it fails for another reason; 1: too large; 0: it runs."""
        found = tried(sized(size))
        if found is None:
            return 0
        return 1 if isinstance(found, Misfit) and found.layer == misfit.layer and found.got > misfit.needed else -1

    low, high = 0, _LARGEST_SIZE
    while high - low > 1:
        middle = (low + high) // 2
        found = outcome(middle)
        if found == 0:
            usual = next((size for size in _USUAL_SIZES if low < size < high and outcome(size) == 0), middle)
            return sized(usual)
        low, high = (middle, high) if found < 0 else (low, middle)
    return None


def _main_input(candidate: Candidate) -> tuple[int, Tensor] | None:
    """The first floating tensor among the arguments, and its position."""
    values = enumerate((*candidate.args, *candidate.kwargs.values()))
    found = ((place, value) for place, value in values if isinstance(value, Tensor) and value.is_floating_point())
    return next(found, None)


def _shape(candidate: Candidate) -> tuple[int, ...]:
    found = _main_input(candidate)
    return () if found is None else tuple(found[1].shape)


def _with_shape(candidate: Candidate, shape: tuple[int, ...]) -> Candidate:
    """The candidate with another shape for its main input, which has no values then."""
    found = _main_input(candidate)
    assert found is not None, "asked only for a candidate that has a shape"
    values = [*candidate.args, *candidate.kwargs.values()]
    values[found[0]] = torch.empty(shape, dtype=found[1].dtype, device="meta")
    count = len(candidate.args)
    kwargs = dict(zip(candidate.kwargs, values[count:], strict=True))
    return replace(candidate, args=tuple(values[:count]), kwargs=kwargs)


def shape_text(candidate: Candidate) -> str:
    return format_shape(_shape(candidate))


_VIEWS = ("aten::view", "aten::reshape", "aten::_reshape_alias", "aten::_unsafe_view")


def fixed_batch(fits: Candidate, misfit: Misfit, attempt: Trial, ops: Sequence[OpRecord]) -> str | None:
    """The line that gives a batch another size, where an input that was found by trying fits for its own batch alone:
    then its size follows from that line, not from the model."""
    shape = _shape(fits)
    if not shape or attempt(_with_shape(fits, (2 * shape[0], *shape[1:]))) is None:
        return None
    for op in ops:
        if op.module == misfit.layer:
            return None
        signature = op.signature
        before, after = (specs[0].shape if specs else () for specs in (signature.inputs, signature.outputs))
        if signature.op in _VIEWS and op.source and before[:1] == shape[:1] != after[:1]:
            shapes = f"{format_shape(before)} to {format_shape(after)}"
            return f"{op.source} turns a batch of {before[0]} into one of {after[0]} ({shapes})"
    return None
