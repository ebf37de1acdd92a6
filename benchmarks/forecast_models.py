"""The models that `forecast` is judged by, and those that its kernel tables are collected from.

`PROOF` was written down before any kernel was measured; no kernel table is collected from its models.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from fit_configurations import (
    BERT_LARGE,
    BF16,
    LLAMA_1B,
    OPT_350M,
    QWEN2,
    T5_BASE,
    WHISPER_SMALL,
    Configuration,
    Denoiser,
    Recurrent,
    ResidualBlock,
    Tagger,
    UNet,
    clip,
    image,
    of_timm,
    of_torchvision,
    of_transformers,
    pairs,
    pixels,
    sequence,
    speech,
    tokens,
)
from forecast_networks import (
    Basis,
    Captioner,
    Causal,
    Codebook,
    Conformer,
    Decoder,
    DeepUpscaler,
    Demucs,
    Detector,
    DynamicGraph,
    Factors,
    Messages,
    NestedUNet,
    PixelNetwork,
    Radiance,
    Restorer,
    Separator,
    Sessions,
    Spectral,
    Style,
    TextReader,
    VolumeEncoder,
    Warper,
    captions,
    graph,
    normal,
)
from torch import Tensor, nn

NHWC = {"channels_last": True}
FP16 = {"dtype": "float16"}
TRAIN = {"mode": "train", "optimizer": "adamw"}

BART_BASE = {
    "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12,
    "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
}  # fmt: skip
GPT2_MEDIUM = {"n_embd": 1024, "n_layer": 24, "n_head": 16}


def _timm(name: str, kind: str, batch: int, side: int = 224, options: dict[str, Any] | None = None) -> Configuration:
    return Configuration(f"{name} {kind} b{batch}", of_timm(name), image(batch, side), options or {})


def _hf(
    name: str, model: str, config: str, settings: dict[str, Any], inputs: Callable[[], dict[str, Any]], **options: Any
) -> Configuration:
    return Configuration(name, of_transformers(model, config, **settings), inputs, options)


class Generator(nn.Sequential):
    """A DCGAN's: noise to images of 64 x 64 by transposed convolutions."""

    def __init__(self, noise: int = 128, width: int = 64) -> None:
        widths = [noise, 8 * width, 4 * width, 2 * width, width]
        layers: list[nn.Module] = [nn.Unflatten(1, (noise, 1, 1))]
        for level, (inner, outer) in enumerate(pairwise(widths)):
            stride, padding = (2, 1) if level else (1, 0)
            layers += [nn.ConvTranspose2d(inner, outer, 4, stride, padding, bias=False), nn.BatchNorm2d(outer)]
            layers += [nn.ReLU(inplace=True)]
        super().__init__(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())


class Dilated(nn.Module):
    """Causal convolutions over time with gates, as WaveNet has them."""

    def __init__(self, channels: int = 64, width: int = 128, levels: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv1d(channels, width, 1)
        self.gates = nn.ModuleList([nn.Conv1d(width, 2 * width, 2, dilation=1 << level) for level in range(levels)])
        self.mixes = nn.ModuleList([nn.Conv1d(width, width, 1) for _ in range(levels)])
        self.head = nn.Conv1d(width, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.first(x), None
        for gate, mix in zip(self.gates, self.mixes, strict=True):
            value, weight = gate(nn.functional.pad(x, (gate.dilation[0], 0))).chunk(2, dim=1)
            y = mix(value.tanh() * weight.sigmoid())
            x, total = x + y, y if total is None else total + y
        out: Tensor = self.head(nn.functional.relu(total))
        return out


class Clicks(nn.Module):
    """A recommender: embeddings of 26 categories, their products with each other, dense layers."""

    def __init__(self, categories: int = 26, rows: int = 50000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, width, mode="sum") for _ in range(categories)])
        self.dense = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        places = torch.tril_indices(categories + 1, categories + 1, offset=-1)
        self.register_buffer("pairs", places[0] * (categories + 1) + places[1])
        inner = width + places.shape[1]
        self.top = nn.Sequential(nn.Linear(inner, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        first = self.dense(dense)
        rows = [table(ids[:, place]) for place, table in enumerate(self.tables)]
        every = torch.stack([first, *rows], dim=1)
        products = torch.bmm(every, every.transpose(1, 2)).flatten(1)[:, self.pairs]
        out: Tensor = self.top(torch.cat([first, products], dim=1))
        return out


class CrossAttention(nn.Module):
    """Queries of pixels; keys and values of the pixels themselves or of a text."""

    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(context, width, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        query, key, value = split(self.query(x)), split(self.key(context)), split(self.value(context))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class TextBlock(nn.Module):
    """A transformer's block over pixels that also attends to a text, with a gated linear unit."""

    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.enter, self.leave = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.own, self.text = CrossAttention(width, width, heads), CrossAttention(width, context, heads)
        self.gated, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        y = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        first = self.norms[0](y)
        y = y + self.own(first, first)
        y = y + self.text(self.norms[1](y), text)
        value, gate = self.gated(self.norms[2](y)).chunk(2, dim=-1)
        y = y + self.down(value * nn.functional.gelu(gate))
        out: Tensor = x + self.leave(y.transpose(1, 2).reshape(x.shape))
        return out


class LatentUNet(nn.Module):
    """The denoiser of latent diffusion: two residual blocks a level, attention to a text at all levels but the
    coarsest."""

    def __init__(self, width: int = 192, factors: tuple[int, ...] = (1, 2, 4, 4), context: int = 768) -> None:
        super().__init__()
        time, widths = 4 * width, [width * factor for factor in factors]
        self.width = width
        self.embed = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.down, self.smaller, self.up, self.larger = (nn.ModuleList() for _ in range(4))
        last = len(widths) - 1
        for number, (before, own) in enumerate(pairwise([width, *widths])):
            self.down.append(self._level(before, own, time, context, number < last))
            self.smaller.append(nn.Conv2d(own, own, 3, 2, 1) if number < last else nn.Identity())
        for number, (before, own) in enumerate(pairwise([widths[-1], *widths[::-1]])):
            self.up.append(self._level(before + own, own, time, context, number > 0))
            self.larger.append(nn.Conv2d(own, own, 3, padding=1) if number < last else nn.Identity())
        self.head = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))

    def _level(self, inner: int, outer: int, time: int, context: int, attends: bool) -> nn.ModuleDict:
        blocks = [ResidualBlock(inner, outer, time), ResidualBlock(outer, outer, time)]
        texts = [TextBlock(outer, context, 8)] if attends else []
        return nn.ModuleDict({"blocks": nn.ModuleList(blocks), "texts": nn.ModuleList(texts)})

    def _through(self, level: Any, x: Tensor, embedded: Tensor, text: Tensor) -> Tensor:
        for block in level["blocks"]:
            x = block(x, embedded)
        for block in level["texts"]:
            x = block(x, text)
        return x

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        angles = time[:, None] * torch.arange(self.width // 2, device=x.device, dtype=x.dtype)
        embedded = nn.functional.silu(self.embed(torch.cat([angles.sin(), angles.cos()], dim=1)))
        x, skipped = self.first(x), []
        for level, smaller in zip(self.down, self.smaller, strict=True):
            x = self._through(level, x, embedded, text)
            skipped.append(x)
            x = smaller(x)
        for number, (level, larger) in enumerate(zip(self.up, self.larger, strict=True)):
            x = self._through(level, torch.cat([x, skipped.pop()], dim=1), embedded, text)
            if number < len(self.up) - 1:
                x = larger(nn.functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        out: Tensor = self.head(x)
        return out


class ModulatedBlock(nn.Module):
    """A transformer's block whose norms are shifted and scaled by a condition, as DiT has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(condition)[:, None].chunk(6, dim=-1)
        y = self.norm1(x) * (1 + scale1) + shift1
        query, key, value = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + gate1 * self.out(mixed)
        out: Tensor = x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)
        return out


class DiffusionTransformer(nn.Module):
    """DiT-B/2 on latents of 32 x 32."""

    def __init__(self, width: int = 768, depth: int = 12, heads: int = 12, classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, width, 2, 2)
        self.places = nn.Parameter(torch.zeros(1, 256, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(classes, width)
        self.blocks = nn.ModuleList([ModulatedBlock(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6), nn.Linear(width, 32)

    def forward(self, x: Tensor, time: Tensor, label: Tensor) -> Tensor:
        angles = time[:, None] * torch.arange(128, device=x.device, dtype=x.dtype)
        condition = self.time(torch.cat([angles.sin(), angles.cos()], dim=1)) + self.classes(label)
        y = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            y = block(y, condition)
        out: Tensor = self.head(self.norm(y)).unflatten(1, (16, 16)).unflatten(-1, (2, 2, 8))
        return out.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)


class Ranker(nn.Module):
    """A DeepFM: one table of embeddings for 39 fields, their products in pairs, dense layers."""

    def __init__(self, rows: int = 1_000_000, fields: int = 39, width: int = 16) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(rows, width), nn.Embedding(rows, 1)
        layers: list[nn.Module] = []
        for inner, outer in pairwise([fields * width, 400, 400, 400]):
            layers += [nn.Linear(inner, outer), nn.BatchNorm1d(outer), nn.ReLU(), nn.Dropout(0.2)]
        self.deep = nn.Sequential(*layers, nn.Linear(400, 1))

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.table(ids)
        pairs = 0.5 * (rows.sum(1).square() - rows.square().sum(1)).sum(1, keepdim=True)
        out: Tensor = self.linear(ids).sum(1) + pairs + self.deep(rows.flatten(1))
        return out.sigmoid()


class Series(nn.Module):
    """Forecasts of a time series by an LSTM."""

    def __init__(self, features: int = 24, units: int = 320, layers: int = 2, ahead: int = 48) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, units, layers, batch_first=True, dropout=0.1)
        self.head = nn.Sequential(nn.Linear(units, units), nn.ReLU(), nn.Linear(units, ahead))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x)[0][:, -1])
        return out


class Upscaler(nn.Module):
    """EDSR's baseline: residual blocks without norms, then pixels from channels."""

    def __init__(self, width: int = 64, blocks: int = 16, factor: int = 2) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList([
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True),
                          nn.Conv2d(width, width, 3, padding=1))
            for _ in range(blocks)
        ])  # fmt: skip
        self.last = nn.Conv2d(width, width, 3, padding=1)
        self.larger = nn.Sequential(nn.Conv2d(width, factor**2 * width, 3, padding=1), nn.PixelShuffle(factor))
        self.head = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = x
        for block in self.blocks:
            y = y + block(y)
        out: Tensor = self.head(self.larger(x + self.last(y)))
        return out


class SpeechRecognizer(nn.Module):
    """DeepSpeech 2 in small: convolutions over a spectrogram, bidirectional GRUs, a letter for each frame."""

    def __init__(self, bands: int = 80, units: int = 512, layers: int = 3, letters: int = 29) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, 32, (11, 11), (2, 2), (5, 5), bias=False), nn.BatchNorm2d(32), nn.Hardtanh(0.0, 20.0),
            nn.Conv2d(32, 32, (11, 11), (2, 1), (5, 5), bias=False), nn.BatchNorm2d(32), nn.Hardtanh(0.0, 20.0),
        )  # fmt: skip
        self.rnn = nn.GRU(32 * bands // 4, units, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * units, letters)

    def forward(self, spectrogram: Tensor) -> Tensor:
        x = self.convs(spectrogram).flatten(1, 2).transpose(1, 2)
        out: Tensor = self.head(self.rnn(x)[0]).log_softmax(-1)
        return out


class VolumeUNet(nn.Module):
    """A 3-D U-Net with instance norms, as for medical volumes."""

    def __init__(self, width: int = 24, levels: int = 4, classes: int = 3) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList([self._block(inner, outer) for inner, outer in pairwise([1, *widths])])
        self.up = nn.ModuleList([self._block(2 * own, own) for own in widths[-2::-1]])
        self.larger = nn.ModuleList([nn.ConvTranspose3d(2 * own, own, 2, 2) for own in widths[-2::-1]])
        self.head = nn.Conv3d(width, classes, 1)

    @staticmethod
    def _block(inner: int, outer: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for before in (inner, outer):
            layers += [nn.Conv3d(before, outer, 3, padding=1), nn.InstanceNorm3d(outer, affine=True)]
            layers += [nn.LeakyReLU(0.01, inplace=True)]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for number, block in enumerate(self.down):
            x = block(nn.functional.max_pool3d(x, 2) if number else x)
            skipped.append(x)
        skipped.pop()
        for larger, block in zip(self.larger, self.up, strict=True):
            x = block(torch.cat([larger(x), skipped.pop()], dim=1))
        out: Tensor = self.head(x)
        return out


class PointCloud(nn.Module):
    """PointNet: the same small network for every point, the maximum over all of them, dense layers."""

    def __init__(self, classes: int = 40) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner, outer in pairwise([3, 64, 64, 128, 1024]):
            layers += [nn.Conv1d(inner, outer, 1), nn.BatchNorm1d(outer), nn.ReLU(inplace=True)]
        self.points = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 256), nn.BatchNorm1d(256), nn.ReLU(),
            nn.Linear(256, classes),
        )  # fmt: skip

    def forward(self, points: Tensor) -> Tensor:
        out: Tensor = self.head(self.points(points).amax(-1))
        return out


