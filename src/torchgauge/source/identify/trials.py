"""Models of one transformers class, built on meta with settings that are tried, beside the file they may be of."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from torchgauge.errors import TargetError
from torchgauge.source import huggingface
from torchgauge.source.building import Recipe
from torchgauge.source.identify.configuring import configure, is_accepted
from torchgauge.source.identify.interpolation import Wrong
from torchgauge.source.identify.outline import MEMBERS, NAMED, Key, Outline
from torchgauge.source.identify.settings import Settings
from torchgauge.source.identify.spellings import Spelling, patterns_of, spellings
from torchgauge.source.matching import compare
from torchgauge.source.state_names import Shape

_FEW = 12


@dataclass(frozen=True, slots=True)
class Built:
    settings: Settings
    config: Any
    recipe: Recipe
    model: nn.Module
    spelling: Spelling
    outline: Outline
    wrong: Wrong

    @property
    def lengths(self) -> dict[Key, int]:
        return {key: count for key, count in self.outline.counts.items() if key[1] == MEMBERS}

    @property
    def has_other_names(self) -> bool:
        return any(key[1] == NAMED and not (has and wants) for key, (has, wants) in self.wrong.items())


class Trials:
    """`ends` is in seconds of this thread's time: what others do on the machine must not change the answer."""

    def __init__(self, name: str, model_class: Any, file: Outline, ends: float) -> None:
        self._name, self._class, self.file, self._ends = name, model_class, file, ends

    def until(self, ends: float) -> None:
        self._ends = ends

    def start(self, *starts: Settings) -> Built | None:
        """The first of the settings that build."""
        return next((built for start in starts if (built := self.build(start)) is not None), None)

    def build(self, settings: Settings) -> Built | None:
        if time.thread_time() > self._ends:
            return None
        config = configure(self._class.config_class, settings)
        if config is None:
            return None
        recipe = huggingface.recipe_of(self._name, self._class._from_config, config)
        try:
            model = recipe.build()
        except TargetError:  # sizes that do not go together
            return None
        found = spellings(model)
        # That of the file, whatever its sizes.
        spelling = min(found, key=self._unlikeness) if len(found) > 1 else found[0]
        outline = Outline.of(self._without_tied(spelling))
        return Built(settings, config, recipe, model, spelling, outline, self.file.wrong(outline))

    def _unlikeness(self, spelling: Spelling) -> int:
        return len(patterns_of(spelling.shapes) ^ self.file.patterns)

    def _without_tied(self, spelling: Spelling) -> dict[str, Shape]:
        """Without the names that the file leaves out as it has another of the same tensor."""
        return {
            name: shape
            for name, shape in spelling.shapes.items()
            if name in self.file.shapes or spelling.twins.get(name, frozenset()).isdisjoint(self.file.shapes)
        }

    def is_near(self, built: Built) -> bool:
        """Whether only some sizes are wrong."""
        wrong = self.file.wrong(built.outline)
        return len(wrong) <= _FEW and all(dim >= 0 for _, dim in wrong)

    def fits(self, built: Built) -> bool:
        is_same = not built.wrong and not compare(built.spelling.shapes, self.file.shapes, built.spelling.twins)
        return is_same and is_accepted(built.config)

    def with_all_tensors(self, current: Built) -> Built:
        """The first tensors of each kind agree: others may not."""
        if self.file.is_whole or self.fits(current):
            return current
        self.file = replace(self.file, is_whole=True)
        return replace(current, wrong=self.file.wrong(current.outline))
