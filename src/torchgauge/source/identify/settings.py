"""The numbers of a transformers config, wherever it nests them, and how to write them back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

# A name in a config, through nested configs and into lists.
Path = tuple[str | int, ...]
Settings = dict[str, Any]

# Numbers that no tensor follows.
_NO_SIZE = re.compile(
    r"token|_id$|_ids$|eps|dropout|_p$|range|cache|beam|seed|theta|top_k|num_return|(^|_)(min|max)_length"
)


def numbers(config: Any, lead: Path = ()) -> Iterator[tuple[Path, int]]:
    """Sizes by their names. The number of labels is that of a table, under a name of its own."""
    if not lead and _is_size(getattr(config, "num_labels", None)):
        yield ("num_labels",), config.num_labels
    for name, value in vars(config).items():
        if name.startswith("_") or _NO_SIZE.search(name):
            continue
        if hasattr(value, "to_diff_dict"):
            yield from numbers(value, (*lead, name))
        elif _is_size(value):
            yield (*lead, name), value
        elif isinstance(value, list | tuple) and value and all(map(_is_size, value)):
            yield from (((*lead, name, index), item) for index, item in enumerate(value))


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


def with_number(settings: Settings, config: Any, path: Path, value: int) -> Settings:
    """The settings with one more; a nested config keeps its type, a list its other numbers."""
    changed: Settings = deepcopy(settings)
    place: Any = changed
    for name in path[:-1]:
        config = getattr(config, str(name))
        if isinstance(config, list | tuple):
            place = place.setdefault(name, list(config))
        else:
            place = place.setdefault(name, {"model_type": config.model_type})
    place[path[-1]] = value
    return changed


def with_width(settings: Settings, config: Any, path: Path, value: int) -> Settings:
    """A width with as many heads as keep their size, or else with heads of a usual size."""
    changed = with_number(settings, config, path, value)
    if not _WIDTH.fullmatch(str(path[-1])):
        return changed
    own = dict(numbers(config))
    for heads in [other for other in own if other[:-1] == path[:-1] and _HEADS.fullmatch(str(other[-1]))]:
        sizes = (own[path] // own[heads], 64, 32, 16, 8)
        size = next((size for size in sizes if size and value % size == 0), value)
        changed = with_number(changed, config, heads, value // size)
    return changed


_WIDTH = re.compile(r"hidden_size|d_model|n_embd|embed_dim|dim")
_HEADS = re.compile(r"(num_|n_)?(\w+_)?(?<!key_value_)(?<!kv_)heads?")


def fit_tokens(config: Any) -> None:
    """Special tokens beyond a smaller vocabulary would keep the model from being built; no shape follows them."""
    words = getattr(config, "vocab_size", None)
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_diff_dict"):
            fit_tokens(value)
        elif type(words) is int and name.endswith("_token_id") and type(value) is int and value >= words:
            setattr(config, name, words - 1)


def guess(config_class: Any, known: Mapping[str, Any], options: Settings) -> Settings:
    """What the hyperparameters say, under the names that the config has for them."""
    default = config_class()
    # Several names may stand for one setting: the first that applies holds.
    aliases = getattr(default, "attribute_map", {})
    settings: Settings = {}
    for key, name in _NAMES.items():
        if name in known and hasattr(default, key) and not _is_derived(config_class, key):
            settings.setdefault(aliases.get(key, key), known[name])
    if hasattr(default, "num_key_value_heads") and "heads" in known:
        settings["num_key_value_heads"] = known.get("kv_heads", known["heads"])
    return settings | options


def _is_derived(config_class: Any, key: str) -> bool:
    """A number that follows from others and takes no value."""
    found = getattr(config_class, key, None)
    return isinstance(found, property) and found.fset is None


# Config names -> hyperparameters; a config has some of them.
_NAMES = {
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "head_dim": "head_size",
    "d_kv": "head_size",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "positions",
    "num_labels": "classes",
    "patch_size": "patch_size",
    "num_channels": "image_channels",
    "state_size": "state_size",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "num_layers": "encoder_layers",
    "num_decoder_layers": "decoder_layers",
    "num_hidden_layers": "depth",
    "d_ff": "intermediate_size",
    "encoder_ffn_dim": "intermediate_size",
    "decoder_ffn_dim": "intermediate_size",
    "encoder_attention_heads": "heads",
    "decoder_attention_heads": "heads",
}
