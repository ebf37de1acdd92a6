"""Copies, casts, randomness and state that a model needs are left alone; the same without a need is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.advise.fault_classes import Does, x
from tests.advise.planted import said, seen


def rules(forward: Any, *given: Tensor, **parts: Any) -> set[str]:
    return {advice.rule for advice in said(seen(Does(forward, **parts), inputs=given))}


# --- copies


def before_writing(_: Any, h: Tensor) -> Tensor:
    before = h.clone()
    h *= 2
    return torch.relu(h) + before


def before_reading(_: Any, h: Tensor) -> Tensor:
    before = h.clone()
    h = h * 2
    return torch.relu(h) + before


class Difference(nn.Module):
    """To the state before, which is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.state = torch.zeros(64, 512)

    def forward(self, h: Tensor) -> Tensor:
        before = self.state.clone()
        self.state.mul_(0.9).add_(h)
        return torch.relu(self.state - before)


def test_a_copy_of_what_is_written_later_is_needed() -> None:
    assert "needless-copy" in rules(before_reading, x(64, 512))
    assert "needless-copy" not in rules(before_writing, x(64, 512))
    assert "needless-copy" not in {advice.rule for advice in said(seen(Difference(), inputs=(x(64, 512),)))}


@pytest.mark.parametrize("is_viewed", [False, True])
def test_a_tensor_that_is_viewed_behind_an_activation_must_be_in_order(is_viewed: bool) -> None:
    def forward(_: Any, h: Tensor) -> Tensor:
        turned = torch.relu(h.transpose(1, 2).contiguous())
        return turned.view(h.shape[0], -1) if is_viewed else turned.sum(1)

    assert ("needless-copy" in rules(forward, x(8, 64, 80))) is not is_viewed


# --- casts


