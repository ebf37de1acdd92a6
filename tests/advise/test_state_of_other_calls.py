"""What other calls, arguments and the host change: constants, waits, held tensors, copies for each sample, edits."""

from __future__ import annotations

import ast
from collections.abc import Callable
from textwrap import indent
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.advise.fault_classes import Does, ids, x
from tests.advise.planted import gain_of, said, seen
from torchgauge import analyze, load
from torchgauge.advise import Advice
from torchgauge.advise.variables import functions, unassigned


def of_rule(model: nn.Module, rule: str, *inputs: Any) -> list[Advice]:
    return [advice for advice in said(seen(model, inputs=inputs)) if advice.rule == rule]


# --- arguments that are not tensors


def from_array(self: Any, words: Any) -> Tensor:
    return torch.tanh(self.table(torch.as_tensor(words)))


def padded(self: Any, h: Tensor, lengths: Any) -> Tensor:
    keep = torch.zeros(h.shape[:2])
    for row, length in enumerate(lengths):
        keep[row, :length] = torch.ones(int(length))
    return torch.softmax(self.layer(h), -1) * keep[..., None]


@pytest.mark.parametrize("words", [numpy.arange(24).reshape(4, 6), [[1, 2, 3], [4, 5, 6]]], ids=["array", "list"])
def test_what_is_made_of_arrays_that_are_given_is_data(words: Any, tmp_path: Any) -> None:
    model = Does(from_array, table=nn.Embedding(30, 256))

    assert of_rule(model, "recomputed-weight", words) == []
    result = analyze(model, inputs=(words,), advice=False)
    result.save(tmp_path / "a.json")
    assert load(tmp_path / "a.json").capture.run.number_arguments == ("input0",)


@pytest.mark.parametrize("lengths", [numpy.array([3, 4, 5, 6]), [3, 4, 5, 6]], ids=["array", "list"])
def test_a_mask_of_lengths_that_are_given_is_not_a_constant(lengths: Any) -> None:
    model = Does(padded, layer=nn.Linear(8, 8))

    assert of_rule(model, "recomputed-constant", x(4, 6, 8), lengths) == []


# --- values on the host


def test_a_random_number_of_the_host_is_not_waited_for() -> None:
    def annealed(self: Any, h: Tensor) -> Tensor:
        return self.layer(h) if self.chance.sample().item() < 2 else h

    def plain(self: Any, h: Tensor) -> Tensor:
        return self.layer(h) if torch.rand(()).item() < 2 else h

    def of_data(self: Any, h: Tensor) -> Tensor:
        return self.layer(h) if (torch.rand_like(h) * h).sum().item() < 1e9 else h

    layer, chance = nn.Linear(8, 8), torch.distributions.Normal(0.0, 0.1)
    assert of_rule(Does(annealed, layer=layer, chance=chance), "host-wait", x(4, 8)) == []
    assert of_rule(Does(plain, layer=layer), "host-wait", x(4, 8)) == []
    assert of_rule(Does(of_data, layer=layer), "host-wait", x(4, 8))


def test_only_masks_are_waited_for_among_indices() -> None:
    """Positions are integers wherever they come from: an attribute, a buffer, an input, an op."""

    class Selects(nn.Module):
        def __init__(self, index: Tensor, is_buffer: bool = False) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            if is_buffer:
                self.register_buffer("index", index)
            else:
                self.index = index

        def forward(self, h: Tensor, given: Tensor | None = None) -> Tensor:
            return torch.relu(self.layer(h)[:, self.index if given is None else given])

    def positive(self: Any, h: Tensor) -> Tensor:
        return self.layer(h)[h > 0]

    def largest(self: Any, h: Tensor) -> Tensor:
        return self.layer(h)[:, h.sum(0).argsort()[:3]]

    order, mask, layer = torch.randperm(8), torch.arange(8) < 5, nn.Linear(8, 8)
    for index in (order, order.view(2, 4)):
        assert of_rule(Selects(index), "host-wait", x(4, 8)) == []
        assert of_rule(Selects(index, is_buffer=True), "host-wait", x(4, 8)) == []
        assert of_rule(Selects(mask), "host-wait", x(4, 8), index) == []
    assert of_rule(Does(largest, layer=layer), "host-wait", x(4, 8)) == []
    assert of_rule(Selects(mask, is_buffer=True), "host-wait", x(4, 8))
    assert of_rule(Selects(order), "host-wait", x(4, 8), mask)
    assert of_rule(Does(positive, layer=layer), "host-wait", x(4, 8))


