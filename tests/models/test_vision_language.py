"""Models of transformers that take pixels and text, built from small configs: they put image features in the place of
image tokens, count patches, cut images up. The MACs are those of torch's own counter, with attention written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import torchgauge as tg
from torchgauge.source import ensure_torchvision_imports

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Packages change the process when they are imported: before a test looks at it."""
    ensure_torchvision_imports()
    assert transformers.Qwen2VLForConditionalGeneration


IMAGE = 150
SIGHT: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
TEXT: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 200, "head_dim": 8, "pad_token_id": 0,
}  # fmt: skip
QWEN: dict[str, Any] = {
    "image_token_id": IMAGE, "vision_start_token_id": 151, "vision_end_token_id": 152, "video_token_id": 153,
    "text_config": {**TEXT, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}},
}  # fmt: skip
PATCHES: dict[str, Any] = {"num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}


def ids(images: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.tensor([[1, *[IMAGE] * images, 5, 6, 7]])}


def pixels(*shape: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.ones(*shape)}


def qwen(name: str, vision: dict[str, Any]) -> tuple[Any, dict[str, torch.Tensor]]:
    config = getattr(transformers, f"{name}Config")(vision_config={**PATCHES, **vision}, **QWEN)
    text = ids(4)
    grid = {"image_grid_thw": torch.tensor([[1, 4, 4]]), "mm_token_type_ids": (text["input_ids"] == IMAGE).int()}
    return getattr(transformers, f"{name}ForConditionalGeneration")(config), text | pixels(16, 96) | grid


def qwen2_vl() -> tuple[Any, dict[str, torch.Tensor]]:
    return qwen("Qwen2VL", {"depth": 1, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2})


def qwen2_5_vl() -> tuple[Any, dict[str, torch.Tensor]]:
    sizes = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 32}
    return qwen("Qwen2_5_VL", {**sizes, "window_size": 16, "fullatt_block_indexes": [1]})


def llava() -> tuple[Any, dict[str, torch.Tensor]]:
    vision, text = transformers.CLIPVisionConfig(**SIGHT), transformers.LlamaConfig(**TEXT)
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE, vision_feature_layer=-1
    )
    return transformers.LlavaForConditionalGeneration(config), ids(16) | pixels(1, 3, 32, 32)


def llava_next() -> tuple[Any, dict[str, torch.Tensor]]:
    vision, text = transformers.CLIPVisionConfig(**SIGHT), transformers.LlamaConfig(**TEXT)
    config = transformers.LlavaNextConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE, vision_feature_layer=-1,
        image_grid_pinpoints=[[32, 32], [64, 32]],
    )  # fmt: skip
    tiles = pixels(1, 2, 3, 32, 32) | {"image_sizes": torch.tensor([[32, 32]])}
    return transformers.LlavaNextForConditionalGeneration(config), ids(16 + 4 * 5) | tiles


def idefics3() -> tuple[Any, dict[str, torch.Tensor]]:
    text = transformers.LlamaConfig(**TEXT)
    config = transformers.Idefics3Config(vision_config=SIGHT, text_config=text, image_token_id=IMAGE, scale_factor=2)
    return transformers.Idefics3ForConditionalGeneration(config), ids(4) | pixels(1, 1, 3, 32, 32)


def smolvlm() -> tuple[Any, dict[str, torch.Tensor]]:
    text = transformers.LlamaConfig(**TEXT)
    config = transformers.SmolVLMConfig(vision_config=SIGHT, text_config=text, image_token_id=IMAGE, scale_factor=2)
    return transformers.SmolVLMForConditionalGeneration(config), ids(4) | pixels(1, 1, 3, 32, 32)


def paligemma() -> tuple[Any, dict[str, torch.Tensor]]:
    vision, text = transformers.SiglipVisionConfig(**SIGHT, projection_dim=32), transformers.GemmaConfig(**TEXT)
    config = transformers.PaliGemmaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE, projection_dim=32
    )
    return transformers.PaliGemmaForConditionalGeneration(config), ids(16) | pixels(1, 3, 32, 32)


def internvl() -> tuple[Any, dict[str, torch.Tensor]]:
    vision = {**SIGHT, "image_size": [32, 32], "patch_size": [8, 8]}
    text = transformers.Qwen2Config(**TEXT)
    config = transformers.InternVLConfig(
        vision_config=vision, text_config=text, image_token_id=IMAGE, downsample_ratio=0.5
    )
    return transformers.InternVLForConditionalGeneration(config), ids(4) | pixels(1, 3, 32, 32)


def detr() -> tuple[Any, dict[str, torch.Tensor]]:
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=32,
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64,
        decoder_ffn_dim=64, num_queries=10,
    )  # fmt: skip
    return transformers.DetrForObjectDetection(config), pixels(1, 3, 64, 64)


ALWAYS = (qwen2_vl, idefics3, detr)
FULL = (qwen2_5_vl, llava, llava_next, smolvlm, paligemma, internvl)


@pytest.mark.parametrize("build", [*ALWAYS, *(pytest.param(build, marks=pytest.mark.slow) for build in FULL)])
@pytest.mark.filterwarnings("ignore")
def test_pixels_and_text_are_counted_as_torch_counts_them(build: Any) -> None:
    model, inputs = build()
    model.eval().set_attn_implementation("eager")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**inputs)
    found = tg.analyze(model, inputs=inputs, advice=False)
    assert 2 * found.totals.macs == counter.get_total_flops()
    assert found.totals.params == sum(tensor.numel() for tensor in model.parameters())
    assert found.totals.uncounted_ops == 0
    assert found.capture.run.warnings == ()
    with torch.no_grad():
        model(**inputs)
