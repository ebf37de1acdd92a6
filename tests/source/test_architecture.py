"""Families and hyperparameters from the state dicts of small models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import torchgauge as tg
from torchgauge.facts import ArchitectureRecord
from torchgauge.source import build_without_weights, find_timm, find_torchvision, state_shapes
from torchgauge.source.architecture import describe_shapes


def described(build: Callable[[], nn.Module]) -> ArchitectureRecord:
    return describe_shapes(state_shapes(build_without_weights(build)))


def from_config(name: str, **settings: Any) -> Callable[[], nn.Module]:
    model_class = getattr(transformers, name)
    return lambda: model_class(model_class.config_class(**settings))


GPT2 = from_config("GPT2LMHeadModel", n_embd=64, n_layer=3, n_head=4, vocab_size=500, n_positions=96)
BERT = from_config(
    "BertModel", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=300
)
LLAMA = from_config(
    "LlamaForCausalLM",
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=96,
    vocab_size=512,
)
MIXTRAL = from_config(
    "MixtralForCausalLM",
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=96,
    vocab_size=512,
    num_local_experts=4,
)
T5 = from_config(
    "T5ForConditionalGeneration", d_model=64, d_kv=16, d_ff=128, num_layers=2, num_decoder_layers=3, num_heads=4
)
MAMBA = from_config("MambaForCausalLM", hidden_size=64, num_hidden_layers=2, state_size=8, vocab_size=500)
CLIP = from_config("CLIPModel")
JAMBA = from_config(
    "JambaForCausalLM",
    hidden_size=64,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=96,
    vocab_size=512,
)


class Detector(nn.Module):
    """A convolutional backbone and a transformer, as DETR."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 32, 64, 64, 64)
        self.backbone = nn.Sequential(*(nn.Conv2d(a, b, 3) for a, b in pairwise(widths)))
        self.transformer = nn.Transformer(64, 4, 2, 2, 128, batch_first=True)
        self.query_embed = nn.Embedding(10, 64)


class Denoiser(nn.Module):
    """The skeleton of a diffusion U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.time_embedding = nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 64))
        self.down_blocks = nn.ModuleList(nn.Conv2d(4 * 2**i, 4 * 2 ** (i + 1), 3) for i in range(3))
        self.mid_attention = nn.MultiheadAttention(32, 2)
        self.up_blocks = nn.ModuleList(nn.Conv2d(32 // 2**i, 16 // 2**i, 3) for i in range(3))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 24)
        self.lstm = nn.LSTM(24, 32, num_layers=2, bidirectional=True)
        self.head = nn.Linear(64, 5)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 32), nn.Linear(32, 4)


class Mixture(nn.Module):
    """Experts without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(Perceptron() for _ in range(4))


@pytest.mark.parametrize(
    ("build", "family"),
    [
        (find_torchvision("resnet18").factory, "CNN"),
        (find_timm("test_convnext").factory, "CNN"),
        (find_timm("test_vit").factory, "vision transformer"),
        (find_torchvision("swin_t").factory, "vision transformer"),
        (find_timm("mixer_s32_224").factory, "MLP"),
        (GPT2, "decoder"),
        (LLAMA, "decoder"),
        (BERT, "encoder"),
        (T5, "encoder-decoder"),
        (MIXTRAL, "MoE"),
        (Mixture, "MoE"),
        (MAMBA, "state-space"),
        (JAMBA, "hybrid"),
        (CLIP, "dual encoder"),
        (Detector, "hybrid"),
        (Denoiser, "diffusion U-Net"),
        (Tagger, "RNN"),
        (Perceptron, "MLP"),
        (nn.ParameterList, None),
    ],
)
def test_the_family_follows_from_names_and_shapes(build: Callable[[], nn.Module], family: str | None) -> None:
    assert described(build).family == family


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (find_torchvision("resnet50").factory, {"depth": 16, "stages": [3, 4, 6, 3], "stem_kernel": 7}),
        (find_timm("efficientnet_b0").factory, {"stages": [1, 2, 2, 3, 3, 4, 1], "stem_width": 32, "classes": 1000}),
        (find_timm("vit_tiny_patch16_224").factory, {"width": 192, "patch_size": 16, "intermediate_size": 768}),
        (find_torchvision("swin_t").factory, {"stages": [2, 2, 6, 2], "heads": 24, "head_size": 32, "patch_size": 4}),
        (GPT2, {"depth": 3, "width": 64, "intermediate_size": 256, "vocabulary": 500, "positions": 96}),
        (BERT, {"depth": 2, "width": 64, "intermediate_size": 128, "vocabulary": 300, "positions": 512}),
        (LLAMA, {"depth": 3, "width": 64, "intermediate_size": 96, "vocabulary": 512, "heads": 2, "kv_heads": 1}),
        (MIXTRAL, {"depth": 2, "experts": 4, "intermediate_size": 96}),
        (T5, {"encoder_layers": 2, "decoder_layers": 3, "heads": 4, "head_size": 16, "intermediate_size": 128}),
        (MAMBA, {"depth": 2, "width": 64, "inner_size": 128, "state_size": 8}),
        (Tagger, {"depth": 2, "width": 32, "input_size": 24, "bidirectional": True, "vocabulary": 100, "classes": 5}),
    ],
)  # fmt: skip
def test_hyperparameters_follow_from_names_and_shapes(build: Callable[[], nn.Module], expected: dict[str, Any]) -> None:
    found = described(build).hyperparameters
    assert {name: found.get(name) for name in expected} == expected


