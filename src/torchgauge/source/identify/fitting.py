"""Classes of transformers fitted to a state dict: shapes determine the config; what they leave open is listed."""

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
def quiet(transformers: ModuleType) -> Iterator[None]:
    """Without the warnings of transformers: configs that do not fit are part of the search."""
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
        # The hyperparameters that shapes leave open, with the values that the model was built with.
        known = Features(built.outline.shapes).hyperparameters
        stated = stated_hyperparameters(final.model)
        found = {name: stated.get(name, known[name]) for name in known.get("assumed", ())}
        if "head_size" in found and "head_size" not in stated:
            found["head_size"] = known["heads"] * known["head_size"] // found["heads"]
        # Shapes never determine the routing.
        found |= {name: stated[name] for name in ("experts_per_token",) if name in stated}
        assumed = found | ({"depth": value_at(final.config, _depth(final.config))} if unseen.has_shared_layers else {})
        defaults = (type(final.config).__name__, unseen.names(final.config))
        return Match(self.target, final.recipe, final.model, assumed, defaults)

    def _find_unseen(self, solver: Solver, built: Built) -> Undetermined:
        self.first.until(time.thread_time() + _UNSEEN_SECONDS)
        # Numbers and flags are changed in turn: nothing follows those that leave all names and shapes as they are.
        # First, as time may run out: the others are only reported.
        shared = _shared_layers(solver, built)
        settings = built.settings if shared is None else shared
        undetermined = tuple(path for path, values in _others(built) if _is_unseen(solver, built, path, values))
        return Undetermined(settings, undetermined, shared is not None)


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


# What a model computes with, of the settings that are neither sizes nor flags.
_COMPUTES = re.compile(r"(^|_)(act|activation|eps|epsilon|rope|softcap\w*|scaling|scale|theta)($|_)")
_ROUTES = re.compile(r"top_?k")
# What matters only to training, or to other classes of the same config.
_NO_USE = re.compile(
    r"loss|coef|jitter|init|dropout|drop_|pretraining|num_labels|prenorm|gradient|_fp32$|type_vocab|chunk_size_feed|mask_"
    r"|augment|median|classifier|weighted|nextn|tie_word|legacy|mambapy|associative"
)
# These are reported as hyperparameters.
_TOLD = frozenset({"num_experts_per_tok", "num_hidden_layers"})
_TELLING = 16  # smaller numbers are sizes of something by chance


@dataclass(frozen=True)
class Undetermined:
    """`has_shared_layers`: there are more layers than tensors for them, how many is open. `settings` are the solver's
    without a guess at that."""

    settings: Settings
    paths: tuple[Path, ...] = ()
    has_shared_layers: bool = False

    def names(self, config: PretrainedConfig) -> tuple[str, ...]:
        """With those that never make a size."""
        others = [path for path, value in entries(config) if _computes(path, value)]
        found = (path for path in (*self.paths, *others) if not _NO_USE.search(str(path[-1])) and path[-1] not in _TOLD)
        # A list stands for its numbers.
        return tuple(dict.fromkeys(".".join(name for name in path if isinstance(name, str)) for path in found))


def _computes(path: Path, value: object) -> bool:
    kind = _ROUTES if isinstance(value, int) else _COMPUTES if isinstance(value, str | float | dict) else None
    return kind is not None and kind.search(str(path[-1])) is not None


def _shared_layers(solver: Solver, built: Built) -> Settings | None:
    """The settings without a number of layers, where no tensor follows it and there are more by default than tensors
    for them: layers that share theirs. None where each has its own."""
    depth = _depth(built.config)
    layers = value_at(built.config, depth)
    if not isinstance(layers, int) or not _is_unseen(solver, built, depth, (2 * layers,)):
        return None
    plain = solver.trials.build(without(built.settings, depth))
    is_more = plain is not None and value_at(plain.config, depth) > layers
    return plain.settings if plain is not None and is_more and _is_same(plain, built) else None


def _depth(config: PretrainedConfig) -> Path:
    return (getattr(config, "attribute_map", {}).get("num_hidden_layers", "num_hidden_layers"),)


def _others(built: Built) -> Iterator[tuple[Path, tuple[object, ...]]]:
    """Of what was left at its default, with other values. A number that is a size of some tensor will be that one."""
    sizes = {size for shape in built.outline.shapes.values() for size in shape if size >= _TELLING}
    # Numbers in lists are many, and rarely open.
    for path, value in sorted(numbers(built.config), key=lambda pair: isinstance(pair[0][-1], int)):
        if not is_set(built.settings, path) and value not in sizes:
            yield path, tuple(other for other in (2 * value, value - 1, value + 1) if other > 0 and other != value)
    for path, value in switches(built.config):
        if value is not None and not is_set(built.settings, path):
            yield path, (value,)


def _is_unseen(solver: Solver, built: Built, path: Path, values: tuple[object, ...]) -> bool:
    if solver.is_followed(path) or _NO_USE.search(str(path[-1])) or not is_declared(built.config, path):
        return False
    for value in values:
        other = solver.trials.build(with_value(built.settings, built.config, path, value))
        if other is not None:
            # A setting that follows from others takes no value.
            return _is_same(other, built) and value_at(other.config, path) == value
    return False


def _is_same(other: Built | None, built: Built) -> bool:
    return other is not None and other.outline.shapes == built.outline.shapes


# Which tensors belong to which part of a model that has several; those of text have names of no other part.
_VISION, _AUDIO = re.compile(r"vis|image|pixel|patch"), re.compile(r"audio|speech|sound")
_BRIDGE = re.compile(r"project|connector|adapter|qformer|query_tokens")
_PARTS: tuple[tuple[re.Pattern[str], Callable[[str], object]], ...] = (
    (re.compile(r"vision|image|visual"), _VISION.search),
    (re.compile(r"audio|speech"), _AUDIO.search),
    (re.compile(r"text|language|llm"), lambda name: not any(part.search(name) for part in (_VISION, _AUDIO, _BRIDGE))),
)


def starting_settings(config_class: type[PretrainedConfig], shapes: Mapping[str, Shape], options: Settings) -> Settings:
    """What the shapes say of the whole model, or of each of its parts where the config has one for each."""
    parts: Settings = {}
    for key, nested in vars(config_class()).items():
        belongs = next((belongs for word, belongs in _PARTS if word.search(key)), None)
        if belongs is None or not hasattr(nested, "to_diff_dict"):
            continue
        own = {name: shape for name, shape in shapes.items() if belongs(name)}
        if own:
            parts[key] = guess(type(nested), Features(own).hyperparameters, {"model_type": nested.model_type})
    return parts | options if parts else guess(config_class, Features(shapes).hyperparameters, options)
