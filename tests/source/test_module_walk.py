"""The modules of a model without torch's own iterator."""

from __future__ import annotations

import torch
from torch import nn

from torchgauge.source import all_modules, has_attribute


def test_all_modules_are_those_of_torch_in_the_same_order() -> None:
    shared = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model = nn.Sequential(nn.ModuleDict({"a": shared, "b": nn.ModuleList([shared, nn.Identity()])}), shared)
    model.register_module("nothing", None)
    model.holds_itself = model
    for each in (model, torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), nn.Identity()):
        assert list(map(id, all_modules(each))) == list(map(id, each.modules()))


def test_an_attribute_is_found_on_the_object_its_class_and_a_script() -> None:
    class Table(nn.Module):
        per_class = 1

        def __init__(self) -> None:
            super().__init__()
            self.own = 1

    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.size = 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.size

    table, script = Table(), torch.jit.script(Scripted())
    assert all(has_attribute(module, name) for module, name in ((table, "own"), (table, "per_class"), (script, "size")))
    assert not any(has_attribute(module, "missing") for module in (table, script))
