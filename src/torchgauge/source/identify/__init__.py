"""Identify the installed architecture that a bare state dict belongs to; names and shapes must agree exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.source.identify.config_solver import *
    from torchgauge.source.identify.features import *
    from torchgauge.source.identify.fingerprint import *
    from torchgauge.source.identify.fitting import *
    from torchgauge.source.identify.identification import *
    from torchgauge.source.identify.lookup import *
    from torchgauge.source.identify.match import *
    from torchgauge.source.identify.outline import *
    from torchgauge.source.identify.search import *
    from torchgauge.source.identify.settings import *
    from torchgauge.source.identify.transformers import *
    from torchgauge.source.identify.trials import *

_HOMES = {
    "config_solver": ("layer_lists", "spacings", "stage_lists"),
    "features": ("Features", "rank_vocabularies", "score_definition", "spells", "vocabulary"),
    "fingerprint": (
        "FINGERPRINTS", "NAME_PATTERNS", "Known", "Sketch", "Sums", "candidates", "is_current", "read_table",
    ),
    "fitting": ("starting_settings",),
    "identification": ("identify", "match_other_versions"),
    "lookup": ("may_be_listed", "strip_prefixes"),
    "match": ("Match",),
    "outline": ("MEMBERS", "NAMED", "Outline", "modern", "pattern_of", "pattern_sum", "spellings"),
    "search": ("Budget", "other_classes", "search_entrypoints", "timm_entrypoints", "torchvision_entrypoints"),
    "settings": ("numbers", "switches", "unset_numbers", "with_value", "with_width", "without"),
    "transformers": ("known_names", "search_transformers"),
    "trials": ("Probe", "answers", "configure", "curved_answers", "fit_tokens", "is_accepted"),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
