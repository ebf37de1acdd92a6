"""The members of `measurements`, absent or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchgauge.facts import View


def measured_member(view: View, name: str) -> Mapping[str, Any]:
    """A member that is an object; empty where it was not measured."""
    return _figures(view).get(name) or {}


def measured_rows(view: View, name: str, *, within: str | None = None) -> list[Mapping[str, Any]]:
    """A member that is a list, or a list within one; empty where it was not measured."""
    figures = _figures(view) if within is None else measured_member(view, within)
    return list(figures.get(name) or ())


def _figures(view: View) -> Mapping[str, Any]:
    return view.measurements or {}
