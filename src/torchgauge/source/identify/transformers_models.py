"""State dicts of transformers models of a version that the shipped table does not know: the code spells their words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from torchgauge.errors import MissingDependencyError, TargetError
from torchgauge.source.identify.entrypoints import read_text
from torchgauge.source.identify.features import Features, rank_vocabularies, vocabulary
from torchgauge.source.identify.fitting import NamedClass, fit_classes, quiet
from torchgauge.source.identify.match import Match
from torchgauge.source.packages import import_optional
from torchgauge.source.state_names import Shape

_TAKEN = re.compile(r"^from \.\.(\w+)\.modeling_", re.MULTILINE)
_TYPES = 20
_CLASSES = 4
_ENOUGH_WORDS = 0.75
_MOST_SECONDS = 1.5


def search_transformers(shapes: Mapping[str, Shape]) -> Match | None:
    """The model class that fits; None where none does or transformers is not installed."""
    try:
        transformers = import_optional("transformers", "identifying a checkpoint")
    except (MissingDependencyError, TargetError):
        return None
    with quiet(transformers):
        return fit_classes(_likely_classes(shapes, transformers), shapes, _MOST_SECONDS)


def _likely_classes(shapes: Mapping[str, Shape], transformers: Any) -> Iterator[NamedClass]:
    is_tied = not any("lm_head" in name for name in shapes)
    # Of those that spell the same words first the most copied from (they came first, the others are their likes),
    # then those that spell little else.
    ranked = rank_vocabularies(Features(shapes).words, _vocabularies())
    likely = [(score, key) for score, key in ranked if score >= _ENOUGH_WORDS and key in transformers.CONFIG_MAPPING]
    copies = _copies()
    copied = sorted(likely, key=lambda pair: (-round(min(pair[0], 1.0), 2), -copies.get(pair[1], 0)))
    likely_types = list(dict.fromkeys(key for _, key in (*copied[:_TYPES], *likely[:_TYPES])))
    for model_type in likely_types:
        # The model classes of a type whose head the names hint at; where they hint at none, the plain ones first.
        auto = import_module("transformers.models.auto.modeling_auto")
        tables = [value for name, value in vars(auto).items() if name.endswith("_MAPPING_NAMES")]
        found: dict[str, None] = {}
        for table in tables:
            names = table.get(model_type, ())
            found |= dict.fromkeys((names,) if isinstance(names, str) else names)
        ordered = sorted((name for name in found if name), key=lambda name: _unlikeness(name, shapes))
        hinted = [name for name in ordered if _unlikeness(name, shapes) == 0]
        for name in (hinted or ordered)[:_CLASSES]:
            yield NamedClass(name, model_type, {"tie_word_embeddings": is_tied})


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
