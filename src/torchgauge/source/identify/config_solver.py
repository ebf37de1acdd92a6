"""The config of a transformers class from the shapes of a file.

Which numbers of a config a size follows is found by trying: one number is changed, the model is built on meta, and the
sizes that moved say by how much. Where the file has another size, that gives the number it was made with.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

from torch import nn

from torchgauge.errors import TargetError
from torchgauge.source import huggingface
from torchgauge.source.building import Recipe
from torchgauge.source.identify.settings import Path, Settings, fit_tokens, numbers, with_number, with_width
from torchgauge.source.identify.spellings import patterns_of, spellings
from torchgauge.source.matching import Differences, compare, tied_twins
from torchgauge.source.state_names import Shape

# A size of a tensor, or how many parts a list of modules has.
Sizes = dict[tuple[str, int], int]
_COUNT = -1
_ROUNDS = 16


@dataclass(frozen=True, slots=True)
class Built:
    settings: Settings
    config: Any
    recipe: Recipe
    model: nn.Module
    shapes: Mapping[str, Shape]
    differences: Differences
    wrong: Mapping[tuple[str, int], tuple[int, int]]

    @property
    def sizes(self) -> Sizes:
        return sizes_of(self.shapes)


class Solver:
    """`ends` is in seconds of this thread's time: what others do on the machine must not change the answer."""

    def __init__(self, name: str, model_class: Any, shapes: Mapping[str, Shape], ends: float) -> None:
        self._name, self._class, self._shapes, self._ends = name, model_class, shapes, ends
        self._sizes, self._patterns = sizes_of(shapes), patterns_of(shapes)

    def solve(self, *starts: Settings) -> Built | None:
        """From the first of the settings that build."""
        current = next((built for start in starts if (built := self.build(start)) is not None), None)
        for _ in range(_ROUNDS):
            if current is None or not current.differences:
                return current
            current = self._improve(current)
        return None

    def build(self, settings: Settings) -> Built | None:
        try:
            config = self._class.config_class(**settings)
            fit_tokens(config)
        # Each config checks its own values, with errors of any kind.
        except Exception:
            return None
        recipe = huggingface.recipe_of(self._name, self._class._from_config, config)
        try:
            model = recipe.build()
        except TargetError:  # sizes that do not go together
            return None
        # The spelling of the file, whatever its sizes.
        shapes = min(spellings(model), key=lambda names: len(patterns_of(names) ^ self._patterns))
        differences = compare(shapes, self._shapes, tied_twins(model))
        return Built(settings, config, recipe, model, shapes, differences, self._wrong(shapes))

    def _wrong(self, shapes: Mapping[str, Shape]) -> dict[tuple[str, int], tuple[int, int]]:
        """Sizes of the model and the file where they differ."""
        both = ((key, size, self._sizes.get(key, size)) for key, size in sizes_of(shapes).items())
        return {key: (size, wanted) for key, size, wanted in both if size != wanted}

    def _improve(self, current: Built) -> Built | None:
        """The first change of one number after which fewer sizes are wrong."""
        for path, value in self._likely(current) if current.wrong else ():
            if time.thread_time() > self._ends:
                return None
            for solution in self._solutions(current, path, value):
                better = self._changed(current, path, solution)
                if better is not None and len(better.wrong) < len(current.wrong):
                    return better
        return None

    def _changed(self, current: Built, path: Path, value: int) -> Built | None:
        for change in (with_width, with_number):
            built = self.build(change(current.settings, current.config, path, value))
            if built is not None:
                return built
        return None

    def _likely(self, current: Built) -> Iterator[tuple[Path, int]]:
        """First the numbers that are themselves among the wrong sizes."""
        wrong = {size for size, _ in current.wrong.values()}
        return iter(sorted(numbers(current.config), key=lambda pair: (pair[1] not in wrong, -pair[1])))

    def _solutions(self, current: Built, path: Path, value: int) -> Iterator[int]:
        """The numbers that the wrong sizes ask for; none where they do not follow it."""
        for tried in (2 * value, value + 1):
            probe = self._changed(current, path, tried)
            if probe is not None:
                yield from _asked_for(current, probe.sizes, value, tried)
                return


def _asked_for(current: Built, moved: Sizes, value: int, tried: int) -> Iterator[int]:
    """The commonest answer first: a size is a multiple of the number and something, or a table of its square."""
    straight, squared = Counter[int](), Counter[int]()
    for key, (size, wanted) in current.wrong.items():
        step = moved.get(key, size) - size
        if step:
            answer, rest = divmod((wanted - size) * (tried - value), step)
            straight[value + answer] += not rest
            # size = a·value² + b; both points give a, and b cancels.
            square, rest = divmod((wanted - size) * (tried**2 - value**2), step)
            root = isqrt(max(value**2 + square, 0))
            squared[root] += not rest and root**2 == value**2 + square
    for answers in (straight, squared):
        yield from (answer for answer, votes in answers.most_common(1) if votes and answer > 0 and answer != value)


def sizes_of(shapes: Mapping[str, Shape]) -> Sizes:
    found: Sizes = {(name, dim): size for name, shape in shapes.items() for dim, size in enumerate(shape)}
    members: dict[str, set[str]] = {}
    for name in shapes:
        parts = name.split(".")
        for index, part in enumerate(parts):
            if part.isdigit():
                members.setdefault(".".join(parts[:index]), set()).add(part)
    return found | {(path, _COUNT): len(indices) for path, indices in members.items()}
