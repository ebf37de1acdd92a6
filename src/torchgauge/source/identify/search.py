"""Looking for the model that a state dict came from, building as few as possible."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torchgauge.errors import TargetError
from torchgauge.source.identify.entrypoints import Entrypoint, file_vocabulary, shared_vocabulary
from torchgauge.source.identify.features import Features, rank_vocabularies, score_definition
from torchgauge.source.identify.match import Match
from torchgauge.source.matching import Differences, best_fit, state_shapes
from torchgauge.source.state_names import Shape

MOST_SECONDS = 4.0  # a model on the meta device takes 0.1 to 0.3 s to build
_FILES = 15
_TWINS = 8
_ENOUGH_WORDS = 0.6
_UNTRIED = 0.8
_PATIENCE = 0.03
_GROUPS = 10
_RELATED = 0.6


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
        self.builds = min(self.builds, _TWINS)


def search(shapes: Mapping[str, Shape], entrypoints: Iterable[Entrypoint], budget: Budget) -> list[Match]:
    """All models found that match; once one does, only those that look as likely are tried."""
    features = Features(shapes)
    ranked = _rank(features, list(entrypoints))
    matches: list[Match] = []
    likeness: dict[str, list[float]] = {}
    while ranked and not _is_hopeless(likeness) and len(matches) < _TWINS and budget.spend():
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


def _is_hopeless(likeness: Mapping[str, list[float]]) -> bool:
    """Many groups tried, and none of them resembles the state dict: it is someone's own."""
    return len(likeness) >= _GROUPS and max(map(max, likeness.values())) < _RELATED


def _rank(features: Features, entrypoints: list[Entrypoint]) -> list[tuple[float, Entrypoint]]:
    """Entry points of the files that spell the names, the likeliest first."""
    names = {entry.file: file_vocabulary(entry.file) for entry in entrypoints}
    shared = frozenset().union(*(shared_vocabulary(file) for file in names))
    files = rank_vocabularies(features.words, names, shared)[:_FILES]
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