def test_a_check_inside_a_kernel_of_the_cpu_is_not_a_wait() -> None:
    def routed(self: Any, h: Tensor) -> Tensor:
        best = self.gate(h).argmax(-1)
        return F.one_hot(best, 4) * int(best.max() + 1)  # which runs the model for real

    found = of_rule(Does(routed, gate=nn.Linear(8, 4)), "host-wait", x(16, 8))

    assert [advice.evidence.get("count", 1) for advice in found] == [1]


# --- samples and roundings that are meant


def test_noise_against_a_threshold_from_the_data_is_not_dropout() -> None:
    def sampled(self: Any, h: Tensor) -> Tensor:
        chance = torch.sigmoid(self.layer(h))
        return h * (torch.rand_like(chance) < chance).float()

    def dropped(self: Any, h: Tensor) -> Tensor:
        return self.layer(h * (torch.rand_like(h) < 0.8).float() / 0.8)

    layer = nn.Linear(8, 8)
    assert of_rule(Does(sampled, layer=layer), "dropout-in-evaluation", x(4, 8)) == []
    assert of_rule(Does(dropped, layer=layer), "dropout-in-evaluation", x(4, 8))


@pytest.mark.parametrize("narrow", [torch.bool, torch.int32, torch.uint8])
def test_a_cast_that_rounds_is_not_a_round_trip(narrow: torch.dtype) -> None:
    def through(_: Any, h: Tensor) -> Tensor:
        return h.to(narrow).float() * h

    assert of_rule(Does(through), "cast-round-trip", x(64, 64)) == []


# --- layouts


def by_channel(self: Any, image: Tensor) -> Tensor:
    last = self.first(image).permute(0, 2, 3, 1).contiguous()
    last = torch.sigmoid(last * self.scale)
    return self.second(last.permute(0, 3, 1, 2).contiguous())


def searched(self: Any, image: Tensor) -> Tensor:
    last = self.first(image).permute(0, 2, 3, 1).contiguous()
    rows = last.view(-1, last.shape[-1])
    nearest = self.table[torch.cdist(rows, self.table).argmin(-1)].view_as(last)
    last = last + (nearest - last).tanh()
    return self.second(last.permute(0, 3, 1, 2).contiguous())


def turned_on(self: Any, image: Tensor) -> Tensor:
    """Of a cube: the second permute goes on where the first stopped."""
    last = self.first(image).permute(0, 2, 3, 1).contiguous()
    return self.second(torch.sigmoid(last).permute(0, 2, 3, 1).contiguous())


def there_and_back(self: Any, image: Tensor) -> Tensor:
    last = self.first(image).permute(0, 2, 3, 1).contiguous()
    return self.second(torch.sigmoid(last).permute(0, 3, 1, 2).contiguous())


@pytest.mark.parametrize(("forward", "count"), [(by_channel, 0), (searched, 0), (turned_on, 0), (there_and_back, 1)])
def test_permutes_that_something_between_them_needs_stay(forward: Any, count: int) -> None:
    parts = {"first": nn.Conv2d(16, 16, 3, padding=1), "second": nn.Conv2d(16, 16, 3, padding=1)}
    model = Does(forward, scale=nn.Parameter(x(16)), table=nn.Parameter(x(32, 16)), **parts)

    assert len(of_rule(model, "cancelling-permutes", x(2, 16, 16, 16))) == count


# --- loops


def by_expert(self: Any, h: Tensor) -> Tensor:
    chosen, out = self.gate(h).argmax(-1), torch.zeros_like(h)
    for number in range(self.weights.shape[0]):
        rows = torch.where(chosen == number)[0]
        out.index_add_(0, rows, torch.relu(h[rows] @ self.weights[number]))
    return out


def test_experts_in_one_tensor_are_not_one_layer() -> None:
    model = Does(by_expert, gate=nn.Linear(16, 8), weights=nn.Parameter(x(8, 16, 16)))

    assert of_rule(model, "loop-over-samples", x(64, 16)) == []


def by_prototype(self: Any, h: Tensor) -> Tensor:
    parts = []
    for number in range(self.prototypes.shape[0]):
        distance = (h - self.prototypes[number]) * self.weights(h)[..., number : number + 1]
        parts.append(distance.abs().amax(1))
    return torch.stack(parts, 1)


def test_rounds_of_large_ops_are_not_done_at_once() -> None:
    model = Does(by_prototype, prototypes=nn.Parameter(x(12, 64)), weights=nn.Linear(64, 12))

    assert of_rule(model, "loop-over-samples", x(8, 4096, 64)) == []


