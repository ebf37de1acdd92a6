"""The inputs to try on a model, most plausible first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from torchgauge.errors import InputError, UsageError
from torchgauge.source.candidate import Assignment, Candidate, Defaults, explain, model_dtype
from torchgauge.source.exported.model import ExportedModel
from torchgauge.source.huggingface_inputs import huggingface_assignments
from torchgauge.source.layer_assignments import layer_assignments
from torchgauge.source.layers import class_names
from torchgauge.source.signature import ForwardSignature, forward_signature
from torchgauge.source.torchscript_inputs import script_assignments
from torchgauge.source.user_inputs import InputSpec, given_values, holds_tensor, parse_sizes, sized_candidates
from torchgauge.source.vision_inputs import vision_assignments

MOST = 12
_EXAMPLES = ("example_input_array", "example_inputs", "dummy_inputs")


def candidate_inputs(
    model: nn.Module,
    *,
    input_size: Any = None,
    inputs: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
    batch: int | None = None,
    seq: int | None = None,
    specs: Sequence[InputSpec] = (),
) -> Iterator[Candidate]:
    """What the user gave, or what the model lets one infer, at most a dozen.

    `inputs` are values: a tuple holds the positional arguments, a dict the keywords, anything else (a list too, as
    detection models want) is one argument. `input_size` is one shape, a list of shapes, or shapes by name. `specs` are
    the command line's. Inferred floating tensors are on the meta device, integer ones are real.
    """
    signature, kwargs = forward_signature(model), dict(kwargs or {})
    if sum((inputs is not None, input_size is not None, bool(specs))) > 1:
        raise UsageError("give the inputs one way: as values (inputs) or as sizes (input_size, --input)")
    is_given = inputs is not None or input_size is not None or bool(specs)
    if is_given and (batch is not None or seq is not None):
        raise UsageError("batch and seq change inferred inputs: where inputs are given, write them into the sizes")
    if (batch is not None and batch < 1) or (seq is not None and seq < 1):
        raise UsageError("batch and seq are at least 1")
    if inputs is not None:
        return iter([given_values(signature, inputs, kwargs)])
    defaults = Defaults(dtype or model_dtype(model), batch or 1, seq)
    sizes = parse_sizes(input_size) if input_size is not None else tuple(specs)
    if sizes:
        return islice(sized_candidates(model, signature, sizes, defaults, kwargs), MOST)
    if holds_tensor(kwargs) and not signature.required(kwargs):
        return iter([given_values(signature, None, kwargs)])
    if isinstance(model, ExportedModel) and not kwargs and seq is None:
        return iter(model.candidates(batch))
    signature.check_names(kwargs)
    own = [] if kwargs or batch is not None or seq is not None else _own_examples(model, signature)
    return chain(own, _inferred(model, signature, defaults, kwargs))


def _own_examples(model: nn.Module, signature: ForwardSignature) -> Iterator[Candidate]:
    """Inputs that the model itself has for such an occasion, as Lightning's `example_input_array`."""
    for name in _EXAMPLES:
        # Every model of transformers has dummy inputs, three lines of five tokens: what its config says is better.
        owner = next((base for base in type(model).__mro__ if name in vars(base)), None)
        if owner is not None and owner.__module__.startswith("transformers."):
            continue
        try:
            value = getattr(model, name, None)
            if holds_tensor(value):
                yield replace(given_values(signature, value, {}), reason=f"the model's own {name}")
        except (InputError, AttributeError, TypeError, NotImplementedError):
            continue


def _inferred(
    model: nn.Module, signature: ForwardSignature, defaults: Defaults, kwargs: dict[str, Any]
) -> Iterator[Candidate]:
    if not defaults.dtype.is_floating_point:
        defaults = Defaults(model_dtype(model), defaults.batch, defaults.seq)
    seen: set[str] = set()
    for args, keywords, assignment in _placed(model, signature, defaults, kwargs):
        # Equal for inputs that differ in no shape or type: one that failed need not be tried again.
        shapes = repr({name: tree_map(_shape_and_type, guess.value) for name, guess in assignment.items()})
        if shapes not in seen:
            seen.add(shapes)
            reason = "; ".join(explain(name, guess) for name, guess in assignment.items())
            yield Candidate(args, keywords | kwargs, reason)
        if len(seen) == MOST:
            return
    if not seen:
        needed = ", ".join(parameter.name for parameter in signature.required()) or ", ".join(signature.names[:1])
        takes = f", whose forward takes {needed}" if needed else ""
        nothing_inferred = (
            f"no input could be inferred for {class_names(model)[0]}{takes}: "
            f"give its size with input_size=(1, 3, 224, 224) or --input 1x3x224x224"
        )
        raise InputError(nothing_inferred)


def _placed(
    model: nn.Module, signature: ForwardSignature, defaults: Defaults, given: Collection[str]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any], Assignment]]:
    """From those who know the model best to those who look at its layers."""
    for assignment in huggingface_assignments(model, signature, defaults, given):
        yield (), _values(assignment), assignment
    for find in (vision_assignments, script_assignments, layer_assignments):
        for assignment in find(model, signature, defaults, given):
            yield *signature.place(_values(assignment)), assignment


def _values(assignment: Assignment) -> dict[str, Any]:
    return {name: guess.value for name, guess in assignment.items()}


def _shape_and_type(value: Any) -> Any:
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else value
