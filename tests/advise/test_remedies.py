"""Remedies by kind: code to paste, waits of the host, the fast path, packed sequences, merged places."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.planted import gain_of, on_cuda, said, seen
from torchgauge import analyze
from torchgauge.advise import Advice, advise


def of_rule(model: nn.Module, rule: str, *inputs: Any) -> list[Advice]:
    return [advice for advice in said(seen(model, inputs=inputs)) if advice.rule == rule]


class Conditioned(nn.Module):
    """A block whose only work that does not need the block before is a projection of the condition."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.mix = nn.Linear(32, 64), nn.Conv1d(64, 64, 3, padding=1)

    def forward(self, a: Tensor, condition: Tensor) -> Tensor:
        return torch.relu(self.mix(a + self.project(condition)[..., None]))


def chained(self: Any, a: Tensor, condition: Tensor) -> Tensor:
    for block in self.blocks:
        a = block(a, condition)
    return a


def test_blocks_that_share_a_condition_gain_no_more_than_their_projections() -> None:
    model = Does(chained, blocks=nn.ModuleList(Conditioned() for _ in range(6)))
    evidence = seen(model, inputs=(x(4, 64, 256), x(4, 32)))
    found = [advice for advice in said(evidence) if advice.rule == "parallel-linears"]
    chain = {op.index for op in evidence.forward if op.op in ("aten::convolution", "aten::relu", "aten::add")}

    assert found
    assert not any(chain & (gain_of(advice).touched or frozenset()) for advice in found)


def standardised(self: Any, a: Tensor) -> Tensor:
    mean, spread = a.mean(-1, keepdim=True), a.var(-1, keepdim=True, unbiased=False)
    return (a - mean) / torch.sqrt(spread + 1e-5) * self.weight + self.bias


def test_the_norm_to_paste_has_the_scale_and_the_shift() -> None:
    model = nn.Sequential(Does(standardised, weight=nn.Parameter(x(64)), bias=nn.Parameter(x(64)))).eval()
    given = x(8, 16, 64)
    (found,) = of_rule(model, "norm-by-hand", given)
    known: dict[str, Any] = {"torch": torch, "model": copy.deepcopy(model)}
    exec(str(found.code), known)

    assert isinstance(known["model"][0], nn.LayerNorm)
    torch.testing.assert_close(known["model"](given), model(given))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("hook", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_code_removes_the_hooks_that_compute_a_weight(hook: Any) -> None:
    model = nn.Sequential(hook(nn.Linear(64, 64)), nn.ReLU()).eval()
    given = x(2, 64)
    expected = model(given)
    (found,) = of_rule(model, "recomputed-weight", given)
    exec(str(found.code), {"torch": torch, "model": model})

    assert isinstance(model[0].weight, nn.Parameter)
    assert torch.allclose(model(given), expected, atol=1e-6)


def asking(self: Any, a: Tensor) -> Tensor:
    return a + self.flag.item()


def selecting(self: Any, a: Tensor) -> Tensor:
    return self.layer(a[torch.nonzero(a[:, 0] > 0)[:, 0]])


def selecting_by_where(self: Any, a: Tensor) -> Tensor:
    rows = torch.where(a[:, 0] > 0)[0]
    return self.layer(a[rows])


def cut_off(self: Any, a: Tensor) -> Tensor:
    lengths = (a > 0).sum(1)
    mask = torch.ones_like(a)
    for row in range(len(a)):
        mask[row, lengths[row] :] = 0
    return self.layer(a * mask)


def masked(self: Any, a: Tensor) -> Tensor:
    causal = nn.Transformer.generate_square_subsequent_mask(a.shape[1])
    return self.encoder(a, mask=causal)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Does(asking, flag=torch.tensor(1.0)), "avoid .item() in forward"),
        (
            Does(selecting, layer=nn.Linear(8, 8)),
            "avoid nonzero in forward",
        ),
        (
            Does(selecting_by_where, layer=nn.Linear(8, 8)),
            "avoid torch.where(condition) in forward",
        ),
        (Does(cut_off, layer=nn.Linear(8, 8)), "read these values with one .tolist()"),
        (
            Does(masked, encoder=nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 1)),
            "pass is_causal",
        ),
    ],
    ids=["item", "nonzero", "where", "a bound of a slice", "a mask that torch compares"],
)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_waits_of_the_host_have_remedies_by_kind(model: nn.Module, words: str) -> None:
    given = x(2, 6, 8) if hasattr(model, "encoder") else x(6, 8)
    found = of_rule(model, "host-wait", given)

    assert any(advice.recommendation.startswith(words) for advice in found)


