"""Registries of another version than the shipped tables: what they hold is found by a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchgauge.source.identify.entrypoints import timm_entrypoints, torchvision_entrypoints
from torchgauge.source.identify.match import Match
from torchgauge.source.identify.search import Budget, search
from torchgauge.source.identify.table import is_current
from torchgauge.source.identify.transformers_models import search_transformers
from torchgauge.source.state_names import Shape

_MOST_BUILDS = 60


def match_unlisted(shapes: Mapping[str, Shape]) -> Match | None:
    found: list[Match] = []
    for registry, entrypoints in (("torchvision", torchvision_entrypoints), ("timm", timm_entrypoints)):
        if not is_current(registry):
            found += search(shapes, entrypoints(), Budget(builds=_MOST_BUILDS))
    if found:
        return replace(found[0], twins=tuple(match.target for match in found[1:]))
    return None if is_current("transformers") else search_transformers(shapes)
