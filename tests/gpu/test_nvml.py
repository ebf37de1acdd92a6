"""NVML against torch and against itself, on a real device."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from torchgauge.measure import Device, nvml_device, outcome, sampling
from torchgauge.verify import switches_kept

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def work(seconds: float) -> None:
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()


def test_the_device_is_the_one_torch_uses() -> None:
    with nvml_device(0) as device:
        assert isinstance(device, Device), device
        assert device.name() == torch.cuda.get_device_name(0)
        free, total = torch.cuda.mem_get_info(0)
        used = device.memory_used_bytes()
        assert isinstance(used, float)
        assert used == pytest.approx(total - free, abs=2 * 2**30)


def test_figures_are_in_a_plausible_range() -> None:
    with nvml_device(0) as device:
        assert isinstance(device, Device), device
        work(0.5)
        ranges = {
            "power_w": (10, 2000), "power_limit_w": (50, 2000), "temperature_c": (10, 110),
            "sm_clock_hz": (1e8, 5e9), "memory_clock_hz": (1e8, 2e10), "busy_share": (0, 1), "energy_j": (0, 1e12),
        }  # fmt: skip
        for name, (low, high) in ranges.items():
            value = getattr(device, name)()
            assert isinstance(value, float), f"{name}: {value}"
            assert low <= value <= high, f"{name}: {value}"


def test_energy_grows_by_power_times_time() -> None:
    with nvml_device(0) as device:
        assert isinstance(device, Device), device
        work(1.5)  # the mean power is over the last second
        begin, before = time.perf_counter(), device.energy_j()
        work(2.0)
        seconds, after, watts = time.perf_counter() - begin, device.energy_j(), device.power_w()
        assert isinstance(before, float)
        assert isinstance(after, float)
        assert isinstance(watts, float)
        assert (after - before) / seconds == pytest.approx(watts, rel=0.25)


def test_a_busy_device_is_seen_by_the_sampler_at_a_small_cost() -> None:
    work(1.0)
    with sampling("cuda") as samples:
        work(3.0)
    found: Any = samples.figures()
    rows = found["quantities"]
    assert rows["cuda_share"]["max"] > 0.5, found["absent"]
    assert rows["cuda_memory_used_bytes"]["min"] > 0
    assert rows["cuda_sm_clock_hz"]["max"] > 1e8
    assert found["cost"]["share"] < 0.01


@pytest.mark.parametrize("dtype", ["float32", "tf32", "bfloat16", "float8", "int8"])
def test_matmul_rates_are_measured(dtype: str) -> None:
    with switches_kept():  # the product asks in a separate process
        found = outcome(dtype, torch.device("cuda", 0))
    assert isinstance(found.get("rate"), float), found
    assert float(str(found["rate"])) > 1e12
