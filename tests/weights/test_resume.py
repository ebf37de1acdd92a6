from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.weights.checkpoints import assert_same, exact, write_varied
from torchgauge.advise import recommend
from torchgauge.checkpoint import Index, open_checkpoint
from torchgauge.weights import Batch, Journal, ScanRequest, journal_path, scan, stamp_files, tally_batch

KEPT = ScanRequest(journal=True)
RESUMED = ScanRequest(journal=True, resume=True)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("torchgauge.weights.journal.WRITE_AFTER_S", 0.0)
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return open_checkpoint(write_varied(tmp_path / "model.safetensors"))


class InterruptedScanError(Exception):
    pass


def scan_until(index: Index, count: int, request: ScanRequest = KEPT) -> None:
    """A scan that breaks off after so many rows."""
    came: list[str] = []

    def on_row(name: str, row: object) -> None:
        came.append(name)
        if len(came) == count:
            raise InterruptedScanError

    with pytest.raises(InterruptedScanError):
        scan(index, request, on_row=on_row)


def journals(cache: Path) -> list[Path]:
    return list((cache / "scans").glob("*.jsonl"))


@pytest.mark.parametrize("count", [1, 4, 9])
@pytest.mark.parametrize("deep", [False, True])
def test_a_broken_scan_goes_on_and_ends_with_the_same_bits(index: Index, count: int, deep: bool, cache: Path) -> None:
    undisturbed = scan(index, ScanRequest(deep=deep))
    scan_until(index, count, ScanRequest(journal=True, deep=deep))
    (path,) = journals(cache)
    assert len(path.read_text().splitlines()) == count
    resumed = scan(index, ScanRequest(journal=True, resume=True, deep=deep))
    assert exact(resumed) == exact(undisturbed)
    assert resumed.resumed == count
    assert journals(cache) == []


