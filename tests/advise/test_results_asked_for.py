"""Results that a caller asks for, modes that a model refuses, one saving in two lines, complex numbers, CUDA graphs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.test_near_misses import shown
from torchgauge import analyze
from torchgauge.source.packages import import_optional

# --- tensors that a package holds because it was asked for them


def last_of_all(self: Any, ids: Tensor) -> Tensor:
    states = self.encoder(
        ids,
        output_hidden_states=True,
    )
    return states.last_hidden_state.mean(1)


def all_by_the_config(self: Any, ids: Tensor) -> Tensor:
    states = self.encoder(ids)
    return states.last_hidden_state.mean(1)


@pytest.mark.parametrize("forward", [last_of_all, all_by_the_config])
def test_states_that_a_package_holds_are_those_of_the_call_that_asks_for_them(forward: Any) -> None:
    transformers = import_optional("transformers", "a model")
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "vocab_size": 64}
    config = transformers.BertConfig(
        num_hidden_layers=16, output_hidden_states=forward is all_by_the_config, max_position_embeddings=256, **sizes
    )
    model = Does(forward, encoder=transformers.BertModel(config))

    (found,) = [
        row for row in shown(model, torch.zeros(2, 256, dtype=torch.int64)) if row["rule"] == "held-activations"
    ]

    assert found["where"]["module"] == "encoder"
    assert found["where"]["line"].startswith("states = self.encoder(")
    assert ("output_hidden_states=True" in found["recommendation"]) is (forward is last_of_all)


# --- attention layers that write out their scores because they return weights


class CausalAttention(nn.Module):
    """A layer that returns weights, as it does unless the caller says otherwise."""

    def __init__(self, *, reads: bool = False) -> None:
        super().__init__()
        self.attend, self.reads = nn.MultiheadAttention(64, 4, batch_first=True), reads

    def forward(self, h: Tensor) -> Tensor:
        hidden = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool, device=h.device).triu(1)
        made, weights = self.attend(h, h, h, attn_mask=hidden)
        return h + made + (weights.amax(-1, keepdim=True) if self.reads else 0)


@pytest.mark.parametrize("tokens", [256, 1024])
def test_a_causal_layer_that_returns_weights_is_told_not_to(tokens: int) -> None:
    model, h = CausalAttention().eval(), x(2, tokens, 64)
    (found,) = [row for row in shown(model, h) if row["rule"] in ("causal-mask", "attention-fast-path")]
    assert "need_weights=False" in found["recommendation"]
    known: dict[str, Any] = {"torch": torch, "model": copy.deepcopy(model)}
    try:
        exec(found["code"], known)
        ops = {op.op for op in analyze(known["model"], inputs=(h,), progress=False, advice=False).capture.ops}
        torch.testing.assert_close(known["model"](h), model(h), atol=1e-4, rtol=1e-4)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in ops


def test_a_causal_layer_whose_weights_are_read_keeps_them() -> None:
    rules = {row["rule"] for row in shown(CausalAttention(reads=True), x(2, 256, 64))}
    assert not rules & {"causal-mask", "attention-fast-path"}


# --- models whose eval() leaves layers in training mode


class FrozenNorms(nn.Module):
    """A detector that only keeps its norms in evaluation mode, whatever mode it is given."""

    def __init__(self) -> None:
        super().__init__()
        layers = [(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(6)]
        self.body = nn.Sequential(*(layer for block in layers for layer in block))

    def train(self, mode: bool = True) -> FrozenNorms:
        super().train(True)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self

    def forward(self, h: Tensor) -> Tensor:
        made: Tensor = self.body(h)
        return made


def test_a_fold_does_not_need_a_mode_that_the_model_refuses() -> None:
    model, h = FrozenNorms().eval(), x(4, 16, 64, 64)
    assert model.body[0].training
    (found,) = [row for row in shown(model, h, all_advice=True) if row["rule"] == "conv-bn-fusion"]
    known: dict[str, Any] = {"torch": torch, "model": copy.deepcopy(model)}
    with torch.no_grad():
        exec(found["code"], known)
        torch.testing.assert_close(known["model"](h), model(h), atol=1e-4, rtol=1e-4)


# --- two lines for one saving


def twice(self: Any, h: Tensor) -> Tensor:
    first = self.layer(h)  # a forgotten copy of the next line
    made = self.layer(h)
    return h + made.relu() + first.shape[0]


class OwnLines(nn.Module):
    """Both calls run the same line."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(256, 256)

    def forward(self, h: Tensor) -> Tensor:
        return torch.tanh(self.inner(h))


