"""Inputs of transformers models, from their config and the names of their forward parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import nn

from torchgauge.source.candidate import Assignment, Defaults
from torchgauge.source.huggingface_config import ModelConfig
from torchgauge.source.huggingface_tensors import MAKERS, image_patches
from torchgauge.source.signature import ForwardSignature

# A second modality that a model without a token for it in the text must be given beside the text.
_BESIDE_TEXT = ("pixel_values", "input_features", "input_values")
_WITH_TEXT = ("bbox",)


def huggingface_assignments(
    model: nn.Module, signature: ForwardSignature, defaults: Defaults, given: Collection[str]
) -> Iterator[Assignment]:
    """The main input with all that must go with it, then alone, then with text; nothing for models of others."""
    declared = getattr(model, "main_input_name", None)
    if not isinstance(declared, str) or not hasattr(model, "config"):
        return
    config = ModelConfig(model.config)
    for plan in _plans(declared, signature, config):
        yield from _fill([name for name in plan if name not in given], config, defaults)


def _plans(declared: str, signature: ForwardSignature, config: ModelConfig) -> list[list[str]]:
    """Sets of inputs to try, each with its main input first."""
    required = [parameter.name for parameter in signature.required()]
    is_known = declared in signature.names or (signature.takes_any_keyword and not signature.names)
    main = [declared] if is_known else [name for name in signature.names if name in MAKERS][:1]
    alone = list(dict.fromkeys([*(main if not required or declared in required else []), *required]))
    beside: list[str] = []
    if "input_ids" in alone:
        beside = [*_BESIDE_TEXT, *_WITH_TEXT] if not config.has_placeholder_tokens else [*_WITH_TEXT]
    if config.is_encoder_decoder:
        beside.append("decoder_input_ids")
    complete = alone + [name for name in beside if name in signature.names and name not in alone]
    plans = [complete, alone]
    if "input_ids" in signature.names and "input_ids" not in alone:
        plans.append([*alone, "input_ids"])
    return [plan for index, plan in enumerate(plans) if plan not in plans[:index]]


def _fill(names: list[str], config: ModelConfig, defaults: Defaults) -> Iterator[Assignment]:
    """The alternatives of each input side by side; an input with fewer of them repeats its last."""
    if "grid_thw" in names:
        # Towers that take the patches of all images in one row, with the grid of each image beside them.
        others = [name for name in names if name != "grid_thw"]
        guesses = image_patches(config, defaults)
        if len(others) == 1 and guesses is not None:
            yield {others[0]: guesses[0], "grid_thw": guesses[1]}
        return
    if not names or any(name not in MAKERS for name in names):
        return
    columns = [list(MAKERS[name](config, defaults)) for name in names]
    if all(columns):
        for index in range(max(len(column) for column in columns)):
            yield {name: column[min(index, len(column) - 1)] for name, column in zip(names, columns, strict=True)}