def noisy(self: Any, a: Tensor) -> Tensor:
    sigma = self.sigma if self.training else 0.0
    return nn.functional.linear(a, self.weight + sigma)


def test_parameters_that_only_training_reads_are_not_called_useless() -> None:
    model = Does(noisy, weight=nn.Parameter(x(64, 64)), sigma=nn.Parameter(x(64, 64)))
    (found,) = of_rule(model, "unused-parameters", x(2, 64))

    assert "this call does not read it" in found.recommendation


@pytest.mark.parametrize("hands_out", [True, False])
def test_a_table_that_the_caller_reads_is_not_called_useless(hands_out: bool) -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.layer = nn.Embedding(500, 64), nn.Linear(64, 64)

        def forward(self, embedded: Tensor) -> Tensor:
            return torch.relu(self.layer(embedded))

    class Around(Decoder):
        def get_input_embeddings(self) -> nn.Module:
            return self.tokens

    found = of_rule(Around() if hands_out else Decoder(), "unused-parameters", x(2, 8, 64))

    assert bool(found) is not hands_out


def routed(self: Any, a: Tensor) -> Tensor:
    """A router of zeros: every token chooses the same experts."""
    chosen = (a @ self.router).topk(2, -1)[1]
    out = torch.zeros_like(a)
    for number, expert in enumerate(self.experts):
        rows = (chosen == number).any(-1).nonzero()[:, 0]
        if len(rows):
            out[rows] += expert(a[rows])
    return out


def test_every_place_of_merged_advice_has_its_line() -> None:
    model = nn.Sequential(*(Does(standardised, weight=nn.Parameter(x(64)), bias=nn.Parameter(x(64))) for _ in "ab"))
    (found,) = of_rule(model, "norm-by-hand", x(8, 64))

    assert [place["source"].partition(":")[0] for place in found.evidence["places"]] == ["test_remedies.py"] * 2


def read_out(self: Any, given: Tensor, reading: Tensor) -> Tensor:
    """The product of every step needs the state of that step."""
    state, out = torch.zeros_like(given[:, 0]), []
    for t in range(given.shape[1]):
        state = 0.9 * state + given[:, t]
        out.append(torch.einsum("bn,bnm->bm", state, reading[:, t]))
    return torch.stack(out, 1)


def test_a_product_with_the_state_of_a_loop_is_not_one_over_samples() -> None:
    evidence = seen(Does(read_out), inputs=(x(2, 16, 8), x(2, 16, 8, 8)))

    assert {advice.rule for advice in advise(evidence)} & {"scan-in-python", "loop-over-samples"} == {"scan-in-python"}


def test_the_check_of_one_hot_is_not_a_wait_on_a_gpu() -> None:
    model = Does(lambda self, i: nn.functional.one_hot(i, 16).float() @ self.table, table=nn.Parameter(x(16, 8)))

    assert of_rule(model, "host-wait", torch.arange(8)) == []


def test_enable_gqa_is_not_advised_where_no_kernel_has_it() -> None:
    def shared(self: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1))

    on_cpu = seen(Does(shared), inputs=(x(1, 8, 64, 32), x(1, 2, 64, 32), x(1, 2, 64, 32)))

    assert "repeated-keys" in {advice.rule for advice in said(on_cpu)}
    assert "repeated-keys" not in {advice.rule for advice in said(on_cuda(on_cpu))}


