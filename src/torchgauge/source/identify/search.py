"""Search for the model that a state dict came from, building as few as possible."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType, ModuleType

from torch import nn

from torchgauge.errors import MissingDependencyError, TargetError
from torchgauge.source.building import Recipe, find_timm, find_torchvision
from torchgauge.source.identify.features import Features, rank_vocabularies, score_definition, vocabulary
from torchgauge.source.identify.match import Match
from torchgauge.source.packages import import_optional
from torchgauge.source.state_names import Differences, Shape, best_fit, state_shapes

MAX_SEARCH_S = 4.0  # a model on the meta device takes 0.1 to 0.3 s to build
_MAX_FILES = 15
_MAX_TWINS = 8
_MIN_WORD_SCORE = 0.6
_UNTRIED_LIKENESS = 0.8
_LIKENESS_LOST_PER_BUILD = 0.03
_MIN_GROUPS_TRIED = 10
_RELATED_LIKENESS = 0.6


@dataclass
class Budget:
    """The limits of a search in one registry."""

    builds: int
    # In time of this thread, so that the load of the machine does not change the answer.
    ends: float = field(default_factory=lambda: time.thread_time() + MAX_SEARCH_S)

    def spend(self) -> bool:
        self.builds -= 1
        return self.builds >= 0 and time.thread_time() < self.ends

    def shorten(self) -> None:
        """After a match, a few more builds find models with the same tensors."""
        self.builds = min(self.builds, _MAX_TWINS)


def search_entrypoints(shapes: Mapping[str, Shape], entrypoints: Iterable[Entrypoint], budget: Budget) -> list[Match]:
    """All matching models found; after the first match, only models that are as likely are tried."""

    def promise(group: str) -> float:
        """Relatives of the right model have all its names, so their group stays first. A group that only came close
        loses with each attempt."""
        best = max(likeness[group], default=_UNTRIED_LIKENESS) if group in likeness else _UNTRIED_LIKENESS
        return best if group not in likeness or best == 1.0 else best - _LIKENESS_LOST_PER_BUILD * len(likeness[group])

    features = Features(shapes)
    ranked = _rank(features, list(entrypoints))
    matches: list[Match] = []
    likeness: dict[str, list[float]] = {}
    while ranked and len(matches) < _MAX_TWINS:
        # After many groups without any resemblance, it is a custom model.
        if len(likeness) >= _MIN_GROUPS_TRIED and max(map(max, likeness.values())) < _RELATED_LIKENESS:
            break
        if not budget.spend():
            break
        # The best of the most promising group.
        score, entry = max(ranked, key=lambda pair: (promise(pair[1].group), pair[0]))
        ranked.remove((score, entry))
        match, share = _try(entry, shapes)
        if match is not None:
            matches.append(match)
            budget.shorten()
            ranked = [(other, twin) for other, twin in ranked if other >= score]
        likeness.setdefault(entry.group, []).append(share)
    return matches


def _rank(features: Features, entrypoints: list[Entrypoint]) -> list[tuple[float, Entrypoint]]:
    """Entry points of the files that contain the names, the likeliest first."""
    names = {entry.file: file_vocabulary(entry.file) for entry in entrypoints}
    shared = frozenset().union(*(shared_vocabulary(file) for file in names))
    files = rank_vocabularies(features.words, names, shared)[:_MAX_FILES]
    words = {file: score for score, file in files if score >= _MIN_WORD_SCORE}
    scored = [
        (10 * words[entry.file] + score_definition(features, entry.target, entry.text), entry)
        for entry in entrypoints
        if entry.file in words
    ]
    return sorted(scored, key=lambda pair: -pair[0])


def _try(entry: Entrypoint, shapes: Mapping[str, Shape]) -> tuple[Match | None, float]:
    """The match, if any, and the share of names that agree without their numbers, which is 1 for relatives."""
    try:
        recipe = entry.recipe()
        model = recipe.build()
        differences = best_fit(model, shapes)
        classes = other_classes(differences)
        if classes is not None:
            recipe = entry.recipe(classes)
            model = recipe.build()
            differences = best_fit(model, shapes)
    except TargetError:  # it cannot be built here; the others may
        return None, 0.0
    if not differences:
        return Match(entry.target, recipe, model), 1.0
    left, right = ({re.sub(r"\d+", "#", name) for name in names} for names in (state_shapes(model), shapes))
    return None, len(left & right) / len(left | right)


def other_classes(differences: Differences) -> int | None:
    """The number of classes, if that is the only difference; otherwise None."""
    if differences.missing or differences.unexpected or not 0 < len(differences.mismatched) <= 6:
        return None
    outputs = {(wants[0], has[0]) for _, wants, has in differences.mismatched if wants and has}
    bodies_agree = all(wants[1:] == has[1:] for _, wants, has in differences.mismatched)
    return next(iter(outputs))[1] if bodies_agree and len(outputs) == 1 else None


_DEFINITION = re.compile(r"^def (\w+)\(", re.MULTILINE)
_NEIGHBOUR = re.compile(r"^from (?:timm\.models)?\.(\w+) import", re.MULTILINE)
# Folders of layers that any architecture of the registry may use, relative to that of the architectures.
_SHARED = ("../layers", "../ops")
_CALL = re.compile(r"\breturn (\w+)\(|= (_\w+)\(")


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """`target` is the user's name for the model; entry points of one `group` share a file and the helper they call."""

    target: str
    file: str
    group: str
    text: str

    def recipe(self, classes: int | None = None) -> Recipe:
        """How to build it, with this number of classes if given."""
        registry, _, name = self.target.partition(":")
        recipe = (find_timm if registry == "timm" else find_torchvision)(name)
        if classes is None:
            return recipe
        factory: Callable[..., nn.Module] = recipe.factory
        return Recipe(recipe.name, partial(factory, num_classes=classes))


