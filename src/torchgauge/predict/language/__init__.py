"""Language models: what a prompt and a token cost, what the cache holds, what fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.predict.language.costs import *
    from torchgauge.predict.language.passes import *

_HOMES = {
    "costs": ("cost_of", "extended"),
    "passes": ("Observed", "Pass", "Point", "observe"),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