class Vocoder(nn.Module):
    """HiFi-GAN's generator in small: transposed convolutions over time, dilated residual blocks of three sizes."""

    def __init__(self, bands: int = 80, width: int = 256, rates: tuple[int, ...] = (8, 8, 4)) -> None:
        super().__init__()
        self.first = nn.Conv1d(bands, width, 7, padding=3)
        widths = [width >> level for level in range(len(rates) + 1)]
        self.larger = nn.ModuleList([
            nn.ConvTranspose1d(inner, outer, 2 * rate, rate, rate // 2)
            for rate, (inner, outer) in zip(rates, pairwise(widths), strict=True)
        ])  # fmt: skip
        self.blocks = nn.ModuleList([
            nn.ModuleList([
                nn.Conv1d(own, own, size, padding=dilation * (size - 1) // 2, dilation=dilation)
                for size in (3, 7, 11) for dilation in (1, 3, 5)
            ])
            for own in widths[1:]
        ])  # fmt: skip
        self.last = nn.Conv1d(widths[-1], 1, 7, padding=3)

    def forward(self, mels: Tensor) -> Tensor:
        x = self.first(mels)
        for larger, convs in zip(self.larger, self.blocks, strict=True):
            x = larger(nn.functional.leaky_relu(x, 0.1))
            for conv in convs:
                x = x + conv(nn.functional.leaky_relu(x, 0.1))
        out: Tensor = self.last(nn.functional.leaky_relu(x, 0.1)).tanh()
        return out


def latents(batch: int, side: int, length: int = 77, width: int = 768) -> Callable[[], dict[str, Any]]:
    return lambda: {
        "args": (torch.randn(batch, 4, side, side), torch.rand(batch), torch.randn(batch, length, width)),
        "kwargs": {},
    }


def labelled_latents(batch: int, side: int) -> Callable[[], dict[str, Any]]:
    return lambda: {
        "args": (torch.randn(batch, 4, side, side), torch.rand(batch), torch.randint(0, 1000, (batch,))),
        "kwargs": {},
    }


def residues(batch: int, length: int) -> Callable[[], dict[str, Any]]:
    """Of a protein."""
    return lambda: {"args": (), "kwargs": {"input_ids": torch.randint(4, 24, (batch, length))}}


def fields(batch: int, count: int = 39) -> Callable[[], dict[str, Any]]:
    return lambda: {"args": (torch.randint(0, 1_000_000, (batch, count)),), "kwargs": {}}


def clicks(batch: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"args": (torch.randn(batch, 13), torch.randint(0, 50000, (batch, 26, 1))), "kwargs": {}}


def noise(batch: int, side: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"args": (torch.randn(batch, 4, side, side), torch.rand(batch)), "kwargs": {}}


def words(batch: int, length: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"args": (torch.randint(0, 20000, (batch, length)),), "kwargs": {}}


def waves(batch: int, samples: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"args": (), "kwargs": {"input_values": torch.randn(batch, samples)}}


PROOF = (
    _timm("resnet18", "fp32", 1),
    _timm("resnet50", "fp32", 64),
    _timm("resnet152", "bf16 nhwc", 32, options=BF16 | NHWC),
    _timm("res2net50_26w_4s", "fp32", 16),
    _timm("densenet169", "fp32", 16),
    _timm("vgg16", "fp32", 16),
    _timm("inception_v4", "fp32", 8, 299),
    _timm("dpn68", "bf16", 32, options=BF16),
    _timm("regnety_032", "bf16", 64, options=BF16),
    _timm("efficientnet_b1", "fp32", 32, 240),
    _timm("efficientnetv2_rw_s", "bf16 nhwc", 32, 288, BF16 | NHWC),
    _timm("mobilenetv3_large_100", "fp32", 64),
    _timm("ghostnet_100", "fp32", 64),
    _timm("convnext_small", "bf16", 32, options=BF16),
    _timm("convnextv2_tiny", "fp32 nhwc", 16, options=NHWC),
    _timm("poolformer_s24", "fp32", 16),
    _timm("vit_base_patch16_224", "bf16", 64, options=BF16),
    _timm("vit_small_patch16_224", "fp32", 32),
    _timm("beit_base_patch16_224", "bf16", 16, options=BF16),
    _timm("swin_small_patch4_window7_224", "fp32", 16),
    _timm("mixer_b16_224", "fp32", 32),
    _timm("xcit_small_12_p16_224", "bf16", 16, options=BF16),
    _timm("coatnet_0_rw_224", "bf16", 16, options=BF16),
    _timm("maxvit_tiny_tf_224", "fp16", 8, options=FP16),
    _hf("bert-large bf16 b16 s512", "BertModel", "BertConfig", BERT_LARGE, tokens(16, 512), **BF16),
    _hf("roberta-base fp32 b8 s128", "RobertaForMaskedLM", "RobertaConfig", {}, tokens(8, 128)),
    _hf("distilbert fp16 b32 s128", "DistilBertForMaskedLM", "DistilBertConfig", {}, tokens(32, 128), **FP16),
    _hf("gpt2-medium bf16 b4 s512", "GPT2LMHeadModel", "GPT2Config", GPT2_MEDIUM, tokens(4, 512), **BF16),
    _hf("llama-1b bf16 b1 s2048", "LlamaForCausalLM", "LlamaConfig", LLAMA_1B, tokens(1, 2048), **BF16),
    _hf("qwen2-1.5b bf16 b2 s512", "Qwen2ForCausalLM", "Qwen2Config", QWEN2, tokens(2, 512), **BF16),
    _hf("opt-350m fp32 b2 s256", "OPTForCausalLM", "OPTConfig", OPT_350M, tokens(2, 256)),
    _hf("t5-base bf16 b8 s256+64", "T5ForConditionalGeneration", "T5Config", T5_BASE, pairs(8, 256, 64), **BF16),
    _hf("bart-base fp32 b8 s256+64", "BartForConditionalGeneration", "BartConfig", BART_BASE, pairs(8, 256, 64)),
    _hf("whisper-small bf16 b4", "WhisperForConditionalGeneration", "WhisperConfig", WHISPER_SMALL, speech(4, 64),
        **BF16),
    Configuration("unet fp32 b8", UNet, image(8, 256)),
    Configuration("lstm fp32 b64 s256", lambda: Recurrent(nn.LSTM, 1024, 2), sequence(64, 256, 1024)),
)  # fmt: skip

PROOF_TRAINING = (
    _timm("resnet50", "train fp32", 32, options=TRAIN),
    _timm("resnet152", "train bf16 nhwc", 32, options=TRAIN | BF16 | NHWC),
    _timm("densenet169", "train fp32", 16, options=TRAIN),
    _timm("efficientnet_b1", "train fp32", 32, 240, TRAIN),
    _timm("regnety_032", "train bf16", 32, options=TRAIN | BF16),
    _timm("convnext_small", "train bf16", 32, options=TRAIN | BF16),
    _timm("vit_base_patch16_224", "train bf16", 64, options=TRAIN | BF16),
    _timm("swin_small_patch4_window7_224", "train fp32", 16, options=TRAIN),
    _timm("mixer_b16_224", "train fp32", 32, options=TRAIN),
    _hf("bert-large train bf16 b16 s512", "BertModel", "BertConfig", BERT_LARGE, tokens(16, 512), **TRAIN, **BF16),
    _hf("gpt2-medium train bf16 b4 s512", "GPT2LMHeadModel", "GPT2Config", GPT2_MEDIUM, tokens(4, 512, True),
        **TRAIN, **BF16),
    _hf("qwen2-1.5b train bf16 b2 s512", "Qwen2ForCausalLM", "Qwen2Config", QWEN2, tokens(2, 512, True), **TRAIN,
        **BF16),
    Configuration("unet train fp32 b8", UNet, image(8, 256), TRAIN),
    Configuration("lstm train fp32 b64 s256", lambda: Recurrent(nn.LSTM, 1024, 2), sequence(64, 256, 1024), TRAIN),
)  # fmt: skip

# Written down after the first set was looked at and before any of these was measured: it judges what was changed since.
MISTRAL = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8, "num_attention_heads": 16,
           "num_key_value_heads": 4, "vocab_size": 32000}  # fmt: skip
NEOX = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12, "num_attention_heads": 16}
SECOND_PROOF = (
    _timm("resnext101_32x4d", "fp32", 16),
    _timm("res2next50", "bf16", 32, options=BF16),
    _timm("regnetx_064", "fp32", 32),
    _timm("hrnet_w32", "fp32", 8),
    _timm("nf_regnet_b1", "bf16 nhwc", 32, 256, BF16 | NHWC),
    _timm("tf_efficientnet_b2", "fp32", 16, 260),
    _timm("mobilenetv2_120d", "fp16", 64, options=FP16),
    _timm("convnext_large", "bf16", 16, options=BF16),
    _timm("deit3_base_patch16_224", "bf16", 64, options=BF16),
    _timm("swin_large_patch4_window7_224", "bf16", 8, options=BF16),
    _timm("mvitv2_tiny", "bf16", 16, options=BF16),
    _timm("gmixer_24_224", "fp32", 16),
    _hf("electra-base bf16 b16 s256", "ElectraModel", "ElectraConfig", {"embedding_size": 768, "hidden_size": 768,
        "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}, tokens(16, 256), **BF16),
    _hf("albert-base fp32 b8 s256", "AlbertModel", "AlbertConfig", {"hidden_size": 768, "num_attention_heads": 12,
        "intermediate_size": 3072}, tokens(8, 256)),
    _hf("gpt-neox bf16 b2 s512", "GPTNeoXForCausalLM", "GPTNeoXConfig", NEOX, tokens(2, 512), **BF16),
    _hf("mistral bf16 b1 s1024", "MistralForCausalLM", "MistralConfig", MISTRAL, tokens(1, 1024), **BF16),
    Configuration("gru bf16 b32 s128", lambda: Recurrent(nn.GRU, 768, 2), sequence(32, 128, 768), BF16),
    Configuration("lstm fp32 b16 s100", lambda: Recurrent(nn.LSTM, 640, 3), sequence(16, 100, 640)),
)  # fmt: skip
SECOND_PROOF_TRAINING = (
    _timm("regnetx_064", "train fp32", 16, options=TRAIN),
    _timm("deit3_base_patch16_224", "train bf16", 32, options=TRAIN | BF16),
    _timm("convnext_large", "train bf16", 8, options=TRAIN | BF16),
    _hf("gpt-neox train bf16 b2 s512", "GPTNeoXForCausalLM", "GPTNeoXConfig", NEOX, tokens(2, 512, True), **TRAIN,
        **BF16),
    _hf("mistral train bf16 b1 s1024", "MistralForCausalLM", "MistralConfig", MISTRAL, tokens(1, 1024, True), **TRAIN,
        **BF16),
    Configuration("gru train bf16 b32 s128", lambda: Recurrent(nn.GRU, 768, 2), sequence(32, 128, 768), TRAIN | BF16),
)  # fmt: skip
# Written down after the host's costs were fitted (tools/collect_host.py, other models) and before any of these was
# measured; the predictions were committed first (forecast_predictions_third.json).
STABLE_LM = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16,
             "num_key_value_heads": 16, "vocab_size": 50304}  # fmt: skip
STARCODER = {"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 10, "num_attention_heads": 12,
             "num_key_value_heads": 2, "vocab_size": 49152}  # fmt: skip
DINO = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
PEGASUS = {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8,
           "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048,
           "vocab_size": 32000}  # fmt: skip
THIRD_PROOF = (
    _timm("resnetv2_50", "fp32", 16),
    _timm("rexnet_100", "bf16 nhwc", 32, options=BF16 | NHWC),
    _timm("gernet_m", "fp32", 32),
    _timm("repvit_m1", "bf16", 16, options=BF16),
    _timm("efficientvit_b1", "fp32", 16),
    _timm("pit_s_224", "bf16", 16, options=BF16),
    _timm("convit_small", "fp32", 8),
    _timm("nextvit_small", "fp16", 16, options=FP16),
    _timm("mambaout_tiny", "bf16", 16, options=BF16),
    _timm("inception_resnet_v2", "fp32", 8, 299),
    _timm("visformer_small", "fp32", 1),
    _timm("caformer_s18", "bf16", 8, options=BF16),
    _timm("hgnetv2_b2", "fp32 nhwc", 16, options=NHWC),
    Configuration("shufflenet_v2_x1_5 fp32 b32", of_torchvision("shufflenet_v2_x1_5"), image(32)),
    _hf("mpnet-base fp32 b4 s128", "MPNetModel", "MPNetConfig", {}, tokens(4, 128)),
    _hf("stablelm bf16 b1 s512", "StableLmForCausalLM", "StableLmConfig", STABLE_LM, tokens(1, 512), **BF16),
    _hf("starcoder2 bf16 b2 s256", "Starcoder2ForCausalLM", "Starcoder2Config", STARCODER, tokens(2, 256), **BF16),
    _hf("dinov2-base bf16 b8", "Dinov2Model", "Dinov2Config", DINO, pixels(8, 224, 224), **BF16),
    _hf("pegasus fp16 b4 s128+32", "PegasusForConditionalGeneration", "PegasusConfig", PEGASUS, pairs(4, 128, 32),
        **FP16),
)  # fmt: skip
THIRD_PROOF_TRAINING = (
    _timm("resnetv2_50", "train fp32", 16, options=TRAIN),
    _timm("rexnet_100", "train bf16", 32, options=TRAIN | BF16),
    _timm("pit_s_224", "train bf16", 32, options=TRAIN | BF16),
    _timm("visformer_small", "train fp32", 16, options=TRAIN),
    _timm("mambaout_tiny", "train bf16", 16, options=TRAIN | BF16),
    _hf("stablelm train bf16 b1 s512", "StableLmForCausalLM", "StableLmConfig", STABLE_LM, tokens(1, 512, True),
        **TRAIN, **BF16),
    _hf("dinov2-base train bf16 b16", "Dinov2Model", "Dinov2Config", DINO, pixels(16, 224, 224), **TRAIN, **BF16),
)  # fmt: skip
# Written down after attention and recurrent layers got separate models (predict/blocks.py) and before any of these
# was measured; the predictions were committed first (forecast_predictions_fourth.json).
PHI = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 10, "num_attention_heads": 20,
       "vocab_size": 51200}  # fmt: skip
