"""Quantized files recognised by the shapes that their weights have unpacked."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

import torchgauge as tg
from tests.source.transformers_zoo import GROUPED, build
from torchgauge.checkpoint import open_checkpoint
from torchgauge.source import Shape, logical_shapes

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def llama() -> dict[str, Tensor]:
    state: dict[str, Tensor] = build("LlamaForCausalLM", GROUPED).state_dict()
    return state


def is_projection(name: str) -> bool:
    return name.endswith(tuple(f"{part}.weight" for part in PROJECTIONS))


def gptq(name: str, weight: Tensor) -> dict[str, Tensor]:
    """Four bits, eight values to a number, along the inputs."""
    outputs, inputs = weight.shape
    layer, groups = name.removesuffix("weight"), inputs // 32
    packed = torch.zeros(inputs // 8, outputs, dtype=torch.int32)
    zeros, scales = torch.zeros(groups, outputs // 8, dtype=torch.int32), torch.ones(groups, outputs)
    return {f"{layer}qweight": packed, f"{layer}qzeros": zeros, f"{layer}scales": scales}


def eight_bits(name: str, weight: Tensor) -> dict[str, Tensor]:
    return {name: weight.to(torch.float8_e4m3fn), f"{name}_scale_inv": torch.ones(1, 1)}


def saved(path: Path, state: dict[str, Tensor]) -> Path:
    save_file({name: value.contiguous() for name, value in state.items()}, path)
    return path


def shapes(path: Path) -> dict[str, Shape]:
    return logical_shapes(open_checkpoint(path))


def test_packed_weights_have_the_shapes_of_plain_ones(tmp_path: Path) -> None:
    plain = llama()
    for number, pack in enumerate((gptq, eight_bits)):
        packed: dict[str, Tensor] = {}
        for name, weight in plain.items():
            packed |= pack(name, weight) if is_projection(name) else {name: weight.clone()}
        path = saved(tmp_path / f"{number}.safetensors", packed)
        assert shapes(path) == {name: tuple(weight.shape) for name, weight in plain.items()}


def test_blocks_of_four_bits_are_transposed_experts(tmp_path: Path) -> None:
    blocks, scales = (torch.zeros(size, dtype=torch.uint8) for size in ((4, 192, 2, 16), (4, 192, 2)))
    name = "model.layers.0.mlp.experts.gate_up_proj"
    path = saved(tmp_path / "m.safetensors", {f"{name}_blocks": blocks, f"{name}_scales": scales})
    assert shapes(path) == {name: (4, 64, 192)}


def test_a_quantized_model_is_recognised_and_said_to_be_packed(tmp_path: Path) -> None:
    packed: dict[str, Tensor] = {}
    for name, weight in llama().items():
        packed |= gptq(name, weight) if is_projection(name) else {name: weight.clone()}
    a = tg.analyze(str(saved(tmp_path / "m.safetensors", packed)), seq=8, weights=False)
    live = tg.analyze(build("LlamaForCausalLM", GROUPED | {"num_attention_heads": 2, "num_key_value_heads": 1}), seq=8)
    assert a.capture.target.format == "safetensors, inferred: hf:LlamaForCausalLM"
    assert a.totals.macs == live.totals.macs
    assert any("stored packed" in warning for warning in a.capture.run.warnings)
