"""Configs that say which layers are of which kind: the kinds that the layers of a file have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torchgauge.source.identify.outline import Member, layers_of
from torchgauge.source.identify.settings import Path, annotation, entries, numbers
from torchgauge.source.state_names import Shape

# The layers of a list, each with its tensors.
Layers = Mapping[int, frozenset[Member]]
Changes = Callable[[Any, Mapping[str, Shape], Mapping[str, Shape]], Iterator[tuple[Path, Any]]]
_PLACES = re.compile(r"(layers|indices|indexes|idxs|ids)$")
# How often a kind comes, or from where on.
_SPACING = re.compile(r"period|offset|step|interval|freq|every|first|start|pattern")
_MOST_SPACES = 9
_MOST_KINDS = 4


def layer_lists(config: Any, built: Mapping[str, Shape], file: Mapping[str, Shape]) -> Iterator[tuple[Path, Any]]:
    """Lists of a config that may give the layers the kinds they have in the file: a list of the kinds of all, or one of
    the places of one kind."""
    for here, there in _unlike(built, file):
        for path, value in list(entries(config)):
            if isinstance(value, list | tuple) and len(value) == len(here):
                yield from ((path, changed) for changed in _exchanged(list(value), here, there))
            is_list = isinstance(value, list | tuple) or "list" in annotation(config, path)
            if is_list and _PLACES.search(str(path[-1])):
                yield from ((path, places) for places in _places(there) if places != value)


def spacings(config: Any, built: Mapping[str, Shape], file: Mapping[str, Shape]) -> Iterator[tuple[Path, Any]]:
    """The same by numbers that say how often a kind comes, or from where on."""
    if any(_names(here) != _names(there) for here, there in _unlike(built, file)):
        for path, value in numbers(config):
            if _SPACING.search(str(path[-1])):
                yield from ((path, spaces) for spaces in range(_MOST_SPACES) if spaces != value)


def stage_lists(config: Any, lengths: Mapping[int, int]) -> Iterator[dict[Path, list[Any]]]:
    """All lists of numbers of one length cut, or drawn out, to another: a network of as many stages."""
    for has, wants in lengths.items():
        lists = {path: list(value) for path, value in entries(config) if isinstance(value, list | tuple)}
        stages = {
            path: value for path, value in lists.items() if len(value) == has and all(type(x) is int for x in value)
        }
        if stages and wants:
            yield {path: (value + value[-1:] * wants)[:wants] for path, value in stages.items()}


def _unlike(built: Mapping[str, Shape], file: Mapping[str, Shape]) -> Iterator[tuple[Layers, Layers]]:
    """The layers of both, list by list, where they differ and not all are of one kind."""
    here, there = layers_of(built), layers_of(file)
    for path, layers in there.items():
        own = here.get(path, {})
        if own and own != layers and max(len(set(layers.values())), len(set(own.values()))) > 1:
            yield own, layers


def _places(layers: Layers) -> Iterator[list[int]]:
    kinds = list(dict.fromkeys(layers.values()))
    yield from ([place for place, kind in sorted(layers.items()) if kind == one] for one in kinds[:_MOST_KINDS])


def _names(layers: Layers) -> dict[int, frozenset[str]]:
    return {place: _names_of(kind) for place, kind in layers.items()}


def _exchanged(value: list[Any], here: Layers, there: Layers) -> Iterator[list[Any]]:
    """Each layer gets the entry of one that has its names: sizes may be wrong yet."""
    entry_of = {_names_of(kind): value[place] for place, kind in here.items() if place < len(value)}
    wanted = [entry_of.get(_names_of(there.get(place, frozenset()))) for place in range(len(value))]
    if None not in wanted and wanted != value:
        yield wanted


def _names_of(kind: frozenset[Member]) -> frozenset[str]:
    return frozenset(name for name, _ in kind)
