"""State dicts of architectures in the shipped table: likely ones are built and must fit exactly.

Common changes are recognised: another number of classes, other images, a new head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import isqrt

import torch
from torch import nn

from torchgauge.errors import MissingDependencyError, TargetError
from torchgauge.source.building import Recipe, find_timm, find_torchvision
from torchgauge.source.identify.fingerprint import Known, candidates, is_current
from torchgauge.source.identify.match import Match
from torchgauge.source.state_names import Differences, Shape, compare, state_shapes

_FINDERS = {"timm": find_timm, "torchvision": find_torchvision}
_MAX_BUILDS = 12
_MAX_CHANGES = 6


def match_listed(shapes: Mapping[str, Shape], file: str = "") -> Match | None:
    """`file` is the name of the file, which decides between models with the same tensors."""

    def rank(known: Known) -> tuple[object, ...]:
        """By file name, by the sizes of the stem, torchvision first, the shortest name first."""
        named = len(known.name) if known.name in file.lower().replace("-", "_") else 0
        stem = {size for name in known.loose for size in shapes.get(name, ())[2:]}
        numbers = {int(number) for number in re.findall(r"\d+", known.name)}
        return -named, -len(stem & numbers), not known.target.startswith("torchvision:"), len(known.name), known.name

    ranked = sorted(candidates(shapes), key=rank)
    for known in ranked[:_MAX_BUILDS]:
        # Models with the same tensors, if the table was made with the installed version.
        others = [other for other in ranked if other is not known and is_current(other.target.partition(":")[0])]
        same = [other.target for other in others if (other.heads, other.body) == (known.heads, known.body)]
        across = [other.target for other in others if other.exact == known.exact]
        registry, _, name = known.target.partition(":")
        try:
            recipe = _FINDERS[registry](name)
            changes = _fitting_changes(known, recipe, shapes)
            if changes is not None:
                changed = Recipe(recipe.name, partial(changes.build, recipe.factory), recipe.looks_at_values)
                return Match(
                    known.target,
                    changed,
                    changed.build(),
                    twins=tuple(dict.fromkeys((*same, *across))),
                    remarks=tuple(changes.describe()),
                    is_headless=bool(changes.removed),
                )
        # Not installed, not in the installed version, or other arguments: the other candidates may still fit.
        except (MissingDependencyError, TargetError):
            continue
    return None


def _fitting_changes(known: Known, recipe: Recipe, shapes: Mapping[str, Shape]) -> Changes | None:
    plain = Changes(known.options)
    differences = _differences(recipe, plain, shapes)
    if not differences:
        return plain
    for changes in islice(changes_for(known, differences, shapes), _MAX_CHANGES):
        try:
            if not _differences(recipe, changes, shapes):
                return changes
        except TargetError:  # a setting that this model does not take
            continue
    return None


def _differences(recipe: Recipe, changes: Changes, shapes: Mapping[str, Shape]) -> Differences:
    """Built without weights, even if the model cannot run without them."""
    model = Recipe(recipe.name, partial(changes.build, recipe.factory)).build()
    removed = tuple(f"{path}." for path in changes.removed)
    kept = {name: shape for name, shape in shapes.items() if not name.startswith(removed)}
    return compare(state_shapes(model), kept)


Mismatch = tuple[str, Shape, Shape]
_MAX_TOKENS = 6
_DETECTION_CLASSES = 91  # the default of torchvision's detection models


@dataclass(frozen=True)
class Changes:
    """`settings` are arguments of the builder, `channels` those of images by the convolution that takes them, `removed`
    the heads that the file replaces."""

    settings: Mapping[str, object] = field(default_factory=dict)
    channels: Mapping[str, int] = field(default_factory=dict)
    removed: tuple[str, ...] = ()

    def build(self, factory: Callable[..., nn.Module]) -> nn.Module:
        model = factory(**self.settings)
        for path, channels in self.channels.items():
            convolution = model.get_submodule(path)
            weight = convolution.get_parameter("weight")
            convolution.weight = nn.Parameter(torch.randn(weight.shape[0], channels, *weight.shape[2:]))
            vars(convolution)["in_channels"] = channels
        for path in self.removed:
            model.set_submodule(path, nn.Identity())
        return model

    def describe(self) -> Iterator[str]:
        for name, value in self.settings.items():
            yield f"built with {name}={value}"
        for path, channels in self.channels.items():
            yield f"'{path}' built for {channels} channels"
        if self.removed:
            yield f"the head '{', '.join(self.removed)}' is missing or different in the file: the figures exclude it"


def changes_for(known: Known, differences: Differences, shapes: Mapping[str, Shape]) -> Iterator[Changes]:
    """Changes that may make the model fit, the likeliest first; none if the file differs in other ways."""
    own = [name for name in (*differences.missing, *differences.unexpected) if not _is_under(name, known.heads)]
    heads = [wrong for wrong in differences.mismatched if _is_under(wrong[0], known.heads)]
    others = [wrong for wrong in differences.mismatched if wrong not in heads]
    channels = {name.rpartition(".")[0]: has[1] for name, wants, has in others if _is_stem(wants, has)}
    tables = [wrong for wrong in others if not _is_stem(*wrong[1:])]
    if own or any(name not in known.loose for name, _, _ in others):
        return
    for size in _image_sizes(known, tables, shapes):
        settings = {**known.options, **size}
        for classes in _classes(known, heads, differences, shapes):
            yield Changes({**settings, **classes}, channels)
        yield Changes(settings, channels, known.heads)


def _is_under(name: str, paths: tuple[str, ...]) -> bool:
    return any(name.startswith(f"{path}.") for path in paths)


def _is_stem(wants: Shape, has: Shape) -> bool:
    """Whether the shapes are those of a convolution with different input channels."""
    return len(wants) == len(has) >= 4 and wants[:1] + wants[2:] == has[:1] + has[2:]


def _classes(
    known: Known, heads: list[Mismatch], differences: Differences, shapes: Mapping[str, Shape]
) -> Iterator[dict[str, int]]:
    if differences.missing or any(wants[1:] != has[1:] for _, wants, has in heads):
        return
    if not heads and not differences.unexpected:
        yield {}
    # A model without a head gets one if a number of classes is given.
    for name in differences.unexpected:
        if name in {f"{path}.weight" for path in known.heads}:
            yield {"num_classes": shapes[name][0]}
    # Detection heads have several outputs per class; the default number of classes determines how many.
    for _, wants, has in sorted(heads, key=lambda wrong: wrong[2]):
        each = wants[0] // _DETECTION_CLASSES if wants[0] % _DETECTION_CLASSES == 0 else 1
        if has[0] % each == 0:
            yield {"num_classes": has[0] // each}


def _image_sizes(known: Known, tables: list[Mismatch], shapes: Mapping[str, Shape]) -> Iterator[dict[str, int]]:
    """Position tables have one row per patch, after rows for class tokens and similar."""
    if not tables:
        yield {}
        return
    key = "img_size" if known.target.startswith("timm:") else "image_size"
    patches = [shape[-1] for name in known.loose if len(shape := shapes.get(name, ())) == 4]
    rows = tables[0][2][1] if len(tables[0][2]) == 3 else 0
    for extra in range(_MAX_TOKENS):
        side = isqrt(max(rows - extra, 0))
        if side and side**2 + extra == rows:
            yield from ({key: side * patch} for patch in patches)
