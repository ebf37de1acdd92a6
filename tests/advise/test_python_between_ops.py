"""Values that pass through Python, idle experts, rows that nothing reads, lists of layers, casts, equal buffers."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.planted import gain_of, said, seen
from tests.advise.test_remedies import of_rule
from tests.advise.zoo_memory import trained
from torchgauge.advise.rules.attention import written_attentions

# --- the copies that a split layer no longer needs


def edges(self: Any, points: Tensor, near: Tensor) -> Tensor:
    """Differences to the neighbours beside the point itself, as in EdgeConv."""
    own = points[:, :, None].repeat(1, 1, near.shape[2], 1)
    pairs = torch.cat((near - own, own), 3).permute(0, 3, 1, 2).contiguous()
    return torch.relu(self.layer(pairs)).amax(3)


def edges_with_a_copy(self: Any, points: Tensor, near: Tensor) -> Tensor:
    own = points[:, :, None].repeat(1, 1, near.shape[2], 1)
    pairs = torch.cat((near - own, own), 3).permute(0, 3, 1, 2).contiguous()
    return torch.relu(self.layer(pairs)).amax(3) + own.flatten(2).cumsum(2).mean()


@pytest.mark.parametrize(("forward", "goes"), [(edges, True), (edges_with_a_copy, False)])
def test_copies_go_away_where_their_other_readers_broadcast(forward: Any, goes: bool) -> None:
    model = Does(forward, layer=nn.Conv2d(128, 64, 1, bias=False))
    (found,) = of_rule(model, "repeated-input", x(4, 256, 64), x(4, 256, 20, 64))
    ops = {op.index: op.op for op in of_run(model)}
    touched = {ops[index] for index in gain_of(found).touched or ()}
    assert {"aten::cat", "aten::clone"} <= touched  # the joined tensor, and its copy in the order of the convolution
    assert ("aten::repeat" in touched) is goes


def of_run(model: nn.Module) -> Any:
    from torchgauge import analyze

    return analyze(model, inputs=(x(4, 256, 64), x(4, 256, 20, 64)), advice=False, progress=False).capture.ops


# --- experts of medium size


@pytest.mark.parametrize(("rows", "is_said"), [(64, True), (256, False)])
def test_networks_of_which_calls_take_a_sixth_are_batched(rows: int, is_said: bool) -> None:
    """Four experts of 64 → 256 → 64: 21 % faster for 64 rows, and 8 % for 256 (one thread of an EPYC)."""

    def forward(self: Any, h: Tensor) -> Tensor:
        weights = self.gate(h).softmax(-1)
        made = torch.stack([expert(h) for expert in self.experts], 1)
        return (weights.unsqueeze(-1) * made).sum(1)

    experts = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4))
    model = Does(forward, gate=nn.Linear(64, 4), experts=experts)
    assert bool(of_rule(model, "parallel-linears", x(rows, 64))) is is_said


# --- work that gradients cross, checks of distributions, experts


def codebook_losses(self: Any, h: Tensor) -> Tensor:
    """Equal values, and gradients for the codes in one term, for the encoder in the other."""
    code = torch.softmax(self.layer(h), -1)
    loss = torch.mean((code.detach() - h) ** 2) + 0.25 * torch.mean((code - h.detach()) ** 2)
    return code + loss


def with_a_teacher(self: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        target = torch.tanh(self.layer(h))
    return torch.tanh(self.layer(h)) - target


def without_gradients(self: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        target = torch.tanh(self.layer(h))
        return target + torch.tanh(self.layer(h)).square()


@pytest.mark.parametrize(
    ("forward", "is_said"), [(codebook_losses, False), (with_a_teacher, False), (without_gradients, True)]
)
def test_work_that_gradients_cross_once_is_not_repeated(forward: Any, is_said: bool) -> None:
    model = Does(forward, layer=nn.Linear(256, 256)).eval()

    assert bool(of_rule(model, "repeated-work", x(512, 256))) is is_said


def drawn_classes(self: Any, h: Tensor) -> Tensor:
    """Its Categorical is not told of `validate_args`."""
    logits = self.layer(h)
    return torch.distributions.OneHotCategorical(logits=logits, validate_args=False).sample() + logits


def test_the_check_of_a_distribution_in_another_is_switched_off_for_all() -> None:
    (found,) = of_rule(Does(drawn_classes, layer=nn.Linear(32, 32)), "host-wait", x(8, 32))

    assert "Distribution.set_default_validate_args(False)" in found.recommendation


def test_many_idle_experts_are_grouped_by_the_modules_around_them() -> None:
    """One look at each of the paths around a parameter: 400 s for 6,000 modules when all were compared with all."""
    experts = nn.ModuleDict({f"e{i}": nn.Sequential(*(nn.Linear(2, 2) for _ in range(20))) for i in range(100)})

    def forward(self: Any, h: Tensor) -> Tensor:
        return self.parts.a.experts.e0(h)

    part = nn.Module()
    part.experts, part.rest = experts, nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    found = of_rule(Does(forward, parts=nn.ModuleDict({"a": part})), "unused-parameters", x(4, 2))

    assert [advice.where.module for advice in found] == ["parts.a.rest"]


# --- values that reach the next step through Python


def words(self: Any, first: Tensor, state: Tensor, cell: Tensor, feed: Any) -> Tensor:
    word, states, made = first, (state, cell), []
    for _ in range(12):
        output, states = self.lstm(self.embed(word), states)
        scores = self.head(output[:, -1])
        made.append(scores)
        word = feed(word, scores)
    return torch.stack(made, 1)


@pytest.mark.parametrize(
    ("feed", "is_said"),
    [
        (lambda _, scores: scores.argmax(-1, keepdim=True), False),
        (lambda _, scores: torch.from_numpy(scores.cpu().numpy().argmax(-1)[:, None]), False),
        (lambda _, scores: torch.tensor(scores.argmax(-1, keepdim=True).tolist()), False),
        (lambda word, _: word, True),
    ],
    ids=["a tensor", "an array", "a list", "the same word"],
)
def test_a_step_that_gets_a_word_through_python_needs_the_one_before(feed: Any, is_said: bool) -> None:
    model = Does(
        lambda self, first, state, cell: words(self, first, state, cell, feed),
        embed=nn.Embedding(500, 64), lstm=nn.LSTM(64, 128, batch_first=True), head=nn.Linear(128, 500),
    ).eval()  # fmt: skip
    given = torch.zeros(2, 1, dtype=torch.long), torch.zeros(1, 2, 128), torch.zeros(1, 2, 128)

    found = of_rule(model, "loop-over-steps", *given)

    assert any("whole sequence" in advice.recommendation for advice in found) is is_said


@pytest.mark.parametrize("read", [lambda y: y[0, 0].item(), lambda y: y[0, :8].tolist(), None])
def test_a_layer_whose_result_python_reads_is_not_merged(read: Any) -> None:
    def forward(self: Any, h: Tensor) -> Any:
        wide = self.first(h)
        return self.second(wide), read(wide) if read is not None else None

    model = Does(forward, first=nn.Linear(64, 256), second=nn.Linear(256, 16)).eval()

    assert bool(of_rule(model, "consecutive-layers", x(512, 64))) is (read is None)


# --- forms that packages have


@pytest.mark.parametrize(("own_keys", "is_said"), [(True, False), (False, True)], ids=["neighbours", "all"])
def test_attention_to_keys_of_each_query_s_own_is_not_fused(own_keys: bool, is_said: bool) -> None:
    """With one query for each matrix of keys the scores are the smallest part: fused, it takes two to four times as
    long."""

    keys = "bhijd" if own_keys else "bhjd"

    def forward(self: Any, h: Tensor, near: Tensor) -> Tensor:
        scores = torch.einsum(f"bhid,{keys}->bhij", self.layer(h), near) * 0.25 + self.bias
        scores = scores.masked_fill(self.hidden, -1e9)
        return torch.einsum(f"bhij,{keys}->bhid", scores.softmax(-1), near)

    model = Does(forward, layer=nn.Linear(16, 16), bias=x(256, 256), hidden=x(256, 256) > 2).eval()
    given = x(1, 8, 256, 16), x(1, 8, 256, 256, 16) if own_keys else x(1, 8, 256, 16)

    assert bool(list(written_attentions(seen(model, inputs=given)))) is is_said


class Attends(nn.Module):
    """Queries do not need the memory, which the module reads as well."""

    def __init__(self) -> None:
        super().__init__()
        self.to_query, self.to_key, self.out = nn.Linear(256, 1024), nn.Linear(64, 1024), nn.Linear(1024, 64)

    def forward(self, h: Tensor, memory: Tensor) -> Tensor:
        query, key = self.to_query(h), self.to_key(memory)
        return torch.tanh(self.out(query * key))


def test_the_place_of_what_needs_no_state_is_not_a_module_that_reads_it() -> None:
    def forward(self: Any, h: Tensor) -> Tensor:
        memory = h.new_zeros(h.shape[0], 64)
        for step in h.unbind(1):
            memory = self.attends(step, memory)
        return memory

    (found,) = of_rule(Does(forward, attends=Attends()).eval(), "loop-over-steps", x(4, 64, 256))

    assert found.where.module == "attends.to_query"
    assert "query, key = self.to_query(h)" in (found.where.line or "")


def scan_by_levels(gates: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    if gates.shape[1] < 2:
        return gates, inputs
    even, odd = gates[:, ::2], gates[:, 1::2]
    made = scan_by_levels(even * odd, odd * inputs[:, ::2] + inputs[:, 1::2])
    between = [odd[:, 1:] * 0 + even[:, 1:] * part[:, :-1] for part in made]
    return tuple(
        torch.stack((torch.cat((first[:, :1], later), 1), part), 2).flatten(1, 2)
        for first, later, part in zip((gates, inputs), between, made, strict=True)
    )  # type: ignore[return-value]


def test_the_levels_of_a_parallel_scan_are_not_its_steps() -> None:
    model = Does(lambda self, h: sum(scan_by_levels(torch.sigmoid(self.gate(h)), h)), gate=nn.Linear(32, 32)).eval()

    assert not of_rule(model, "scan-in-python", x(4, 4096, 32))


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(nn.Parameter(torch.eye(64)) for _ in range(2))

    def forward(self, h: Tensor) -> Tensor:
        for matrix in self.matrices:
            h = torch.tanh(h @ matrix)
        return h


class FastWeights(nn.Module):
    """The inner network runs with weights that another one makes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.hyper = Listed(), nn.Linear(64, 2 * 64 * 64)

    def forward(self, h: Tensor) -> Tensor:
        made = self.hyper(h.mean(0)).view(2, 64, 64).unbind(0)
        names = [name for name, _ in self.inner.named_parameters()]
        return torch.func.functional_call(self.inner, dict(zip(names, made, strict=True)), (h,))