def test_values_not_determined_by_shapes_are_marked_as_assumed() -> None:
    assert described(LLAMA).hyperparameters["assumed"] == ["heads", "head_size", "kv_heads"]
    assert "assumed" not in described(T5).hyperparameters


def test_head_norms_settle_the_size_of_heads() -> None:
    qwen = from_config("Qwen3ForCausalLM", hidden_size=64, num_hidden_layers=1, num_attention_heads=4,
                       num_key_value_heads=2, head_dim=24, intermediate_size=96, vocab_size=512)  # fmt: skip
    found = described(qwen).hyperparameters
    assert (found["heads"], found["kv_heads"], found["head_size"]) == (4, 2, 24)
    assert "assumed" not in found


def test_one_norm_of_all_heads_leaves_them_open() -> None:
    olmo = from_config("Olmo2ForCausalLM", hidden_size=64, num_hidden_layers=1, num_attention_heads=4,
                       num_key_value_heads=2, intermediate_size=96, vocab_size=512)  # fmt: skip
    assert described(olmo).hyperparameters["assumed"] == ["heads", "head_size", "kv_heads"]


def test_a_number_for_each_head_settles_them() -> None:
    sinks = from_config("GptOssForCausalLM", hidden_size=64, num_hidden_layers=1, num_attention_heads=8, head_dim=24,
                        num_key_value_heads=2, intermediate_size=96, vocab_size=512, num_local_experts=2)  # fmt: skip
    found = described(sinks).hyperparameters
    assert (found["heads"], found["head_size"], "assumed" in found) == (8, 24, False)


@pytest.mark.parametrize("rank", [None, 40])
def test_latent_attention_settles_all_sizes_of_its_heads(rank: int | None) -> None:
    deepseek = from_config("DeepseekV3ForCausalLM", hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                           num_key_value_heads=4, kv_lora_rank=24, q_lora_rank=rank, qk_nope_head_dim=16, v_head_dim=20,
                           qk_rope_head_dim=8, intermediate_size=96, vocab_size=512, n_routed_experts=8)  # fmt: skip
    found = described(deepseek).hyperparameters
    expected = {"heads": 4, "head_size": 24, "rope_size": 8, "nope_size": 16, "value_head_size": 20, "kv_rank": 24}
    assert {name: found.get(name) for name in expected} == expected
    assert (found.get("query_rank"), "assumed" in found) == (rank, False)


def test_states_by_group_show_their_product_only() -> None:
    mamba = from_config("Mamba2ForCausalLM", hidden_size=64, num_hidden_layers=2, num_heads=8, head_dim=16,
                        state_size=128, n_groups=2, vocab_size=500)  # fmt: skip
    found = described(mamba).hyperparameters
    expected = {"width": 64, "inner_size": 128, "state_heads": 8, "state_head_size": 16}
    assert {name: found[name] for name in expected} == expected
    assert (found["state_size"], found["state_groups"]) == (128, 2)
    assert found["assumed"] == ["state_size", "state_groups"]


def test_heads_are_those_of_the_layers_that_have_them() -> None:
    """The last layer of a hybrid may have none."""
    found = described(JAMBA).hyperparameters
    assert (found["heads"], found["kv_heads"], found["head_size"]) == (2, 1, 32)