def test_lines_around_a_loop_are_not_part_of_it() -> None:
    """Query, key and value are made as often as a loop of four rounds goes round."""

    def forward(self: Any, h: Tensor) -> Tensor:
        q, k, v = (layer(h).unflatten(-1, (4, -1)).transpose(1, 2).contiguous() for layer in self.layers)
        heads = [torch.tanh(q[:, at] * k[:, at]) + v[:, at] for at in range(4)]
        return torch.cat(heads, -1)

    model = Does(forward, layers=nn.ModuleList(nn.Linear(64, 64) for _ in range(3)))
    evidence = seen(model, inputs=(x(2, 16, 64),))
    (found,) = [advice for advice in said(evidence) if advice.rule == "loop-over-samples"]
    copies = {op.index for op in evidence.forward if op.op == "aten::clone"}

    assert not copies & (gain_of(found).touched or frozenset())


def test_repeated_work_is_found_in_a_run_for_real() -> None:
    def decoder(self: Any, memory: Tensor, tokens: Tensor) -> Tensor:
        state, out = memory.mean(1), []
        for step in range(tokens.shape[1]):
            scores = torch.tanh(self.keys(memory) + self.query(state)[:, None]).sum(-1)
            context = (scores.softmax(-1)[..., None] * memory).sum(1)
            state = self.cell(context + self.table(tokens[:, step]), state)
            out.append(state)
            if state.abs().max().item() > 1e6:
                break
        return torch.stack(out, 1)

    parts = {"keys": nn.Linear(32, 32), "query": nn.Linear(32, 32), "cell": nn.GRUCell(32, 32)}
    model = Does(decoder, table=nn.Embedding(8, 32), **parts)
    assert analyze(model.eval(), inputs=(x(4, 20, 32), ids(4, 6)), advice=False).capture.run.mode == "real"
    found = of_rule(model, "repeated-work", x(4, 20, 32), ids(4, 6))

    assert [advice.where.module for advice in found] == ["keys"]


# --- constants


def test_memory_to_write_to_is_not_a_table() -> None:
    def nearest(_: Any, h: Tensor) -> Tensor:
        least = torch.full((h.shape[0], h.shape[1]), 1e9)
        chosen = torch.zeros(h.shape[0], 4, dtype=torch.int64)
        rows = torch.arange(h.shape[0])
        for at in range(4):
            least.copy_(torch.minimum(least, (h - h[rows, chosen[:, at]][:, None]).square().sum(-1)))
            chosen[:, at] = least.argmax(-1)
        return chosen

    evidence = seen(Does(nearest), inputs=(x(4, 64, 3),))
    written = {op.index for op in evidence.forward if op.op in ("aten::full", "aten::zeros")}
    found = [advice for advice in said(evidence) if advice.rule == "recomputed-constant"]

    assert not any(written.intersection(advice.where.ops) for advice in found)


# --- tensors that are held


def stages(self: Any, h: Tensor) -> Tensor:
    self.seen = []
    for layer in self.layers:
        new = torch.relu(layer(h))
        new += h
        self.seen.append(new)
        h = new
    return h.mean((2, 3))


def pyramid(self: Any, h: Tensor) -> Tensor:
    seen = []
    for layer in self.layers:
        h = torch.relu(layer(h))
        seen.append(h)
    return torch.cat(seen, 1).mean((2, 3))


def mixed(self: Any, h: Tensor) -> Tensor:
    seen = []
    for layer in self.layers:
        h = torch.relu(layer(h)) + h
        seen.append(h)
    shares = self.shares.softmax(0)
    return sum(share * each for share, each in zip(shares, seen, strict=True))


def looked_at(self: Any, h: Tensor) -> Tensor:
    seen = {}
    for number, layer in enumerate(self.layers):
        normed = F.layer_norm(layer(h), h.shape[1:])
        seen[number] = normed
        h = torch.relu(normed) + h
    return h.mean((2, 3))


@pytest.mark.parametrize(
    ("forward", "op"),
    [(stages, "aten::relu"), (looked_at, "aten::native_layer_norm"), (pyramid, None), (mixed, None)],
    ids=["added in place", "a dictionary", "joined", "weighted"],
)
def test_only_tensors_that_nothing_reads_are_held(forward: Any, op: str | None) -> None:
    layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(10))
    model = Does(forward, layers=layers, shares=nn.Parameter(x(10)))
    evidence = seen(model, inputs=(x(2, 8, 32, 32),))
    found = [advice for advice in said(evidence) if advice.rule == "held-activations"]

    assert bool(found) == (op is not None)
    for advice in found:
        by_index = {each.index: each.op for each in evidence.forward}
        gain = gain_of(advice)
        assert {by_index[index] for index in advice.where.ops} == {op}
        assert gain.low == gain.high > 0.4  # counted, not guessed


