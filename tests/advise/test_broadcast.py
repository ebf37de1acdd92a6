"""Work on tensors that repeat a smaller one: layers over repeated vectors, products of expanded operands."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.advise.fault_classes import Does, x
from tests.advise.planted import gain_of, said, seen
from torchgauge.advise import Advice


def of_rule(model: nn.Module, rule: str, *inputs: Tensor) -> list[Advice]:
    return [advice for advice in said(seen(model, inputs=inputs)) if advice.rule == rule]


def speaker_beside_frames(self: Any, frames: Tensor, speaker: Tensor) -> Tensor:
    """A voice model: the embedding of the speaker at every frame."""
    repeated = speaker[:, None].expand(-1, frames.shape[1], -1)
    return torch.relu(self.layer(torch.cat([frames, repeated], -1)))


def scene_beside_pixels(self: Any, image: Tensor) -> Tensor:
    """The mean of an image at every pixel, by `repeat`, before a 1×1 convolution."""
    pooled = image.mean((2, 3), keepdim=True).repeat(1, 1, *image.shape[2:])
    return torch.relu(self.layer(torch.cat((image, pooled), dim=1)))


def query_beside_keys(self: Any, query: Tensor, keys: Tensor) -> Tensor:
    both = torch.cat((query.unsqueeze(0).repeat(keys.shape[0], 1, 1), keys), dim=2)
    return torch.softmax(self.score(torch.tanh(self.layer(both))), 0)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Does(speaker_beside_frames, layer=nn.Linear(64 + 64, 128)), (x(4, 200, 64), x(4, 64))),
        (Does(scene_beside_pixels, layer=nn.Conv2d(64, 64, 1)), (x(2, 32, 40, 40),)),
        (Does(query_beside_keys, layer=nn.Linear(128, 64), score=nn.Linear(64, 1)), (x(8, 64), x(60, 8, 64))),
    ],
    ids=["expand", "repeat", "attention of a decoder"],
)
def test_a_layer_over_a_repeated_vector_is_split(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    (found,) = of_rule(model, "repeated-input", *inputs)

    assert found.where.module == "layer"
    assert found.expected_gain is not None
    assert found.expected_gain.low > 0.05


def two_branches(self: Any, one: Tensor, other: Tensor) -> Tensor:
    return torch.relu(self.layer(torch.cat([one, other], -1)))


def smoothed(self: Any, image: Tensor) -> Tensor:
    pooled = image.mean((2, 3), keepdim=True).expand_as(image)
    return torch.relu(self.layer(torch.cat((image, pooled), dim=1)))


def also_returned(self: Any, frames: Tensor, speaker: Tensor) -> tuple[Tensor, Tensor]:
    joined = torch.cat([frames, speaker[:, None].expand(-1, frames.shape[1], -1)], -1)
    return torch.relu(self.layer(joined)), joined


def repeated_by_channel(self: Any, frames: Tensor, level: Tensor) -> Tensor:
    """One number for all channels: there is no vector to multiply with."""
    return torch.relu(self.layer(torch.cat([frames, level[..., None].expand(-1, -1, 64)], -1)))


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Does(two_branches, layer=nn.Linear(128, 64)), (x(4, 200, 64), x(4, 200, 64))),
        (Does(smoothed, layer=nn.Conv2d(64, 64, 3, padding=1)), (x(2, 32, 40, 40),)),
        (Does(also_returned, layer=nn.Linear(128, 64)), (x(4, 200, 64), x(4, 64))),
        (Does(repeated_by_channel, layer=nn.Linear(128, 64)), (x(4, 200, 64), x(4, 200))),
    ],
    ids=["two tensors", "a window of 3×3", "also returned", "repeated along the channels"],
)
def test_other_joined_inputs_stay(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    assert of_rule(model, "repeated-input", *inputs) == []


def test_a_matmul_that_copies_an_operand_for_each_sample_is_named() -> None:
    def by_position(self: Any, h: Tensor) -> Tensor:
        return torch.matmul(self.weight, h[:, :, :, None]).squeeze(-1)

    def by_einsum(self: Any, h: Tensor) -> Tensor:
        return torch.einsum("poi,bpi->bpo", self.weight, h)

    weight = nn.Parameter(x(200, 32, 32))
    (found,) = of_rule(Does(by_position, weight=weight), "broadcast-matmul", x(8, 200, 32))

    assert found.evidence["times"] == 8
    assert found.evidence["copied_bytes"] == 8 * weight.numel() * 4
    assert of_rule(Does(by_einsum, weight=weight), "broadcast-matmul", x(8, 200, 32)) == []


def test_products_of_all_pairs_that_are_added_up_are_a_matmul() -> None:
    def similarity(_: Any, one: Tensor, other: Tensor) -> Tensor:
        return (one[:, :, None] * other[:, None]).sum(-1)

    def weighted(_: Any, values: Tensor, weights: Tensor) -> Tensor:
        return (values * weights[..., None]).sum(1)

    def mixture(_: Any, parts: Tensor, shares: Tensor) -> Tensor:
        return (parts * shares.unsqueeze(2).expand_as(parts)).sum(1)

    def one_by_one(_: Any, one: Tensor, other: Tensor) -> Tensor:
        return (one * other).sum(-1)

    def outer(_: Any, one: Tensor, other: Tensor) -> Tensor:
        return (one[:, :, None] * other[:, None]).sum(1)

    (found,) = of_rule(Does(similarity), "product-then-sum", x(4, 50, 64), x(4, 60, 64))

    assert found.evidence["shape"] == [4, 50, 60, 64]
    # A weighted sum is a product with one row. The sum of an outer product factors otherwise, and rows times rows, one
    # by one, have no factor that is the same along a dimension.
    (found,) = of_rule(Does(weighted), "product-then-sum", x(256, 196, 256), x(256, 196))
    assert found.evidence["shape"] == [256, 196, 256]
    assert of_rule(Does(weighted), "product-then-sum", x(4, 50, 64), x(4, 50)) == []
    (mixed,) = of_rule(Does(mixture), "product-then-sum", x(64, 12, 12000), x(64, 12))
    assert mixed.evidence["shape"] == [64, 12, 12000]
    assert of_rule(Does(mixture), "product-then-sum", x(4, 12, 64), x(4, 12)) == []
    assert of_rule(Does(one_by_one), "product-then-sum", x(4, 50, 64), x(4, 50, 64)) == []
    assert of_rule(Does(outer), "product-then-sum", x(4, 50, 64), x(4, 60, 64)) == []


def counted(self: Any, image: Tensor, valid: Tensor) -> Tensor:
    return self.layer(image * valid) / self.count(valid).clamp(min=1)


def box(self: Any, image: Tensor, valid: Tensor) -> Tensor:
    ones = torch.ones(32, 16, 3, 3)
    return self.layer(image * valid) / F.conv2d(valid, ones, padding=1).clamp(min=1)


def code_at_points(self: Any, points: Tensor, code: Tensor) -> Tensor:
    """One row for each point of each sample, as an implicit surface is written."""
    repeated = code.unsqueeze(1).repeat(1, points.shape[1], 1).view(-1, code.shape[1])
    return torch.relu(self.layer(torch.cat((repeated, points.reshape(-1, 3)), dim=1)))


def style_by_weight(self: Any, frames: Tensor, style: Tensor) -> Tensor:
    both = torch.cat([frames, style.repeat_interleave(frames.shape[1], 0).view(*frames.shape[:2], -1)], 2)
    return torch.tanh(torch.matmul(both, self.weight))


def scores_from_the_left(self: Any, keys: Tensor, query: Tensor) -> Tensor:
    """Channels first, with the weight on the left of a batch of products."""
    both = torch.cat((keys, query.unsqueeze(2).expand_as(keys)), 1)
    return torch.tanh(torch.bmm(self.weight.expand(keys.shape[0], -1, -1), both))


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Does(code_at_points, layer=nn.Linear(128 + 3, 64)), (x(4, 500, 3), x(4, 128))),
        (Does(style_by_weight, weight=nn.Parameter(x(96, 64))), (x(4, 200, 32), x(4, 64))),
        (Does(scores_from_the_left, weight=nn.Parameter(x(1, 64, 128))), (x(4, 64, 300), x(4, 64))),
    ],
    ids=["points and samples in one dimension", "repeat_interleave", "bmm"],
)
def test_a_repeated_vector_is_found_behind_views_and_in_any_product(
    model: nn.Module, inputs: tuple[Tensor, ...]
) -> None:
    (found,) = of_rule(model, "repeated-input", *inputs)

    assert found.evidence["times"] >= 200
    assert gain_of(found).low > 0.05


def flattened(self: Any, frames: Tensor, speaker: Tensor) -> Tensor:
    """Each position has a weight for itself: the repeated part cannot be multiplied once."""
    joined = torch.cat([frames, speaker[:, None].expand(-1, frames.shape[1], -1)], -1)
    return self.layer(joined.flatten(1))


def rows_behind_each_other(self: Any, frames: Tensor, other: Tensor) -> Tensor:
    return self.layer(torch.cat([frames, other.view(frames.shape[0], -1, 64)], -1))


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Does(flattened, layer=nn.Linear(50 * 128, 16)), (x(4, 50, 64), x(4, 64))),
        (Does(rows_behind_each_other, layer=nn.Linear(128, 64)), (x(4, 200, 64), x(800, 64))),
    ],
    ids=["flattened", "as many rows"],
)
def test_vectors_that_are_not_repeated_for_the_product_stay(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    assert of_rule(model, "repeated-input", *inputs) == []


def pointing(self: Any, memory: Tensor) -> Tensor:
    """A decoder that scores the same memory in each of 10 steps, with a weight on the left."""
    state, scores = memory.mean(2), []
    for _ in range(10):
        both = torch.cat((memory, state.unsqueeze(2).expand_as(memory)), 1)
        energy = torch.tanh(torch.bmm(self.weight.expand(memory.shape[0], -1, -1), both))
        weights = torch.softmax(energy.sum(1), -1)
        state = torch.bmm(memory, weights.unsqueeze(2)).squeeze(2)
        scores.append(weights)
    return torch.stack(scores, 1)


def refined(self: Any, image: Tensor) -> Tensor:
    features, state = torch.relu(self.encode(image)), image.new_zeros(image.shape[0], 16, *image.shape[2:])
    for _ in range(6):
        state = torch.tanh(F.conv2d(torch.cat([state, features], 1), self.weight, padding=1))
    return state


def answered(self: Any, facts: Tensor, question: Tensor) -> Tensor:
    answer = question
    for _ in range(8):
        answer = torch.relu(torch.cat([question, answer], -1) @ self.weight) + facts.mean(1)
    return answer


LOOPS = [
    (Does(pointing, weight=nn.Parameter(x(1, 64, 128))), (x(4, 64, 100),)),
    (Does(refined, encode=nn.Conv2d(3, 48, 3, padding=1), weight=nn.Parameter(x(16, 64, 3, 3))), (x(1, 3, 40, 40),)),
    (Does(answered, weight=nn.Parameter(x(128, 64))), (x(512, 4, 64), x(512, 64))),
]


@pytest.mark.parametrize(("model", "inputs"), LOOPS, ids=["bmm", "conv2d", "matmul"])
def test_the_part_of_a_product_that_stays_the_same_is_computed_once(
    model: nn.Module, inputs: tuple[Tensor, ...]
) -> None:
    found = [advice for rule in ("repeated-part", "repeated-input") for advice in of_rule(model, rule, *inputs)]

    # One piece of advice, also where the rest of the input is one vector at every position.
    assert [advice.rule for advice in found] == ["repeated-part"]
    assert gain_of(found[0]).low > 0.05


def in_a_cell(self: Any, facts: Tensor, question: Tensor) -> Tensor:
    """The weights of torch's cell cannot be split from outside."""
    state = question
    for _ in range(8):
        state = self.cell(torch.cat([question, state], -1), state) + facts.mean(1)
    return state


