"""GGUF files of small decoders, written with the `gguf` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "BF16", "F16", "F32", "MXFP4")
WIDTH, INNER, VOCABULARY, HEADS, KV_HEADS = 256, 512, 64, 4, 2


def tensors(layers: int = 2, experts: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray[Any, Any]:
        return rng.standard_normal(shape).astype(np.float32)

    head = WIDTH // HEADS
    found = {"token_embd.weight": matrix(VOCABULARY, WIDTH), "output_norm.weight": matrix(WIDTH)}
    for layer in range(layers):
        parts = {
            "attn_norm": matrix(WIDTH), "attn_q": matrix(WIDTH, WIDTH), "attn_k": matrix(KV_HEADS * head, WIDTH),
            "attn_v": matrix(KV_HEADS * head, WIDTH), "attn_output": matrix(WIDTH, WIDTH), "ffn_norm": matrix(WIDTH),
        }  # fmt: skip
        if experts:
            parts |= {
                "ffn_gate_inp": matrix(experts, WIDTH), "ffn_gate_exps": matrix(experts, INNER, WIDTH),
                "ffn_up_exps": matrix(experts, INNER, WIDTH), "ffn_down_exps": matrix(experts, WIDTH, INNER),
            }  # fmt: skip
        else:
            parts |= {
                "ffn_gate": matrix(INNER, WIDTH), "ffn_up": matrix(INNER, WIDTH), "ffn_down": matrix(WIDTH, INNER),
            }  # fmt: skip
        found |= {f"blk.{layer}.{name}.weight": value for name, value in parts.items()}
    return found


def write_gguf(path: Path, kind: str = "Q4_0", *, layers: int = 2, experts: int = 0, window: int = 0) -> Path:
    """Matrices in the type asked for, the rest in float32."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
    if window:
        writer.add_sliding_window(window)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token {number}" for number in range(VOCABULARY)])
    number = GGMLQuantizationType[kind]
    for name, value in tensors(layers, experts).items():
        if value.ndim > 1 and kind != "F32":
            writer.add_tensor(name, quantize(value, number), raw_dtype=number)
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
