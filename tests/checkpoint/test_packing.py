from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from torchgauge.checkpoint import Index, Role, open_checkpoint

INPUTS, OUTPUTS, GROUP = 256, 96, 64
GROUPS = INPUTS // GROUP


def saved(folder: Path, state: dict[str, torch.Tensor]) -> Index:
    save_file(state, folder / "m.safetensors")
    return open_checkpoint(folder / "m.safetensors")


def ints(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_bitsandbytes_4_bit_takes_the_shape_from_its_state(tmp_path: Path, kind: str) -> None:
    note = torch.tensor(list(json.dumps({"quant_type": kind, "shape": [7, 9]}).encode()), dtype=torch.uint8)
    index = saved(
        tmp_path,
        {
            "fc.weight": ints(32, 1, dtype=torch.uint8),
            "fc.weight.absmax": torch.ones(1),
            "fc.weight.quant_map": torch.ones(16),
            f"fc.weight.quant_state.bitsandbytes__{kind}": note,
            "norm.weight": torch.ones(9),
        },
    )
    assert index.logical_params == 63 + 9


def test_bitsandbytes_4_bit_without_a_state_is_two_values_to_a_byte(tmp_path: Path) -> None:
    index = saved(tmp_path, {"fc.weight": ints(32, 1, dtype=torch.uint8), "fc.weight.absmax": torch.ones(1)})
    assert index.logical_params == 64


def test_a_packed_state_that_lies_about_its_shape_is_not_believed(tmp_path: Path) -> None:
    note = torch.tensor(list(json.dumps({"shape": [10**9, 10**9]}).encode()), dtype=torch.uint8)
    state = {"w": ints(32, 1, dtype=torch.uint8), "w.absmax": torch.ones(1), "w.quant_state.bitsandbytes__nf4": note}
    assert saved(tmp_path, state).logical_params == 64


def test_bitsandbytes_8_bit_is_one_value_to_a_byte(tmp_path: Path) -> None:
    index = saved(tmp_path, {"fc.weight": ints(5, 7, dtype=torch.int8), "fc.SCB": torch.ones(5)})
    assert index.logical_params == 35


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("has_order", [False, True])
def test_gptq_packs_along_the_inputs(tmp_path: Path, bits: int, has_order: bool) -> None:
    state = {
        "q.qweight": ints(INPUTS * bits // 32, OUTPUTS),
        "q.qzeros": ints(GROUPS, OUTPUTS * bits // 32),
        "q.scales": torch.ones(GROUPS, OUTPUTS, dtype=torch.float16),
    }
    if has_order:
        state["q.g_idx"] = ints(INPUTS)
    index = saved(tmp_path, state)
    assert index.logical_params == INPUTS * OUTPUTS
    assert [entry.name for entry in index.entries if entry.role is Role.PARAMETER] == ["q.qweight"]


def test_awq_packs_along_the_outputs(tmp_path: Path) -> None:
    state = {
        "q.qweight": ints(INPUTS, OUTPUTS // 8),
        "q.qzeros": ints(GROUPS, OUTPUTS // 8),
        "q.scales": torch.ones(GROUPS, OUTPUTS, dtype=torch.float16),
    }
    assert saved(tmp_path, state).logical_params == INPUTS * OUTPUTS


def test_compressed_tensors_store_their_shape(tmp_path: Path) -> None:
    state = {
        "q.weight_packed": ints(OUTPUTS, INPUTS // 8),
        "q.weight_scale": torch.ones(OUTPUTS, GROUPS),
        "q.weight_shape": torch.tensor([OUTPUTS, INPUTS - 3]),
    }
    assert saved(tmp_path, state).logical_params == OUTPUTS * (INPUTS - 3)


@pytest.mark.parametrize("scale", ["weight_scale", "weight_scale_inv"])
def test_the_scales_of_fp8_are_no_parameters(tmp_path: Path, scale: str) -> None:
    state = {
        "q.weight": torch.ones(6, 4).to(torch.float8_e4m3fn),
        f"q.{scale}": torch.ones(1),
        "q.input_scale": torch.ones(1),
    }
    assert saved(tmp_path, state).logical_params == 24


def test_mxfp4_blocks_hold_two_values_to_a_byte(tmp_path: Path) -> None:
    state = {
        "experts.up_proj_blocks": ints(2, 6, 3, 16, dtype=torch.uint8),
        "experts.up_proj_scales": ints(2, 6, 3, dtype=torch.uint8),
        "experts.up_proj_bias": torch.ones(2, 6),
    }
    assert saved(tmp_path, state).logical_params == 2 * 6 * 3 * 32 + 12


def test_plain_integers_are_not_taken_for_weights(tmp_path: Path) -> None:
    index = saved(tmp_path, {"ids": ints(4, 4), "w": torch.ones(3), "conv_blocks": torch.ones(2)})
    assert index.logical_params == 5
