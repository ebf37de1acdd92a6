from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.weights.packing_files import E2M1, File, bitsandbytes, gptq, json_bytes, pack_awq, pack_bytes, pack_words
from torchgauge.weights.packings import dequantized_figures, find_packing, unpack


def values_of(file: File, name: str) -> NDArray[np.float32]:
    packing = find_packing(file.entries[name], file.entries, file.read)
    assert packing is not None
    return np.concatenate([block.values for block in packing.blocks()])


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shape", [(24, 64), (7, 9)])
def test_four_bits_are_a_table_times_the_scale_of_their_block(shape: tuple[int, int], nested: bool) -> None:
    file, expected = bitsandbytes(shape, nested=nested)
    np.testing.assert_array_equal(values_of(file, "w"), expected)
    packing = find_packing(file.entries["w"], file.entries, file.read)
    assert packing is not None
    assert packing.shape == shape


def test_blocks_are_bounded_and_their_cuts_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    file, expected = bitsandbytes((40, 512), nested=True)
    monkeypatch.setattr("torchgauge.weights.packings.bitsandbytes.BLOCK_VALUES", 1024)
    np.testing.assert_array_equal(values_of(file, "w"), expected)
    assert file.largest_read <= 1024
    monkeypatch.setattr("torchgauge.weights.packings.packing.BLOCK_VALUES", 256)
    other, values = gptq(3)
    np.testing.assert_array_equal(values_of(other, "q.qweight"), values)


def test_eight_bits_are_scaled_by_rows() -> None:
    codes = np.random.default_rng(0).integers(-127, 128, (5, 7)).astype(np.int8)
    largest = np.linspace(1, 2, 5, dtype=np.float32)
    file = File({"fc.weight": codes, "fc.SCB": largest, "fc.weight_format": np.zeros((), np.uint8)})
    np.testing.assert_allclose(values_of(file, "fc.weight"), (codes * (largest / 127)[:, None]).ravel(), rtol=1e-7)


def test_an_order_of_another_gpu_is_not_guessed() -> None:
    tensors = {"fc.weight": np.ones((5, 7), np.int8), "fc.SCB": np.ones(5, np.float32), "fc.weight_format": np.uint8(2)}
    file = File({name: np.asarray(array) for name, array in tensors.items()})
    assert find_packing(file.entries["fc.weight"], file.entries, file.read) is None


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("order", [False, True])
def test_gptq_adds_one_to_its_zero_points(bits: int, order: bool) -> None:
    file, expected = gptq(bits, order=order)
    np.testing.assert_array_equal(values_of(file, "q.qweight"), expected)
    packing = find_packing(file.entries["q.qweight"], file.entries, file.read)
    assert packing is not None
    assert (packing.bits, packing.shape, packing.is_transposed) == (bits, (96, 64), True)


@pytest.mark.parametrize("place", ["config.json", "quantize_config.json"])
def test_gptq_v2_says_in_its_configuration_that_zero_points_are_as_they_are(tmp_path: Path, place: str) -> None:
    inner = {"checkpoint_format": "gptq_v2"}
    (tmp_path / place).write_text(json.dumps({"quantization_config": inner} if place == "config.json" else inner))
    file, expected = gptq(4, folder=str(tmp_path), true_zeros=True)
    np.testing.assert_array_equal(values_of(file, "q.qweight"), expected)


def test_awq_words_hold_the_even_columns_first() -> None:
    random = np.random.default_rng(1)
    codes, zeros = random.integers(0, 16, (64, 16)), random.integers(0, 16, (2, 16))
    scales = random.uniform(0.01, 0.02, (2, 16)).astype(np.float16)
    file = File({"q.qweight": pack_awq(codes), "q.qzeros": pack_awq(zeros), "q.scales": scales})
    group = np.arange(64) // 32
    expected = (codes - zeros[group]).astype(np.float32) * scales[group].astype(np.float32)
    np.testing.assert_array_equal(values_of(file, "q.qweight"), expected.ravel())


@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
@pytest.mark.parametrize("grid", [(), (1,), (200, 1), (2, 3), (200, 3)])
def test_fp8_is_scaled_by_tensor_row_or_block(name: str, grid: tuple[int, ...]) -> None:
    """(2, 3) is DeepSeek's: blocks of 128 × 128, of which the last are smaller."""
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(200, 384, generator=random).to(torch.float8_e4m3fn)
    scales = torch.rand(grid, generator=random) + 0.5
    tensors = {"q.weight": weight.view(torch.uint8).numpy(), f"q.{name}": scales.numpy()}
    file = File(tensors, {"q.weight": "float8_e4m3fn"})
    each = scales.reshape(*grid, *(1,) * (2 - len(grid)))
    if each.numel() > 1 and grid != (200, 1):
        rows = 1 if grid[0] == 200 else 128
        each = each.repeat_interleave(rows, 0)[:200].repeat_interleave(128, 1)
    expected = weight.float() * each
    np.testing.assert_array_equal(values_of(file, "q.weight"), expected.numpy().ravel())


def test_fp8_agrees_with_what_transformers_makes_of_it() -> None:
    module = pytest.importorskip("transformers.integrations.finegrained_fp8")
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(256, 128, generator=random).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 1, generator=random)
    file = File(
        {"q.weight": weight.view(torch.uint8).numpy(), "q.weight_scale_inv": scales.numpy()},
        {"q.weight": "float8_e4m3fn"},
    )
    theirs = module.Fp8Dequantize(None)._dequantize_one(weight, scales, torch.float32)
    np.testing.assert_array_equal(values_of(file, "q.weight"), theirs.numpy().ravel())


