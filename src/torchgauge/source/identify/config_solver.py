"""Find the config of a transformers class from the shapes of a file.

The dependence of shapes on the numbers of a config is found by experiment: one number is changed, the model is built on
the meta device, and the sizes that changed give the slope, and with the sizes of the file the number. If names differ
from the file's, flags are toggled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from torchgauge.source.identify.outline import MEMBERS, Key, Member, layers_of
from torchgauge.source.identify.settings import (
    Number,
    Path,
    Settings,
    annotation,
    entries,
    numbers,
    switches,
    unset_numbers,
    value_at,
    with_value,
    with_width,
)
from torchgauge.source.identify.trials import Built, Probe, Trials, answers, curved_answers
from torchgauge.source.state_names import Shape

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_MAX_ROUNDS = 24
_MAX_SIZES = 3


class Solver:
    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        counts = trials.file.counts
        self._longest = max((count for (_, kind), count in counts.items() if kind == MEMBERS), default=0)
        # The sizes that changed with each number, and the flags without any effect.
        self._moved: dict[Path, frozenset[Key]] = {}
        self._idle: set[Path] = set()

    def has_effect(self, path: Path) -> bool:
        """Whether sizes are known to depend on a number."""
        return bool(self._moved.get(path))

    def solve(self, start: Built) -> Built:
        """The config closest to the file; `Trials.fits` checks whether it fits exactly."""
        ways = (
            self._by_switches, partial(self._by_changes, changes=layer_lists), self._by_stages, self._by_numbers,
            self._by_unset_numbers, partial(self._by_changes, changes=spacings), self._by_exchange,
        )  # fmt: skip
        current = start
        for _ in range(_MAX_ROUNDS):
            if current.wrong:  # the first way that improves it
                better = next((better for way in ways if (better := way(current)) is not current), current)
            else:
                better = self.trials.with_all_tensors(current)
            if better is current:
                break
            current = better
        return current

    def _best(self, current: Built, settings: Iterator[Settings]) -> Built:
        """The first improvement, or the current one."""
        for changed in settings:
            built = self.trials.build(changed)
            if built is not None and len(built.wrong) < len(current.wrong):
                if built.outline.patterns != current.outline.patterns:
                    self._moved.clear()
                return built
        return current

    def _by_switches(self, current: Built) -> Built:
        for path, value in list(switches(current.config)) if current.has_other_names else ():
            if path not in self._idle:
                better = self._best(current, iter((with_value(current.settings, current.config, path, value),)))
                self._idle |= {path} if better is current else set()
                current = better
        return current

    def _by_numbers(self, current: Built) -> Built:
        """Try all numbers, those that equal a wrong size first. Stops when a list of layers has a new length, because
        the kinds of the new layers must be determined first."""
        wrong, lengths = {has for has, _ in current.wrong.values()}, current.lengths
        # Numbers in lists are many and rarely the cause. Ratios of widths can only be found once the widths are right.
        ranks = {
            path: (isinstance(value, float), value not in wrong, isinstance(path[-1], int), -value)
            for path, value in numbers(current.config)
        }
        for path in sorted(ranks, key=lambda path: ranks[path]):
            if not current.wrong or current.lengths != lengths:
                break
            if path not in self._moved or not self._moved[path].isdisjoint(current.wrong):
                current = self._with_number(current, path)
        return current

    def _with_number(self, current: Built, path: Path) -> Built:
        value = value_at(current.config, path)
        if type(value) not in (int, float):
            return current
        first = self._probe(current, path, 2 * value or 1) or self._probe(current, path, value + 1)
        if first is None:
            return current
        self._moved[path] = frozenset(key for key, size in first.sizes.items() if size != current.outline.size(key))
        better = self._best(current, self._changes(current, path, answers(current.wrong, value, first)))
        if better is current and any(dim >= 0 for _, dim in self._moved[path] & current.wrong.keys()):
            second = self._probe(current, path, first.number + max(value, 1))
            found = curved_answers(current.wrong, value, first, second) if second is not None else iter(())
            better = self._best(current, self._changes(current, path, found))
        return better

    def _by_exchange(self, current: Built) -> Built:
        """The product of two numbers may be right but not the factors, as with heads and their size: set one from the
        wrong sizes, and adjust those that the right sizes depend on."""
        for path, value in list(numbers(current.config)):
            if self._moved.get(path, frozenset()).isdisjoint(current.wrong):
                continue
            probe = self._probe(current, path, 2 * value or 1)
            found = list(answers(current.wrong, value, probe)) if probe is not None else []
            better = self._best(current, (x for answer in found for x in self._exchanged(current, path, answer)))
            if better is not current:
                return better
        return current

    def _exchanged(self, current: Built, path: Path, value: Number) -> Iterator[Settings]:
        for settings in self._changes(current, path, iter((value,))):
            built = self.trials.build(settings)
            worse = built.wrong.keys() - current.wrong.keys() if built is not None else frozenset()
            partners = [other for other, moved in self._moved.items() if moved and moved <= worse and other != path]
            share = Fraction(value_at(current.config, path)) / Fraction(value or 1)
            for other in partners:
                made_up = int(value_at(current.config, other) * share)
                settings = with_value(settings, current.config, other, made_up)
            if partners:
                yield settings

    def _changes(self, current: Built, path: Path, values: Iterator[Number]) -> Iterator[Settings]:
        """Lists never get longer than the longest one of the file."""
        is_length = any(kind == MEMBERS for _, kind in self._moved.get(path, ()))
        for value in values:
            if not is_length or value <= self._longest:
                yield from _with_number(current, path, value)

    def _probe(self, current: Built, path: Path, value: Number) -> Probe | None:
        built = self.trials.start(*_with_number(current, path, value))
        if built is None:
            return None
        keys = dict.fromkeys((*self.trials.file.keys, *current.wrong))
        return Probe(value, {key: built.outline.size(key) for key in keys})

    def _by_unset_numbers(self, current: Built) -> Built:
        """A number that is unset, and derived from others, may have been set to one of the wrong sizes."""
        wanted = list(dict.fromkeys(wants for (_, dim), (_, wants) in current.wrong.items() if dim >= 0))[:_MAX_SIZES]
        for path in list(unset_numbers(current.config)) if wanted else ():
            tries = (with_value(current.settings, current.config, path, size) for size in wanted)
            current = self._best(current, tries)
        return current

    def _by_stages(self, current: Built) -> Built:
        lengths = {has: wants for (_, kind), (has, wants) in current.wrong.items() if kind == MEMBERS and has}
        tries = []
        for lists in stage_lists(current.config, lengths):
            settings = current.settings
            for path, value in lists.items():
                settings = with_value(settings, current.config, path, value)
            tries.append(settings)
        return self._best(current, iter(tries))

    def _by_changes(self, current: Built, changes: Changes) -> Built:
        found = changes(current.config, current.outline.shapes, self.trials.file.shapes)
        return self._best(current, (with_value(current.settings, current.config, *change) for change in found))


def _with_number(current: Built, path: Path, value: Number) -> tuple[Settings, ...]:
    """A width with matching heads, then alone."""
    wide = with_width(current.settings, current.config, path, value)
    plain = with_value(current.settings, current.config, path, value)
    return (wide,) if wide == plain else (wide, plain)


# The layers of a list, each with its tensors.
Layers = Mapping[int, frozenset[Member]]
Changes = Callable[["PretrainedConfig", Mapping[str, Shape], Mapping[str, Shape]], Iterator[tuple[Path, object]]]
_PLACES = re.compile(r"(layers|indices|indexes|idxs|ids)$")
# Settings for how often a kind of layer occurs, or where it starts.
_SPACING = re.compile(r"period|offset|step|interval|freq|every|first|start|pattern")
_MAX_SPACES = 9
_MAX_KINDS = 4


def layer_lists(
    config: PretrainedConfig, built: Mapping[str, Shape], file: Mapping[str, Shape]
) -> Iterator[tuple[Path, object]]:
    """Lists of a config that may give the layers their kinds in the file: a list of the kinds of all layers, or of the
    indices of one kind."""
    for here, there in _unlike(built, file):
        for path, value in list(entries(config)):
            if isinstance(value, list | tuple) and len(value) == len(here):
                yield from ((path, changed) for changed in _exchanged(list(value), here, there))
            is_list = isinstance(value, list | tuple) or "list" in annotation(config, path)
            if is_list and _PLACES.search(str(path[-1])):
                for one in list(dict.fromkeys(there.values()))[:_MAX_KINDS]:
                    places = [place for place, kind in sorted(there.items()) if kind == one]
                    if places != value:
                        yield path, places


def spacings(
    config: PretrainedConfig, built: Mapping[str, Shape], file: Mapping[str, Shape]
) -> Iterator[tuple[Path, object]]:
    """The same with numbers for how often a kind occurs, or where it starts."""

    def names(layers: Layers) -> dict[int, frozenset[str]]:
        return {place: _names_of(kind) for place, kind in layers.items()}

    if any(names(here) != names(there) for here, there in _unlike(built, file)):
        for path, value in numbers(config):
            if _SPACING.search(str(path[-1])):
                yield from ((path, spaces) for spaces in range(_MAX_SPACES) if spaces != value)


def stage_lists(config: PretrainedConfig, lengths: Mapping[int, int]) -> Iterator[dict[Path, list[object]]]:
    """All lists of numbers of one length, shortened or extended to another: a network with that number of stages."""
    for has, wants in lengths.items():
        lists = {path: list(value) for path, value in entries(config) if isinstance(value, list | tuple)}
        stages = {
            path: value for path, value in lists.items() if len(value) == has and all(type(x) is int for x in value)
        }
        if stages and wants:
            yield {path: (value + value[-1:] * wants)[:wants] for path, value in stages.items()}


def _unlike(built: Mapping[str, Shape], file: Mapping[str, Shape]) -> Iterator[tuple[Layers, Layers]]:
    """Pairs of lists of layers that differ and have layers of several kinds."""
    here, there = layers_of(built), layers_of(file)
    for path, layers in there.items():
        own = here.get(path, {})
        if own and own != layers and max(len(set(layers.values())), len(set(own.values()))) > 1:
            yield own, layers


def _exchanged(value: list[object], here: Layers, there: Layers) -> Iterator[list[object]]:
    """Each layer gets the entry of a layer with the same names; sizes may still be wrong."""
    entry_of = {_names_of(kind): value[place] for place, kind in here.items() if place < len(value)}
    wanted = [entry_of.get(_names_of(there.get(place, frozenset()))) for place in range(len(value))]
    if None not in wanted and wanted != value:
        yield wanted


def _names_of(kind: frozenset[Member]) -> frozenset[str]:
    return frozenset(name for name, _ in kind)
