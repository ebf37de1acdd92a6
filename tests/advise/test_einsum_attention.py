"""Attention by einsum and by products in other orders: the softmax must be over the keys."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import x
from tests.advise.planted import said, seen

Attends = Callable[[Tensor, Tensor, Tensor], Tensor]


class Attention(nn.Module):
    """Queries, keys and values as length, batch, heads, features."""

    def __init__(self, attend: Attends) -> None:
        super().__init__()
        self.attend, self.qkv, self.out = attend, nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, a: Tensor) -> Tensor:
        q, k, v = (part.view(*a.shape[:2], 4, 16) for part in self.qkv(a).chunk(3, -1))
        return self.out(self.attend(q, k, v).reshape(a.shape))


def by_einsum(scores: str, axis: int, result: str, mask: bool = False) -> Attends:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        written = torch.einsum(scores, q, k) * 0.25
        if mask:
            written = written.masked_fill(torch.ones(64, 64, 1, 1).triu(1) > 0, float("-inf"))
        return torch.einsum(result, written.softmax(axis), v)

    return attend


def keys_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (each.permute(1, 2, 0, 3) for each in (q, k, v))
    weights = torch.softmax(k @ q.transpose(-2, -1) / 4, dim=-2)
    return (weights.transpose(-2, -1) @ v).permute(2, 0, 1, 3)


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (each.permute(1, 2, 0, 3) for each in (q, k, v))
    return nn.functional.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3)


FORMS = {
    "queries first": by_einsum("ibhd,jbhd->ijbh", 1, "ijbh,jbhd->ibhd"),
    "masked": by_einsum("ibhd,jbhd->ijbh", 1, "ijbh,jbhd->ibhd", mask=True),
    "batch first": by_einsum("qnhd,knhd->nhqk", -1, "nhqk,knhd->qnhd"),
    "batch first, heads last": by_einsum("qnhd,knhd->nqkh", 2, "nqkh,knhd->qnhd"),
    "keys before queries": by_einsum("qnhd,knhd->kqnh", 0, "kqnh,knhd->qnhd"),
    "keys first": keys_first,
}
OTHERS = {
    "over the queries": by_einsum("ibhd,jbhd->ijbh", 0, "ijbh,jbhd->ibhd"),
    "over the heads": by_einsum("ibhd,jbhd->ijbh", 3, "ijbh,jbhd->ibhd"),
    "over the batch": by_einsum("ibhd,jbhd->ijbh", 2, "ijbh,jbhd->ibhd"),
    "fused": fused,
}


def count(attend: Attends) -> int:
    model = Attention(attend).eval()
    return sum(each.rule == "attention-by-hand" for each in said(seen(model, inputs=(x(64, 2, 64),))))


@pytest.mark.parametrize("form", FORMS)
def test_attention_by_any_product_is_found(form: str) -> None:
    assert count(FORMS[form]) == 1


@pytest.mark.parametrize("form", OTHERS)
def test_a_softmax_over_another_dimension_is_not_attention(form: str) -> None:
    assert count(OTHERS[form]) == 0
