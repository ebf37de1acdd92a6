from __future__ import annotations

from pathlib import Path

import pytest

from torchgauge.errors import TorchgaugeError
from torchgauge.hardware import FILE, Pace, remember, remembered


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(folder))
    return folder


def test_rates_are_remembered_by_device() -> None:
    remember("one", {"float32": 1e9}, 2e9, "today")
    remember("two", {"float32": 3e9}, 4e9, "today")
    found = remembered("one")
    assert found is not None
    assert (found.rate("float32"), found.bytes_per_s) == (1e9, 2e9)
    assert found.source == "measured today"


def test_a_device_that_was_not_measured_is_unknown() -> None:
    assert remembered("one") is None


def row(rate: str, copied: str) -> str:
    return f'{{"one": {{"flops_per_s": {{"float32": {rate}}}, "bytes_per_s": {copied}, "measured": "today"}}}}'


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{", '{"one": 3}', '{"one": {"flops_per_s": 1, "bytes_per_s": "x"}}',
        row("1e9", "0"), row("0", "1e9"), row('"x"', "1e9"), row("NaN", "1e9"), row("1e9", "Infinity"),
    ],
)  # fmt: skip
def test_a_spoilt_file_counts_as_empty_and_is_written_anew(cache: Path, content: str) -> None:
    cache.mkdir()
    (cache / FILE).write_text(content)
    assert remembered("one") is None
    remember("one", {"float32": 1e9}, 2e9, "today")
    assert remembered("one") is not None


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(TorchgaugeError, match=str(cache)):
        remember("one", {}, 1.0, "today")


def test_the_pace_of_a_processor_is_remembered() -> None:
    pace = Pace(1e-6, 8e-5, 3e-9, 3e-9, 7e-9, {1 << 17: 5e10, 1 << 25: 1e10})
    remember("one", {"float32": 1e9}, 2e9, "today", pace)
    found = remembered("one")
    assert found is not None
    assert found.pace == pace


def test_a_file_without_the_pace_is_still_read(cache: Path) -> None:
    cache.mkdir()
    (cache / FILE).write_text(row("1e9", "2e9"))
    found = remembered("one")
    assert found is not None
    assert (found.bytes_per_s, found.pace) == (2e9, None)
