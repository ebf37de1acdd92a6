"""moduleprofiler's formulas, written out by hand, and the real package's counts where it is right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import isnan, nan
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from torchgauge.compat import moduleprofiler as ours
from torchgauge.compat.moduleprofiler import ModuleProfiler, get_default_ops_map, own_count
from torchgauge.source import torchvision_importable

N, L, I, H = 2, 7, 4, 5  # noqa: E741 - the letters of the formulas
Case = tuple[nn.Module, tuple[int, ...], int]

# Where moduleprofiler 0.0.4 is right: layer, shape of its input, operations.
RIGHT: list[Case] = [
    (nn.Identity(), (N, 3), 0),
    (nn.Linear(8, 5), (3, 8), 3 * 5 * 2 * 8),
    (nn.Linear(8, 5, bias=False), (3, 8), 3 * 5 * (2 * 8 - 1)),
    (nn.Linear(8, 5), (N, 3, 8), N * 3 * 5 * 2 * 8),
    (nn.Conv1d(4, 6, 3, groups=2), (N, 4, 9), N * 6 * 7 * 4 * 2 * 3 // 2),
    (nn.Conv1d(4, 6, 3, groups=2, bias=False), (N, 4, 9), N * 6 * 7 * (2 * 3 * 4 - 2) // 2),
    (nn.Conv2d(4, 6, (3, 2)), (N, 4, 9, 8), N * 6 * 49 * 4 * 2 * 6),
    (nn.Conv2d(4, 6, 3, bias=False), (N, 4, 9, 8), N * 6 * 42 * (2 * 9 * 4 - 1)),
    # Nine inputs times three taps land on eleven outputs.
    (nn.ConvTranspose1d(4, 6, 3), (N, 4, 9), N * 24 * (11 * 4 + 27 - 11)),
    (nn.ConvTranspose1d(4, 6, 3, groups=2, bias=False), (N, 4, 9), N * 12 * (11 * 4 + 16) - N * 6 * 11),
    # A stride beyond the kernel leaves outputs that nothing lands on.
    (nn.ConvTranspose1d(4, 6, 2, stride=3), (1, 4, 5), 24 * (14 * 3 + 10 - 14)),
    (nn.ConvTranspose2d(4, 6, 3), (N, 4, 5, 6), N * 24 * (56 * 10 + 30 * 9 - 56)),
    (nn.GRU(I, H), (L, N, I), int(6 * L * N * H * (I + H + 3.5))),
    (nn.GRU(I, H, 3, bias=False), (L, N, I), int(6 * L * N * H * (I + 5 * H + 2.5 * 3))),
    (nn.GRU(I, H, 2, bidirectional=True, batch_first=True), (N, L, I), int(12 * L * N * H * (I + 4 * H + 7))),
    (nn.LSTM(I, H), (L, N, I), int(8 * L * N * H * (I + H + 3.875))),
    (nn.LSTM(I, H, 2, bias=False, bidirectional=True), (L, N, I), int(16 * L * N * H * (I + 4 * H + 2.875 * 2))),
    (nn.LSTM(I, H), (L, I), int(8 * L * H * (I + H + 3.875))),
    (nn.GRUCell(I, H), (N, I), int(6 * N * H * (I + H + 3.5))),
    (nn.BatchNorm1d(4), (3, 4), 4 * (7 * 3 + 4)),
    (nn.BatchNorm1d(4, affine=False), (3, 4, 6), 4 * (5 * 18 + 4)),
    (nn.BatchNorm2d(4), (3, 4, 5, 6), 4 * (7 * 90 + 4)),
    (nn.LayerNorm(6), (3, 4, 6), 12 * (7 * 6 + 4)),
    (nn.LayerNorm((4, 6), bias=False), (3, 4, 6), 3 * (6 * 24 + 4)),
    (nn.LayerNorm(6, elementwise_affine=False), (3, 4, 6), 12 * (5 * 6 + 4)),
    (nn.AvgPool1d(2), (3, 4, 6), 3 * 4 * 3 * 2),
    (nn.AvgPool2d((2, 3)), (3, 4, 6, 9), 3 * 4 * 9 * 6),
    (nn.MaxPool1d(2), (3, 4, 6), 3 * 4 * 3),
    (nn.MaxPool2d(2), (3, 4, 6, 8), 3 * 4 * 12),
    (nn.AdaptiveMaxPool1d(2), (3, 4, 6), 3 * 4 * 2),
    (nn.AdaptiveAvgPool2d(2), (3, 4, 6, 8), 3 * 4 * 4),
    (nn.ReLU(), (3, 4), 12),
    (nn.ELU(), (3, 4), 3 * 12),
    (nn.Sigmoid(), (3, 4), 3 * 12),
    (nn.LeakyReLU(), (3, 4), 4 * 12),
    (nn.PReLU(), (3, 4), 4 * 12),
    (nn.Softplus(), (3, 4), 5 * 12),
    (nn.SELU(), (3, 4), 7 * 12),
    (nn.Tanh(), (3, 4), 7 * 12),
    (nn.Softmax(-1), (3, 4, 5), 12 * (4 * 5 - 1)),
    (nn.Softmax(1), (3, 4, 5), 15 * (4 * 4 - 1)),
]
# Where it is wrong, raises, or has no entry.
MENDED: list[Case] = [
    (nn.Conv2d(4, 6, 3), (4, 9, 8), 6 * 42 * 4 * 2 * 9),
    (nn.ConvTranspose2d(4, 6, 3), (4, 5, 6), 24 * (56 * 10 + 30 * 9 - 56)),
    (nn.GRUCell(I, H, bias=False), (N, I), int(6 * N * H * (I + H + 2.5))),
    (nn.LSTMCell(I, H), (N, I), int(8 * N * H * (I + H + 3.875))),
    (nn.LSTMCell(I, H, bias=False), (I,), int(8 * H * (I + H + 2.875))),
    (nn.AvgPool2d(2), (3, 4, 6, 8), 3 * 4 * 12 * 4),
    (nn.MaxPool2d(2, return_indices=True), (3, 4, 6, 8), 3 * 4 * 12),
    (nn.AdaptiveMaxPool2d(2), (3, 4, 6, 8), 3 * 4 * 4),
    (nn.SiLU(), (3, 4), 4 * 12),
]


def ops(layer: nn.Module, shape: tuple[int, ...]) -> int | None:
    found: int | None = ModuleProfiler().estimate_ops(layer, torch.zeros(shape))["__root__"]["ops"]
    return found


@pytest.mark.parametrize(("layer", "shape", "expected"), [*RIGHT, *MENDED], ids=lambda value: str(value)[:50])
def test_a_layer_has_the_operations_of_its_formula(layer: nn.Module, shape: tuple[int, ...], expected: int) -> None:
    assert ops(layer, shape) == expected


@pytest.mark.parametrize(("layer", "shape", "expected"), RIGHT, ids=lambda value: str(value)[:50])
def test_the_real_package_counts_the_same(layer: nn.Module, shape: tuple[int, ...], expected: int) -> None:
    original = pytest.importorskip("moduleprofiler")
    found = original.ModuleProfiler().estimate_ops(copy.deepcopy(layer), torch.zeros(shape))
    assert found["__root__"]["ops"] == expected


@pytest.mark.parametrize("shape", [(3, 4), (3,), (2, 3, 4)])
def test_a_softmax_without_a_dimension_runs_along_torchs_choice(shape: tuple[int, ...]) -> None:
    length = {1: 3, 2: 4, 3: 2}[len(shape)]
    with pytest.warns(UserWarning, match="Implicit dimension"):
        found = ops(nn.Softmax(), shape)
    assert found == torch.zeros(shape).numel() // length * (4 * length - 1)


def test_packed_sequences_count_their_real_steps() -> None:
    packed = pack_sequence([torch.zeros(3, I), torch.zeros(2, I)])
    found = ModuleProfiler().estimate_ops(nn.GRU(I, H), packed)
    assert found["__root__"]["ops"] == int(6 * 5 * H * (I + H + 3.5))


def test_layers_without_a_formula_have_none_as_in_the_original() -> None:
    assert ops(nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4)) is None


def test_the_projects_own_count_can_be_the_default() -> None:
    custom = get_default_ops_map()
    custom["default"] = own_count
    model = nn.Sequential(nn.Conv3d(2, 3, 2, bias=False), nn.ReLU())
    found = ModuleProfiler(ops_fn_map=custom).estimate_ops(model, torch.zeros(1, 2, 4, 4, 4))
    convolution, activation = 27 * 3 * 2 * 16, 27 * 3
    assert [spec["ops"] for spec in found.values()] == [convolution + activation, convolution, activation]


class Encoder(nn.Module):
    """Attention, its own parameter, an activation without a formula, a layer run twice, one that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(6, 8))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, activation=nn.GELU()) for _ in range(2))
        self.pool = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh())
        self.unused = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.position
        for layer in self.layers:
            x = self.pool(layer(x))
        return x