def all_changes(self: Any, facts: Tensor, question: Tensor) -> Tensor:
    answer = question
    for _ in range(8):
        answer = torch.relu(torch.cat([answer.flip(0), answer], -1) @ self.weight) + facts.mean(1)
    return answer


def another_weight_each_round(self: Any, facts: Tensor, question: Tensor) -> Tensor:
    answer = question
    for weight in self.weights:
        answer = torch.relu(torch.cat([question, answer], -1) @ weight) + facts.mean(1)
    return answer


@pytest.mark.parametrize(
    "model",
    [
        Does(in_a_cell, cell=nn.GRUCell(128, 64)),
        Does(all_changes, weight=nn.Parameter(x(128, 64))),
        Does(another_weight_each_round, weights=nn.ParameterList([nn.Parameter(x(128, 64)) for _ in range(8)])),
    ],
    ids=["cell", "no part stays", "weights"],
)
def test_products_of_which_no_part_can_be_taken_out_stay(model: nn.Module) -> None:
    assert of_rule(model, "repeated-part", x(512, 4, 64), x(512, 64)) == []


def test_parts_that_every_layer_joins_anew_are_joined_once() -> None:
    def by_head(self: Any, h: Tensor, near: Tensor) -> Tensor:
        for layer in self.layers:
            q = torch.cat(layer(h).split(8, -1), 0)
            bias = torch.cat(near.split(8, -1), 0)
            h = torch.cat(torch.softmax((bias * q.unsqueeze(2)).sum(-1), -1).bmm(q).chunk(4, 0), -1)
        return h

    def other_parts(self: Any, h: Tensor, near: Tensor) -> Tensor:
        near = torch.sigmoid(near)
        for width, layer in zip((8, 16), self.layers, strict=True):
            h = layer(h) + torch.cat(near.split(width, -1), 0).mean()
        return h

    layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
    (found,) = of_rule(Does(by_head, layers=layers), "repeated-work", x(4, 50, 32), x(4, 50, 50, 32))

    assert "aten::cat" in found.evidence["repeated"]
    assert of_rule(Does(other_parts, layers=layers), "repeated-work", x(4, 50, 32), x(4, 50, 50, 32)) == []


