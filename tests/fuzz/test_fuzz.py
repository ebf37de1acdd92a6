"""A few damaged files of every format in every run of the tests; `make fuzz` runs 20,000."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.mutations import NAMES, json_document, mutate, pickle_stream
from tests.fuzz.running import FORMATS, render

ROOT = Path(__file__).parent.parent.parent
RUNS = ROOT / "tests" / "data" / "runs"


@pytest.mark.skipif(sys.platform == "win32", reason="limits of memory are those of POSIX")
def test_damaged_files_are_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--count", "100", "--seed", "tests", "--workers", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run(
        [*command, "--failures", str(tmp_path)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert "100 files in" in found.stdout
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("name", ["cnn", "measured", "weights"])
def test_a_saved_run_that_was_edited_is_refused_when_it_is_loaded_or_rendered(tmp_path: Path, name: str) -> None:
    """A document that can be loaded can be rendered in every format."""
    content, chance = (RUNS / f"{name}.json").read_bytes(), random.Random(name)
    for number in range(60):
        (tmp_path / "run.json").write_bytes(json_document(content, chance))
        output = tmp_path / f"report.{FORMATS[number % len(FORMATS)]}"
        assert render(str(tmp_path / "run.json"), str(output)) in (0, 1, 2)


def keys_of(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every key, in lists those of the first two items."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, item in pairs:
        if isinstance(value, dict):
            yield (*path, key)
        yield from keys_of(item, (*path, key))


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["cnn", "measured", "weights"])
def test_a_saved_run_without_any_one_of_its_keys_is_refused_or_shown(tmp_path: Path, name: str, is_whole: bool) -> None:
    """Every kind of key is missing or null by turns; of the whole table once missing and once null."""
    document = json.loads((RUNS / f"{name}.json").read_text())
    kinds = {tuple("" if isinstance(key, int) else key for key in path): path for path in keys_of(document)}
    assert len(kinds) > 100
    for number, path in enumerate(kinds.values()):
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        before = dict(holder)
        changes = [{key: value for key, value in before.items() if key != path[-1]}, before | {path[-1]: None}]
        for changed in changes if is_whole else changes[number % 2 :: 2]:
            holder.clear()
            holder.update(changed)
            (tmp_path / "run.json").write_text(json.dumps(document))
            output = tmp_path / f"report.{FORMATS[number % len(FORMATS)]}"
            assert render(str(tmp_path / "run.json"), str(output)) in (0, 1, 2), path
        holder.clear()
        holder.update(before)


def test_the_kinds_of_damage_that_a_pickle_can_hold_are_made() -> None:
    content = pickle.dumps({"layers.0.weight": [1, 2.5, None]}, 2)
    made = [pickle_stream(content, random.Random(f"9/{number}")) for number in range(2000)]
    assert any(len(one) > 100_000 for one in made), "deep values"
    assert any(b"\xff\xff\xff\xff" in one for one in made), "claimed sizes"
    assert any(one.count(b"\x8a\x09") >= 60 for one in made), "colliding keys"
    assert [name for name in NAMES if not any(name.encode() in one for one in made)] == []


def test_names_come_to_stand_for_keys_of_a_document() -> None:
    content = json.dumps({f"layers.{number}.weight": {} for number in range(4)}).encode()
    made = b"\n".join(json_document(content, random.Random(f"9/{number}")) for number in range(2000))
    assert [name for name in NAMES if json.dumps(name).encode() + b": " not in made] == []


def test_a_case_is_the_same_for_the_same_seed() -> None:
    files = {"a.json": b'{"a": [1, {"b": "text"}]}', "b.pkl": b"\x80\x04K\x01."}
    one, other = (mutate(files, random.Random("7/3")) for _ in range(2))
    assert one == other
    assert len({str(mutate(files, random.Random(f"7/{number}"))) for number in range(50)}) > 20
