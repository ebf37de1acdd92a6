"""Graph breaks of public models: each with its reason, its line, and the code of that line.

    python benchmarks/compiled_breaks.py [NAME …]      small configurations, random weights; a table on stdout

The lines are compared with those that `torch._dynamo.explain` gives for the same model and inputs.
"""

from __future__ import annotations

import linecache
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchgauge as tg
from torchgauge.source.packages import import_optional

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 128,
}


def text(kind: str, *, length: int = 16, batch: int = 1, **options: Any) -> tuple[nn.Module, dict[str, Any]]:
    transformers = import_optional("transformers", "x")
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**options))
    return model.eval(), {"input_ids": torch.arange(batch * length).reshape(batch, length) % 100 + 3}


def detector() -> tuple[nn.Module, dict[str, Any]]:
    vision = import_optional("torchvision", "x")
    model = vision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None)
    return model.eval(), {"images": [torch.rand(3, 96, 96)]}


def classifier(kind: str) -> tuple[nn.Module, dict[str, Any]]:
    transformers = import_optional("transformers", "x")
    config = getattr(transformers, f"{kind}Config")(
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=128, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        decoder_start_token_id=2,
    )  # fmt: skip
    ids = torch.arange(16).reshape(1, 16) + 3
    ids[0, -1] = 2
    return getattr(transformers, f"{kind}ForSequenceClassification")(config).eval(), {"input_ids": ids}


def speech() -> tuple[nn.Module, dict[str, Any]]:
    """Trained: parts of its features are masked and layers are dropped by random numbers."""
    transformers = import_optional("transformers", "x")
    config = transformers.Wav2Vec2Config(
        **{**SMALL, "vocab_size": 32}, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3),
        num_feat_extract_layers=2, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, mask_time_length=2,
        mask_time_prob=0.5,
    )  # fmt: skip
    return transformers.Wav2Vec2Model(config).train(), {"input_values": torch.randn(2, 2000)}


XLM = {"emb_dim": 32, "n_layers": 1, "n_heads": 2, "vocab_size": 128}
MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "Longformer": lambda: text("Longformer", **SMALL, attention_window=8),
    "BigBird": lambda: text("BigBird", length=128, **SMALL, block_size=8, num_random_blocks=1),
    "Reformer": lambda: text(
        "Reformer", hidden_size=32, num_attention_heads=2, attention_head_size=16, feed_forward_size=32,
        attn_layers=["lsh", "local"], axial_pos_embds=False, vocab_size=128, lsh_attn_chunk_length=8,
        local_attn_chunk_length=8, num_buckets=4,
    ),
    "XLM": lambda: text("XLM", **XLM),
    "Flaubert": lambda: text("Flaubert", **XLM),
    **{f"{kind} classifier": partial(classifier, kind) for kind in ("Bart", "MBart", "PLBart")},
    "LED": lambda: text(
        "LED", d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=128, attention_window=8,
    ),
    "BigBirdPegasus": lambda: text(
        "BigBirdPegasus", length=128, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=128, block_size=8,
        num_random_blocks=1,
    ),
    "Wav2Vec2, trained": speech,
    "Faster R-CNN": detector,
    "Mixtral": lambda: text("Mixtral", **SMALL, num_key_value_heads=2, num_local_experts=4),
    "Mamba": lambda: text("Mamba", hidden_size=32, num_hidden_layers=1, vocab_size=128),
}  # fmt: skip


def written(source: str | None) -> str:
    """The text of a line `package/file.py:LINE` or `file.py:LINE`."""
    name, _, line = (source or "").rpartition(":")
    folders = [Path(folder) for folder in sys.path if folder.endswith("site-packages")]
    file = next((str(folder / name) for folder in folders if (folder / name).exists()), name)
    return linecache.getline(file, int(line or 0)).strip()


def explained(model: nn.Module, inputs: dict[str, Any]) -> set[str]:
    """The innermost lines of the breaks as torch itself lists them."""
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch._dynamo.explain(model)(**inputs)
    torch._dynamo.reset()
    return {
        f"{Path(reason.user_stack[-1].filename).name}:{reason.user_stack[-1].lineno}" for reason in found.break_reasons
    }


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    print("| model | graphs | breaks | line | code | reason | torch's own list |\n|---|---|---|---|---|---|---|")
    for name in names or MODELS:
        try:
            model, inputs = MODELS[name]()
            mode = "train" if model.training else "inference"
            found = tg.analyze(model, inputs=inputs, execution="compiled", mode=mode, advice=False).capture.compiled
            assert found is not None
            torchs = explained(model, inputs)
        except Exception as error:
            print(f"| {name} | failed: {type(error).__name__}: {str(error)[:200]} |", flush=True)
            continue
        for one in found.breaks or [None]:
            if one is None:
                print(f"| {name} | {len(found.graphs)} | 0 | | | | {sorted(torchs)} |", flush=True)
                continue
            line = (one.source or "").rpartition("/")[2]
            agrees = "same" if line in torchs else "not listed"
            print(
                f"| {name} | {len(found.graphs)} | {len(found.breaks)} | `{one.source}` | `{written(one.source)}` | "
                f"{one.reason[:70]} | {agrees} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