class InPlaceResidual(nn.Module):
    """The sum is written into the convolution's result, which is free to go after the next block read it."""

    def __init__(self, pool: int) -> None:
        super().__init__()
        self.is_pooled = pool > 1
        self.first, self.second = nn.Conv1d(16, 16, 3, stride=pool), nn.Conv1d(16, 16, 3)
        self.pool = nn.MaxPool1d(pool)

    def forward(self, a: Tensor) -> Tensor:
        out = self.second(nn.functional.pad(self.first(nn.functional.pad(a, (1, 1))), (1, 1)))
        out += self.pool(a) if self.is_pooled else a
        return out


def test_a_residual_that_is_added_in_place_holds_nothing() -> None:
    model = nn.Sequential(*(InPlaceResidual(2 if block % 6 == 1 else 1) for block in range(24)))

    assert of_rule(model, "held-activations", x(4, 16, 1024)) == []


@pytest.mark.parametrize(
    "windows",
    [
        [{"kernel_size": size} for size in (1, 2, 3, 4, 5)],
        [{"kernel_size": size, "padding": "same"} for size in (1, 3, 5, 7, 9)],
        [{"kernel_size": 3, "padding": size, "dilation": size} for size in (1, 2, 4, 8, 16)],
    ],
)
def test_convolutions_with_different_windows_are_not_one_layer(windows: list[dict[str, Any]]) -> None:
    def pooled(self: Any, a: Tensor) -> Tensor:
        return torch.cat([conv(a).amax(-1) for conv in self.convs], 1)

    def convs(windows: list[dict[str, Any]]) -> nn.ModuleList:
        return nn.ModuleList(nn.Conv1d(64, 32, **window) for window in windows)

    assert of_rule(Does(pooled, convs=convs(windows)), "parallel-linears", x(2, 64, 32)) == []
    assert of_rule(Does(pooled, convs=convs(windows[1:2] * 5)), "parallel-linears", x(2, 64, 32))


class Attending(nn.Module):
    def __init__(self, *, reads: bool = False) -> None:
        super().__init__()
        self.attention, self.reads = nn.MultiheadAttention(64, 4, batch_first=True), reads

    def forward(self, a: Tensor) -> Tensor:
        made, weights = self.attention(a, a, a)
        return torch.relu(made) + (weights.amax(-1, keepdim=True) if self.reads else 0)


@pytest.mark.parametrize(
    "model", [Attending(), nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)]
)
def test_long_sequences_are_slow_on_the_fast_path(model: nn.Module) -> None:
    given = x(1, 1024, 64)
    (found,) = of_rule(model.eval(), "attention-fast-path", given)
    known: dict[str, Any] = {"torch": torch, "model": copy.deepcopy(model)}
    try:
        exec(str(found.code), known)
        assert "aten::_scaled_dot_product_flash_attention_for_cpu" in {
            op.op for op in seen(known["model"], inputs=(given,)).forward
        }
        torch.testing.assert_close(known["model"](given), model(given), atol=1e-4, rtol=1e-4)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_the_fast_path_is_right_for_short_sequences_and_for_weights_that_are_read() -> None:
    assert of_rule(Attending().eval(), "attention-fast-path", x(4, 128, 64)) == []
    assert of_rule(Attending(reads=True).eval(), "attention-fast-path", x(1, 1024, 64)) == []


def test_two_halves_of_a_parameter_are_two_tensors() -> None:
    def halves(self: Any, a: Tensor) -> Tensor:
        return a @ self.table[:, :128] + a @ self.table[:, 128:]

    def twice(self: Any, a: Tensor) -> Tensor:
        return (a @ self.table).relu() + (a @ self.table).tanh()

    def table() -> nn.Parameter:
        return nn.Parameter(x(256, 256))

    assert of_rule(Does(halves, table=table()), "repeated-work", x(512, 256)) == []
    assert of_rule(Does(twice, table=table()), "repeated-work", x(512, 256))


