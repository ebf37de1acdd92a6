"""Healthy code next to faults: what someone who had read the rules wrote to get wrong advice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.test_remedies import of_rule
from torchgauge import analyze
from torchgauge.source import ensure_torchvision_imports


def shown(model: nn.Module, *inputs: Any, all_advice: bool = False) -> list[dict[str, Any]]:
    found = analyze(model.eval(), inputs=inputs, all_advice=all_advice, progress=False).to_dict()
    return [*found["advice"], *found["options"]]


# --- copies that are not the same


# --- rows that are needed


# --- pairs for which torch.cdist computes something else


# --- rounds that the code ties together


def of_own_lengths(self: Any, h: Tensor) -> Tensor:
    return torch.cat([self.rnn(h[at : at + 1, : self.lengths[at]])[1][-1] for at in range(len(h))])


def state_by_speaker(self: Any, h: Tensor) -> Tensor:
    states: dict[int, Tensor] = {}
    for at, speaker in enumerate(self.speakers):
        states[speaker] = self.rnn(h[at : at + 1], states.get(speaker))[1]
    return torch.cat(list(states.values()))


def until_sure(self: Any, h: Tensor) -> Tensor:
    found = []
    for at in range(len(h)):
        found.append(self.rnn(h[at : at + 1])[1][-1])
        if found[-1].amin() > 2:
            break
    return torch.cat(found)


def through_an_array(self: Any, h: Tensor) -> Tensor:
    state, found = torch.zeros(1, 1, 32), []
    for at in range(len(h)):
        _, state = self.rnn(h[at : at + 1], state)
        found.append(state[0])
        state = torch.from_numpy(state.numpy().copy())
    return torch.cat(found)


def for_each(self: Any, h: Tensor) -> Tensor:
    found = []
    for at in range(len(h)):
        part = h[at : at + 1]
        found.append(self.rnn(part)[1][-1])
    return torch.cat(found)


@pytest.mark.parametrize(
    ("forward", "is_said"),
    [
        (of_own_lengths, False),
        (state_by_speaker, False),
        (until_sure, False),
        (through_an_array, False),
        (for_each, True),
    ],
)
def test_samples_are_joined_where_no_round_may_need_another(forward: Any, is_said: bool) -> None:
    model = Does(forward, rnn=nn.GRU(16, 32, batch_first=True), lengths=[12] * 8, speakers=list(range(8))).eval()

    assert bool(of_rule(model, "loop-over-samples", x(8, 12, 16))) is is_said


def with_teacher_by_chance(self: Any, words: Tensor, state: Tensor) -> Tensor:
    given, found = words[:, 0], []
    for at in range(words.shape[1]):
        state = self.cell(torch.relu(self.enter(given)), state)
        found.append(self.out(state))
        given = words[:, at] if torch.rand(()) < 1.5 else found[-1]
    return torch.stack(found, 1)


def with_teacher(self: Any, words: Tensor, state: Tensor) -> Tensor:
    found = []
    for at in range(words.shape[1]):
        state = self.cell(torch.relu(self.enter(words[:, at])), state)
        found.append(self.out(state))
    return torch.stack(found, 1)


@pytest.mark.parametrize(("forward", "is_said"), [(with_teacher_by_chance, False), (with_teacher, True)])
def test_a_step_that_chance_may_feed_back_stays_in_its_loop(forward: Any, is_said: bool) -> None:
    parts = {"enter": nn.Linear(32, 64), "cell": nn.GRUCell(64, 64), "out": nn.Linear(64, 32)}
    found = of_rule(Does(forward, **parts).eval(), "loop-over-steps", x(4, 16, 32), x(4, 64))

    assert any("before the loop" in advice.recommendation for advice in found) is is_said


# --- layers that others need as they are


class ForEachSite(nn.Module):
    def __init__(self, sites: int) -> None:
        super().__init__()
        self.enter = nn.ModuleList(nn.Linear(64, 512) for _ in range(sites))
        self.head = nn.Linear(512, 64)

    def forward(self, h: Tensor, site: int = 0) -> Tensor:
        return self.head(self.enter[site](h))


class WithFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(64, 512), nn.Linear(512, 64)

    def embed(self, h: Tensor) -> Tensor:
        return self.enter(h)

    def forward(self, h: Tensor) -> Tensor:
        return self.head(self.embed(h))


@pytest.mark.parametrize(
    ("model", "is_said"), [(ForEachSite(1), True), (ForEachSite(3), False), (WithFeatures(), False)]
)
def test_layers_are_merged_where_nothing_else_needs_one_of_them(model: nn.Module, is_said: bool) -> None:
    assert bool(of_rule(model.eval(), "consecutive-layers", x(64, 64))) is is_said


class Norms(nn.Module):
    """A layer for each site in front of one norm."""

    def __init__(self, sites: int) -> None:
        super().__init__()
        self.enter = nn.ModuleList(nn.Conv2d(3, 32, 3) for _ in range(sites))
        self.norm = nn.BatchNorm2d(32)

    def forward(self, h: Tensor, site: int = 0) -> Tensor:
        return torch.relu(self.norm(self.enter[site](h)))


@pytest.mark.parametrize("sites", [1, 3])
def test_a_norm_behind_layers_that_an_argument_chooses_is_not_folded_into_one(sites: int) -> None:
    assert bool(of_rule(Norms(sites).eval(), "conv-bn-fusion", x(4, 3, 64, 64))) is (sites == 1)


class Ordered(nn.Module):
    """forward takes its layers from a list, which code that replaces them by name would miss."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(64, 512), nn.Linear(512, 64)
        self.order: Any = [self.enter, self.head]

    def forward(self, h: Tensor) -> Tensor:
        for layer in self.order:
            h = layer(h)
        return h


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 64))
    model[0].register_forward_pre_hook(lambda module, given: (given[0] - given[0].mean(),))
    return model


