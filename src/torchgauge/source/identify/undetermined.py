"""What no tensor shows: settings of a config that could be others with the same names and shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchgauge.source.architecture import stated_hyperparameters
from torchgauge.source.identify.config_solver import Solver
from torchgauge.source.identify.settings import (
    Path,
    Settings,
    entries,
    is_declared,
    is_set,
    numbers,
    switches,
    value_at,
    with_value,
    without,
)
from torchgauge.source.identify.trials import Built

# What a model computes with, of the settings that are neither sizes nor flags.
_COMPUTES = re.compile(r"(^|_)(act|activation|eps|epsilon|rope|softcap\w*|scaling|scale|theta)($|_)")
_ROUTES = re.compile(r"top_?k")
# What matters only to training, or to other classes of the same config.
_NO_USE = re.compile(
    r"loss|coef|jitter|init|dropout|drop_|pretraining|num_labels|prenorm|gradient|_fp32$|type_vocab|chunk_size_feed|mask_"
    r"|augment|median|classifier|weighted|nextn|tie_word|legacy|mambapy|associative"
)
# These are among the hyperparameters that are told apart.
_TOLD = frozenset({"num_experts_per_tok", "num_hidden_layers"})
_TELLING = 16  # smaller numbers are sizes of something by chance


@dataclass(frozen=True)
class Undetermined:
    """`has_shared_layers`: there are more layers than tensors for them, how many is open. `settings` are the solver's
    without a guess at that."""

    settings: Settings
    paths: tuple[Path, ...] = ()
    has_shared_layers: bool = False

    def names(self, config: Any) -> tuple[str, ...]:
        """With those that never make a size."""
        others = [path for path, value in entries(config) if _computes(path, value)]
        found = (path for path in (*self.paths, *others) if not _NO_USE.search(str(path[-1])) and path[-1] not in _TOLD)
        # A list stands for its numbers.
        return tuple(dict.fromkeys(".".join(name for name in path if isinstance(name, str)) for path in found))


def _computes(path: Path, value: Any) -> bool:
    kind = _ROUTES if isinstance(value, int) else _COMPUTES if isinstance(value, str | float | dict) else None
    return kind is not None and kind.search(str(path[-1])) is not None


def find_unseen(solver: Solver, built: Built) -> Undetermined:
    """Numbers and flags are changed in turn: nothing follows those that leave all names and shapes as they are."""
    # First, as time may run out: the others are only told.
    shared = _shared_layers(solver, built)
    settings = built.settings if shared is None else shared
    return Undetermined(settings, tuple(_found(solver, built)), shared is not None)


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


def _depth(config: Any) -> Path:
    return (getattr(config, "attribute_map", {}).get("num_hidden_layers", "num_hidden_layers"),)


def _found(solver: Solver, built: Built) -> Iterator[Path]:
    for path, values in _others(built):
        if _is_unseen(solver, built, path, values):
            yield path


def _others(built: Built) -> Iterator[tuple[Path, tuple[Any, ...]]]:
    """Of what was left at its default, with other values. A number that is a size of some tensor will be that one."""
    sizes = {size for shape in built.outline.shapes.values() for size in shape if size >= _TELLING}
    # Numbers in lists are many, and rarely open.
    for path, value in sorted(numbers(built.config), key=lambda pair: isinstance(pair[0][-1], int)):
        if not is_set(built.settings, path) and value not in sizes:
            yield path, tuple(other for other in (2 * value, value - 1, value + 1) if other > 0 and other != value)
    for path, value in switches(built.config):
        if value is not None and not is_set(built.settings, path):
            yield path, (value,)


def _is_unseen(solver: Solver, built: Built, path: Path, values: tuple[Any, ...]) -> bool:
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


def assumed_values(built: Built, unseen: Undetermined, known: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters that shapes leave open, with the values that the model was built with."""
    stated = stated_hyperparameters(built.model)
    found = {name: stated.get(name, known[name]) for name in known.get("assumed", ())}
    if "head_size" in found and "head_size" not in stated:
        found["head_size"] = known["heads"] * known["head_size"] // found["heads"]
    # Routing is no matter of shapes, whatever could be tried.
    found |= {name: stated[name] for name in ("experts_per_token",) if name in stated}
    return found | ({"depth": value_at(built.config, _depth(built.config))} if unseen.has_shared_layers else {})