GEMMA3 = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12, "num_attention_heads": 8,
          "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 32000, "sliding_window": 1024}  # fmt: skip
BLOOM = {"hidden_size": 1024, "n_layer": 12, "n_head": 16, "vocab_size": 32000}
GRANITE = {"hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 12, "num_attention_heads": 24,
           "num_key_value_heads": 8, "vocab_size": 49152}  # fmt: skip
MARIAN = {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8,
          "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "vocab_size": 32000,
          "pad_token_id": 0, "decoder_start_token_id": 0}  # fmt: skip
FOURTH_PROOF = (
    _timm("resnest26d", "fp32", 16),
    _timm("selecsls42b", "fp32", 32),
    _timm("eca_nfnet_l0", "bf16 nhwc", 16, options=BF16 | NHWC),
    _timm("botnet26t_256", "fp16", 16, 256, FP16),
    _timm("ese_vovnet19b_dw", "bf16", 32, options=BF16),
    _timm("tinynet_a", "fp32", 8, 192),
    _timm("inception_next_tiny", "bf16", 16, options=BF16),
    _timm("vit_relpos_small_patch16_224", "bf16", 32, options=BF16),
    _timm("tnt_s_patch16_224", "fp32", 8),
    _timm("sequencer2d_s", "fp32", 8),
    _timm("hiera_tiny_224", "bf16", 16, options=BF16),
    _timm("starnet_s3", "fp32", 32),
    Configuration("mnasnet1_3 fp16 b32", of_torchvision("mnasnet1_3"), image(32), FP16),
    _hf("xlm-roberta fp32 b8 s256", "XLMRobertaModel", "XLMRobertaConfig", {"vocab_size": 50000}, tokens(8, 256)),
    _hf("phi bf16 b1 s2048", "PhiForCausalLM", "PhiConfig", PHI, tokens(1, 2048), **BF16),
    _hf("gemma3 bf16 b1 s4096", "Gemma3ForCausalLM", "Gemma3TextConfig", GEMMA3, tokens(1, 4096), **BF16),
    _hf("bloom fp16 b2 s512", "BloomForCausalLM", "BloomConfig", BLOOM, tokens(2, 512), **FP16),
    _hf("granite bf16 b4 s256", "GraniteForCausalLM", "GraniteConfig", GRANITE, tokens(4, 256), **BF16),
    _hf("marian bf16 b8 s128+32", "MarianMTModel", "MarianConfig", MARIAN, pairs(8, 128, 32), **BF16),
    Configuration("lstm both ways fp16 b32 s200", lambda: Layers(nn.LSTM, 80, 384, 3, True), sequence(32, 200, 80),
                  FP16),
)  # fmt: skip
FOURTH_PROOF_TRAINING = (
    _timm("selecsls42b", "train fp32", 32, options=TRAIN),
    _timm("inception_next_tiny", "train bf16", 16, options=TRAIN | BF16),
    _timm("vit_relpos_small_patch16_224", "train bf16", 32, options=TRAIN | BF16),
    _timm("sequencer2d_s", "train fp32", 8, options=TRAIN),
    _hf("phi train bf16 b1 s1024", "PhiForCausalLM", "PhiConfig", PHI, tokens(1, 1024, True), **TRAIN, **BF16),
    _hf("xlm-roberta train bf16 b16 s128", "XLMRobertaForMaskedLM", "XLMRobertaConfig", {"vocab_size": 50000},
        tokens(16, 128, True), **TRAIN, **BF16),
)  # fmt: skip
# Written down before the host, the kernels or the cost of a forecast were changed again, and before any of these was
# measured; the predictions were committed first (forecast_predictions_fifth.json).
FALCON = {"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16, "vocab_size": 32000,
          "multi_query": True, "parallel_attn": True, "bias": False}  # fmt: skip
