"""A shape error names the layer, and an input that fits if one is found."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.errors import ForwardError


class LeNet(nn.Module):
    def __init__(self, features: int = 400, channels: int = 1) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = nn.Linear(features, 120), nn.Linear(120, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        out: torch.Tensor = self.fc2(self.fc1(x.flatten(1)))
        return out


class Embedded(nn.Module):
    """Its input has no size that a layer could complain of."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.lstm = nn.LSTM(8, 4, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.lstm(self.embed(ids))[0]
        return out


def failure(model: nn.Module, *shape: int) -> str:
    with pytest.raises(ForwardError) as caught:
        tg.analyze(model, input_size=shape, advice=False)
    return str(caught.value)


@pytest.mark.parametrize(
    ("model", "shape", "sentence", "fits"),
    [
        (LeNet(256), (1, 1, 32, 32), "fc1 takes 256 features and got 400", "1×1×28×28"),
        (LeNet(400), (2, 1, 28, 28), "fc1 takes 400 features and got 256", "2×1×32×32"),
        (LeNet(400, 3), (1, 1, 32, 32), "conv1 takes 3 channels and got 1", "1×3×32×32"),
        (LeNet(400, 3), (1, 1, 28, 28), "conv1 takes 3 channels and got 1", "1×3×32×32"),
        (LeNet(400, 3), (1, 32, 32, 3), "conv1 takes 3 channels and got 32", "1×3×32×32"),
        (nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), (1, 1, 32, 32),
         "1 takes 784 features and got 1024", "1×1×28×28"),
        (nn.Sequential(nn.Linear(10, 4)), (2, 12), "0 takes 10 features and got 12", "2×10"),
        (nn.Sequential(nn.Linear(784, 4)), (2, 28, 28), "0 takes 784 features and got 28", "2×784"),
        (nn.Sequential(nn.LayerNorm(16)), (1, 5, 12), "0 takes 16 features and got 12", "1×5×16"),
        (nn.Sequential(nn.BatchNorm2d(3)), (1, 4, 8, 8), "0 takes 3 channels and got 4", "1×3×8×8"),
        (nn.Sequential(nn.GroupNorm(2, 6)), (1, 4, 8, 8), "0 takes 6 channels and got 4", "1×6×8×8"),
        (nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(392, 2)), (1, 2, 50),
         "2 takes 392 features and got 192", "1×2×100"),
        (nn.Sequential(nn.Conv3d(1, 2, 3), nn.Flatten(), nn.Linear(54, 2)), (1, 1, 8, 8, 8),
         "2 takes 54 features and got 432", "1×1×5×5×5"),
        (nn.GRU(8, 4), (1, 5, 6), "GRU takes 8 features and got 6", "1×5×8"),
    ],
)  # fmt: skip
def test_the_layer_is_named_with_what_it_takes_and_an_input_that_fits(
    model: nn.Module, shape: tuple[int, ...], sentence: str, fits: str
) -> None:
    message = failure(model, *shape)
    assert message.startswith(f"{sentence}: forward() ")
    assert message.endswith(f". An input of {fits} fits")
    size = tuple(int(part) for part in fits.split("×"))
    assert tg.analyze(model, input_size=size, advice=False).capture.has_code


@pytest.mark.parametrize(
    ("model", "shape", "sentence"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(5)), (1, 3, 8, 8), "1 takes 5 channels and got 4"),
        (nn.Sequential(nn.Linear(4, 5), nn.Linear(6, 2)), (1, 4), "1 takes 6 features and got 5"),
        (LeNet(401), (1, 1, 28, 28), "fc1 takes 401 features and got 256"),
    ],
)
def test_where_no_input_fits_none_is_named(model: nn.Module, shape: tuple[int, ...], sentence: str) -> None:
    message = failure(model, *shape)
    assert message.startswith(sentence)
    assert "fits" not in message


def test_a_layer_behind_integers_is_named_too() -> None:
    with pytest.raises(ForwardError, match="lstm takes 8 features and got 6") as caught:
        tg.analyze(Embedded(), inputs=torch.ones(1, 5, dtype=torch.int64), advice=False)
    assert caught.value.module == "lstm"


def test_an_error_unrelated_to_a_layers_size_keeps_its_message() -> None:
    class Adds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(7)

    assert failure(Adds(), 2, 3).startswith("forward() raised, given 2×3 float32: ")


def test_an_inferred_input_is_mended_and_said_to_be() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 51 * 51, 2))
    a = tg.analyze(model, advice=False)
    assert a.capture.inputs[0].spec.shape == (1, 3, 53, 53)
    assert "2 takes 10404 features" in (a.capture.inputs[0].inferred or "")


def test_the_model_is_left_unchanged() -> None:
    model = LeNet(256)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    failure(model, 1, 1, 32, 32)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training


class OnCuda(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.a(x)) + torch.zeros(1).cuda()


class Misspelt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.ReLU()

    def foward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.a(x))


class Holds(nn.Module):
    """A module without a forward inside one that has one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Misspelt()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.inner(x))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it is no mistake")
@pytest.mark.parametrize("shape", [(), (1, 3, 8, 8)])
def test_a_move_to_cuda_is_a_fault_of_the_code_with_its_line(shape: tuple[int, ...]) -> None:
    with pytest.raises(ForwardError) as caught:
        tg.analyze(OnCuda(), shape or None, advice=False)

    line = OnCuda.forward.__code__.co_firstlineno + 1
    assert str(caught.value).startswith(f"test_misfits.py:{line} (`return torch.as_tensor(self.a(x)) + ")
    assert "moves a tensor to a CUDA device in forward()" in str(caught.value)
    assert "--input" not in str(caught.value)


@pytest.mark.parametrize("model", [Misspelt(), Holds()], ids=["itself", "inside"])
@pytest.mark.parametrize("shape", [(), (1, 3, 8, 8)])
def test_a_module_without_a_forward_is_named_with_the_method_that_was_meant(
    model: nn.Module, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ForwardError) as caught:
        tg.analyze(model, shape or None, advice=False)

    assert str(caught.value).startswith("Misspelt (test_misfits.py:")
    assert str(caught.value).endswith("has no forward(); did you mean 'foward'?")


class FixedBatch(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows, self.a, self.fc = rows, nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Linear(2048, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        x = x.view(self.rows, -1)
        return torch.as_tensor(self.fc(x))


def test_a_size_that_fits_only_as_the_batch_is_folded_into_it_is_refused_with_the_line() -> None:
    with pytest.raises(ForwardError) as caught:
        tg.analyze(FixedBatch(64), advice=False)

    line = FixedBatch.forward.__code__.co_firstlineno + 2
    assert str(caught.value).startswith(f"test_misfits.py:{line} turns a batch of 1 into one of 64 (1×8×")
    assert "fc takes 2048 features, so no input size can be inferred" in str(caught.value)


def test_a_batch_that_the_code_fixes_runs_where_it_is_given() -> None:
    found = tg.analyze(FixedBatch(64), batch=64, advice=False)

    assert found.modules[0].output_shapes == [[64, 10]]


class Frames(nn.Module):
    """Frames are folded into the batch, for a batch of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.fc = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Linear(2304, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        return torch.as_tensor(self.fc(x.reshape(x.shape[0] * 2, -1)))


def test_a_batch_that_grows_with_its_samples_is_inferred() -> None:
    found = tg.analyze(Frames(), advice=False)

    assert found.capture.inputs[0].inferred is not None
    assert "found by trying" in found.capture.inputs[0].inferred
