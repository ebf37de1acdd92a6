"""Attention by einsum and by products in other orders: the softmax must be over the keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.pasting import check_code
from tests.advise.planted import said, seen
from torchgauge.advise import advise

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


class SplitHeads(nn.Module):
    """Self-attention as it is written in most repositories: heads by view and transpose."""

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.enter, self.leave = nn.Linear(heads * size, 3 * heads * size), nn.Linear(heads * size, heads * size)

    def forward(self, h: Tensor) -> Tensor:
        batch, tokens, width = h.shape
        q, k, v = self.enter(h).view(batch, tokens, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / self.size**0.5).softmax(-1)
        return self.leave((weights @ v).transpose(1, 2).reshape(batch, tokens, width))


@pytest.mark.parametrize(
    ("batch", "heads", "tokens", "size", "is_said"),
    [
        (48, 8, 61, 16, False),  # 13 scores of a row are behind its last whole vector
        (64, 4, 30, 12, False),
        (24, 6, 47, 8, False),
        (48, 8, 64, 16, True),
        (64, 8, 48, 32, True),
        (8, 4, 237, 24, True),  # so many scores that the rest of a row hardly counts
    ],
)
def test_fused_attention_is_advised_by_the_keys_that_fill_vectors(
    batch: int, heads: int, tokens: int, size: int, is_said: bool
) -> None:
    """Measured with one thread: 61 tokens -5 to 0 %, 30 and 47 tokens -40 to -15 % of the attention; 64 tokens 25 %, 48
    tokens 20 %."""
    model = nn.Sequential(SplitHeads(heads, size), SplitHeads(heads, size)).eval()

    found = advise(seen(model, inputs=(x(batch, tokens, heads * size),)))

    assert ("attention-by-hand" in {advice.rule for advice in found}) == is_said


def test_attentions_of_one_line_of_code_are_switched_together() -> None:
    """The edit changes windows of 48 tokens and of 47, of which only the first gain; together they do."""

    class TwoScales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fine, self.coarse = SplitHeads(8, 32), SplitHeads(8, 32)

        def forward(self, h: Tensor) -> Tensor:
            return self.coarse(self.fine(h)[:4, :47])

    (found,) = [
        advice
        for advice in advise(seen(TwoScales().eval(), inputs=(x(64, 48, 256),)))
        if advice.rule == "attention-by-hand"
    ]

    assert found.evidence["count"] == 2
    assert found.code is not None


@pytest.mark.parametrize(
    ("sizes", "is_said"),
    [([(1, 1, 128, 128)], True), ([(8, 1, 1, 128), (1, 1, 1, 128)], True), ([(8, 1, 1, 128), (1, 4, 128, 128)], False)],
    ids=["one bias", "two small ones", "two that fill the scores"],
)
def test_biases_that_must_be_joined_first_leave_nothing_to_save(sizes: list[tuple[int, ...]], is_said: bool) -> None:
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(128, 384)
            self.biases = nn.ParameterList(torch.randn(size) for size in sizes)

        def forward(self, a: Tensor) -> Tensor:
            q, k, v = (part.view(8, 128, 4, 32).transpose(1, 2) for part in self.qkv(a).chunk(3, -1))
            scores = q @ k.transpose(-1, -2) * 32**-0.5
            for bias in self.biases:
                scores = scores + bias
            return (scores.softmax(-1) @ v).transpose(1, 2).reshape(a.shape)

    rules = {advice.rule for advice in said(seen(Biased(), inputs=(x(8, 128, 128),)))}
    assert ("attention-by-hand" in rules) == is_said


# --- what is done to scores and weights between the products

KEEP = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) < 0.7
Scores = Callable[[Tensor], Tensor]


def between(before: Scores = lambda scores: scores, behind: Scores = lambda weights: weights) -> Attends:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (each.permute(1, 2, 0, 3) for each in (q, k, v))
        weights = torch.softmax(before(q @ k.transpose(-2, -1) / 4), -1)
        return (behind(weights) @ v).permute(2, 0, 1, 3)

    return attend


@pytest.mark.parametrize(
    "attend",
    {
        "a factor for each head": between(lambda s: s * torch.ones(4, 1, 1)),
        "a mask": between(lambda s: s.masked_fill(~KEEP, -1e4)),
        "a choice": between(lambda s: torch.where(KEEP, s, -1e9)),
        "a bias": between(lambda s: s - torch.linspace(0, 1, 64)),
        "a scale of the weights": between(behind=lambda w: w * 2),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_fused_kernel_scales_and_masks_scores(attend: tuple[str, Attends]) -> None:
    assert count(attend[1]) == 1


@pytest.mark.parametrize(
    "attend",
    {
        "a cap": between(lambda s: 30 * torch.tanh(s / 30)),
        "an activation": between(lambda s: torch.nn.functional.leaky_relu(s, 0.2)),
        "a factor for each pair": between(lambda s: s * torch.rand(64, 64)),
        "a negative": between(lambda s: torch.ones(64, 64) - s),
        "a mask of zeros": between(lambda s: s.masked_fill(~KEEP, 0.0)),
        "a choice of zeros": between(lambda s: torch.where(KEEP, s, 0.0)),
        "powers": between(behind=lambda w: w**2),
        "the rest": between(behind=lambda w: 1 - w),
        "a threshold": between(behind=lambda w: torch.nn.functional.threshold(w, 0.01, 0.0)),
        "a mask behind the softmax": between(behind=lambda w: w.masked_fill(~KEEP, 0.0)),
        "two steps of a walk": between(behind=lambda w: w @ w),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_fused_kernel_cannot_do_anything_else_to_scores(attend: tuple[str, Attends]) -> None:
    assert count(attend[1]) == 0


def test_another_mask_behind_the_softmax_hides_more() -> None:
    class Twice(SplitHeads):
        def forward(self, h: Tensor, first: Tensor, second: Tensor) -> Tensor:  # type: ignore[override]
            q, k, v = self.enter(h).view(*h.shape[:2], 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(-2, -1) / self.size**0.5).masked_fill(first, -1e9).softmax(-1)
            return self.leave((weights.masked_fill(second, 0.0) @ v).transpose(1, 2).reshape(h.shape))

    hidden = torch.rand(128, 128) < 0.2
    for second, is_said in ((hidden, True), (hidden.clone(), False)):
        found = said(seen(Twice(4, 16), inputs=(x(2, 128, 64), hidden, second)))
        assert ("attention-by-hand" in {each.rule for each in found}) is is_said


def test_weights_that_a_module_keeps_the_mean_of_are_needed() -> None:
    class Watched(SplitHeads):
        def forward(self, h: Tensor) -> Tensor:
            q, k, v = self.enter(h).view(*h.shape[:2], 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(-2, -1) / self.size**0.5).softmax(-1)
            self.watched = weights.mean(1)
            return self.leave((weights @ v).transpose(1, 2).reshape(h.shape))

    assert "attention-by-hand" not in {each.rule for each in said(seen(Watched(4, 16), inputs=(x(2, 128, 64),)))}


class Trained(SplitHeads):
    def __init__(self, dropout: float = 0.0, *, has_bias: bool = False) -> None:
        super().__init__(4, 16)
        self.dropout, self.bias = dropout, nn.Parameter(torch.zeros(4, 128, 128)) if has_bias else None

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.enter(h).view(*h.shape[:2], 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / self.size**0.5
        scores = scores if self.bias is None else scores + self.bias
        weights = torch.dropout(scores.softmax(-1), self.dropout, self.training)
        return self.leave((weights @ v).transpose(1, 2).reshape(h.shape))


@pytest.mark.parametrize(
    ("model", "mode", "is_said"),
    [
        (Trained(), "train", True),
        (Trained(0.1), "train", False),
        (Trained(has_bias=True), "train", False),
        (Trained(0.1), "inference", True),
    ],
)
def test_in_training_a_cpu_fuses_neither_dropout_nor_a_bias_with_a_gradient(
    model: nn.Module, mode: str, is_said: bool
) -> None:
    """Measured with one thread: 12 % slower with dropout, 26 % with the bias."""
    found = said(seen(model, inputs=(x(2, 128, 64),), mode=mode))

    assert ("attention-by-hand" in {each.rule for each in found}) == is_said


# --- causal masks

INF = float("-inf")


class Masked(nn.Module):
    def __init__(self, mask: Callable[[Any], Tensor], held: Tensor | None = None) -> None:
        super().__init__()
        self.qkv, self.mask = nn.Linear(32, 96), mask
        self.held = None if held is None else nn.Buffer(held)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.qkv(h).view(*h.shape[:2], 3, 2, 16).permute(2, 0, 3, 1, 4)
        mask = self.mask(h.shape[1]) if self.held is None else self.mask(self.held)
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def with_prefix(n: int) -> Tensor:
    mask = torch.ones(n, n).tril().bool()
    mask[:, :4] = True
    return mask


def with_distances(n: int) -> Tensor:
    at = torch.arange(n)
    return torch.full((n, n), INF).triu(1) - 0.1 * (at[:, None] - at).abs()


CAUSAL = {
    "a triangle": lambda n: torch.ones(n, n).tril() > 0,
    "hidden": lambda n: ~torch.ones(n, n, dtype=torch.bool).triu(1),
    "positions": lambda n: torch.arange(n)[:, None] >= torch.arange(n),
    "turned": lambda n: (torch.ones(n, n).triu() == 1).transpose(0, 1),
    "numbers": lambda n: (1 - torch.ones(n, n).tril()) * -1e9,
    "filled": lambda n: torch.zeros(n, n).masked_fill(torch.ones(n, n).triu(1) == 1, INF),
}
NOT_CAUSAL = {
    "one key ahead": lambda n: torch.ones(n, n).tril(1) > 0,
    "the future": lambda n: torch.ones(n, n, dtype=torch.bool).triu(),
    "the future by position": lambda n: torch.arange(n)[:, None] <= torch.arange(n),
    "turned": lambda n: (torch.ones(n, n).tril() == 1).transpose(0, 1),
    "a window": lambda n: (at := torch.arange(n)[:, None] - torch.arange(n)).ge(0) & at.lt(8),
    "a prefix": with_prefix,
    "distances": with_distances,
}


@pytest.mark.parametrize(("mask", "is_said"), [*((m, True) for m in CAUSAL), *((m, False) for m in NOT_CAUSAL)])
def test_a_flag_replaces_only_what_hides_the_keys_behind_each_query(mask: str, is_said: bool) -> None:
    model = Masked((CAUSAL if is_said else NOT_CAUSAL)[mask])

    found = {each.rule for each in said(seen(model, inputs=(x(2, 64, 32),)))}

    assert ("causal-mask" in found) == is_said
    assert "expanded-mask" not in found


@pytest.mark.parametrize(
    ("held", "mask", "is_said"),
    [
        (torch.ones(64, 64).tril(), lambda held: held == 1, True),
        (torch.ones(64, 64).tril(), lambda held: (held == 0) | torch.eye(64, dtype=torch.bool), False),
        (torch.ones(64, 64).triu(1), lambda held: held == 0, True),
        (torch.ones(64, 64).triu(1), lambda held: held != 0, False),
    ],
)
def test_a_buffer_may_hold_what_is_seen_or_hidden(held: Tensor, mask: Callable[..., Tensor], is_said: bool) -> None:
    found = {each.rule for each in said(seen(Masked(mask, held), inputs=(x(2, 64, 32),)))}

    assert ("causal-mask" in found) == is_said


# --- edits


class Hides(SplitHeads):
    """The triangle hides the past, without the query's own position."""

    def forward(self, h: Tensor) -> Tensor:
        tokens = h.shape[1]
        q, k, v = self.enter(h).view(*h.shape[:2], 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / self.size**0.5
        scores = scores.masked_fill(torch.tril(torch.ones(tokens, tokens), -1) == 1, float("-inf"))
        return self.leave((scores.softmax(-1) @ v).transpose(1, 2).reshape(h.shape))


class Skips(SplitHeads):
    """What looks like dropout has no p."""

    def __init__(self) -> None:
        super().__init__(4, 16)
        self.attn_drop = nn.Identity()

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.enter(h).view(*h.shape[:2], 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / self.size**0.5).softmax(-1)
        weights = self.attn_drop(weights)
        return self.leave((weights @ v).transpose(1, 2).reshape(h.shape))


class Shows(SplitHeads):
    """The weights are read behind the block, in calls that want them."""

    shows = False

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.enter(h).view(*h.shape[:2], 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        weights = None
        if self.size:
            weights = (q @ k.transpose(-2, -1) / self.size**0.5).softmax(-1)
            out = weights @ v
        if self.shows:
            self.shown = weights
        return self.leave(out.transpose(1, 2).reshape(h.shape))


def edit_of(model: nn.Module) -> str | None:
    (found,) = [each for each in said(seen(model, inputs=(x(2, 128, 64),))) if each.rule == "attention-by-hand"]
    return found.code


def test_an_edit_takes_the_mask_as_it_is() -> None:
    code = edit_of(Hides(4, 16))

    assert code is not None
    assert "attn_mask=~(torch.tril(torch.ones(tokens, tokens), -1) == 1)" in code
    assert "is_causal" not in code


@pytest.mark.parametrize("model", [Skips(), Shows(4, 16)], ids=["identity", "shown later"])
def test_no_edit_where_it_would_break_another_call(model: nn.Module) -> None:
    assert edit_of(model) is None


# --- keys that heads share

Repeats = Callable[[Tensor], Tensor]


class Grouped(nn.Module):
    def __init__(self, repeat: Repeats, shared: int = 2, *, is_fused: bool = True) -> None:
        super().__init__()
        self.repeat, self.shared, self.is_fused = repeat, shared, is_fused
        self.q, self.kv = nn.Linear(64, 64), nn.Linear(64, 2 * shared * 16)

    def forward(self, h: Tensor) -> Tensor:
        q = self.q(h).view(*h.shape[:2], 4, 16).transpose(1, 2)
        k, v = self.kv(h).view(*h.shape[:2], 2, self.shared, 16).permute(2, 0, 3, 1, 4)
        k, v = self.repeat(k), self.repeat(v)
        if self.is_fused:
            return nn.functional.scaled_dot_product_attention(q, k, v)
        return (q @ k.transpose(-2, -1) / 4).softmax(-1) @ v


def in_turn(k: Tensor) -> Tensor:
    """The first head, the second, the first again: attention shares them in another order."""
    return k[:, None].expand(-1, 2, -1, -1, -1).reshape(len(k), 4, *k.shape[2:])


@pytest.mark.parametrize(
    ("repeat", "shared", "is_said"),
    [
        (lambda k: k.repeat_interleave(2, 1), 2, True),
        (lambda k: k[:, :, None].expand(-1, -1, 2, -1, -1).reshape(len(k), 4, *k.shape[2:]), 2, True),
        (lambda k: k.repeat(1, 4, 1, 1), 1, True),
        (lambda k: k.repeat(1, 2, 1, 1), 2, False),
        (in_turn, 2, False),
        (lambda k: k[:1].repeat(len(k), 1, 1, 1), 4, False),
        (lambda k: k[:, :, ::4].repeat_interleave(4, 2), 4, False),
    ],
    ids=["interleaved", "expanded", "one", "repeated", "in turn", "samples", "tokens"],
)
def test_only_heads_that_lie_next_to_each_other_are_shared(repeat: Repeats, shared: int, is_said: bool) -> None:
    found = {each.rule for each in said(seen(Grouped(repeat, shared), inputs=(x(4, 64, 64),)))}

    assert ("repeated-keys" in found) == is_said


@pytest.mark.parametrize(("repeat", "is_said"), [(lambda k: k.repeat_interleave(2, 1), True), (in_turn, False)])
def test_attention_that_is_written_out_shares_the_same_heads(repeat: Repeats, is_said: bool) -> None:
    (found,) = [
        each
        for each in said(seen(Grouped(repeat, is_fused=False), inputs=(x(4, 64, 64),)))
        if each.rule == "attention-by-hand"
    ]

    assert ("enable_gqa" in found.recommendation) == is_said


def test_the_shape_of_a_mask_is_named_where_it_is_that_of_keys() -> None:
    def forward(self: Any, h: Tensor, keep: Tensor) -> Tensor:
        q = self.q(h).view(*h.shape[:2], 4, 16).transpose(1, 2)
        mask = (keep[:, None, None] if self.by_key else keep[:, None, :, None]).expand(-1, 4, 64, 64)
        return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask.contiguous())

    keep, words = torch.ones(4, 64, dtype=torch.bool), []
    for by_key in (True, False):
        evidence = seen(Does(forward, q=nn.Linear(64, 64), by_key=by_key), inputs=(x(4, 64, 64), keep))
        words += [each.recommendation for each in said(evidence) if each.rule == "expanded-mask"]

    assert ["(batch, 1, 1, keys)" in line for line in words] == [True, False]


class Biased(nn.Module):
    """Four heads with a mask or a bias that may be left out."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.project = heads, nn.Linear(64, 192)

    def forward(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        parts = self.project(h).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        scores = q @ k.transpose(-1, -2) * 0.25
        if mask is not None:
            scores = scores + mask
        return scores.softmax(-1) @ v


@pytest.mark.parametrize(
    ("shape", "taken", "words"),
    [((4, 64, 64), "mask[None]", "4-D attn_mask"), ((64,), "mask[None, :]", ": "), ((1, 4, 64, 64), "mask", ": ")],
)
def test_a_mask_gets_dimensions_that_fused_kernels_take(shape: tuple[int, ...], taken: str, words: str) -> None:
    model, inputs = Biased().eval(), (x(4, 64, 64), x(*shape))
    (advice,) = [each for each in said(seen(model, inputs=inputs)) if each.rule == "attention-by-hand"]

    assert words in advice.recommendation
    assert advice.code is not None
    assert f"attn_mask={taken}," in advice.code or f"attn_mask=None if mask is None else {taken}," in advice.code
    check_code(advice, model, inputs)
    check_code(advice, model, inputs[:1])


def scaled_with_bias(self: Any, h: Tensor) -> Tensor:
    return ((h @ h.transpose(-1, -2) + self.bias) * 0.25).softmax(-1) @ h


def scaled_by_head(self: Any, h: Tensor) -> Tensor:
    return (h @ h.transpose(-1, -2) * self.bias[0, :, :1, :1]).softmax(-1) @ h


@pytest.mark.parametrize(
    ("forward", "risk"), [(scaled_with_bias, "scale what is added"), (scaled_by_head, "multiply q by the factor")]
)
def test_what_is_done_with_biases_and_factors_is_said(forward: Callable[..., Tensor], risk: str) -> None:
    model = Does(forward, bias=nn.Parameter(x(1, 4, 256, 256)))
    (advice,) = [each for each in said(seen(model, inputs=(x(4, 4, 256, 16),))) if each.rule == "attention-by-hand"]

    assert risk in advice.risk
