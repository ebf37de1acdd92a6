"""The inputs to try on a model, the most plausible first: given, from the model itself, its config or its layers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchgauge.errors import InputError, UsageError
from torchgauge.nested import replace_all
from torchgauge.source.attributes import attribute_of
from torchgauge.source.candidate import (
    Assignment,
    Candidate,
    Defaults,
    ForwardSignature,
    Guess,
    Parameter,
    companion,
    explain,
    forward_signature,
    is_companion,
    is_image,
    is_text,
    model_dtype,
    words,
)
from torchgauge.source.first_layer import TRACED_LENGTHS, Entry, class_names, entries, image_sizes
from torchgauge.source.huggingface_inputs import huggingface_assignments
from torchgauge.source.torchscript_inputs import script_assignments
from torchgauge.source.user_inputs import InputSpec, given_values, holds_tensor, parse_sizes, sized_candidates

MAX_CANDIDATES = 12
_EXAMPLES = ("example_input_array", "example_inputs", "dummy_inputs")


@dataclass(frozen=True)
class GivenInputs:
    """The user's inputs: the arguments of `candidate_inputs`."""

    input_size: object = None
    inputs: object = None
    kwargs: Mapping[str, object] | None = None
    dtype: torch.dtype | None = None
    batch: int | None = None
    seq: int | None = None
    specs: Sequence[InputSpec] = ()

    @property
    def has_shapes(self) -> bool:
        """Whether shapes or values are given."""
        return self.inputs is not None or self.input_size is not None or bool(self.specs)

    def candidates(self, model: nn.Module) -> Iterator[Candidate]:
        return candidate_inputs(model, **vars(self))


def candidate_inputs(
    model: nn.Module,
    *,
    input_size: object = None,
    inputs: object = None,
    kwargs: Mapping[str, object] | None = None,
    dtype: torch.dtype | None = None,
    batch: int | None = None,
    seq: int | None = None,
    specs: Sequence[InputSpec] = (),
) -> Iterator[Candidate]:
    """The inputs that the user gave, or at most a dozen inferred ones.

    `inputs` are values: a tuple of positional arguments, a dict of keywords, or a single argument of any other type
    (also a list, as detection models take). `input_size` is one shape, a list of shapes, or shapes by name. `specs` are
    those of the command line. Inferred floating-point tensors are on the meta device, integer tensors have values.
    """
    signature, kwargs = forward_signature(model), dict(kwargs or {})
    if sum((inputs is not None, input_size is not None, bool(specs))) > 1:
        raise UsageError("give the inputs either as values (inputs) or as sizes (input_size, --input)")
    is_given = inputs is not None or input_size is not None or bool(specs)
    if is_given and (batch is not None or seq is not None):
        raise UsageError("batch and seq only apply to inferred inputs; include them in the given sizes")
    if (batch is not None and batch < 1) or (seq is not None and seq < 1):
        raise UsageError("batch and seq must be at least 1")
    if inputs is not None:
        return iter([given_values(signature, inputs, kwargs)])
    defaults = Defaults(dtype or model_dtype(model), batch or 1, seq)
    sizes = parse_sizes(input_size) if input_size is not None else tuple(specs)
    if sizes:
        return islice(sized_candidates(model, signature, sizes, defaults, kwargs), MAX_CANDIDATES)
    if holds_tensor(kwargs) and not signature.required(kwargs):
        return iter([given_values(signature, None, kwargs)])
    exported = sys.modules.get("torchgauge.source.exported.model")  # if it is not loaded, no model is one
    if exported is not None and isinstance(model, exported.ExportedModel) and not kwargs and seq is None:
        return iter(model.candidates(batch))
    signature.check_names(kwargs)
    own = [] if kwargs or batch is not None or seq is not None else _own_examples(model, signature)
    return chain(own, _inferred(model, signature, defaults, kwargs))


