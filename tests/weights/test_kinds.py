from __future__ import annotations

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.checkpoint import Entry, Role
from torchgauge.facts import TensorSpec
from torchgauge.weights import KINDS, tensor_kinds


def entry(name: str, *shape: int, role: Role = Role.PARAMETER, logical: int | None = None) -> Entry:
    return Entry(name, TensorSpec(shape), "m.safetensors", 0, 4, role=role, logical_elements=logical)


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (8, 8), "attention"),
        ("model.layers.0.self_attn.q_proj.bias", (8,), "bias"),
        ("model.layers.0.mlp.down_proj.weight", (8, 8), "mlp"),
        ("model.layers.0.mlp.experts.3.down_proj.weight", (8, 8), "experts"),
        ("model.layers.0.mlp.gate.weight", (8, 8), "router"),
        ("model.layers.0.input_layernorm.weight", (8,), "norm"),
        ("model.embed_tokens.weight", (100, 8), "embedding"),
        ("lm_head.weight", (100, 8), "head"),
        ("h.3.attn.c_attn.weight", (8, 24), "attention"),
        ("h.3.attn.c_proj.weight", (8, 8), "attention"),
        ("h.3.mlp.c_proj.weight", (8, 8), "mlp"),
        ("wte.weight", (100, 8), "embedding"),
        ("blocks.0.attn.qkv.weight", (24, 8), "attention"),
        ("blocks.0.norm1.bias", (8,), "norm"),
        ("patch_embed.proj.weight", (8, 3, 4, 4), "convolution"),
        ("pos_embed", (1, 5, 8), "embedding"),
        ("cls_token", (1, 1, 8), "embedding"),
        ("layer1.0.conv1.weight", (8, 3, 3, 3), "convolution"),
        ("layer1.0.bn1.weight", (8,), "norm"),
        ("fc.weight", (10, 8), "head"),
        ("bert.encoder.layer.0.attention.self.query.weight", (8, 8), "attention"),
        ("bert.encoder.layer.0.attention.output.dense.weight", (8, 8), "attention"),
        ("bert.encoder.layer.0.output.dense.weight", (8, 8), "mlp"),
        ("bert.encoder.layer.0.intermediate.dense.weight", (8, 8), "mlp"),
        ("encoder.layers.encoder_layer_0.self_attention.in_proj_weight", (24, 8), "attention"),
        ("encoder.layers.encoder_layer_0.mlp.0.weight", (24, 8), "mlp"),
        ("lstm.weight_ih_l0", (32, 8), "recurrent"),
        ("lstm.bias_ih_l0", (32,), "recurrent"),
        ("classifier.1.weight", (10, 8), "head"),
        ("0.weight", (8, 8), "linear"),
        ("0.bias", (8,), "bias"),
        ("logit_scale", (), "other"),
    ],
)
def test_names_and_shapes_tell_the_kind(name: str, shape: tuple[int, ...], kind: str) -> None:
    assert tensor_kinds([entry(name, *shape)]) == {name: kind}
    assert kind in KINDS


def test_a_norm_is_known_by_its_vector_too() -> None:
    found = tensor_kinds([entry("layers.1.weight", 8), entry("layers.1.bias", 8), entry("layers.0.weight", 8, 8)])
    assert found == {"layers.1.weight": "norm", "layers.1.bias": "norm", "layers.0.weight": "linear"}


def test_roles_and_packings_come_first() -> None:
    listed = [
        entry("bn.running_mean", 8, role=Role.BUFFER),
        entry("optimizer.state.0.exp_avg", 8, 8, role=Role.OPTIMIZER),
        entry("ema.fc.weight", 8, 8, role=Role.OTHER),
        entry("attn.q.scales", 8, 8, role=Role.OTHER, logical=0),
    ]
    assert list(tensor_kinds(listed).values()) == ["buffer", "optimizer", "not the model", "quantization"]


def test_one_letter_is_attention_beside_the_other_projections_only() -> None:
    alone = tensor_kinds([entry("e.weight", 50, 16), entry("h.weight", 16, 16), entry("o.weight", 50, 16)])
    assert set(alone.values()) == {"linear"}
    together = [entry(f"block.0.{letter}.weight", 16, 16) for letter in "qkvo"]
    assert set(tensor_kinds(together).values()) == {"attention"}


def test_the_type_of_a_module_decides_before_its_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.e = nn.Embedding(50, 16)
            self.attention = nn.Conv1d(16, 16, 1)
            self.o = nn.Linear(16, 50)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.o(self.attention(self.e(ids).transpose(1, 2)).transpose(1, 2))
            return logits

    for model in (Named(), torch.jit.script(Named())):
        analysis = tg.analyze(model, weights=True, advice=False, inputs=torch.zeros(1, 4, dtype=torch.int64))
        kinds = analysis.to_dict()["weight_summary"]["by_kind"]
        found = {kind["kind"]: kind["tensors"] for kind in kinds}
        assert found == {"embedding": 1, "convolution": 1, "linear": 1, "bias": 2}
