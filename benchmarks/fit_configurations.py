"""The configurations that `fit` is judged by: a model, its inputs, and how it is run.

The held-out sets were written down, and predicted, before anybody saw their results. Each was looked at once; what it
showed was then corrected, so only the first look at a set is blind.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Configuration:
    """`options` are keywords of `tg.fit`; `size` is the order of its memory in GiB, to plan what runs side by side."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    held_out: int = 0  # the number of its set
    size: float = 8

    @property
    def mode(self) -> str:
        return str(self.options.get("mode", "inference"))


def of_timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(name, **options)
        return model

    return build


def of_transformers(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return made

    return build


def of_torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import torchvision

        made: nn.Module = attrgetter(name)(torchvision.models)(weights=None, **options)
        return made

    return build


def clip(batch: int, frames: int, side: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"args": (torch.randn(batch, 3, frames, side, side),), "kwargs": {}}


def image(batch: int, side: int = 224) -> Callable[[], dict[str, Any]]:
    return lambda: {"args": (torch.randn(batch, 3, side, side),), "kwargs": {}}


def pixels(batch: int, height: int, width: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"args": (), "kwargs": {"pixel_values": torch.randn(batch, 3, height, width)}}


def tokens(batch: int, length: int, labels: bool = False, **more: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        ids = torch.randint(1, 1000, (batch, length))
        return {"args": (), "kwargs": {"input_ids": ids, **({"labels": ids.clone()} if labels else {}), **more}}

    return make


def pairs(batch: int, source: int, target: int) -> Callable[[], dict[str, Any]]:
    """An encoder-decoder's: tokens to read, and the tokens to write as labels."""
    return lambda: {
        "args": (),
        "kwargs": {
            "input_ids": torch.randint(1, 1000, (batch, source)),
            "labels": torch.randint(1, 1000, (batch, target)),
        },
    }


def speech(batch: int, target: int) -> Callable[[], dict[str, Any]]:
    return lambda: {
        "args": (),
        "kwargs": {
            "input_features": torch.randn(batch, 80, 3000),
            "decoder_input_ids": torch.randint(1, 1000, (batch, target)),
        },
    }


def sequence(batch: int, length: int, width: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"args": (torch.randn(batch, length, width),), "kwargs": {}}


class DoubleConv(nn.Sequential):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__(
            nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
        )  # fmt: skip


class UNet(nn.Module):
    """Ronneberger's, with batch normalisation and transposed convolutions."""

    def __init__(self, width: int = 64, classes: int = 2, depth: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.first = DoubleConv(3, width)
        self.down = nn.ModuleList([DoubleConv(a, b) for a, b in pairwise(widths)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths)][::-1])
        self.merge = nn.ModuleList([DoubleConv(b, a) for a, b in pairwise(widths)][::-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skipped = []
        for block in self.down:
            skipped.append(x)
            x = block(nn.functional.max_pool2d(x, 2))
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skipped.pop(), up(x)], dim=1))
        out: Tensor = self.head(x)
        return out


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], width: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = kind(width, width, layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(x)[0])
        return out


class Tagger(nn.Module):
    """A label for each token, from a bidirectional LSTM."""

    def __init__(self, vocabulary: int, width: int, hidden: int, labels: int = 40) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, labels)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.embedding(ids))[0])
        return out