QWEN3 = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 14, "num_attention_heads": 16,
         "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 65536}  # fmt: skip
MODERN_BERT = {"hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 12, "num_attention_heads": 12,
               "vocab_size": 50368}  # fmt: skip
BLENDERBOT = {"d_model": 512, "encoder_layers": 8, "decoder_layers": 8, "encoder_ffn_dim": 2048, "vocab_size": 32000,
              "decoder_ffn_dim": 2048, "encoder_attention_heads": 16, "decoder_attention_heads": 16}  # fmt: skip
FIFTH_PROOF = (
    _timm("mobileone_s1", "bf16", 32, options=BF16),
    _timm("cs3darknet_m", "fp32", 16, 256),
    _timm("regnetz_b16", "bf16 nhwc", 32, options=BF16 | NHWC),
    _timm("fbnetv3_b", "fp32", 8),
    _timm("swiftformer_s", "fp32", 16),
    _timm("tiny_vit_5m_224", "bf16", 32, options=BF16),
    _timm("gcvit_xxtiny", "fp16", 16, options=FP16),
    _timm("lambda_resnet26t", "bf16", 16, 256, BF16),
    _timm("rdnet_tiny", "bf16", 16, options=BF16),
    _timm("vit_small_r26_s32_224", "fp32", 8),
    _timm("mixnet_s", "fp32", 32),
    _timm("resnetrs50", "fp32 nhwc", 32, options=NHWC),
    Configuration("googlenet fp32 b32", of_torchvision("googlenet", aux_logits=False, init_weights=False), image(32)),
    Configuration("fcn_resnet50 fp32 b4", of_torchvision("segmentation.fcn_resnet50", weights_backbone=None),
                  image(4, 256)),
    Configuration("r3d_18 bf16 b4", of_torchvision("video.r3d_18"), clip(4, 8, 112), BF16),
    _hf("falcon bf16 b2 s512", "FalconForCausalLM", "FalconConfig", FALCON, tokens(2, 512), **BF16),
    _hf("qwen3 bf16 b1 s1024", "Qwen3ForCausalLM", "Qwen3Config", QWEN3, tokens(1, 1024), **BF16),
    _hf("modernbert bf16 b8 s512", "ModernBertModel", "ModernBertConfig", MODERN_BERT, tokens(8, 512), **BF16),
    _hf("mobilebert fp32 b4 s128", "MobileBertModel", "MobileBertConfig", {}, tokens(4, 128)),
    _hf("wav2vec2 fp32 b4 1s", "Wav2Vec2Model", "Wav2Vec2Config", {"apply_spec_augment": False}, waves(4, 16000)),
    _hf("segformer fp16 b4", "SegformerForSemanticSegmentation", "SegformerConfig", {}, pixels(4, 256, 256), **FP16),
    _hf("clip vision bf16 b32", "CLIPVisionModel", "CLIPVisionConfig", {}, pixels(32, 224, 224), **BF16),
    _hf("blenderbot bf16 b8 s128+32", "BlenderbotSmallForConditionalGeneration", "BlenderbotSmallConfig", BLENDERBOT,
        pairs(8, 128, 32), **BF16),
    Configuration("generator fp32 b64", Generator, lambda: {"args": (torch.randn(64, 128),), "kwargs": {}}),
    Configuration("dilated fp32 b16 s1024", Dilated, lambda: {"args": (torch.randn(16, 64, 1024),),
                                                                      "kwargs": {}}),
    Configuration("clicks fp32 b4096", Clicks, clicks(4096)),
    Configuration("denoiser bf16 b4", lambda: Denoiser(128, (1, 2, 4, 4)), noise(4, 64), BF16),
    Configuration("tagger fp32 b32 s64", lambda: Tagger(20000, 128, 128), words(32, 64)),
)  # fmt: skip
FIFTH_PROOF_TRAINING = (
    _timm("cs3darknet_m", "train fp32", 16, 256, TRAIN),
    _timm("tiny_vit_5m_224", "train bf16", 32, options=TRAIN | BF16),
    _timm("mobileone_s1", "train bf16 nhwc", 32, options=TRAIN | BF16 | NHWC),
    _hf("falcon train bf16 b2 s512", "FalconForCausalLM", "FalconConfig", FALCON, tokens(2, 512, True), **TRAIN,
        **BF16),
    _hf("clip vision train bf16 b32", "CLIPVisionModel", "CLIPVisionConfig", {}, pixels(32, 224, 224), **TRAIN,
        **BF16),
    Configuration("denoiser train fp32 b4", lambda: Denoiser(128, (1, 2, 4, 4)), noise(4, 64), TRAIN),
    Configuration("dilated train fp32 b16 s1024", Dilated, lambda: {"args": (torch.randn(16, 64, 1024),),
                                                                            "kwargs": {}}, TRAIN),
)  # fmt: skip
# Written down before anything of the kernel model was changed again, and before any of these was measured: models that
# people choose hardware for, in no earlier set, no collection and no fit.
ESM = {"vocab_size": 33, "hidden_size": 640, "num_hidden_layers": 30, "num_attention_heads": 20,
       "intermediate_size": 2560, "position_embedding_type": "rotary", "pad_token_id": 1, "mask_token_id": 32,
       "token_dropout": False}  # fmt: skip
PHI3 = {"hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 12, "num_attention_heads": 16,
        "num_key_value_heads": 16, "vocab_size": 32064, "pad_token_id": 0}  # fmt: skip
GPTJ = {"n_embd": 1024, "n_layer": 12, "n_head": 16, "rotary_dim": 64, "vocab_size": 50400}
SMOLLM3 = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 16,
           "num_key_value_heads": 4, "vocab_size": 64000, "pad_token_id": 0, "bos_token_id": 1,
           "eos_token_id": 2}  # fmt: skip
MT5 = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "vocab_size": 64000,
       "decoder_start_token_id": 0}  # fmt: skip
M2M = {"d_model": 1024, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 16,
       "decoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "vocab_size": 64000,
       "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}  # fmt: skip
DPT = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
       "image_size": 384, "backbone_out_indices": [2, 5, 8, 11], "is_hybrid": False}  # fmt: skip
SIXTH_PROOF = (
    _timm("seresnext50_32x4d", "bf16 nhwc", 64, options=BF16 | NHWC),
    _timm("dla34", "fp32", 32),
    _timm("darknet53", "fp32", 8, 416),
    _timm("resnetv2_101x1_bit", "fp32", 8),
    _timm("regnety_040", "fp16 nhwc", 32, options=FP16 | NHWC),
    _timm("efficientnet_b4", "fp16 nhwc", 16, 380, FP16 | NHWC),
    _timm("tf_efficientnetv2_b3", "bf16", 32, 300, BF16),
    _timm("mobilenetv4_hybrid_medium", "bf16", 32, 256, BF16),
    _timm("mobilevitv2_100", "fp32", 16, 256),
    _timm("fastvit_sa12", "bf16", 32, 256, BF16),
    _timm("convnextv2_base", "bf16 nhwc", 32, options=BF16 | NHWC),
    _timm("convformer_s18", "bf16", 16, options=BF16),
    _timm("coat_lite_small", "fp32", 16),
    _timm("pvt_v2_b2", "fp16", 16, options=FP16),
    _timm("swinv2_small_window16_256", "bf16", 8, 256, BF16),
    _timm("vit_base_patch16_siglip_224", "bf16", 32, options=BF16),
    _timm("vit_large_patch14_clip_224", "fp16", 16, options=FP16),
    Configuration("feature pyramid fp32 b2", of_torchvision("detection.backbone_utils.resnet_fpn_backbone",
                                                            backbone_name="resnet50"), image(2, 640)),
    Configuration("deeplabv3_mobilenet fp32 b4",
                  of_torchvision("segmentation.deeplabv3_mobilenet_v3_large", weights_backbone=None), image(4, 512)),
    Configuration("r2plus1d_18 fp32 b2", of_torchvision("video.r2plus1d_18"), clip(2, 16, 112)),
    _hf("esm2 bf16 b8 s512", "EsmModel", "EsmConfig", ESM, residues(8, 512), **BF16),
    _hf("layoutlm fp32 b4 s512", "LayoutLMModel", "LayoutLMConfig", {}, tokens(4, 512)),
    _hf("clip text fp16 b64 s77", "CLIPTextModel", "CLIPTextConfig", {}, tokens(64, 77), **FP16),
    _hf("phi3 bf16 b1 s1024", "Phi3ForCausalLM", "Phi3Config", PHI3, tokens(1, 1024), **BF16),
    _hf("gptj fp16 b4 s256", "GPTJForCausalLM", "GPTJConfig", GPTJ, tokens(4, 256), **FP16),
    _hf("smollm3 bf16 b1 s2048", "SmolLM3ForCausalLM", "SmolLM3Config", SMOLLM3, tokens(1, 2048), **BF16),
    _hf("mt5 bf16 b8 s128+32", "MT5ForConditionalGeneration", "MT5Config", MT5, pairs(8, 128, 32), **BF16),
    _hf("m2m100 fp16 b4 s128+32", "M2M100ForConditionalGeneration", "M2M100Config", M2M, pairs(4, 128, 32), **FP16),
    _hf("hubert fp16 b8 2s", "HubertModel", "HubertConfig", {"apply_spec_augment": False}, waves(8, 32000), **FP16),
    _hf("ast bf16 b8", "ASTModel", "ASTConfig", {},
        lambda: {"args": (), "kwargs": {"input_values": torch.randn(8, 1024, 128)}}, **BF16),
    _hf("dpt bf16 b2", "DPTForDepthEstimation", "DPTConfig", DPT, pixels(2, 384, 384), **BF16),
    Configuration("latent unet fp16 b2", LatentUNet, latents(2, 64), FP16),
    Configuration("dit bf16 b16", DiffusionTransformer, labelled_latents(16, 32), BF16),
    Configuration("upscaler fp16 b1", Upscaler, image(1, 360), FP16),
    Configuration("ranker fp32 b8192", Ranker, fields(8192)),
    Configuration("series fp32 b128 s168", Series, sequence(128, 168, 24)),
)  # fmt: skip
SIXTH_PROOF_TRAINING = (
    _timm("seresnext50_32x4d", "train bf16 nhwc", 32, options=TRAIN | BF16 | NHWC),
    _timm("dla34", "train fp32", 32, options=TRAIN),
    _timm("vit_base_patch16_siglip_224", "train bf16", 32, options=TRAIN | BF16),
    _hf("esm2 train bf16 b8 s256", "EsmForMaskedLM", "EsmConfig", ESM, residues(8, 256), **TRAIN, **BF16),
    _hf("phi3 train bf16 b1 s1024", "Phi3ForCausalLM", "Phi3Config", PHI3, tokens(1, 1024, True), **TRAIN, **BF16),
    Configuration("latent unet train fp32 b2", LatentUNet, latents(2, 32), TRAIN),
    Configuration("dit train bf16 b16", DiffusionTransformer, labelled_latents(16, 32), TRAIN | BF16),
    Configuration("series train fp32 b128 s168", Series, sequence(128, 168, 24), TRAIN),
)  # fmt: skip
# Written down before the kernels of convolutions were looked at again, and before any of these was measured: models in
# no earlier set, no collection and no fit.
OLMO2 = {"hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 10, "num_attention_heads": 12,
         "num_key_value_heads": 12, "vocab_size": 50304, "pad_token_id": 1}  # fmt: skip