def test_parameters_in_whose_place_others_are_given_are_not_unused() -> None:
    assert not of_rule(FastWeights().eval(), "unused-parameters", x(32, 64))


class Zipped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = nn.ParameterList(nn.Parameter(torch.eye(64)) for _ in range(3))
        self.idle = nn.ParameterList(nn.Parameter(torch.eye(64)) for _ in range(3))

    def forward(self, h: Tensor) -> Tensor:
        for matrix, _ in zip(self.read, self.idle, strict=True):
            h = torch.tanh(h @ matrix)
        return h


def test_a_list_that_forward_goes_through_is_not_replaced() -> None:
    (found,) = of_rule(Zipped().eval(), "unused-parameters", x(4, 64))

    assert found.code is None


def test_a_table_of_which_few_rows_are_read_is_cast_after_the_lookup() -> None:
    model = Does(lambda self, at: self.table.float()[at].relu(), table=nn.Parameter(x(50_000, 64).half())).eval()

    (found,) = of_rule(model, "weight-cast", torch.zeros(32, dtype=torch.long))

    assert "look up the rows first" in found.recommendation
    assert found.code is None


def rotated(h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = h.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def test_halves_that_are_read_twice_each_are_no_rounds_of_a_loop() -> None:
    def forward(self: Any, h: Tensor) -> Tensor:
        return rotated(self.query(h), self.cos, self.sin) @ rotated(self.key(h), self.cos, self.sin).transpose(1, 2)

    parts: dict[str, Any] = {"query": nn.Linear(64, 64), "key": nn.Linear(64, 64), "cos": x(32, 32), "sin": x(32, 32)}
    model = torch.jit.script(Rotates(**parts).eval())

    assert not of_rule(model, "loop-over-samples", x(1, 32, 64))
    assert not of_rule(Does(forward, **parts).eval(), "loop-over-samples", x(1, 32, 64))


class Rotates(nn.Module):
    def __init__(self, query: nn.Module, key: nn.Module, cos: Tensor, sin: Tensor) -> None:
        super().__init__()
        self.query, self.key = query, key
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, h: Tensor) -> Tensor:
        one = rotated(self.query(h), self.cos, self.sin)  # type: ignore[arg-type]
        other = rotated(self.key(h), self.cos, self.sin)  # type: ignore[arg-type]
        return one @ other.transpose(1, 2)


