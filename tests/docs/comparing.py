"""Compares the output on a page with the actual output.

A line `…` on the page stands for any lines, `…` within a line for anything. By shape, figures with their units are all
alike, a missing one (`-`) too, and so is all space: the words and their order are what counts.
"""

from __future__ import annotations

import re

ANYTHING = "…"
_UNIT = r"%|[kMGTP]?(FLOP|OP)/s|[kMGT]?B/s|[KMGT]iB|[numµ]?[sJgW](?![a-z])|[kMG](?![a-z])|B\b|°C"
_FIGURE = re.compile(rf"[+−-]?\d[\d,.]*(e[+-]?\d+)?( ?({_UNIT}))?|(?<!\S)-(?!\S)")


def matches(shown: str, given: str, *, by_shape: bool = False) -> bool:
    if by_shape:
        return _text_matches(_shape(shown), _shape(given))
    wanted = [line.rstrip() for line in shown.strip("\n").splitlines()]
    found = [line.rstrip() for line in given.strip("\n").splitlines()]
    return _lines_match(wanted, found)


def _lines_match(wanted: list[str], found: list[str]) -> bool:
    """`reached[n]`: whether the wanted lines so far can end at the n-th found one."""
    reached = [True] + [False] * len(found)
    for line in wanted:
        if line.strip() == ANYTHING:
            first = reached.index(True) if True in reached else len(reached)
            reached = [place >= first for place in range(len(found) + 1)]
        else:
            reached = [False, *(reached[place] and _text_matches(line, text) for place, text in enumerate(found))]
    return reached[-1]


def _text_matches(wanted: str, found: str) -> bool:
    """Each part is looked for behind the one before it: the first that fits leaves most to the others."""
    first, *parts = [part.strip() for part in wanted.split(ANYTHING)]
    if not parts:
        return wanted == found
    found = found.strip()
    if not found.startswith(first) or not found.endswith(parts[-1]):
        return False
    at = len(first)
    for part in parts[:-1]:
        at = found.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return at <= len(found) - len(parts[-1])


def _shape(text: str) -> str:
    """Where lines are broken depends on the figures too."""
    return _FIGURE.sub("#", " ".join(text.split()))