def _own_examples(model: nn.Module, signature: ForwardSignature) -> Iterator[Candidate]:
    """Example inputs that the model defines, such as Lightning's `example_input_array`."""
    for name in _EXAMPLES:
        # Every model of transformers has dummy inputs of 3×5 tokens; inputs from its config are better.
        owner = next((base for base in type(model).__mro__ if name in vars(base)), None)
        if owner is not None and owner.__module__.startswith("transformers."):
            continue
        try:
            value = attribute_of(model, name)
            if inspect.ismethod(value):
                value = value()
            if holds_tensor(value):
                yield replace(given_values(signature, value, {}), reason=f"the model's own {name}")
        except Exception:  # user code may raise anything; inputs are then inferred
            continue


def _inferred(
    model: nn.Module, signature: ForwardSignature, defaults: Defaults, kwargs: dict[str, object]
) -> Iterator[Candidate]:
    if not defaults.dtype.is_floating_point:
        defaults = Defaults(model_dtype(model), defaults.batch, defaults.seq)
    if signature == ForwardSignature(()):  # as of a network over one graph that it holds
        yield Candidate((), {}, "forward takes no arguments")
        return

    def placed() -> Iterator[tuple[tuple[object, ...], dict[str, object], Assignment]]:
        """The most specific sources first (transformers configs), the layers last."""
        for assignment in huggingface_assignments(model, signature, defaults, kwargs):
            yield (), _values(assignment), assignment
        for find in (vision_assignments, script_assignments, layer_assignments):
            for assignment in find(model, signature, defaults, kwargs):
                yield *signature.place(_values(assignment)), assignment

    seen: set[str] = set()
    for args, keywords, assignment in placed():
        # Inputs with the same shapes and types need not be tried again.
        shapes = repr(replace_all(_values(assignment), Tensor, lambda tensor: (tuple(tensor.shape), tensor.dtype)))
        if shapes not in seen:
            seen.add(shapes)
            reason = "; ".join(explain(name, guess) for name, guess in assignment.items())
            yield Candidate(args, keywords | kwargs, reason)
        if len(seen) == MAX_CANDIDATES:
            return
    if not seen:
        needed = ", ".join(parameter.name for parameter in signature.required()) or ", ".join(signature.names[:1])
        takes = f", whose forward takes {needed}" if needed else ""
        raise InputError(
            f"no input could be inferred for {class_names(model)[0]}{takes}: "
            "give its size with input_size=(1, 3, 224, 224) or --input 1x3x224x224"
        )


def _values(assignment: Assignment) -> dict[str, object]:
    return {name: guess.value for name, guess in assignment.items()}


_FLOW_FRAME = (520, 960)  # Sintel frames padded to a multiple of 8, as RAFT's weights are evaluated
_SEGMENTATION_SIZE = 520  # the crop of torchvision's reference training
_CLIP = (16, 224, 224)


def vision_assignments(
    model: nn.Module, signature: ForwardSignature, defaults: Defaults, given: Collection[str]
) -> Iterator[Assignment]:
    """From torchvision's area of the model or timm's pretrained config. Only for models of these packages."""
    names = [parameter.name for parameter in signature.positional]
    if not names or names[0] in given:
        return
    # The channels of the first layer: a model may be built for other channels than its pretrained weights.
    first = next(entries(model), None)
    channels = getattr(first.layer, "in_channels", None) if first else None
    # `detection`, `video`, …; `resnet` and similar for classification; None for models of other packages.
    homes = (base.__module__.partition(".models.") for base in type(model).__mro__)
    area = next((rest.partition(".")[0] for package, _, rest in homes if package == "torchvision"), None)
    if area == "optical_flow" and len(names) > 1:
        guess = Guess(defaults.floats(defaults.batch, 3, *_FLOW_FRAME), "the frames of torchvision's optical flow")
        yield dict.fromkeys(names[:2], guess)
    elif area == "detection" and hasattr(model, "transform"):
        transform: Any = model.transform
        size = transform.fixed_size or (transform.min_size[-1], transform.min_size[-1])
        images = [defaults.floats(3, *size) for _ in range(defaults.batch)]
        yield {names[0]: Guess(images, "a list of images of the size the model's transform makes")}
    elif area is not None and channels is not None:
        size, source = _torchvision_size(model, area)
        yield {names[0]: Guess(defaults.floats(defaults.batch, channels, *size), source)}
    elif area is None:
        for guess in _timm(model, channels, defaults):
            yield {names[0]: guess}


