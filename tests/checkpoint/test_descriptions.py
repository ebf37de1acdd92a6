from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from torchgauge.checkpoint import describe_unknown, open_checkpoint, sniff
from torchgauge.errors import FormatError


def zip_of(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, b"content")
    return buffer.getvalue()


def tar_of(name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return buffer.getvalue()


def array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ones(3))
    return buffer.getvalue()


LOOKS = {
    "a PNG image": b"\x89PNG\r\n\x1a\n" + bytes(50),
    "a JPEG image": b"\xff\xd8\xff\xe0" + bytes(50),
    "a zip archive with no PyTorch content": zip_of("letter.txt"),
    "a NumPy .npz archive": zip_of("w.npy"),
    "a damaged or cut-off zip archive": zip_of("letter.txt")[:40],
    "a 7z archive": b"7z\xbc\xaf\x27\x1c" + bytes(50),
    "a tar archive; unpack it first": tar_of("letter.txt"),
    "an HDF5 file (Keras weights, perhaps)": b"\x89HDF\r\n\x1a\n" + bytes(50),
    "a gzip stream; unpack it first": gzip.compress(b"content"),
    "a GGUF file (llama.cpp)": b"GGUF\x03\x00\x00\x00" + bytes(50),
    "an ONNX/protobuf file": b"\x08\x08\x12\x07pytorch" + bytes(50),
    "a NumPy array": array(),
    "a text file": "Grüße aus der Datei\n".encode() * 500,
    "a JSON file": b'{"hidden_size": 768}',
    "a web page: the download gave a page instead of the file": b"<!DOCTYPE html><html>404</html>",
    "a Git LFS pointer: the file itself was not downloaded (`git lfs pull`)": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    ),
    "an empty file": b"",
    "a file of zeros": bytes(5000),
    "binary data of no known kind": bytes([7, 200, 3, 255, 1]) * 100,
}


@pytest.mark.parametrize("words", LOOKS)
def test_a_file_that_is_no_model_is_described(tmp_path: Path, words: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(LOOKS[words])
    assert describe_unknown(path) == words
    assert sniff(path) is None
    with pytest.raises(FormatError) as caught:
        open_checkpoint(path)
    assert words in str(caught.value) or "cut off" in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"config\nvalue\n", b"import os\n", b"(a list) of words.\n", b"Ignored\n", b"."])
def test_text_that_begins_like_an_old_pickle_is_text(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notes").write_bytes(content)
    assert sniff(tmp_path / "notes") is None