@cache
def timm_entrypoints() -> tuple[Entrypoint, ...]:
    """Empty if timm is not installed or cannot be imported."""
    timm = _import("timm")
    if timm is None:
        return ()
    functions = {name: timm.models.model_entrypoint(name) for name in timm.list_models()}
    return tuple(_entrypoints("timm", functions))


@cache
def torchvision_entrypoints() -> tuple[Entrypoint, ...]:
    """Empty if torchvision is not installed or cannot be imported."""
    models = _import("torchvision.models")
    if models is None:
        return ()
    functions = {name: models.get_model_builder(name) for name in models.list_models()}
    # Quantized models have other names and shapes; detection models are built with weights, which takes seconds.
    kept = {
        name: function
        for name, function in functions.items()
        if not {"quantization", "detection"} & set(function.__module__.split("."))
    }
    return tuple(_entrypoints("torchvision", kept))


def _import(package: str) -> ModuleType | None:
    try:
        return import_optional(package, "identifying a checkpoint")
    except (MissingDependencyError, TargetError):
        return None


def _entrypoints(registry: str, functions: Mapping[str, Callable[..., nn.Module]]) -> Iterator[Entrypoint]:
    for name, function in functions.items():
        file = inspect.unwrap(function).__code__.co_filename
        text = _definitions(file).get(function.__name__, "")
        call = _CALL.search(text)
        yield Entrypoint(f"{registry}:{name}", file, f"{file}:{(call[1] or call[2]) if call else ''}", text)


@cache
def _definitions(file: str) -> Mapping[str, str]:
    """The text of each function at the top level of a file."""
    text = read_text(file)
    starts = [(match.start(), match[1]) for match in _DEFINITION.finditer(text)]
    ends = [start for start, _ in starts[1:]] + [len(text)]
    return MappingProxyType({name: text[start:end] for (start, name), end in zip(starts, ends, strict=True)})


def read_text(file: str) -> str:
    return Path(file).read_text(encoding="utf-8", errors="replace")


@cache
def file_vocabulary(file: str) -> frozenset[str]:
    """The names of parts of a model in a file and in the files of its folder that it imports."""
    text = read_text(file)
    neighbours = [Path(file).with_name(f"{name}.py") for name in _NEIGHBOUR.findall(text)]
    names = [vocabulary(read_text(str(path))) for path in neighbours if path.is_file()]
    return vocabulary(text).union(*names)


@cache
def shared_vocabulary(file: str) -> frozenset[str]:
    """The names in the shared layers of a file's registry, which are not specific to an architecture."""
    files = [path for folder in _SHARED for path in (Path(file).parent / folder).glob("*.py")]
    return frozenset().union(*(vocabulary(read_text(str(path))) for path in files))
