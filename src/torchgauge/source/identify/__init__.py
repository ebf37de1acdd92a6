"""Which installed architecture a bare state dict belongs to: names and shapes must agree exactly."""

from __future__ import annotations

from collections.abc import Mapping

from torchgauge.source.identify.cores import cores
from torchgauge.source.identify.features import Features
from torchgauge.source.identify.match import Match
from torchgauge.source.identify.registry import match_listed
from torchgauge.source.identify.transformers import match_named, match_similar
from torchgauge.source.identify.unlisted import match_unlisted
from torchgauge.source.state_names import Shape

__all__ = ["Match", "identify"]

# Registries hold no model of so many tensors; comparing them would take long.
_MOST_TENSORS = 100_000
# A plain sequence of layers has no words: nothing in a registry is called `0.weight`.
_FEWEST_TENSORS, _FEWEST_WORDS = 8, 2


def identify(shapes: Mapping[str, Shape], file: str = "") -> Match | None:
    """The model of torchvision, timm or transformers with these tensors; None where nothing installed agrees.

    `file` is the name of the file: it chooses between models whose tensors are the same.
    """
    if not _FEWEST_TENSORS <= len(shapes) <= _MOST_TENSORS or len(Features(shapes).words) < _FEWEST_WORDS:
        return None
    for match in (_match_exactly, match_similar):
        found = next((found for core in cores(shapes) if (found := match(core, file)) is not None), None)
        if found is not None:
            return found
    return match_unlisted(shapes)


def _match_exactly(shapes: Mapping[str, Shape], file: str) -> Match | None:
    return match_listed(shapes, file) or match_named(shapes, file)