def test_int8_with_zero_points_is_shifted_before_it_is_scaled() -> None:
    codes = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
    scales, zeros = np.array([[1], [2], [4]], np.float32), np.array([[0], [1], [-1]], np.int8)
    file = File({"q.weight": codes, "q.weight_scale": scales, "q.weight_zero_point": zeros})
    np.testing.assert_array_equal(values_of(file, "q.weight"), ((codes - zeros) * scales).ravel())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_compressed_tensors_hold_signed_codes_plus_half_their_range(bits: int, has_zeros: bool) -> None:
    random = np.random.default_rng(2)
    half = 1 << (bits - 1)
    codes = random.integers(-half, half, (16, 64))
    scales = random.uniform(0.5, 1, (16, 2)).astype(np.float32)
    zeros = random.integers(-half, half, (16, 2)) if has_zeros else np.zeros((16, 2), np.int64)
    tensors: dict[str, NDArray[Any]] = {
        "q.weight_packed": np.ascontiguousarray(pack_words((codes + half).T, bits).T),
        "q.weight_scale": scales,
        "q.weight_shape": np.array([16, 64]),
    }
    if has_zeros:
        tensors["q.weight_zero_point"] = pack_words(zeros + half, bits)
    file = File(tensors)
    expected = (codes - zeros.repeat(32, axis=1)) * scales.repeat(32, axis=1)
    np.testing.assert_array_equal(values_of(file, "q.weight_packed"), expected.astype(np.float32).ravel())


def mxfp4_file() -> tuple[File, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (2, 6, 3, 16), generator=random, dtype=torch.uint8)
    scales = torch.randint(110, 140, (2, 6, 3), generator=random, dtype=torch.uint8)
    return File({"up_proj_blocks": blocks.numpy(), "up_proj_scales": scales.numpy()}), blocks, scales


def test_mxfp4_agrees_with_its_definition_and_with_transformers() -> None:
    file, blocks, scales = mxfp4_file()
    codes = np.stack((blocks.numpy() & 15, blocks.numpy() >> 4), axis=-1).reshape(2, 6, 3, 32)
    expected = E2M1[codes] * np.exp2(scales.numpy().astype(np.float32) - 127)[..., None]
    np.testing.assert_array_equal(values_of(file, "up_proj_blocks"), expected.ravel())
    module = pytest.importorskip("transformers.integrations.mxfp4")
    theirs = module.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # transposed for its matmul
    np.testing.assert_array_equal(expected.reshape(2, 6, 96), theirs.transpose(1, 2).numpy())


@pytest.mark.parametrize("maker", ["modelopt", "compressed-tensors"])
def test_nvfp4_has_a_scale_of_scales(maker: str) -> None:
    random = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (4, 64), generator=random).numpy()
    scales = (torch.rand(4, 4, generator=random) + 0.5).to(torch.float8_e4m3fn)
    own, whole, value = (
        ("weight", "weight_scale_2", 0.25) if maker == "modelopt" else ("weight_packed", "weight_global_scale", 4)
    )
    tensors: dict[str, NDArray[Any]] = {
        f"q.{own}": pack_bytes(codes, high_first=False).reshape(4, 32),
        "q.weight_scale": scales.view(torch.uint8).numpy(),
        f"q.{whole}": np.array([value], np.float32),
    }
    file = File(tensors, {"q.weight_scale": "float8_e4m3fn"})
    expected = E2M1[codes] * (scales.float().numpy() * 0.25).repeat(16, axis=1)
    np.testing.assert_array_equal(values_of(file, f"q.{own}"), expected.ravel())


def test_plain_tensors_and_parts_that_do_not_fit_are_left_alone() -> None:
    tensors: dict[str, NDArray[Any]] = {
        "plain": np.ones((4, 4), np.float32),
        "q.qweight": np.ones((4, 8), np.int32),
        "q.scales": np.ones((2, 9), np.float16),
        "q.qzeros": np.ones((2, 1), np.int32),
        "r.weight": np.ones((5, 4), np.int8),
        "r.weight_scale": np.ones((3, 3), np.float32),
        "w": np.ones((32, 1), np.uint8),
        "w.absmax": np.ones(7, np.float32),
        "w.quant_map": np.ones(16, np.float32),
        "w.quant_state.bitsandbytes__nf4": json_bytes({"blocksize": 64, "shape": [8, 8]}),
    }
    file = File(tensors)
    for name in ("plain", "q.qweight", "r.weight", "w"):
        assert find_packing(file.entries[name], file.entries, file.read) is None


def test_an_order_beyond_the_groups_is_refused() -> None:
    file, _ = gptq(4, order=True)
    broken = File(
        {
            name: np.frombuffer(file.read(entry, 0, entry.nbytes), entry.spec.dtype).reshape(entry.spec.shape)
            for name, entry in file.entries.items()
            if name != "q.g_idx"
        }
        | {"q.g_idx": np.full(96, 3, np.int32)}
    )
    assert find_packing(broken.entries["q.qweight"], broken.entries, broken.read) is None


def test_the_row_of_a_packed_tensor_tells_values_and_codes() -> None:
    file, expected = bitsandbytes((24, 64), nested=False)
    found = unpack(file.entries["w"], file.entries, file.read)
    assert found is not None
    figures: Any = dequantized_figures(found)
    assert figures["packing"] == {"layout": "bitsandbytes nf4", "bits": 4, "shape": [24, 64], "is_transposed": False}
    assert sum(figures["code_counts"]) == 24 * 64
    assert figures["dequantized"]["mean"] == pytest.approx(expected.astype(np.float64).mean(), rel=1e-9)
    assert figures["dequantized"]["std"] == pytest.approx(expected.astype(np.float64).std(), rel=1e-9)
    assert figures["dequantized"]["max"] == expected.max()
    assert "entropy_bits" not in figures["dequantized"]
    assert 3.9 < figures["code_entropy_bits"] <= 4
