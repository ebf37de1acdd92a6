"""Calls the model, and says where it failed: the module, what it was given, the op and its shapes."""

from __future__ import annotations

import traceback
from typing import Any

from torch import nn

from torchgauge import units
from torchgauge.capture.misfit import find_misfit
from torchgauge.capture.recorder import Recorder, describe_call
from torchgauge.capture.signals import WORKS_ON_SPARSE, DataDependent
from torchgauge.errors import ForwardError
from torchgauge.facts import TensorSpec, tensor_specs

# What torch says where C++ code asks for the memory of a tensor that has none.
_READS_MEMORY = ("data is not allocated yet", "on an invalid python storage", "Cannot access data pointer")


def call_model(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], recorder: Recorder, *, is_real: bool = False
) -> Any:
    try:
        return model(*args, **kwargs)
    except (DataDependent, ForwardError):
        raise
    except Exception as error:  # whatever the user's code raises
        path = recorder.failure.path if recorder.failure else ""
        if any(text in str(error) for text in _READS_MEMORY):
            raise DataDependent("C++ code that reads the memory of a tensor", path) from error
        is_sparse = recorder.has_sparse or any(spec.is_sparse for op in recorder.ops for spec in op.signature.outputs)
        if is_sparse and not is_real:
            # A fake tensor knows how many elements are stored, but C++ code takes it for a dense tensor.
            raise DataDependent(str(error).partition("\n")[0], path, WORKS_ON_SPARSE) from error
        raise _forward_error(error, recorder, args, kwargs) from error


def let_go(error: BaseException | None, seen: set[int] | None = None) -> None:
    """Empty the frames that an error, and those behind it, came through: they hold the tensors of the run."""
    seen = set() if seen is None else seen
    if error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        let_go(error.__cause__, seen)
        let_go(error.__context__, seen)


def _forward_error(error: Exception, recorder: Recorder, args: Any, kwargs: Any) -> ForwardError:
    failure = recorder.failure
    path = failure.path if failure else ""
    where = f"forward() of '{path}' ({failure.type})" if failure and path else "forward()"
    given = failure.inputs if failure else describe_call(args, kwargs)
    told = str(error).strip().splitlines()
    said = told[0] if told else type(error).__name__
    if recorder.failing_op is not None:
        op, specs = recorder.failing_op
        said = f"{said.rstrip('.')} ({op} of {_describe(specs)})"
    misfit = None
    if failure is not None and failure.module is not None:
        misfit = find_misfit(failure.module, path, next(tensor_specs(given), None))
    lead = "" if misfit is None else f"{misfit}: "
    text = f"{lead}{where} raised, given {_describe(given)}: {said}"
    return ForwardError(text, module=path, misfit=misfit)


def _describe(structure: Any) -> str:
    specs: list[TensorSpec] = list(tensor_specs(structure))
    if not specs:
        return "no tensors"
    return ", ".join(f"{units.format_shape(spec.shape)} {spec.dtype}" for spec in specs[:6])
