"""Candidate inputs: their tensors, the signature of forward, and the meaning of its parameter names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import chain, takewhile
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from torchgauge.errors import InputError, first_line
from torchgauge.nested import find_all
from torchgauge.source.modules import all_modules
from torchgauge.source.torchscript.graphs import frozen_tensors
from torchgauge.units import format_shape

# The largest input with values; ids and masks need a few MB.
MAX_REAL_INPUT_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Candidate:
    """Arguments for one call of the model. `reason` describes the assumptions; None if the user gave everything.

    `has_values`: they are real inputs, not tensors that were made for their shapes.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reason: str | None
    has_values: bool = False


@dataclass(frozen=True, slots=True)
class Guess:
    """A value for one parameter of forward, and its origin."""

    value: Any
    source: str


# Guesses by the name of the forward parameter they fill.
Assignment = dict[str, Guess]


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults that the user may override; with `seq` None, the model determines the length of a sequence."""

    dtype: torch.dtype
    batch: int = 1
    seq: int | None = None

    def floats(self, *shape: int) -> Tensor:
        """A tensor without values: nothing is computed from them."""
        return make_tensor(shape, self.dtype)

    def ids(self, *shape: int, value: int = 1) -> Tensor:
        """A tensor with values, because models read their ids, masks and positions."""
        return make_tensor(shape, torch.int64, value=value)


def make_tensor(shape: tuple[int, ...], dtype: torch.dtype, *, value: int = 1) -> Tensor:
    """A floating-point tensor without values, or an integer tensor filled with `value`. Shapes may come from a file."""
    try:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.empty(shape, dtype=dtype, device="meta")
        if prod(shape) * dtype.itemsize > MAX_REAL_INPUT_BYTES:
            raise InputError(f"an input of {format_shape(shape)} {str(dtype).removeprefix('torch.')} is too large")
        return torch.full(shape, value, dtype=dtype, device="cpu")
    # Negative sizes, sizes whose product exceeds 64 bits, values out of range for the type.
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"an input of the shape {shape} cannot be made: {first_line(error)}") from error


def model_dtype(model: nn.Module) -> torch.dtype:
    """The type of the first floating-point parameter, or of the first floating-point buffer, or torch's default."""
    modules = all_modules(model)
    frozen: Iterator[Tensor] = iter(())
    if isinstance(model, torch.jit.ScriptModule) and model._c._has_method("forward"):
        # Constants that were parameters before the model was frozen.
        frozen = (each.tensor for each in frozen_tensors(model._c._get_method("forward").graph))
    held = (t for name in ("_parameters", "_buffers") for module in modules for t in getattr(module, name).values())
    tensors = chain((t for t in held if t is not None), frozen)
    # Types of 8 bits and less are only for storage; inputs never have them.
    return next((t.dtype for t in tensors if t.is_floating_point() and t.dtype.itemsize > 1), torch.get_default_dtype())


def token_value(model: nn.Module) -> int:
    """An id that every embedding of the model has: 1, or 0 if one has a single entry."""
    sizes = [module.num_embeddings for module in all_modules(model) if isinstance(module, nn.Embedding)]
    return min(1, *(size - 1 for size in sizes)) if sizes else 1


def explain(name: str, guess: Guess) -> str:
    """`x 1×3×224×224: the first layer …`."""
    shapes = " and ".join(format_shape(tensor.shape) for tensor in find_all(guess.value, Tensor))
    return f"{name} {shapes}: {guess.source}" if shapes else f"{name} {guess.value!r}: {guess.source}"


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    is_required: bool
    annotation: str = ""
    is_keyword_only: bool = False

    @property
    def is_tensor_list(self) -> bool:
        return self._plain_annotation == "list[tensor]"

    @property
    def is_tensor_dict(self) -> bool:
        return self._plain_annotation.replace(" ", "") in ("dict[str,tensor]", "mapping[str,tensor]")

    @property
    def _plain_annotation(self) -> str:
        return self.annotation.replace("torch.", "").replace("typing.", "").lower()


