"""Each class of faults is found in every form, with its line of code, and its healthy twins get silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.advise.fault_classes import CLASSES, Does, FaultClass, Form, x
from tests.advise.faults_in_layers import UNSEEN, Scripted
from tests.advise.faults_in_models import REPORTED, ByHandGru
from tests.advise.faults_of_state import LATER
from tests.advise.pasting import check_code
from tests.advise.planted import said, seen
from torchgauge import analyze
from torchgauge.advise import RULES, advise

FAULTS = [(group, form) for group in (*CLASSES, *UNSEEN, *REPORTED, *LATER) for form in group.faults]
TWINS = [(group, form) for group in (*CLASSES, *UNSEEN, *REPORTED, *LATER) for form in group.twins]


def name(value: object) -> str:
    return value.name if isinstance(value, FaultClass) else str(value[0]) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(("group", "form"), FAULTS, ids=name)
def test_every_form_of_a_fault_is_found(group: FaultClass, form: Form) -> None:
    evidence = seen(form[1], inputs=form[2])
    found = [advice for advice in said(evidence) if advice.rule in group.rules]

    assert found, [advice.rule for advice in said(evidence)]
    assert {advice.kind for advice in found} == {group.kind}
    for advice in found:
        check_code(advice, form[1], form[2])


@pytest.mark.parametrize(("group", "form"), TWINS, ids=name)
def test_a_healthy_twin_gets_no_such_advice(group: FaultClass, form: Form) -> None:
    found = [advice for advice in advise(seen(form[1], inputs=form[2])) if advice.rule in group.rules]

    assert found == []


def test_the_rules_of_the_classes_exist() -> None:
    assert {rule for group in CLASSES for rule in group.rules} <= set(RULES)


def test_products_of_one_loop_do_not_add_up() -> None:
    """Two lines of a cell are two places of one piece of advice, and save the time of the loop once."""
    [found] = [advice for advice in said(seen(ByHandGru(), 2, 24, 32)) if advice.rule == "loop-over-steps"]

    assert found.evidence["count"] == 2
    assert found.expected_gain is not None
    assert found.expected_gain.high < 0.9


def test_a_graph_is_not_replayed_where_the_host_waits() -> None:
    body = nn.Sequential(*(nn.Linear(16, 16) for _ in range(6)))
    waits = Does(lambda self, h: self.body(h) if bool(h.sum() > 0) else h, body=body)
    told = [
        {row.rule for row in analyze(model, inputs=(x(4, 16),), on="h200", progress=False).advice}
        for model in (body, waits)
    ]

    assert "launch-bound" in told[0]
    assert "launch-bound" not in told[1]
    assert "host-wait" in told[1]


def test_a_device_that_cannot_be_predicted_costs_the_prediction_and_not_the_analysis() -> None:
    waits = Does(lambda self, h: self.a(h) * float(h.mean()), a=nn.Linear(16, 16))
    found = analyze(waits, inputs=(x(4, 16),), on="h200", progress=False)

    assert any("no prediction of the whole run on h200" in warning for warning in found.capture.run.warnings)
    assert "host-wait" in {row.rule for row in found.advice}


def test_parameters_behind_a_detach_are_never_trained() -> None:
    def forward(self: Any, h: Tensor) -> Any:
        made = self.encoder(h)
        return self.head(made.detach() if self.cuts else made)

    parts = {"encoder": nn.Linear(16, 16), "head": nn.Linear(16, 4)}
    cut, whole = (Does(forward, cuts=cuts, **parts) for cuts in (True, False))
    rows = [analyze(model, inputs=(x(4, 16),), mode="train", progress=False).advice for model in (cut, whole)]

    [found] = [row for row in rows[0] if row.rule == "never-trained"]
    assert (found.kind, found.where["module"]) == ("bug", "encoder")
    assert not [row for row in rows[1] if row.rule == "never-trained"]


def test_functions_in_a_script_have_the_line_of_their_call(tmp_path: Path) -> None:
    torch.jit.script(Scripted().eval()).save(tmp_path / "model.pt")
    found = analyze(tmp_path / "model.pt", input_size=(8, 32), progress=False)
    line = Scripted.forward.__code__.co_firstlineno + 1

    [dropout] = [row for row in found.advice if row.rule == "dropout-in-evaluation"]
    assert dropout.where["source"] == f"faults_in_layers.py:{line}"


def test_the_line_that_makes_an_unused_layer_is_told() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(16, 16)
            self.idle = nn.Linear(16, 16)

        def forward(self, h: Tensor) -> Tensor:
            return self.used(h)

    [found] = [
        row for row in analyze(Idle(), input_size=(2, 16), progress=False).advice if row.rule == "unused-parameters"
    ]
    assert found.where["source"] == f"test_fault_classes.py:{Idle.__init__.__code__.co_firstlineno + 3}"


class Pairs(nn.Module):
    """Indices of all pairs, kept until the number of rows changes; `keeps=False`: made at every call."""

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.fc, self.keeps = nn.Linear(32, 32), keeps
        self.pairs: Tensor | None = None
        self.rows = 0

    def forward(self, h: Tensor) -> Tensor:
        if self.pairs is None or self.rows != h.shape[0]:
            self.rows = h.shape[0]
            self.pairs = (torch.ones(h.shape[0], h.shape[0]) - torch.eye(h.shape[0])).nonzero()
        pairs = self.pairs
        if not self.keeps:
            pairs = (torch.ones(h.shape[0], h.shape[0]) - torch.eye(h.shape[0])).nonzero()
        return self.fc(h[pairs[:, 0]] - h[pairs[:, 1]])


@pytest.mark.parametrize("keeps", [True, False])
def test_what_the_model_keeps_for_later_calls_is_no_advice(keeps: bool) -> None:
    found = {advice.rule for advice in said(seen(Pairs(keeps), inputs=(x(64, 32),)))}

    assert bool(found & {"host-wait", "recomputed-constant"}) != keeps


def test_a_table_in_float64_that_is_made_at_every_call_is_one_fault() -> None:
    def forward(self: Any, h: Tensor) -> Tensor:
        start = torch.zeros(h.shape[0], 64)
        table = torch.cos(torch.arange(4096, dtype=torch.float64).view(64, 64)).float()
        return start + self.fc(h) @ table

    found = said(seen(Does(forward, fc=nn.Linear(64, 64)), inputs=(x(64, 64),)))
    constants = [advice for advice in found if advice.rule == "recomputed-constant"]

    assert "double-precision" not in {advice.rule for advice in found}
    # Not the line of the zeros, which are written to as often as not.
    first = forward.__code__.co_firstlineno
    assert [advice.where.source for advice in constants] == [f"test_fault_classes.py:{first + 2}"]


def test_what_changes_in_later_rounds_of_a_loop_is_not_a_constant() -> None:
    def refines(self: Any, h: Tensor) -> Tensor:
        state, left = torch.zeros(h.shape[0], 32), torch.ones(h.shape[0])
        while bool((left.exp() > 0.1).any()):
            state = state + torch.tanh(self.fc(h) + state.cos())
            left = left - 3 - torch.sigmoid(state.mean(-1))
        return state

    def never_enters(self: Any, h: Tensor) -> Tensor:
        done = torch.zeros(h.shape[0])
        while bool((done.exp() > 2).all()):
            done = done + self.fc(h).mean(-1)
        return self.fc(h)

    def positions(self: Any, h: Tensor) -> Tensor:
        for _ in range(3):
            h = self.fc(h) + torch.arange(h.shape[0] * 32).view(-1, 32).sin()
        return h

    said_of = [
        "recomputed-constant" in {row.rule for row in said(seen(Does(forward, fc=nn.Linear(32, 32)), 64, 32))}
        for forward in (refines, never_enters, positions)
    ]
    assert said_of == [False, False, True]


class KernelOfSample(nn.Module):
    """Each sample is filtered with a kernel, or multiplied with a matrix, made from its code."""

    def __init__(self, is_matrix: bool) -> None:
        super().__init__()
        self.is_matrix, self.mixed = is_matrix, nn.Linear(8, 16)
        self.filters = nn.Parameter(x(16, 16) if is_matrix else x(16, 16, 3))

    def forward(self, h: Tensor, codes: Tensor) -> Tensor:
        made, scales = [], torch.sigmoid(self.mixed(codes))
        for part, scale in zip(h.split(1), scales.unbind(), strict=True):
            if self.is_matrix:
                made.append((part[0] @ torch.tanh(self.filters * scale))[None])
            else:
                made.append(F.conv1d(part, torch.tanh(self.filters * scale.view(-1, 1, 1)), padding=1))
        return torch.cat(made)


class Synthesis(nn.Module):
    """A stack of these that starts from a parameter."""

    def __init__(self, is_matrix: bool) -> None:
        super().__init__()
        self.start = nn.Parameter(x(1, 16, 16))
        self.layers = nn.ModuleList(KernelOfSample(is_matrix) for _ in range(3))

    def forward(self, codes: Tensor) -> Tensor:
        h = self.start.expand(codes.shape[0], -1, -1)
        for layer in self.layers:
            h = layer(h, codes)
        return h


@pytest.mark.parametrize(("is_matrix", "remedy"), [(True, "torch.bmm"), (False, "one einsum")])
def test_samples_with_weights_of_their_own_are_not_joined(is_matrix: bool, remedy: str) -> None:
    found = [row for row in said(seen(Synthesis(is_matrix), 12, 8)) if row.rule == "loop-over-samples"]

    assert [remedy in row.recommendation for row in found] == [True]
    assert found[0].evidence["count"] == 3  # the loops of all layers
    assert found[0].expected_gain is not None
    assert found[0].expected_gain.low > 0.2


def test_samples_with_kernels_from_one_tensor_are_not_joined() -> None:
    def forward(self: Any, h: Tensor, codes: Tensor) -> Tensor:
        kernels = self.makes(codes).view(-1, 4, 16, 3)
        return torch.cat([F.conv1d(h[n : n + 1], kernels[n]) for n in range(h.shape[0])])

    model = Does(forward, makes=nn.Linear(8, 4 * 16 * 3))
    [found] = [row for row in said(seen(model, inputs=(x(12, 16, 32), x(12, 8)))) if row.rule == "loop-over-samples"]
    assert "one einsum" in found.recommendation

    wide = Does(forward, makes=nn.Linear(8, 4 * 16 * 3))
    wider = said(seen(wide, inputs=(x(12, 16, 4096), x(12, 8))))
    assert "loop-over-samples" not in {row.rule for row in wider}  # on a CPU neither windows nor groups are faster


@torch.jit.script
def gated(a: Tensor, n: Tensor) -> Tensor:
    half = n[0]
    return torch.tanh(a[:, :half]) * torch.sigmoid(a[:, half:])


def test_a_scripted_function_and_its_number_are_no_advice() -> None:
    """WaveGlow's: the number is made on the host, and what holds the function's arguments is the analysis."""

    def forward(self: Any, h: Tensor) -> Tensor:
        size = torch.IntTensor([64])
        for layer in self.layers:
            h = h + gated(layer(h), size)
        return h

    layers = nn.ModuleList(nn.Conv1d(64, 128, 1) for _ in range(12))
    found = {advice.rule for advice in said(seen(Does(forward, layers=layers), inputs=(x(2, 64, 256),)))}

    assert not found & {"host-wait", "held-activations"}


@pytest.mark.parametrize(("size", "is_said"), [(64, False), (1, True)])
def test_a_layer_is_not_called_once_where_joining_costs_more(size: int, is_said: bool) -> None:
    """OSNet's gate: sums of large maps, and products of a few numbers."""

    def forward(self: Any, h: Tensor) -> Tensor:
        parts = [torch.relu(h * n) for n in range(1, 6)]
        gates = [self.up(torch.relu(self.down(part.mean((2, 3), keepdim=True)))).sigmoid() * part for part in parts]
        return torch.stack(gates).sum(0)

    gate = Does(forward, down=nn.Conv2d(64, 4, 1), up=nn.Conv2d(4, 64, 1))
    found = {advice.rule for advice in said(seen(gate, inputs=(x(1, 64, size, size),)))}

    assert ("loop-over-samples" in found) == is_said


def test_code_from_a_file_that_is_not_python_gets_advice_without_an_edit(tmp_path: Path) -> None:
    page = tmp_path / "a_page_with_code.md"
    page.write_text("A page's text.\n\nforward = lambda self, h: self.a(h.half().float())\n", encoding="utf-8")
    scope: dict[str, Any] = {}
    exec(compile("\n\nforward = lambda self, h: self.a(h.half().float())\n", str(page), "exec"), scope)
    found = said(seen(Does(scope["forward"], a=nn.Linear(64, 64)), inputs=(x(256, 64),)))

    assert [advice.code for advice in found if advice.rule == "cast-round-trip"] == [None]
