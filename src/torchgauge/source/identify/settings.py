"""The numbers and flags of a transformers config, nested ones included, and how to change them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# A name in a config, through nested configs and into lists.
Path = tuple[str | int, ...]
Settings = dict[str, Any]
Number = int | float

# Numbers that no shape depends on.
_NO_SIZE = re.compile(
    r"token|_id$|_ids$|eps|dropout|_p$|range|cache|beam|seed|theta|top_k|num_return|(^|_)(min|max)_length"
)
# Ratios: a size is a width times one of them.
_RATIO = re.compile(r"(^|_)(ratio|expand|multiplier|mult)$")
# Flags about the use of a model.
_NO_FLAG = re.compile(r"^_|^output_|^return_|cache|is_encoder_decoder|^is_decoder|gradient|kernels|mem_eff")


def numbers(config: PretrainedConfig) -> Iterator[tuple[Path, Number]]:
    """Sizes by path. The number of labels is stored as a table, under another name."""
    if _is_size(getattr(config, "num_labels", None)):
        yield ("num_labels",), config.num_labels
    for path, value in entries(config):
        name = str(path[-1])
        if _NO_SIZE.search(name):
            continue
        if _is_size(value) or (isinstance(value, float) and _RATIO.search(name)):
            yield path, value
        elif isinstance(value, list | tuple) and value and all(map(_is_size, value)):
            yield from (((*path, index), item) for index, item in enumerate(value))


def entries(config: PretrainedConfig, lead: Path = ()) -> Iterator[tuple[Path, Any]]:
    for name, value in vars(config).items():
        if hasattr(value, "to_diff_dict"):
            yield from entries(value, (*lead, name))
        elif not name.startswith("_"):
            yield (*lead, name), value


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def switches(config: PretrainedConfig) -> Iterator[tuple[Path, Any]]:
    """Each flag toggled, and each optional number unset: these may add or remove tensors."""
    for path, value in entries(config):
        if isinstance(value, bool) and not _NO_FLAG.search(str(path[-1])):
            yield path, not value
        elif _is_size(value) and "None" in annotation(config, path):
            yield path, None


def unset_numbers(config: PretrainedConfig) -> Iterator[Path]:
    """Optional numbers that are not set, and so derived from others."""
    for path, value in entries(config):
        if value is None and not _NO_SIZE.search(str(path[-1])) and "int" in annotation(config, path):
            yield path


def annotation(config: PretrainedConfig, path: Path) -> str:
    for name in path[:-1]:
        config = getattr(config, str(name))
    field = getattr(type(config), "__dataclass_fields__", {}).get(path[-1])
    return str(field.type) if field is not None else ""


def is_declared(config: PretrainedConfig, path: Path) -> bool:
    """Whether it is an entry of the config, not derived from other entries."""
    *lead, name = (part for part in path if isinstance(part, str))
    return bool(annotation(config, (*lead, name)))


def value_at(config: PretrainedConfig, path: Path) -> Any:
    for name in path:
        config = config[name] if isinstance(name, int) else getattr(config, name, None)
    return config


def with_value(settings: Settings, config: PretrainedConfig, path: Path, value: Any) -> Settings:
    """The settings with one value changed; a nested config keeps its type, a list its other numbers."""
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


def is_set(settings: Settings, path: Path) -> bool:
    place: Any = settings
    for name in path:
        if not isinstance(place, dict):
            return True  # a list is set as a whole
        if name not in place:
            return False
        place = place[name]
    return True


def without(settings: Settings, path: Path) -> Settings:
    """The settings without one value, which then has its default."""
    changed = deepcopy(settings)
    place: Any = changed
    for name in path[:-1]:
        place = place.get(name) if isinstance(place, dict) else None
    if isinstance(place, dict):
        place.pop(path[-1], None)
    return changed


def with_width(settings: Settings, config: PretrainedConfig, path: Path, value: Number) -> Settings:
    """Change a width and keep the size of its heads, or use a common size."""
    changed = with_value(settings, config, path, value)
    if not _WIDTH.fullmatch(_word(path)):
        return changed
    own = dict(numbers(config))
    # Numbers of the same config and, in lists, at the same index.
    depth = [index for index, name in enumerate(path) if isinstance(name, str)][-1]
    related = [other for other in own if other[:depth] == path[:depth] and other[depth + 1 :] == path[depth + 1 :]]
    for heads in [other for other in related if _HEADS.fullmatch(_word(other))]:
        sizes = (own[path] // max(own[heads], 1), 64, 32, 16, 8)
        size = next((size for size in sizes if size and value % size == 0), value)
        changed = with_value(changed, config, heads, int(value // size))
    return changed


def _word(path: Path) -> str:
    return next(str(name) for name in reversed(path) if isinstance(name, str))


_WIDTH = re.compile(r"hidden_sizes?|d_model|n_embd|embed_dim|dim")
_HEADS = re.compile(r"(num_|n_)?(\w+_)?(?<!key_value_)(?<!kv_)heads?")


def guess(config_class: type[PretrainedConfig], hyperparameters: Mapping[str, Any], options: Settings) -> Settings:
    """The hyperparameters under the names that the config uses."""
    default = config_class()
    # A setting may have several names; the first that applies is used.
    aliases = getattr(default, "attribute_map", {})
    settings: Settings = {}
    known = dict(hyperparameters)
    # If shapes do not determine the heads, use the head size that the config declares.
    usual = getattr(getattr(config_class, "__dataclass_fields__", {}).get("head_dim"), "default", None)
    if "head_size" in known.get("assumed", ()) and type(usual) is int:
        rows = {name: known[name] * known.get("head_size", 0) for name in ("heads", "kv_heads") if name in known}
        if not any(count % usual for count in rows.values()):
            known["head_size"] = usual
            known.update({name: count // usual for name, count in rows.items()})
    if "rope_size" in known:  # with four sizes of heads, `head_dim` of a config is a different one
        known.pop("head_size", None)
    if known.get("experts", 0) > _MAX_EXPERTS:  # a file may claim any number
        del known["experts"]
    for key, name in _NAMES:
        # A derived number cannot be set.
        derived = getattr(config_class, key, None)
        is_derived = isinstance(derived, property) and derived.fset is None
        if name in known and hasattr(default, key) and not is_derived:
            settings.setdefault(aliases.get(key, key), known[name])
    if hasattr(default, "num_key_value_heads") and "heads" in known:
        settings["num_key_value_heads"] = known.get("kv_heads", known["heads"])
    # Some models read it although their config does not declare it.
    if "head_size" in known and known["heads"] * known["head_size"] != known["width"]:
        settings.setdefault("head_dim", known["head_size"])
    if getattr(default, "num_experts_per_tok", 0) is None and "experts" in known:
        settings["num_experts_per_tok"] = min(_USUAL_EXPERTS, known["experts"])
    return settings | options


_MAX_EXPERTS = 4096
# The number in both models of the only published family whose config does not set it.
_USUAL_EXPERTS = 6


# Names in configs and the corresponding hyperparameters; a config has some of them. The first that applies is used.
_NAMES = (
    ("hidden_size", "width"), ("num_attention_heads", "heads"), ("head_dim", "head_size"), ("d_kv", "head_size"),
    ("intermediate_size", "intermediate_size"), ("vocab_size", "vocabulary"), ("max_position_embeddings", "positions"),
    ("num_labels", "classes"), ("patch_size", "patch_size"), ("num_channels", "image_channels"),
    ("state_size", "state_size"), ("encoder_layers", "encoder_layers"), ("decoder_layers", "decoder_layers"),
    ("num_layers", "encoder_layers"), ("num_decoder_layers", "decoder_layers"), ("num_hidden_layers", "depth"),
    ("d_ff", "intermediate_size"), ("encoder_ffn_dim", "intermediate_size"), ("decoder_ffn_dim", "intermediate_size"),
    ("encoder_attention_heads", "heads"), ("decoder_attention_heads", "heads"), ("num_local_experts", "experts"),
    ("num_experts", "experts"), ("n_routed_experts", "experts"), ("mamba_n_heads", "state_heads"),
    ("mamba_d_head", "state_head_size"), ("mamba_d_state", "state_size"), ("mamba_n_groups", "state_groups"),
    ("n_groups", "state_groups"), ("qk_rope_head_dim", "rope_size"), ("qk_nope_head_dim", "nope_size"),
    ("v_head_dim", "value_head_size"), ("kv_lora_rank", "kv_rank"), ("q_lora_rank", "query_rank"),
    ("num_heads", "state_heads"), ("head_dim", "state_head_size"),
)  # fmt: skip
