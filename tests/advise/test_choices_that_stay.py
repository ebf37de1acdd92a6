"""Lines that a search of unlike models found wrong, as classes: each with a faulty twin that still gets the line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.planted import said, seen
from torchgauge.advise.evidence import Evidence


def rules(evidence: Evidence) -> set[str]:
    return {advice.rule for advice in said(evidence)}


def layers(count: int, width: int = 64) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(width, width) for _ in range(count))


# --- choices that are no experts


def relations(self: Any, a: Tensor) -> Tensor:
    kind = self.kind((self.left(a)[:, :, None] + self.right(a)[:, None]).relu()).argmax(-1)
    return sum(((kind == at).float() @ layer(a) for at, layer in enumerate(self.layers)), start=a)


def relations_of_sums(self: Any, a: Tensor) -> Tensor:
    kind = F.one_hot(self.kind((self.left(a)[:, :, None] + self.right(a)[:, None]).relu()).argmax(-1), 4).float()
    return sum((layer(kind[..., at] @ a) for at, layer in enumerate(self.layers)), start=a)


def neighbours(self: Any, a: Tensor) -> Tensor:
    scores = self.left(a) @ self.right(a).mT
    least = scores.topk(3, -1)[0][..., -1:]
    weights = scores.masked_fill(scores < least, -1e9).softmax(-1)
    return sum((weights @ layer(a) for layer in self.layers), start=a)


def clusters(self: Any, a: Tensor) -> Tensor:
    cluster = F.one_hot(self.kind(a).argmax(-1), 4).float()
    mixed = cluster @ cluster.mT @ a
    return torch.cat([layer(mixed) for layer in self.layers], -1)


def clusters_by_layer(self: Any, a: Tensor) -> Tensor:
    cluster = F.one_hot(self.kind(a).argmax(-1), 4).float()
    return torch.cat([layer(cluster @ cluster.mT @ a) for layer in self.layers], -1)


def experts(self: Any, a: Tensor) -> Tensor:
    chosen = F.one_hot(self.kind(a).argmax(-1), 4).float()
    return sum((layer(a) * chosen[..., at, None] for at, layer in enumerate(self.layers)), start=a)


@pytest.mark.parametrize(
    ("forward", "count", "are_experts"),
    [
        (relations, 4, False),
        (relations_of_sums, 4, False),
        (neighbours, 20, False),
        (clusters, 4, False),
        (clusters_by_layer, 4, False),
        (experts, 4, True),
    ],
)
def test_what_relates_tokens_to_each_other_chooses_no_experts(forward: Any, count: int, are_experts: bool) -> None:
    model = Does(forward, left=nn.Linear(64, 64), right=nn.Linear(64, 64), kind=nn.Linear(64, 4), layers=layers(count))
    evidence = seen(model.eval(), inputs=(x(4, 20, 64),))

    assert bool(evidence.mixtures) == are_experts
    assert (evidence.totals.active_params < evidence.totals.params) == are_experts


@pytest.mark.parametrize("is_returned", [True, False])
def test_results_that_the_model_gives_back_are_not_thrown_away(is_returned: bool) -> None:
    def forward(self: Any, a: Tensor) -> Any:
        every = torch.stack([layer(a) for layer in self.layers], 1)
        best = every.gather(1, self.kind(a).argmax(1)[:, None, None].expand(-1, 1, 256))[:, 0]
        return (every, best) if is_returned else best

    model = Does(forward, kind=nn.Linear(256, 8), layers=layers(8, 256))
    evidence = seen(model.eval(), inputs=(x(512, 256),))

    assert ("dense-experts" in rules(evidence)) != is_returned


@pytest.mark.parametrize(("window", "is_named"), [(3, False), (1, True)])
def test_pixels_that_choose_are_not_gathered_for_a_window(window: int, is_named: bool) -> None:
    def forward(self: Any, a: Tensor) -> Tensor:
        every = torch.stack([layer(a) for layer in self.layers], 1)
        return every.gather(1, self.kind(a).argmax(1)[:, None, None].expand(-1, 1, 64, -1, -1))[:, 0]

    convolutions = nn.ModuleList(nn.Conv2d(64, 64, window, padding=window // 2) for _ in range(4))
    evidence = seen(Does(forward, kind=nn.Conv2d(64, 4, 1), layers=convolutions).eval(), 4, 64, 48, 48)

    assert ("dense-experts" in rules(evidence)) == is_named


# --- what an attribute keeps is read


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_map_that_the_model_keeps_is_not_pooled_before_it_is_made(is_kept: bool) -> None:
    def forward(self: Any, a: Tensor) -> Tensor:
        classes = self.layer(a)
        if is_kept:
            self.map = classes
        return classes.mean((2, 3))

    evidence = seen(Does(forward, layer=nn.Conv2d(64, 200, 1)).eval(), 4, 64, 32, 32)

    assert ("pointwise-before-pooling" in rules(evidence)) != is_kept


# --- casts that round on purpose, and types that are wide anyway


@pytest.mark.parametrize(("to", "is_named"), [(torch.uint8, False), (torch.bfloat16, True)])
def test_a_cast_to_whole_numbers_is_a_rounding(to: torch.dtype, is_named: bool) -> None:
    def forward(self: Any, a: Tensor) -> Tensor:
        return self.layer(a.float().mul(0.5).to(to)[:, :8].float())

    evidence = seen(Does(forward, layer=nn.Linear(512, 8)).eval(), inputs=(x(64, 64, 512).to(to),))

    assert ("cast-round-pointwise" in rules(evidence)) == is_named


@pytest.mark.parametrize(("is_wide", "wide_after"), [(True, 0), (False, 1)])
def test_an_op_whose_other_operand_is_wide_is_not_widened(is_wide: bool, wide_after: int) -> None:
    def forward(self: Any, a: Tensor) -> Tensor:
        scaled = a * self.scale
        return a.exp().float() + scaled if is_wide else scaled.exp()

    model = Does(forward, scale=nn.Parameter(torch.ones(512)))
    found = said(seen(model.eval(), inputs=(x(64, 64, 512).bfloat16(),)))

    (advice,) = [each for each in found if each.rule == "type-promotion"]
    assert advice.evidence["ops_after_in_wide_type"] == wide_after


# --- attention with a factor that is a tensor


@pytest.mark.parametrize(("is_tensor", "word"), [(True, "scale=1.0"), (False, "attn_mask")])
def test_a_factor_and_a_sum_are_both_passed(is_tensor: bool, word: str) -> None:
    def forward(self: Any, a: Tensor) -> Tensor:
        q, k, v = self.layer(a).view(4, 256, 3, 4, 32).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * (self.factor.exp() if is_tensor else 0.2) + self.bias
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    tensors = {"factor": nn.Parameter(torch.zeros(4, 1, 1)), "bias": nn.Parameter(torch.zeros(4, 256, 256))}
    found = said(seen(Does(forward, layer=nn.Linear(128, 384), **tensors).eval(), inputs=(x(4, 256, 128),)))

    (risk,) = [each.risk for each in found if each.rule == "attention-by-hand"]
    assert word in risk
    assert ("scale=1.0" in risk) == is_tensor


# --- waits that save work


@pytest.mark.parametrize(("words", "is_named"), [(20_000, False), (4, True)])
def test_rows_of_a_long_product_are_selected_to_save_work(words: int, is_named: bool) -> None:
    def forward(self: Any, a: Tensor) -> Tensor:
        a = self.layer(a)
        return self.head(a[a[..., 0] > 0])

    model = Does(forward, layer=nn.Linear(64, 64), head=nn.Linear(64, words))
    found = said(seen(model.eval(), inputs=(x(64, 64, 64),)))

    assert any("x[mask]" in each.recommendation for each in found) == is_named


@pytest.mark.parametrize("is_ragged", [True, False])
def test_rows_that_values_choose_are_not_computed_for_all_samples_at_once(is_ragged: bool) -> None:
    """With these weights every row is chosen, so that all samples seem to have as many."""

    def forward(self: Any, a: Tensor) -> Tensor:
        made, found = self.layer(a), []
        for sample in range(a.shape[0]):
            rows = made[sample]
            if is_ragged:
                rows = rows[rows[:, 0] > -100.0]
            found.append(torch.tanh(rows) * 2.0)
        return torch.cat(found)

    shown = rules(seen(Does(forward, layer=nn.Linear(8, 8)).eval(), inputs=(x(16, 32, 8),)))
    assert ("loop-over-samples" in shown) is not is_ragged
