"""Branches for machines without a device, statistics of nodes, neighbours in rows, elements that a loop reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.planted import said, seen
from torchgauge.advise import Advice, advise


def of_rule(model: nn.Module, rule: str, *inputs: Any) -> list[Advice]:
    return [advice for advice in said(seen(model.eval(), inputs=inputs)) if advice.rule == rule]


def placed_by_device(self: Any, a: Tensor) -> Tensor:
    made = self.layer(a)
    if torch.cuda.is_available():
        return self.layer(made.cuda())
    made = made.clone() if self.training else made
    if not made.is_cuda:
        made = made.cpu()
    return self.layer(made)


def placed_in_one_line(self: Any, a: Tensor) -> Tensor:
    made = self.layer(a)
    return self.layer(made.cuda() if made.is_cuda else made.cpu())


def brought_to_the_host(self: Any, a: Tensor) -> Tensor:
    return self.layer(self.layer(self.layer(self.layer(a).cpu()).cpu()).cpu())


@pytest.mark.parametrize(
    ("forward", "waits"), [(placed_by_device, False), (placed_in_one_line, False), (brought_to_the_host, True)]
)
def test_a_branch_for_machines_without_a_device_does_not_wait(forward: Any, waits: bool) -> None:
    assert bool(of_rule(Does(forward, layer=nn.Linear(8, 8)), "host-wait", x(16, 8))) is waits


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(32, 8)

    def forward(self, a: Tensor, padding: Tensor) -> Tensor:
        mask = torch.ones(a.shape[1], a.shape[1], dtype=torch.bool).triu(1)
        a = self.encoder(a, mask=mask, src_key_padding_mask=padding)
        return torch.topk(self.head(a), 3).values


def test_a_mask_that_torch_looks_at_is_not_taken_for_lengths() -> None:
    padding = torch.zeros(4, 16, dtype=torch.bool)
    padding[1, 12:] = True
    lines = of_rule(Sequences(), "host-wait", x(4, 16, 32), padding)
    assert lines
    assert {line.recommendation.partition(":")[0] for line in lines} == {"pass is_causal"}


@pytest.mark.parametrize("is_given", [True, False])
def test_statistics_of_nodes_that_a_model_holds_depend_on_no_sample(is_given: bool) -> None:
    def forward(self: Any, a: Tensor) -> Tensor:
        nodes = self.norm(self.embed(a if is_given else self.nodes))
        return a @ nodes.mT

    parts = {"embed": nn.Linear(32, 32), "norm": nn.BatchNorm1d(32, track_running_stats=False)}
    model = Does(forward, **parts, nodes=nn.Parameter(torch.rand(64, 32)))
    assert bool(of_rule(model, "batch-statistics-in-evaluation", x(16, 32))) is is_given


def places_of_one(self: Any, a: Tensor) -> Tensor:
    made = self.layer(a)
    places = made.sum(1).topk(6).indices
    parts = []
    for sample in range(len(a)):
        for k in range(places.shape[1]):
            at = places[sample, k].clamp(1, 30).item()
            parts.append(made[sample, :, at - 1 : at + 1].mean(1))
    return torch.stack(parts)


def places_of_many(self: Any, a: Tensor) -> Tensor:
    parts = []
    for _ in range(6):
        at = self.layer(a).sum((0, 1)).argmax().item()
        a = torch.cat([a[:, :, :at], a[:, :, at:] * 2], 2)
        parts.append(a.mean(2))
    return torch.stack(parts)


def largest_of_one(self: Any, a: Tensor) -> Tensor:
    made = self.layer(a)
    rounds = 0
    while rounds < 5 and made.amax().item() > 2 * rounds:
        rounds += 1
    return made * rounds


@pytest.mark.parametrize(
    ("forward", "are_of_one"), [(places_of_one, True), (places_of_many, False), (largest_of_one, False)]
)
def test_elements_that_a_loop_reads_one_by_one_can_be_read_together(forward: Any, are_of_one: bool) -> None:
    lines = of_rule(Does(forward, layer=nn.Conv1d(8, 8, 3)), "host-wait", x(4, 8, 64))
    assert [".tolist() before the loop" in line.recommendation for line in lines] == [are_of_one]


@pytest.mark.parametrize(
    ("blocks", "side", "kernel", "is_sure"),
    [(4, 96, 3, False), (24, 96, 3, True), (4, 48, 3, True), (4, 96, 1, True)],
    ids=["few large blocks", "many large blocks", "few small blocks", "norms that take much of the time"],
)
def test_the_fold_of_few_large_blocks_is_left_to_all_advice(blocks: int, side: int, kernel: int, is_sure: bool) -> None:
    parts = [(nn.Conv2d(16, 16, kernel, padding=kernel // 2), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(blocks)]
    evidence = seen(nn.Sequential(*(layer for part in parts for layer in part)).eval(), 2, 16, side, side)

    assert "conv-bn-fusion" in {advice.rule for advice in said(evidence)}
    assert ("conv-bn-fusion" in {advice.rule for advice in advise(evidence)}) is is_sure