def test_what_a_run_for_real_holds_is_seen_too() -> None:
    def forward(self: Any, h: Tensor) -> Tensor:
        out = stages(self, h)
        return out * out.sum().item()

    model = Does(forward, layers=nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(10)))

    assert of_rule(model, "held-activations", x(2, 8, 32, 32))


def test_the_weights_of_a_hook_are_not_held_activations() -> None:
    class Scaled(nn.Conv2d):
        def __init__(self) -> None:
            super().__init__(64, 64, 3, padding=1)
            self.scale = nn.Parameter(torch.ones(64, 1, 1, 1))

        def forward(self, image: Tensor) -> Tensor:
            self.kernel = self.weight * self.scale  # stays after the call, as the weight of nn.utils.weight_norm
            return F.conv2d(image, self.kernel, self.bias, padding=1)

    model = nn.Sequential(*(Scaled() for _ in range(12)))

    assert of_rule(model, "held-activations", x(1, 64, 8, 8)) == []


def test_values_on_the_host_are_not_waited_for_again() -> None:
    def nearest(self: Any, points: Tensor) -> Tensor:
        at = self.layer(points).clone().cpu()
        near = torch.cdist(at.cpu(), at[:, :4].cpu()).argmin(-1)
        return at.gather(1, near[..., None].expand(-1, -1, 3)) * float(at.mean())

    found = of_rule(Does(nearest, layer=nn.Linear(3, 3)), "host-wait", x(2, 16, 3))

    assert len(found) == 1
    assert len(found[0].where.ops) + (found[0].where.source is not None) == 1


@pytest.mark.parametrize("settings", [{}, {"on": "h200"}, {"mode": "train"}], ids=["here", "h200", "training"])
def test_ops_that_give_python_a_number_end_no_rule(settings: dict[str, Any]) -> None:
    def asking(self: Any, h: Tensor) -> Tensor:
        if torch.equal(h, h) and torch.allclose(h, h):
            h = self.layer(h[torch.arange(4) % 2])
        torch._assert_async(h.isfinite().all())
        return self.layer(h.transpose(0, 1).contiguous().transpose(0, 1)) * float(h.detach().max())

    found = analyze(Does(asking, layer=nn.Linear(8, 8)).eval(), inputs=x(4, 8), **settings)

    assert found.totals.macs
    assert not [text for text in found.capture.run.warnings if "was not looked for" in text]


# --- weights and attention in loops


def test_a_weight_that_each_round_makes_of_parameters_is_the_same_in_all() -> None:
    """`F.linear(part, self.weight * self.mask)`: one product for all rounds, not one with as many matrices."""

    def masked(self: Any, h: Tensor) -> Tensor:
        steps = [torch.exp(-F.linear(each, self.layer.weight * torch.eye(32)).relu()) for each in h.unbind(1)]
        return torch.stack(steps, 1)

    found = of_rule(Does(masked, layer=nn.Linear(32, 32)), "loop-over-samples", x(4, 24, 32))

    assert found
    assert not [advice for advice in found if "different matrix" in advice.recommendation]


class MultiheadAttention(nn.Module):
    """Named as torch's, without its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.W_q, self.W_k, self.W_v, self.W_out = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = (layer(h).view(8, 96, 4, 16).transpose(1, 2) for layer in (self.W_q, self.W_k, self.W_v))
        mixed = torch.softmax(q @ k.transpose(2, 3) / 4.0, -1) @ v
        return self.W_out(mixed.transpose(1, 2).reshape(8, 96, 64))


def test_an_attention_named_as_torchs_does_not_get_its_arguments() -> None:
    [found] = of_rule(MultiheadAttention(), "attention-by-hand", x(8, 96, 64))

    assert "need_weights" not in (found.code or "")


# --- edits that run


class Normed(nn.Module):
    """A norm without running statistics: a layer, or the function with and without those that it could use."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.weight, self.bias = form, nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("spread", torch.ones(8))
        self.batch_norm = nn.BatchNorm2d(8, track_running_stats=False)

    def forward(self, h: Tensor) -> Tensor:
        if self.form == "layer":
            return self.batch_norm(h)
        if self.form == "no statistics":
            return F.batch_norm(h, None, None, self.weight, self.bias, True)
        return F.batch_norm(h, self.mean, self.spread, self.weight, self.bias, True)  # type: ignore[arg-type]


