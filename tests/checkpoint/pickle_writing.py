"""Hand-made pickles and the files around them; none is ever loaded here."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable

Make = Callable[[str], bytes]  # the path of the canary -> the pickle
CORPUS: dict[str, Make] = {}


def kind(function: Make) -> Make:
    CORPUS[function.__name__] = function
    return function


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def content(value: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(value)) + value


def call(module: str, name: str, *arguments: bytes, protocol: int = 4) -> bytes:
    """`module.name(*arguments)`, by the opcodes that any pickler would use."""
    target = text(module) + text(name) + b"\x93" if protocol >= 4 else f"c{module}\n{name}\n".encode()
    return b"\x80" + bytes([protocol]) + target + b"(" + b"".join(arguments) + b"tR."


def shell(canary: str) -> bytes:
    return text(f"touch {canary}")


def python(canary: str) -> bytes:
    return text(f"open({canary!r}, 'w').close()")


def place(canary: str) -> bytes:
    return text(canary)


def torch_archive(body: bytes, **records: bytes) -> bytes:
    """A torch file around a hand-made pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", body)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
        for name, value in records.items():
            archive.writestr(f"archive/{name.replace('__', '/')}", value)
    return buffer.getvalue()


def legacy_file(body: bytes) -> bytes:
    head = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
    return b"".join(head) + body + pickle.dumps([], 2)