COHERE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16,
          "num_key_value_heads": 16, "vocab_size": 64000}  # fmt: skip
GEMMA2 = {"hidden_size": 1152, "intermediate_size": 4608, "num_hidden_layers": 12, "num_attention_heads": 8,
          "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 64000}  # fmt: skip
MBART = {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12,
         "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
         "vocab_size": 50000}  # fmt: skip
SEVENTH_PROOF = (
    _timm("resnetaa50", "fp32", 32),
    _timm("ecaresnet26t", "bf16 nhwc", 64, 256, BF16 | NHWC),
    _timm("legacy_seresnet34", "fp32 nhwc", 16, options=NHWC),
    _timm("tresnet_m", "bf16", 16, options=BF16),
    _timm("hgnet_small", "fp16 nhwc", 32, options=FP16 | NHWC),
    _timm("vovnet39a", "fp32", 16),
    _timm("cspresnet50", "bf16", 32, 256, BF16),
    _timm("efficientnetv2_m", "bf16 nhwc", 16, 320, BF16 | NHWC),
    _timm("mobilenet_edgetpu_v2_m", "fp16 nhwc", 32, options=FP16 | NHWC),
    _timm("semnasnet_100", "fp32", 64),
    _timm("fasternet_s", "bf16", 32, options=BF16),
    _timm("wide_resnet101_2", "fp32", 8),
    _timm("flexivit_base", "bf16", 16, 240, BF16),
    _timm("samvit_base_patch16_224", "fp16", 8, options=FP16),
    _timm("twins_pcpvt_base", "fp32", 8),
    _timm("vitamin_small_224", "bf16", 16, options=BF16),
    _timm("efficientformerv2_s2", "fp16", 32, options=FP16),
    _timm("shvit_s3", "fp32", 32),
    Configuration("lraspp_mobilenet fp32 b8",
                  of_torchvision("segmentation.lraspp_mobilenet_v3_large", weights_backbone=None), image(8, 384)),
    Configuration("s3d bf16 b2", of_torchvision("video.s3d"), clip(2, 16, 224), BF16),
    _hf("olmo2 bf16 b2 s512", "Olmo2ForCausalLM", "Olmo2Config", OLMO2, tokens(2, 512), **BF16),
    _hf("cohere fp16 b4 s256", "CohereForCausalLM", "CohereConfig", COHERE, tokens(4, 256), **FP16),
    _hf("gemma2 bf16 b1 s1024", "Gemma2ForCausalLM", "Gemma2Config", GEMMA2, tokens(1, 1024), **BF16),
    _hf("mbart bf16 b8 s64+64", "MBartForConditionalGeneration", "MBartConfig", MBART, pairs(8, 64, 64), **BF16),
    _hf("camembert fp32 b16 s128", "CamembertModel", "CamembertConfig", {"vocab_size": 32005}, tokens(16, 128)),
    _hf("data2vec audio bf16 b4 2s", "Data2VecAudioModel", "Data2VecAudioConfig", {"apply_spec_augment": False},
        waves(4, 32000), **BF16),
    _hf("vit mae fp32 b16", "ViTModel", "ViTConfig", {"hidden_size": 512, "num_hidden_layers": 8,
        "num_attention_heads": 8, "intermediate_size": 2048}, pixels(16, 224, 224)),
    _hf("siglip text bf16 b64 s64", "SiglipTextModel", "SiglipTextConfig", {}, tokens(64, 64), **BF16),
    Configuration("speech recognizer fp32 b8", SpeechRecognizer,
                  lambda: {"args": (torch.randn(8, 1, 80, 400),), "kwargs": {}}),
    Configuration("volume unet bf16 b1", VolumeUNet, lambda: {"args": (torch.randn(1, 1, 96, 96, 96),), "kwargs": {}},
                  BF16),
    Configuration("point cloud fp32 b32", PointCloud, lambda: {"args": (torch.randn(32, 3, 2048),), "kwargs": {}}),
    Configuration("vocoder fp32 b8", Vocoder, lambda: {"args": (torch.randn(8, 80, 64),), "kwargs": {}}),
    Configuration("unet fp16 nhwc b4", lambda: UNet(64), image(4, 384), FP16 | NHWC),
    Configuration("series bf16 b32 s336", lambda: Series(32, 384, 1), sequence(32, 336, 32), BF16),
)  # fmt: skip
SEVENTH_PROOF_TRAINING = (
    _timm("resnetaa50", "train fp32", 32, options=TRAIN),
    _timm("ecaresnet26t", "train bf16 nhwc", 64, 256, TRAIN | BF16 | NHWC),
    _timm("flexivit_base", "train bf16", 16, 240, TRAIN | BF16),
    _timm("fasternet_s", "train bf16", 32, options=TRAIN | BF16),
    _hf("olmo2 train bf16 b2 s512", "Olmo2ForCausalLM", "Olmo2Config", OLMO2, tokens(2, 512, True), **TRAIN, **BF16),
    _hf("mbart train bf16 b8 s64+64", "MBartForConditionalGeneration", "MBartConfig", MBART, pairs(8, 64, 64),
        **TRAIN, **BF16),
    Configuration("speech recognizer train fp32 b8", SpeechRecognizer,
                  lambda: {"args": (torch.randn(8, 1, 80, 400),), "kwargs": {}}, TRAIN),
    Configuration("point cloud train fp32 b32", PointCloud, lambda: {"args": (torch.randn(32, 3, 2048),),
                                                                     "kwargs": {}}, TRAIN),
)  # fmt: skip
# Written down after the kernels of streamed ops were collected (resampling, statistics, reductions, pooling) and before
# any of these was measured; the predictions were committed first (forecast_predictions_eighth.json). Models in no
# earlier set, no collection and no fit.
GLM = {"hidden_size": 1024, "intermediate_size": 2752, "num_hidden_layers": 12, "num_attention_heads": 16,
       "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 65024, "pad_token_id": 0}  # fmt: skip
XGLM = {"d_model": 1024, "ffn_dim": 4096, "num_layers": 10, "attention_heads": 16, "vocab_size": 64000}
LFM2 = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12, "num_attention_heads": 16,
        "num_key_value_heads": 8, "vocab_size": 65536, "full_attn_idxs": [2, 5, 8, 10]}  # fmt: skip
PATCH_SERIES = {"num_input_channels": 21, "context_length": 512, "patch_length": 16, "patch_stride": 8, "d_model": 256,
                "num_attention_heads": 16, "num_hidden_layers": 4, "ffn_dim": 512}  # fmt: skip
SWIN_UPSCALER = {"embed_dim": 96, "depths": [4, 4, 4], "num_heads": [6, 6, 6], "window_size": 8, "image_size": 64,
                 "upscale": 2, "upsampler": "pixelshuffle"}  # fmt: skip
YOLOS = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536,
         "image_size": [512, 512], "num_detection_tokens": 100}  # fmt: skip