def test_a_recurrent_layer_that_runs_again_on_the_same_input_runs_once() -> None:
    def twice(self: Any, h: Tensor) -> Tensor:
        outputs, _ = self.layer(h)
        _, last = self.layer(h)
        return outputs.mean(1) + last[-1]

    def behind_itself(self: Any, h: Tensor) -> Tensor:
        outputs, _ = self.layer(h)
        return self.layer(outputs)[0].mean(1)

    def from_its_last_state(self: Any, h: Tensor) -> Tensor:
        _, last = self.layer(h)
        return self.layer(h, last)[0].mean(1)

    def found(forward: Any, layer: nn.Module) -> list[Advice]:
        return of_rule(Does(forward, layer=layer), "repeated-work", x(4, 30, 64))

    for layer in (nn.GRU(64, 64, batch_first=True), nn.RNN(64, 64, 2, batch_first=True)):
        (again,) = found(twice, layer)

        assert again.where.module == "layer"
        assert 0.2 < gain_of(again).low <= gain_of(again).high <= 0.7
        assert found(behind_itself, layer) == []
        assert all(len(advice.where.ops) < 5 for advice in found(from_its_last_state, layer))


@pytest.mark.parametrize("are_parts", [False, True])
def test_parts_that_are_scaled_in_place_are_different_tensors(are_parts: bool) -> None:
    """What the last op in place wrote is a part of the tensor; the softmax of the other part reads the same memory."""

    def splits(self: Any, h: Tensor) -> Tensor:
        made = self.layer(h)
        widths, heights = (made[..., :64], made[..., 64:]) if are_parts else (made, made)
        widths /= 8.0
        heights /= 8.0
        return torch.softmax(widths, -1) * torch.softmax(heights, -1)

    found = of_rule(Does(splits, layer=nn.Linear(32, 128)), "repeated-work", x(64, 50, 32))
    assert bool(found) is not are_parts


