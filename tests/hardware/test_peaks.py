from __future__ import annotations

from pathlib import Path

import pytest

from torchgauge.hardware import peaks_of, remember


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(tmp_path))


def bandwidth(name: str, kind: str = "cuda") -> float | None:
    found = peaks_of(name, kind)
    return found.bytes_per_s if found else None


def test_published_peaks_take_precedence_over_measured_ones() -> None:
    remember("NVIDIA H200", {"float32": 1.0}, 2.0, "today")
    assert bandwidth("NVIDIA H200") == 4.8e12


def test_a_device_that_is_not_listed_has_what_was_measured() -> None:
    assert bandwidth("Some GPU") is None
    remember("Some GPU", {"float32": 1.0}, 2.0, "today")
    assert bandwidth("Some GPU") == 2.0


def test_apples_processor_and_its_gpu_are_distinguished_though_they_share_a_name() -> None:
    assert bandwidth("Apple M1", "mps") == 68.25e9
    assert bandwidth("Apple M1", "cpu") is None
    remember("Apple M1", {}, 5.0, "today")
    remember("Apple M9", {}, 6.0, "today")
    assert bandwidth("Apple M1", "cpu") == 5.0
    assert bandwidth("Apple M1", "mps") == 68.25e9
    assert bandwidth("Apple M9", "mps") is None
