"""Fused and decomposed forms of the same layer, as torch really calls them, agree."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.cost.dispatch import Recorder


def test_the_encoder_fast_path_costs_what_the_layer_costs() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu").eval()
    x = torch.randn(3, 5, 16)
    with torch.no_grad(), Recorder() as fused:
        layer(x)
    with Recorder() as decomposed:
        layer(x)
    assert "aten::_transformer_encoder_layer_fwd" in fused.names
    assert "aten::_transformer_encoder_layer_fwd" not in decomposed.names
    tokens, scores = 15, 3 * 4 * 25
    assert fused.total.macs == decomposed.total.macs == tokens * (4 * 16 * 16 + 2 * 16 * 32) + scores * 2 * 4
    assert fused.total.flops == decomposed.total.flops


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_attention_has_the_same_macs_with_every_kernel(backend: SDPBackend) -> None:
    query, key = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 10, 8)
    with sdpa_kernel(backend), Recorder() as recorder:
        try:
            nn.functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            pytest.skip("this torch has no such kernel for grouped queries")
    assert recorder.total.macs == 2 * 4 * 6 * 10 * 16


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers_multiply_every_matrix_each_step(kind: type[nn.RNNBase], bias: bool) -> None:
    layer = kind(5, 7, 2, bidirectional=True, bias=bias)  # type: ignore[arg-type]
    with torch.no_grad(), Recorder() as recorder:
        layer(torch.randn(4, 3, 5))
    weights = sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() == 2)
    assert recorder.total.macs == 4 * 3 * weights


# torch warns about another vendor's GPU when the flag is set back.
@pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning")
def test_a_fused_lstm_costs_what_its_steps_cost() -> None:
    layer = nn.LSTM(5, 7)
    x = torch.randn(4, 3, 5)
    with torch.no_grad(), Recorder() as fused:
        layer(x)
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False), Recorder() as decomposed:
        layer(x)
    if "aten::mkldnn_rnn_layer" not in fused.names:
        pytest.skip("this torch has no fused LSTM for the CPU")
    assert "aten::mkldnn_rnn_layer" not in decomposed.names
    assert fused.total.macs == decomposed.total.macs
    assert fused.total.flops == decomposed.total.flops


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_an_optimiser_step_costs_the_same_fused_or_not(name: str) -> None:
    flops = set()
    for options in ({"fused": True}, {"foreach": True}, {"foreach": False}):
        model = nn.Linear(30, 40)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, weight_decay=0.1, **options)
        model(torch.randn(2, 30)).sum().backward()
        with Recorder() as recorder:
            optimizer.step()
        assert not recorder.uncounted
        # The step counters are one number per parameter tensor and handled outside of the fused op.
        flops.add(recorder.total.flops // 1240)
    assert len(flops) == 1


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.conv = nn.Conv1d(8, 16, 3, padding=1, groups=2)
        self.norm = nn.BatchNorm1d(16)
        self.up = nn.ConvTranspose1d(16, 8, 4, stride=2, padding=1)
        self.pool = nn.MaxPool1d(2)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.layer_norm, self.group_norm, self.rms_norm = nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.RMSNorm(8)
        self.gru = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Bilinear(8, 8, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids).transpose(1, 2)
        x = nn.functional.gelu(self.norm(self.conv(x)))
        x = self.group_norm(self.pool(self.up(x))).transpose(1, 2)
        x = self.layer_norm(x + self.attend(x, x, x, need_weights=False)[0])
        x = self.rms_norm(self.gru(x)[0]).mean(1)
        return self.head(x, nn.functional.silu(x))


def test_a_training_step_leaves_nothing_uncounted() -> None:
    model, ids = Everything(), torch.randint(0, 50, (2, 12))
    optimizer = torch.optim.Adam(model.parameters())
    with Recorder() as recorder:
        nn.functional.cross_entropy(model(ids), torch.tensor([1, 2])).backward()
        optimizer.step()
    assert recorder.uncounted == set()
    assert {found.category for _, found in recorder.ops} >= {
        "embedding", "convolution", "normalization", "pooling", "attention", "activation", "loss", "matmul",
    }  # fmt: skip
