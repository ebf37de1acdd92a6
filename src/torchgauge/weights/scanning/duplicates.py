"""Tensors with the same content under another name: equal tallies first, then every byte."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np

from torchgauge.errors import FormatError
from torchgauge.weights.scanning.tensors import Finished
from torchgauge.weights.stream.plan import TensorPlan
from torchgauge.weights.stream.reading import Reader, piece_parts


class Duplicates:
    """Takes tensors in the order of the file and names the first of equal ones."""

    def __init__(self, reader: Reader, plans: dict[str, TensorPlan]) -> None:
        self._reader, self._plans = reader, plans
        self._firsts: dict[str, list[str]] = {}

    def first_like(self, found: Finished) -> str | None:
        """The earlier tensor with the same content; None where this is the first."""
        if found.fingerprint is None:
            return None
        known = self._firsts.setdefault(found.fingerprint, [])
        for name in known:
            if same_content(self._reader, self._plans[name], self._plans[found.name]):
                return name
        known.append(found.name)
        return None


def same_content(reader: Reader, first: TensorPlan, second: TensorPlan) -> bool:
    if first.entry.big_endian != second.entry.big_endian:
        return False
    try:
        for one, other in zip_longest(first.pieces, second.pieces):
            if one is None or other is None or one.nbytes != other.nbytes:
                return False  # chunks of other shapes: their bytes come in another order
            kept = [part.copy() for part in piece_parts(reader, one)]
            if not all(map(np.array_equal, kept, piece_parts(reader, other))):
                return False
    except FormatError:
        return False  # the file changed meanwhile: nothing is known of their equality
    return True