def test_a_cast_to_eight_bits_and_back_is_a_rounding() -> None:
    def rounded(_: Any, h: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.relu((h / 4).to(dtype).to(torch.float32) * 4)

    assert "cast-round-trip" in rules(lambda m, h: rounded(m, h, torch.float16), x(64, 64))
    assert "cast-round-trip" not in rules(lambda m, h: rounded(m, h, torch.float8_e4m3fn), x(64, 64))


@pytest.mark.parametrize(("dtype", "is_needless"), [(torch.bfloat16, True), (torch.float16, False)])
def test_an_exponential_that_float16_cannot_hold_stays_in_float32(dtype: torch.dtype, is_needless: bool) -> None:
    def softplus(_: Any, h: Tensor) -> Tensor:
        return torch.log1p(torch.exp(torch.neg(h).float())).to(dtype)

    assert ("cast-round-pointwise" in rules(softplus, x(64, 64).to(dtype))) is is_needless


@pytest.mark.parametrize("is_mask", [False, True])
def test_a_mask_that_is_also_read_as_one_keeps_its_type(is_mask: bool) -> None:
    def forward(m: Any, h: Tensor) -> Tensor:
        weighted = h * m.near.float()
        return weighted.masked_fill(~m.near, -1e4).softmax(-1) if is_mask else weighted.softmax(-1)

    assert ("weight-cast" in rules(forward, x(64, 64), near=x(64, 64) > 0)) is not is_mask


# --- randomness


def drawn_mask(m: Any, h: Tensor) -> Tensor:
    kept: Tensor = m.layer(h) * torch.bernoulli(torch.full((8, 32), 0.9)) / 0.9
    return kept


def hidden_units(m: Any, h: Tensor) -> Tensor:
    units = torch.bernoulli(torch.sigmoid(m.layer(h)))
    return units @ m.layer.weight


def masked_tokens(m: Any, h: Tensor) -> Tensor:
    mask = (torch.rand(h.shape[0], 1) < 0.5).float()
    hidden: Tensor = m.layer(h * (1 - mask) + m.token * mask)
    return hidden


def mixed_samples(m: Any, h: Tensor) -> Tensor:
    mask = (torch.rand(h.shape[0], 1) < 0.5).float()
    mixed: Tensor = m.layer(h * mask + h.roll(1, 0) * (1 - mask))
    return mixed


def turned_samples(m: Any, h: Tensor) -> Tensor:
    turned: Tensor = m.layer(torch.where(torch.rand(h.shape[0], 1) < 0.5, h.flip(-1), h))
    return turned


def random_start(m: Any, h: Tensor) -> Tensor:
    spins = torch.bernoulli(torch.full((8, 32), 0.5)) * 2 - 1
    return torch.sign(m.layer(spins) * h)


def corrupted_input(m: Any, h: Tensor) -> Tensor:
    restored: Tensor = m.layer(h * (torch.rand_like(h) > 0.3).float())
    return restored


def test_samples_and_masked_tokens_are_no_dropout() -> None:
    parts = {"layer": nn.Linear(32, 32), "token": nn.Parameter(x(32))}
    assert "dropout-in-evaluation" in rules(drawn_mask, x(8, 32), **parts)
    assert "dropout-in-evaluation" not in rules(hidden_units, x(8, 32), **parts)
    assert "dropout-in-evaluation" not in rules(masked_tokens, x(8, 32), **parts)
    assert "dropout-in-evaluation" not in rules(mixed_samples, x(8, 32), **parts)
    assert "dropout-in-evaluation" not in rules(turned_samples, x(8, 32), **parts)
    assert "dropout-in-evaluation" not in rules(random_start, x(8, 32), **parts)
    assert "dropout-in-evaluation" not in rules(corrupted_input, x(8, 32), **parts)


# --- state


def running_mean(m: Any, h: Tensor) -> Tensor:
    h = m.layer(h)
    m.state.copy_(0.9 * m.state + 0.1 * h.mean(0, keepdim=True))
    return h - m.state


def hidden_state(m: Any, h: Tensor) -> Tensor:
    h = m.cell(h, m.state)
    m.state.copy_(h)
    return h


def membrane(m: Any, h: Tensor) -> Tensor:
    m.state.mul_(0.9).add_(m.layer(h))
    return (m.state > 1).float()


def last_frames(m: Any, h: Tensor) -> Tensor:
    joined = torch.cat([m.state, h])
    m.state.copy_(joined[-4:])
    frames: Tensor = m.layer(joined)
    return frames


@pytest.mark.parametrize(
    ("forward", "is_statistic"), [(running_mean, True), (hidden_state, False), (membrane, False), (last_frames, False)]
)
def test_a_state_that_goes_from_call_to_call_is_no_statistic(forward: Any, is_statistic: bool) -> None:
    parts = {"layer": nn.Linear(32, 32), "cell": nn.GRUCell(32, 32), "state": torch.zeros(4, 32)}
    assert ("state-written-in-evaluation" in rules(forward, x(4, 32), **parts)) is is_statistic


# --- statistics of the batch


def of_batch(m: Any, image: Tensor) -> Tensor:
    return functional.batch_norm(image, m.mean, m.var, training=True)


def by_sample(m: Any, image: Tensor) -> Tensor:
    """The channels of all samples are those of one: each sample has statistics of its own."""
    normed: Tensor = m.norm(image.reshape(1, -1, 6, 6))
    return normed.reshape(image.shape)


@pytest.mark.parametrize(("forward", "is_bug"), [(of_batch, True), (by_sample, False)])
def test_statistics_of_the_input_that_are_meant_are_no_bug(forward: Any, is_bug: bool) -> None:
    parts = {"mean": torch.zeros(8), "var": torch.ones(8), "norm": nn.BatchNorm2d(32, track_running_stats=False)}
    assert ("batch-statistics-in-evaluation" in rules(forward, x(4, 8, 6, 6), **parts)) is is_bug


@pytest.mark.parametrize("is_written", [False, True])
def test_a_line_that_needs_one_of_its_copies_stays(is_written: bool) -> None:
    def forward(_: Any, h: Tensor) -> Tensor:
        h, taken = torch.tanh(h), []
        for at in range(4):
            if is_written:
                h[:, at] = 0
            else:
                h = torch.tanh(h)
            taken.append(h.clone())
        return torch.stack(taken)

    assert ("needless-copy" in rules(forward, x(64, 80))) is not is_written
