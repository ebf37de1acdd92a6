from __future__ import annotations

import pytest

from torchgauge.hardware import COMPUTE, MEMORY, Roof, known_devices, listed_devices, published_peaks


def test_a_device_is_found_by_its_exact_name_whatever_the_case_and_spaces() -> None:
    found = published_peaks("nvidia  h200")
    assert found is not None
    assert found.name == "NVIDIA H200"
    assert found.bytes_per_s == 4.8e12


@pytest.mark.parametrize("name", ["NVIDIA H2", "H200", "NVIDIA H200 NVL 2", "", "Some CPU"])
def test_an_unknown_device_stays_unknown(name: str) -> None:
    assert published_peaks(name) is None


def test_float32_takes_the_tf32_rate_only_where_it_is_allowed() -> None:
    found = published_peaks("NVIDIA A100-SXM4-80GB")
    assert found is not None
    assert found.rate("float32") == 19.5e12
    assert found.rate("float32", tf32=True) == 156e12
    assert found.rate("bfloat16", tf32=True) == 312e12


def test_a_type_without_a_rate_has_none() -> None:
    found = published_peaks("Tesla T4")
    assert found is not None
    assert found.rate("bfloat16") is None
    assert found.rate(None) is None


@pytest.mark.parametrize("name", known_devices())
def test_every_entry_names_its_source_and_narrower_types_are_no_slower(name: str) -> None:
    found = published_peaks(name)
    assert found is not None
    assert found.source
    rates = [found.rate(dtype) for dtype in ("float32", "float16", "float8_e4m3fn")]
    known = [rate for rate in rates if rate is not None]
    assert known == sorted(known)


def test_every_device_has_what_predictions_need() -> None:
    listed = listed_devices()
    assert len({device.short for device in listed}) == len(listed)
    for device in listed:
        assert device.memory_bytes >= 8 * 2**30
        assert 0 < device.reserved_share < 0.3
        assert device.multiprocessors > 0
        assert (device.capability is None) == (not device.peaks.name.startswith(("NVIDIA", "Tesla")))


def test_the_ridge_parts_memory_bound_from_compute_bound() -> None:
    roof = Roof(flops_per_s=100.0, bytes_per_s=10.0)
    assert roof.ridge == 10.0
    assert roof.bound(flops=99, nbytes=10) == MEMORY
    assert roof.bound(flops=101, nbytes=10) == COMPUTE
    assert roof.bound(flops=0, nbytes=0) is None


def test_no_op_is_faster_than_either_limit() -> None:
    roof = Roof(flops_per_s=100.0, bytes_per_s=10.0)
    assert roof.least_seconds(flops=200, nbytes=1) == 2.0
    assert roof.least_seconds(flops=1, nbytes=50) == 5.0
    assert roof.attainable(5.0) == 50.0
    assert roof.attainable(50.0) == 100.0
