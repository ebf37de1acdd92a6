from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from tests.compat.left_alone import left_alone
from tests.compat.stat_models import Net, nested, rows
from torchgauge.compat.torchstat import ModelHook, ModelStat, StatNode, StatTree, report_format, stat


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.rnn = nn.LSTM(4, 3, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        out, _ = self.rnn(self.embed(ids))
        return out


def test_tuple_outputs_and_other_ranks_are_rows_with_the_projects_cost() -> None:
    embed, rnn = rows(Recurrent(), (7,))
    assert (embed.input_shape, embed.output_shape, embed.MAdd) == ((7,), (7, 4), 0)
    assert (rnn.input_shape, rnn.output_shape) == ((7, 4), (7, 3))
    assert rnn.Flops > 7 * 4 * 3 * (4 + 3)
    assert rnn.MAdd - rnn.Flops == 7 * 4 * 3 * (4 + 3)


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (nn.Conv1d(3, 4, 3), (3, 9)),
        (nn.Conv3d(3, 4, 3), (3, 5, 5, 5)),
        (nn.Linear(6, 2), (3, 5, 6)),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (5, 8)),
        (nn.MaxPool2d(2, return_indices=True), (3, 4, 4)),
    ],
    ids=lambda value: str(value)[:20],
)
def test_any_rank_of_input_gets_a_report(
    model: nn.Module, size: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    stat(model, size)
    assert "Total MAdd" in capsys.readouterr().out
    assert sum(node.Flops for node in rows(model, size)) > 0


def test_attention_is_one_row_with_all_its_parameters() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    found = rows(layer, (5, 8))
    assert found[0].name == "self_attn"
    assert found[0].Flops > 5 * 8 * 8 * 4
    assert sum(node.parameter_quantity for node in found) == sum(p.numel() for p in layer.parameters())


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.never = nn.Linear(4, 100)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def test_a_leaf_that_never_ran_still_has_its_parameters() -> None:
    node = rows(Unused(), (4,))[1]
    assert (node.parameter_quantity, node.MAdd, node.input_shape, node.duration) == (500, 0, (), 0.0)


def test_a_lazy_model_is_reported_and_stays_lazy() -> None:
    model = nn.Sequential(nn.LazyLinear(5), nn.ReLU())
    lazy, act = rows(model, (4,))
    assert (lazy.parameter_quantity, lazy.Flops, act.Flops) == (25, 20, 5)
    assert isinstance(model[0], nn.LazyLinear)


class Shrinking(nn.Module):
    """One activation before and after a layer that makes the rows shorter."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()
        self.layer = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.layer(self.act(x)))


def test_a_layer_used_twice_is_one_row_of_its_last_call() -> None:
    act = rows(Shrinking(), (8,))[0]
    assert (act.name, act.Flops, act.Memory) == ("act", 3, (12, 12))


def test_the_width_of_elements_is_that_of_the_input() -> None:
    (node,) = rows(nn.ReLU(), (6,))
    (wide,) = rows(nn.Sequential(nn.Linear(6, 6).double())[0], (6,))
    assert node.Memory == (24, 24)
    assert wide.Memory == (8 * (6 + 42), 48)


@pytest.mark.parametrize("model", [Net(), nested(), Recurrent(), Unused()], ids=lambda m: type(m).__name__)
def test_nothing_stays_on_the_model(model: nn.Module) -> None:
    size = {Net: (3, 224, 224), Recurrent: (7,), Unused: (4,)}.get(type(model), (8,))
    model.train()
    with left_alone(model):
        rows(model, size)


def test_nothing_stays_on_a_model_that_raised() -> None:
    model = nested()
    with left_alone(model), pytest.raises(RuntimeError):
        stat(model, (9,))


class TwoInputs(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


@pytest.mark.parametrize(
    ("model", "size", "error"),
    [
        (nn.Linear, (4,), AssertionError),
        (None, (4,), AssertionError),
        (nn.Linear(4, 2), 4, AssertionError),
        (nn.Linear(4, 2), "4", AssertionError),
        (TwoInputs(), (4,), TypeError),
    ],
)
def test_wrong_use_raises_what_torchstat_raises(model: Any, size: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        stat(model, size)
    with pytest.raises(error):
        ModelHook(model, size)


def test_wrong_nodes_are_refused() -> None:
    with pytest.raises(AssertionError):
        StatTree(object())  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        StatNode().add_child(object())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no rows"):
        report_format([])


def test_modules_of_the_same_names_can_be_imported() -> None:
    from torchgauge.compat.torchstat import model_hook, reporter, stat_tree, statistics

    assert (model_hook.ModelHook, statistics.ModelStat, stat_tree.StatTree) == (ModelHook, ModelStat, StatTree)
    assert reporter.report_format is report_format
