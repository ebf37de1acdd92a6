"""A few numbers that stand for a set of names, so that sets that are nearly the same can be found."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nsmallest

from torchgauge.source.identify.fingerprint import hash_text

_KEPT = 16
_BYTES = 3
_SHIFT = 64 - 8 * _BYTES


@dataclass(frozen=True, slots=True)
class Sketch:
    """The smallest of the names' hashes: of two sets, those of their union tell which share they have in common."""

    hashes: frozenset[int]

    @classmethod
    def of(cls, names: Iterable[str]) -> Sketch:
        return cls(frozenset(nsmallest(_KEPT, {hash_text(name) >> _SHIFT for name in names})))

    def likeness(self, other: Sketch) -> float:
        """From 0 to 1, where all names are the same."""
        smallest = nsmallest(_KEPT, self.hashes | other.hashes)
        both = self.hashes & other.hashes
        return sum(value in both for value in smallest) / len(smallest) if smallest else 0.0

    def to_text(self) -> str:
        return b64encode(b"".join(value.to_bytes(_BYTES, "big") for value in sorted(self.hashes))).decode()

    @classmethod
    def from_text(cls, text: str) -> Sketch:
        data = b64decode(text)
        return cls(frozenset(int.from_bytes(data[at : at + _BYTES], "big") for at in range(0, len(data), _BYTES)))