def test_a_norm_without_statistics_gets_no_mode_to_paste() -> None:
    [layer], [bare], [kept] = (
        of_rule(Normed(form).eval(), "batch-statistics-in-evaluation", x(4, 8, 6, 6))
        for form in ("layer", "no statistics", "statistics")
    )

    assert layer.code is None
    assert "track_running_stats=True" in layer.recommendation
    assert bare.code is None
    assert "+        return F.batch_norm(h, self.mean, self.spread, self.weight, self.bias, self.training)" in str(
        kept.code
    )


def by_attribute(self: Any, h: Tensor) -> Tensor:
    q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.makes(h).chunk(3, -1))
    scores = q @ k.transpose(-2, -1)
    scores /= self.width**0.5
    weights = torch.softmax(scores, -1)
    return (weights @ v).transpose(1, 2).flatten(2)


def by_shape(self: Any, h: Tensor) -> Tensor:
    q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.makes(h).chunk(3, -1))
    *_, width = q.shape
    weights = torch.softmax(q @ k.transpose(-2, -1) / width**0.5, -1)
    return (weights @ v).transpose(1, 2).flatten(2)


def freed(self: Any, h: Tensor) -> Tensor:
    q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.makes(h).chunk(3, -1))
    if self.width:
        scores = q @ k.transpose(-2, -1) * self.width**-0.5
        mixed = torch.softmax(scores, -1) @ v
    else:
        scores, mixed = q, v
    del scores
    return mixed.transpose(1, 2).flatten(2)


def test_fused_attention_has_the_scale_as_it_is_written() -> None:
    parts = {"makes": nn.Linear(64, 192), "width": 16}
    [attribute], [shape] = (
        of_rule(Does(f, **parts), "attention-by-hand", x(2, 256, 64)) for f in (by_attribute, by_shape)
    )

    assert "scale=1 / (self.width**0.5)" in str(attribute.code)
    assert "scaled_dot_product_attention" in str(shape.code)
    assert "scale=" not in str(shape.code)


def test_an_edit_leaves_no_variable_unassigned() -> None:
    [found] = of_rule(Does(freed, makes=nn.Linear(64, 192), width=16), "attention-by-hand", x(2, 256, 64))

    assert found.code is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = a\nreturn y", set()),
        ("y = a\ndel y\nreturn y", {"y"}),
        ("if a:\n    y = a\nreturn y", {"y"}),
        ("if a:\n    y = a\nelse:\n    raise ValueError\nreturn y", {"ValueError"}),
        ("for y in a:\n    z = y\nreturn z", {"z"}),
        ("try:\n    y = a\nexcept OSError as e:\n    print(e)\nreturn y", {"print", "y"}),
        ("with a as y:\n    y += 1\nreturn [z for z in y]", set()),
        ("y += a\nreturn (lambda z: z + y)", {"y"}),
        ("import os.path\ndef y(b):\n    return b, c\nreturn y, os", {"c"}),
    ],
)
def test_variables_that_a_path_does_not_assign(body: str, expected: set[str]) -> None:
    [function, *_] = functions(ast.parse(f"def f(a):\n{indent(body, '    ')}"))

    assert unassigned(function) == expected


# --- copies for each sample


def by_position(self: Any, h: Tensor) -> Tensor:
    return torch.tanh(h[:, :, None] @ self.weight)


def test_copies_of_a_weight_for_each_sample_are_not_made_before() -> None:
    matrices = Does(by_position, weight=nn.Parameter(x(200, 32, 48))).eval()

    assert of_rule(matrices, "broadcast-matmul", x(8, 200, 32))
    assert of_rule(matrices, "recomputed-weight", x(8, 200, 32)) == []


