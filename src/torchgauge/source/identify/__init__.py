"""Identify the installed architecture that a bare state dict belongs to; names and shapes must agree exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torchgauge.checkpoint.tensor_names import COPIES
from torchgauge.source.identify.config_solver import layer_lists, spacings, stage_lists
from torchgauge.source.identify.features import Features, rank_vocabularies, score_definition, spells, vocabulary
from torchgauge.source.identify.fingerprint import (
    FINGERPRINTS,
    NAME_PATTERNS,
    Known,
    Sketch,
    Sums,
    candidates,
    is_current,
    read_table,
)
from torchgauge.source.identify.fitting import starting_settings
from torchgauge.source.identify.match import Match
from torchgauge.source.identify.outline import MEMBERS, NAMED, Outline, modern, pattern_of, pattern_sum, spellings
from torchgauge.source.identify.registry import match_listed
from torchgauge.source.identify.search import (
    Budget,
    other_classes,
    search_entrypoints,
    timm_entrypoints,
    torchvision_entrypoints,
)
from torchgauge.source.identify.settings import numbers, switches, unset_numbers, with_value, with_width, without
from torchgauge.source.identify.transformers import known_names, match_named, match_similar, search_transformers
from torchgauge.source.identify.trials import Probe, answers, configure, curved_answers, fit_tokens, is_accepted
from torchgauge.source.state_names import Shape

__all__ = [
    "FINGERPRINTS", "MEMBERS", "NAMED", "NAME_PATTERNS", "Budget", "Features", "Known", "Match", "Outline", "Probe",
    "Sketch", "Sums", "answers", "candidates", "configure", "curved_answers", "fit_tokens", "identify", "is_accepted",
    "is_current", "known_names", "layer_lists", "modern", "numbers", "other_classes", "pattern_of", "pattern_sum",
    "rank_vocabularies", "read_table", "score_definition", "search_entrypoints", "search_transformers", "spacings",
    "spellings", "spells", "stage_lists",
    "starting_settings", "switches", "timm_entrypoints", "unset_numbers", "vocabulary", "with_value", "with_width",
    "without",
]  # fmt: skip

# No model of a registry has more tensors; comparing them would take long.
_MAX_TENSORS = 100_000
# A plain sequence of layers (`0.weight`) has no words; no model of a registry has such names.
_MIN_TENSORS, _MIN_WORDS = 8, 2
# Moving averages of the weights, and the number of their steps.
_COPIES = frozenset({*COPIES, "n_averaged"})
_DEEPEST_PREFIX = 6
_MAX_BUILDS = 60


def identify(shapes: Mapping[str, Shape], file: str = "") -> Match | None:
    """The model of torchvision, timm or transformers with these tensors, or None.

    `file` is the name of the file, which decides between models with the same tensors.
    """
    if not _MIN_TENSORS <= len(shapes) <= _MAX_TENSORS or len(Features(shapes).words) < _MIN_WORDS:
        return None
    for core in strip_prefixes(shapes):
        if found := match_listed(core, file) or match_named(core, file):
            return found
    for core in strip_prefixes(shapes):
        if found := match_similar(core, file):
            return found
    return match_other_versions(shapes)


def strip_prefixes(shapes: Mapping[str, Shape]) -> Iterator[dict[str, Shape]]:
    """The tensors by name, then without the common prefix, again and again; without averaged copies of the model."""
    current = _without_copies(shapes)
    for _ in range(_DEEPEST_PREFIX):
        yield current
        first = next(iter(current), "").partition(".")
        lead = first[0] + first[1]
        if not first[1] or not all(name.startswith(lead) for name in current):
            return
        current = _without_copies({name[len(lead) :]: shape for name, shape in current.items()})


def _without_copies(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Without averaged copies of the model, unless there is nothing else."""
    own = {name: shape for name, shape in shapes.items() if name.partition(".")[0] not in _COPIES}
    return own or dict(shapes)


def match_other_versions(shapes: Mapping[str, Shape]) -> Match | None:
    """Search the registries whose installed version is not that of the shipped tables."""
    found: list[Match] = []
    for registry, entrypoints in (("torchvision", torchvision_entrypoints), ("timm", timm_entrypoints)):
        if not is_current(registry):
            found += search_entrypoints(shapes, entrypoints(), Budget(builds=_MAX_BUILDS))
    if found:
        return replace(found[0], twins=tuple(match.target for match in found[1:]))
    return None if is_current("transformers") else search_transformers(shapes)