class ResidualBlock(nn.Module):
    def __init__(self, inner: int, outer: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.time = nn.Linear(time, outer)
        self.norm2, self.conv2 = nn.GroupNorm(32, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(nn.functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        out: Tensor = self.skip(x) + self.conv2(nn.functional.silu(self.norm2(y)))
        return out


class PixelAttention(nn.Module):
    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(32, width), heads
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, columns = x.shape
        parts = self.qkv(self.norm(x)).reshape(batch, 3, self.heads, width // self.heads, height * columns)
        query, key, value = parts.transpose(3, 4).unbind(1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = x + self.out(mixed.transpose(2, 3).reshape(batch, width, height, columns))
        return out


class Denoiser(nn.Module):
    """A diffusion model's U-Net: residual blocks with the time, attention at the two coarsest levels."""

    def __init__(self, width: int, factors: tuple[int, ...]) -> None:
        super().__init__()
        time = 4 * width
        self.width = width
        self.embed = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(4, width, 3, padding=1)
        widths = [width, *(width * factor for factor in factors)]
        self.down = nn.ModuleList([ResidualBlock(a, b, time) for a, b in pairwise(widths)])
        self.attention = nn.ModuleList([PixelAttention(widths[-2]), PixelAttention(widths[-1])])
        self.smaller = nn.ModuleList([nn.Conv2d(b, b, 3, 2, 1) for b in widths[1:-1]])
        self.up = nn.ModuleList([ResidualBlock(2 * b, a, time) for a, b in pairwise(widths)][::-1])
        self.head = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * torch.arange(self.width // 2, device=x.device, dtype=x.dtype)
        embedded = self.embed(torch.cat([angles.sin(), angles.cos()], dim=1))
        x, skipped = self.first(x), []
        for level, block in enumerate(self.down):
            x = block(x, embedded)
            if level >= len(self.down) - 2:
                x = self.attention[level - len(self.down) + 2](x)
            skipped.append(x)
            if level < len(self.smaller):
                x = self.smaller[level](x)
        for level, block in enumerate(self.up):
            if level:
                x = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, skipped.pop()], dim=1), embedded)
        out: Tensor = self.head(x)
        return out


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 6)


def encoder_of(width: int, heads: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
T5_BASE = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "decoder_start_token_id": 0}
QWEN2 = {
    "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip
LLAMA_1B = {
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 4096,
}  # fmt: skip
LLAMA_3B = {
    "vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
    "num_attention_heads": 24, "num_key_value_heads": 8, "tie_word_embeddings": True, "max_position_embeddings": 8192,
}  # fmt: skip
MISTRAL_SMALL = {
    "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 8, "sliding_window": None,
}  # fmt: skip
MIXTRAL_SMALL = {
    "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 8,
    "num_attention_heads": 16, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
QWEN2_MOE = {
    "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8,
    "num_attention_heads": 12, "num_key_value_heads": 4, "num_experts": 16, "num_experts_per_tok": 4,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 1024,
}  # fmt: skip
NEOX_410M = {
    "vocab_size": 50304, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "max_position_embeddings": 2048,
}  # fmt: skip
OPT_350M = {
    "vocab_size": 50272, "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "word_embed_proj_dim": 512, "do_layer_norm_before": False,
}  # fmt: skip
WHISPER_SMALL = {
    "d_model": 768, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 12,
    "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, "num_mel_bins": 80,
}  # fmt: skip

TRAIN = {"mode": "train", "optimizer": "adamw"}
BF16 = {"dtype": "bfloat16"}

CONFIGURATIONS = (
    Configuration("resnet50 train fp32 b32", of_timm("resnet50"), image(32), TRAIN, size=4),
    Configuration("resnet50 inference fp32 b64", of_timm("resnet50"), image(64), size=2),
    Configuration(
        "resnet50 train bf16 nhwc b64 sgd",
        of_timm("resnet50"),
        image(64),
        {**TRAIN, **BF16, "optimizer": "sgd", "channels_last": True},
        size=5,
    ),
    Configuration("convnext_base train bf16 b32", of_timm("convnext_base"), image(32), {**TRAIN, **BF16}, size=6),
    Configuration("swin_tiny train fp32 b32", of_timm("swin_tiny_patch4_window7_224"), image(32), TRAIN, size=5),
    Configuration("unet train fp32 b8", UNet, image(8, 256), TRAIN, size=6),
    Configuration("unet inference fp32 b8", UNet, image(8, 256), size=3),
    Configuration(
        "vit_base train amp-bf16 b32", of_timm("vit_base_patch16_224"), image(32), {**TRAIN, "amp": "bf16"}, size=6
    ),
    Configuration("vit_base inference fp32 b1", of_timm("vit_base_patch16_224"), image(1), size=1),
    Configuration(
        "bert-large train bf16 b16 s512",
        of_transformers("BertModel", "BertConfig", **BERT_LARGE),
        tokens(16, 512),
        {**TRAIN, **BF16},
        size=12,
    ),
    Configuration(
        "bert-base train amp-fp16 b8 s128",
        of_transformers("BertForMaskedLM", "BertConfig"),
        tokens(8, 128, True),
        {**TRAIN, "amp": "fp16"},
        size=4,
    ),
    Configuration(
        "t5-base train bf16 b8 s256+64",
        of_transformers("T5ForConditionalGeneration", "T5Config", **T5_BASE),
        pairs(8, 256, 64),
        {**TRAIN, **BF16},
        size=6,
    ),
    Configuration(
        "qwen2-1.5b train bf16 b2 s1024",
        of_transformers("Qwen2ForCausalLM", "Qwen2Config", **QWEN2),
        tokens(2, 1024, True),
        {**TRAIN, **BF16},
        size=28,
    ),
    Configuration(
        "gpt2 train fp32 b4 s512 fused",
        of_transformers("GPT2LMHeadModel", "GPT2Config"),
        tokens(4, 512, True),
        {**TRAIN, "fused": True},
        size=8,
    ),
    Configuration(
        "gpt2 train bf16 b4 s256 accumulate",
        of_transformers("GPT2LMHeadModel", "GPT2Config"),
        tokens(4, 256, True),
        {**TRAIN, **BF16, "accumulate": 4},
        size=4,
    ),
    Configuration(
        "llama-1b inference bf16 b1 s2048",
        of_transformers("LlamaForCausalLM", "LlamaConfig", **LLAMA_1B),
        tokens(1, 2048),
        BF16,
        size=5,
    ),
    Configuration(
        "llama-1b train bf16 b4 s1024 checkpoint",
        of_transformers("LlamaForCausalLM", "LlamaConfig", **LLAMA_1B),
        tokens(4, 1024, True, use_cache=False),
        {**TRAIN, **BF16, "checkpoint": "blocks"},
        size=20,
    ),
    Configuration(
        "lstm train fp32 b64 s256", lambda: Recurrent(nn.LSTM, 1024, 2), sequence(64, 256, 1024), TRAIN, size=3
    ),
    Configuration("lstm inference fp32 b64 s256", lambda: Recurrent(nn.LSTM, 1024, 2), sequence(64, 256, 1024), size=2),
    Configuration(
        "mixtral-small inference bf16 b4 s256",
        of_transformers("MixtralForCausalLM", "MixtralConfig", **MIXTRAL_SMALL),
        tokens(4, 256),
        BF16,
        size=3,
    ),
    Configuration(
        "efficientnet_b0 train fp32 b64 sgd",
        of_timm("efficientnet_b0"),
        image(64),
        {**TRAIN, "optimizer": "sgd"},
        size=8,
    ),
    Configuration("resnet18 train fp32 b2", of_timm("resnet18"), image(2), TRAIN, size=1),
    Configuration(
        "vit_base train fp32 b32 frozen",
        of_timm("vit_base_patch16_224"),
        image(32),
        {**TRAIN, "frozen": "blocks.[0-9].*"},
        size=4,
    ),
    Configuration(
        "yolos inference fp32 b4",
        of_transformers("YolosForObjectDetection", "YolosConfig"),
        pixels(4, 512, 864),
        size=3,
    ),
    Configuration(
        "mobilenetv3 train amp-bf16 nhwc b64",
        of_timm("mobilenetv3_large_100"),
        image(64),
        {**TRAIN, "amp": "bf16", "channels_last": True},
        size=4,
    ),
    # Held out.
    Configuration(
        "resnet101 train amp-bf16 nhwc b64 sgd",
        of_timm("resnet101"),
        image(64),
        {**TRAIN, "amp": "bf16", "channels_last": True, "optimizer": "sgd"},
        1,
        size=8,
    ),
    Configuration("densenet121 train fp32 b32", of_timm("densenet121"), image(32), TRAIN, 1, size=6),
    Configuration("regnety_016 inference bf16 b128", of_timm("regnety_016"), image(128), BF16, 1, size=2),
    Configuration(
        "efficientnet_b3 train amp-bf16 b16",
        of_timm("efficientnet_b3"),
        image(16, 300),
        {**TRAIN, "amp": "bf16"},
        1,
        5,
    ),
    Configuration("deit_small train fp32 b64", of_timm("deit_small_patch16_224"), image(64), TRAIN, 1, size=6),
    Configuration(
        "vit_large train bf16 b16 fused",
        of_timm("vit_large_patch16_224"),
        image(16),
        {**TRAIN, **BF16, "fused": True},
        1,
        size=6,
    ),
    Configuration("swin_base inference bf16 b32", of_timm("swin_base_patch4_window7_224"), image(32), BF16, 1, size=2),
    Configuration("mixer_b16 train fp32 b32", of_timm("mixer_b16_224"), image(32), TRAIN, 1, size=5),
    Configuration(
        "convnext_tiny inference fp32 nhwc b64",
        of_timm("convnext_tiny"),
        image(64),
        {"channels_last": True},
        1,
        size=2,
    ),
    Configuration(
        "roberta-base train fp32 b16 s256",
        of_transformers("RobertaForMaskedLM", "RobertaConfig"),
        tokens(16, 256, True),
        TRAIN,
        1,
        size=10,
    ),
    Configuration(
        "distilbert train amp-bf16 b32 s128 sgd",
        of_transformers("DistilBertForMaskedLM", "DistilBertConfig"),
        tokens(32, 128, True),
        {**TRAIN, "amp": "bf16", "optimizer": "sgd"},
        1,
        size=6,
    ),
    Configuration(
        "electra inference bf16 b64 s128",
        of_transformers(
            "ElectraModel", "ElectraConfig", hidden_size=768, num_attention_heads=12, intermediate_size=3072
        ),
        tokens(64, 128),
        BF16,
        1,
        size=2,
    ),
    Configuration(
        "bart-base train bf16 b8 s256+64",
        of_transformers(
            "BartForConditionalGeneration",
            "BartConfig",
            d_model=768,
            encoder_layers=6,
            decoder_layers=6,
            encoder_attention_heads=12,
            decoder_attention_heads=12,
            encoder_ffn_dim=3072,
            decoder_ffn_dim=3072,
        ),
        pairs(8, 256, 64),
        {**TRAIN, **BF16},
        1,
        size=4,
    ),
    Configuration(
        "llama-3b inference bf16 b1 s4096",
        of_transformers("LlamaForCausalLM", "LlamaConfig", **LLAMA_3B),
        tokens(1, 4096),
        BF16,
        1,
        size=10,
    ),
    Configuration(
        "mistral-small train bf16 b2 s2048 checkpoint",
        of_transformers("MistralForCausalLM", "MistralConfig", **MISTRAL_SMALL),
        tokens(2, 2048, True, use_cache=False),
        {**TRAIN, **BF16, "checkpoint": "blocks"},
        1,
        size=8,
    ),
    Configuration(
        "pythia-410m train fp32 b2 s1024 adam",
        of_transformers("GPTNeoXForCausalLM", "GPTNeoXConfig", **NEOX_410M),
        tokens(2, 1024, True),
        {**TRAIN, "optimizer": "adam"},
        1,
        size=16,
    ),
    Configuration(
        "opt-350m train amp-bf16 b2 s512 accumulate",
        of_transformers("OPTForCausalLM", "OPTConfig", **OPT_350M),
        tokens(2, 512, True),
        {**TRAIN, "amp": "bf16", "accumulate": 2},
        1,
        size=12,
    ),
    Configuration(
        "qwen2-moe train bf16 b2 s256",
        of_transformers("Qwen2MoeForCausalLM", "Qwen2MoeConfig", **QWEN2_MOE),
        tokens(2, 256, True),
        {**TRAIN, **BF16},
        1,
        size=6,
    ),
    Configuration(
        "gru train fp32 b32 s200", lambda: Recurrent(nn.GRU, 768, 3, 0.1), sequence(32, 200, 768), TRAIN, 1, size=2
    ),
    Configuration(
        "unet train bf16 nhwc b16", UNet, image(16, 256), {**TRAIN, **BF16, "channels_last": True}, 1, size=6
    ),
    Configuration(
        "rt-detr inference fp32 b8",
        of_transformers("RTDetrForObjectDetection", "RTDetrConfig"),
        pixels(8, 640, 640),
        {},
        1,
        size=6,
    ),
    Configuration(
        "whisper-small inference bf16 b4",
        of_transformers("WhisperForConditionalGeneration", "WhisperConfig", **WHISPER_SMALL),
        speech(4, 64),
        BF16,
        1,
        size=2,
    ),
    Configuration(
        "resnet50 train fp32 b128 frozen", of_timm("resnet50"), image(128), {**TRAIN, "frozen": "[!f]*"}, 1, size=8
    ),
    Configuration("encoder train fp32 b32 s128", encoder, sequence(32, 128, 512), TRAIN, 1, size=3),
    Configuration(
        "gpt2-medium inference fp32 b1 s1024",
        of_transformers("GPT2LMHeadModel", "GPT2Config", n_embd=1024, n_layer=24, n_head=16),
        tokens(1, 1024),
        {},
        1,
        size=3,
    ),
    # Held out, the second set.
    Configuration(
        "resnext50 train bf16 b48",
        of_timm("resnext50_32x4d"),
        image(48),
        {**TRAIN, **BF16},
        2,
        size=6,
    ),
    Configuration("regnetx_032 inference fp32 b96", of_timm("regnetx_032"), image(96), {}, 2, size=3),
    Configuration(
        "nfnet_l0 train amp-bf16 nhwc b24",
        of_timm("nfnet_l0"),
        image(24),
        {**TRAIN, "amp": "bf16", "channels_last": True},
        2,
        size=4,
    ),
    Configuration("coatnet_0 train fp32 b16", of_timm("coatnet_0_rw_224"), image(16), TRAIN, 2, size=4),
    Configuration("mobilevit_s inference bf16 b64", of_timm("mobilevit_s"), image(64, 256), BF16, 2, size=3),
    Configuration(
        "beit_base train bf16 b32 sgd",
        of_timm("beit_base_patch16_224"),
        image(32),
        {**TRAIN, **BF16, "optimizer": "sgd"},
        2,
        size=4,
    ),
    Configuration("vgg16 train fp32 b24 sgd", of_timm("vgg16"), image(24), {**TRAIN, "optimizer": "sgd"}, 2, size=6),
    Configuration("eva02_small inference fp32 b40", of_timm("eva02_small_patch14_224"), image(40), {}, 2, size=2),
    Configuration(
        "albert train fp32 b8 s384",
        of_transformers(
            "AlbertForMaskedLM", "AlbertConfig", hidden_size=768, num_attention_heads=12, intermediate_size=3072
        ),
        tokens(8, 384, True),
        TRAIN,
        2,
        size=6,
    ),
    Configuration(
        "deberta-v2 train bf16 b8 s256",
        of_transformers(
            "DebertaV2Model",
            "DebertaV2Config",
            hidden_size=768,
            num_hidden_layers=12,
            num_attention_heads=12,
            intermediate_size=3072,
            relative_attention=True,
            position_buckets=256,
            pos_att_type=["p2c", "c2p"],
            norm_rel_ebd="layer_norm",
            share_att_key=True,
        ),
        tokens(8, 256),
        {**TRAIN, **BF16},
        2,
        size=6,
    ),
    Configuration(
        "mbart train fp32 b4 s128+96 fused",
        of_transformers(
            "MBartForConditionalGeneration",
            "MBartConfig",
            d_model=512,
            encoder_layers=6,
            decoder_layers=6,
            encoder_attention_heads=8,
            decoder_attention_heads=8,
            encoder_ffn_dim=2048,
            decoder_ffn_dim=2048,
            vocab_size=50265,
        ),
        pairs(4, 128, 96),
        {**TRAIN, "fused": True},
        2,
        size=4,
    ),
    Configuration(
        "gemma2-small train bf16 b2 s768 checkpoint",
        of_transformers(
            "Gemma2ForCausalLM",
            "Gemma2Config",
            vocab_size=64000,
            hidden_size=1024,
            intermediate_size=4096,
            num_hidden_layers=16,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=128,
            sliding_window=512,
        ),
        tokens(2, 768, True, use_cache=False),
        {**TRAIN, **BF16, "checkpoint": "blocks"},
        2,
        size=6,
    ),
    Configuration(
        "phi3-small inference bf16 b8 s512",
        of_transformers(
            "Phi3ForCausalLM",
            "Phi3Config",
            vocab_size=32064,
            hidden_size=1536,
            intermediate_size=4096,
            num_hidden_layers=16,
            num_attention_heads=16,
            num_key_value_heads=16,
            pad_token_id=0,
        ),
        tokens(8, 512),
        BF16,
        2,
        size=4,
    ),
    Configuration(
        "falcon-small train amp-bf16 b2 s512",
        of_transformers(
            "FalconForCausalLM",
            "FalconConfig",
            vocab_size=65024,
            hidden_size=1024,
            num_hidden_layers=12,
            num_attention_heads=16,
            multi_query=True,
            parallel_attn=True,
            bias=False,
        ),
        tokens(2, 512, True),
        {**TRAIN, "amp": "bf16"},
        2,
        size=6,
    ),
    Configuration(
        "olmoe-small train bf16 b2 s256",
        of_transformers(
            "OlmoeForCausalLM",
            "OlmoeConfig",
            vocab_size=32000,
            hidden_size=768,
            intermediate_size=512,
            num_hidden_layers=8,
            num_attention_heads=12,
            num_key_value_heads=12,
            num_experts=32,
            num_experts_per_tok=4,
        ),
        tokens(2, 256, True),
        {**TRAIN, **BF16},
        2,
        size=6,
    ),
    Configuration(
        "segformer inference fp32 b6",
        of_transformers("SegformerForSemanticSegmentation", "SegformerConfig", num_labels=19),
        pixels(6, 512, 512),
        {},
        2,
        size=4,
    ),
    Configuration(
        "wav2vec2 train fp32 b4",
        of_transformers("Wav2Vec2Model", "Wav2Vec2Config", layerdrop=0.0, mask_time_prob=0.0),
        lambda: {"args": (), "kwargs": {"input_values": torch.randn(4, 48000)}},
        TRAIN,
        2,
        size=6,
    ),
    Configuration(
        "lstm-dropout train bf16 b48 s160",
        lambda: Recurrent(nn.LSTM, 640, 2, 0.25),
        sequence(48, 160, 640),
        {**TRAIN, **BF16},
        2,
        size=2,
    ),
    Configuration(
        "unet-wide inference bf16 nhwc b12",
        lambda: UNet(48, 5),
        image(12, 320),
        {**BF16, "channels_last": True},
        2,
        size=3,
    ),
    Configuration(
        "decoder-layer train fp32 b16 s192 frozen",
        lambda: nn.Sequential(nn.Linear(384, 768), encoder_of(768, 12), nn.Linear(768, 384)),
        sequence(16, 192, 384),
        {**TRAIN, "frozen": "1.layers.[0-2].*"},
        2,
        size=3,
    ),
    # Held out, the third set.
    Configuration("inception_v3 inference fp32 b40", of_timm("inception_v3"), image(40, 299), {}, 3, size=3),
    Configuration(
        "mnasnet train amp-fp16 b48 rmsprop",
        of_timm("mnasnet_100"),
        image(48),
        {**TRAIN, "amp": "fp16", "optimizer": "rmsprop"},
        3,
        size=4,
    ),
    Configuration("hrnet_w18 inference bf16 b20", of_timm("hrnet_w18"), image(20), BF16, 3, size=2),
    Configuration(
        "darknet53 train bf16 nhwc b40 sgd",
        of_timm("darknet53"),
        image(40, 256),
        {**TRAIN, **BF16, "channels_last": True, "optimizer": "sgd"},
        3,
        size=6,
    ),
    Configuration("efficientnetv2_s train fp32 b12", of_timm("efficientnetv2_rw_s"), image(12, 288), TRAIN, 3, size=6),
    Configuration("r3d_18 train bf16 b4", of_torchvision("video.r3d_18"), clip(4, 16, 112), {**TRAIN, **BF16}, 3),
    Configuration(
        "deeplabv3 train amp-bf16 b6 frozen",
        of_torchvision("segmentation.deeplabv3_resnet50", weights_backbone=None, num_classes=21),
        image(6, 320),
        {**TRAIN, "amp": "bf16", "frozen": "backbone.*"},
        3,
        size=6,
    ),
    Configuration("pvt_v2_b2 train fp32 b20", of_timm("pvt_v2_b2"), image(20), TRAIN, 3, size=6),
    Configuration(
        "maxvit_tiny train amp-bf16 b12", of_timm("maxvit_tiny_tf_224"), image(12), {**TRAIN, "amp": "bf16"}, 3, size=6
    ),
    Configuration("deit3_large inference bf16 b50", of_timm("deit3_large_patch16_224"), image(50), BF16, 3, size=3),
    Configuration(
        "vit_so400m train bf16 b8 adafactor",
        of_timm("vit_so400m_patch14_siglip_224"),
        image(8),
        {**TRAIN, **BF16, "optimizer": "adafactor"},
        3,
        size=8,
    ),
    Configuration(
        "xlm-roberta train amp-bf16 b6 s320 fused",
        of_transformers("XLMRobertaForSequenceClassification", "XLMRobertaConfig", vocab_size=250002),
        tokens(6, 320),
        {**TRAIN, "amp": "bf16", "fused": True},
        3,
        size=8,
    ),
    Configuration(
        "mpnet train fp32 b10 s200",
        of_transformers("MPNetForMaskedLM", "MPNetConfig"),
        tokens(10, 200, True),
        TRAIN,
        3,
        size=6,
    ),
    Configuration(
        "modernbert inference bf16 b12 s640",
        of_transformers("ModernBertForMaskedLM", "ModernBertConfig", attn_implementation="sdpa"),
        tokens(12, 640),
        BF16,
        3,
        size=3,
    ),
    Configuration(
        "bloom train bf16 b3 s400",
        of_transformers("BloomForCausalLM", "BloomConfig", vocab_size=80000, hidden_size=1024, n_layer=16, n_head=16),
        tokens(3, 400, True),
        {**TRAIN, **BF16},
        3,
        size=6,
    ),
    Configuration(
        "qwen3 train amp-bf16 b2 s600 checkpoint",
        of_transformers(
            "Qwen3ForCausalLM",
            "Qwen3Config",
            vocab_size=100000,
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=20,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            tie_word_embeddings=True,
        ),
        tokens(2, 600, True, use_cache=False),
        {**TRAIN, "amp": "bf16", "checkpoint": "blocks"},
        3,
        size=10,
    ),
    Configuration(
        "starcoder2 inference fp32 b2 s700",
        of_transformers(
            "Starcoder2ForCausalLM",
            "Starcoder2Config",
            hidden_size=1536,
            intermediate_size=6144,
            num_hidden_layers=14,
            num_attention_heads=12,
            num_key_value_heads=2,
        ),
        tokens(2, 700),
        {},
        3,
        size=4,
    ),
    Configuration(
        "gpt-neo train fp32 b2 s300 accumulate",
        of_transformers(
            "GPTNeoForCausalLM",
            "GPTNeoConfig",
            hidden_size=768,
            num_layers=12,
            num_heads=12,
            attention_types=[[["global", "local"], 6]],
        ),
        tokens(2, 300, True),
        {**TRAIN, "accumulate": 3},
        3,
        size=6,
    ),
    Configuration(
        "granite-moe train bf16 b2 s320",
        of_transformers(
            "GraniteMoeForCausalLM",
            "GraniteMoeConfig",
            hidden_size=896,
            intermediate_size=512,
            num_hidden_layers=10,
            num_attention_heads=14,
            num_key_value_heads=7,
            num_local_experts=24,
            num_experts_per_tok=6,
        ),
        tokens(2, 320, True),
        {**TRAIN, **BF16},
        3,
        size=6,
    ),
    Configuration(
        "mt5 train fp32 b6 s160+48 sgd",
        of_transformers(
            "MT5ForConditionalGeneration",
            "MT5Config",
            vocab_size=60000,
            d_model=512,
            d_kv=64,
            d_ff=1024,
            num_layers=8,
            num_heads=6,
            decoder_start_token_id=0,
        ),
        pairs(6, 160, 48),
        {**TRAIN, "optimizer": "sgd"},
        3,
        size=4,
    ),
    Configuration(
        "pegasus inference bf16 b8 s384+64",
        of_transformers(
            "PegasusForConditionalGeneration",
            "PegasusConfig",
            d_model=1024,
            encoder_layers=12,
            decoder_layers=12,
            decoder_start_token_id=0,
        ),
        pairs(8, 384, 64),
        BF16,
        3,
        size=4,
    ),
    Configuration(
        "detr train fp32 b3",
        of_transformers(
            "DetrForObjectDetection",
            "DetrConfig",
            use_timm_backbone=True,
            backbone="resnet50",
            use_pretrained_backbone=False,
        ),
        pixels(3, 480, 640),
        TRAIN,
        3,
        size=6,
    ),
    Configuration(
        "hubert train amp-bf16 b5",
        of_transformers("HubertModel", "HubertConfig", layerdrop=0.0, mask_time_prob=0.0),
        lambda: {"args": (), "kwargs": {"input_values": torch.randn(5, 32000)}},
        {**TRAIN, "amp": "bf16"},
        3,
        size=6,
    ),
    Configuration(
        "bidirectional-lstm train fp32 b40 s120",
        lambda: Tagger(30000, 384, 512),
        lambda: {"args": (torch.randint(1, 1000, (40, 120)),), "kwargs": {}},
        TRAIN,
        3,
        size=2,
    ),
    Configuration(
        "gru inference bf16 b96 s80", lambda: Recurrent(nn.GRU, 896, 4), sequence(96, 80, 896), BF16, 3, size=2
    ),
    Configuration(
        "diffusion-unet train amp-bf16 b10",
        lambda: Denoiser(128, (1, 2, 2, 4)),
        lambda: {"args": (torch.randn(10, 4, 64, 64), torch.rand(10)), "kwargs": {}},
        {**TRAIN, "amp": "bf16"},
        3,
        size=6,
    ),
    # Held out, the fourth set.
    Configuration("regnety_064 train bf16 b28", of_timm("regnety_064"), image(28), {**TRAIN, **BF16}, 4, size=4),
    Configuration(
        "resnetrs50 train amp-bf16 b36 sgd",
        of_timm("resnetrs50"),
        image(36, 192),
        {**TRAIN, "amp": "bf16", "optimizer": "sgd"},
        4,
        size=4,
    ),
    Configuration(
        "convnextv2_nano train fp32 nhwc b20",
        of_timm("convnextv2_nano"),
        image(20),
        {**TRAIN, "channels_last": True},
        4,
        size=4,
    ),
    Configuration("xception65 inference fp32 b18", of_timm("xception65"), image(18, 299), {}, 4, size=3),
    Configuration(
        "fcn_resnet101 inference bf16 b10",
        of_torchvision("segmentation.fcn_resnet101", weights_backbone=None, num_classes=21),
        image(10, 400),
        BF16,
        4,
        size=3,
    ),
    Configuration(
        "mobilenet_v2 train amp-fp16 b72 adam",
        of_torchvision("mobilenet_v2"),
        image(72, 160),
        {**TRAIN, "amp": "fp16", "optimizer": "adam"},
        4,
        size=4,
    ),
    Configuration(
        "vgg13_bn train bf16 nhwc b30",
        of_timm("vgg13_bn"),
        image(30),
        {**TRAIN, **BF16, "channels_last": True},
        4,
        size=6,
    ),
    Configuration("swinv2_tiny train fp32 b14", of_timm("swinv2_tiny_window8_256"), image(14, 256), TRAIN, 4, size=6),
    Configuration(
        "vit_base_patch32 train amp-bf16 b80 frozen",
        of_timm("vit_base_patch32_224"),
        image(80),
        {**TRAIN, "amp": "bf16", "frozen": "blocks.[0-7].*"},
        4,
        size=4,
    ),
    Configuration("davit_tiny inference bf16 b44", of_timm("davit_tiny"), image(44), BF16, 4, size=3),
    Configuration(
        "roformer train fp32 b6 s280",
        of_transformers("RoFormerForMaskedLM", "RoFormerConfig"),
        tokens(6, 280, True),
        TRAIN,
        4,
        size=6,
    ),
    Configuration(
        "layoutlm inference fp32 b10 s350",
        of_transformers("LayoutLMModel", "LayoutLMConfig"),
        tokens(10, 350),
        {},
        4,
        size=2,
    ),
    Configuration(
        "olmo2 train bf16 b2 s900 fused",
        of_transformers(
            "Olmo2ForCausalLM",
            "Olmo2Config",
            vocab_size=60000,
            hidden_size=1280,
            intermediate_size=3456,
            num_hidden_layers=14,
            num_attention_heads=10,
            num_key_value_heads=10,
        ),
        tokens(2, 900, True),
        {**TRAIN, **BF16, "fused": True},
        4,
        size=8,
    ),
    Configuration(
        "stablelm train amp-bf16 b3 s450 checkpoint",
        of_transformers(
            "StableLmForCausalLM",
            "StableLmConfig",
            vocab_size=50304,
            hidden_size=1152,
            intermediate_size=3072,
            num_hidden_layers=12,
            num_attention_heads=18,
            num_key_value_heads=6,
        ),
        tokens(3, 450, True, use_cache=False),
        {**TRAIN, "amp": "bf16", "checkpoint": "blocks"},
        4,
        size=8,
    ),
    Configuration(
        "gptj inference bf16 b2 s1100",
        of_transformers("GPTJForCausalLM", "GPTJConfig", vocab_size=50400, n_embd=1792, n_layer=12, n_head=14),
        tokens(2, 1100),
        BF16,
        4,
        size=4,
    ),
    Configuration(
        "phi train fp32 b2 s380 sgd",
        of_transformers(
            "PhiForCausalLM",
            "PhiConfig",
            hidden_size=960,
            intermediate_size=3840,
            num_hidden_layers=14,
            num_attention_heads=15,
        ),
        tokens(2, 380, True),
        {**TRAIN, "optimizer": "sgd"},
        4,
        size=6,
    ),
    Configuration(
        "qwen3-moe train bf16 b2 s288",
        of_transformers(
            "Qwen3MoeForCausalLM",
            "Qwen3MoeConfig",
            vocab_size=40000,
            hidden_size=768,
            moe_intermediate_size=384,
            intermediate_size=1536,
            num_hidden_layers=6,
            num_attention_heads=12,
            num_key_value_heads=4,
            head_dim=64,
            num_experts=48,
            num_experts_per_tok=8,
        ),
        tokens(2, 288, True),
        {**TRAIN, **BF16},
        4,
        size=6,
    ),
    Configuration(
        "marian train bf16 b12 s100+80",
        of_transformers(
            "MarianMTModel",
            "MarianConfig",
            vocab_size=58101,
            d_model=512,
            encoder_layers=6,
            decoder_layers=6,
            encoder_attention_heads=8,
            decoder_attention_heads=8,
            encoder_ffn_dim=2048,
            decoder_ffn_dim=2048,
            pad_token_id=58100,
            decoder_start_token_id=58100,
        ),
        pairs(12, 100, 80),
        {**TRAIN, **BF16},
        4,
        size=4,
    ),
    Configuration(
        "yolos train amp-bf16 b4",
        of_transformers("YolosForObjectDetection", "YolosConfig", image_size=[384, 640]),
        pixels(4, 384, 640),
        {**TRAIN, "amp": "bf16"},
        4,
        size=6,
    ),
    Configuration(
        "ast train fp32 b4 accumulate",
        of_transformers("ASTForAudioClassification", "ASTConfig", num_labels=50),
        lambda: {"args": (), "kwargs": {"input_values": torch.randn(4, 1024, 128)}},
        {**TRAIN, "accumulate": 2},
        4,
        size=6,
    ),
    Configuration(
        "unet-small train amp-bf16 b18",
        lambda: UNet(40, 3, 3),
        image(18, 224),
        {**TRAIN, "amp": "bf16"},
        4,
        size=4,
    ),
    Configuration(
        "gru train amp-bf16 b56 s140",
        lambda: Recurrent(nn.GRU, 704, 2, 0.3),
        sequence(56, 140, 704),
        {**TRAIN, "amp": "bf16"},
        4,
        size=2,
    ),
    Configuration(
        "rnn-tanh train fp32 b80 s90", lambda: Recurrent(nn.RNN, 576, 3), sequence(80, 90, 576), TRAIN, 4, size=2
    ),
    Configuration(
        "tagger inference fp16 b64 s100",
        lambda: Tagger(20000, 256, 320),
        lambda: {"args": (torch.randint(1, 1000, (64, 100)),), "kwargs": {}},
        {"dtype": "float16"},
        4,
        size=2,
    ),
    # Held out, the fifth set.
    Configuration("resnet34 train fp32 b50", of_timm("resnet34"), image(50), TRAIN, 5, size=4),
    Configuration("seresnext50 inference bf16 b70", of_timm("seresnext50_32x4d"), image(70), BF16, 5, size=2),
    Configuration(
        "efficientnet_b1 train amp-bf16 b22", of_timm("tf_efficientnet_b1"), image(22, 240), {**TRAIN, "amp": "bf16"}, 5
    ),
    Configuration(
        "convnext_small train amp-bf16 nhwc b20",
        of_timm("convnext_small"),
        image(20),
        {**TRAIN, "amp": "bf16", "channels_last": True},
        5,
        size=6,
    ),
    Configuration(
        "mobilenetv4 inference fp16 nhwc b100",
        of_timm("mobilenetv4_conv_medium"),
        image(100, 256),
        {"dtype": "float16", "channels_last": True},
        5,
        size=2,
    ),
    Configuration(
        "squeezenet train fp32 b90 sgd", of_torchvision("squeezenet1_1"), image(90), {**TRAIN, "optimizer": "sgd"}, 5
    ),
    Configuration(
        "shufflenet train amp-fp16 b120", of_torchvision("shufflenet_v2_x1_0"), image(120), {**TRAIN, "amp": "fp16"}, 5
    ),
    Configuration("focalnet train bf16 b18", of_timm("focalnet_tiny_srf"), image(18), {**TRAIN, **BF16}, 5, size=4),
    Configuration(
        "vit_base_384 train fp32 b8 checkpoint",
        of_timm("vit_base_patch16_384"),
        image(8, 384),
        {**TRAIN, "checkpoint": "blocks"},
        5,
        size=5,
    ),
    Configuration(
        "dinov2 inference fp32 b16", of_transformers("Dinov2Model", "Dinov2Config"), pixels(16, 252, 252), {}, 5, size=2
    ),
    Configuration(
        "segformer train amp-bf16 b6",
        of_transformers("SegformerForSemanticSegmentation", "SegformerConfig", num_labels=30),
        pixels(6, 384, 384),
        {**TRAIN, "amp": "bf16"},
        5,
        size=6,
    ),
    Configuration(
        "bert train fp32 b12 s384 sgd",
        of_transformers("BertForQuestionAnswering", "BertConfig"),
        tokens(12, 384),
        {**TRAIN, "optimizer": "sgd"},
        5,
        size=8,
    ),
    Configuration(
        "deberta inference bf16 b20 s256",
        of_transformers("DebertaV2ForSequenceClassification", "DebertaV2Config"),
        tokens(20, 256),
        BF16,
        5,
        size=4,
    ),
    Configuration(
        "gemma3 train bf16 b2 s640 fused",
        of_transformers(
            "Gemma3ForCausalLM",
            "Gemma3TextConfig",
            vocab_size=70000,
            hidden_size=896,
            intermediate_size=3584,
            num_hidden_layers=12,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=128,
            sliding_window=256,
        ),
        tokens(2, 640, True),
        {**TRAIN, **BF16, "fused": True},
        5,
        size=8,
    ),
    Configuration(
        "llama-small train amp-bf16 b4 s512 accumulate",
        of_transformers(
            "LlamaForCausalLM",
            "LlamaConfig",
            vocab_size=32000,
            hidden_size=768,
            intermediate_size=2048,
            num_hidden_layers=12,
            num_attention_heads=12,
            num_key_value_heads=12,
        ),
        tokens(4, 512, True),
        {**TRAIN, "amp": "bf16", "accumulate": 2},
        5,
        size=6,
    ),
    Configuration(
        "gpt-bigcode inference fp16 b4 s600",
        of_transformers(
            "GPTBigCodeForCausalLM", "GPTBigCodeConfig", n_embd=1536, n_layer=14, n_head=12, vocab_size=49280
        ),
        tokens(4, 600),
        {"dtype": "float16"},
        5,
        size=4,
    ),
    Configuration(
        "t5-gated inference bf16 b6 s300+40",
        of_transformers(
            "T5ForConditionalGeneration", "T5Config", **{**T5_BASE, "d_ff": 2048}, feed_forward_proj="gated-gelu"
        ),
        pairs(6, 300, 40),
        BF16,
        5,
        size=3,
    ),
    Configuration(
        "whisper-small train amp-bf16 b3",
        of_transformers("WhisperForConditionalGeneration", "WhisperConfig", **WHISPER_SMALL),
        speech(3, 96),
        {**TRAIN, "amp": "bf16"},
        5,
        size=8,
    ),
    Configuration(
        "mixtral train amp-bf16 b2 s200",
        of_transformers("MixtralForCausalLM", "MixtralConfig", **{**MIXTRAL_SMALL, "num_hidden_layers": 4}),
        tokens(2, 200, True),
        {**TRAIN, "amp": "bf16"},
        5,
        size=8,
    ),
    Configuration(
        "rt-detr train fp32 b2",
        of_transformers("RTDetrV2ForObjectDetection", "RTDetrV2Config"),
        pixels(2, 480, 480),
        TRAIN,
        5,
        size=6,
    ),
    Configuration("unet train fp32 nhwc b6", lambda: UNet(48, 4), image(6, 288), {**TRAIN, "channels_last": True}, 5),
    Configuration(
        "lstm train fp16 b72 s110",
        lambda: Recurrent(nn.LSTM, 832, 3),
        sequence(72, 110, 832),
        {**TRAIN, "dtype": "float16"},
        5,
        size=3,
    ),
    Configuration(
        "bidirectional-gru inference fp32 b24 s300",
        lambda: nn.Sequential(nn.Linear(80, 448), nn.GRU(448, 448, 3, batch_first=True, bidirectional=True)),
        sequence(24, 300, 80),
        {},
        5,
        size=2,
    ),
    Configuration(
        "encoder train bf16 b24 s160", lambda: encoder_of(640, 10), sequence(24, 160, 640), {**TRAIN, **BF16}, 5
    ),
)


_INITIALISERS = (
    "normal_", "uniform_", "trunc_normal_", "constant_", "ones_", "zeros_", "kaiming_uniform_", "kaiming_normal_",
    "xavier_uniform_", "xavier_normal_", "orthogonal_",
)  # fmt: skip


@contextmanager
def uninitialised() -> Iterator[None]:
    """Models made inside take no time to draw their weights: those are whatever is in memory."""
    saved = {name: getattr(nn.init, name) for name in _INITIALISERS}
    drawn = {name: getattr(Tensor, name) for name in ("normal_", "uniform_", "trunc_normal_") if hasattr(Tensor, name)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for name in saved:
                setattr(nn.init, name, lambda tensor, *_, **__: tensor)
            for name in drawn:
                setattr(Tensor, name, lambda self, *_, **__: self)
            yield
        finally:
            for name, function in saved.items():
                setattr(nn.init, name, function)
            for name, function in drawn.items():
                setattr(Tensor, name, function)


def build(configuration: Configuration) -> nn.Module:
    """The model on the CPU, its weights not initialised."""
    with uninitialised():
        model = configuration.build()
    return model.train(configuration.mode == "train")