class Cache(nn.Module):
    """Keys of earlier tokens: `at` says where a token goes."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Linear(16, 16)
        self.register_buffer("cache", torch.zeros(1, 32, 16))

    def forward(self, a: Tensor, at: Tensor) -> Tensor:
        self.cache[:, at] = self.keys(a)
        return self.cache.softmax(1)


class Average(Cache):
    def forward(self, a: Tensor, at: Tensor) -> Tensor:
        self.cache.mul_(0.9).add_(self.keys(a).mean(1, keepdim=True))
        return self.cache.softmax(1)


@pytest.mark.parametrize(("model", "is_bug"), [(Cache, False), (Average, True)])
def test_a_cache_that_is_written_by_position_is_not_a_statistic(model: type[nn.Module], is_bug: bool) -> None:
    found = seen(model().eval(), inputs=(torch.randn(1, 3, 16), torch.tensor([4, 5, 6])))
    assert ("state-written-in-evaluation" in {advice.rule for advice in said(found)}) is is_bug


class Experts(nn.Module):
    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(64, 32), norm(32), nn.Tanh()) for _ in range(12)])

    def forward(self, a: Tensor) -> Tensor:
        return torch.stack([expert(a) for expert in self.experts]).sum(0)


@pytest.mark.parametrize(("norm", "is_joined"), [(nn.BatchNorm1d, False), (nn.Identity, True)])
def test_layers_whose_results_are_normalised_are_not_joined(norm: type[nn.Module], is_joined: bool) -> None:
    found = seen(Experts(norm).eval(), inputs=(torch.randn(16, 64),))
    rules = {advice.rule for advice in said(found)}
    assert ("parallel-linears" in rules) is is_joined


def relaid(self: Any, a: Tensor) -> Tensor:
    return self.layer(self.layer(a).to(memory_format=torch.channels_last))


def brought(self: Any, a: Tensor) -> Tensor:
    return self.layer(a).to("cpu", torch.float64)


def followed(self: Any, a: Tensor) -> Tensor:
    return self.layer((a > 0).type_as(a)) + self.layer(a).to(a.device, torch.float64)


def typed(self: Any, a: Tensor) -> Tensor:
    return self.layer(a) * torch.arange(16).type(torch.FloatTensor)  # type: ignore[call-overload]


def made_there(self: Any, a: Tensor) -> Tensor:
    return self.layer(a) * torch.arange(16, device=a.device).type_as(a)


def made_here(self: Any, a: Tensor) -> Tensor:
    return self.layer(a) * torch.arange(16).type_as(a)


@pytest.mark.parametrize(
    ("forward", "is_transfer"),
    [(relaid, False), (brought, True), (followed, False), (typed, True), (made_there, False), (made_here, True)],
)
def test_a_change_of_layout_or_type_is_not_a_transfer(
    forward: Callable[[Any, Tensor], Tensor], is_transfer: bool
) -> None:
    model = type("Model", (nn.Module,), {"forward": forward})()
    model.layer = nn.Conv2d(8, 8, 3, padding=1)
    found = analyze(model.eval(), inputs=torch.randn(2, 8, 16, 16), on="h200", all_advice=True, progress=False).advice
    assert ("device-transfer" in {advice.rule for advice in found}) is is_transfer


def test_what_comes_from_a_parameter_on_a_line_with_live_ops_is_not_a_constant() -> None:
    class Sampled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.spread = nn.Linear(256, 256), nn.Linear(256, 256)

        def forward(self, h: Tensor) -> Tensor:
            noise = torch.randn_like(self.mean.weight)
            return nn.functional.linear(h, torch.exp(0.5 * self.spread.weight) * noise + self.mean.weight)

    found = {advice.rule for advice in said(seen(Sampled(), inputs=(x(4, 256),)))}
    assert "recomputed-weight" in found
    assert "recomputed-constant" not in found


def test_statistics_in_plain_attributes_are_state_and_not_constants() -> None:
    class OwnNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spread = torch.rand(64, 1, 1) + 0.5  # written in training, neither parameter nor buffer

        def forward(self, h: Tensor) -> Tensor:
            return h * self.spread.repeat(h.shape[0], 1, h.shape[2], h.shape[3]).rsqrt()

    found = {advice.rule for advice in said(seen(OwnNorm(), inputs=(x(2, 64, 20, 20),)))}
    assert "recomputed-constant" not in found


@pytest.mark.parametrize(("is_scaled", "is_named"), [(False, True), (True, False)])
def test_attention_whose_weights_are_multiplied_with_a_tensor_is_not_fused(is_scaled: bool, is_named: bool) -> None:
    class Graph(nn.Module):
        near: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("near", torch.rand(200, 200))

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            weights = torch.softmax(q @ k.transpose(-2, -1) / 8, -1)
            return (weights * self.near if is_scaled else weights * 0.5) @ v

    found = {advice.rule for advice in said(seen(Graph(), inputs=(x(2, 8, 200, 64),) * 3))}
    assert ("attention-by-hand" in found) is is_named


def test_matrices_that_a_loop_makes_from_round_to_round_are_not_batched() -> None:
    class Evolving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.mix = nn.Parameter(x(16, 16)), nn.Parameter(x(16, 16))
            self.score = nn.Parameter(x(16, 16))

        def forward(self, h: Tensor) -> Tensor:
            weight: Tensor = self.start
            out = []
            for each in h.unbind(0):
                chosen = torch.tanh(each @ self.score)
                weight = torch.sigmoid(self.mix @ chosen.t() @ chosen + self.mix @ weight)
                out.append(torch.relu(each @ weight))
            return torch.stack(out)

    found = said(seen(Evolving(), inputs=(x(12, 8, 16),)))
    assert not [advice for advice in found if "torch.bmm" in advice.recommendation]


# --- state that other calls change


class Annealed(nn.Module):
    """A temperature that a scheduler lowers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mix, self.heat = nn.Linear(64, 64), torch.eye(64), 1.0

    def cool(self) -> None:
        self.heat *= 0.9

    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h) @ torch.softmax(self.mix / self.heat, -1)


