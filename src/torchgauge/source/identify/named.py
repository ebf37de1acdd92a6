"""State dicts of transformers models: the names say which class, the shapes say which config."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from torchgauge.errors import MissingDependencyError, TargetError
from torchgauge.source import huggingface
from torchgauge.source.identify.config_solver import Solver
from torchgauge.source.identify.features import Features
from torchgauge.source.identify.match import Match
from torchgauge.source.identify.settings import Settings, guess
from torchgauge.source.identify.spellings import modern, pattern_sum
from torchgauge.source.identify.table import NAME_PATTERNS, read_table
from torchgauge.source.packages import import_optional
from torchgauge.source.state_names import Shape

_MOST_SECONDS = 4.0  # of this thread, and only where the names are those of a class
_TWIN_SECONDS = 0.5
_MOST_TWINS = 5
_TASKS = (
    "ForMaskedLM", "ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "Model", "ForSequenceClassification",
    "ForImageClassification", "ForTokenClassification", "ForCTC",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NamedClass:
    """A class of transformers with the settings, beside sizes, that give its tensors their names."""

    name: str
    model_type: str
    options: Settings


@cache
def named_classes() -> Mapping[int, list[NamedClass]]:
    """By the sum of their names; those that others took most from come first."""
    found: defaultdict[int, list[NamedClass]] = defaultdict(list)
    for line in read_table(NAME_PATTERNS)[1:]:
        name, model_type, sums, options = line.split("\t")
        named = NamedClass(name, model_type, json.loads(options) if options else {})
        for value in sums.split():
            found[int(value, 16)].append(named)
    return found


def match_named(shapes: Mapping[str, Shape], file: str = "") -> Match | None:
    """`file` is the name of the file: it chooses between classes whose tensors are the same."""
    shapes = modern(shapes)
    classes = named_classes().get(pattern_sum(shapes), [])
    if not classes:
        return None
    try:
        transformers = import_optional("transformers", "identifying a checkpoint")
    except (MissingDependencyError, TargetError):
        return None
    types = list(dict.fromkeys(named.model_type for named in classes))
    ranked = sorted(classes, key=lambda named: (-_named_in(named, file), types.index(named.model_type), _task(named)))
    with quiet(transformers):
        return fit_classes(ranked, shapes, _MOST_SECONDS)


def _named_in(named: NamedClass, file: str) -> int:
    """How much of the file's name is that of the model type."""
    spelt, wanted = (text.lower().replace("-", "").replace("_", "") for text in (file, named.model_type))
    return len(wanted) if wanted in spelt else 0


def _task(named: NamedClass) -> int:
    """The commoner use of the same tensors first."""
    return next((rank for rank, task in enumerate(_TASKS) if named.name.endswith(task)), len(_TASKS))


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Configs that do not fit are part of the search: no one need hear of them."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


def fit_classes(ranked: Iterable[NamedClass], shapes: Mapping[str, Shape], seconds: float) -> Match | None:
    """The first that fits, with those that do so too."""
    features, matches = Features(shapes), list[Match]()
    ends = time.thread_time() + seconds
    for named in ranked:
        match = _fit(named, features, ends)
        if match is not None and match.target not in {found.target for found in matches}:
            matches.append(match)
            ends = min(ends, time.thread_time() + _TWIN_SECONDS)
        if len(matches) > _MOST_TWINS or time.thread_time() > ends:
            break
    return replace(matches[0], twins=tuple(match.target for match in matches[1:])) if matches else None


def _fit(named: NamedClass, features: Features, ends: float) -> Match | None:
    model_class = huggingface.model_class(named.name)
    if model_class is None:
        return None
    start = guess(model_class.config_class, features.hyperparameters, named.options)
    built = Solver(named.name, model_class, features.shapes, ends).solve(start, named.options)
    if built is None:
        return None
    return Match(f"hf:{named.name}", built.recipe, built.model, tuple(features.hyperparameters.get("assumed", ())))
