"""State dicts of transformers models: a config is guessed from the shapes and corrected by those that do not fit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from torchgauge.errors import MissingDependencyError, TargetError
from torchgauge.source import huggingface
from torchgauge.source.identify.entrypoints import read_text
from torchgauge.source.identify.features import Features, rank_vocabularies, vocabulary
from torchgauge.source.identify.search import Match
from torchgauge.source.matching import Differences, best_fit
from torchgauge.source.packages import import_optional
from torchgauge.source.state_names import Shape

_TAKEN = re.compile(r"^from \.\.(\w+)\.modeling_", re.MULTILINE)
_TYPES = 20
_CLASSES = 4
_TWINS = 4
_CORRECTIONS = 4
_ENOUGH_WORDS = 0.75
# Config names -> hyperparameters; a config has some of them.
_SETTINGS = {
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


def search_transformers(shapes: Mapping[str, Shape]) -> list[Match]:
    """The model classes that fit, one per model type; empty where none does or transformers is not installed."""
    try:
        transformers = import_optional("transformers", "identifying a checkpoint")
    except (MissingDependencyError, TargetError):
        return []
    features = Features(shapes)
    attempts = (_fit_type(model_type, features) for model_type in _likely_types(features, transformers))
    with _quiet(transformers):
        return list(islice((match for match in attempts if match is not None), _TWINS))


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Configs that do not fit are part of the search: no one need hear of them."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


def _fit_type(model_type: str, features: Features) -> Match | None:
    names = _classes(model_type, features.shapes)[:_CLASSES]
    return next((match for name in names if (match := _fit(name, features)) is not None), None)


def _likely_types(features: Features, transformers: Any) -> list[str]:
    """Of those that spell the same words first the most copied from (they came first, the others are their likes),
    then those that spell little else."""
    ranked = rank_vocabularies(features.words, _vocabularies())
    likely = [(score, key) for score, key in ranked if score >= _ENOUGH_WORDS and key in transformers.CONFIG_MAPPING]
    copies = _copies()
    copied = sorted(likely, key=lambda pair: (-round(min(pair[0], 1.0), 2), -copies.get(pair[1], 0)))
    return list(dict.fromkeys(key for _, key in (*copied[:_TYPES], *likely[:_TYPES])))


@cache
def _vocabularies() -> dict[str, frozenset[str]]:
    """The names in the file of each model type that has one of its own."""
    models = import_module("transformers.models")
    folder = Path(str(models.__file__)).parent
    files = {path.parent.name: path for path in sorted(folder.glob("*/modeling_*.py")) if _is_plain(path)}
    # Types are spelt with hyphens where their folders have underscores.
    known = {name.replace("-", "_"): name for name in import_module("transformers").CONFIG_MAPPING}
    return {known[name]: vocabulary(read_text(str(path))) for name, path in files.items() if name in known}


@cache
def _copies() -> Counter[str]:
    """How many other models take code from each."""
    folder = Path(str(import_module("transformers.models").__file__)).parent
    texts = [read_text(str(path)) for path in folder.glob("*/modular_*.py")]
    return Counter(name for text in texts for name in set(_TAKEN.findall(text)))


def _is_plain(path: Path) -> bool:
    return path.stem == f"modeling_{path.parent.name}"


def _classes(model_type: str, shapes: Mapping[str, Shape]) -> list[str]:
    """The model classes of a type whose head the names hint at; where they hint at none, the plain ones first."""
    auto = import_module("transformers.models.auto.modeling_auto")
    tables = [value for name, value in vars(auto).items() if name.endswith("_MAPPING_NAMES")]
    found: dict[str, None] = {}
    for table in tables:
        names = table.get(model_type, ())
        found |= dict.fromkeys((names,) if isinstance(names, str) else names)
    ordered = sorted((name for name in found if name), key=lambda name: _unlikeness(name, shapes))
    hinted = [name for name in ordered if _unlikeness(name, shapes) == 0]
    return hinted or ordered


def _unlikeness(name: str, shapes: Mapping[str, Shape]) -> int:
    has = {part for tensor in shapes for part in tensor.split(".")}
    hints = {
        "CausalLM": ("lm_head", "embed_out"),
        "LMHeadModel": ("lm_head",),
        "ConditionalGeneration": ("lm_head", "proj_out", "final_logits_bias"),
        "Classification": ("classifier", "score"),
        "QuestionAnswering": ("qa_outputs",),
        "MaskedLM": ("cls", "lm_head", "vocab_projector"),
        "PreTraining": ("seq_relationship",),
    }
    for suffix, words in hints.items():
        if name.endswith(suffix):
            return 0 if has.intersection(words) else 3
    return 1 if name.endswith("Model") else 2


def _fit(name: str, features: Features) -> Match | None:
    model_class = huggingface.model_class(name)
    if model_class is None:
        return None
    config = _first_guess(model_class.config_class, features)
    for _ in range(_CORRECTIONS):
        if config is None:
            return None
        recipe = huggingface.recipe_of(name, model_class._from_config, config)
        try:
            model = recipe.build()
        except TargetError:  # sizes that do not go together: the guess was wrong
            return None
        differences = best_fit(model, features.shapes)
        if not differences:
            return Match(f"hf:{name}", recipe, model, tuple(features.hyperparameters.get("assumed", ())))
        config = _corrected(config, differences)
    return None


def _first_guess(config_class: Any, features: Features) -> Any:
    default = config_class()
    known = features.hyperparameters
    # Several names may stand for one setting: the first that applies holds.
    aliases = getattr(default, "attribute_map", {})
    settings: dict[str, Any] = {}
    for key, name in _SETTINGS.items():
        if name in known and hasattr(default, key):
            settings.setdefault(aliases.get(key, key), known[name])
    if hasattr(default, "num_key_value_heads"):
        settings["num_key_value_heads"] = known.get("kv_heads", known.get("heads"))
    if hasattr(default, "tie_word_embeddings"):
        settings["tie_word_embeddings"] = not any("lm_head" in name for name in features.shapes)
    try:
        return config_class(**settings)
    # Each config checks its own values, with errors of any kind.
    except Exception:
        return None


def _corrected(config: Any, differences: Differences) -> Any:
    """The config with the sizes that do not fit replaced by those of the file; None where that changes nothing."""
    if differences.missing or differences.unexpected:
        return None
    settings, changed = deepcopy(config).to_dict(), False
    for wants, has in _sizes(differences):
        for key, value in settings.items():
            # Some tables have a row or two more than their config says.
            if type(value) is int and wants != has and 0 <= wants - value <= 2 and value > 2:
                settings[key] = has - (wants - value)
                changed = True
                break
    if not changed:
        return None
    try:
        return type(config)(**settings)
    # As above: the corrected sizes need not go together.
    except Exception:
        return None


def _sizes(differences: Differences) -> Iterator[tuple[int, int]]:
    pairs = {
        (wants, has)
        for _, expected, found in differences.mismatched
        if len(expected) == len(found)
        for wants, has in zip(expected, found, strict=True)
        if wants != has
    }
    return iter(sorted(pairs, reverse=True))
