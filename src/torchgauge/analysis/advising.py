"""Advice, found when it is first asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchgauge.analysis.result import Advisor, Analysis


def advisor(silence: Sequence[str]) -> Advisor:
    """Names that no rule has are refused at once."""
    if silence:
        from torchgauge.advise import check_names

        check_names(silence)

    def find(found: Analysis) -> tuple[Mapping[str, Any], ...]:
        from torchgauge.advise import Evidence, advise

        return tuple(advice.member() for advice in advise(Evidence(found.capture, found), silence))

    return find