@pytest.mark.parametrize(
    ("model", "has_code"),
    [(Ordered(), False), (hooked(), False), (nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 64)), True)],
)
def test_no_code_replaces_modules_that_a_list_holds_or_that_have_hooks(model: nn.Module, has_code: bool) -> None:
    (found,) = [row for row in shown(model, x(64, 64)) if row["rule"] == "consecutive-layers"]

    assert (found["code"] is not None) is has_code


# --- tables that start out equal


class Codebook(nn.Module):
    codes: Tensor

    def __init__(self, is_trained: bool) -> None:
        super().__init__()
        self.layer, self.is_trained = nn.Linear(64, 64), is_trained
        self.register_buffer("codes", torch.linspace(-1, 1, 512).repeat(64, 1))

    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h) @ self.codes[:, :64]


class Trained(Codebook):
    def follow(self, found: Tensor) -> None:
        self.codes.lerp_(found, 0.01)


class Calibrated(nn.Sequential):
    def calibrate(self, tables: list[Tensor]) -> None:
        for layer, table in zip(self, tables, strict=True):
            layer.codes = table


@pytest.mark.parametrize(
    ("model", "is_said"),
    [
        (nn.Sequential(Codebook(False), Codebook(False)), True),
        (nn.Sequential(Trained(True), Trained(True)), False),
        (Calibrated(Codebook(True), Codebook(True)), False),
    ],
)
def test_buffers_that_the_model_updates_are_not_repeated(model: nn.Module, is_said: bool) -> None:
    assert ("repeated-buffers" in [row["rule"] for row in shown(model, x(8, 64))]) is is_said


# --- layers that are hidden on purpose


class Holding(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        layers = [nn.Linear(16, 16) for _ in range(3)]
        if kind == "losses":
            self.hidden: Any = [layer.eval() for layer in layers]
        elif kind == "by kernel":
            self.hidden = {2 * at + 3: layer for at, layer in enumerate(layers)}
        else:
            self.hidden = [*layers]
        self.kind = kind

    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h)


class Teachers(nn.Module):
    def __init__(self, teachers: list[nn.Module]) -> None:
        super().__init__()
        self.layer, self.teachers = nn.Linear(16, 16), list(teachers)

    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h)


class Snapshots(Teachers):
    def keep(self, model: nn.Module) -> None:
        self.teachers.append(model)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Holding("layers"), "nn.ModuleList:"),
        (Holding("by kernel"), "nn.ModuleDict, whose keys are names without dots:"),
        (Holding("losses"), None),
        (Teachers([nn.Linear(16, 16), nn.Linear(16, 16)]), None),
        (Snapshots([nn.Linear(16, 16), nn.Linear(16, 16)]), None),
    ],
)
def test_layers_that_other_code_puts_into_a_list_are_hidden_on_purpose(model: nn.Module, words: str | None) -> None:
    found = of_rule(model.eval(), "unregistered-layers", x(4, 16))

    assert [words in advice.recommendation for advice in found if words] == ([True] if words else [])
    assert bool(found) is (words is not None)


# --- work that only evaluation repeats


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.noise = nn.Linear(256, 256), nn.Dropout(0.1)

    @torch.no_grad()
    def target(self, h: Tensor) -> Tensor:
        return self.layer(h)

    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h) + torch.tanh(self.target(h))


class Views(Twice):
    def forward(self, h: Tensor) -> Tensor:
        first = self.layer(self.noise(h))
        second = self.layer(self.noise(h))
        return first + torch.tanh(second)


class Again(Twice):
    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h) + torch.tanh(self.layer(h))


@pytest.mark.parametrize(("model", "is_said"), [(Twice(), False), (Views(), False), (Again(), True)])
def test_work_that_training_does_in_two_ways_is_not_repeated(model: nn.Module, is_said: bool) -> None:
    assert bool(of_rule(model.eval(), "repeated-work", x(512, 256))) is is_said


