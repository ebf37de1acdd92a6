"""Numbers that change from call to call, cells like torch's, layers chosen by name, steps that need the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.planted import said, seen
from torchgauge import analyze


def rules(model: nn.Module, *inputs: Tensor) -> set[str]:
    return {advice.rule for advice in said(seen(model.eval(), inputs=inputs))}


# --- a scale that is not the default


@pytest.mark.parametrize(("scale", "words"), [(64**-0.5, None), (256**-0.5, "scale=0.0625"), (1.0, "scale=1")])
def test_another_scale_is_named_where_no_code_is_given(scale: float, words: str | None) -> None:
    def attend(self: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bhid,bhjd->bhij", q, k)
        scores = scores if scale == 1 else scores * scale
        return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)

    found = said(seen(Does(attend), inputs=tuple(x(2, 4, 600, 64) for _ in range(3))))
    (advice,) = [each for each in found if each.rule == "attention-by-hand"]

    assert advice.change is None
    assert ("scale=" in advice.recommendation) is (words is not None)
    assert words is None or words in advice.recommendation


# --- cells that have the gates of torch's layers, and put them together in another way


class Cell(nn.Module):
    def __init__(self, update: Callable[..., Tensor]) -> None:
        super().__init__()
        self.given, self.kept, self.update = nn.Linear(32, 192), nn.Linear(64, 192), update

    def forward(self, h: Tensor) -> Tensor:
        state, made = h.new_zeros(h.shape[0], 64), []
        for step in h.unbind(1):
            (a, b, c), (d, e, f) = self.given(step).chunk(3, -1), self.kept(state).chunk(3, -1)
            reset, gate = torch.sigmoid(a + d), torch.sigmoid(b + e)
            state = self.update(state, gate, reset, torch.tanh(c + reset * f))
            made.append(state)
        return torch.stack(made, 1)


@pytest.mark.parametrize(
    ("update", "is_gru"),
    [
        (lambda state, gate, reset, new: (1 - gate) * new + gate * state, True),
        (lambda state, gate, reset, new: new + gate * (state - new), True),
        (lambda state, gate, reset, new: gate * new + reset * state, False),
        (lambda state, gate, reset, new: gate * new + (1 - reset) * state, False),
    ],
)
def test_a_gru_has_one_gate_for_its_old_state_and_its_new_one(update: Callable[..., Tensor], is_gru: bool) -> None:
    found = said(seen(Cell(update), inputs=(x(8, 24, 32),)))

    assert any("torch.nn.GRU" in advice.recommendation for advice in found) is is_gru


# --- a number that changes from call to call, handed to a function or a module that makes a table of it


def waves(number: float) -> Tensor:
    return torch.sin(torch.arange(64.0) * number).repeat(500, 20).sum(0)[:64]


class Waves(nn.Module):
    def forward(self, number: float) -> Tensor:
        return torch.cos(torch.arange(64.0) * number).repeat(500, 20).sum(0)[:64]


class Annealed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rate, self.calls = nn.Linear(64, 64), 0.5, 0

    def set_rate(self, rate: float) -> None:
        self.rate = rate

    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h) * waves(self.rate)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.waves, self.calls = nn.Linear(64, 64), Waves(), 0

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(h) * self.waves(self.calls)


class Still(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rate = nn.Linear(64, 64), 0.5

    def scaled(self, rate: float) -> Tensor:
        return torch.tan(torch.arange(64.0) * rate).repeat(500, 20).sum(0)[:64]

    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h) * self.scaled(self.rate)


@pytest.mark.parametrize(("model", "is_constant"), [(Annealed(), False), (Counting(), False), (Still(), True)])
def test_a_table_of_a_number_that_changes_is_not_a_constant(model: nn.Module, is_constant: bool) -> None:
    assert ("recomputed-constant" in rules(model, x(8, 16, 64))) is is_constant


# --- a table of which a slice is another table


def test_a_mask_that_is_written_from_its_end_cannot_be_sliced() -> None:
    def windows(self: Any, h: Tensor) -> Tensor:
        parts = torch.zeros(h.shape[0], h.shape[0])
        parts[-8:], parts[-4:] = 1, 2
        return self.layer(h) * (parts[:, :1] - parts).exp()[:, -1:]

    (advice,) = [
        each
        for each in said(seen(Does(windows, layer=nn.Linear(8, 8)), inputs=(x(24, 8),)))
        if each.rule == "recomputed-constant"
    ]

    assert "for each shape" in advice.risk


# --- the values of a sparse matrix


@pytest.mark.parametrize("is_read", [True, False])
def test_the_values_of_a_sparse_matrix_are_read(is_read: bool) -> None:
    def attend(self: Any, h: Tensor, edges: Tensor) -> Tensor:
        scores = self.score(torch.cat([h[edges[0]], h[edges[1]]], 1)).exp().squeeze(1)
        values = scores if is_read else torch.ones(edges.shape[1])
        near = torch.sparse_coo_tensor(edges, values, (h.shape[0], h.shape[0]))
        return torch.sparse.mm(near, h)

    edges = torch.arange(4000).reshape(2, 2000) % 200
    evidence = seen(Does(attend, score=nn.Linear(128, 1)), inputs=(x(200, 64), edges))

    assert ("unread-result" in {advice.rule for advice in said(evidence)}) is not is_read


# --- a layer that takes as long to write its result as to compute it


@pytest.mark.parametrize(("channels", "is_said"), [(128, True), (3, False)])
def test_a_layer_with_few_channels_gains_nothing_by_a_split(channels: int, is_said: bool) -> None:
    def near(self: Any, h: Tensor, local: Tensor) -> Tensor:
        whole = h[..., None].repeat(1, 1, 1, local.shape[3])
        return self.layer(torch.cat([local - whole, whole], 1)).amax(3)

    model = Does(near, layer=nn.Conv2d(2 * channels, 64, 1))

    assert ("repeated-input" in rules(model, x(16, channels, 15), x(16, channels, 15, 100))) is is_said


# --- torch.equal, which gives no tensor, and reads none where the sizes differ


@pytest.mark.parametrize(("keys", "waits"), [(64, True), (32, False)])
def test_tensors_of_two_sizes_are_compared_without_a_wait(keys: int, waits: bool) -> None:
    def attend(self: Any, h: Tensor) -> Tensor:
        rows = h.flatten(2).permute(2, 0, 1)
        return self.layer(rows * 2 if torch.equal(rows, rows[:keys] + 1) else rows)

    evidence = seen(Does(attend, layer=nn.Linear(256, 256)), inputs=(x(1, 256, 8, 8),))

    assert ("host-wait" in {advice.rule for advice in said(evidence)}) is waits
    assert evidence.failures == []


# --- a layer of several that is chosen by a name


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head0, self.head1, self.task = nn.Linear(64, 64), nn.Linear(64, 64), 0


class Chosen(Heads):
    def forward(self, h: Tensor) -> Tensor:
        made: Tensor = getattr(self, f"head{self.task}")(h)
        return made


class Fixed(Heads):
    def forward(self, h: Tensor) -> Tensor:
        made: Tensor = self.head0(h)
        return made


@pytest.mark.parametrize(("kind", "is_idle"), [(Chosen, False), (Fixed, True)])
def test_a_layer_that_a_computed_name_may_choose_is_not_idle(kind: type[Heads], is_idle: bool) -> None:
    assert ("unused-parameters" in rules(kind(), x(8, 64))) is is_idle


# --- what lies far apart: a decoder whose steps have hundreds of ops, a length that a deep network computes


class Attending(nn.Module):
    """A decoder that scores the outputs of its encoder one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cell = nn.GRU(64, 64, batch_first=True), nn.GRU(128, 64)
        self.out = nn.Linear(128, 64)

    def forward(self, rows: Tensor) -> Tensor:
        rows, state = self.encoder(rows)
        context, given, made = rows[:, 0], rows[:, 1], []
        for _ in range(10):
            read, state = self.cell(torch.cat([given, context], 1)[None], state)
            scores = torch.zeros(rows.shape[1], rows.shape[0])
            for at in range(rows.shape[1]):
                scores[at] = read[0].mm(rows[:, at].t()).diag()
            context = torch.bmm(scores.softmax(0).t()[:, None], rows)[:, 0]
            given = self.out(torch.cat([read[0], context], 1))
            made.append(given)
        return torch.cat(made, 1)


