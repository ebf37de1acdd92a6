"""Pickles in an archive that torch's own reader would not survive: refused before torch sees them."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path

import pytest
from torch import nn

from tests.torchscript.archives import Doubles, saved
from torchgauge.cli import main
from torchgauge.errors import FormatError
from torchgauge.source import load_torchscript
from torchgauge.source.torchscript.archive import _are_colliding

DEEP = 200_000
# Multiples of it have the same upper bits when torch multiplies them, and so one slot in its table.
ONE_SLOT = pow(11400714819323198485, -1, 1 << 64)


def number(value: int) -> bytes:
    return b"\x8a\x09" + (value % (1 << 64)).to_bytes(9, "little")


NESTED_LISTS = b"\x80\x02" + b"]" * DEEP + b"a" * (DEEP - 1) + b"."
NESTED_TUPLES = b"\x80\x02)" + b"\x85" * DEEP + b"."
NESTED_DICTS = b"\x80\x02" + b"}K\x00" * 5000 + b"N" + b"s" * 5000 + b"."
LONG = b"\x80\x02X\xff\xff\xff\xff."
COLLIDING = b"\x80\x02}(" + b"".join(number(place * ONE_SLOT) + b"K\x01" for place in range(60)) + b"u."


def archive_with(record: str, content: bytes, folder: Path) -> Path:
    path = saved(nn.Sequential(nn.Linear(2, 2), Doubles()), folder)
    target = folder / "changed.pt"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        names = old.namelist()
        changed = [name for name in names if name.endswith(record)]
        assert changed
        for name in names:
            new.writestr(name, content if name in changed else old.read(name))
    return target


@pytest.mark.parametrize("record", [".debug_pkl", "constants.pkl"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (NESTED_LISTS, "nested more than 1,000 deep"),
        (NESTED_TUPLES, "nested more than 1,000 deep"),
        (NESTED_DICTS, "nested more than 1,000 deep|not a table of source lines"),
        (LONG, "the pickle is cut off"),
    ],
)
def test_it_is_refused_before_torch_reads_it(record: str, content: bytes, reason: str, tmp_path: Path) -> None:
    path = archive_with(record, content, tmp_path)
    for values in (False, True):
        with pytest.raises(FormatError, match=reason):
            load_torchscript(path, values=values)


@pytest.mark.parametrize(
    ("record", "reason"), [(".debug_pkl", "not a table of source lines"), ("constants.pkl", "all have the same hash")]
)
def test_keys_that_blow_up_torchs_table_are_refused(record: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=reason):
        load_torchscript(archive_with(record, COLLIDING, tmp_path))


def test_the_keys_of_models_do_not_collide() -> None:
    chance = random.Random(0)
    for count in (3, 5, 60, 5000, 60_000):
        assert not _are_colliding(range(count))
        assert not _are_colliding(range(0, 1000 * count, 1000))
        assert not _are_colliding([chance.getrandbits(63) for _ in range(count)])
        assert not _are_colliding(map(str, range(count)))
    assert _are_colliding([place * ONE_SLOT % (1 << 64) for place in range(30)])


def test_the_command_names_the_record_and_ends_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = archive_with(".debug_pkl", NESTED_LISTS, tmp_path)
    assert main([str(path)]) in (0, 1)
    out, err = capsys.readouterr()
    assert ".debug_pkl): its values are nested more than 1,000 deep" in " ".join((out + err).split())
    assert "SIGSEGV" not in err
