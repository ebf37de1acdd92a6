"""The weights of two sides: which tensors both have, and how far their figures are apart.

Statistics can show that two tensors differ, not that they are equal; `drift`, from the files themselves, shows both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from torchgauge.checkpoint.tensor_names import common_names
from torchgauge.facts import Row, View
from torchgauge.report.comparison.matching import Matching, name_in_model

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Against

FIGURES = ("mean", "std", "abs_max", "l2", "sparsity", "entropy_bits")


@dataclass(frozen=True, slots=True)
class WeightPair:
    """A tensor of both sides; `figures` are (base, other), `shift` the relative change of its norm."""

    name: str
    other_name: str
    shape: tuple[int, ...]
    other_shape: tuple[int, ...]
    dtype: str
    other_dtype: str
    figures: Mapping[str, tuple[float | None, float | None]]

    @property
    def shift(self) -> float | None:
        base, other = self.figures.get("l2", (None, None))
        if base is None or other is None or not base:
            return None
        shift = other / base - 1
        return shift if isfinite(shift) else None

    @property
    def is_equal(self) -> bool:
        """Judged by the statistics."""
        same_form = (self.shape, self.dtype) == (self.other_shape, self.other_dtype)
        return same_form and all(base == other for base, other in self.figures.values())


@dataclass(frozen=True, slots=True)
class WeightsCompared:
    pairs: tuple[WeightPair, ...]
    removed: tuple[str, ...]
    added: tuple[str, ...]
    drift: Against | None = None

    @property
    def moved(self) -> list[WeightPair]:
        """Those that differ, the largest change first; what changed from nothing has no size and comes last."""
        differing = [pair for pair in self.pairs if not pair.is_equal]
        return sorted(differing, key=lambda pair: (pair.shift is None, -abs(pair.shift or 0.0)))


def compare_weights(
    base: View, other: View, matching: Matching, drift: Against | None = None
) -> WeightsCompared | None:
    """None where not both sides have tensors whose values were read."""
    mine, theirs = _read_rows(base), _read_rows(other)
    if not mine or not theirs:
        return None
    # By their names without wrappers; then a tensor goes where its module went.
    ours, others = common_names(_shapes(mine), _shapes(theirs))
    spelled = {stored: others[name] for name, stored in ours.items() if name in others}
    in_model = {name_in_model(row): row.name for row in theirs.values()}
    taken = set(spelled.values())
    pairs = []
    for name, row in mine.items():
        path, _, leaf = (there := name_in_model(row)).rpartition(".")
        if (partner := matching.partner.get(path)) is not None:
            there = f"{partner.path}.{leaf}" if partner.path else leaf
        found = spelled.get(name) or in_model.get(there)
        if found is None or (name not in spelled and found in taken):
            continue
        match = theirs[found]
        figures = {key: (row.get(key), match.get(key)) for key in FIGURES}
        forms = tuple(row.shape), tuple(match.shape), row.dtype, match.dtype
        pairs.append(WeightPair(name, match.name, *forms, figures))
    kept, matched = {pair.name for pair in pairs}, {pair.other_name for pair in pairs}
    removed = tuple(name for name in mine if name not in kept)
    return WeightsCompared(tuple(pairs), removed, tuple(name for name in theirs if name not in matched), drift)


def _read_rows(view: View) -> dict[str, Row]:
    return {row.name: row for row in view.weights if row.role != "optimizer" and row.get("l2") is not None}


def _shapes(rows: Mapping[str, Row]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(row.shape) for name, row in rows.items()}
