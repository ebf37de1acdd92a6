"""Names such as "stem.conv.weight": who owns them, and what they own. The model is ""."""

from __future__ import annotations

from collections.abc import Iterable


def with_owners(name: str) -> list[str]:
    """The model, every owner from the outside in, and the name itself; the model alone for ""."""
    parts = name.split(".") if name else []
    return [".".join(parts[:end]) for end in range(len(parts) + 1)]


def members(owner: str, names: Iterable[str]) -> list[str]:
    """Those of the names that stand right below the owner."""
    prefix = f"{owner}." if owner else ""
    return [name for name in names if name and name.startswith(prefix) and "." not in name[len(prefix) :]]