@pytest.mark.parametrize(
    ("layer", "rule"), [(nn.Linear(256, 256), "unread-result"), (OwnLines(), "repeated-work")], ids=["layer", "lines"]
)
def test_of_two_equal_calls_one_of_which_nothing_reads_one_line_is_shown(layer: nn.Module, rule: str) -> None:
    rules = {row["rule"] for row in shown(Does(twice, layer=layer), x(64, 256))}
    assert rules & {"unread-result", "repeated-work"} == {rule}


# --- what a dictionary of all results holds


def by_number(self: Any, h: Tensor) -> Tensor:
    outputs: dict[int, Tensor] = {}
    for number, layer in enumerate(self.layers):
        h = torch.relu(layer(h)) + h if number % 2 else torch.relu(layer(h)) * 2
        if number == 5:
            h = torch.cat((h, outputs[number - 3]), 1)[:, :8]
        outputs[number] = h
    return h.mean((2, 3))


def test_all_that_a_dictionary_holds_is_counted() -> None:
    model = Does(by_number, layers=nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(24)))
    (found,) = [row for row in shown(model, x(2, 8, 64, 64)) if row["rule"] == "held-activations"]
    assert "in outputs:" in found["recommendation"]
    # Both kinds of results, of which one group alone would be half.
    assert found["evidence"]["tensors"] >= 20


# --- lines that run several times without a loop


def rotated(h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = h.chunk(2, dim=-1)
    turned = left * cos - right * sin
    return torch.cat([turned, left * sin + right * cos], -1)


def rotated_head(h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = h.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], -1)


class Rotary(nn.Module):
    def __init__(self, *, loops: bool) -> None:
        super().__init__()
        self.qkv, self.loops = nn.Linear(128, 384), loops

    def forward(self, h: Tensor, angle: Tensor) -> Tensor:
        q, k, v = self.qkv(h).view(*h.shape[:2], 3, 4, 32).permute(2, 0, 3, 1, 4)
        cos, sin = angle.cos(), angle.sin()
        if self.loops:
            q = torch.stack([rotated_head(q[:, head], cos, sin) for head in range(4)], 1)
        else:
            q = rotated(q, cos, sin)
            k = rotated(k, cos, sin)
        return h + nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("loops", [False, True])
def test_a_function_for_queries_and_keys_is_not_a_loop(loops: bool) -> None:
    inputs = (x(2, 256, 128), x(256, 16))
    found = analyze(Rotary(loops=loops).eval(), inputs=inputs, on="h200", all_advice=True, progress=False).advice
    assert ("loop-over-samples" in {row["rule"] for row in found}) is loops


# --- complex numbers, for which Inductor makes no code


def recurrence(self: Any, h: Tensor) -> Tensor:
    state, made = torch.zeros_like(h[:, 0]), []
    for step in h.unbind(1):
        state = state * self.keep + step * 0.1
        made.append(state)
    return torch.stack(made, 1).abs()


@pytest.mark.parametrize("is_complex", [False, True])
def test_loops_over_complex_numbers_are_not_compiled(is_complex: bool) -> None:
    h, keep = x(8, 128, 64), x(64)
    if is_complex:
        h, keep = torch.complex(h, h), torch.complex(keep, keep)
    (found,) = [row for row in shown(Does(recurrence, keep=keep), h) if row["rule"] == "scan-in-python"]
    assert ("compile its loop" in found["recommendation"]) is not is_complex
    assert (found["code"] is None) is is_complex


