"""Identify the installed architecture that a bare state dict belongs to; names and shapes must agree exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchgauge.source.identify.fingerprint import is_current
from torchgauge.source.identify.lookup import is_eligible, strip_prefixes
from torchgauge.source.identify.match import Match
from torchgauge.source.identify.registry import match_listed
from torchgauge.source.identify.search import Budget, search_entrypoints, timm_entrypoints, torchvision_entrypoints
from torchgauge.source.identify.transformers import match_named, match_similar, search_transformers
from torchgauge.source.state_names import Shape

_MAX_BUILDS = 60


def identify(shapes: Mapping[str, Shape], file: str = "") -> Match | None:
    """The model of torchvision, timm or transformers with these tensors, or None.

    `file` is the name of the file, which decides between models with the same tensors.
    """
    if not is_eligible(shapes):
        return None
    for core in strip_prefixes(shapes):
        if found := match_listed(core, file) or match_named(core, file):
            return found
    for core in strip_prefixes(shapes):
        if found := match_similar(core, file):
            return found
    return match_other_versions(shapes)


def match_other_versions(shapes: Mapping[str, Shape]) -> Match | None:
    """Search the registries whose installed version is not that of the shipped tables."""
    found: list[Match] = []
    for registry, entrypoints in (("torchvision", torchvision_entrypoints), ("timm", timm_entrypoints)):
        if not is_current(registry):
            found += search_entrypoints(shapes, entrypoints(), Budget(builds=_MAX_BUILDS))
    if found:
        return replace(found[0], twins=tuple(match.target for match in found[1:]))
    return None if is_current("transformers") else search_transformers(shapes)