@dataclass(frozen=True, slots=True)
class ForwardSignature:
    """The parameters of forward; `*args` and `**kwargs` are flags."""

    parameters: tuple[Parameter, ...]
    takes_any_positional: bool = False
    takes_any_keyword: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def positional(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if not parameter.is_keyword_only)

    def required(self, given: Collection[str] = ()) -> tuple[Parameter, ...]:
        """The parameters without a default that are not given yet."""
        return tuple(p for p in self.parameters if p.is_required and p.name not in given)

    def place(self, values: dict[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
        """Split values into positional and keyword arguments: positional up to the first gap, so that `*args` works."""
        places = [parameter.name for parameter in self.positional] or list(values)[: self.takes_any_positional]
        leading = list(takewhile(values.__contains__, places))
        return tuple(values[name] for name in leading), {n: v for n, v in values.items() if n not in leading}

    def check(self, positional: int, keywords: Collection[str]) -> None:
        """Raise `InputError` unless forward takes this number of positional arguments and these keywords."""
        places = [parameter.name for parameter in self.positional]
        if positional > len(places) and not self.takes_any_positional:
            inputs = "input is" if positional == 1 else "inputs are"
            raise InputError(f"{positional} positional {inputs} given, but forward takes {self._listing()}")
        filled = places[:positional]
        for name in keywords:
            if name in filled:
                raise InputError(f"the input '{name}' is given twice: by position and by name")
        self.check_names(keywords)
        missing = [parameter.name for parameter in self.required({*filled, *keywords})]
        if missing:
            raise InputError(f"forward also needs {', '.join(missing)}: give them as inputs or keywords")

    def check_names(self, keywords: Collection[str]) -> None:
        """Raise `InputError` for a keyword that forward does not take."""
        unknown = [] if self.takes_any_keyword else [name for name in keywords if name not in self.names]
        if unknown:
            raise InputError(f"forward has no parameter '{unknown[0]}': it takes {self._listing()}")

    def _listing(self) -> str:
        return ", ".join(self.names) or "no arguments"


def forward_signature(model: nn.Module) -> ForwardSignature:
    """The signature of forward; that of the wrapped function under `functools.wraps`, the schema of a scripted
    model."""
    # A scripted module with overloads, like a bare LSTM, has no single forward to read.
    if isinstance(model, torch.jit.ScriptModule) and hasattr(model, "forward"):
        forward: Any = model.forward
        _, *arguments = forward.schema.arguments  # the first is the module, whatever its name
        return ForwardSignature(
            tuple(
                Parameter(a.name, not a.has_default_value(), str(a.type), getattr(a, "kwarg_only", False))
                for a in arguments
            )
        )
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (AttributeError, ValueError):  # compiled extensions have no signature
        return ForwardSignature((), takes_any_positional=True, takes_any_keyword=True)
    named = []
    for p in parameters:
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            annotation = p.annotation.__name__ if isinstance(p.annotation, type) else str(p.annotation)
            annotation = "" if p.annotation is p.empty else annotation
            named.append(Parameter(p.name, p.default is p.empty, annotation, p.kind is p.KEYWORD_ONLY))
    return ForwardSignature(
        tuple(named),
        takes_any_positional=any(p.kind is p.VAR_POSITIONAL for p in parameters),
        takes_any_keyword=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


def words(name: str) -> frozenset[str]:
    """The words of a name, lower case and without digits: `src_ids2` has `src` and `ids`."""
    return frozenset(re.sub(r"[0-9]", "", word) for word in name.lower().split("_"))


def _named(*known: str) -> Callable[[str], bool]:
    """Whether a name has one of these words."""
    return lambda name: not words(name).isdisjoint(known)


_IDS = ("ids", "tokens")
is_ids = _named(*_IDS)  # certainly integer, whatever the model
# Integer if the model has an embedding to look it up in.
is_text = _named(*_IDS, "id", "idx", "token", "text", "texts", "words", "sentence", "sentences", "src", "tgt", "codes")
is_image = _named("image", "images", "img", "imgs", "pixel", "pixels", "picture", "frame", "frames", "video", "videos")
is_mask = _named("mask", "masks")
is_length = _named("length", "lengths", "len", "lens")
is_time = _named("timestep", "timesteps", "t", "ts", "time", "times")
is_label = _named("label", "labels", "class", "classes")
is_state = _named("hidden", "state", "states", "hx", "h", "hc")
_PLAIN = {"int": 1, "bool": False, "float": 1.0}


def is_companion(parameter: Parameter) -> bool:
    """Whether the parameter accompanies the data (a mask, length, time step, label, state), by name or annotation."""
    by_name = (is_mask, is_length, is_time, is_label, is_state)
    return parameter.annotation in _PLAIN or any(says(parameter.name) for says in by_name)


def companion(model: nn.Module, parameter: Parameter, main: str, value: object, defaults: Defaults) -> Guess:
    """A value that fits the main parameter's `value`."""
    if parameter.annotation in _PLAIN:
        return Guess(_PLAIN[parameter.annotation], f"annotated as {parameter.annotation}")
    leading = tuple(value.shape[:2]) if isinstance(value, Tensor) and value.dim() else (defaults.batch,)
    if is_mask(parameter.name):
        return Guess(make_tensor(leading, torch.bool), f"nothing masked in {main}")
    if is_length(parameter.name):
        return Guess(defaults.ids(defaults.batch, value=leading[-1]), f"the full length of {main}")
    if not is_state(parameter.name):
        return Guess(defaults.ids(defaults.batch, value=0), "one number per sample, from its name")
    layer: Any = next((m for m in model.modules() if isinstance(m, nn.RNNBase | nn.RNNCellBase)), None)
    if layer is None:
        return Guess(value.clone() if isinstance(value, Tensor) else value, f"the same as {main}")
    states: tuple[int, ...] = (defaults.batch,)
    if isinstance(layer, nn.RNNBase):
        states = (layer.num_layers * (2 if layer.bidirectional else 1), defaults.batch)
    cell = defaults.floats(*states, layer.hidden_size)
    hidden = defaults.floats(*states, getattr(layer, "proj_size", 0) or layer.hidden_size)
    is_pair = isinstance(layer, nn.LSTM | nn.LSTMCell)
    return Guess((hidden, cell) if is_pair else hidden, f"the state of the {type(layer).__name__}")
