"""The models that kernels are collected from. None of them is one that `forecast` is compared with."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from models import (  # type: ignore[import-not-found]
    BF16,
    FP16,
    NHWC,
    TRAIN,
    Configuration,
    Recurrent,
    UNet,
    of_timm,
    of_transformers,
)


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


def timm_model(
    name: str, kind: str, batch: int, side: int = 224, options: dict[str, Any] | None = None
) -> Configuration:
    return Configuration(f"{name} {kind} b{batch}", of_timm(name), image(batch, side), options or {})


def text_model(
    name: str, model: str, config: str, settings: dict[str, Any], inputs: Callable[[], dict[str, Any]], **options: Any
) -> Configuration:
    return Configuration(name, of_transformers(model, config, **settings), inputs, options)


OPT_350M = {
    "vocab_size": 50272, "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "word_embed_proj_dim": 512, "do_layer_norm_before": False,
}  # fmt: skip

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
    return Configuration(f"{configuration.name} {name}", configuration.construct, configuration.inputs, options)


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
            found.append(timm_model(name, kind, batch, side, options))
        for number, (kind, options) in enumerate(kinds[:3]):
            batch = (16, 32, 64)[(place + number) % 3]
            if (place + number) % 2 == 0:
                found.append(timm_model(name, f"train {kind}", batch, side, TRAIN | options))
    for name, settings in _BERTS.items():
        for number, (batch, length) in enumerate(((8, 128), (16, 512), (32, 128), (1, 384), (4, 256))):
            kind, options = [("fp32", {}), ("bf16", BF16), ("fp16", FP16)][number % 3]
            one = text_model(f"bert-{name} {kind} b{batch} s{length}", "BertForMaskedLM", "BertConfig", settings,
                      tokens(batch, length, True), **options)  # fmt: skip
            found += [one, _with(one, "train", **TRAIN, **options)]
    for name, settings in _LLAMAS.items():
        for number, (batch, length) in enumerate(((1, 1024), (4, 512), (2, 512), (8, 128), (1, 2048), (16, 64))):
            kind, options = ("fp32", {}) if number == 3 else ("bf16", BF16)
            one = text_model(f"llama-{name} {kind} b{batch} s{length}", "LlamaForCausalLM", "LlamaConfig", settings,
                      tokens(batch, length, True), **options)  # fmt: skip
            found.append(one)
            if number % 2 == 0:
                found.append(_with(one, "train", **TRAIN, **options))
    for width, heads in ((768, 12), (1280, 20), (512, 8)):
        settings = {"n_embd": width, "n_layer": 2, "n_head": heads}
        for batch, length, options in ((4, 256, {}), (4, 512, BF16), (8, 1024, BF16), (1, 512, {})):
            kind = "bf16" if options else "fp32"
            one = text_model(f"gpt2-{width} {kind} b{batch} s{length}", "GPT2LMHeadModel", "GPT2Config", settings,
                      tokens(batch, length, True), **options)  # fmt: skip
            found += [one, _with(one, "train", **TRAIN, **options)]
    for width in (512, 1024):
        settings = {"d_model": width, "d_kv": 64, "d_ff": 4 * width, "num_layers": 2, "num_heads": width // 64,
                    "decoder_start_token_id": 0}  # fmt: skip
        for options in ({}, BF16):
            kind = "bf16" if options else "fp32"
            one = text_model(f"t5-{width} {kind}", "T5ForConditionalGeneration", "T5Config", settings,
                             pairs(8, 256, 64), **options)  # fmt: skip
            found += [one, _with(one, "train", **TRAIN, **options)]
            bart = {"d_model": width, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": width // 64,
                    "decoder_attention_heads": width // 64, "encoder_ffn_dim": 4 * width,
                    "decoder_ffn_dim": 4 * width}  # fmt: skip
            found.append(text_model(f"bart-{width} {kind}", "BartForConditionalGeneration", "BartConfig", bart,
                             pairs(4, 512, 128), **options))  # fmt: skip
    for width in (384, 512, 1024):
        settings = {"d_model": width, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": width // 64,
                    "decoder_attention_heads": width // 64, "encoder_ffn_dim": 4 * width,
                    "decoder_ffn_dim": 4 * width, "num_mel_bins": 80}  # fmt: skip
        found.append(text_model(f"whisper-{width} bf16", "WhisperForConditionalGeneration", "WhisperConfig", settings,
                         speech(2, 32), **BF16))  # fmt: skip
        found.append(text_model(f"whisper-{width} fp32", "WhisperForConditionalGeneration", "WhisperConfig", settings,
                         speech(8, 64)))  # fmt: skip
    opt = OPT_350M | {"hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 2, "num_attention_heads": 12,
                      "word_embed_proj_dim": 768, "do_layer_norm_before": True}  # fmt: skip
    found.append(text_model("opt-125m fp32 b4 s256", "OPTForCausalLM", "OPTConfig", opt, tokens(4, 256)))
    for kind, options in (("fp32", {}), ("bf16 nhwc", BF16 | NHWC), ("bf16", BF16)):
        for width, side in ((32, 256), (48, 192)):
            one = Configuration(f"unet-{width} {kind}", lambda width=width: UNet(width), image(8, side), options)
            found += [one, _with(one, "train", **TRAIN, **options)]
    for kind, cell in (("lstm", "LSTM"), ("gru", "GRU")):
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

    def __init__(self, kind: type[nn.LSTM | nn.GRU], width: int, units: int, layers: int, both: bool) -> None:
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
            options: dict[str, Any]
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
