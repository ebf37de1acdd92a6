"""State dicts of architectures that the shipped table knows: the likely ones are built, and must fit exactly."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice

from torchgauge.errors import MissingDependencyError, TargetError
from torchgauge.source import timm_models, torchvision_models
from torchgauge.source.building import Recipe
from torchgauge.source.identify.adapting import Changes, changes_for
from torchgauge.source.identify.fingerprint import Known
from torchgauge.source.identify.match import Match
from torchgauge.source.identify.table import candidates, is_current
from torchgauge.source.matching import Differences, compare, state_shapes
from torchgauge.source.state_names import Shape

_FINDERS = {"timm": timm_models.find, "torchvision": torchvision_models.find}
_MOST_BUILDS = 12
_MOST_CHANGES = 6


def match_listed(shapes: Mapping[str, Shape], file: str = "") -> Match | None:
    """`file` is the name of the file: it chooses between models whose tensors are the same."""
    level = candidates(shapes)
    ranked = sorted(level, key=lambda known: _rank(known, shapes, file))
    attempts = (_try(known, shapes, _twins(known, ranked)) for known in ranked[:_MOST_BUILDS])
    return next((match for match in attempts if match is not None), None)


def _rank(known: Known, shapes: Mapping[str, Shape], file: str) -> tuple[object, ...]:
    """Named like the file; of the sizes that the stem has; of torchvision; the plainest name."""
    named = len(known.name) if known.name in file.lower().replace("-", "_") else 0
    stem = {size for name in known.loose for size in shapes.get(name, ())[2:]}
    numbers = {int(number) for number in re.findall(r"\d+", known.name)}
    return -named, -len(stem & numbers), not known.target.startswith("torchvision:"), len(known.name), known.name


def _twins(known: Known, ranked: list[Known]) -> tuple[str, ...]:
    """Those with the same tensors, as the table knows it: it was made with the same version of the registry."""
    same = (other for other in ranked if other is not known and (other.heads, other.body) == (known.heads, known.body))
    across = (other for other in ranked if other is not known and other.exact == known.exact)
    return tuple(
        dict.fromkeys(other.target for other in (*same, *across) if is_current(other.target.partition(":")[0]))
    )


def _try(known: Known, shapes: Mapping[str, Shape], twins: tuple[str, ...]) -> Match | None:
    registry, _, name = known.target.partition(":")
    try:
        recipe = _FINDERS[registry](name)
        changes = next((found for found in _fitting(known, recipe, shapes) if found is not None), None)
        if changes is None:
            return None
        changed = Recipe(recipe.name, partial(changes.build, recipe.factory), recipe.looks_at_values)
        remarks, is_headless = tuple(changes.describe()), bool(changes.removed)
        return Match(known.target, changed, changed.build(), twins=twins, remarks=remarks, is_headless=is_headless)
    # Not installed, not in the installed version, or it takes other arguments: that says nothing about the others.
    except (MissingDependencyError, TargetError):
        return None


def _fitting(known: Known, recipe: Recipe, shapes: Mapping[str, Shape]) -> Iterator[Changes | None]:
    plain = Changes(known.options)
    differences = _differences(recipe, plain, shapes)
    if not differences:
        yield plain
        return
    for changes in islice(changes_for(known, differences, shapes), _MOST_CHANGES):
        yield changes if _fits(recipe, changes, shapes) else None


def _fits(recipe: Recipe, changes: Changes, shapes: Mapping[str, Shape]) -> bool:
    try:
        return not _differences(recipe, changes, shapes)
    except TargetError:  # a setting that this model does not take
        return False


def _differences(recipe: Recipe, changes: Changes, shapes: Mapping[str, Shape]) -> Differences:
    """Seen without weights, also where the model cannot run without them."""
    model = Recipe(recipe.name, partial(changes.build, recipe.factory)).build()
    removed = tuple(f"{path}." for path in changes.removed)
    kept = {name: shape for name, shape in shapes.items() if not name.startswith(removed)}
    return compare(state_shapes(model), kept)