def test_steps_of_many_ops_need_the_one_before() -> None:
    found = said(seen(Attending(), inputs=(x(4, 100, 64),)))

    assert [advice.where.module for advice in found if advice.rule == "loop-over-samples"] == []


@pytest.mark.parametrize("is_one", [True, False])
def test_the_weights_of_a_cell_are_not_layers_side_by_side(is_one: bool) -> None:
    def each(self: Any, rows: Tensor) -> Tensor:
        cells = [self.cells[0]] * 6 if is_one else self.cells
        return torch.stack([cell(rows[:, at + 1], rows[:, at]) for at, cell in enumerate(cells)], 1)

    model = Does(each, cells=nn.ModuleList(nn.GRUCell(64, 64) for _ in range(6)))
    found = [advice for advice in said(seen(model, inputs=(x(4, 8, 64),))) if advice.rule == "parallel-linears"]

    assert bool(found) is not is_one


@pytest.mark.parametrize("layers", [1, 120])
def test_a_length_that_layers_compute_cannot_be_passed(layers: int) -> None:
    def cut(self: Any, h: Tensor) -> Tensor:
        lengths = self.first(h)
        for _ in range(layers):
            lengths = torch.relu(lengths + 1)
        return h[: int(lengths.sum())]

    found = said(seen(Does(cut, first=nn.Linear(8, 8)), inputs=(x(16, 8),)))

    assert [advice for advice in found if "from the host" in advice.recommendation] == []


