from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg
from torchgauge.source import first_uses, parse_input


class Waves(nn.Module):
    """Takes sequences of features, as a convolution over time does not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(12, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv((x * 2).transpose(1, 2))


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.to(torch.float32).permute(0, 3, 1, 2) / 255)


class Grey(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.unsqueeze(1))


class Product(nn.Module):
    """No layer at all, and the input is not the first operand."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(6, 9))

    def forward(this, x: Tensor) -> Tensor:  # noqa: N805 - the first parameter may have any name
        return torch.addmm(torch.zeros(6), x, this.table.t())


class Late(nn.Module):
    """The layer that is registered first is called last."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 2)
        self.body = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(7, 5)
        self.right = nn.Embedding(11, 5)

    def forward(self, b: Tensor, a: Tensor) -> Tensor:
        return self.left(a).unsqueeze(1) + self.right(b)


def forms(model: nn.Module, folder: Path) -> list[Any]:
    """The live script, its archive, and the archive of it frozen."""
    scripted = torch.jit.script(model.eval())
    torch.jit.save(scripted, folder / "model.pt")
    torch.jit.save(torch.jit.freeze(scripted), folder / "frozen.pt")
    return [scripted, folder / "model.pt", folder / "frozen.pt"]


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (Waves, (1, 128, 12)),
        (Pictures, (1, 224, 224, 3)),
        (Grey, (1, 28, 28)),
        (Product, (1, 9)),
        (Late, (1, 7)),
        (lambda: nn.Sequential(nn.ConvTranspose2d(10, 3, 4)), (1, 10, 1, 1)),
        (lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 2)), (1, 16, 6)),
    ],
    ids=["transposed", "permuted", "unsqueezed", "product", "order", "generator", "norm"],
)
def test_the_input_is_what_the_first_weight_on_its_way_takes(build: Any, shape: Any, tmp_path: Path) -> None:
    for target in forms(build(), tmp_path):
        assert tg.analyze(target).capture.inputs[0].spec.shape == shape


def test_each_parameter_is_followed_on_its_own_way(tmp_path: Path) -> None:
    uses = first_uses(torch.jit.script(Pair()))
    assert {name: (use.op, use.weight.name) for name, use in uses.items()} == {
        "b": ("aten::embedding", "right.weight"),
        "a": ("aten::linear", "left.weight"),
    }
    for target in forms(Pair(), tmp_path):
        inputs = tg.analyze(target).capture.inputs
        assert [(i.name, i.spec.dtype) for i in inputs] == [("b", "int64"), ("a", "float32")]
        assert inputs[1].spec.shape == (1, 7)


def test_a_live_trace_is_given_the_sizes_it_was_made_with() -> None:
    traced = torch.jit.trace(nn.Sequential(nn.Conv2d(3, 4, 3)), torch.zeros(2, 3, 40, 30))
    found = tg.analyze(traced).capture.inputs[0]
    assert found.spec.shape == (2, 3, 40, 30)
    assert "the example that the trace was made with" in str(found.inferred)
    assert tg.analyze(traced, batch=5).capture.inputs[0].spec.shape[:2] == (5, 3)


def test_a_frozen_model_is_given_numbers_of_its_type(tmp_path: Path) -> None:
    frozen = torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Linear(4, 4)).double().eval()))
    torch.jit.save(frozen, tmp_path / "model.pt")
    assert tg.analyze(tmp_path / "model.pt").capture.inputs[0].spec.dtype == "float64"


def test_a_live_script_is_named_for_the_class_it_was_made_from() -> None:
    target = tg.analyze(torch.jit.script(Late())).capture.target
    assert (target.name, target.kind) == ("Late", "torchscript")


class Attends(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


def test_the_batch_stays_in_front_where_the_model_moves_it(tmp_path: Path) -> None:
    torch.jit.script(Attends(batch_first=True).eval()).save(tmp_path / "model.pt")
    (x,) = tg.analyze(tmp_path / "model.pt", advice=False).capture.inputs
    batch, length, width = x.spec.shape
    assert (batch, width) == (1, 16)
    assert length > 1


class TakesDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(4, 3), nn.Embedding(10, 3)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.layer(batch["x"]) + self.table(batch["ids"])


@pytest.mark.parametrize("is_scripted", [False, True])
def test_named_sizes_fill_the_dict_that_forward_takes(is_scripted: bool) -> None:
    model = torch.jit.script(TakesDict()) if is_scripted else TakesDict()
    sizes = parse_input("x=2x4"), parse_input("ids=2:int64")
    assert tg.analyze(model, specs=sizes, advice=False).totals.macs == 2 * 4 * 3
    with pytest.raises(tg.InputError, match="no parameter 'imge'"):
        tg.analyze(nn.Linear(4, 3), specs=(parse_input("imge=2x4"),))


class Places(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(300, 8), nn.Embedding(length, 8)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.words(ids) + self.positions(places)


@pytest.mark.parametrize("length", [77, 33])
def test_a_trace_is_given_as_many_words_as_it_has_positions(length: int, tmp_path: Path) -> None:
    class Traced(Places):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) + torch.zeros(1, length, 8)

    torch.jit.trace(Traced(length), torch.ones(1, length, dtype=torch.int64)).save(tmp_path / "model.pt")
    (ids,) = tg.analyze(tmp_path / "model.pt", advice=False).capture.inputs
    assert ids.spec.shape == (1, length)


class Standardised(nn.Module):
    """Its first weight is normalised before it is used; the last layer is registered first, and takes more channels."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.stem = nn.Conv2d(16, 8, 1), nn.Conv2d(3, 16, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.stem.weight
        flat = torch.nn.functional.batch_norm(weight.reshape(1, 16, -1), None, None, training=True, momentum=0.0)
        return self.last(torch.nn.functional.conv2d(x, flat.reshape_as(weight)))


def test_a_weight_that_is_normalised_first_still_tells_the_channels(tmp_path: Path) -> None:
    torch.jit.script(Standardised().eval()).save(tmp_path / "net.pt")
    (given,) = tg.analyze(tmp_path / "net.pt", advice=False, progress=False).capture.inputs
    assert given.spec.shape == (1, 3, 224, 224)


def test_an_input_that_reaches_no_weight_cannot_be_inferred(tmp_path: Path) -> None:
    class Adds(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    with pytest.raises(tg.InputError, match="no input could be inferred for Adds, whose forward takes x"):
        tg.analyze(torch.jit.script(Adds()))
