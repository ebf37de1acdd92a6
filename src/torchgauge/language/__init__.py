"""Language models: what a prompt and a token cost, what the cache holds, what fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.language.costs import cost_of, extended
    from torchgauge.language.passes import Observed, Pass, Point, observe

__all__ = [
    "Observed", "Pass", "Point", "cost_of", "extended", "observe",
]  # fmt: skip

__getattr__ = lazy_names(__name__)
