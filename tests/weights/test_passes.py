"""Small tensors are read with numpy alone: the figures are those of the compiled kernels."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from torchgauge.source import ensure_torchvision_imports
from torchgauge.weights import FORMATS, kernels, passes
from torchgauge.weights.kernels import quantization
from torchgauge.weights.kernels import rows as row_kernels

DTYPES = ("float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "int64", "uint64", "int32", "uint32", "int16",
          "uint8", "bool", "quint4x2", "bits1x8")  # fmt: skip


def sample(dtype: str) -> NDArray[np.uint8]:
    """Bytes of values near 0, and of any bit pattern: NaN, infinities and subnormal numbers among them."""
    random = np.random.default_rng(7)
    if dtype == "bool":
        return random.integers(0, 2, 999, dtype=np.uint8)
    patterns = random.integers(0, 256, 8 * 500, dtype=np.uint8)
    ordinary = random.normal(size=999).astype(dtype).view(np.uint8) if dtype in ("float32", "float64") else patterns[:0]
    zeros = np.zeros(8 * 3, np.uint8)
    few = np.arange(-700, 700).astype(dtype).view(np.uint8) if "int" in dtype and dtype != "quint4x2" else zeros
    return np.concatenate([ordinary, few, zeros, patterns[: len(patterns) // 8 * 8]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("big_endian", [False, True])
def test_a_tally_is_that_of_the_kernels(dtype: str, big_endian: bool) -> None:
    small, compiled = (
        asdict(tally(sample(dtype), dtype, big_endian=big_endian))
        for tally in (passes.tally_bytes, kernels.tally_bytes)
    )
    for name, value in compiled.items():
        if isinstance(value, float) and name not in ("minimum", "maximum"):
            scale = max(abs(value), abs(compiled["l1"]) * 1e-3) if name in ("mean", "m3") else abs(value)
            assert small[name] == pytest.approx(value, rel=1e-9, abs=1e-9 * scale), name
        else:
            assert np.array_equal(small[name], value), name


@pytest.mark.parametrize("values", [[], [0.0, -0.0], [3.5] * 7, [np.nan, np.inf], [1e-310, 2e-310], [1e300, -1e290]])
def test_extreme_values_are_tallied_as_by_the_kernels(values: list[float]) -> None:
    buffer = np.array(values).view(np.uint8)
    small, compiled = passes.tally_bytes(buffer, "float64"), kernels.tally_bytes(buffer, "float64")
    assert [small.minimum, small.maximum, small.nan, small.inf, small.zeros, small.subnormal] == [
        compiled.minimum, compiled.maximum, compiled.nan, compiled.inf, compiled.zeros, compiled.subnormal,
    ]  # fmt: skip
    for name in ("mean", "m2", "l1"):
        power = {"mean": 1, "m2": 2, "l1": 1}[name]
        scaled = getattr(small, name) * 2.0 ** (power * (small.exponent - compiled.exponent))
        assert scaled == pytest.approx(getattr(compiled, name), rel=1e-12)


def test_the_last_byte_of_a_packed_type_may_be_half_full() -> None:
    buffer = np.array([0x21, 0x43, 0xF5], np.uint8)
    small = passes.tally_bytes(buffer, "quint4x2", elements=5)
    compiled = kernels.tally_bytes(buffer, "quint4x2", elements=5)
    assert small.codes.tolist() == compiled.codes.tolist() == [1, 2, 3, 4, 5]
    assert small.counts.tolist() == compiled.counts.tolist()


@pytest.mark.parametrize("shape", [(7, 300), (40, 128), (12, 5), (1, 1), (3, 129)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_of_formats_and_energies_are_those_of_the_kernels(shape: tuple[int, int], dtype: str) -> None:
    block: Any = (np.random.default_rng(3).normal(size=shape) * 10.0 ** (np.arange(shape[0]) % 9)[:, None]).astype(
        dtype
    )
    block[0] = 0
    small, compiled = passes.quantization_errors(*shape), quantization.CompiledErrors(shape[1])
    for errors in (small, compiled):
        errors.add(block)
    for name in ("rows", "groups", "signal"):
        assert np.allclose(getattr(small, name), getattr(compiled, name), rtol=1e-12, atol=0), name
    assert np.array_equal(small.rows[1], compiled.rows[1])
    found = []
    for add, rest in ((passes.add_energies, (block.size,)), (row_kernels.add_energies, ())):
        rows, columns = np.zeros(shape[0]), np.zeros(shape[1])
        found.append((add(block, rows, columns, *rest), rows, columns))
    for one, other in zip(*found, strict=True):
        assert np.allclose(one, other, rtol=1e-12, atol=0)


def test_errors_of_weighted_values_are_those_of_the_kernels() -> None:
    random = np.random.default_rng(5)
    values, weights = np.append(random.uniform(-1, 1, 400), [1.0, 0.0]) * 0.75, random.integers(1, 9, 402).astype(float)
    small = passes.weighted_errors(values, weights, 0.75, 402)
    compiled = quantization.weighted_errors(values, weights, 0.75)
    assert small.shape == (2, len(FORMATS))
    assert np.allclose(small, compiled, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hashes_are_those_of_the_kernel(dtype: str) -> None:
    random = np.random.default_rng(1)
    block: Any = random.normal(size=(9, 13)).astype(dtype)
    block[2], block[:, 4] = -0.0, 0.0
    row_keys, column_keys = (random.integers(0, 1 << 63, shape, dtype=np.uint64) for shape in ((9, 2), (2, 13)))
    found = []
    for is_small in (True, False):
        hashes = np.zeros((9, 2), np.uint64), np.ones((2, 13), np.uint64), np.ones(9), np.zeros(9)
        if is_small:
            passes.screen(block, row_keys, column_keys, *hashes, block.size)
        else:
            bits = block.view(np.uint32 if dtype == "float32" else np.uint64)
            row_kernels.screen(block, bits, row_keys, column_keys, *hashes)
        found.append(hashes)
    for one, other in zip(*found, strict=True):
        assert np.allclose(one, other, rtol=1e-12) if one.dtype == float else np.array_equal(one, other)


LOADED = """
import sys
from torchgauge.cli import main
from torchgauge.isolation import reader
told = reader.read
def read(channel, work, *args, **options):
    def watched():
        result = work()
        print("loaded", *sorted({"torch", "numba", "scipy"} & sys.modules.keys()))
        return result
    told(channel, watched, *args, **options)
