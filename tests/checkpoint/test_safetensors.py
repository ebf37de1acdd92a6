from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint.reading import assert_same
from torchgauge.checkpoint import open_checkpoint
from torchgauge.errors import FormatError

EIGHTS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu]
PLAIN = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16]
MORE = [torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.complex64]


def write(path: Path, header: dict[str, Any] | bytes, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def described(shape: list[Any], begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_every_dtype_is_found_where_it_lies(tmp_path: Path) -> None:
    items = torch.arange(1, 97, dtype=torch.uint8)
    state = {str(dtype): items.view(dtype).clone() for dtype in (*PLAIN, *MORE, *EIGHTS)}
    state["flags"] = torch.tensor([True, False])
    state["scalar"] = torch.tensor(3.0)
    state["empty"] = torch.empty(0, 4)
    save_file(state, tmp_path / "m.safetensors", metadata={"format": "pt"})
    index = open_checkpoint(tmp_path / "m.safetensors")
    loaded = load_file(tmp_path / "m.safetensors")
    assert_same(index, {entry.name: loaded[entry.name] for entry in index.entries})
    assert set(loaded) == {entry.name for entry in index.entries}


def test_four_bit_floats_count_their_values(tmp_path: Path) -> None:
    write(tmp_path / "m", {"w": described([4, 8], 0, 16, "F4")}, bytes(16))
    (entry,) = open_checkpoint(tmp_path / "m").entries
    assert (entry.spec.shape, entry.nbytes, entry.logical_elements) == ((4, 4), 16, 32)


WRONG = {
    "an overlap": {"a": described([2], 0, 8), "b": described([2], 4, 12)},
    "a gap": {"a": described([1], 0, 4), "b": described([1], 8, 12)},
    "an end past the file": {"a": described([10], 0, 40)},
    "bytes left over": {"a": described([1], 0, 4)},
    "a size that does not fit": {"a": described([2], 0, 12)},
    "a negative size": {"a": described([-3], 0, 12)},
    "a negative offset": {"a": described([3], -12, 0)},
    "an overflowing size": {"a": described([2**62, 8], 0, 12)},
    "a product that wraps to the right size": {"a": described([2**32, 2**32, 3], 0, 12)},
    "a number too long": {"a": described([10**30], 0, 12)},
    "a fraction": {"a": described([3.0], 0, 12)},
    "a truth value": {"a": described([True, 3], 0, 12)},
    "an unknown type": {"a": described([3], 0, 12, "F31")},
    "a type that is not a text": {"a": described([3], 0, 12, 7)},
    "no offsets": {"a": {"dtype": "F32", "shape": [3]}},
    "an end before the beginning": {"a": described([0], 12, 0)},
    "no object": {"a": 5},
    "too many dimensions": {"a": described([1] * 1000 + [3], 0, 12)},
}


@pytest.mark.parametrize("header", WRONG.values(), ids=WRONG.keys())
def test_a_header_that_lies_is_refused(tmp_path: Path, header: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        open_checkpoint(write(tmp_path / "m", header, bytes(12)))


BROKEN = {
    "not JSON": b'{"a": }',
    "a list": b"[1, 2]",
    "two of one name": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
    b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    "no UTF-8": b'{"\xff": 1}',
    "nested without end": b'{"a":' * 100_000,
    "a number without end": b'{"a":' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("header", BROKEN.values(), ids=BROKEN.keys())
def test_a_damaged_header_is_refused(tmp_path: Path, header: bytes) -> None:
    with pytest.raises(FormatError):
        open_checkpoint(write(tmp_path / "m", header, bytes(4)))


def test_a_header_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(struct.pack("<Q", 90_000_000) + b'{"a":1}')
    with pytest.raises(FormatError, match="beyond its end"):
        open_checkpoint(tmp_path / "m")


def test_an_incomplete_download_says_how_much_is_missing(tmp_path: Path) -> None:
    save_file({"w": torch.ones(100)}, tmp_path / "m")
    content = (tmp_path / "m").read_bytes()
    (tmp_path / "m").write_bytes(content[:-30])
    with pytest.raises(FormatError, match="30 bytes are missing at its end"):
        open_checkpoint(tmp_path / "m")


def test_the_tensors_before_the_end_of_an_incomplete_download_are_listed(tmp_path: Path) -> None:
    save_file({"a": torch.ones(100), "b": torch.ones(100), "c": torch.ones(100)}, tmp_path / "m")
    content = (tmp_path / "m").read_bytes()
    (tmp_path / "m").write_bytes(content[:-430])
    index = open_checkpoint(tmp_path / "m")
    assert [entry.name for entry in index.entries] == ["a", "b", "c"]
    assert index.warnings == (
        "m: 430 bytes are missing at its end, and with them 2 of 3 tensors; is the download complete?",
    )
