"""What the name of a forward parameter says about its values: data, masks, lengths, time steps, labels, states."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from torchgauge.source.candidate import Defaults, Guess, make_tensor
from torchgauge.source.signature import Parameter

_IDS = {"ids", "tokens"}
_TEXT = {*_IDS, "id", "idx", "token", "text", "texts", "words", "sentence", "sentences", "src", "tgt", "codes"}
_IMAGE = {"image", "images", "img", "imgs", "pixel", "pixels", "picture", "frame", "frames", "video", "videos"}
_MASK = {"mask", "masks"}
_LENGTH = {"length", "lengths", "len", "lens"}
_TIME = {"timestep", "timesteps", "t", "ts", "time", "times"}
_LABEL = {"label", "labels", "class", "classes"}
_STATE = {"hidden", "state", "states", "hx", "h", "hc"}


def words(name: str) -> frozenset[str]:
    """The words of a name, lower case and without digits: `src_ids2` has `src` and `ids`."""
    return frozenset(re.sub(r"[0-9]", "", word) for word in name.lower().split("_"))


def is_ids(name: str) -> bool:
    """Certainly integer, whatever the model."""
    return bool(words(name) & _IDS)


def is_text(name: str) -> bool:
    """Integer where the model has an embedding to look it up in."""
    return bool(words(name) & _TEXT)


def is_image(name: str) -> bool:
    return bool(words(name) & _IMAGE)


def is_mask(name: str) -> bool:
    return bool(words(name) & _MASK)


def is_length(name: str) -> bool:
    return bool(words(name) & _LENGTH)


def is_time(name: str) -> bool:
    return bool(words(name) & _TIME)


def is_label(name: str) -> bool:
    return bool(words(name) & _LABEL)


def is_state(name: str) -> bool:
    return bool(words(name) & _STATE)


_PLAIN = {"int": 1, "bool": False, "float": 1.0}


def is_companion(parameter: Parameter) -> bool:
    """Whether the name or the annotation says that the parameter does not carry the data."""
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
    if is_state(parameter.name):
        return _state(model, value, main, defaults)
    return Guess(defaults.ids(defaults.batch, value=0), "one number per sample, from its name")


def _state(model: nn.Module, value: object, main: str, defaults: Defaults) -> Guess:
    layer: Any = next((m for m in model.modules() if isinstance(m, nn.RNNBase | nn.RNNCellBase)), None)
    if layer is None:
        return Guess(value.clone() if isinstance(value, Tensor) else value, f"the same as {main}")
    if isinstance(layer, nn.RNNBase):
        copies = layer.num_layers * (2 if layer.bidirectional else 1)
        leading: tuple[int, ...] = (copies, defaults.batch)
    else:
        leading = (defaults.batch,)
    cell = defaults.floats(*leading, layer.hidden_size)
    hidden = defaults.floats(*leading, getattr(layer, "proj_size", 0) or layer.hidden_size)
    is_pair = isinstance(layer, nn.LSTM | nn.LSTMCell)
    return Guess((hidden, cell) if is_pair else hidden, f"the state of the {type(layer).__name__}")