def _torchvision_size(model: nn.Module, area: str) -> tuple[tuple[int, ...], str]:
    bases = {base.__name__ for base in type(model).__mro__}
    if area == "video":
        return (16, 112, 112) if "VideoResNet" in bases else _CLIP, "the clips of torchvision's video models"
    if area == "segmentation":
        return (_SEGMENTATION_SIZE, _SEGMENTATION_SIZE), "the crop of torchvision's segmentation models"
    if "Inception3" in bases:
        return (299, 299), "the crop of Inception v3"
    size = attribute_of(model, "image_size")
    if isinstance(size, int):
        return (size, size), "image_size of the model"
    return (224, 224), "the usual crop of torchvision's models"


# Images have up to a few channels (grey, RGB, RGB and depth, multispectral).
_MAX_IMAGE_CHANNELS = 16


def _timm(model: Any, channels: int | None, defaults: Defaults) -> Iterator[Guess]:
    config = attribute_of(model, "pretrained_cfg") or attribute_of(model, "default_cfg")
    size = config.get("input_size") if isinstance(config, dict) else None
    if not size:
        return
    if channels is not None and channels > _MAX_IMAGE_CHANNELS:
        channels = None  # the first convolution works on patches (space to depth, DCT): use the config's channels
    built_for = attribute_of(attribute_of(model, "patch_embed"), "img_size")
    if isinstance(built_for, tuple) and built_for != tuple(size[1:]):
        tensor = defaults.floats(defaults.batch, channels or size[0], *built_for)
        yield Guess(tensor, "img_size of the model's patch embedding")
    yield Guess(defaults.floats(defaults.batch, channels or size[0], *size[1:]), "input_size of the timm model")


_MAX_GUESSES_PER_PARAMETER = 8


def layer_assignments(
    model: nn.Module, signature: ForwardSignature, defaults: Defaults, given: Collection[str]
) -> Iterator[Assignment]:
    """Values for the required parameters, from the layers of any model: one is the data, the others accompany it."""
    # The required parameters of forward; if there are none, its first parameter.
    first = signature.positional[:1] or (Parameter("input", True),) * signature.takes_any_positional
    parameters = list(signature.required(given)) or [parameter for parameter in first if parameter.name not in given]
    if not parameters:
        return
    main = next((p for p in parameters if not is_companion(p)), parameters[0])
    others = [parameter for parameter in parameters if parameter is not main]
    layers = list(islice(entries(model), 64))
    for index, guess in enumerate(islice(_guesses(model, main, layers, defaults), _MAX_GUESSES_PER_PARAMETER)):
        # Values for the other parameters, given that of the main one.
        followers: Assignment = {}
        for parameter in others:
            # The layer whose path shares a word with the parameter's name.
            kind = _kind_named(parameter.name)
            named = [entry for entry in layers if _shares_word(parameter.name, entry.path)]
            own = next(iter(named or [entry for entry in layers if entry.rule.kind == kind]), None)
            if isinstance(model, nn.MultiheadAttention) and parameter.name in ("key", "value"):
                # Keys and values may have other widths.
                width = model.kdim if parameter.name == "key" else model.vdim
                tensor = defaults.floats(*guess.value.shape[:-1], width)
                followers[parameter.name] = Guess(tensor, f"its width in the {type(model).__name__}")
            elif is_companion(parameter):
                followers[parameter.name] = companion(model, parameter, main.name, guess.value, defaults)
            elif own is not None:
                # With as many dimensions as the main value, so that both are sequences or neither is.
                rank = guess.value.dim() if isinstance(guess.value, Tensor) else None
                guesses = list(own.guesses(defaults))
                followers[parameter.name] = next((each for each in guesses if each.value.dim() == rank), guesses[0])
            else:
                same = guess.value.clone() if isinstance(guess.value, Tensor) else guess.value
                followers[parameter.name] = Guess(same, f"the same as {main.name}")
        yield _ordered(parameters, {main.name: guess} | followers)
        if index == 0:
            yield from _distributed(parameters, main, others, layers, defaults)