class Queue(nn.Module):
    """Keys of earlier batches, which another method puts there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.keys = nn.Buffer(torch.rand(256, 64))

    def put(self, keys: Tensor) -> None:
        self.keys[: len(keys)] = keys

    def forward(self, h: Tensor) -> Tensor:
        keys = self.keys
        return self.layer(h) @ F.normalize(keys, dim=-1).T


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.memory = nn.Linear(64, 64), [torch.zeros(32, 64)]

    def forward(self, h: Tensor) -> Tensor:
        read = torch.softmax(h @ torch.tanh(self.memory[0]).T, -1) @ self.layer(h[0, :32])
        self.memory[0] = self.layer(h[0, :32])
        return read


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(64, 64))
        self.calls = nn.Buffer(torch.zeros(()))

    def forward(self, h: Tensor) -> Tensor:
        self.calls.add_(1)
        return h @ (self.weight * torch.sigmoid(self.calls))


class OfTask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(4, 64), nn.Linear(64, 64)

    def forward(self, h: Tensor, task: int = 2) -> Tensor:
        return h * self.layer(self.table.weight[task].tanh())


class Averages(nn.Module):
    """Inference does not change what training collects."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mean = nn.Linear(64, 64), torch.eye(64)

    def forward(self, h: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.mean(0)
        return self.layer(h) @ torch.softmax(self.mean, -1)


class Estimated(nn.Module):
    """A norm whose estimate its caller updates in training."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.left = nn.Parameter(torch.eye(64)), nn.Buffer(torch.ones(64))

    def normed(self, update: bool = False) -> Tensor:
        left: Tensor = self.left
        if update:
            left = F.normalize(self.weight.T @ left, dim=0)
            self.left.copy_(left)
        return self.weight / torch.dot(left, self.weight @ left)

    def forward(self, h: Tensor) -> Tensor:
        return h @ self.normed()


class Prepared(nn.Module):
    """Nothing changes what `build` and the method that it calls made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.build()

    def build(self) -> None:
        self.mix = nn.Parameter(torch.eye(64))
        self.turn()

    def turn(self) -> None:
        self.mix.data.mul_(-1)

    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h) @ torch.softmax(self.mix, -1)


