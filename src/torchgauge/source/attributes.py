"""Attributes of the user's objects."""

from __future__ import annotations

from typing import Any


def attribute_of(holder: object, name: str, default: object = None) -> Any:
    """An attribute of the user's object; the default also where a property or `__getattr__` raises anything else than
    AttributeError."""
    try:
        return getattr(holder, name, default)
    except Exception:
        return default
