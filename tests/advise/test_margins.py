"""Where a gain is clear of its margin: waits of the host, kernels that a CPU does not have, norms that order a tensor,
copies of products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.advise.fault_classes import Does, x
from tests.advise.planted import on_cuda, said, seen
from torchgauge import analyze
from torchgauge.advise import Advice, Gain, Machine, Where, advise
from torchgauge.advise.code import Patch
from torchgauge.advise.registry import (
    LEAST_PREDICTED_TIME,
    LEAST_TIME,
    LEAST_TIME_OF_EDIT,
    load_rules,
    ranked,
)
from torchgauge.hardware import Peaks


def of_rule(model: nn.Module, rule: str, *inputs: Any) -> list[Advice]:
    return [advice for advice in said(seen(model, inputs=inputs)) if advice.rule == rule]


# --- values on the host


def until_small(self: Any, h: Tensor) -> Tensor:
    for _ in range(12):
        h = torch.tanh(self.layer(h))
        if h.abs().max() < 0.0:
            break
    return h


def checked(self: Any, h: Tensor) -> Tensor:
    assert torch.isfinite(h).all(), "not finite"
    if (h > 1e6).any():
        raise ValueError("too large")
    return torch.tanh(self.layer(h))


def clipped(self: Any, h: Tensor) -> Tensor:
    h = self.layer(h)
    if h.max() > 0:
        h = h.clamp(max=10)
    return h


def scaled(self: Any, h: Tensor) -> Tensor:
    return self.layer(h) * h.std().item()


def sampled(self: Any, h: Tensor) -> Tensor:
    mean = self.layer(h)
    noise = torch.distributions.Normal(mean, mean.exp())
    return noise.rsample()


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (until_small, "avoid"),
        (checked, "avoid"),
        (clipped, "avoid"),
        (scaled, "avoid .item()"),
        (sampled, "call Distribution.set_default_validate_args(False)"),
    ],
)
def test_the_call_that_the_host_waits_for_is_named(forward: Callable[..., Tensor], words: str) -> None:
    found = of_rule(Does(forward, layer=nn.Linear(16, 16)), "host-wait", x(4, 16))

    assert {advice.recommendation.startswith(words) for advice in found} == {True}


def test_a_copy_of_points_on_the_host_stays_there() -> None:
    def sparser(self: Any, points: Tensor) -> Tensor:
        at = self.layer(points).clone().cpu()
        for _ in range(3):
            at = at[:, torch.randperm(at.shape[1])[: at.shape[1] // 2]]
            near = torch.cdist(at.cpu(), at.cpu()).argmin(-1)
        return at.gather(1, near[..., None].expand(-1, -1, 3))

    found = of_rule(Does(sparser, layer=nn.Linear(3, 3)), "host-wait", x(2, 64, 3))

    assert [advice.evidence.get("count", 1) for advice in found] == [1]


# --- attention


class Heads(nn.Module):
    """Keys of 16 features and values of `values`; queries, keys and values from a convolution if `turned`."""

    def __init__(self, values: int, turned: bool = False, mask: bool = False) -> None:
        super().__init__()
        self.turned, self.mask, self.values = turned, mask, values
        width = 2 * 4 * 16 + 4 * values
        self.makes = nn.Conv1d(64, width, 1) if turned else nn.Linear(64, width)

    def forward(self, h: Tensor) -> Tensor:
        made = self.makes(h.transpose(1, 2)).transpose(1, 2) if self.turned else self.makes(h)
        q, k, v = made.split([64, 64, 4 * self.values], -1)
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in (q, k, v))
        scores = q @ k.transpose(-2, -1) / 4
        if self.mask:
            scores = scores.masked_fill(h.mean(-1)[:, None, None] > 9, -1e9)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_values_of_another_size_have_no_fused_kernel_on_a_cpu() -> None:
    assert of_rule(Heads(16), "attention-by-hand", x(2, 256, 64))
    assert of_rule(Heads(32), "attention-by-hand", x(2, 256, 64)) == []


@pytest.mark.parametrize("is_named", [True, False])
def test_short_sequences_do_not_fill_the_blocks_of_a_fused_kernel_on_cuda(is_named: bool) -> None:
    """As predicted for a device that is named, and by the peaks of one that the model is on."""

    def found(samples: int, tokens: int, dtype: torch.dtype = torch.float32) -> bool:
        model, given = Heads(16).to(dtype), x(samples, tokens, 64).to(dtype)
        if is_named:
            rows = analyze(model.eval(), inputs=given, on="h200", progress=False).advice
            return any(row["rule"] == "attention-by-hand" for row in rows)
        peaks = Peaks("a GPU", {"float32": 67e12, "float64": 34e12, "bfloat16": 989e12}, 4.8e12)
        evidence = on_cuda(seen(model, inputs=given), Machine(peaks, matmul_tf32=False, convolution_tf32=True))
        return any(row.rule == "attention-by-hand" for row in said(evidence))

    assert not found(4096, 16)
    assert found(16, 512)
    assert found(16, 512, torch.bfloat16)
    assert not found(16, 512, torch.float64)  # there is no fused kernel for it


def test_what_fused_attention_asks_for_is_said() -> None:
    [plain] = of_rule(Heads(16), "attention-by-hand", x(2, 256, 64))
    [turned] = of_rule(Heads(16, turned=True), "attention-by-hand", x(2, 256, 64))
    [masked] = of_rule(Heads(16, mask=True), "attention-by-hand", x(2, 256, 64))

    assert "contiguous" not in plain.recommendation
    assert "contiguous" in turned.recommendation
    assert "all masked" in masked.risk
    assert "all masked" not in plain.risk


# --- norms that order a tensor


class SetEncoder(nn.Module):
    """A linear layer over the points of a set, a batch norm over their features, and a sum over the points."""

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.reads, self.layer, self.norm = reads, nn.Linear(32, 128), nn.BatchNorm1d(128)

    def forward(self, points: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.layer(points).transpose(1, 2)))
        if self.reads == "turned points":
            return (h.permute(1, 0, 2) * points.mean(-1)).sum(-1)
        return h.sum(-1) if self.reads == "points" else h.transpose(1, 2).amax(1)


def test_a_norm_that_puts_a_tensor_in_order_for_a_sum_stays() -> None:
    assert of_rule(SetEncoder("features").eval(), "linear-bn-fusion", x(16, 256, 32))
    for reads in ("points", "turned points"):
        assert of_rule(SetEncoder(reads).eval(), "linear-bn-fusion", x(16, 256, 32)) == []


# --- what is shown


def _piece(rule: str, middle: float, basis: str) -> Advice:
    gain = Gain("time_s", middle / 2, middle * 2, "", basis=basis)
    return Advice(rule, Where("layer", (0,)), {}, "do", None, gain, "none", "high")


@pytest.mark.parametrize(
    ("rule", "basis", "least"),
    [
        ("repeated-work", "predicted", LEAST_PREDICTED_TIME),
        ("repeated-work", "measured", 0.015),
        ("recomputed-weight", "predicted", LEAST_PREDICTED_TIME),
    ],
)
def test_predicted_gains_need_a_margin(rule: str, basis: str, least: float) -> None:
    load_rules()
    assert ranked([_piece(rule, 1.01 * least, basis)])
    assert not ranked([_piece(rule, 0.99 * least, basis)])
    assert ranked([_piece(rule, 0.99 * least, basis)], all_advice=True)


def test_a_patch_is_shown_for_less_than_an_edit() -> None:
    between = _piece("conv-bn-fusion", (LEAST_TIME + LEAST_TIME_OF_EDIT) / 2, "measured")

    assert not ranked([between])
    assert ranked([replace(between, change=Patch("pass"))])


def test_nothing_waits_where_a_tensor_is_compared_with_itself() -> None:
    def attends(self: Any, query: Tensor, key: Tensor) -> Tensor:
        return self.layer(query) if torch.equal(query, key) else self.layer(query) + key

    class SelfAttends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Does(attends, layer=nn.Linear(8, 8))

        def forward(self, h: Tensor) -> Tensor:
            return self.part(h, h)

    assert of_rule(SelfAttends(), "host-wait", x(4, 8)) == []
    assert of_rule(Does(attends, layer=nn.Linear(8, 8)), "host-wait", x(4, 8), x(4, 8) + 1)


def test_a_recurrent_layer_in_place_of_a_loop_says_that_nothing_may_be_fed_back() -> None:
    def steps(self: Any, frames: Tensor) -> Tensor:
        h = frames.new_zeros(frames.shape[0], 32)
        made = []
        for t in range(frames.shape[1]):
            h = self.cell(frames[:, t], h)
            made.append(h)
        return torch.stack(made, 1)

    [found] = of_rule(Does(steps, cell=nn.GRUCell(16, 32)), "loop-over-steps", x(4, 20, 16))

    assert "torch.nn.GRU" in found.recommendation
    assert "fed back" in found.risk


def test_a_copy_whose_order_would_slow_what_follows_gains_less() -> None:
    def turned(self: Any, edges: Tensor) -> Tensor:
        h = self.layer(edges.transpose(1, 2)).transpose(1, 2).contiguous()
        return edges + torch.relu(h)  # the other operand is in its own order

    def summed(self: Any, edges: Tensor) -> Tensor:
        return torch.relu(self.layer(edges.transpose(1, 2)).transpose(1, 2).contiguous()).sum(-1)

    gains = []
    for forward in (turned, summed):
        [found] = of_rule(Does(forward, layer=nn.Linear(400, 400)).eval(), "needless-copy", x(8, 400, 64))
        assert found.expected_gain is not None
        gains.append(found.expected_gain)

    assert gains[0].low < gains[1].low / 2


def mixed_by_matmul(self: Any, h: Tensor) -> Tensor:
    return torch.sigmoid(torch.matmul(self.mix, h)).sum(-1)


def mixed_by_operator(self: Any, h: Tensor) -> Tensor:
    mixed = self.mix @ h
    return mixed.abs().mean(-1)


def mixed_in_order(self: Any, h: Tensor) -> Tensor:
    mixed = torch.matmul(self.mix, h.contiguous())  # copies nothing, unlike the product
    return torch.tanh(mixed).amax(-1)


def mixed_by_einsum(self: Any, h: Tensor) -> Tensor:
    return torch.relu(torch.einsum("ij,bjc->bic", self.mix, h)).sum(-1)


@pytest.mark.parametrize("forward", [mixed_by_matmul, mixed_by_operator, mixed_in_order, mixed_by_einsum])
def test_a_copy_inside_a_product_is_not_one_of_the_code(forward: Any) -> None:
    assert of_rule(Does(forward, mix=nn.Parameter(torch.randn(96, 96))), "needless-copy", x(8, 96, 64)) == []


def ordered_after_a_product(self: Any, h: Tensor) -> Tensor:
    mixed = (h.transpose(1, 2) @ self.mix).transpose(1, 2).contiguous()
    return torch.sigmoid(mixed).sum(-1)


def ordered_in_a_function(self: Any, h: Tensor) -> Tensor:
    def channels_first(a: Tensor) -> Tensor:
        return torch.clone(a.transpose(1, 2), memory_format=torch.contiguous_format)

    return torch.relu(channels_first(h.transpose(1, 2) @ self.mix)).sum(-1)


@pytest.mark.parametrize("forward", [ordered_after_a_product, ordered_in_a_function])
def test_a_copy_of_a_product_that_the_code_makes_is_reported(forward: Any) -> None:
    [found] = of_rule(Does(forward, mix=nn.Parameter(torch.randn(96, 96))), "needless-copy", x(8, 96, 64))

    assert "takes any stride" in found.recommendation


def test_fused_attention_takes_tensors_of_four_dimensions() -> None:
    def attends(self: Any, h: Tensor) -> Tensor:
        q, k, v = self.qkv(h).unflatten(-1, (3, 4, 16)).movedim(-3, 0).transpose(-2, -3)
        return (q @ k.transpose(-1, -2) * 0.25).softmax(-1) @ v

    [deep] = of_rule(Does(attends, qkv=nn.Linear(64, 192)), "attention-by-hand", x(2, 4, 128, 64))
    [plain] = of_rule(Does(attends, qkv=nn.Linear(64, 192)), "attention-by-hand", x(8, 128, 64))

    assert "4-D" in deep.recommendation
    assert deep.change is None
    assert "4-D" not in plain.recommendation


def test_what_is_computed_from_a_state_of_zeros_is_not_a_weight() -> None:
    def first_step(self: Any, frame: Tensor) -> Tensor:
        state = frame.new_zeros(frame.shape[0], 64, 32, 32)
        return torch.tanh(self.memory(state) + self.input(frame))

    def filled(self: Any, frame: Tensor) -> Tensor:
        weight = torch.zeros(64, 64, 3, 3)
        weight[:, :32] = self.part * 2
        weight[:, 32:] = torch.tanh(self.part)
        return functional.conv2d(frame, weight, padding=1)

    def propagated(self: Any, users: Tensor) -> Tensor:
        h = self.table
        for _ in range(3):
            h = torch.sparse.mm(self.graph, h)  # torch adds the product to zeros
        return h[users]

    memory, given = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
    part = nn.Parameter(torch.randn(64, 32, 3, 3))

    assert of_rule(Does(first_step, memory=memory, input=given).eval(), "recomputed-weight", x(2, 64, 32, 32)) == []
    assert of_rule(Does(filled, part=part).eval(), "recomputed-weight", x(1, 64, 4, 4))
    table, graph = nn.Parameter(torch.randn(500, 32)), torch.eye(500).to_sparse()
    assert of_rule(Does(propagated, table=table, graph=graph).eval(), "recomputed-weight", torch.arange(8))


def test_the_same_milliseconds_are_said_once() -> None:
    """A masked weight in a loop over steps: one product for all steps computes it once as well."""

    def decays(self: Any, gaps: Tensor) -> Tensor:
        parts = [functional.linear(gaps[:, t], self.weight * self.mask, self.bias) for t in range(gaps.shape[1])]
        return torch.exp(-torch.relu(torch.stack(parts, 1)))

    parts = {
        "weight": nn.Parameter(torch.randn(128, 128)),
        "bias": nn.Parameter(torch.zeros(128)),
        "mask": torch.eye(128),
    }
    evidence = seen(Does(decays, **parts).eval(), inputs=(x(8, 30, 128),))
    shown, everything = ([piece.rule for piece in advise(evidence, all_advice=every)] for every in (False, True))

    assert {"loop-over-samples", "recomputed-weight"} <= set(everything)
    assert len({"loop-over-samples", "recomputed-weight"} & set(shown)) == 1
