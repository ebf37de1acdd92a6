"""Modules of two models pair by path, then by what they are and where."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

import torchgauge
from torchgauge.report.comparison import Compared, ModuleChange, compare_views, render


class Body(nn.Module):
    def __init__(self, names: tuple[str, str] = ("first", "second"), width: int = 8) -> None:
        super().__init__()
        self.names = names
        self.add_module(names[0], nn.Linear(4, width))
        self.act = nn.ReLU()
        self.add_module(names[1], nn.Linear(width, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = (self.get_submodule(name) for name in self.names)
        return second(self.act(first(x)))


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.model = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


def compared(base: nn.Module, other: nn.Module) -> Compared:
    views = [torchgauge.analyze(model, input_size=(3, 4), advice=False) for model in (base, other)]
    return compare_views(views)


def changes(base: nn.Module, other: nn.Module) -> list[ModuleChange]:
    return list(compared(base, other).structures[0].changes)


def summarized(found: list[ModuleChange]) -> list[tuple[str, str | None, str | None]]:
    return [(change.state, change.base_path, change.other_path) for change in found]


def test_a_model_and_itself_have_no_changes() -> None:
    found = compared(Body(), Body())
    assert found.structures[0].changes == ()
    assert found.structures[0].unchanged == 4
    assert not any(row.is_changed for row in found.modules)


def test_modules_of_one_side_are_added_or_removed_with_their_children() -> None:
    plain = nn.Sequential(nn.Linear(4, 4))
    longer = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    assert summarized(changes(plain, longer)) == [("added", None, "1")]
    assert summarized(changes(longer, plain)) == [("removed", "1", None)]
    assert changes(plain, longer)[0].other_params == 20


def test_an_equal_module_under_another_name_is_renamed() -> None:
    found = changes(Body(("first", "second")), Body(("stem", "head")))
    assert summarized(found) == [("renamed", "first", "stem"), ("renamed", "second", "head")]


def test_below_a_renamed_module_names_are_not_reported_again() -> None:
    base = nn.Sequential(OrderedDict(old=Body()))
    assert summarized(changes(base, nn.Sequential(OrderedDict(new=Body())))) == [("renamed", "old", "new")]


def test_a_renamed_module_with_other_shapes_pairs_by_type_and_place() -> None:
    base, other = nn.Sequential(OrderedDict(old=Body())), nn.Sequential(OrderedDict(new=Body(width=16)))
    found = changes(base, other)
    assert summarized(found) == [
        ("renamed", "old", "new"),
        ("reshaped", "old.first", "new.first"),
        ("reshaped", "old.second", "new.second"),
    ]
    shapes = {(tensor.name, tensor.base, tensor.other) for tensor in found[1].tensors}
    assert shapes == {("weight", "8×4", "16×4"), ("bias", "8", "16")}


def test_a_wrapper_moves_all_that_it_wraps_also_what_has_no_parameters() -> None:
    found = changes(Body(), Wrapped(Body()))
    assert ("added", None, "model") in summarized(found)
    assert {(c.base_path, c.other_path) for c in found if c.state == "renamed"} == {
        ("first", "model.first"),
        ("act", "model.act"),
        ("second", "model.second"),
    }
    (added,) = (change for change in found if change.state == "added")
    assert added.other_params == 0, "what it wraps was there before"


def test_another_type_at_a_path_is_retyped() -> None:
    base, other = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Linear(4, 4), nn.GELU())
    (found,) = changes(base, other)
    assert (found.state, found.base_path, found.base_type, found.other_type) == ("retyped", "1", "ReLU", "GELU")


def test_another_precision_is_recast() -> None:
    found = changes(nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4)).double())
    assert summarized(found) == [("recast", "0", "0")]
    assert {(tensor.base, tensor.other) for tensor in found[0].tensors} == {("float32", "float64")}


def test_activations_do_not_pair_across_places() -> None:
    base = nn.Sequential(OrderedDict(a=nn.Linear(4, 4), relu=nn.ReLU()))
    other = nn.Sequential(OrderedDict(a=nn.Linear(4, 4), block=nn.Sequential(nn.Linear(4, 4), nn.ReLU())))
    assert ("removed", "relu", None) in summarized(changes(base, other))


def test_a_layer_of_the_same_shape_elsewhere_is_not_a_renamed_one() -> None:
    base = Wrapped(nn.Sequential(OrderedDict(norm=nn.LayerNorm(4))))
    other = nn.Sequential(OrderedDict(head=nn.Linear(4, 4), final=nn.LayerNorm(4)))
    (structure,) = compared(base, other).structures
    assert structure.changes == ()
    assert structure.is_unrelated


def test_rows_have_the_modules_of_all_sides_and_added_ones_at_their_place() -> None:
    plain, longer = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    views = [torchgauge.analyze(model, input_size=(3, 4), advice=False) for model in (plain, longer, longer)]
    rows = compare_views(views).modules
    assert [row.path for row in rows] == ["", "0", "1"]
    assert rows[2].states == (None, "added", "added")
    assert rows[2].values("macs") == (None, 3 * 4 * 2, 3 * 4 * 2)
    assert rows[0].values("macs") == (48, 72, 72)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 1)
        self.norm = nn.BatchNorm1d(8)
        self.act = nn.ReLU()
        self.fc = nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.act(self.norm(self.conv(x[None]))))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.rnn = nn.GRU(6, 32)
        self.relu = nn.ReLU()
        self.out = nn.Linear(32, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.relu(self.rnn(self.inner(x))[0]))


def test_models_with_nothing_in_common_are_told_in_one_sentence() -> None:
    found = compared(Classifier(), Tagger())
    structure = found.structures[0]
    assert structure.is_unrelated
    assert structure.changes == ()
    assert {row.rows.count(None) for row in found.modules[1:]} == {1}, "every module is of one side"
    text = render(found)
    assert "B and A have nothing in common: no layer of one is found in the other." in text
    assert "renamed" not in text
    assert "Modules that differ" not in text


def test_a_larger_model_of_the_same_design_is_related() -> None:
    found = compared(Wrapped(Body()), nn.Sequential(OrderedDict(model=Body(width=16))))
    assert not found.structures[0].is_unrelated


def test_order_alone_renames_nothing() -> None:
    shared = nn.Linear(4, 4)
    base = nn.Sequential(OrderedDict(shared=shared, up=nn.Linear(4, 9), down=nn.Linear(9, 2)))
    other = nn.Sequential(OrderedDict(shared=shared, wide=nn.Linear(4, 7), last=nn.Linear(7, 5)))
    states = summarized(changes(base, other))
    assert ("renamed", "up", "wide") in states, "both take the 4 features"
    assert ("removed", "down", None) in states
    assert ("added", None, "last") in states
