from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.weights.checkpoints import assert_same, exact, write_varied
from torchgauge.advise import recommend
from torchgauge.analysis.weight_scan import scan_journal, scan_weights
from torchgauge.cache import JOURNAL_BYTES, JOURNALS_BYTES, LocalWriter
from torchgauge.checkpoint import Index, open_checkpoint
from torchgauge.weights import Batch, ScanRequest, scan, tally_batch


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("torchgauge.weights.journal.WRITE_AFTER_S", 0.0)
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return open_checkpoint(write_varied(tmp_path / "model.safetensors"))


def kept(index: Index, *, resume: bool = False, deep: bool = False) -> ScanRequest:
    """With the journal of the command without options."""
    return ScanRequest(journal=scan_journal(index.path, "auto", False), resume=resume, deep=deep)


class InterruptedScanError(Exception):
    pass


def scan_until(index: Index, count: int, request: ScanRequest | None = None) -> None:
    """A scan that breaks off after so many rows."""
    came: list[str] = []

    def on_row(name: str, row: object) -> None:
        came.append(name)
        if len(came) == count:
            raise InterruptedScanError

    with pytest.raises(InterruptedScanError):
        scan(index, request or kept(index), on_row=on_row)


def journals(cache: Path) -> list[Path]:
    return list((cache / "scans").glob("*.jsonl"))


@pytest.mark.parametrize("count", [1, 4, 9])
@pytest.mark.parametrize("deep", [False, True])
def test_a_broken_scan_goes_on_and_ends_with_the_same_bits(index: Index, count: int, deep: bool, cache: Path) -> None:
    undisturbed = scan(index, ScanRequest(deep=deep))
    scan_until(index, count, kept(index, deep=deep))
    (path,) = journals(cache)
    assert len(path.read_text().splitlines()) == count
    resumed = scan(index, kept(index, resume=True, deep=deep))
    assert exact(resumed) == exact(undisturbed)
    assert resumed.resumed == count
    assert journals(cache) == [path], "the result is not written yet"


