"""Inputs inferred from the layers or bare parameters of any model and the names of its forward parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchgauge.source.candidate import Assignment, Defaults, Guess
from torchgauge.source.layers import Entry, entries, image_sizes
from torchgauge.source.parameter_roles import companion, is_companion, is_image, is_text, words
from torchgauge.source.signature import ForwardSignature, Parameter

_MOST_PER_PARAMETER = 8


def layer_assignments(
    model: nn.Module, signature: ForwardSignature, defaults: Defaults, given: Collection[str]
) -> Iterator[Assignment]:
    """The required parameters filled: one carries the data, the others go with it."""
    # What forward requires; where it requires nothing, its first parameter.
    first = signature.positional[:1] or (Parameter("input", True),) * signature.takes_any_positional
    parameters = list(signature.required(given)) or [parameter for parameter in first if parameter.name not in given]
    if not parameters:
        return
    main = next((p for p in parameters if not is_companion(p)), parameters[0])
    others = [parameter for parameter in parameters if parameter is not main]
    layers = list(islice(entries(model), 64))
    for index, guess in enumerate(islice(_guesses(model, main, layers, defaults), _MOST_PER_PARAMETER)):
        # Values for the other parameters, given that of the main one.
        followers: Assignment = {}
        for parameter in others:
            # The layer that the parameter's name points to.
            kind = _kind_named(parameter.name)
            named = [entry for entry in layers if _shares_word(parameter.name, entry.path)]
            own = next(iter(named or [entry for entry in layers if entry.rule.kind == kind]), None)
            # Keys and values may have other widths.
            attributes = {"key": "kdim", "value": "vdim"}
            width = (
                getattr(model, attributes[parameter.name])
                if isinstance(model, nn.MultiheadAttention) and parameter.name in attributes
                else None
            )
            if width is not None:
                tensor = defaults.floats(*guess.value.shape[:-1], width)
                followers[parameter.name] = Guess(tensor, f"its width in the {type(model).__name__}")
            elif is_companion(parameter):
                followers[parameter.name] = companion(model, parameter, main.name, guess.value, defaults)
            elif own is not None:
                followers[parameter.name] = _like(guess.value, list(own.guesses(defaults)))
            else:
                same = guess.value.clone() if isinstance(guess.value, Tensor) else guess.value
                followers[parameter.name] = Guess(same, f"the same as {main.name}")
        yield _ordered(parameters, {main.name: guess} | followers)
        if index == 0:
            yield from _distributed(parameters, main, others, layers, defaults)


def _guesses(model: nn.Module, parameter: Parameter, layers: Sequence[Entry], defaults: Defaults) -> Iterator[Guess]:
    """From the layers that this parameter most likely enters, one layer of each kind; else from bare weights."""
    if not layers:
        yield from weight_guesses(model, defaults)

    # Layers whose path shares a word with the parameter come first, then those of the kind its name suggests.
    def rank(entry: Entry) -> tuple[bool, bool]:
        return not _shares_word(parameter.name, entry.path), entry.rule.kind != _kind_named(parameter.name)

    kinds: dict[str, Entry] = {}
    for entry in sorted(layers, key=rank):
        # A norm that is not the first layer normalises the output of another.
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


def _like(main: object, guesses: Sequence[Guess]) -> Guess:
    """The guess with as many dimensions as the main value, so that ids of both are sequences or neither is."""
    rank = main.dim() if isinstance(main, Tensor) else None
    return next((guess for guess in guesses if guess.value.dim() == rank), guesses[0])


def _distributed(
    parameters: Sequence[Parameter],
    main: Parameter,
    others: Sequence[Parameter],
    layers: Sequence[Entry],
    defaults: Defaults,
) -> Iterator[Assignment]:
    """Two data parameters of different kinds: both share the first layer's width, or the second enters a later one."""
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


_LENGTHS = (128, 16, 8, 32, 64, 512)


def weight_guesses(model: nn.Module, defaults: Defaults) -> Iterator[Guess]:
    """What the first parameter suggests, as the weight of a convolution or of a matmul from either side."""
    name, weight = next(iter(model.named_parameters()), (None, None))
    if name is None or weight is None or is_lazy(weight):
        return
    source = f"the shape of the parameter '{name}'"
    # Whether a parameter is that of an embedding; a traced layer has kept only the name of its class.
    owner = dict(model.named_modules()).get(name.rpartition(".")[0])
    is_table = getattr(owner, "original_name", type(owner).__name__) == "Embedding"
    if is_table:
        # A trace has the length it was made with in its graph: several are tried.
        for length in (defaults.seq,) if defaults.seq else _LENGTHS:
            yield Guess(defaults.ids(defaults.batch, length), f"'{name}' is the table of an embedding")
    for tensor in _tensors(weight, defaults):
        yield Guess(tensor, source)


def _tensors(weight: Tensor, defaults: Defaults) -> Iterator[Tensor]:
    if weight.dim() == 4:
        for size in image_sizes(weight.shape[1])[:3]:
            yield defaults.floats(defaults.batch, weight.shape[1], size, size)
    elif weight.dim() == 2:
        for features in dict.fromkeys((weight.shape[1], weight.shape[0])):
            yield defaults.floats(defaults.batch, features)
            yield defaults.floats(defaults.batch, defaults.seq or 16, features)
    elif weight.dim() == 1:
        yield defaults.floats(defaults.batch, weight.shape[0])
