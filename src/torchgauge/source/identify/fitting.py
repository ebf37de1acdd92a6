"""Classes of transformers fitted to a state dict: the shapes say which config."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from torchgauge.source import huggingface
from torchgauge.source.identify.config_solver import Solver
from torchgauge.source.identify.features import Features
from torchgauge.source.identify.match import Match
from torchgauge.source.identify.outline import Outline, layers_of
from torchgauge.source.identify.settings import Settings
from torchgauge.source.identify.starting import starting_settings
from torchgauge.source.identify.trials import Built, Trials
from torchgauge.source.identify.undetermined import Undetermined, assumed_values, find_unseen
from torchgauge.source.state_names import Shape

_TWIN_SECONDS = 0.5
_MOST_TWINS = 5
_UNSEEN_SECONDS = 1.0
_LEAST_SECONDS = 0.5
_MOST_COMPARED = 11
_ABOUT_THE_SAME = 8
_MOST_FAILURES = 8
# Classes that start with the same tensors mostly end with the same.
_MOST_OF_ONE_START = 2
# More would take long to build, and no model has them.
_MOST_LAYERS = 1000


@dataclass(frozen=True, slots=True)
class NamedClass:
    """A class of transformers with the settings, beside sizes, that give its tensors their names."""

    name: str
    model_type: str
    options: Settings


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Configs that do not fit are part of the search: no one need hear of them."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


def fit_classes(
    classes: Iterable[NamedClass], shapes: Mapping[str, Shape], seconds: float, *, is_ranked: bool = False
) -> Match | None:
    """The first that fits, with those that do so too. `is_ranked`: the classes are in the order to try them in."""
    file, ends = Outline.of(shapes), time.thread_time() + seconds
    if max(map(len, layers_of(file.shapes).values()), default=0) > _MOST_LAYERS:
        return None
    best: Match | None = None
    twins: list[str] = []
    failed: list[Mapping[str, Shape]] = []
    for attempt in _likeliest_first(_attempts(classes, file, ends), is_ranked=is_ranked):
        start = attempt.start.outline.shapes
        is_known = best is not None and attempt.target in (best.target, *twins)
        if is_known or failed.count(start) >= _MOST_OF_ONE_START:
            continue
        # One that does not fit must leave time for the others.
        now = time.thread_time()
        until = ends if best is not None else now + max((ends - now) / 2, _LEAST_SECONDS)
        found = attempt.run(until, is_twin=best is not None)
        if found is None:
            failed.append(start)
        elif best is None:
            best, ends = found, time.thread_time() + _TWIN_SECONDS
        else:
            twins.append(attempt.target)
        if len(twins) == _MOST_TWINS or len(failed) == _MOST_FAILURES or time.thread_time() > ends:
            break
    return replace(best, twins=tuple(twins)) if best is not None else None


@dataclass(frozen=True, eq=False)
class _Attempt:
    """A class with the settings it starts from, for the first layers of a file and then for the whole: what is found
    for few is quickly built, and mostly right."""

    target: str
    first: Trials
    whole: Trials
    start: Built

    def run(self, ends: float, *, is_twin: bool = False) -> Match | None:
        self.first.until(ends)
        solver = Solver(self.first)
        built = solver.solve(self.start)
        # Where sizes follow the number of layers, or a list of the layers to look at, the first are not enough.
        if not self.first.fits(built) and not any(trials.is_near(built) for trials in (self.first, self.whole)):
            return None
        unseen = Undetermined(built.settings) if is_twin else self._find_unseen(solver, built)
        self.whole.until(ends + _UNSEEN_SECONDS)
        start = self.whole.start(unseen.settings)
        final = Solver(self.whole).solve(start) if start is not None else built
        if not self.whole.fits(final):
            return None
        assumed = assumed_values(final, unseen, Features(built.outline.shapes).hyperparameters)
        defaults = (type(final.config).__name__, unseen.names(final.config))
        return Match(self.target, final.recipe, final.model, assumed, defaults)

    def _find_unseen(self, solver: Solver, built: Built) -> Undetermined:
        self.first.until(time.thread_time() + _UNSEEN_SECONDS)
        return find_unseen(solver, built)


def _attempts(classes: Iterable[NamedClass], file: Outline, ends: float) -> Iterator[_Attempt]:
    for named in classes:
        model_class = huggingface.model_class(named.name)
        if model_class is None:
            continue
        first = Trials(named.name, model_class, file.first_layers, ends)
        whole = first if file.first_layers is file else Trials(named.name, model_class, file, ends)
        shapes = file.first_layers.shapes
        start = first.start(starting_settings(model_class.config_class, shapes, named.options), named.options)
        if start is not None:
            yield _Attempt(f"hf:{named.name}", first, whole, start)


def _likeliest_first(attempts: Iterator[_Attempt], *, is_ranked: bool) -> Iterator[_Attempt]:
    """In their order while the first needs no search, else those first that have less wrong at the start; of classes
    that are ranked only the settings of each."""
    first = next(attempts, None)
    if first is None:
        return
    some = (first, *islice(attempts, _MOST_COMPARED)) if first.start.wrong else (first,)
    targets = list(dict.fromkeys(attempt.target for attempt in some))
    ranks = {attempt: (targets.index(attempt.target), len(attempt.start.wrong)) for attempt in some}
    if not is_ranked:
        ranks = {attempt: (len(attempt.start.wrong) // _ABOUT_THE_SAME, 0) for attempt in some}
    yield from sorted(some, key=lambda attempt: ranks[attempt])
    yield from attempts
