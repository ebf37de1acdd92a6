"""Code given for stored weights: names and shapes must agree."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from torchgauge.errors import TargetError
from torchgauge.source.matching import best_fit
from torchgauge.source.state_names import Shape


def check_fit(model: nn.Module, stored: Mapping[str, Shape], code: str, file: str) -> tuple[str, ...]:
    """What the report must say about tensors that only one side has.

    A shape that disagrees, or names of which fewer than half agree, mean that the code is not that of the file.
    """
    differences = best_fit(model, stored)
    if not differences:
        return ()
    known = len(stored) - len(differences.unexpected)
    if differences.mismatched or known * 2 < len(stored):
        raise TargetError(f"'{file}' does not fit '{code}':\n{differences.describe()}")
    return (f"'{file}' and '{code}' differ. {differences.describe()}",)