# --- reads and casts


def suppressed(self: Any, overlaps: Tensor) -> Tensor:
    scores, kept = self.layer(overlaps)[:, 0].clone(), []
    for at in range(len(scores)):
        if scores[at] > self.least:
            kept.append(at)
            scores[at + 1 :] *= 1 - overlaps[at, at + 1 :]
    return scores + len(kept)


@pytest.mark.parametrize("least", [-9, 9])
def test_values_that_rounds_may_change_are_not_read_before_the_loop(least: int) -> None:
    model = Does(suppressed, layer=nn.Linear(32, 4), least=least).eval()
    found = of_rule(model, "host-wait", x(32, 32).sigmoid())

    assert found
    assert not any("before the loop" in advice.recommendation for advice in found)


def test_a_check_that_the_call_asks_for_is_not_switched_off_by_the_default() -> None:
    def forward(self: Any, h: Tensor) -> Tensor:
        return torch.distributions.Normal(self.layer(h), 1.0, validate_args=True).mean

    (found,) = of_rule(Does(forward, layer=nn.Linear(32, 32)).eval(), "host-wait", x(8, 32))

    assert "set_default_validate_args" not in found.recommendation


@pytest.mark.parametrize("is_bag", [True, False])
def test_a_bag_sums_in_the_type_of_its_table(is_bag: bool) -> None:
    look_up = nn.functional.embedding_bag if is_bag else nn.functional.embedding
    table = nn.Parameter(x(20000, 64).half(), requires_grad=False)
    model = Does(lambda self, at: self.layer(look_up(at, self.table.float())), table=table, layer=nn.Linear(64, 64))
    found = of_rule(model.eval(), "weight-cast", torch.zeros(16, 8, dtype=torch.long))

    assert any("look up the rows first" in advice.recommendation for advice in found) is not is_bag


# --- the memory format of images


class Pictures(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.enter, self.mix, self.kind = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1), kind
        self.head = nn.Linear(64 * 16, 10)
        if kind == "volumes":
            self.time = nn.Conv3d(64, 64, (3, 1, 1))

    def forward(self, h: Tensor) -> Tensor:
        h = torch.relu(self.enter(h))
        if self.kind == "shuffled":
            count, _, rows, columns = h.shape
            h = h.view(count, 4, 16, rows, columns).transpose(1, 2).reshape(count, 64, rows, columns)
        h = nn.functional.max_pool2d(torch.relu(self.mix(h)), 16)
        if self.kind == "viewed":
            return self.head(h.view(len(h), -1))
        if self.kind == "put in order":
            return self.head(h.permute(0, 2, 3, 1).contiguous().view(len(h), -1))
        return self.head(h.flatten(1))


@pytest.mark.parametrize(
    ("kind", "has_code"),
    [("flattened", True), ("put in order", True), ("viewed", False), ("shuffled", None), ("volumes", None)],
)
def test_channels_last_is_said_where_the_code_runs_and_images_stay_whole(kind: str, has_code: bool | None) -> None:
    found = [row for row in shown(Pictures(kind), x(4, 3, 64, 64)) if row["rule"] == "image-layout"]

    assert [row["code"] is not None for row in found] == ([] if has_code is None else [has_code])
    assert all(".reshape() for .view() at" in row["recommendation"] for row in found if has_code is False)


# --- places and states


class OnAnother(nn.Module):
    """A network of a package, whose classifier is not used."""

    def __init__(self) -> None:
        super().__init__()
        ensure_torchvision_imports()
        from torchvision.models import alexnet

        self.images = alexnet()

    def forward(self, h: Tensor) -> Tensor:
        return self.images.features(h).flatten(1)


def test_the_place_of_a_module_that_a_package_makes_is_the_line_that_makes_the_model() -> None:
    (found,) = [row for row in shown(OnAnother(), x(1, 3, 64, 64)) if row["rule"] == "unused-parameters"]

    assert found["where"]["module"] == "images.classifier"
    assert found["where"]["line"] == "self.images = alexnet()"


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.peephole = nn.Linear(256, 256), nn.Parameter(x(512, 256))

    def forward(self, h: Tensor, held: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        own, cell = held
        cell = cell * torch.sigmoid(self.mix(h) + torch.tanh(self.peephole * cell))
        return own + torch.tanh(cell), cell


class KeepsStates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = []
        for _ in range(2):
            layers.append(Cell())
        self.layers = nn.ModuleList(layers)
        self.states = [(torch.ones(512, 256), torch.ones(512, 256)) for _ in layers]

    def forward(self, h: Tensor) -> Tensor:
        for at in range(2):
            self.states[at] = self.layers[at](h, held=self.states[at])
            h, _ = self.states[at]
        return h


def test_states_in_a_list_that_forward_changes_are_no_constants() -> None:
    assert not of_rule(KeepsStates().eval(), "recomputed-weight", x(512, 256))