def test_a_cast_there_and_back_is_reported_once() -> None:
    model = Does(lambda self, h: torch.relu(self.layer(h).double().float()), layer=nn.Linear(64, 64)).eval()

    assert of_rule(model, "cast-round-trip", x(512, 64))
    assert not of_rule(model, "double-precision", x(512, 64))


@pytest.mark.parametrize("is_solved", [True, False])
def test_the_type_of_a_factorization_is_meant(is_solved: bool) -> None:
    def forward(self: Any, h: Tensor) -> Tensor:
        wide = self.layer(h).double()
        wide = torch.linalg.cholesky(wide @ wide.mT + self.ridge) if is_solved else (wide @ wide.mT + self.ridge)
        return wide.float()

    model = Does(forward, layer=nn.Linear(64, 64), ridge=100 * torch.eye(64, dtype=torch.float64)).eval()

    assert bool(of_rule(model, "double-precision", x(64, 64))) is not is_solved


def per_sample(self: Any, h: Tensor) -> Tensor:
    return torch.cat([self.layer(h[at : at + 1])[0][:, -1] for at in range(h.shape[0])])


def with_the_state(self: Any, h: Tensor) -> Tensor:
    out, state = [], None
    for at in range(h.shape[0]):
        made, state = self.layer(h[at : at + 1], state)
        out.append(made[:, -1])
    return torch.cat(out)


