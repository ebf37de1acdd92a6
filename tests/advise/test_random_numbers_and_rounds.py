"""Random numbers that are dropout or are meant, rounds of a loop that need each other, tensors without elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.advise.fault_classes import Does, x
from tests.advise.planted import said, seen
from torchgauge import analyze


def rules(model: nn.Module, *inputs: Tensor) -> set[str]:
    return {advice.rule for advice in said(seen(model.eval(), inputs=inputs))}


# --- tensors without elements, and masks of bytes


def small_angles(self: Any, a: Tensor) -> Tensor:
    h = self.layer(a)
    rare = h > 1e6  # nothing
    scaled = torch.zeros_like(h)
    scaled[rare] = h[rare] * 2
    return h + scaled


def test_a_mask_that_chooses_nothing_is_analyzed() -> None:
    model = Does(small_angles, layer=nn.Linear(32, 32))

    assert analyze(model, inputs=(x(8, 32),), progress=False).advice is not None


def test_a_model_whose_tensors_are_all_empty_is_predicted() -> None:
    assert analyze(nn.ReLU(), inputs=(torch.zeros(0, 8),), on=["h200"], progress=False).totals.macs == 0


def imputed(self: Any, a: Tensor, known: Tensor) -> Tensor:
    steps = [torch.where(known[..., t], a[..., t], self.layer(a[..., t])) for t in range(a.shape[-1])]
    return torch.stack(steps, -1)


@pytest.mark.filterwarnings("ignore:where received a uint8 condition")
def test_a_mask_of_bytes_that_lies_apart_chooses_as_in_eager_mode() -> None:
    model, known = Does(imputed, layer=nn.Linear(6, 6)), (x(2, 3, 6, 4) > 0).byte()

    found = analyze(model, inputs=(x(2, 3, 6, 4), known), progress=False)

    assert found.capture.ops[-1].signature.outputs[0].shape == (2, 3, 6, 4)


# --- ops of the category `resize` that do not average pixels


def overlap_add(self: Any, frames: Tensor) -> Tensor:
    return F.fold(self.layer(frames), (1, 128 + 3 * 32), (1, 128), stride=(1, 32))


def shrunk(self: Any, image: Tensor) -> Tensor:
    return F.interpolate(self.layer(image), scale_factor=0.25)


def test_a_convolution_stays_before_a_fold_and_moves_behind_a_resampling() -> None:
    folded = Does(overlap_add, layer=nn.Conv1d(128, 128, 1))
    resampled = Does(shrunk, layer=nn.Conv2d(16, 64, 1))

    assert "pointwise-before-pooling" not in rules(folded, x(2, 128, 4))
    assert "pointwise-before-pooling" in rules(resampled, x(1, 16, 64, 64))


# --- a function with an op that changes nothing


def gate_of_zeros(self: Any, a: Tensor) -> Tensor:
    nothing = torch.zeros_like(a)
    return torch.sigmoid(nothing + self.layer(a))


def gate_by_hand(self: Any, a: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-self.layer(a)))


def test_a_function_that_is_called_already_is_not_asked_for() -> None:
    assert "activation-by-hand" not in rules(Does(gate_of_zeros, layer=nn.Linear(64, 64)), x(256, 64))
    assert "activation-by-hand" in rules(Does(gate_by_hand, layer=nn.Linear(64, 64)), x(256, 64))


# --- random numbers that change no result, or are meant


def kept_for_training(self: Any, a: Tensor) -> Tensor:
    self.keep = a.new_empty(a.shape[:2]).bernoulli_(0.8) / 0.8
    return self.layer(a * self.keep[..., None]) if self.training else self.layer(a)


def always_kept(self: Any, a: Tensor) -> Tensor:
    self.keep = a.new_empty(a.shape[:2]).bernoulli_(0.8) / 0.8
    return self.layer(a * self.keep[..., None])


def hidden_units(self: Any, a: Tensor) -> Tensor:
    return torch.bernoulli(torch.sigmoid(self.layer(a)))


def hidden_units_in_place(self: Any, a: Tensor) -> Tensor:
    chances = torch.sigmoid(self.layer(a))
    return torch.empty_like(chances).bernoulli_(chances)


def neighbours_at_random(self: Any, a: Tensor) -> Tensor:
    is_near = (a.square().sum(-1) < 20).float()
    chosen, places = torch.topk(is_near + torch.rand_like(is_near), 4, dim=-1)
    gathered = a.gather(1, places[..., None].expand(-1, -1, a.shape[-1]))
    return self.layer(gathered * (chosen > 1)[..., None].float())


def channels_at_random(self: Any, a: Tensor) -> Tensor:
    return self.layer(self.layer(a) * torch.bernoulli(torch.full((a.shape[0], 1, 1), 0.9)))


@pytest.mark.parametrize(
    ("forward", "is_wrong"),
    [
        (kept_for_training, False),
        (always_kept, True),
        (hidden_units, False),
        (hidden_units_in_place, False),
        (neighbours_at_random, False),
        (channels_at_random, True),
    ],
)
def test_random_numbers_are_dropout_only_where_they_scale_a_result(
    forward: Callable[..., Tensor], is_wrong: bool
) -> None:
    assert ("dropout-in-evaluation" in rules(Does(forward, layer=nn.Linear(16, 16)), x(4, 9, 16))) == is_wrong


# --- tables of Python's numbers, and zeros like a layer's result


def window_mask(self: Any, image: Tensor) -> Tensor:
    regions = torch.zeros(1, 64, 64, 1)
    for number, rows in enumerate((slice(0, -8), slice(-8, -4), slice(-4, None))):
        regions[:, rows, :, :] = number
    windows = regions.view(64, 64).flatten()[None, :1024]
    return self.layer(image) + (windows - windows.transpose(0, 1)).abs().sum(0)


def filled_later(self: Any, a: Tensor) -> Tensor:
    h = self.layer(a)
    result = torch.zeros_like(h)
    result[:, ::2] = h[:, 1::2]
    return result


def test_a_table_of_numbers_depends_on_shapes_and_not_on_parameters() -> None:
    (advice,) = [
        each
        for each in said(seen(Does(window_mask, layer=nn.Linear(8, 1024)).eval(), inputs=(x(1, 8),)))
        if each.rule.startswith("recomputed-")
    ]

    assert advice.rule == "recomputed-constant"
    assert "only on shapes" in advice.recommendation


def test_zeros_like_the_result_of_a_layer_are_no_weight() -> None:
    assert not rules(Does(filled_later, layer=nn.Linear(8, 64)), x(4, 8)) & {"recomputed-weight", "recomputed-constant"}


# --- rounds that need each other through ops of some rounds only


class Heads(nn.Module):
    """Eight heads that look at a memory one after the other; with `writes`, every second one changes it."""

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.writes = writes
        self.keys = nn.ModuleList(nn.Linear(32, 16) for _ in range(8))
        self.memory: Tensor = torch.randn(64, 16)

    def forward(self, state: Tensor) -> Tensor:
        memory, read = self.memory * 1.0, []
        for number, layer in enumerate(self.keys):
            key = layer(state)
            weights = torch.softmax(torch.tanh(key) @ memory.T * 0.25, -1)
            if self.writes and number % 2:
                memory = memory + weights.T @ key
            read.append(torch.sigmoid(weights @ memory))
        return torch.cat(read, -1)


def test_ops_that_need_what_an_earlier_round_wrote_are_not_counted() -> None:
    def most(writes: bool) -> float:
        (advice,) = [each for each in said(seen(Heads(writes), inputs=(x(2, 32),))) if each.rule == "parallel-linears"]
        assert advice.expected_gain is not None
        return advice.expected_gain.high

    assert most(writes=True) < 0.5 < most(writes=False)


# --- parts of a tensor that lies in another order


def blocks_of(self: Any, a: Tensor, *, turned: bool) -> Tensor:
    h = self.layer(a)  # 4 × 256 × 32, or the same size turned around
    h = h.transpose(1, 2).reshape(4, 256, 32).transpose(1, 2) if turned else h.transpose(1, 2).contiguous()
    blocks = torch.stack(torch.split(h, 16, dim=2), dim=2)
    return blocks.square().sum(-1)


def test_parts_are_joined_by_a_reshape_only_where_it_leaves_them_in_order() -> None:
    layer = nn.Linear(8, 32)
    plain = Does(lambda self, a: blocks_of(self, a, turned=False), layer=layer)
    turned = Does(lambda self, a: blocks_of(self, a, turned=True), layer=layer)

    assert "joined-parts" in rules(plain, x(4, 256, 8))
    assert "joined-parts" not in rules(turned, x(4, 256, 8))


# --- loops that torch.compile cannot take as a whole, and recurrences that no scan computes


def smoothed(self: Any, a: Tensor) -> Tensor:
    level, levels = a[0], []
    for value in a:
        level = 0.3 * value + level * 0.7
        levels.append(level)
    return torch.stack(levels)


def seasons(self: Any, a: Tensor) -> Tensor:
    level, levels = a[0], []
    for value in a:
        level = 0.3 * value / (level + 2.0) + 0.7 * level
        levels.append(level)
    return torch.stack(levels)


def cut(function: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    def forward(self: Any, a: Tensor) -> Tensor:
        return function(self, a[: int(self.length)])

    return forward


@pytest.mark.parametrize(
    ("forward", "words", "is_compiled"),
    [
        (smoothed, "compute this recurrence as a scan over chunks of steps, or compile its loop", True),
        (seasons, "compile its loop", True),
        (cut(smoothed), "compute this recurrence as a scan over chunks of steps", False),
        (cut(seasons), None, False),
    ],
)
def test_a_loop_is_compiled_only_in_one_graph_and_a_scan_is_linear(
    forward: Callable[..., Tensor], words: str | None, is_compiled: bool
) -> None:
    model = Does(forward)
    model.register_buffer("length", torch.tensor(48))
    found = [each for each in said(seen(model.eval(), inputs=(x(48, 4, 8),))) if each.rule == "scan-in-python"]

    assert [each.recommendation.partition(": ")[0] for each in found] == ([] if words is None else [words])
    assert all((each.code is not None) == is_compiled for each in found)


# --- modules that forward uses without calling them


class Follower(nn.Linear):
    def follow(self, leader: nn.Linear) -> None:
        self.weight.data = leader.weight.data


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.is_optional = False
        self.leader, self.shadow = nn.Linear(64, 64), Follower(64, 64)


class Followed(Pair):
    def forward(self, a: Tensor) -> Tensor:
        self.shadow.follow(self.leader)
        return self.leader(a)


class FollowedOnDemand(Pair):
    def forward(self, a: Tensor) -> Tensor:
        if self.is_optional:
            self.shadow.follow(self.leader)
        return self.leader(a)


def test_a_module_whose_method_every_call_uses_is_not_left_out() -> None:
    assert "unused-parameters" not in rules(Followed(), x(2, 64))
    assert "unused-parameters" in rules(FollowedOnDemand(), x(2, 64))


# --- states of lower layers


def of_each_step(self: Any, a: Tensor, *, reads_states: bool) -> Tensor:
    state, found = None, []
    for step in a:
        output, state = self.layers(step[None], state)
        found.append(self.head(torch.cat(tuple(state[0]), -1)) if reads_states else self.head(output[0]))
    return torch.stack(found)


@pytest.mark.parametrize(("reads_states", "is_one_call"), [(True, False), (False, True)])
def test_layers_whose_states_each_step_reads_are_not_called_once(reads_states: bool, is_one_call: bool) -> None:
    layers, head = nn.LSTM(16, 32, num_layers=3), nn.Linear(96 if reads_states else 32, 4)
    model = Does(lambda self, a: of_each_step(self, a, reads_states=reads_states), layers=layers, head=head)
    words = [
        each.recommendation for each in said(seen(model, inputs=(x(24, 2, 16),))) if each.rule == "loop-over-steps"
    ]

    assert any("recurrent layer once" in text for text in words) == is_one_call


# --- gains that page faults may hide, and lines of several files


def test_a_fold_that_page_faults_may_hide_says_so() -> None:
    def folding(channels: int, side: int) -> str:
        layers = [nn.Sequential(nn.Conv2d(channels, channels, 3), nn.BatchNorm2d(channels)) for _ in range(6)]
        found = said(seen(nn.Sequential(*layers), 1, channels, side, side))
        return next(each.risk for each in found if each.rule == "conv-bn-fusion")

    assert "freed memory" in folding(16, 256)
    assert "freed memory" not in folding(16, 16)


def table_and_mask(self: Any, a: Tensor) -> Tensor:
    places = torch.arange(8)
    hidden = torch.full((512, 512), -1.0).tril().flip((0, 1))
    return self.layer(a) + hidden + places.sum()


def test_the_line_that_takes_longest_is_named() -> None:
    (advice,) = [
        each
        for each in said(seen(Does(table_and_mask, layer=nn.Linear(16, 512)), inputs=(x(512, 16),)))
        if each.rule == "recomputed-constant"
    ]
    first = table_and_mask.__code__.co_firstlineno

    assert advice.where.source == f"test_random_numbers_and_rounds.py:{first + 2}"


@pytest.mark.filterwarnings("ignore:input's size at dim=1 does not match num_features")
def test_an_instance_norm_of_two_widths_is_not_replaced_by_a_group_norm_of_one() -> None:
    def both(self: Any, a: Tensor) -> Tensor:
        return self.norm(self.second(self.norm(self.first(a))))

    def code(width: int) -> str | None:
        layers = {"first": nn.Conv2d(3, 32, 3), "second": nn.Conv2d(32, width, 3), "norm": nn.InstanceNorm2d(32)}
        found = said(seen(Does(both, **layers), inputs=(x(4, 3, 48, 48),)))
        return next(each.code for each in found if each.rule == "instance-norm")

    assert code(32) is not None
    assert code(16) is None


# --- samples of one tensor, and random signs


def averaged_samples(self: Any, a: Tensor) -> Tensor:
    h = self.layer(a)
    return torch.stack([self.head(F.dropout(torch.relu(F.dropout(h, 0.2)), 0.2)) for _ in range(6)]).mean(0)


def three_projections(self: Any, a: Tensor) -> Tensor:
    q, k, v = (layer(F.dropout(a, 0.2)) for layer in (self.layer, self.head, self.other))
    return q * k + v


def random_signs(self: Any, a: Tensor) -> Tensor:
    return self.layer(a) * torch.where(torch.rand(a.shape[0], 1) < 0.5, -1.0, 1.0)


@pytest.mark.parametrize(
    ("forward", "is_wrong"), [(averaged_samples, False), (three_projections, True), (random_signs, False)]
)
def test_samples_of_one_tensor_and_random_signs_are_meant(forward: Callable[..., Tensor], is_wrong: bool) -> None:
    model = Does(forward, layer=nn.Linear(16, 16), head=nn.Linear(16, 16), other=nn.Linear(16, 16))

    assert ("dropout-in-evaluation" in rules(model, x(4, 16))) == is_wrong


# --- a loop whose first round starts with a parameter


class Latents(nn.Module):
    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.rounds, self.start, self.ask = rounds, nn.Parameter(x(1, 32, 64)), nn.Linear(64, 64)

    def forward(self, a: Tensor) -> Tensor:
        latents = self.start.expand(len(a), -1, -1)
        for _ in range(self.rounds):
            latents = latents + torch.tanh(self.ask(latents)) @ a
        return latents


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_line_of_which_the_first_round_reads_a_parameter_is_not_constant(rounds: int) -> None:
    assert ("recomputed-weight" in rules(Latents(rounds), x(2, 64, 64))) == (rounds == 1)
