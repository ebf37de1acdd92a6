"""Higher-order ops and source lines of exported programs, live and from a file."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision.models import vit_b_16

import torchgauge as tg
from tests.exported.test_exported import Form, figures, forms, from_file
from torchgauge.source.exported import last_line


class Branches(nn.Module):
    """The branch for false costs more."""

    def __init__(self) -> None:
        super().__init__()
        self.cheap = nn.Linear(4, 4)
        self.dear = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.gelu(x)
        return torch.cond(x.sum() > 0, lambda h: self.cheap(h), lambda h: self.dear(h), (x,))


@forms
def test_of_a_branch_that_depends_on_data_the_dearer_side_is_counted(form: Form, tmp_path: Path) -> None:
    found = tg.analyze(form(torch.export.export(Branches(), (torch.zeros(2, 4),)), tmp_path))
    assert found.totals.macs == 2 * (4 * 8 + 8 * 4)
    assert found.capture.run.mode == "fake"
    assert any("the one for false" in warning for warning in found.capture.run.warnings)


class Loops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, self.layer(h)), (torch.tensor(0), x))[1]


@forms
def test_a_loop_runs_as_often_as_its_counter_says(form: Form, tmp_path: Path) -> None:
    program = torch.export.export(Loops(), (torch.zeros(2, 4),))
    assert tg.analyze(form(program, tmp_path)).totals.macs == 3 * 2 * 16


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4))
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.inner(x)
        return self.head(x)


@forms
def test_modules_inside_a_part_without_gradients_are_distinguished(form: Form, tmp_path: Path) -> None:
    found = tg.analyze(form(torch.export.export(Frozen(), (torch.zeros(2, 4),)), tmp_path))
    eager = tg.analyze(Frozen(), input_size=(2, 4))
    assert figures(found) == figures(eager)
    assert [row.calls for row in found.modules] == [row.calls for row in eager.modules]


@forms
def test_ops_know_the_line_they_come_from(form: Form, tmp_path: Path) -> None:
    found = tg.analyze(form(torch.export.export(Branches(), (torch.zeros(2, 4),)), tmp_path))
    line = 1 + Path(__file__).read_text().splitlines().index("        x = nn.functional.gelu(x)")
    assert [op.source for op in found.ops if op.op == "aten::gelu"] == [f"{__file__}:{line}"]


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        ('File "a.py", line 3, in f\n  File "/x/site-packages/torch/nn/modules/linear.py", line 9, in g', "a.py:3"),
        ('File "/x/site-packages/torch/nn/modules/linear.py", line 9, in g', None),
        ('File "a.py", line 3, in f\n  File "<eval_with_key>.7", line 4, in forward', "a.py:3"),
        ('File "<eval_with_key>.7", line 4, in forward', None),
        ("no trace at all", None),
        (None, None),
        (["a list"], None),
    ],
)
def test_the_line_is_that_of_the_users_own_code(trace: Any, line: str | None) -> None:
    assert last_line(trace) == (
        line or ("/x/site-packages/torch/nn/modules/linear.py:9" if "torch/nn" in str(trace) else None)
    )


def test_a_size_without_end_is_given_up(tmp_path: Path) -> None:
    """9 to the power of itself, again and again, as no export writes it."""

    class Sized(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.new_zeros(x.shape[0] * 3)

    batch = torch.export.Dim("batch", min=2, max=16)
    program = torch.export.export(Sized(), (torch.zeros(9, 4),), dynamic_shapes={"x": {0: batch}})
    torch.export.save(program, tmp_path / "model.pt2")
    changed = tmp_path / "changed.pt2"
    with zipfile.ZipFile(tmp_path / "model.pt2") as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            assert not name.endswith("models/model.json") or b'"as_int": 3' in content
            content = content.replace(b"_operator.mul", b"_operator.pow").replace(
                b'"as_int": 3}', b'"as_int": 999999999}'
            )
            new.writestr(name, content)
    with pytest.raises(tg.ForwardError, match="64 bits"):
        tg.analyze(changed)


@pytest.mark.slow
@pytest.mark.parametrize("build", [vit_b_16, lambda: timm.create_model("vit_small_patch16_224")], ids=["b16", "small"])
def test_an_exported_vision_transformer_of_full_size_is_the_eager_one(
    build: Callable[[], nn.Module], tmp_path: Path
) -> None:
    model = build().eval()
    found = tg.analyze(from_file(torch.export.export(model, (torch.zeros(1, 3, 224, 224),)), tmp_path))
    eager = tg.analyze(model, input_size=(1, 3, 224, 224))
    # Fused attention is one op in the eager model and several in the exported one.
    assert [(row.path, row.params, row.macs, row.flops) for row in found.modules] == [
        (row.path, row.params, row.macs, row.flops) for row in eager.modules
    ]