def with_the_result(self: Any, h: Tensor) -> Tensor:
    out, before = [], h[:1]
    for at in range(h.shape[0]):
        made, _ = self.layer(h[at : at + 1] + before)
        before = made[..., :4]
        out.append(made[:, -1])
    return torch.cat(out)


def with_lengths(self: Any, h: Tensor) -> Tensor:
    return torch.cat([self.layer(h[at : at + 1, : 10 + at])[0][:, -1] for at in range(h.shape[0])])


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize(
    ("forward", "is_said"),
    [(per_sample, True), (with_the_state, False), (with_the_result, False), (with_lengths, False)],
)
def test_a_recurrent_layer_is_called_for_all_samples_at_once(kind: Any, forward: Any, is_said: bool) -> None:
    found = of_rule(Does(forward, layer=kind(4, 48, batch_first=True)).eval(), "loop-over-samples", x(12, 24, 4))

    assert bool(found) is is_said
    assert all("joined along the batch" in advice.recommendation for advice in found)


class Masked(nn.Module):
    mask: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("mask", torch.ones(size, 512).tril())

    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h) * self.mask[: h.shape[0], : h.shape[1]]


@pytest.mark.parametrize(("sizes", "is_said"), [((512, 512, 512), True), ((128, 256, 512), False)])
def test_equal_buffers_of_a_live_model_are_found_without_reading_its_weights(sizes: Any, is_said: bool) -> None:
    from torchgauge import analyze

    model = nn.Sequential(*map(Masked, sizes)).eval()
    found = analyze(model, inputs=x(8, 64), progress=False).capture.advice

    assert ("repeated-buffers" in [row["rule"] for row in found]) is is_said


def nothing_found(self: Any, h: Tensor) -> Tensor:
    """With random weights no score is high enough, as in a detector."""
    fine = self.fine(h)
    kept = (torch.sigmoid(self.score(h)[:, 0]) > 2).nonzero()[:, 0]
    return h[:0] if len(kept) == 0 else self.head(fine[kept])


def test_what_values_leave_out_is_not_unused() -> None:
    parts = {name: nn.Linear(64, size) for name, size in (("fine", 256), ("score", 1))}
    model = Does(nothing_found, **parts, head=nn.Linear(256, 64)).eval()

    assert not of_rule(model, "unread-result", x(512, 64))
    assert not of_rule(model, "unused-parameters", x(512, 64))


def checked(self: Any, h: Tensor) -> Tensor:
    torch._assert_async(((h * 255 > -1) & (h * 255 < 256)).all(), "range")
    return torch.relu(self.layer(h))


def test_what_an_assertion_checks_is_read() -> None:
    assert not of_rule(Does(checked, layer=nn.Linear(16, 16)).eval(), "unread-result", x(512, 16).abs())