def vision(name: str, **settings: Any) -> nn.Module:
    with torchvision_importable():
        return getattr(pytest.importorskip("torchvision.models"), name)(**settings)


IMAGE = (2, 3, 64, 64)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet18": (lambda: vision("resnet18"), IMAGE),
    "mobilenet": (lambda: vision("mobilenet_v3_small"), IMAGE),
    "shufflenet": (lambda: vision("shufflenet_v2_x0_5"), IMAGE),
    "squeezenet": (lambda: vision("squeezenet1_1"), IMAGE),
    "vit": (
        lambda: vision(
            "VisionTransformer", image_size=64, patch_size=16, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=32
        ),
        IMAGE,
    ),
    "encoder": (Encoder, (2, 6, 8)),
    "conv1d": (
        lambda: nn.Sequential(
            nn.Sequential(nn.Conv1d(4, 6, 3), nn.ELU()), nn.Sequential(nn.Linear(7, 3), nn.Softplus())
        ),
        (2, 4, 9),
    ),
    "cell": (lambda: nn.Sequential(nn.Identity(), nn.GRUCell(4, 5)), (2, 4)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("custom", [False, True], ids=["default map", "own map"])
def test_a_models_operations_are_those_of_the_real_package(name: str, custom: bool) -> None:
    original = pytest.importorskip("moduleprofiler")
    build, shape = MODELS[name]
    model, x = build(), torch.zeros(shape)
    found, expected = (
        package.ModuleProfiler(**_customised(package) if custom else {}).estimate_ops_df(copy.deepcopy(model), x)
        for package in (ours, original)
    )
    assert found["ops"].sum() == expected["ops"].sum()
    rows = [
        [(row.module, row.type, None if isnan(row.ops) else row.ops) for row in table.fillna(nan).itertuples()]
        for table in (found.infer_objects(), expected.infer_objects())
    ]
    assert rows[0] == rows[1]


def _customised(package: Any) -> dict[str, Any]:
    """Some layers with a formula of one's own, some excluded, one of them unknown to the map."""
    ops_map = package.get_default_ops_map()
    ops_map[nn.Dropout] = lambda module, input, output: 11
    ops_map[nn.BatchNorm2d] = lambda module, input, output: output.numel()
    ops_map["excluded"] = lambda module, input, output: -1
    return {"ops_fn_map": ops_map, "exclude_from_ops": [nn.Linear, nn.BatchNorm2d, nn.GELU, nn.Sequential]}


def test_the_map_has_every_layer_of_the_original() -> None:
    original = pytest.importorskip("moduleprofiler")
    assert set(original.get_default_ops_map()) <= set(get_default_ops_map())