EIGHTH_PROOF = (
    _timm("ghostnetv3_100", "bf16", 32, options=BF16),
    _timm("hrnet_w30", "fp32", 8),
    _timm("efficientvit_l2", "fp16", 16, options=FP16),
    _timm("iformer_m", "bf16", 32, options=BF16),
    _timm("lcnetv2_base", "fp32", 32),
    _timm("hiera_base_plus_224", "bf16", 16, options=BF16),
    _timm("vit_small_patch16_dinov3", "bf16", 32, 256, BF16),
    _timm("convnext_zepto_rms", "bf16 nhwc", 64, options=BF16 | NHWC),
    _timm("xcit_small_12_p8_224", "fp32", 4),
    _timm("resnet50_gn", "bf16", 16, options=BF16),
    _timm("sehalonet33ts", "fp32", 8, 256),
    _timm("poolformerv2_s24", "bf16 nhwc", 16, options=BF16 | NHWC),
    Configuration("deeplabv3_resnet50 bf16 b4",
                  of_torchvision("segmentation.deeplabv3_resnet50", weights_backbone=None), image(4, 512), BF16),
    Configuration("mc3_18 fp32 b4", of_torchvision("video.mc3_18"), clip(4, 16, 112)),
    Configuration("raft small fp32 b1", of_torchvision("optical_flow.raft_small"), normal((1, 3, 256, 320),
                                                                                          (1, 3, 256, 320))),
    _hf("fnet fp32 b8 s256", "FNetModel", "FNetConfig", {}, tokens(8, 256)),
    _hf("convbert bf16 b8 s128", "ConvBertModel", "ConvBertConfig", {}, tokens(8, 128), **BF16),
    _hf("squeezebert fp16 b8 s128", "SqueezeBertModel", "SqueezeBertConfig", {}, tokens(8, 128), **FP16),
    _hf("deberta v2 bf16 b8 s128", "DebertaV2Model", "DebertaV2Config", {"hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 50000}, tokens(8, 128), **BF16),
    _hf("glm bf16 b1 s1024", "GlmForCausalLM", "GlmConfig", GLM, tokens(1, 1024), **BF16),
    _hf("xglm fp16 b4 s256", "XGLMForCausalLM", "XGLMConfig", XGLM, tokens(4, 256), **FP16),
    _hf("lfm2 bf16 b2 s512", "Lfm2ForCausalLM", "Lfm2Config", LFM2, tokens(2, 512), **BF16),
    _hf("wavlm fp16 b4 2s", "WavLMModel", "WavLMConfig", {"apply_spec_augment": False}, waves(4, 32000), **FP16),
    _hf("patchtst fp32 b32", "PatchTSTModel", "PatchTSTConfig", PATCH_SERIES,
        lambda: {"args": (), "kwargs": {"past_values": torch.randn(32, 512, 21)}}),
    _hf("videomae bf16 b2", "VideoMAEModel", "VideoMAEConfig", {},
        lambda: {"args": (), "kwargs": {"pixel_values": torch.randn(2, 16, 3, 224, 224)}}, **BF16),
    _hf("glpn fp32 b2", "GLPNForDepthEstimation", "GLPNConfig", {}, pixels(2, 480, 640)),
    _hf("swin2sr fp16 b1", "Swin2SRForImageSuperResolution", "Swin2SRConfig", SWIN_UPSCALER, pixels(1, 128, 128),
        **FP16),
    _hf("yolos fp16 b2", "YolosForObjectDetection", "YolosConfig", YOLOS, pixels(2, 512, 512), **FP16),
    Configuration("dynamic graph fp32 b16", DynamicGraph, normal((16, 3, 1024))),
    Configuration("volume encoder fp16 b1", VolumeEncoder, normal((1, 4, 96, 96, 96)), FP16),
    Configuration("nested unet bf16 b4", NestedUNet, image(4, 256), BF16),
    Configuration("separator fp32 b4", Separator, normal((4, 1, 32000))),
    Configuration("demucs fp32 b2", Demucs, normal((2, 2, 87380))),
    Configuration("conformer bf16 b8", Conformer, normal((8, 400, 80)), BF16),
    Configuration("text reader fp32 b64", TextReader, normal((64, 1, 32, 128))),
    Configuration("captioner fp32 b32", Captioner, captions(32)),
    Configuration("spectral fp32 b16", Spectral, normal((16, 3, 64, 64))),
    Configuration("radiance fp32 4096 rays", Radiance, normal((4096, 64, 3), (4096, 64))),
    Configuration("messages fp32 20k nodes", Messages, graph(20000, 100000)),
    Configuration("basis fp32 b512", Basis, normal((512, 240))),
    Configuration("style fp16 b8", Style, normal((8, 256)), FP16),
    Configuration("decoder bf16 b2 s512", Decoder, words(2, 512), BF16),
    Configuration("detector bf16 b2", partial(Detector, of_torchvision(
        "detection.backbone_utils.resnet_fpn_backbone", backbone_name="resnet18")), image(2, 512), BF16),
    Configuration("warper fp32 b1", Warper, normal((1, 1, 96, 112, 96), (1, 1, 96, 112, 96))),
)  # fmt: skip
EIGHTH_PROOF_TRAINING = (
    _timm("resnet50_gn", "train bf16", 16, options=TRAIN | BF16),
    _timm("hiera_base_plus_224", "train bf16", 16, options=TRAIN | BF16),
    _hf("glm train bf16 b1 s1024", "GlmForCausalLM", "GlmConfig", GLM, tokens(1, 1024, True), **TRAIN, **BF16),
    Configuration("dynamic graph train fp32 b16", DynamicGraph, normal((16, 3, 1024)), TRAIN),
    Configuration("volume encoder train fp32 b1", VolumeEncoder, normal((1, 4, 64, 64, 64)), TRAIN),
    Configuration("nested unet train bf16 b4", NestedUNet, image(4, 256), TRAIN | BF16),
    Configuration("conformer train bf16 b8", Conformer, normal((8, 400, 80)), TRAIN | BF16),
    Configuration("text reader train fp32 b64", TextReader, normal((64, 1, 32, 128)), TRAIN),
    Configuration("decoder train bf16 b2 s512", Decoder, words(2, 512), TRAIN | BF16),
)  # fmt: skip
# Drawn at random before the kernels of the ninth list were measured, so that no taste decides: one model of each of
# 20 families of timm (of the names that are in no earlier set and no collection; the largest were drawn again), 14
# of 59 architectures of transformers, 4 of torchvision, 7 of 25 that people write by hand, with types, layouts and
# batches drawn too. The predictions were committed before anything was measured (forecast_predictions_ninth.json).
ARCEE = {"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 10, "num_attention_heads": 12,
         "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 64000}  # fmt: skip
BIG_CODE = {"n_embd": 1536, "n_layer": 10, "n_head": 12, "n_inner": 6144, "vocab_size": 49280}
SPEECH_TO_TEXT = {"vocab_size": 10000, "d_model": 512, "encoder_layers": 12, "encoder_ffn_dim": 2048,
                  "encoder_attention_heads": 8, "decoder_layers": 6, "decoder_ffn_dim": 2048,
                  "decoder_attention_heads": 8}  # fmt: skip
REM_BERT = {"vocab_size": 32000, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "intermediate_size": 3072, "input_embedding_size": 256, "output_embedding_size": 768}  # fmt: skip
NINTH_PROOF = (
    _timm("gcvit_xtiny", "bf16", 4, options=BF16),
    _timm("regnetz_e8", "fp16", 8, 256, FP16),
    _timm("ese_vovnet19b_slim_dw", "fp32", 8),
    _timm("twins_pcpvt_large", "fp16 nhwc", 4, options=FP16 | NHWC),
    _timm("rdnet_base", "bf16 nhwc", 64, options=BF16 | NHWC),
    _timm("pvt_v2_b2_li", "fp32", 16),
    _timm("mambaout_small", "bf16", 16, options=BF16),
    _timm("xception65p", "bf16 nhwc", 4, 299, BF16 | NHWC),
    _timm("semnasnet_075", "bf16", 32, options=BF16),
    _timm("pit_ti_224", "bf16 nhwc", 16, options=BF16 | NHWC),
    _timm("vit_small_resnet26d_224", "fp16", 1, options=FP16),
    _timm("densenet264d", "bf16", 4, options=BF16),
    _timm("efficientvit_m3", "fp16", 4, options=FP16),
    _timm("deit3_large_patch16_224", "bf16 nhwc", 8, options=BF16 | NHWC),
    _timm("nf_resnet101", "fp32 nhwc", 4, options=NHWC),
    _timm("swin_s3_small_224", "bf16 nhwc", 8, options=BF16 | NHWC),
    _timm("legacy_seresnet101", "fp32 nhwc", 32, options=NHWC),
    _timm("resnet26", "bf16 nhwc", 64, options=BF16 | NHWC),
    _timm("mobilevitv2_200", "bf16", 4, 256, BF16),
    _timm("repghostnet_111", "fp16 nhwc", 16, options=FP16 | NHWC),
    Configuration("fcn_resnet50 bf16 b4", of_torchvision("segmentation.fcn_resnet50", weights_backbone=None),
                  image(4, 384), BF16),
    Configuration("mvit_v2_s fp16 b2", of_torchvision("video.mvit_v2_s"), clip(2, 16, 224), FP16),
    Configuration("shufflenet_v2_x1_5 fp32 b64", of_torchvision("shufflenet_v2_x1_5"), image(64)),
    Configuration("convnext_small fp16 b16", of_torchvision("convnext_small"), image(16), FP16),
    _hf("levit bf16 b64", "LevitModel", "LevitConfig", {}, pixels(64, 224, 224), **BF16),
    _hf("speech2text fp16 b8", "Speech2TextForConditionalGeneration", "Speech2TextConfig", SPEECH_TO_TEXT,
        lambda: {"args": (), "kwargs": {"input_features": torch.randn(8, 584, 80),
                                        "decoder_input_ids": torch.randint(1, 1000, (8, 32))}}, **FP16),
    _hf("perceiver fp16 b4 s2048", "PerceiverForMaskedLM", "PerceiverConfig", {}, residues(4, 2048), **FP16),
    _hf("moonshine bf16 b8 4s", "MoonshineForConditionalGeneration", "MoonshineConfig", {},
        lambda: {"args": (), "kwargs": {"input_values": torch.randn(8, 64000),
                                        "decoder_input_ids": torch.randint(1, 1000, (8, 32))}}, **BF16),
    _hf("beit fp16 b32", "BeitModel", "BeitConfig", {}, pixels(32, 224, 224), **FP16),
    _hf("arcee bf16 b4 s512", "ArceeForCausalLM", "ArceeConfig", ARCEE, tokens(4, 512), **BF16),
    _hf("roformer fp32 b8 s256", "RoFormerModel", "RoFormerConfig", {}, tokens(8, 256)),
    _hf("focalnet bf16 b16", "FocalNetModel", "FocalNetConfig", {}, pixels(16, 224, 224), **BF16),
    _hf("resnet bf16 b64", "ResNetModel", "ResNetConfig", {"depths": [3, 4, 23, 3]}, pixels(64, 224, 224), **BF16),
    _hf("rembert bf16 b16 s128", "RemBertModel", "RemBertConfig", REM_BERT, tokens(16, 128), **BF16),
    _hf("swin fp16 b16", "SwinModel", "SwinConfig", {"embed_dim": 128, "depths": [2, 2, 18, 2],
        "num_heads": [4, 8, 16, 32]}, pixels(16, 224, 224), **FP16),
    _hf("rtdetr fp32 b4", "RTDetrModel", "RTDetrConfig", {"anchor_image_size": [640, 640]}, pixels(4, 640, 640)),
    _hf("dac fp32 b4 1s", "DacModel", "DacConfig", {},
        lambda: {"args": (), "kwargs": {"input_values": torch.randn(4, 1, 16384)}}),
    _hf("bigcode bf16 b2 s1024", "GPTBigCodeForCausalLM", "GPTBigCodeConfig", BIG_CODE, tokens(2, 1024), **BF16),
    Configuration("pixel network bf16 b32", PixelNetwork, normal((32, 1, 28, 28)), BF16),
    Configuration("restorer fp32 b8", Restorer, normal((8, 1, 256, 256))),
    Configuration("causal fp32 b64 s600", Causal, normal((64, 32, 600))),
    Configuration("factors fp32 b2048", Factors, fields(2048)),
    Configuration("codebook fp32 b32", Codebook, image(32, 128)),
    Configuration("deep upscaler bf16 b4", DeepUpscaler, image(4, 128), BF16),
    Configuration("sessions fp32 b512 s20", Sessions, words(512, 20)),
)  # fmt: skip
NINTH_PROOF_TRAINING = (
    _timm("regnetz_e8", "train bf16", 16, 256, TRAIN | BF16),
    _timm("mambaout_small", "train bf16", 16, options=TRAIN | BF16),
    _timm("deit3_large_patch16_224", "train bf16", 16, options=TRAIN | BF16),
    _timm("resnet26", "train fp32", 64, options=TRAIN),
    _timm("pvt_v2_b2_li", "train fp32", 16, options=TRAIN),
    _hf("arcee train bf16 b4 s512", "ArceeForCausalLM", "ArceeConfig", ARCEE, tokens(4, 512, True), **TRAIN, **BF16),
    _hf("beit train bf16 b32", "BeitModel", "BeitConfig", {}, pixels(32, 224, 224), **TRAIN, **BF16),
    _hf("rembert train bf16 b16 s128", "RemBertModel", "RemBertConfig", REM_BERT, tokens(16, 128), **TRAIN, **BF16),
    Configuration("restorer train fp32 b8", Restorer, normal((8, 1, 128, 128)), TRAIN),
    Configuration("factors train fp32 b2048", Factors, fields(2048), TRAIN),
)  # fmt: skip
# Drawn like the ninth set, with other seeds, after the tables of this release were made: one model of each of 26
# families of timm (of names that are in no earlier set and no collection; without those above 150 M parameters or 320
# pixels), 14 of 55 architectures of transformers, types, layouts, batches and the eight training steps drawn too. The
# predictions were committed before anything was measured (forecast_predictions_tenth.json).
OLMO = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 8, "num_attention_heads": 16}
DIFF_LLAMA = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 8, "num_attention_heads": 32}
HELIUM = {"num_hidden_layers": 8}
TENTH_PROOF = (
    _timm("coatnet_rmlp_2_rw_224", "fp16 nhwc", 64, options=FP16 | NHWC),
    _timm("deit_tiny_distilled_patch16_224", "bf16", 16, options=BF16),
    _timm("fastvit_mci2", "fp16 nhwc", 1, 256, FP16 | NHWC),
    _timm("mobilevitv2_175", "bf16 nhwc", 64, 256, BF16 | NHWC),
    _timm("vit_relpos_base_patch16_rpn_224", "fp32", 16),
    _timm("starnet_s050", "fp32", 1),
    _timm("cs3sedarknet_x", "fp16 nhwc", 32, 256, FP16 | NHWC),
    _timm("fasternet_m", "fp32 nhwc", 8, options=NHWC),
    _timm("inception_next_base", "bf16 nhwc", 16, options=BF16 | NHWC),
    _timm("efficientvit_b2", "fp32", 32),
    _timm("poolformerv2_m48", "bf16", 1, options=BF16),
    _timm("efficientnet_b3_gn", "bf16", 64, 288, BF16),
    _timm("dla46x_c", "fp16 nhwc", 32, options=FP16 | NHWC),
    _timm("xception41p", "fp16 nhwc", 8, 299, FP16 | NHWC),
    _timm("regnetx_004_tv", "fp32", 8),
    _timm("mobilenetv4_conv_aa_medium", "fp16 nhwc", 4, 256, FP16 | NHWC),
    _timm("swin_s3_base_224", "fp32", 32),
    _timm("cait_xxs36_224", "bf16", 4, options=BF16),
    _timm("gmlp_ti16_224", "fp32 nhwc", 1, options=NHWC),
    _timm("gcvit_small", "fp32 nhwc", 4, options=NHWC),
    _timm("tnt_s_legacy_patch16_224", "fp16 nhwc", 32, options=FP16 | NHWC),
    _timm("res2net50_26w_6s", "bf16", 64, options=BF16),
    _timm("ecaresnet101d_pruned", "bf16", 4, options=BF16),
    _timm("skresnet18", "fp32 nhwc", 32, options=NHWC),
    _timm("efficientformerv2_l", "fp32", 32),
    _timm("pvt_v2_b4", "fp32", 1),
    _hf("olmo fp16 b8 s128", "OlmoForCausalLM", "OlmoConfig", OLMO, tokens(8, 128), **FP16),
    _hf("yoso fp16 b4 s1024", "YosoModel", "YosoConfig", {}, tokens(4, 1024), **FP16),
    _hf("flaubert fp16 b16 s128", "FlaubertModel", "FlaubertConfig", {}, tokens(16, 128), **FP16),
    _hf("bigbird fp32 b16 s1024", "BigBirdModel", "BigBirdConfig", {}, tokens(16, 1024)),
    _hf("diffllama fp16 b4 s128", "DiffLlamaForCausalLM", "DiffLlamaConfig", DIFF_LLAMA, tokens(4, 128), **FP16),
    _hf("ctrl fp16 b16 s64", "CTRLLMHeadModel", "CTRLConfig", {"n_layer": 12}, tokens(16, 64), **FP16),
    _hf("helium fp16 b16 s128", "HeliumForCausalLM", "HeliumConfig", HELIUM, tokens(16, 128), **FP16),
    _hf("vitmae fp32 b8", "ViTMAEModel", "ViTMAEConfig", {}, pixels(8, 224, 224)),
    _hf("mobilenet v2 fp16 b8", "MobileNetV2Model", "MobileNetV2Config", {}, pixels(8, 224, 224), **FP16),
    _hf("mobilenet v1 bf16 b16", "MobileNetV1Model", "MobileNetV1Config", {}, pixels(16, 224, 224), **BF16),
    _hf("cvt bf16 b1", "CvtModel", "CvtConfig", {}, pixels(1, 224, 224), **BF16),
    _hf("dinov2 registers bf16 b4", "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", {},
        pixels(4, 224, 224), **BF16),
    _hf("sew fp32 b4 2s", "SEWModel", "SEWConfig", {}, waves(4, 32000)),
    _hf("wav2vec2 conformer fp32 b32 1s", "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", {}, waves(32, 16000)),
)  # fmt: skip
TENTH_PROOF_TRAINING = (
    _timm("fastvit_mci2", "train bf16", 8, 256, TRAIN | BF16),
    _timm("res2net50_26w_6s", "train bf16", 32, options=TRAIN | BF16),
    _timm("xception41p", "train fp32", 16, 299, TRAIN),
    _timm("cs3sedarknet_x", "train bf16 nhwc", 32, 256, TRAIN | BF16 | NHWC),
    _timm("mobilenetv4_conv_aa_medium", "train fp32", 32, 256, TRAIN),
    _timm("regnetx_004_tv", "train fp32", 64, options=TRAIN),
    _timm("gmlp_ti16_224", "train bf16", 32, options=TRAIN | BF16),
    _hf("flaubert train bf16 b16 s128", "FlaubertModel", "FlaubertConfig", {}, tokens(16, 128), **TRAIN, **BF16),
)  # fmt: skip
PROOFS = {
    "first": (PROOF, PROOF_TRAINING),
    "second": (SECOND_PROOF, SECOND_PROOF_TRAINING),
    "third": (THIRD_PROOF, THIRD_PROOF_TRAINING),
    "fourth": (FOURTH_PROOF, FOURTH_PROOF_TRAINING),
    "fifth": (FIFTH_PROOF, FIFTH_PROOF_TRAINING),
    "sixth": (SIXTH_PROOF, SIXTH_PROOF_TRAINING),
    "seventh": (SEVENTH_PROOF, SEVENTH_PROOF_TRAINING),
    "eighth": (EIGHTH_PROOF, EIGHTH_PROOF_TRAINING),
    "ninth": (NINTH_PROOF, NINTH_PROOF_TRAINING),
    "tenth": (TENTH_PROOF, TENTH_PROOF_TRAINING),
}

_IMAGE_MODELS = (
    "resnet34", "resnet26d", "resnet101", "wide_resnet50_2", "resnext50_32x4d", "seresnet50", "gcresnet33ts",
    "skresnet34", "densenet121", "densenet201", "vgg11_bn", "vgg19", "inception_v3", "xception41", "dla60", "hrnet_w18",
    "repvgg_a2", "cspdarknet53", "ese_vovnet39b", "dm_nfnet_f0", "efficientnet_b0", "efficientnet_b3",
    "efficientnet_lite0",
    "tf_efficientnetv2_s", "mobilenetv2_100", "mobilenetv3_small_100", "mobilenetv4_conv_medium", "mnasnet_100",
    "regnety_016", "regnetx_032", "regnety_080", "ghostnetv2_100", "lcnet_100", "convnext_tiny", "convnext_base",
    "convnextv2_nano", "poolformer_s12", "poolformerv2_s12", "convmixer_768_32", "vit_tiny_patch16_224",
    "vit_medium_patch16_gap_240", "vit_large_patch16_224", "deit_small_distilled_patch16_224",
    "beitv2_base_patch16_224", "eva02_small_patch14_224", "swin_tiny_patch4_window7_224",
    "swin_base_patch4_window7_224", "swinv2_tiny_window8_256", "mixer_s32_224", "resmlp_12_224", "gmlp_s16_224",
    "xcit_tiny_12_p16_224",
    "xcit_medium_24_p16_224", "coatnet_1_rw_224", "maxxvit_rmlp_nano_rw_256", "maxvit_rmlp_small_rw_224", "mobilevit_s",
    "edgenext_small", "pvt_v2_b1", "twins_svt_small", "cait_xxs24_224", "focalnet_tiny_srf", "davit_tiny",
    "efficientformer_l1", "fastvit_t8", "levit_256", "volo_d1_224", "crossvit_15_240", "nest_tiny",
)  # fmt: skip

_BERTS = {
    "base": {},
    "small": {"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 2048},
    "wide": {"hidden_size": 1280, "num_hidden_layers": 2, "num_attention_heads": 20, "intermediate_size": 5120},
    "xlarge": {"hidden_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 16, "intermediate_size": 8192},
}  # fmt: skip
_LLAMAS = {
    "135m": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 2, "num_attention_heads": 9,
             "num_key_value_heads": 3, "vocab_size": 49152},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 2, "num_attention_heads": 32,
           "num_key_value_heads": 8, "vocab_size": 128256},
    "3b": {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 2, "num_attention_heads": 24,
           "num_key_value_heads": 8, "vocab_size": 128256},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 2, "num_attention_heads": 32,
           "num_key_value_heads": 8, "vocab_size": 128256},
    "phi": {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 2, "num_attention_heads": 32,
            "num_key_value_heads": 32, "vocab_size": 51200},
    "500m": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 2, "num_attention_heads": 14,
             "num_key_value_heads": 2, "vocab_size": 151936},
}  # fmt: skip