import torchgauge.isolation.process
torchgauge.isolation.process.read = read
status = main(sys.argv[1:])
print("parent", *sorted({"torch", "numba", "scipy"} & sys.modules.keys()))
sys.exit(status)
"""


@pytest.mark.parametrize(("elements", "loaded"), [(64 * 64, []), (300 * 300, ["numba"])])
def test_a_small_file_needs_neither_torch_nor_numba(tmp_path: Path, elements: int, loaded: list[str]) -> None:
    side = int(elements**0.5)
    weights = torch.arange(elements, dtype=torch.float32).reshape(side, side)
    torch.save({"weight": weights, "bias": torch.ones(side)}, tmp_path / "small.pt")
    command = [sys.executable, "-c", LOADED, "weights", str(tmp_path / "small.pt"), "--json", "--no-progress"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *document, reader, parent = done.stdout.splitlines()
    found = json.loads("".join(document))
    assert found["weights"][0]["max"] == elements - 1
    assert found["weights"][0]["spectral_norm"] is not None
    for line in (reader, parent):
        assert [name for name in line.split()[1:] if name != "scipy" or not loaded] == loaded


def analysed(path: Path, *options: str) -> tuple[dict[str, Any], list[str]]:
    """The document of a file, and the packages that its reader and the process around it loaded."""
    command = [sys.executable, "-c", LOADED, "analyze", str(path), "--json", "--no-progress", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *document, reader, parent = done.stdout.splitlines()
    return json.loads("".join(document)), [*reader.split()[1:], *parent.split()[1:]]


def test_a_small_checkpoint_is_described_without_torch_as_with_it(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(12, 12) for _ in range(6)))
    torch.save({f"net.body.{name}": value for name, value in model.state_dict().items()}, tmp_path / "small.pt")
    found, loaded = analysed(tmp_path / "small.pt")
    plain, loaded_with_code = analysed(tmp_path / "small.pt", "--batch", "2")

    assert "torch" not in loaded
    assert "torch" in loaded_with_code
    apart = {"created", "environment", "weight_summary"}
    assert {key: found[key] for key in found.keys() - apart} == {key: plain[key] for key in plain.keys() - apart}


def test_a_small_checkpoint_of_a_known_architecture_still_gets_its_code(tmp_path: Path) -> None:
    ensure_torchvision_imports()
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=20,
        max_position_embeddings=16,
    )  # fmt: skip
    torch.save(transformers.BertModel(config).state_dict(), tmp_path / "bert.pt")
    found, loaded = analysed(tmp_path / "bert.pt")

    assert "torch" in loaded
    assert "BertModel" in found["target"]["format"]
    assert found["totals"]["macs"]
