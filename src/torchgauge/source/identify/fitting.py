"""Fit classes of transformers to a state dict: shapes determine the config; settings they do not determine are
listed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from torchgauge.source import huggingface
from torchgauge.source.architecture import stated_hyperparameters
from torchgauge.source.identify.config_solver import Solver
from torchgauge.source.identify.features import Features
from torchgauge.source.identify.match import Match
from torchgauge.source.identify.outline import Outline, layers_of
from torchgauge.source.identify.settings import (
    Path,
    Settings,
    entries,
    guess,
    is_declared,
    is_set,
    numbers,
    switches,
    value_at,
    with_value,
    without,
)
from torchgauge.source.identify.trials import Built, Trials
from torchgauge.source.state_names import Shape

if TYPE_CHECKING:
    from types import ModuleType

    from transformers import PretrainedConfig

_TWIN_SECONDS = 0.5
_MAX_TWINS = 5
_UNDETERMINED_SECONDS = 1.0
_MIN_SECONDS = 0.5
_MAX_COMPARED_ATTEMPTS = 11
_SIMILAR_ERRORS = 8  # numbers of wrong sizes that differ by less are considered equal
_MAX_FAILURES = 8
# Classes that start with the same tensors mostly end with the same.
_MAX_FAILURES_PER_START = 2
# More would take long to build, and no model has them.
_MAX_LAYERS = 1000


@dataclass(frozen=True, slots=True)
class NamedClass:
    """A class of transformers, with the settings other than sizes that determine the names of its tensors."""

    name: str
    model_type: str
    options: Settings


@contextmanager
def quiet(transformers: ModuleType) -> Iterator[None]:
    """Silence the warnings of transformers about configs that do not fit, which are part of the search."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


def fit_classes(
    classes: Iterable[NamedClass], shapes: Mapping[str, Shape], seconds: float, *, is_ranked: bool = False
) -> Match | None:
    """The first class that fits, and others that fit too. `is_ranked`: the classes are in the order to try them."""
    file, ends = Outline.of(shapes), time.thread_time() + seconds
    if max(map(len, layers_of(file.shapes).values()), default=0) > _MAX_LAYERS:
        return None
    best: Match | None = None
    twins: list[str] = []
    failed: list[Mapping[str, Shape]] = []
    for attempt in _likeliest_first(_attempts(classes, file, ends), is_ranked=is_ranked):
        start = attempt.start.outline.shapes
        is_known = best is not None and attempt.target in (best.target, *twins)
        if is_known or failed.count(start) >= _MAX_FAILURES_PER_START:
            continue
        # Leave time for the others.
        now = time.thread_time()
        until = ends if best is not None else now + max((ends - now) / 2, _MIN_SECONDS)
        found = attempt.run(until, is_twin=best is not None)
        if found is None:
            failed.append(start)
        elif best is None:
            best, ends = found, time.thread_time() + _TWIN_SECONDS
        else:
            twins.append(attempt.target)
        if len(twins) == _MAX_TWINS or len(failed) == _MAX_FAILURES or time.thread_time() > ends:
            break
    return replace(best, twins=tuple(twins)) if best is not None else None