def test_all_pairs_that_several_layers_read_are_split() -> None:
    """Each half of the joined tensor is repeated, and both layers can be split: then nothing needs it."""

    def of_pairs(self: Any, h: Tensor) -> Tensor:
        count = h.shape[0]
        rows, columns = h[:, None].expand(-1, count, -1), h[None].expand(count, -1, -1)
        pairs = torch.cat([rows, columns], -1)
        return torch.relu(self.first(pairs)) * torch.sigmoid(self.second(pairs))

    def one_is_kept(self: Any, h: Tensor) -> Tensor:
        count = h.shape[0]
        rows, columns = h[:, None].expand(-1, count, -1), h[None].expand(count, -1, -1)
        pairs = torch.cat([rows, columns], -1)
        return torch.relu(self.first(pairs)).sum(-1) * pairs.sum(-1)

    layers = {"first": nn.Linear(64, 16), "second": nn.Linear(64, 16)}
    (found,) = [
        advice
        for advice in said(seen(Does(of_pairs, **layers), inputs=(x(80, 32),)))
        if advice.rule == "repeated-input"
    ]
    assert found.evidence["count"] == 2
    assert gain_of(found).low > 0.3
    others = said(seen(Does(one_is_kept, **layers), inputs=(x(80, 32),)))
    assert not [advice for advice in others if advice.rule == "repeated-input"]


