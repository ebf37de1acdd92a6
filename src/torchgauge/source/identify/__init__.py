"""Which installed architecture a bare state dict belongs to: names and shapes must agree exactly."""

from __future__ import annotations

from collections.abc import Mapping

from torchgauge.source.identify.entrypoints import timm_entrypoints, torchvision_entrypoints
from torchgauge.source.identify.features import Features
from torchgauge.source.identify.search import Budget, Match, search
from torchgauge.source.identify.transformers_models import search_transformers
from torchgauge.source.state_names import Shape

__all__ = ["Match", "identify"]

# Registries hold no model of so many tensors; comparing them would take long.
_MOST_TENSORS = 20_000
_MOST_BUILDS = 60
# A plain sequence of layers has no words: nothing in a registry is called `0.weight`.
_FEWEST_TENSORS, _FEWEST_WORDS = 8, 2


def identify(shapes: Mapping[str, Shape]) -> list[Match]:
    """All matches in torchvision, timm and transformers; none where nothing installed agrees."""
    if not _FEWEST_TENSORS <= len(shapes) <= _MOST_TENSORS or len(Features(shapes).words) < _FEWEST_WORDS:
        return []
    found = search(shapes, torchvision_entrypoints(), Budget(builds=_MOST_BUILDS // 2))
    # Where the code is known already, a few builds more may show that timm has it too.
    found += search(shapes, timm_entrypoints(), Budget(builds=_MOST_BUILDS // 3 if found else _MOST_BUILDS))
    return found or search_transformers(shapes)