@dataclass(frozen=True, eq=False)
class _Attempt:
    """A class with its starting settings, for the first layers of a file and then for the whole file: a few layers are
    built quickly, and their settings are mostly right."""

    target: str
    first: Trials
    whole: Trials
    start: Built

    def run(self, ends: float, *, is_twin: bool = False) -> Match | None:
        self.first.until(ends)
        solver = Solver(self.first)
        built = solver.solve(self.start)
        # If sizes depend on the number of layers, the first layers are not enough.
        if not self.first.fits(built) and not any(trials.is_near(built) for trials in (self.first, self.whole)):
            return None
        undetermined = Undetermined(built.settings) if is_twin else self._find_undetermined(solver, built)
        self.whole.until(ends + _UNDETERMINED_SECONDS)
        start = self.whole.start(undetermined.settings)
        final = Solver(self.whole).solve(start) if start is not None else built
        if not self.whole.fits(final):
            return None
        # The hyperparameters that shapes do not determine, with the values that the model was built with.
        known = Features(built.outline.shapes).hyperparameters
        stated = stated_hyperparameters(final.model)
        found = {name: stated.get(name, known[name]) for name in known.get("assumed", ())}
        if "head_size" in found and "head_size" not in stated:
            found["head_size"] = known["heads"] * known["head_size"] // found["heads"]
        # Shapes never determine the routing.
        found |= {name: stated[name] for name in ("experts_per_token",) if name in stated}
        if undetermined.has_shared_layers:
            found["depth"] = value_at(final.config, _depth(final.config))
        defaults = (type(final.config).__name__, undetermined.names(final.config))
        return Match(self.target, final.recipe, final.model, found, defaults)

    def _find_undetermined(self, solver: Solver, built: Built) -> Undetermined:
        """Change each number and flag in turn: those without an effect on names and shapes are undetermined."""
        self.first.until(time.thread_time() + _UNDETERMINED_SECONDS)
        # The number of layers first, because time may run out and the others are only reported. If no tensor depends on
        # it, and there are more layers by default than tensors for them, layers share their tensors.
        settings, depth = built.settings, _depth(built.config)
        layers = value_at(built.config, depth)
        if isinstance(layers, int) and _has_no_effect(solver, built, depth, (2 * layers,)):
            plain = solver.trials.build(without(built.settings, depth))
            if plain is not None and value_at(plain.config, depth) > layers and _is_same(plain, built):
                settings = plain.settings
        paths = tuple(path for path, values in _other_values(built) if _has_no_effect(solver, built, path, values))
        return Undetermined(settings, paths, settings is not built.settings)


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
    """In the given order if the first needs no search; otherwise those with fewer wrong sizes at the start first, for
    ranked classes only among the settings of each class."""
    first = next(attempts, None)
    if first is None:
        return
    some = (first, *islice(attempts, _MAX_COMPARED_ATTEMPTS)) if first.start.wrong else (first,)
    targets = list(dict.fromkeys(attempt.target for attempt in some))
    ranks = {attempt: (targets.index(attempt.target), len(attempt.start.wrong)) for attempt in some}
    if not is_ranked:
        ranks = {attempt: (len(attempt.start.wrong) // _SIMILAR_ERRORS, 0) for attempt in some}
    yield from sorted(some, key=lambda attempt: ranks[attempt])
    yield from attempts


# Settings that are neither sizes nor flags and change the computation.
_COMPUTES = re.compile(r"(^|_)(act|activation|eps|epsilon|rope|softcap\w*|scaling|scale|theta)($|_)")
_ROUTES = re.compile(r"top_?k")
# Settings that only matter for training, or for other classes of the same config.
_NO_USE = re.compile(
    r"loss|coef|jitter|init|dropout|drop_|pretraining|num_labels|prenorm|gradient|_fp32$|type_vocab|chunk_size_feed|mask_"
    r"|augment|median|classifier|weighted|nextn|tie_word|legacy|mambapy|associative"
)
# These are reported as hyperparameters.
_REPORTED = frozenset({"num_experts_per_tok", "num_hidden_layers"})
_MIN_DISTINCTIVE_SIZE = 16  # smaller numbers equal a size by chance


@dataclass(frozen=True)
class Undetermined:
    """Settings that shapes do not determine. `has_shared_layers`: layers share their tensors, so their number is
    undetermined; `settings` then leave it at its default."""

    settings: Settings
    paths: tuple[Path, ...] = ()
    has_shared_layers: bool = False

    def names(self, config: PretrainedConfig) -> tuple[str, ...]:
        """Including those that never determine a size but change the computation."""
        others = []
        for path, value in entries(config):
            kind = _ROUTES if isinstance(value, int) else _COMPUTES if isinstance(value, str | float | dict) else None
            if kind is not None and kind.search(str(path[-1])):
                others.append(path)
        found = (
            path for path in (*self.paths, *others) if not _NO_USE.search(str(path[-1])) and path[-1] not in _REPORTED
        )
        # A list is named once, not each of its numbers.
        return tuple(dict.fromkeys(".".join(name for name in path if isinstance(name, str)) for path in found))


def _depth(config: PretrainedConfig) -> Path:
    return (getattr(config, "attribute_map", {}).get("num_hidden_layers", "num_hidden_layers"),)


def _other_values(built: Built) -> Iterator[tuple[Path, tuple[object, ...]]]:
    """Settings at their defaults, with other values to try. Numbers that equal a size of a tensor are skipped."""
    sizes = {size for shape in built.outline.shapes.values() for size in shape if size >= _MIN_DISTINCTIVE_SIZE}
    # Numbers in lists are many and rarely undetermined.
    for path, value in sorted(numbers(built.config), key=lambda pair: isinstance(pair[0][-1], int)):
        if not is_set(built.settings, path) and value not in sizes:
            yield path, tuple(other for other in (2 * value, value - 1, value + 1) if other > 0 and other != value)
    for path, value in switches(built.config):
        if value is not None and not is_set(built.settings, path):
            yield path, (value,)


def _has_no_effect(solver: Solver, built: Built, path: Path, values: tuple[object, ...]) -> bool:
    if solver.has_effect(path) or _NO_USE.search(str(path[-1])) or not is_declared(built.config, path):
        return False
    for value in values:
        other = solver.trials.build(with_value(built.settings, built.config, path, value))
        if other is not None:
            # A setting that is derived from others does not keep the value.
            return _is_same(other, built) and value_at(other.config, path) == value
    return False


def _is_same(other: Built, built: Built) -> bool:
    return other.outline.shapes == built.outline.shapes


# The tensors of each part of a multimodal model; those of the text part are the rest.
_VISION, _AUDIO = re.compile(r"vis|image|pixel|patch"), re.compile(r"audio|speech|sound")
_BRIDGE = re.compile(r"project|connector|adapter|qformer|query_tokens")
_PARTS: tuple[tuple[re.Pattern[str], Callable[[str], object]], ...] = (
    (re.compile(r"vision|image|visual"), _VISION.search),
    (re.compile(r"audio|speech"), _AUDIO.search),
    (re.compile(r"text|language|llm"), lambda name: not any(part.search(name) for part in (_VISION, _AUDIO, _BRIDGE))),
)


def starting_settings(config_class: type[PretrainedConfig], shapes: Mapping[str, Shape], options: Settings) -> Settings:
    """Hyperparameters from the shapes of the whole model, or of each part if the config is nested."""
    parts: Settings = {}
    for key, nested in vars(config_class()).items():
        belongs = next((belongs for word, belongs in _PARTS if word.search(key)), None)
        if belongs is None or not hasattr(nested, "to_diff_dict"):
            continue
        own = {name: shape for name, shape in shapes.items() if belongs(name)}
        if own:
            parts[key] = guess(type(nested), Features(own).hyperparameters, {"model_type": nested.model_type})
    return parts | options if parts else guess(config_class, Features(shapes).hyperparameters, options)