# --- what each call sends to a GPU


@pytest.mark.parametrize("is_list", [False, True])
def test_a_list_of_indices_prevents_a_cuda_graph(is_list: bool) -> None:
    def shuffled(self: Any, h: Tensor) -> Tensor:
        for layer in self.layers:
            h = torch.relu(layer(h))
            h = h + h[[*range(16, 32), *range(16)] if is_list else self.order]
        return h

    model = Does(shuffled, layers=nn.ModuleList(nn.Linear(64, 64) for _ in range(12)), order=torch.arange(32).flip(0))
    found = analyze(model.eval(), inputs=x(32, 64), on="h200", progress=False).advice
    assert ("launch-bound" in {row["rule"] for row in found}) is not is_list


class Normalised(nn.Module):
    """A spectral norm by hand, whose state is another tensor after each call."""

    def __init__(self, *, assigns: bool) -> None:
        super().__init__()
        self.layers, self.assigns = nn.ModuleList(nn.Linear(64, 64) for _ in range(12)), assigns
        self.u = nn.Parameter(x(64), requires_grad=False)

    def forward(self, h: Tensor) -> Tensor:
        for layer in self.layers:
            h = torch.relu(layer(h))
        u = nn.functional.normalize(h.mean(0) + self.u, dim=0)
        if self.assigns:
            self.keep(self.u, u)
        return h * u

    def keep(self, param: Tensor, values: Tensor) -> None:
        param.data = values + 0


@pytest.mark.parametrize("assigns", [False, True])
def test_a_forward_that_puts_other_tensors_into_parameters_is_not_replayed(assigns: bool) -> None:
    found = analyze(Normalised(assigns=assigns).eval(), inputs=x(32, 64), on="h200", progress=False).advice
    assert ("launch-bound" in {row["rule"] for row in found}) is not assigns


# --- one module under many names


class HardSwish(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * nn.functional.relu6(h + 3) / 6


def test_a_module_without_parameters_is_replaced_under_all_its_names() -> None:
    shared = HardSwish()
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), shared))).eval()
    found = analyze(model, inputs=x(512, 64), all_advice=True, progress=False).advice
    (row,) = [row for row in found if row["rule"] == "activation-by-hand"]
    known: dict[str, Any] = {"torch": torch, "model": copy.deepcopy(model)}
    exec(row["code"], known)
    assert not any(isinstance(module, HardSwish) for module in known["model"].modules())
    torch.testing.assert_close(known["model"](x(512, 64)), model(x(512, 64)))


# --- results that nothing reads, of activations in place


def block() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, padding=1))


def auxiliary(self: Any, h: Tensor) -> Tensor:
    side = self.side(h)
    return self.main(h) + side.shape[0]


def side_of_a_view(self: Any, h: Tensor) -> Tensor:
    made = self.main(h)
    made[:, :4].relu_()  # changes what is returned
    self.side(made)
    return made


def side_in_place(self: Any, h: Tensor) -> Tensor:
    made = self.main(h)
    made.flatten(1).relu_()
    return made


def side_of_an_input(self: Any, h: Tensor) -> Tensor:
    self.side(h)
    h.relu_()
    return self.main(h)


@pytest.mark.parametrize(
    ("forward", "idle"),
    [(auxiliary, "side"), (side_of_a_view, "side"), (side_in_place, None), (side_of_an_input, "side")],
)
def test_idle_layers_are_found_behind_activations_in_place(forward: Any, idle: str | None) -> None:
    model = Does(forward, main=block(), side=block())
    found = [row for row in shown(model, x(2, 8, 64, 64)) if row["rule"] == "unread-result"]
    assert [row["where"]["module"] for row in found] == ([] if idle is None else [idle])