def test_finished_tensors_are_not_read_again(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    scan_until(index, 5)
    read: list[str] = []
    original = tally_batch

    def watched(reader: Any, batch: Batch) -> Any:
        read.extend(piece.tensor for piece in batch.pieces)
        return original(reader, batch)

    monkeypatch.setattr("torchgauge.weights.scanner.tally_batch", watched)
    found = scan(index, kept(index, resume=True))
    assert len(found.rows) == len(index.entries)
    assert len(set(read)) == len([entry for entry in index.entries if entry.elements]) - 5


def test_without_resume_a_leftover_is_discarded(index: Index, cache: Path) -> None:
    scan_until(index, 5)
    scan_until(index, 2)
    (path,) = journals(cache)
    assert len(path.read_text().splitlines()) == 2


def test_a_torn_line_is_ignored(index: Index, cache: Path) -> None:
    scan_until(index, 4)
    (path,) = journals(cache)
    path.write_bytes(path.read_bytes()[:-30])
    resumed = scan(index, kept(index, resume=True))
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
    resumed = scan(index, kept(index, resume=True))
    assert resumed.resumed == 3
    assert exact(resumed) == exact(scan(index, ScanRequest()))


def test_a_line_of_another_scan_is_not_believed(index: Index, cache: Path) -> None:
    scan_until(index, 4)
    (path,) = journals(cache)
    lines = path.read_bytes()
    os.utime(index.path, ns=(1, 1))
    scan_until(index, 1)
    path.write_bytes(lines)
    assert scan(index, kept(index, resume=True)).resumed == 0
    assert lines not in path.read_bytes()


def test_a_scan_that_breaks_again_after_a_torn_line_loses_nothing_more(index: Index, cache: Path) -> None:
    scan_until(index, 4)
    (path,) = journals(cache)
    path.write_bytes(path.read_bytes()[:-30])
    scan_until(index, 7, kept(index, resume=True))
    assert scan(index, kept(index, resume=True)).resumed == 7


def test_a_changed_file_or_another_option_is_scanned_anew(index: Index) -> None:
    scan_until(index, 5)
    assert scan(index, kept(index, resume=True, deep=True)).resumed == 0
    os.utime(index.path, ns=(1, 1))
    assert scan(index, kept(index, resume=True)).resumed == 0


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
        scan(index, kept(index), progress=stop)
    (path,) = journals(cache)
    assert [json.loads(line.partition(" ")[2])["pieces"] for line in path.read_text().splitlines()] == [
        3,
        6,
        9,
        12,
        15,
        18,
    ]
    resumed = scan(index, kept(index, resume=True))
    assert resumed.resumed == 1
    assert exact(resumed) == exact(undisturbed)


def test_a_folder_that_cannot_be_written_to_costs_only_the_journal(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(tmp_path / "file"))
    assert scan(index, kept(index, resume=True)).failures == []


def test_short_scans_keep_no_journal(index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.weights.journal.WRITE_AFTER_S", 3600.0)
    scan_until(index, 5)
    assert journals(cache) == []


def test_expired_leftovers_are_removed_when_a_journal_begins(index: Index, cache: Path) -> None:
    leftover = cache / "scans" / "old.jsonl"
    leftover.parent.mkdir(parents=True)
    leftover.write_text("{}")
    os.utime(leftover, (0, 0))
    scan_until(index, 1)
    assert leftover not in journals(cache)


def test_the_oldest_journals_make_room(cache: Path) -> None:
    folder = cache / "scans"
    folder.mkdir(parents=True)
    now = time.time()
    for age in range(5):
        with (folder / f"{age}.jsonl").open("wb") as stream:
            stream.truncate(JOURNALS_BYTES // 8)
        os.utime(stream.name, (now - age, now - age))
    LocalWriter().append(folder / "new.jsonl", b"line\n")
    assert {path.stem for path in journals(cache)} == {"0", "1", "2", "3", "new"}
    assert sum(path.stat().st_size for path in journals(cache)) + JOURNAL_BYTES <= JOURNALS_BYTES + len("line\n")


def test_a_full_journal_takes_no_more_and_the_scan_goes_on(
    index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchgauge.cache.JOURNAL_BYTES", 20_000)
    found = scan(index, kept(index))
    (path,) = journals(cache)
    assert 0 < path.stat().st_size <= 20_000
    assert found.failures == []
    assert 0 < scan(index, kept(index, resume=True)).resumed < len(index.entries)


# A run that writes its journal from the first tensor on; the reader dies when it is told to.
AT_ONCE = """
import os, signal, sys
from torchgauge.cli import main
from torchgauge.report.formats import text
from torchgauge.weights import journal
journal.WRITE_AFTER_S = 0.0
if "--die" in sys.argv:
    sys.argv.remove("--die")
    text.weight_lines = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
sys.exit(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
@pytest.mark.parametrize("failure", ["full file", "full stdout", "closed stdout", "dead reader"])
def test_a_result_that_could_not_be_written_is_not_lost(
    failure: str, index: Index, cache: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", AT_ONCE, "weights", index.path, "--no-deep"]
    (tmp_path / "full.json").symlink_to("/dev/full")
    options = {"full file": ["--quiet", "-o", str(tmp_path / "full.json")], "dead reader": ["--die"]}
    receiver, closed = os.pipe()
    os.close(receiver)
    with open("/dev/full", "wb") as full:
        broken = {"full stdout": full.fileno(), "closed stdout": closed}
        stdout = broken.get(failure, subprocess.DEVNULL)
        subprocess.run([*command, *options.get(failure, [])], stdout=stdout, stderr=subprocess.DEVNULL, check=False)
    os.close(closed)
    (path,) = journals(cache)
    finished = len(path.read_text().splitlines())
    again = subprocess.run([*command, "--resume", "--json"], capture_output=True, text=True, check=True)
    resumed = json.loads(again.stdout)["weight_summary"]["scan"]["resumed_tensors"]
    assert resumed == finished == len(index.entries)
    assert journals(cache) == []


def test_the_python_function_removes_the_journal_of_the_scan_that_it_returns(index: Index, cache: Path) -> None:
    scan_until(index, 3)
    assert journals(cache)
    assert scan_weights(index.path, weights=False).capture.statistics is None
    assert journals(cache), "nothing was scanned"
    found = scan_weights(index.path, resume=True).capture.statistics
    assert found is not None
    assert found.scan["resumed_tensors"] == 0, "it is deep, unlike the interrupted one"
    assert journals(cache) == []


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