def joined_windows(self: Any, series: Tensor) -> Tensor:
    windows = series.unfold(1, 8, 1)
    joined: Tensor = self.layer(torch.cat([windows, windows.cumsum(-1)], -1))
    return joined


def kernels_by_position(_: Any, series: Tensor) -> Tensor:
    kernels = torch.tanh(series.unsqueeze(-1) * torch.arange(8.0))
    return (series.unfold(1, 8, 1) * kernels[:, 7:]).sum(-1)


def test_overlapping_windows_are_no_repeated_tensor() -> None:
    assert of_rule(Does(joined_windows, layer=nn.Linear(16, 64)), "repeated-input", x(16, 512)) == []
    assert of_rule(Does(kernels_by_position), "product-then-sum", x(64, 17_000)) == []


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_products_of_whole_numbers_are_no_matmul(dtype: torch.dtype) -> None:
    given = [(x(4, 64, 32) > 0).to(dtype) for _ in range(2)]
    assert of_rule(Does(lambda _, a, b: (a.unsqueeze(2) * b.unsqueeze(1)).sum(-1)), "product-then-sum", *given) == []


def test_a_weighted_sum_is_a_matmul_in_one_type() -> None:
    def pooled(_: Any, frames: Tensor, valid: Tensor) -> Tensor:
        return (torch.tanh(frames) * valid.unsqueeze(-1)).sum(1)

    frames, valid = x(8, 1200, 1024), x(8, 1200) > 0
    (found,) = of_rule(Does(pooled), "product-then-sum", frames, valid)

    assert found.recommendation.startswith("use matmul with both factors in one type")  # einsum takes longer
    together = (valid.float().unsqueeze(1) @ torch.tanh(frames)).squeeze(1)
    torch.testing.assert_close(together, pooled(None, frames, valid), atol=1e-3, rtol=1e-3)


def test_sums_for_each_element_of_an_inner_dimension_stay() -> None:
    def by_head(_: Any, frames: Tensor, weights: Tensor) -> Tensor:
        return (torch.tanh(frames) * weights.unsqueeze(-1)).sum(1)

    assert of_rule(Does(by_head), "product-then-sum", x(8, 500, 32, 80), x(8, 500, 32)) == []
