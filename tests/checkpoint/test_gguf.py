"""GGUF files: every type with its true bits, values as the `gguf` package has them, and damaged files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf")

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

import torchgauge as tg
from tests.checkpoint.gguf_writing import HEADS, TYPES, VOCABULARY, WIDTH, tensors, write_gguf
from torchgauge.checkpoint import open_checkpoint
from torchgauge.checkpoint.formats import BLOCKS, PLAIN
from torchgauge.errors import FormatError
from torchgauge.weights.packings import find_packing


def test_the_table_of_types_is_that_of_the_package() -> None:
    for kind in GGMLQuantizationType:
        if int(kind) in BLOCKS:
            assert BLOCKS[int(kind)] == (kind.name, *GGML_QUANT_SIZES[kind])
        else:
            assert int(kind) in PLAIN


@pytest.mark.parametrize("kind", TYPES)
def test_values_are_those_of_the_package(kind: str, tmp_path: Path) -> None:
    index = open_checkpoint(write_gguf(tmp_path / "model.gguf", kind))
    entries = {entry.name: entry for entry in index.entries}
    entry, value = entries["blk.1.attn_q.weight"], tensors()["blk.1.attn_q.weight"]
    number = GGMLQuantizationType[kind]
    assert entry.offset is not None
    with open(entry.file, "rb") as stream:
        stream.seek(entry.offset)
        stored = np.frombuffer(stream.read(entry.nbytes), np.uint8)
    expected = value if kind == "F32" else dequantize(quantize(value, number), number)
    if int(number) in PLAIN:
        assert entry.encoding is None
        assert entry.spec.shape == (WIDTH, WIDTH)
        return
    block, nbytes = GGML_QUANT_SIZES[number]
    assert 8 * entry.nbytes / (entry.logical_elements or 1) == 8 * nbytes / block
    packing = find_packing(entry, entries, lambda one, at, count: stored[at : at + count].tobytes())
    assert packing is not None
    assert packing.shape == (WIDTH, WIDTH)
    found = np.concatenate([part.values for part in packing.blocks()]).reshape(packing.shape)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", [kind for kind in GGMLQuantizationType if int(kind) in BLOCKS])
def test_blocks_of_any_content_have_the_values_of_the_package(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    """Also of types that the package reads and cannot write; those that it cannot read have their bits."""
    block, nbytes = GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 256, (4, 512 // block * nbytes), dtype=np.uint8)
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("blk.0.attn_q.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (entry,) = open_checkpoint(tmp_path / "model.gguf").entries
    assert 8 * entry.nbytes / (entry.logical_elements or 1) == 8 * nbytes / block
    packing = find_packing(
        entry, {entry.name: entry}, lambda one, at, count: raw.reshape(-1)[at : at + count].tobytes()
    )
    with np.errstate(all="ignore"):
        try:
            expected = dequantize(raw, kind)
        except NotImplementedError:
            assert packing is None
            return
        assert packing is not None
        found = np.concatenate([part.values for part in packing.blocks()]).reshape(packing.shape)
    np.testing.assert_array_equal(found, expected)


def test_weights_are_counted_by_value(tmp_path: Path) -> None:
    found = tg.scan_weights(write_gguf(tmp_path / "model.gguf", "Q4_0"))
    assert found.totals.logical_params == sum(value.size for value in tensors().values())
    rows = {row["name"]: row for row in found.weights}
    assert rows["blk.0.attn_q.weight"]["packing"]["layout"] == "gguf Q4_0"


def test_metadata_and_tokenizer_are_shown(tmp_path: Path) -> None:
    shown = open_checkpoint(write_gguf(tmp_path / "model.gguf")).archive
    assert shown["general.architecture"] == "llama"
    assert shown["tokenizer"] == f"gpt2, {VOCABULARY} tokens"


def test_the_same_view_without_transformers(tmp_path: Path) -> None:
    found = tg.llm(write_gguf(tmp_path / "model.gguf", "Q4_0"))
    assert found.params == sum(value.size for value in tensors().values())
    assert [row["kind"] for row in found.layers] == ["grouped-query"] * 2
    assert found.cache_bytes(10) == 2 * 10 * 2 * (WIDTH // 4) * 2 * 2
    assert found.facts["bits_per_weight"] < 5
    assert found.facts["tied"]
    assert found.context_limit == 4096
    step = found.decode(100)
    matrices = sum(value.size for name, value in tensors().items() if value.ndim > 1)
    # Every matrix once, the embedding as the head; scores and values over 101 tokens.
    assert step.macs == matrices + 2 * 2 * WIDTH * 101
    assert step.weight_bytes == pytest.approx(matrices * 4.5 / 8, rel=0.02)


def test_experts_and_windows_of_a_file(tmp_path: Path) -> None:
    found = tg.llm(write_gguf(tmp_path / "model.gguf", "Q8_0", experts=4, window=32))
    expert = 3 * WIDTH * 512
    assert found.params - found.active_params == 2 * 2 * expert
    assert {row["kind"] for row in found.layers} == {"sliding-window"}
    assert found.cache_bytes(100) == found.cache_bytes(200)


def test_tensors_of_an_unknown_kind_leave_the_weights(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf")
    data = path.read_bytes().replace(b"blk.1.ffn_up", b"blk.1.unheard"[:12])
    path.write_bytes(data)
    assert tg.scan_weights(path).totals.params
    with pytest.raises(tg.InputError, match="unknown architecture"):
        tg.llm(path)


@pytest.mark.parametrize(
    ("at", "content", "message"),
    [
        (4, struct.pack("<I", 1), "version 1"),
        (8, struct.pack("<Q", 1 << 60), "tensors do not fit"),
        (16, struct.pack("<Q", 1 << 50), "metadata fields do not fit"),
        (24, struct.pack("<Q", 1 << 40), "do not fit"),
    ],
)
def test_a_header_that_lies_is_refused(at: int, content: bytes, message: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf")
    data = bytearray(path.read_bytes())
    data[at : at + len(content)] = content
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message):
        open_checkpoint(path)


def test_a_file_that_is_cut_off_gives_the_tensors_before_the_cut(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", "Q8_0")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    assert "bytes are missing at its end" in open_checkpoint(path).warnings[0]
    path.write_bytes(data[:3000])
    with pytest.raises(FormatError):
        open_checkpoint(path)


def test_every_cut_of_the_header_is_one_sentence(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf")
    data = path.read_bytes()
    for end in range(8, 600, 7):
        path.write_bytes(data[:end])
        with pytest.raises(FormatError) as caught:
            open_checkpoint(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16"])
def test_the_weights_of_a_file_are_counted_as_the_analysis_counts_them(tmp_path: Path, kind: str) -> None:
    path = write_gguf(tmp_path / "model.gguf", kind)
    elements = sum(value.size for value in tensors().values())
    scanned, analyzed = tg.scan_weights(path, weights=False), tg.analyze(path, weights=False, advice=False)
    assert scanned.totals.params == analyzed.totals.params == elements
    assert scanned.totals.logical_params == elements
    assert scanned.totals.buffer_bytes == 0
    assert scanned.totals.param_bytes == scanned.totals.stored_bytes
    assert scanned.capture.architecture is not None
    assert analyzed.capture.architecture is not None
    assert scanned.capture.architecture.family == analyzed.capture.architecture.family == "decoder"
    assert scanned.capture.architecture.hyperparameters["heads"] == HEADS
    assert "heads" not in scanned.capture.architecture.hyperparameters.get("assumed", ())