def test_skip_connections_are_no_cache() -> None:
    def skipping(self: Any, a: Tensor) -> Tensor:
        b = torch.cat([a, a.sin(), a.cos()], -1)
        b = torch.cat([a, b], -1)
        return self.fc(torch.cat([b, a], -1))

    def growing(self: Any, a: Tensor) -> Tensor:
        b = a
        for _ in range(4):
            b = torch.cat([b, a], -1)
        return self.fc(b)

    assert of_rule(Does(skipping, fc=nn.Linear(160, 8)), "grown-by-cat", x(4096, 32)) == []
    assert of_rule(Does(growing, fc=nn.Linear(160, 8)), "grown-by-cat", x(4096, 32))


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(64, 4, 1), nn.Conv2d(4, 64, 1)

    def forward(self, a: Tensor) -> Tensor:
        return a * self.excite(self.squeeze(a.mean((2, 3), keepdim=True)).relu()).sigmoid()


def test_maps_are_not_joined_for_their_gate() -> None:
    def gated(self: Any, a: Tensor) -> Tensor:
        return self.gate(a.sin()) + self.gate(a.cos()) + self.gate(a.exp()) + self.gate(a.tanh())

    assert of_rule(Does(gated, gate=Gate()), "loop-over-samples", x(4, 64, 64, 32)) == []
    assert of_rule(Does(gated, gate=nn.Conv2d(64, 64, 1)), "loop-over-samples", x(1, 64, 8, 8))


