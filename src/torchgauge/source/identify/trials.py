"""Models of one transformers class, built on the meta device with trial settings and compared with a file."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt
from typing import TYPE_CHECKING

from torch import nn

from torchgauge.errors import TargetError
from torchgauge.nested import find_all
from torchgauge.source import huggingface
from torchgauge.source.building import Recipe
from torchgauge.source.identify.outline import MEMBERS, NAMED, Key, Outline, Spelling, patterns_of, spellings
from torchgauge.source.identify.settings import Number, Settings
from torchgauge.source.state_names import compare

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_MAX_WRONG_SIZES = 12


@dataclass(frozen=True, slots=True)
class Built:
    settings: Settings
    config: PretrainedConfig
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
    """`ends` is in seconds of this thread, so that the load of the machine does not change the answer."""

    def __init__(self, name: str, model_class: type[PreTrainedModel], file: Outline, ends: float) -> None:
        self._name, self._class, self.file, self._ends = name, model_class, file, ends

    def until(self, ends: float) -> None:
        self._ends = ends

    def start(self, *starts: Settings) -> Built | None:
        """The first settings that can be built."""
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
        except TargetError:  # inconsistent sizes
            return None
        found = spellings(model)
        spelling = found[0]
        if len(found) > 1:  # the one with the names of the file
            spelling = min(found, key=lambda each: len(patterns_of(each.shapes) ^ self.file.patterns))
        # Without tied names that the file omits.
        outline = Outline.of(
            {
                name: shape
                for name, shape in spelling.shapes.items()
                if name in self.file.shapes or spelling.twins.get(name, frozenset()).isdisjoint(self.file.shapes)
            }
        )
        return Built(settings, config, recipe, model, spelling, outline, self.file.wrong(outline))

    def is_near(self, built: Built) -> bool:
        """Whether only a few sizes are wrong."""
        wrong = self.file.wrong(built.outline)
        return len(wrong) <= _MAX_WRONG_SIZES and all(dim >= 0 for _, dim in wrong)

    def fits(self, built: Built) -> bool:
        is_same = not built.wrong and not compare(built.spelling.shapes, self.file.shapes, built.spelling.twins)
        return is_same and is_accepted(built.config)

    def with_all_tensors(self, current: Built) -> Built:
        """Compare all tensors, after the first of each kind agree."""
        if self.file.is_whole or self.fits(current):
            return current
        self.file = replace(self.file, is_whole=True)
        return replace(current, wrong=self.file.wrong(current.outline))


# A file may claim any size; constructors loop over positions, and configs over labels.
_LARGEST, _MAX_LABELS = 1 << 24, 200_000


def configure(config_class: type[PretrainedConfig], settings: Settings) -> PretrainedConfig | None:
    """The config, or None if it cannot be built.

    Two numbers that must agree cannot be found one by one, so values that the config refuses are set anyway;
    `is_accepted` checks the result.
    """
    if max(find_all(settings, int), default=0) > _LARGEST or settings.get("num_labels", 0) > _MAX_LABELS:
        return None
    for is_forced in (False, True):
        # Each config checks its own values, with errors of any kind.
        try:
            config = config_class() if is_forced else config_class(**settings)
            if is_forced:
                _set_all(config, settings)
        except Exception:
            continue
        fit_tokens(config)
        return config
    return None


def _set_all(config: PretrainedConfig, settings: Settings) -> None:
    by_layer = [name for name, value in vars(config).items() if _is_list_of(value, _depth(config))]
    for name, value in settings.items():
        if isinstance(value, dict) and hasattr(getattr(config, name, None), "to_diff_dict"):
            _set_all(getattr(config, name), {key: item for key, item in value.items() if key != "model_type"})
        else:
            setattr(config, name, value)
    # A list with an entry per layer is extended by repetition.
    depth = _depth(config)
    for name in by_layer:
        value = getattr(config, name)
        if value and not _is_list_of(value, depth):
            setattr(config, name, [value[index % len(value)] for index in range(depth)])


def _depth(config: PretrainedConfig) -> int:
    depth = getattr(config, "num_hidden_layers", 0)
    return depth if isinstance(depth, int) else 0


def _is_list_of(value: object, length: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == length > 0


def is_accepted(config: PretrainedConfig) -> bool:
    """Whether the config is valid in its current state."""
    check = getattr(config, "validate_architecture", None)
    try:
        if check is not None:
            check()
    except Exception:
        return False
    return True


def fit_tokens(config: PretrainedConfig) -> None:
    """Clip special tokens to the vocabulary: the model could not be built, and no shape depends on them."""
    words = getattr(config, "vocab_size", None)
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_diff_dict"):
            fit_tokens(value)
        elif type(words) is int and name.endswith("_token_id") and type(value) is int and value >= words:
            setattr(config, name, words - 1)


# The sizes of the model and of the file, for the keys where they differ.
Wrong = Mapping[Key, tuple[int | None, int]]


@dataclass(frozen=True, slots=True)
class Probe:
    """The sizes that result from a number."""

    number: Number
    sizes: Mapping[Key, int | None]


def answers(wrong: Wrong, value: Number, probe: Probe) -> Iterator[Number]:
    """The numbers that would give the sizes of the file, the most common first: for sizes that equal the number, that
    are linear in it, that count tensors, that are quadratic in it, and that are inversely proportional to it."""
    plain, multiples, named, squares, shares = (Counter[Fraction]() for _ in range(5))
    for key, (has, wants) in wrong.items():
        moved = probe.sizes.get(key)
        if has is None or moved is None or moved == has:
            continue
        votes = named if key[1] == NAMED else plain if (has, moved) == (value, probe.number) else multiples
        way = Fraction(wants - has, moved - has)
        answer = Fraction(value) + way * (Fraction(probe.number) - Fraction(value))
        votes[answer] += 1
        # size = a·value² + b; both points give a, and b cancels.
        square = Fraction(value) ** 2 + way * (Fraction(probe.number) ** 2 - Fraction(value) ** 2)
        root = isqrt(max(int(square), 0))
        squares[Fraction(root)] += root**2 == square
        shares[Fraction(value) * has / max(wants, 1)] += has * value == moved * probe.number
    for found in (plain, multiples, named, squares, shares):
        yield from _possible(found, value)


def curved_answers(wrong: Wrong, value: Number, first: Probe, second: Probe) -> Iterator[Number]:
    """The same for sizes that are any quadratic polynomial, such as (2·value − 1)²."""
    found = Counter[Fraction]()
    x0, x1, x2 = (Fraction(number) for number in (value, first.number, second.number))
    for key, (has, wants) in wrong.items():
        sizes = (has, first.sizes.get(key), second.sizes.get(key))
        if None in sizes or len(set(sizes)) < len(sizes):
            continue
        y0, y1, y2 = (Fraction(size or 0) for size in sizes)
        slope = (y1 - y0) / (x1 - x0)
        curve = ((y2 - y0) / (x2 - x0) - slope) / (x2 - x1)
        # curve·x² + b·x + c = 0; its roots can only be rational if that of the discriminant is.
        b = slope - curve * (x0 + x1)
        c = y0 - slope * x0 + curve * x0 * x1 - wants
        discriminant = b**2 - 4 * curve * c
        if curve and discriminant >= 0:
            root = Fraction(isqrt(discriminant.numerator), isqrt(discriminant.denominator))
            found.update((sign * root - b) / (2 * curve) for sign in (1, -1) if root**2 == discriminant)
    yield from _possible(found, value)


def _possible(found: Counter[Fraction], value: Number) -> Iterator[Number]:
    """The most common valid answer: different from the value, and an integer if that is one."""
    for answer, votes in found.most_common():
        number = int(answer) if answer == int(answer) else float(answer)
        if votes and answer >= 0 and answer != value and (isinstance(value, float) or isinstance(number, int)):
            yield float(number) if isinstance(value, float) else number
            return
