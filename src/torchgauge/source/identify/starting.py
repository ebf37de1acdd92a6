"""The first guess at a config, from which the solver goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torchgauge.source.identify.features import Features
from torchgauge.source.identify.settings import Settings, guess
from torchgauge.source.state_names import Shape

# Which tensors belong to which part of a model that has several; those of text have names of no other part.
_VISION, _AUDIO = re.compile(r"vis|image|pixel|patch"), re.compile(r"audio|speech|sound")
_BRIDGE = re.compile(r"project|connector|adapter|qformer|query_tokens")
_PARTS: tuple[tuple[re.Pattern[str], Callable[[str], object]], ...] = (
    (re.compile(r"vision|image|visual"), _VISION.search),
    (re.compile(r"audio|speech"), _AUDIO.search),
    (re.compile(r"text|language|llm"), lambda name: not any(part.search(name) for part in (_VISION, _AUDIO, _BRIDGE))),
)


def starting_settings(config_class: Any, shapes: Mapping[str, Shape], options: Settings) -> Settings:
    """What the shapes say of the whole model, or of each of its parts where the config has one for each."""
    parts = dict(_parts(config_class(), shapes))
    if not parts:
        return guess(config_class, Features(shapes).hyperparameters, options)
    return parts | options


def _parts(config: Any, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, Settings]]:
    for key, nested in vars(config).items():
        belongs = next((belongs for word, belongs in _PARTS if word.search(key)), None)
        if belongs is None or not hasattr(nested, "to_diff_dict"):
            continue
        own = {name: shape for name, shape in shapes.items() if belongs(name)}
        if own:
            yield key, guess(type(nested), Features(own).hyperparameters, {"model_type": nested.model_type})
