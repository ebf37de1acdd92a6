"""Names that were probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def close_names(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Up to three known names that are close, the closest first; capital letters do not matter."""
    folded = {candidate.lower(): candidate for candidate in known}
    return [folded[match] for match in get_close_matches(name.lower(), folded, n=3, cutoff=cutoff)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the closest known names, led by a space; empty where nothing is close."""
    matches = close_names(name, known)
    if not matches:
        return ""
    return f" Did you mean {' or '.join(repr(match) for match in matches)}?"
