"""Checkpoints: small ones, and such whose size is out of proportion to what is in them."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.bombs.running import Bomb

BOMBS: dict[str, Bomb] = {}
# Views of one storage, which a reader could compare each with each.
views = 3000


def prepare() -> None:
    global views
    views = 800


Write = Callable[[Path], Path]


def bomb(*options: str) -> Callable[[Write], Write]:
    def register(build: Write) -> Write:
        BOMBS[build.__name__] = lambda folder: ["weights", str(build(folder)), "--no-progress", *options]
        return build

    return register


def write_safetensors(path: Path, names: list[str]) -> Path:
    header = {name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]} for n, name in enumerate(names)}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4 * len(names)))
    return path


@bomb()
def names_a_hundred_thousand_levels_deep(folder: Path) -> Path:
    return write_safetensors(folder / "model.safetensors", [".".join("a" * 100_000) + f".{n}" for n in range(20)])


@bomb("--json")
def names_thousands_of_levels_deep(folder: Path) -> Path:
    return write_safetensors(folder / "model.safetensors", [".".join(f"{n}{'b' * 3000}") for n in range(500)])


@bomb()
def deep_names_in_a_pickle(folder: Path) -> Path:
    torch.save({".".join(f"{n}{'b' * 3000}"): torch.zeros(1) for n in range(200)}, folder / "model.pt")
    return folder / "model.pt"


@bomb()
def thousands_of_overlapping_views(folder: Path) -> Path:
    base = torch.zeros(views + 200, 8, 8, 8, 8)
    torch.save({f"v{n}": base[n : n + 200, 1:3, 1:3, 1:3, 1:3] for n in range(views)}, folder / "model.pt")
    return folder / "model.pt"


@bomb()
def views_that_interleave(folder: Path) -> Path:
    base = torch.zeros(64, 2 * views)
    torch.save({f"v{n}": base[:, n] for n in range(2 * views)}, folder / "model.pt")
    return folder / "model.pt"


@bomb()
def a_deflated_pickle(folder: Path) -> Path:
    torch.save({"a": torch.zeros(1)}, folder / "plain.pt")
    with zipfile.ZipFile(folder / "plain.pt") as old, zipfile.ZipFile(folder / "model.pt", "w") as new:
        for name in old.namelist():
            if name.endswith("data.pkl"):
                new.writestr(name, b"\x80\x02" + b"]" * (400 << 20) + b".", compress_type=zipfile.ZIP_DEFLATED)
            else:
                new.writestr(name, old.read(name))
    return folder / "model.pt"


@bomb()
def lists_of_empty_lists(folder: Path) -> Path:
    (folder / "model.pkl").write_bytes(b"\x80\x04]" + b"](" + b"]" * (8 << 20) + b"ee.")
    return folder / "model.pkl"


@bomb()
def a_memo_that_skips(folder: Path) -> Path:
    puts = b"".join(b"r" + struct.pack("<I", 4000 * n) for n in range(1, 1_000_000))
    (folder / "model.pkl").write_bytes(b"\x80\x02N" + puts + b".")
    return folder / "model.pkl"


@bomb()
def references_that_double(folder: Path) -> Path:
    value: Any = torch.zeros(1)
    for _ in range(60):
        value = [value, value]
    torch.save(value, folder / "model.pt")
    return folder / "model.pt"


@bomb("--json")
def a_wide_header(folder: Path) -> Path:
    text = b'{"a":[' + b"[]," * 5_000_000 + b"[]]}"
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    return folder / "model.safetensors"


@bomb()
def nested_pickles(folder: Path) -> Path:
    inner = pickle.dumps(list(range(1000)))
    for _ in range(6):
        inner = pickle.dumps([inner] * 8)
    (folder / "model.pkl").write_bytes(inner)
    return folder / "model.pkl"