def test_finished_tensors_are_not_read_again(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    scan_until(index, 5)
    read: list[str] = []
    original = tally_batch

    def watched(reader: Any, batch: Batch) -> Any:
        read.extend(piece.tensor for piece in batch.pieces)
        return original(reader, batch)

    monkeypatch.setattr("torchgauge.weights.scanner.tally_batch", watched)
    found = scan(index, RESUMED)
    assert len(found.rows) == len(index.entries)
    assert len(set(read)) == len([entry for entry in index.entries if entry.elements]) - 5


def test_without_resume_a_leftover_is_discarded(index: Index, cache: Path) -> None:
    scan_until(index, 5)
    assert scan(index, KEPT).resumed == 0
    assert journals(cache) == []


def test_a_torn_line_is_ignored(index: Index, cache: Path) -> None:
    scan_until(index, 4)
    (path,) = journals(cache)
    path.write_bytes(path.read_bytes()[:-30])
    resumed = scan(index, RESUMED)
    assert resumed.resumed == 3
    assert exact(resumed) == exact(scan(index, ScanRequest()))


@pytest.mark.parametrize("digit", [0, 100, -40])
def test_an_edited_line_is_not_believed(index: Index, cache: Path, digit: int) -> None:
    scan_until(index, 4)
    (path,) = journals(cache)
    first, *others = path.read_bytes().splitlines(keepends=True)
    at = [place for place, byte in enumerate(first) if chr(byte).isdigit()][digit]
    edited = bytes([*first[:at], ord("1") if first[at] != ord("1") else ord("2"), *first[at + 1 :]])
    path.write_bytes(edited + b"".join(others))
    resumed = scan(index, RESUMED)
    assert resumed.resumed == 3
    assert exact(resumed) == exact(scan(index, ScanRequest()))


def test_a_line_of_another_scan_is_not_believed(index: Index, cache: Path) -> None:
    scan_until(index, 4)
    (path,) = journals(cache)
    lines = path.read_bytes()
    os.utime(index.path, ns=(1, 1))
    scan_until(index, 1)
    (other,) = [one for one in journals(cache) if one != path]
    other.write_bytes(lines)
    assert scan(index, RESUMED).resumed == 0


def test_a_scan_that_breaks_again_after_a_torn_line_loses_nothing_more(index: Index, cache: Path) -> None:
    scan_until(index, 4)
    (path,) = journals(cache)
    path.write_bytes(path.read_bytes()[:-30])
    scan_until(index, 7, RESUMED)
    assert scan(index, RESUMED).resumed == 7


def test_a_changed_file_or_another_option_is_scanned_anew(index: Index) -> None:
    scan_until(index, 5)
    assert scan(index, ScanRequest(journal=True, resume=True, deep=True)).resumed == 0
    os.utime(index.path, ns=(1, 1))
    assert scan(index, RESUMED).resumed == 0


def test_a_large_tensor_goes_on_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr("torchgauge.weights.plan.PIECE_BYTES", 1000)
    monkeypatch.setattr("torchgauge.weights.scanner._PIECES_PER_JOURNAL_ENTRY", 3)
    save_file({"large": torch.randn(20_000)}, tmp_path / "m.safetensors")
    index = open_checkpoint(tmp_path / "m.safetensors")
    undisturbed = scan(index, ScanRequest())

    def stop(done: int, total: int, part: str) -> None:
        if done >= 20_000:
            raise InterruptedScanError

    with pytest.raises(InterruptedScanError):
        scan(index, KEPT, progress=stop)
    (path,) = journals(cache)
    assert [json.loads(line.partition(" ")[2])["pieces"] for line in path.read_text().splitlines()] == [
        3,
        6,
        9,
        12,
        15,
        18,
    ]
    resumed = scan(index, RESUMED)
    assert resumed.resumed == 1
    assert exact(resumed) == exact(undisturbed)


def test_a_folder_that_cannot_be_written_to_costs_only_the_journal(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(tmp_path / "file"))
    assert scan(index, RESUMED).failures == []


def test_short_scans_keep_no_journal(index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.weights.journal.WRITE_AFTER_S", 3600.0)
    scan_until(index, 5)
    assert journals(cache) == []


def test_old_leftovers_are_removed(index: Index, cache: Path) -> None:
    leftover = cache / "scans" / "old.jsonl"
    leftover.parent.mkdir(parents=True)
    leftover.write_text("{}")
    os.utime(leftover, (0, 0))
    with Journal(journal_path(index.path, stamp_files(index.files), ())):
        assert not leftover.exists()


# Stops at a row until it is killed.
STOPPED = """
import sys, time
from torchgauge.cli import main
from torchgauge import advise
from torchgauge.weights import journal
journal.WRITE_AFTER_S = 0.0
original, left = advise.recommend, int(sys.argv.pop(1))
def recommend(row):
    global left
    left -= 1
    if not left:
        print(row["name"], flush=True)
        time.sleep(600)
    return original(row)
advise.recommend = recommend
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("rows", [1, 6])
def test_a_killed_process_leaves_no_half_file_and_can_be_resumed(index: Index, tmp_path: Path, rows: int) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("before\n")
    command = [
        sys.executable,
        "-c",
        STOPPED,
        str(rows),
        "weights",
        index.path,
        "--no-deep",
        "--quiet",
        "-o",
        str(target),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
    assert target.read_text() == "before\n"
    from torchgauge.cli import main

    assert main(["weights", index.path, "--no-deep", "--quiet", "--resume", "-o", str(target)]) == 0
    undisturbed: dict[str, Any] = {**scan(index, ScanRequest(), recommend=recommend).rows}
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert {line["name"] for line in lines} == undisturbed.keys()
    for line in lines:
        kept = {key: value for key, value in line.items() if key in undisturbed[line["name"]]}
        assert_same(kept, {key: undisturbed[line["name"]][key] for key in kept})
        assert kept.keys() == undisturbed[line["name"]].keys()