def _with(configuration: Configuration, name: str, **options: Any) -> Configuration:
    return Configuration(f"{configuration.name} {name}", configuration.build, configuration.inputs, options)


def collected() -> list[Configuration]:
    """Batches, types and layouts are spread over the models, so that every kind of layer is seen in every type."""
    found: list[Configuration] = []
    sides = {"inception_v3": 299, "xception41": 299, "efficientnet_b3": 300, "dm_nfnet_f0": 192, "efficientnet_b0": 240,
             "vit_medium_patch16_gap_240": 240, "swinv2_tiny_window8_256": 256, "maxxvit_rmlp_nano_rw_256": 256,
             "mobilevit_s": 256, "crossvit_15_240": 240, "tf_efficientnetv2_s": 288}  # fmt: skip
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("fp32", {}), ("bf16", BF16), ("bf16 nhwc", BF16 | NHWC), ("fp32 nhwc", NHWC), ("fp16", FP16),
    ]  # fmt: skip
    for place, name in enumerate(_IMAGE_MODELS):
        side = sides.get(name, 224)
        for number, (kind, options) in enumerate(kinds):
            batch = (16, 32, 8, 64, 1)[(place + number) % 5]
            found.append(_timm(name, kind, batch, side, options))
        for number, (kind, options) in enumerate(kinds[:3]):
            batch = (16, 32, 64)[(place + number) % 3]
            if (place + number) % 2 == 0:
                found.append(_timm(name, f"train {kind}", batch, side, TRAIN | options))
    for name, settings in _BERTS.items():
        for number, (batch, length) in enumerate(((8, 128), (16, 512), (32, 128), (1, 384), (4, 256))):
            kind, options = [("fp32", {}), ("bf16", BF16), ("fp16", FP16)][number % 3]
            one = _hf(f"bert-{name} {kind} b{batch} s{length}", "BertForMaskedLM", "BertConfig", settings,
                      tokens(batch, length, True), **options)  # fmt: skip
            found += [one, _with(one, "train", **TRAIN, **options)]
    for name, settings in _LLAMAS.items():
        for number, (batch, length) in enumerate(((1, 1024), (4, 512), (2, 512), (8, 128), (1, 2048), (16, 64))):
            kind, options = ("fp32", {}) if number == 3 else ("bf16", BF16)
            one = _hf(f"llama-{name} {kind} b{batch} s{length}", "LlamaForCausalLM", "LlamaConfig", settings,
                      tokens(batch, length, True), **options)  # fmt: skip
            found.append(one)
            if number % 2 == 0:
                found.append(_with(one, "train", **TRAIN, **options))
    for width, heads in ((768, 12), (1280, 20), (512, 8)):
        settings = {"n_embd": width, "n_layer": 2, "n_head": heads}
        for batch, length, options in ((4, 256, {}), (4, 512, BF16), (8, 1024, BF16), (1, 512, {})):
            kind = "bf16" if options else "fp32"
            one = _hf(f"gpt2-{width} {kind} b{batch} s{length}", "GPT2LMHeadModel", "GPT2Config", settings,
                      tokens(batch, length, True), **options)  # fmt: skip
            found += [one, _with(one, "train", **TRAIN, **options)]
    for width in (512, 1024):
        settings = {"d_model": width, "d_kv": 64, "d_ff": 4 * width, "num_layers": 2, "num_heads": width // 64,
                    "decoder_start_token_id": 0}  # fmt: skip
        for options in ({}, BF16):
            kind = "bf16" if options else "fp32"
            one = _hf(f"t5-{width} {kind}", "T5ForConditionalGeneration", "T5Config", settings, pairs(8, 256, 64),
                      **options)  # fmt: skip
            found += [one, _with(one, "train", **TRAIN, **options)]
            bart = {"d_model": width, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": width // 64,
                    "decoder_attention_heads": width // 64, "encoder_ffn_dim": 4 * width,
                    "decoder_ffn_dim": 4 * width}  # fmt: skip
            found.append(_hf(f"bart-{width} {kind}", "BartForConditionalGeneration", "BartConfig", bart,
                             pairs(4, 512, 128), **options))  # fmt: skip
    for width in (384, 512, 1024):
        settings = {"d_model": width, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": width // 64,
                    "decoder_attention_heads": width // 64, "encoder_ffn_dim": 4 * width,
                    "decoder_ffn_dim": 4 * width, "num_mel_bins": 80}  # fmt: skip
        found.append(_hf(f"whisper-{width} bf16", "WhisperForConditionalGeneration", "WhisperConfig", settings,
                         speech(2, 32), **BF16))  # fmt: skip
        found.append(_hf(f"whisper-{width} fp32", "WhisperForConditionalGeneration", "WhisperConfig", settings,
                         speech(8, 64)))  # fmt: skip
    opt = OPT_350M | {"hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 2, "num_attention_heads": 12,
                      "word_embed_proj_dim": 768, "do_layer_norm_before": True}  # fmt: skip
    found.append(_hf("opt-125m fp32 b4 s256", "OPTForCausalLM", "OPTConfig", opt, tokens(4, 256)))
    for kind, options in (("fp32", {}), ("bf16 nhwc", BF16 | NHWC), ("bf16", BF16)):
        for width, side in ((32, 256), (48, 192)):
            one = Configuration(f"unet-{width} {kind}", lambda width=width: UNet(width), image(8, side), options)
            found += [one, _with(one, "train", **TRAIN, **options)]
    for kind, cell in (("lstm", nn.LSTM), ("gru", nn.GRU)):
        for width, layers, batch, length in ((512, 2, 32, 128), (768, 1, 64, 200), (1024, 1, 16, 100), (256, 3, 64, 64),
                                             (1024, 3, 64, 128), (2048, 1, 64, 64), (512, 1, 128, 256)):  # fmt: skip
            for options in ({}, BF16):
                one = Configuration(
                    f"{kind}-{width}x{layers} b{batch} s{length} {'bf16' if options else 'fp32'}",
                    lambda cell=cell, width=width, layers=layers: Recurrent(cell, width, layers),
                    sequence(batch, length, width), options,
                )  # fmt: skip
                found += [one, _with(one, "train", **TRAIN, **options)]
    return [*found, *recurrent_layers()]


