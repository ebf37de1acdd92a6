from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchgauge as tg
from tests.torchscript.models import Listed, figures, macs, small_resnet


def freeze(model: nn.Module) -> Any:
    return torch.jit.freeze(torch.jit.script(model.eval()))


def test_a_frozen_resnet_keeps_macs_and_paths_though_its_norms_are_folded() -> None:
    model = small_resnet().eval()
    eager, frozen = (tg.analyze(m, input_size=(1, 3, 32, 32)) for m in (model, freeze(model)))
    found, expected = macs(frozen), macs(eager)
    assert frozen.totals.macs == eager.totals.macs
    assert {path: n for path, n in found.items() if n} == {path: n for path, n in expected.items() if n}
    assert set(found) <= set(expected)
    norms = sum(part.num_features for part in model.modules() if isinstance(part, nn.BatchNorm2d))
    assert eager.totals.params - frozen.totals.params == norms  # scale and shift became one bias


def test_calls_and_shapes_of_frozen_modules_are_those_of_the_eager_ones() -> None:
    model = small_resnet().eval()
    eager, frozen = (tg.analyze(m, input_size=(1, 3, 32, 32)) for m in (model, freeze(model)))
    expected = {row.path: (row.type, row.calls, row.input_shapes, row.output_shapes) for row in eager.modules}
    for row in frozen.modules:
        assert (row.type, row.calls, row.input_shapes, row.output_shapes) == expected[row.path]


def test_elements_of_lists_keep_their_whole_path() -> None:
    model = Listed().eval()
    for parameter in model.parameters():  # equal constants would be shared
        nn.init.normal_(parameter)
    frozen = figures(tg.analyze(freeze(model), input_size=(2, 8)))
    assert frozen == figures(tg.analyze(model, input_size=(2, 8)))


def test_a_frozen_archive_has_lost_its_modules_but_not_its_figures(tmp_path: Path) -> None:
    model = Listed().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    torch.jit.save(freeze(model), tmp_path / "frozen.pt")
    found = tg.analyze(torch.jit.load(tmp_path / "frozen.pt"), input_size=(2, 8))
    eager = tg.analyze(model, input_size=(2, 8))
    assert (found.totals.macs, found.totals.params) == (eager.totals.macs, eager.totals.params)
