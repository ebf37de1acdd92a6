"""Tensors that are copied to be made longer: where a list or a cache serves, and where neither does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.advise.fault_classes import Does, ids, x
from tests.advise.planted import said, seen
from torchgauge.advise import Advice


def advised(model: nn.Module, *inputs: Tensor) -> list[Advice]:
    return [advice for advice in said(seen(model, inputs=inputs)) if advice.rule == "grown-by-cat"]


def collected(self: Any, h: Tensor) -> Tensor:
    """The levels of a pyramid, joined as they are made."""
    out = h
    for _ in range(5):
        h = torch.relu(self.a(h))
        out = torch.cat([out, h], 1)
    return self.b(out)


def joined_once(self: Any, h: Tensor) -> Tensor:
    out = [h]
    for _ in range(5):
        out.append(torch.relu(self.a(out[-1])))
    return self.b(torch.cat(out, 1))


def last_part_read(self: Any, h: Tensor) -> Tensor:
    """A forecast that continues from its last step."""
    out = h[:, :2]
    for _ in range(6):
        out = torch.cat([out, torch.tanh(self.a(out[:, -1:]))], 1)
    return self.b(out)


def decoding(self: Any, h: Tensor) -> Tensor:
    """Attention over the steps so far."""
    keys, token, out = h[:, :4], h[:, :1], []
    for _ in range(6):
        keys = torch.cat([keys, self.a(token)], 1)
        token = F.scaled_dot_product_attention(token, keys, keys)
        out.append(token)
    return self.b(torch.cat(out, 1))


def scores_by_hand(self: Any, h: Tensor) -> Tensor:
    keys, token, out = h[:, :4], h[:, :1], []
    for _ in range(6):
        keys = torch.cat([keys, self.a(token)], 1)
        token = torch.softmax(token @ keys.transpose(1, 2), -1) @ keys
        out.append(token)
    return self.b(torch.cat(out, 1))


def all_normed(self: Any, h: Tensor) -> Tensor:
    """Each step normalizes all that has grown, so that attention reads a new tensor."""
    keys, token, out = h[:, :4], h[:, :1], []
    for _ in range(6):
        keys = torch.cat([keys, self.a(token)], 1)
        normed = F.layer_norm(keys, (32,))
        token = F.scaled_dot_product_attention(token, normed, normed)
        out.append(token)
    return self.b(torch.cat(out, 1))


def dense_features(self: Any, h: Tensor) -> Tensor:
    for layer in self.layers:
        h = torch.cat([h, layer(F.elu(h))], -1)
    return h


def dense_linear(self: Any, h: Tensor) -> Tensor:
    """As a network of densely connected layers for tables."""
    for layer in self.layers:
        h = torch.cat([h, torch.relu(layer(h))], -1)
    return h


def dense_signal(self: Any, h: Tensor) -> Tensor:
    """Read at once by a group norm, and by a convolution behind it."""
    for layer in self.layers:
        h = torch.cat([h, layer(F.group_norm(h, 4))], 1)
    return h


def lines(count: int = 5) -> dict[str, nn.Module]:
    return {"layers": nn.ModuleList(nn.Linear(32 + 16 * at, 16) for at in range(count))}


def two() -> dict[str, nn.Module]:
    return {"a": nn.Linear(32, 32), "b": nn.Linear(32, 8)}


@pytest.mark.parametrize("forward", [collected, last_part_read])
def test_parts_that_only_the_next_cat_reads_are_joined_once(forward: Callable[..., Tensor]) -> None:
    [found] = advised(Does(forward, **two()), x(4, 16, 32))

    assert found.recommendation.startswith("collect the parts in a list and join them once")
    assert "longest sequence" not in found.risk
    assert not advised(Does(joined_once, **two()), x(4, 16, 32))


@pytest.mark.parametrize("forward", [decoding, scores_by_hand])
def test_a_cache_that_attention_reads_is_allocated_once(forward: Callable[..., Tensor]) -> None:
    [found] = advised(Does(forward, **two()), x(4, 16, 32))

    assert found.recommendation.startswith("write into a cache that is allocated once")
    assert "longest sequence" in found.risk
    assert not advised(Does(all_normed, **two()), x(4, 16, 32))


def test_what_layers_read_as_it_grows_is_left_alone() -> None:
    convolutions = nn.ModuleList(nn.Conv1d(16 + 8 * at, 8, 3, padding=1) for at in range(5))

    def every_prefix(self: Any, h: Tensor) -> list[Tensor]:
        grown = [h[:, :1]]
        for at in range(1, 6):
            grown.append(torch.cat([grown[-1], self.a(h[:, at : at + 1])], 1))
        return grown

    assert not advised(Does(every_prefix, **two()), x(4, 16, 32))
    assert not advised(Does(dense_features, **lines()), x(64, 32))
    assert not advised(Does(dense_linear, **lines()), x(64, 32))
    assert not advised(Does(dense_signal, layers=convolutions), x(2, 16, 64))


def test_a_cache_that_is_given_and_given_back_is_read_by_attention() -> None:
    def attends(self: Any, h: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        keys = torch.cat([past, self.a(h)], 1)
        return torch.softmax(h @ keys.transpose(1, 2), -1) @ keys, keys

    def convolves(self: Any, h: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """A streaming convolution keeps the last samples: what is given back is short, and read by a layer."""
        frames = torch.cat([past, h], 1)
        return self.c(frames.transpose(1, 2)), frames

    given = x(1, 1, 32), x(1, 255, 32)
    [found] = advised(Does(attends, a=nn.Linear(32, 32)), *given)

    assert found.recommendation.startswith("write into a cache")
    assert not advised(Does(convolves, c=nn.Conv1d(32, 8, 3)), *given)


# --- one-hot rows


def looks_up(self: Any, i: Tensor) -> Tensor:
    return self.layer(F.one_hot(i, 50).float())


def compares(self: Any, i: Tensor) -> Tensor:
    return self.layer((i[:, None] == torch.arange(50)).float())


def sums_classes(self: Any, i: Tensor) -> Tensor:
    """Rows of the table by class: a sum, not a lookup."""
    return F.one_hot(i, 50).float().T @ self.table


def marks_several(self: Any, i: Tensor) -> Tensor:
    return self.layer(torch.zeros(32, 50).scatter_(1, i.view(32, 4), 1.0))


def in_function(self: Any, i: Tensor) -> Tensor:
    return F.linear(F.one_hot(i, 50).float(), self.layer.weight, self.layer.bias)


def in_network(self: Any, i: Tensor) -> Tensor:
    return self.network(F.one_hot(i, 50).float())


@pytest.mark.parametrize(
    ("forward", "is_said", "has_code"),
    [
        (looks_up, True, True),
        (compares, True, False),
        (sums_classes, False, False),
        (marks_several, False, False),
        (in_function, True, False),
        (in_network, True, False),
    ],
)
def test_a_lookup_replaces_products_over_one_class_in_each_row(
    forward: Callable[..., Tensor], is_said: bool, has_code: bool
) -> None:
    layer = nn.Linear(50, 64)
    model = Does(forward, layer=layer, network=nn.Sequential(layer, nn.ReLU()), table=x(128, 64))

    found = [each for each in said(seen(model, inputs=(ids(128, high=50),))) if each.rule == "one-hot-product"]

    assert len(found) == is_said
    assert [each.code is not None for each in found] == ([has_code] if is_said else [])
    assert [each.risk != "none" for each in found] == ([forward is compares] if is_said else [])