class Layers(nn.Module):
    """Recurrent layers alone."""

    def __init__(self, kind: type[nn.RNNBase], width: int, units: int, layers: int, both: bool) -> None:
        super().__init__()
        self.layers = kind(width, units, layers, batch_first=True, bidirectional=both)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)[0]
        return out


def recurrent_layers(count: int = 44) -> list[Configuration]:
    """Sizes drawn at random, since models of the list have few: each as LSTM and GRU, in two types, with training."""
    choose = random.Random(3)
    found = []
    for _ in range(count):
        units = choose.choice((64, 128, 192, 256, 384, 512, 512, 640, 768, 1024, 1280, 1536, 2048))
        width = units if choose.random() < 0.6 else choose.choice((40, 80, 128, 300, 512, 1024))
        batch, steps = choose.choice((1, 2, 4, 8, 16, 32, 64, 128)), round(2 ** choose.uniform(4, 9))
        layers, both = choose.choice((1, 1, 2, 2, 3, 4)), choose.random() < 0.35
        for cell in (nn.LSTM, nn.GRU):
            for options in ({}, BF16):
                name = f"rnn {cell.__name__} {width}-{units}x{layers}{'b' if both else ''} b{batch} s{steps}"
                one = Configuration(
                    f"{name} {'bf16' if options else 'fp32'}",
                    partial(Layers, cell, width, units, layers, both),
                    sequence(batch, steps, width), options,
                )  # fmt: skip
                found += [one, _with(one, "train", **TRAIN, **options)]
    return found


# Models of the collection that are also measured whole, to learn what a sum of kernels leaves out.
WHOLE = (
    "resnet101 bf16 nhwc b1", "densenet121 fp32 b64", "mobilenetv2_100 fp32 b1", "efficientnet_b0 bf16 b32",
    "convnext_tiny bf16 b1", "regnety_016 fp16 b8", "swin_tiny_patch4_window7_224 fp32 b16",
    "vit_large_patch16_224 bf16 b8", "xcit_tiny_12_p16_224 fp32 b32", "bert-base fp32 b8 s128",
    "bert-base bf16 b16 s512",
    "llama-3b bf16 b2 s512", "gpt2-768 bf16 b4 s512", "t5-512 bf16", "unet-32 bf16 nhwc", "lstm-1024x3 b64 s128 fp32",
    "resnet34 train fp32 b16",
    "resnext50_32x4d train fp32 b32", "convnext_tiny train bf16 b32", "vit_tiny_patch16_224 train bf16 b32",
    "swin_tiny_patch4_window7_224 train bf16 b32", "llama-1b bf16 b1 s1024 train", "bert-base bf16 b16 s512 train",
)  # fmt: skip