def _guesses(model: nn.Module, parameter: Parameter, layers: Sequence[Entry], defaults: Defaults) -> Iterator[Guess]:
    """From the layers that most likely take this parameter, one of each kind; without layers, from bare weights."""
    if not layers:
        yield from weight_guesses(model, defaults)

    # Layers whose path shares a word with the parameter come first, then those of the kind its name suggests.
    def rank(entry: Entry) -> tuple[bool, bool]:
        return not _shares_word(parameter.name, entry.path), entry.rule.kind != _kind_named(parameter.name)

    kinds: dict[str, Entry] = {}
    for entry in sorted(layers, key=rank):
        # A norm that is not the first layer normalises the output of another layer.
        if entry.rule.kind != "norm" or not kinds:
            kinds.setdefault(entry.rule.kind, entry)
    for entry in kinds.values():
        for guess in entry.guesses(defaults):
            yield Guess(list(guess.value), f"one per sample, {guess.source}") if parameter.is_tensor_list else guess


def _shares_word(name: str, path: str) -> bool:
    """`user` and `user_embedding.weight`; single letters (`x`) are not words."""
    return any(len(word) > 2 and word in path.lower().replace(".", "_").split("_") for word in words(name))


def _kind_named(name: str) -> str | None:
    if is_image(name):
        return "convolution"
    return "embedding" if is_text(name) else None


def _distributed(
    parameters: Sequence[Parameter],
    main: Parameter,
    others: Sequence[Parameter],
    layers: Sequence[Entry],
    defaults: Defaults,
) -> Iterator[Assignment]:
    """For two data parameters: both share the first layer's width, or the second one enters a later layer."""
    plain = [parameter for parameter in others if not is_companion(parameter)]
    if len(plain) != 1 or len(others) != 1 or not layers:
        return
    first = next(layers[0].guesses(defaults))
    if layers[0].rule.kind == "linear" and first.value.shape[-1] % 2 == 0:
        half = Guess(defaults.floats(*first.value.shape[:-1], first.value.shape[-1] // 2), f"half: {first.source}")
        yield _ordered(parameters, {main.name: half, plain[0].name: half})
    for entry in layers[1:4]:
        guess = next(entry.guesses(defaults))
        yield _ordered(parameters, {main.name: first, plain[0].name: guess})


def _ordered(parameters: Sequence[Parameter], assignment: Assignment) -> Assignment:
    return {parameter.name: assignment[parameter.name] for parameter in parameters}


def weight_guesses(model: nn.Module, defaults: Defaults) -> Iterator[Guess]:
    """From the first parameter, as the weight of a convolution or of a matmul on either side."""
    name, weight = next(iter(model.named_parameters()), (None, None))
    if name is None or weight is None or is_lazy(weight):
        return
    source = f"the shape of the parameter '{name}'"
    # A traced layer has only kept the name of its class.
    owner = dict(model.named_modules()).get(name.rpartition(".")[0])
    is_table = attribute_of(owner, "original_name", type(owner).__name__) == "Embedding"
    if is_table:
        for length in (defaults.seq,) if defaults.seq else TRACED_LENGTHS:
            yield Guess(defaults.ids(defaults.batch, length), f"'{name}' is the table of an embedding")
    shapes: list[tuple[int, ...]] = []
    if weight.dim() == 4:
        shapes = [(weight.shape[1], size, size) for size in image_sizes(weight.shape[1])[:3]]
    elif weight.dim() == 2:
        for features in dict.fromkeys((weight.shape[1], weight.shape[0])):
            shapes += [(features,), (defaults.seq or 16, features)]
    elif weight.dim() == 1:
        shapes = [(weight.shape[0],)]
    for shape in shapes:
        yield Guess(defaults.floats(defaults.batch, *shape), source)