@pytest.mark.parametrize(
    ("model", "is_said"),
    [
        (Annealed(), False),
        (Queue(), False),
        (Remembers(), False),
        (Counts(), False),
        (OfTask(), False),
        (Averages(), True),
        (Estimated(), True),
        (Prepared(), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_other_calls_change_is_not_a_constant(model: nn.Module, is_said: bool) -> None:
    found = {advice.rule for advice in said(seen(model, inputs=(x(8, 64, 64),)))}

    assert ("recomputed-weight" in found) is is_said
    assert "recomputed-constant" not in found


def test_one_tensor_that_is_given_twice_is_two_inputs() -> None:
    def forward(self: Any, a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(self.layer(a)) - torch.tanh(self.layer(b))

    given, model = x(64, 64), Does(forward, layer=nn.Linear(64, 64))

    assert of_rule(model, "repeated-work", given, given) == []


def test_samples_of_dropout_are_not_repeated_work() -> None:
    def samples(self: Any, h: Tensor) -> Tensor:
        return torch.stack([self.layer(dropout(h)) for dropout in self.dropouts]).mean(0)

    def twice(self: Any, h: Tensor) -> Tensor:
        return self.encoder(h) - self.encoder(h).tanh()

    dropouts = nn.ModuleList(nn.Dropout(0.1 * at) for at in range(5))
    assert of_rule(Does(samples, layer=nn.Linear(64, 64), dropouts=dropouts), "repeated-work", x(64, 64)) == []
    encoder = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1))
    [found] = of_rule(Does(twice, encoder=encoder), "repeated-work", x(64, 64))
    assert "in training dropout may make the two differ" in found.risk
    [other] = of_rule(Does(twice, encoder=nn.Linear(64, 64)), "repeated-work", x(64, 64))
    assert "dropout" not in other.risk


def test_a_table_of_numbers_is_not_computed_from_parameters() -> None:
    def forward(self: Any, h: Tensor) -> Tensor:
        return self.layer(h) * torch.tensor([0.5, 1.0] * 32).exp()

    model = Does(forward, layer=nn.Linear(64, 64))

    assert of_rule(model, "recomputed-weight", x(8, 64)) == []
    assert of_rule(model, "recomputed-constant", x(8, 64))


class Rate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.rate = nn.Parameter(torch.eye(64)), 1.0

    def forward(self, h: Tensor) -> Tensor:
        return h @ torch.softmax(self.weight * self.rate, -1)


class Scheduled(nn.Module):
    """Sets a number of its layers from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Rate()

    def step(self, rate: float) -> None:
        layer = self.layer
        layer.rate = rate

    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h)


class Drawn(Rate):
    def forward(self, h: Tensor) -> Tensor:
        scale = numpy.random.default_rng().random()
        return h @ torch.softmax(self.weight * scale, -1)


class Conditional(Rate):
    def forward(self, h: Tensor, condition: Tensor | None = None) -> Tensor:
        given = self.weight if condition is None else condition
        return h @ torch.softmax(given, -1)


class Placed(Rate):
    """A parameter says where tensors are, and nothing else."""

    def forward(self, h: Tensor) -> Tensor:
        return h @ torch.softmax(self.weight.to(next(self.parameters()).device), -1)


@pytest.mark.parametrize(
    ("model", "is_said"), [(Scheduled(), False), (Drawn(), False), (Conditional(), False), (Placed(), True)]
)
def test_numbers_of_the_host_may_be_others_in_the_next_call(model: nn.Module, is_said: bool) -> None:
    assert bool(of_rule(model, "recomputed-weight", x(8, 64, 64))) is is_said


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.kept = nn.ModuleList(nn.Linear(64, 64) for _ in range(12)), list[Tensor]()

    def forward(self, h: Tensor) -> Tensor:
        self.kept = []
        for layer in self.layers:
            h = torch.relu(layer(h))
            self.kept.append(h)
        return h


class Penalised(Kept):
    def penalty(self) -> Tensor:
        return torch.stack([each.abs().mean() for each in self.kept]).sum()


class Shown(Kept):
    def maps(self) -> list[Tensor]:
        return self.kept


class Saved(Kept):
    def save_maps(self, file: Any) -> None:
        torch.save(self.kept, file)


class Emptied(Kept):
    def forget(self) -> None:
        self.kept.clear()


class Asked(nn.Module):
    """A model that reads what a part of it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Kept()

    def styles(self) -> list[Tensor]:
        return [each.mean(1) for each in self.body.kept]

    def forward(self, h: Tensor) -> Tensor:
        h = self.body(h)
        return h * 2


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.maps = nn.ModuleList(nn.Linear(64, 64) for _ in range(12)), dict[int, Tensor]()
        for number, layer in enumerate(self.layers):
            layer.register_forward_hook(self.hook(number))

    def hook(self, number: int) -> Any:
        def keep(module: nn.Module, given: Any, made: Tensor) -> None:
            self.maps[number] = made

        return keep

    def similarity(self) -> Tensor:
        return torch.stack([each.mean() for each in self.maps.values()])

    def forward(self, h: Tensor) -> Tensor:
        for layer in self.layers:
            h = torch.relu(layer(h))
        return h


@pytest.mark.parametrize(
    ("model", "is_said"),
    [
        (Kept(), True),
        (Emptied(), True),
        (Penalised(), False),
        (Shown(), False),
        (Saved(), False),
        (Asked(), False),
        (Hooked(), False),
    ],
)
def test_activations_that_other_methods_read_are_held_for_them(model: nn.Module, is_said: bool) -> None:
    assert bool(of_rule(model, "held-activations", x(64, 128, 64))) is is_said


class Averaged(nn.Module):
    """Keeps the mean of two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow, self.mean = nn.Linear(256, 256), nn.Linear(256, 256), torch.zeros(())

    def of_both(self) -> Tensor:
        return 0.99 * self.slow.weight + 0.01 * self.fast.weight

    def forward(self, h: Tensor) -> Tensor:
        self.mean = self.of_both()
        return h @ self.mean


class Moved(Averaged):
    """Moves one towards the other in every call."""

    def of_both(self) -> Tensor:
        return 0.99 * self.slow.weight + 0.01 * self.fast.weight

    def forward(self, h: Tensor) -> Tensor:
        mean = self.of_both()
        self.slow.weight.data = mean
        return self.slow(h)


@pytest.mark.parametrize(("model", "is_said"), [(Averaged(), True), (Moved(), False)])
def test_a_moving_average_of_weights_is_another_one_in_each_call(model: nn.Module, is_said: bool) -> None:
    assert bool(of_rule(model, "recomputed-weight", x(4, 256))) is is_said