class Packing(nn.Module):
    def __init__(self, lengths: str) -> None:
        super().__init__()
        self.lengths, self.rnn = lengths, nn.LSTM(32, 64, batch_first=True)

    def forward(self, a: Tensor, lengths: Tensor) -> Tensor:
        if self.lengths == "computed":
            lengths = (a[..., 0] < 9).sum(-1)
        elif self.lengths == "brought":
            lengths = (a[..., 0] < 9).sum(-1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(a, lengths, batch_first=True, enforce_sorted=False)
        return torch.relu(self.rnn(packed)[1][0])


@pytest.mark.parametrize(("lengths", "waits"), [("given", 0), ("computed", 1), ("brought", 1)])
def test_packed_sequences_wait_for_their_lengths_alone(lengths: str, waits: int) -> None:
    """Their batch sizes are on the host, on whatever device the sequences are."""
    found = of_rule(Packing(lengths), "host-wait", x(8, 40, 32), torch.full((8,), 40))

    assert [advice.recommendation.split()[0] for advice in found] == ["avoid"] * waits


@pytest.mark.parametrize(("brings", "waits"), [(False, False), (True, True)])
def test_lengths_of_packed_sequences_are_on_the_host(brings: bool, waits: bool) -> None:
    """A loop over lengths that are also packed waits for nothing, unless they came from the device."""

    def masked(self: Any, a: Tensor, lengths: Tensor) -> Tensor:
        on_host = lengths.cpu() if brings else lengths
        packed = nn.utils.rnn.pack_padded_sequence(a, on_host, batch_first=True, enforce_sorted=False)
        hidden = torch.relu(self.rnn(packed)[1][0][-1])
        mask = torch.zeros_like(a[..., 0])
        for row, length in enumerate(lengths + 1):
            mask[row, : length.item() - 1] = 1
        return hidden + mask.sum(-1, keepdim=True)

    found = of_rule(
        Does(masked, rnn=nn.LSTM(32, 64, batch_first=True)), "host-wait", x(8, 40, 32), torch.full((8,), 40)
    )

    assert bool(found) is waits


class Choice(torch.distributions.one_hot_categorical.OneHotCategorical):
    def __init__(self, logits: Tensor) -> None:
        super().__init__(logits=logits)


def test_a_class_derived_from_a_distribution_checks_its_arguments() -> None:
    """The checks of two equal distributions are not work that could be passed on."""

    def chosen(self: Any, a: Tensor) -> Tensor:
        logits = self.out(a)
        return Choice(logits).mean + Choice(logits).probs

    model = Does(chosen, out=nn.Linear(64, 32))
    (found,) = of_rule(model, "host-wait", x(16, 64))
    assert found.recommendation.startswith("call Distribution.set_default_validate_args(False)")
    repeated = of_rule(model, "repeated-work", x(16, 64))
    assert all("aten::all" not in advice.evidence["repeated"] for advice in repeated)


def test_a_number_of_parameters_alone_is_read_once() -> None:
    def spanned(self: Any, a: Tensor) -> Tensor:
        length = int(self.span.sigmoid().max().item() * a.shape[1])
        return self.out(a[:, :length])

    model = Does(spanned, out=nn.Linear(64, 32))
    model.span = nn.Parameter(torch.zeros(8))
    (found,) = of_rule(model, "host-wait", x(16, 40, 64))
    assert found.recommendation.startswith("read this value once")

    model.span.requires_grad_(False)
    del model.span
    model.register_buffer("span", torch.zeros(8))  # a state may have another value in the next call
    assert not any(advice.recommendation.startswith("read") for advice in of_rule(model, "host-wait", x(16, 40, 64)))


def test_steps_whose_results_are_stacked_are_not_held() -> None:
    """A list of a layer's steps is stacked, and the next layer reads the stack to its last step."""

    def layers(self: Any, a: Tensor) -> Tensor:
        for layer in self.layers:
            state, out = torch.zeros_like(a[:, 0]), []
            for t in range(a.shape[1]):
                state = torch.tanh(layer(a[:, t]) + state)
                out.append(state)
            a = torch.stack(out, 1)
        return a

    def held(self: Any, a: Tensor) -> Tensor:
        kept = []
        for _ in range(24):
            a = torch.tanh(a)
            kept.append(a)
        return self.layers[0](a)

    two = nn.ModuleList(nn.Linear(64, 64) for _ in "ab")
    assert of_rule(Does(layers, layers=two), "held-activations", x(64, 12, 64)) == []
    assert of_rule(Does(held, layers=two), "held-activations", x(64, 12, 64))


def test_lengths_that_the_model_computes_cannot_come_from_the_host() -> None:
    def routed(self: Any, a: Tensor) -> Tensor:
        sizes = torch.bincount(self.gate(a).argmax(-1), minlength=4).tolist()
        return torch.cat([part.relu() for part in a.split(sizes)])

    found = of_rule(Does(routed, gate=nn.Linear(32, 4)), "host-wait", x(64, 32))

    assert not any("from the host" in advice.recommendation for advice in found)


@pytest.mark.parametrize(
    ("term", "is_said"),
    [
        (lambda a: a.new_tensor(numpy.ones(32)), False),
        (lambda a: torch.arange(32).to(a.device), False),
        (lambda a: torch.linspace(0, 1, 32).unsqueeze(0).to(a), False),
        (lambda a: torch.arange(32, device=a.device), True),
        (lambda a: a.new_ones(32), True),
        (lambda a: torch.tensor(2.0), True),
        (lambda a: 0, True),
    ],
)
def test_no_graph_is_promised_where_a_transfer_is_in_the_way(term: Callable[[Tensor], Any], is_said: bool) -> None:
    def sent(self: Any, a: Tensor) -> Tensor:
        for layer in self.layers:
            a = layer(a).relu()
        return a + term(a)

    model = Does(sent, layers=nn.ModuleList(nn.Linear(32, 32) for _ in range(12)))
    found = {row["rule"] for row in analyze(model.eval(), inputs=x(8, 32), on="h200").advice}

    assert ("launch-bound" in found) == is_said
