"""Results that are put together part by part, and tables that are copied to be looked up in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.planted import said, seen


def rules_of(model: nn.Module, *inputs: Tensor) -> set[str]:
    return {advice.rule for advice in said(seen(model.eval(), inputs=inputs))}


def zipped(self: Any, h: Tensor) -> Tensor:
    even, odd = self.even(h), self.odd(h)
    rows = []
    for at in range(h.shape[0]):
        rows += [even[at].unsqueeze(0), odd[at].unsqueeze(0)]
    return torch.cat(rows, 0)


def zipped_by_writing(self: Any, h: Tensor) -> Tensor:
    made, out = self.even(h), torch.zeros_like(h)
    for at in range(h.shape[0]):
        out[at] = made[h.shape[0] - 1 - at]
    return out


def zipped_at_once(self: Any, h: Tensor) -> Tensor:
    return torch.stack([self.even(h), self.odd(h)], 1).flatten(0, 1)


def layers_joined(self: Any, h: Tensor) -> Tensor:
    out = []
    for _ in range(12):
        h = torch.relu(self.even(h))
        out.append(h[:2])
    return torch.cat(out)


def windows(self: Any, h: Tensor) -> Tensor:
    h = self.odd(h)
    return torch.stack([h[at : at + 4] for at in range(12)])


def irregular_windows(self: Any, h: Tensor) -> Tensor:
    h = self.odd(h)
    return torch.stack([h[at : at + 4] for at in (0, 1, 2, 4, 5, 6, 8, 9, 10, 12)])


LAYERS = {"even": nn.Linear(8, 8), "odd": nn.Linear(8, 8)}


@pytest.mark.parametrize(
    ("forward", "is_found"),
    [
        (zipped, True),
        (zipped_by_writing, True),
        (zipped_at_once, False),
        (layers_joined, False),
        (windows, True),
        (irregular_windows, False),
    ],
)
def test_a_loop_that_only_puts_parts_together_is_found(forward: Callable[..., Tensor], is_found: bool) -> None:
    assert ("joined-parts" in rules_of(Does(forward, **LAYERS), x(16, 8))) == is_found


def test_windows_are_unfolded() -> None:
    (found,) = (each for each in said(seen(Does(windows, **LAYERS), inputs=(x(16, 8),))) if each.rule == "joined-parts")
    assert "Tensor.unfold" in found.recommendation


def copied(self: Any, h: Tensor) -> Tensor:
    table = self.table.repeat(h.shape[0], 1, 1)
    return table.gather(1, h[..., None].expand(-1, -1, 16))


@pytest.mark.parametrize("is_read", [False, True])
def test_parts_whose_lengths_are_read_from_data_are_not_one_reshape(is_read: bool) -> None:
    def packed(_: Any, rows: Tensor, lengths: Tensor) -> Tensor:
        counts = lengths.tolist() if is_read else [rows.shape[1]] * rows.shape[0]
        return torch.relu(torch.cat([rows[at, :count] for at, count in enumerate(counts)]))

    found = said(seen(Does(packed), inputs=(x(12, 16, 32), torch.full((12,), 16))))
    assert ("joined-parts" in {advice.rule for advice in found}) is not is_read