def of_many_kernels(self: Any, h: Tensor) -> Tensor:
    return torch.cat([layer(h).amax(-1) for layer in self.layers], 1)


@pytest.mark.parametrize("is_equal", [True, False])
def test_convolutions_with_other_dilations_are_not_joined(is_equal: bool) -> None:
    layers = [nn.Conv1d(5, 1, 7, dilation=1 if is_equal else 1 + at) for at in range(12)]
    model = Does(of_many_kernels, layers=nn.ModuleList(layers)).eval()

    assert bool(of_rule(model, "parallel-linears", x(4, 5, 100))) is is_equal


class Unsized(tuple[int, ...]):
    def __len__(self) -> int:
        raise NotImplementedError


def test_a_tuple_without_a_length_is_no_reason_to_fail() -> None:
    from torchgauge import analyze

    model = nn.Linear(8, 8)
    model.order = Unsized((1, 2))  # type: ignore[assignment]

    assert analyze(model, inputs=x(2, 8), progress=False).totals.macs == 128


class ByPairs(nn.Module):
    """The idiom of lists in a list: nothing calls the inner ones."""

    def __init__(self) -> None:
        super().__init__()
        pairs = [nn.ModuleList([nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 256), nn.GELU())]) for _ in range(4)]
        self.layers: Any = nn.ModuleList(pairs)
        self.out = nn.Linear(256, 64)

    def forward(self, h: Tensor) -> Tensor:
        for pair in self.layers:
            h = h + self.out(pair[1](h + pair[0](h)))
        return h


def test_lists_of_layers_are_not_checkpointed() -> None:
    assert "activation-checkpointing" not in [advice.rule for advice in said(trained(ByPairs(), 4096, 64))]


def test_one_hidden_module_is_meant() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    model.teacher = [nn.Linear(8, 8)]  # type: ignore[assignment]

    assert not of_rule(model.eval(), "unregistered-layers", x(2, 8))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix, self.head = nn.Embedding(500, 64), nn.Linear(64, 64), nn.Linear(64, 500, bias=False)

    def forward(self, at: Tensor) -> Tensor:
        return self.head(self.mix(self.words(at)))


@pytest.mark.parametrize("is_copied", [True, False])
def test_a_table_and_a_layer_with_equal_values_are_tied(is_copied: bool) -> None:
    from torchgauge import analyze

    model = Words().eval()
    if is_copied:
        model.head.weight.data.copy_(model.words.weight.data)
    found = analyze(model, inputs=torch.zeros(2, 8, dtype=torch.long), progress=False).capture.advice

    assert ("tied-weights" in [row["rule"] for row in found]) is is_copied


def test_the_module_of_an_exported_program_has_the_lines_of_its_model() -> None:
    from torchgauge import analyze

    given = x(4, 256, 16)
    program = torch.export.export(OfPairs().eval(), (given,))
    found = analyze(program.module(), inputs=given, progress=False).capture.advice

    assert [row["rule"] for row in found] == ["product-then-sum"]
    assert str(found[0]["where"]["source"]).startswith(f"{pathlib.Path(__file__).name}:")


class OfPairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(16, 16)

    def forward(self, h: Tensor) -> Tensor:
        h = self.mix(h)
        return torch.exp((h[:, :, None] * h[:, None]).sum(-1))


class ByType(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(4, 8, 3)

    def forward(self, h: Tensor) -> Tensor:
        if type(h) == torch.Tensor and h.dtype == torch.long:  # noqa: E721
            h = nn.functional.one_hot(h, 4).float().transpose(1, 2)
        return self.layer(h)


def test_a_layer_that_fails_behind_a_comparison_of_types_is_run_for_real() -> None:
    from torchgauge import analyze

    run = analyze(ByType().eval(), inputs=torch.zeros(1, 64, dtype=torch.long), progress=False).capture.run

    assert run.mode == "real"
    assert "compares types" in (run.reason or "")


def test_a_wrapped_init_is_read_in_its_own_file() -> None:
    from tests.advise.zoo_order import Listed as InAnotherFile
    from torchgauge.analysis.advice import ModelInMemory

    class Wrapped(InAnotherFile):
        __init__ = functools.wraps(InAnotherFile.__init__)(lambda self: InAnotherFile.__init__(self, nn.ModuleList))

    line = ModelInMemory(Wrapped()).made_at("first")

    assert (line or "").startswith("zoo_order.py:")
