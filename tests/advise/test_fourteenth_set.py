"""Lines that blind judges found wrong or unclear on public models (docs/advice-corpus.md, fourteenth set), as classes
and on other models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.planted import said, seen


def rules(model: nn.Module, *inputs: Tensor) -> set[str]:
    return {advice.rule for advice in said(seen(model.eval(), inputs=inputs))}


# --- a scale that is not the default


@pytest.mark.parametrize(("scale", "words"), [(64**-0.5, None), (256**-0.5, "scale=0.0625"), (1.0, "scale=1")])
def test_another_scale_is_named_where_no_code_is_given(scale: float, words: str | None) -> None:
    def attend(self: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bhid,bhjd->bhij", q, k)
        scores = scores if scale == 1 else scores * scale
        return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)

    found = said(seen(Does(attend), inputs=tuple(x(2, 4, 600, 64) for _ in range(3))))
    (advice,) = [each for each in found if each.rule == "attention-by-hand"]

    assert advice.change is None
    assert ("scale=" in advice.recommendation) is (words is not None)
    assert words is None or words in advice.recommendation
