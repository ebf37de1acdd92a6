"""Names that were probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the closest known names, led by a space; empty where nothing is close."""
    folded = {candidate.lower(): candidate for candidate in known}
    matches = [folded[match] for match in get_close_matches(name.lower(), folded, n=3, cutoff=0.6)]
    if not matches:
        return ""
    return f" Did you mean {' or '.join(repr(match) for match in matches)}?"