@pytest.mark.parametrize(("layer", "kind"), [(nn.LSTM, "LSTM"), (nn.GRU, "GRU"), (nn.RNN, "RNN")])
def test_recurrent_layers_are_distinguished_by_their_gates(layer: type[nn.Module], kind: str) -> None:
    assert described(lambda: nn.ModuleDict({"rnn": layer(4, 8)})).layer_counts == {kind: 1}


def test_layers_are_counted_by_what_their_tensors_resemble() -> None:
    counts = described(find_torchvision("resnet18").factory).layer_counts
    assert counts == {"Conv2d": 20, "BatchNorm": 20, "Linear": 1}


def test_the_heads_of_a_model_that_ran_are_known() -> None:
    architecture = tg.analyze(build_without_weights(GPT2), batch=1, seq=8).architecture
    assert architecture.family == "decoder"
    assert architecture.hyperparameters["heads"] == 4
    assert "assumed" not in architecture.hyperparameters
    assert architecture.layer_counts["Conv1D"] == 12


def test_attention_without_weights_is_found_in_the_ops() -> None:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x)
            return nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True)

    assert tg.analyze(Mixer(), input_size=(1, 2, 4, 16)).architecture.family == "decoder"


def test_the_stem_is_found_where_a_file_has_sorted_the_names() -> None:
    shapes = {"blocks.0.conv_dw.weight": (16, 1, 3, 3), "blocks.0.conv_pw.weight": (8, 16, 1, 1),
              "conv_stem.weight": (16, 3, 3, 3)}  # fmt: skip
    found = describe_shapes(shapes).hyperparameters
    assert (found["image_channels"], found["stem_width"]) == (3, 16)


ATTENTION_ALONE = {"conv.weight": (16, 3, 3, 3), "attn.qkv.weight": (48, 16), "attn.proj.weight": (16, 16),
                   "head.weight": (10, 16)}  # fmt: skip


def test_attention_without_an_mlp_has_no_intermediate_size() -> None:
    found = describe_shapes(ATTENTION_ALONE).hyperparameters
    assert found["width"] == 16
    assert "intermediate_size" not in found


def test_an_mlp_outside_blocks_is_neither_stem_nor_head() -> None:
    mlp = {"mlp.fc1.weight": (64, 16), "mlp.fc2.weight": (16, 64), "decoder.weight": (20, 16)}
    assert describe_shapes(ATTENTION_ALONE | mlp).hyperparameters["intermediate_size"] == 64


def test_a_depthwise_convolution_in_a_block_is_not_an_mlp() -> None:
    block = {"conv.weight": (16, 1, 3), "attn.qkv.weight": (48, 16), "attn.proj.weight": (16, 16)}
    shapes = {f"blocks.{number}.{name}": shape for number in range(3) for name, shape in block.items()}
    assert "intermediate_size" not in describe_shapes(shapes).hyperparameters


@pytest.mark.parametrize(
    ("macs", "grade"),
    [
        (0, "low"),
        (10**9 - 1, "low"),
        (10**9, "medium"),
        (10**10 - 1, "medium"),
        (10**10, "high"),
        (10**11 - 1, "high"),
        (10**11, "very high"),
    ],
)
def test_complexity_is_graded_by_the_macs_of_one_sample(macs: int, grade: str) -> None:
    """A product of 1 × macs and macs × 1 per sample."""

    class Product(nn.Module):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return left @ right

    for batch in (1, 5):
        left, right = torch.empty(batch, 1, macs, device="meta"), torch.empty(batch, macs, 1, device="meta")
        found = tg.analyze(Product(), inputs=(left, right), advice=False)
        assert found.totals.macs == batch * macs
        assert found.architecture.complexity == grade


def test_complexity_of_the_forward_pass_is_saved_and_shown_next_to_the_family(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 62 * 62, 4000))
    found = tg.analyze(model, input_size=(1, 3, 64, 64), mode="train", advice=False)
    assert found.totals.macs > 10**9 > found.totals.macs / 3
    assert found.to_dict()["architecture"]["complexity"] == "low"
    assert "CNN, low complexity" in str(found)
    found.save(tmp_path / "run.json")
    found.save(tmp_path / "run.md")
    assert "low complexity" in (tmp_path / "run.md").read_text(encoding="utf-8")
    assert tg.load(tmp_path / "run.json").architecture == found.architecture


def test_a_model_that_was_not_run_has_no_complexity(tmp_path: Path) -> None:
    torch.save(nn.Linear(3, 4).state_dict(), tmp_path / "weights.pt")
    assert tg.analyze(tmp_path / "weights.pt").architecture.complexity is None
