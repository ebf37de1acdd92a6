from __future__ import annotations

import gzip
import io
import pickle
import re
import tarfile
import zipfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from torchgauge.checkpoint import OLD_SCRIPT, SAVED_RUN, describe_unknown, open_checkpoint, sniff
from torchgauge.checkpoint.signatures import ENGINE, FLAX, KERAS, ORIGINAL
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
    "a zip archive without PyTorch content": zip_of("letter.txt"),
    "a NumPy .npz archive": zip_of("w.npy"),
    "a corrupt or truncated zip archive": zip_of("letter.txt")[:40],
    "a 7z archive": b"7z\xbc\xaf\x27\x1c" + bytes(50),
    "a tar archive; unpack it first": tar_of("letter.txt"),
    f"an HDF5 file (Keras weights, perhaps); {KERAS}": b"\x89HDF\r\n\x1a\n" + bytes(50),
    "a gzip stream; unpack it first": gzip.compress(b"content"),
    f"an ONNX model; {ORIGINAL}": b"\x08\x08\x12\x07pytorch" + bytes(50),
    f"a TensorFlow SavedModel; {ORIGINAL}": b"\x08\x01\x12\xd0\x03\n\x9e\x01" + bytes(50),
    f"a TensorFlow graph; {ORIGINAL}": b"\n\x30\n\x05input\x12\x0bPlaceholder*\x0b" + bytes(50),
    "an ELF program or library": b"\x7fELF\x02\x01\x01" + bytes(50),
    f"a Keras archive; {KERAS}": zip_of("model.weights.h5"),
    OLD_SCRIPT: zip_of("net/model.json"),
    "a NumPy array": array(),
    f"an ExecuTorch program; {ORIGINAL}": b"\x40\0\0\0ET12eh00" + bytes([1, 200, 3, 255]) * 20,
    f"a TensorRT engine; {ENGINE}": b"ftrt" + bytes([1, 200, 3, 255]) * 20,
    "a text file": "Grüße aus der Datei\n".encode() * 500,
    "a JSON file": b'{"hidden_size": 768}',
    SAVED_RUN: b'{\n "schema_version": 1,\n "tool": {"name": "torchgauge", "version": "0.1.0"},\n "totals": {}}',
    "a web page: the download gave a page instead of the file": b"<!DOCTYPE html><html>404</html>",
    "a Git LFS pointer: the file itself was not downloaded (`git lfs pull`)": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    ),
    "an empty file": b"",
    "a file of zeros": bytes(5000),
    "binary data in an unknown format": bytes([7, 200, 3, 255, 1]) * 100,
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


def test_flax_weights_are_named_with_the_way_to_convert_them(tmp_path: Path) -> None:
    msgpack = pytest.importorskip("msgpack")
    path = tmp_path / "flax_model.msgpack"
    for tree in ({"params": {"kernel": bytes(400)}}, {f"layer_{n}": n for n in range(20)}):
        path.write_bytes(msgpack.packb(tree))
        with pytest.raises(FormatError, match=f"a MessagePack file; {re.escape(FLAX)}"):
            open_checkpoint(path)


def stored_object(path: Path, module: str, name: str, trailing: bytes = b"") -> Path:
    """A pickle of an object of a package that is not installed."""
    content = pickle.dumps(FakeEstimator(), protocol=4)
    own = FakeEstimator.__module__.encode(), FakeEstimator.__name__.encode()
    for old, new in zip(own, (module.encode(), name.encode()), strict=True):
        content = content.replace(b"\x8c" + bytes([len(old)]) + old, b"\x8c" + bytes([len(new)]) + new)
    path.write_bytes(content[:-1] + trailing + b".")
    return path


class FakeEstimator:
    def __init__(self) -> None:
        self.coef_, self.fit_intercept = np.ones(3), True


@pytest.mark.parametrize(
    ("module", "name", "trailing", "words"),
    [
        ("sklearn.linear_model._base", "LinearRegression", b"", "a scikit-learn model"),
        ("joblib.numpy_pickle", "NumpyArrayWrapper", bytes(24), r"a joblib file \(scikit-learn, perhaps\)"),
    ],
)
def test_a_pickle_of_another_library_is_named_with_what_to_do(
    module: str, name: str, trailing: bytes, words: str, tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match=f"{words}; load it with that library.*only if you trust it"):
        open_checkpoint(stored_object(tmp_path / "model.pkl", module, name, trailing))


@pytest.mark.parametrize("content", [b"config\nvalue\n", b"import os\n", b"(a list) of words.\n", b"Ignored\n", b"."])
def test_text_that_begins_like_an_old_pickle_is_text(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notes").write_bytes(content)
    assert sniff(tmp_path / "notes") is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"epoch": 3}, "a pickle of a dict, without tensors"),
        ([1, 2], "a pickle of a list, without tensors"),
        ("text", "a pickle of a text, without tensors"),
        (7, "a pickle of a number, without tensors"),
        (None, "a pickle of a single value, without tensors"),
        (Fraction(1, 3), "a pickle of an object of fractions.Fraction, without tensors"),
        (Fraction, "a pickle of the name fractions.Fraction, without tensors"),
    ],
)
def test_a_pickle_without_tensors_is_no_model(tmp_path: Path, value: object, words: str) -> None:
    (tmp_path / "model.pt").write_bytes(pickle.dumps(value))
    with pytest.raises(FormatError, match=words):
        open_checkpoint(tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("saved_model.pb", "a folder with a TensorFlow SavedModel"),
        ("llama-q4.gguf", "a folder with GGUF files"),
        ("model.onnx", "a folder with ONNX models"),
        ("notes.txt", "a folder without model weights"),
        (None, "an empty folder"),
    ],
)
def test_a_folder_without_weights_is_described(tmp_path: Path, name: str | None, words: str) -> None:
    if name:
        (tmp_path / name).write_bytes(b"content")
    assert describe_unknown(tmp_path).startswith(words)
    with pytest.raises(FormatError, match=words):
        open_checkpoint(tmp_path)