# --- states that a recurrent layer keeps inside its call


def test_the_steps_of_a_recurrent_layer_are_not_held_by_the_model() -> None:
    def last(self: Any, h: Tensor) -> Tensor:
        return self.out(self.layer(h)[0])

    model = Does(last, layer=nn.GRU(16, 32, bidirectional=True), out=nn.Linear(64, 8))

    assert "held-activations" not in rules(model, x(96, 4, 16))


# --- dropout that the caller asks for


class Prenet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, h: Tensor, is_random: bool, is_scaled: bool = False) -> Tensor:
        h = torch.relu(self.layer(h)) * (2 if is_scaled else 1)
        if is_random:
            h = nn.Dropout()(h)
        return h


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.prenet, self.mode = Prenet(), True

    def forward(self, h: Tensor) -> Tensor:
        made: Tensor = self.prenet(h, is_random=True)
        return made


class Careless(Decoder):
    def forward(self, h: Tensor) -> Tensor:
        made: Tensor = self.prenet(h, is_random=self.mode, is_scaled=True)
        return made


@pytest.mark.parametrize(("model", "is_meant"), [(Decoder(), True), (Careless(), False)])
def test_dropout_that_a_caller_asks_for_by_true_is_meant(model: nn.Module, is_meant: bool) -> None:
    assert ("dropout-in-evaluation" in rules(model, x(8, 32))) is not is_meant


# --- a small product whose results for all steps take more time as memory than they save


@pytest.mark.parametrize(("width", "steps", "is_said"), [(1024, 24, True), (5, 100, False)])
def test_a_small_product_stays_in_the_loop(width: int, steps: int, is_said: bool) -> None:
    def scan(self: Any, h: Tensor) -> Tensor:
        state = h.new_zeros(h.shape[0], 192)
        for step in h.unbind(1):
            state = torch.relu(torch.mm(step, self.given) + torch.mm(state, self.kept)) * 0.5 + state * 0.5
        return state

    model = Does(scan, given=nn.Parameter(x(width, 192)), kept=nn.Parameter(x(192, 192)))
    found = analyze(model.eval(), inputs=(x(32, steps, width),), progress=False).advice

    assert ("loop-over-steps" in {row.rule for row in found}) is is_said


# --- a causal mask over few tokens


@pytest.mark.parametrize(("tokens", "is_said"), [(256, True), (64, False)])
def test_the_fast_path_is_fast_for_few_tokens(tokens: int, is_said: bool) -> None:
    def encode(self: Any, h: Tensor) -> Tensor:
        return self.encoder(h, mask=nn.Transformer.generate_square_subsequent_mask(h.shape[1]))

    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = Does(encode, encoder=nn.TransformerEncoder(layer, 2))

    assert ("causal-mask" in rules(model, x(4, tokens, 64))) is is_said


# --- memory that a process may keep


def test_page_faults_that_were_not_counted_are_no_reason_to_keep_memory() -> None:
    layers = nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3)))
    found = analyze(layers.eval(), inputs=(x(8, 16, 64, 64),), progress=False, all_advice=True)

    assert "freed-memory" not in [row.rule for row in found.options]
