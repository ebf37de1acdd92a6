"""Describe files that are not PyTorch models."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from torchgauge.checkpoint.byte_source import ByteSource, opened
from torchgauge.checkpoint.zip_archive import ZIP_MARK, ZipArchive, has_directory
from torchgauge.errors import FormatError

# What to do with models in formats that are not read.
ORIGINAL = "analyse the PyTorch model that it was exported from"
ENGINE = f"it holds compiled kernels for one GPU: {ORIGINAL}"
KERAS = "load it in Keras 3 with the torch backend and analyse that model (tg.analyze)"
OTHER_LIBRARY = "load it with that library, which runs code in the file: only if you trust it"
FLAX = "if it holds Flax weights, restore them (flax.serialization.msgpack_restore) and save them as safetensors"
# Pickles by the packages whose names they import.
_PICKLES = {
    "joblib": f"a joblib file (scikit-learn, perhaps); {OTHER_LIBRARY}",
    "sklearn": f"a scikit-learn model; {OTHER_LIBRARY}",
}
_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF8", "a GIF image"),
    (8, b"WEBP", "a WebP image"),
    (0, b"BM", "a BMP image"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"\x1f\x8b", "a gzip stream; unpack it first"),
    (0, b"BZh", "a bzip2 stream; unpack it first"),
    (0, b"\xfd7zXZ\x00", "an xz stream; unpack it first"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd stream; unpack it first"),
    (0, b"Rar!", "a RAR archive"),
    (257, b"ustar", "a tar archive; unpack it first"),
    (0, b"\x89HDF\r\n\x1a\n", f"an HDF5 file (Keras weights, perhaps); {KERAS}"),
    (0, b"ggml", "a GGML file (llama.cpp); convert it to GGUF with the scripts of llama.cpp"),
    (4, b"TFL3", f"a TensorFlow Lite model; {ORIGINAL}"),
    (4, b"ET12", f"an ExecuTorch program; {ORIGINAL}"),
    (0, b"ftrt", f"a TensorRT engine; {ENGINE}"),
    (0, b"ptrt", f"a TensorRT engine; {ENGINE}"),
    (4, b'{"description": "Ultralytics', f"a TensorRT engine of Ultralytics; {ENGINE}"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (0, b"%PDF", "a PDF document"),
    (0, b"\x7fELF", "an ELF program or library"),
    (0, b"MZ", "a Windows program or library"),
    (0, b"PAR1", "a Parquet file"),
    (0, b"ARROW1", "an Arrow file"),
    (0, b"SQLite format 3\x00", "an SQLite database"),
    (0, b"RIFF", "a RIFF (audio or video) file"),
    (0, b"OggS", "an Ogg audio file"),
    (4, b"ftyp", "an MP4 video"),
)
OLD_SCRIPT = (
    "a TorchScript archive from before PyTorch 1.4: if you trust it, torch.jit.load it and torch.jit.save it anew"
)
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # torch.serialization.MAGIC_NUMBER
_LEGACY_DIGITS = str(LEGACY_MAGIC).encode()  # in a pickle of protocol 0 or 1
_LFS = b"version https://git-lfs.github.com/spec"
# The beginning of a saved analysis.
_SAVED_RUN = re.compile(rb'\s*\{\s*"schema_version":\s*\d+,\s*"tool":\s*\{\s*"name":\s*"torchgauge"')
SAVED_RUN = (
    "JSON that torchgauge wrote: saved runs are for `torchgauge compare`, `torchgauge check` and, in Python, "
    "`torchgauge.load`"
)
_HTML = (b"<!doctype html", b"<html")
_HEAD_BYTES = 4096
EMPTY = "an empty file"


def refuse_foreign_file(path: str) -> None:
    """Raise if the first bytes show that a file is empty or of another format; nothing is interpreted."""
    with opened(path) as source:
        if not source.size:
            raise not_a_model(path, EMPTY)
        head = source.head(_HEAD_BYTES)
        what = _by_magic(head)
        # Pickles of protocols 0 and 1 have no mark at their start, but end in the full stop that ends every pickle.
        may_be_pickle = _LEGACY_DIGITS in head[:64] or source.read(source.size - 1, 1) == b"."
        if what is None and not may_be_pickle:
            # The marks of a pickle, safetensors, zip and GGUF.
            is_marked = head[:1] == b"\x80" or head[8:9] == b"{" or head[:4] in (ZIP_MARK, b"GGUF")
            what = _describe_text(head) or (None if is_marked else _describe_binary(head))
        # An archive may have anything before it; a tar may be one that early versions of torch wrote.
        if what is not None and head[257:262] != b"ustar" and not has_directory(source):
            raise not_a_model(path, what)


def not_a_model(path: str, what: str) -> FormatError:
    said = "is an empty file" if what == EMPTY else f"is not a PyTorch model: it looks like {what}"
    return FormatError(f"{path} {said}", looks_like=what)


def _by_magic(head: bytes) -> str | None:
    return next((name for at, magic, name in _MAGIC if head[at : at + len(magic)] == magic), None)


def describe(source: ByteSource) -> str:
    if not source.size:
        return EMPTY
    head = source.head(_HEAD_BYTES)
    known = _by_magic(head)
    if known is not None:
        return known
    if head[:4] == ZIP_MARK or has_directory(source):
        try:
            names = ZipArchive(source).names()
        except FormatError:
            return "a corrupt or truncated zip archive"
        if any(name.endswith(".npy") for name in names):
            return "a NumPy .npz archive"
        if any(name in ("metadata.json", "config.json", "model.weights.h5") for name in names):
            return f"a Keras archive; {KERAS}"
        if any(name.endswith("/model.json") for name in names):
            return OLD_SCRIPT
        return "a zip archive without PyTorch content"
    return _describe_text(head) or _describe_binary(head)


# Files that identify a model of another framework.
_FOLDERS = (
    ("saved_model.pb", "a TensorFlow SavedModel"),
    (".gguf", "GGUF files (llama.cpp)"),
    (".onnx", "ONNX models"),
    (".h5", "HDF5 files (Keras weights, perhaps)"),
    (".keras", "Keras archives"),
    (".msgpack", "Flax weights"),
    (".tflite", "TensorFlow Lite models"),
)


def describe_folder(folder: str) -> str:
    names = os.listdir(folder)
    if not names:
        return "an empty folder"
    found = next((what for mark, what in _FOLDERS if any(name.endswith(mark) for name in names)), None)
    return "a folder without model weights" if found is None else f"a folder with {found}"


def _describe_text(head: bytes) -> str | None:
    if head.startswith(_LFS):
        return "a Git LFS pointer: the file itself was not downloaded (`git lfs pull`)"
    if _SAVED_RUN.match(head):
        return SAVED_RUN
    if head.lstrip().lower().startswith(_HTML):
        return "a web page: the download gave a page instead of the file"
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        # The head may end in the middle of a character.
        if error.start < len(head) - 3 or len(head) < _HEAD_BYTES:
            return None
        text = head[: error.start].decode("utf-8")
    if any(ord(character) < 32 and character not in "\t\n\r\f\x1b" for character in text):
        return None
    return "a JSON file" if text.lstrip()[:1] in ("{", "[") else "a text file"


def _describe_binary(head: bytes) -> str:
    if not any(head):
        return "a file of zeros"
    # A SavedModel has version 1 and then its graphs; ONNX never wrote that version.
    if head[:3] == b"\x08\x01\x12":
        return f"a TensorFlow SavedModel; {ORIGINAL}"
    # A graph is a list of nodes, which begin with their name and their op.
    if head[:1] == b"\n" and any(op in head for op in (b"\x12\x0bPlaceholder", b"\x12\x05Const")):
        return f"a TensorFlow graph; {ORIGINAL}"
    # ONNX begins with field 1 (the version, a small number) and then field 2 or 7 or 8 of its protocol buffer.
    if head[:1] == b"\x08" and head[1:2] < b"\x20" and head[2:3] in (b"\x12", b"\x3a", b"\x42"):
        return f"an ONNX model; {ORIGINAL}"
    if _is_message_pack(head):
        return f"a MessagePack file; {FLAX}"
    return "binary data in an unknown format"


def _is_message_pack(head: bytes) -> bool:
    """Whether it begins with a map and a short text, its first key."""
    at = {0xDE: 3, 0xDF: 5}.get(head[0], 1 if 0x81 <= head[0] <= 0x8F else 0)
    if not at or len(head) <= at or not 0xA1 <= head[at] <= 0xBF:
        return False
    key = head[at + 1 : at + 1 + (head[at] & 0x1F)]
    return key.isascii() and key.decode().isprintable()


def describe_pickle(names: Iterable[str]) -> str | None:
    """The library whose objects a pickle holds, by the names that it imports; None for torch's and others."""
    packages = {name.partition(".")[0] for name in names}
    return None if "torch" in packages else next((_PICKLES[name] for name in _PICKLES if name in packages), None)
