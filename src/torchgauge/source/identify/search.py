"""Looking for the model that a state dict came from, building as few as possible."""

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

MOST_SECONDS = 4.0  # a model on the meta device takes 0.1 to 0.3 s to build
_MAX_FILES = 15
_MAX_TWINS = 8
_ENOUGH_WORDS = 0.6
_UNTRIED = 0.8
_PATIENCE = 0.03
_MIN_GROUPS_TRIED = 10
_RELATED_LIKENESS = 0.6


@dataclass
class Budget:
    """What a search in one registry may cost."""

    builds: int
    # Of this thread's own time: what others do on the machine must not change the answer.
    ends: float = field(default_factory=lambda: time.thread_time() + MOST_SECONDS)

    def spend(self) -> bool:
        self.builds -= 1
        return self.builds >= 0 and time.thread_time() < self.ends

    def shorten(self) -> None:
        """A match was found: a few more builds show its twins."""
        self.builds = min(self.builds, _MAX_TWINS)


def search(shapes: Mapping[str, Shape], entrypoints: Iterable[Entrypoint], budget: Budget) -> list[Match]:
    """All models found that match; once one does, only those that look as likely are tried."""
    features = Features(shapes)
    ranked = _rank(features, list(entrypoints))
    matches: list[Match] = []
    likeness: dict[str, list[float]] = {}
    while ranked and len(matches) < _MAX_TWINS:
        # Many groups tried, and none of them resembles the state dict: it is a custom model.
        if len(likeness) >= _MIN_GROUPS_TRIED and max(map(max, likeness.values())) < _RELATED_LIKENESS:
            break
        if not budget.spend():
            break
        # The best of the most promising group.
        score, entry = max(ranked, key=lambda pair: (_promise(likeness.get(pair[1].group)), pair[0]))
        ranked.remove((score, entry))
        attempt = _try(entry, shapes)
        if attempt.match is not None:
            matches.append(attempt.match)
            budget.shorten()
            ranked = [(other, twin) for other, twin in ranked if other >= score]
        likeness.setdefault(entry.group, []).append(attempt.likeness)
    return matches


def _rank(features: Features, entrypoints: list[Entrypoint]) -> list[tuple[float, Entrypoint]]:
    """Entry points of the files that spell the names, the likeliest first."""
    names = {entry.file: file_vocabulary(entry.file) for entry in entrypoints}
    shared = frozenset().union(*(shared_vocabulary(file) for file in names))
    files = rank_vocabularies(features.words, names, shared)[:_MAX_FILES]
    words = {file: score for score, file in files if score >= _ENOUGH_WORDS}
    scored = [
        (10 * words[entry.file] + score_definition(features, entry.target, entry.text), entry)
        for entry in entrypoints
        if entry.file in words
    ]
    return sorted(scored, key=lambda pair: -pair[0])


def _promise(likeness: list[float] | None) -> float:
    """Relatives of the right model have all its names: a group stays first. One that came close loses with each try."""
    if likeness is None:
        return _UNTRIED
    best = max(likeness)
    return best if best == 1.0 else best - _PATIENCE * len(likeness)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """`likeness` is the share of names that agree when numbers are left out: that of relatives is 1."""

    match: Match | None
    likeness: float


def _try(entry: Entrypoint, shapes: Mapping[str, Shape]) -> _Attempt:
    try:
        recipe = entry.recipe()
        model = recipe.build()
        differences = best_fit(model, shapes)
        classes = other_classes(differences)
        if classes is not None:
            recipe = entry.recipe(classes)
            model = recipe.build()
            differences = best_fit(model, shapes)
    except TargetError:  # this one cannot be built here: it says nothing about the others
        return _Attempt(None, 0.0)
    if not differences:
        return _Attempt(Match(entry.target, recipe, model), 1.0)
    left = _patterns(state_shapes(model))
    right = _patterns(shapes)
    return _Attempt(None, len(left & right) / len(left | right))


def _patterns(names: Iterable[str]) -> set[str]:
    return {re.sub(r"\d+", "#", name) for name in names}


def other_classes(differences: Differences) -> int | None:
    """The number of classes, where the only difference is that the last layers make another number of them."""
    if differences.missing or differences.unexpected or not 0 < len(differences.mismatched) <= 6:
        return None
    outputs = {(wants[0], has[0]) for _, wants, has in differences.mismatched if wants and has}
    bodies_agree = all(wants[1:] == has[1:] for _, wants, has in differences.mismatched)
    return next(iter(outputs))[1] if bodies_agree and len(outputs) == 1 else None


_DEFINITION = re.compile(r"^def (\w+)\(", re.MULTILINE)
_NEIGHBOUR = re.compile(r"^from (?:timm\.models)?\.(\w+) import", re.MULTILINE)
# Where layers live that any architecture of the registry may use, from the folder of the architectures.
_SHARED = ("../layers", "../ops")
_CALL = re.compile(r"\breturn (\w+)\(|= (_\w+)\(")


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """`target` is how a user names the model; entry points of one `group` share a file and the helper they call."""

    target: str
    file: str
    group: str
    text: str

    def recipe(self, classes: int | None = None) -> Recipe:
        """How to build it, with another number of classes where one is given."""
        registry, _, name = self.target.partition(":")
        recipe = (find_timm if registry == "timm" else find_torchvision)(name)
        if classes is None:
            return recipe
        factory: Callable[..., nn.Module] = recipe.factory
        return Recipe(recipe.name, partial(factory, num_classes=classes))


@cache
def timm_entrypoints() -> tuple[Entrypoint, ...]:
    """Empty where timm is not installed or does not import."""
    timm = _import("timm")
    if timm is None:
        return ()
    functions = {name: timm.models.model_entrypoint(name) for name in timm.list_models()}
    return tuple(_entrypoints("timm", functions))


@cache
def torchvision_entrypoints() -> tuple[Entrypoint, ...]:
    """Empty where torchvision is not installed or does not import."""
    models = _import("torchvision.models")
    if models is None:
        return ()
    functions = {name: models.get_model_builder(name) for name in models.list_models()}
    # Quantized twins have other names and shapes; detection models are built for real, which costs seconds.
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
    """The names that a file and those beside it that it imports give to parts of a model."""
    text = read_text(file)
    beside = [Path(file).with_name(f"{name}.py") for name in _NEIGHBOUR.findall(text)]
    names = [vocabulary(read_text(str(path))) for path in beside if path.is_file()]
    return vocabulary(text).union(*names)


@cache
def shared_vocabulary(file: str) -> frozenset[str]:
    """The names in the layers that the registry of a file shares: they say nothing about an architecture."""
    files = [path for folder in _SHARED for path in (Path(file).parent / folder).glob("*.py")]
    return frozenset().union(*(vocabulary(read_text(str(path))) for path in files))
