from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchgauge.source import Candidate, candidate_inputs, import_optional

transformers: Any = import_optional("transformers", "the tests of its inputs")

TEXT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 50}
VISION = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "patch_size": 8}
BART = {
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "vocab_size": 50,
}


def build(model: str, config: str, **settings: Any) -> Any:
    return getattr(transformers, model)(getattr(transformers, config)(**settings)).eval()


def shapes(candidate: Candidate) -> dict[str, tuple[int, ...]]:
    assert candidate.args == ()
    return {name: tuple(value.shape) for name, value in candidate.kwargs.items()}


def clip() -> Any:
    text = {**TEXT, "max_position_embeddings": 12, "eos_token_id": 49}
    vision = {**VISION, "image_size": 32}
    return build("CLIPModel", "CLIPConfig", text_config=text, vision_config=vision, projection_dim=4)


def llava() -> Any:
    text, vision = {"model_type": "llama", **TEXT}, {"model_type": "clip_vision_model", **VISION, "image_size": 32}
    return build("LlavaModel", "LlavaConfig", text_config=text, vision_config=vision, image_token_index=49)


def whisper() -> Any:
    sizes = {"num_mel_bins": 6, "max_source_positions": 10, "max_target_positions": 14}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    return build("WhisperModel", "WhisperConfig", **BART, **sizes, **tokens)


MODELS: list[tuple[str, Callable[[], Any], dict[str, tuple[int, ...]]]] = [
    (
        "GPT-2",
        lambda: build("GPT2LMHeadModel", "GPT2Config", n_layer=1, n_embd=8, n_head=2, vocab_size=50, n_positions=20),
        {"input_ids": (1, 20)},
    ),
    ("BERT", lambda: build("BertModel", "BertConfig", **TEXT), {"input_ids": (1, 128)}),
    ("Mamba", lambda: build("MambaModel", "MambaConfig", **TEXT), {"input_ids": (1, 128)}),
    (
        "T5",
        lambda: build("T5Model", "T5Config", d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=50),
        {"input_ids": (1, 128), "decoder_input_ids": (1, 128)},
    ),
    (
        "BART classifier",
        lambda: build("BartForSequenceClassification", "BartConfig", **BART),
        {"input_ids": (1, 128), "decoder_input_ids": (1, 128)},
    ),
    ("Whisper", whisper, {"input_features": (1, 6, 20), "decoder_input_ids": (1, 14)}),
    ("ViT", lambda: build("ViTModel", "ViTConfig", **VISION, image_size=32), {"pixel_values": (1, 3, 32, 32)}),
    (
        "VideoMAE",
        lambda: build("VideoMAEModel", "VideoMAEConfig", **VISION, image_size=16, num_frames=4),
        {"pixel_values": (1, 4, 3, 16, 16)},
    ),
    ("CLIP", clip, {"input_ids": (1, 12), "pixel_values": (1, 3, 32, 32)}),
    ("LLaVA with text only", llava, {"input_ids": (1, 128)}),
    (
        "LayoutLM",
        lambda: build("LayoutLMModel", "LayoutLMConfig", **TEXT),
        {"input_ids": (1, 128), "bbox": (1, 128, 4)},
    ),
    (
        "AST",
        lambda: build("ASTModel", "ASTConfig", **{**VISION, "patch_size": 4}, max_length=20, num_mel_bins=16),
        {"input_values": (1, 20, 16)},
    ),
    (
        "PatchTST",
        lambda: build("PatchTSTModel", "PatchTSTConfig", context_length=24, num_input_channels=3, d_model=8,
                      num_attention_heads=2, num_hidden_layers=1, ffn_dim=8, patch_length=4, patch_stride=4),
        {"past_values": (1, 24, 3)},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "expected"), [row[1:] for row in MODELS], ids=[row[0] for row in MODELS])
def test_a_model_runs_with_the_first_candidate(
    make: Callable[[], Any], expected: dict[str, tuple[int, ...]], run: Callable[..., Any]
) -> None:
    model = make()
    candidate = next(candidate_inputs(model))
    assert shapes(candidate) == expected
    run(model, candidate)


def test_waveforms_are_a_second_at_16_khz() -> None:
    with torch.device("meta"):
        model = build("Wav2Vec2Model", "Wav2Vec2Config", num_hidden_layers=1)
    assert shapes(next(candidate_inputs(model))) == {"input_values": (1, 16000)}


def test_detection_models_without_an_image_size_get_800() -> None:
    backbone = {"model_type": "resnet", "depths": [1, 1, 1, 1], "out_features": ["stage4"]}
    with torch.device("meta"):
        model = build("DetrModel", "DetrConfig", backbone_config=backbone, encoder_layers=1, decoder_layers=1)
    candidate = next(candidate_inputs(model))
    assert shapes(candidate) == {"pixel_values": (1, 3, 800, 800)}
    assert candidate.reason == "pixel_values 1×3×800×800: the usual size of detection models"


def test_towers_of_patches_get_the_grid_of_each_image() -> None:
    with torch.device("meta"):
        model = build("Qwen3VLVisionModel", "Qwen3VLVisionConfig", depth=1)
    candidate = next(candidate_inputs(model, batch=2))
    # 224 / 16 = 14 patches a side; a patch has 3 channels, 2 frames and 16 x 16 pixels.
    assert shapes(candidate) == {"hidden_states": (2 * 14 * 14, 3 * 2 * 16 * 16), "grid_thw": (2, 3)}
    assert candidate.kwargs["grid_thw"].tolist() == [[1, 14, 14]] * 2


def test_the_reason_names_what_the_config_said() -> None:
    assert next(candidate_inputs(clip())).reason == (
        "input_ids 1×12: the positions of the model's config; pixel_values 1×3×32×32: image_size of the model's config"
    )


def test_ids_are_real_and_no_special_tokens() -> None:
    with torch.device("meta"):
        model = build("RobertaModel", "RobertaConfig", **TEXT, pad_token_id=1, bos_token_id=0, eos_token_id=2)
    ids = next(candidate_inputs(model)).kwargs["input_ids"]
    assert ids.device.type == "cpu"
    assert ids.dtype is torch.int64
    assert ids.unique().tolist() == [3]


def test_batch_seq_and_type_of_the_user_come_first() -> None:
    candidate = next(candidate_inputs(clip(), batch=3, seq=5, dtype=torch.float16))
    assert shapes(candidate) == {"input_ids": (3, 5), "pixel_values": (3, 3, 32, 32)}
    assert candidate.kwargs["pixel_values"].dtype is torch.float16
    assert candidate.kwargs["pixel_values"].is_meta


def test_a_length_for_whisper_is_that_of_its_text() -> None:
    assert shapes(next(candidate_inputs(whisper(), seq=7))) == {
        "input_features": (1, 6, 20),
        "decoder_input_ids": (1, 7),
    }


def test_keywords_without_tensors_are_kept_with_inferred_inputs(run: Callable[..., Any]) -> None:
    model = build("BertModel", "BertConfig", **TEXT)
    candidate = next(candidate_inputs(model, kwargs={"output_hidden_states": True}))
    assert shapes(Candidate((), {"input_ids": candidate.kwargs["input_ids"]}, None)) == {"input_ids": (1, 128)}
    assert len(run(model, candidate).hidden_states) == 2


def test_a_size_for_ids_makes_ids_at_once() -> None:
    model = build("BertModel", "BertConfig", **TEXT)
    (candidate,) = candidate_inputs(model, input_size=(2, 9))
    assert candidate.args[0].dtype is torch.int64
    assert candidate.reason == "input_ids int64: from its name"
