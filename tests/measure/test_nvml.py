from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.measure.fake_nvml import BUSY, DRIVER_NOT_LOADED, NOT_SUPPORTED, PLACE, UUID, FakeNvml
from torchgauge.measure import Absent, Device, cuda_quantities, nvml_device, opened


def test_figures_come_in_base_units() -> None:
    library = FakeNvml(BUSY)
    with opened(UUID, PLACE, lambda: library) as device:
        assert isinstance(device, Device)
        assert device.name() == "NVIDIA Test"
        assert (device.busy_share(), device.memory_busy_share()) == (0.97, 0.41)
        assert device.memory_used_bytes() == 3 * 2**30
        assert (device.sm_clock_hz(), device.memory_clock_hz()) == (1.98e9, 1.98e9)
        assert device.temperature_c() == 54
        assert (device.power_w(), device.power_limit_w()) == (651.25, 700.0)
        assert device.power_instant_w() == 702.5
        assert device.energy_j() == pytest.approx(5_000_000.123)
        assert device.throttle_reasons() == frozenset({"power_cap", "thermal_software"})
    clocks = [asked[1] for asked in library.asked if asked[0] == "nvmlDeviceGetClockInfo"]
    assert clocks == [1, 2]  # NVML_CLOCK_SM, NVML_CLOCK_MEM


def test_the_library_is_closed_whatever_happens() -> None:
    library = FakeNvml(BUSY)
    with opened(UUID, PLACE, lambda: library):
        assert library.opened == 1
    assert library.opened == 0
    with pytest.raises(KeyError), opened(UUID, PLACE, lambda: library):
        raise KeyError
    assert library.opened == 0


@pytest.mark.parametrize("known", [f"GPU-{UUID}", f"MIG-{UUID}", PLACE])
def test_the_device_is_found_by_uuid_or_by_its_place_on_the_bus(known: str) -> None:
    with opened(UUID, PLACE, lambda: FakeNvml(BUSY, known=known)) as device:
        assert isinstance(device, Device)


@pytest.mark.parametrize(
    ("properties", "place"), [({}, ""), ({"pci_domain_id": 0, "pci_bus_id": 59, "pci_device_id": 0}, PLACE)]
)
def test_the_device_is_found_by_torchs_uuid_or_pci_address(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, int], place: str
) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: SimpleNamespace(uuid=UUID, **properties))
    monkeypatch.setattr("torchgauge.measure.readings.opened", lambda uuid, place: asked.append((uuid, place)))
    nvml_device(1)
    assert asked == [(UUID, place)]


def test_a_device_that_nvml_does_not_know_is_absent_with_its_reason() -> None:
    with opened(UUID, PLACE, lambda: FakeNvml(BUSY, known="GPU-other")) as device:
        assert device == Absent("NVML: Not Found")


def test_a_figure_that_is_not_supported_says_so() -> None:
    with opened(UUID, PLACE, lambda: FakeNvml({})) as device:
        assert isinstance(device, Device)
        for read in (device.energy_j, device.busy_share, device.throttle_reasons, device.power_instant_w):
            assert read() == Absent("NVML: Not Supported")


def test_a_field_has_its_own_status() -> None:
    refused = {"nvmlDeviceGetFieldValues": {"value": 0, "status": NOT_SUPPORTED}}
    with opened(UUID, PLACE, lambda: FakeNvml(refused)) as device:
        assert isinstance(device, Device)
        assert device.power_instant_w() == Absent("NVML: Not Supported")


def test_a_driver_too_old_for_a_function_says_so() -> None:
    library = FakeNvml(BUSY, lacking="nvmlDeviceGetTotalEnergyConsumption")
    with opened(UUID, PLACE, lambda: library) as device:
        assert isinstance(device, Device)
        found = device.energy_j()
    assert isinstance(found, Absent)
    assert "too old" in found.reason


def test_without_a_driver_there_is_a_reason_and_nothing_to_close() -> None:
    def load() -> Any:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    with opened(UUID, PLACE, load) as device:
        assert isinstance(device, Absent)
        assert "not installed" in device.reason
    library = FakeNvml(BUSY, start=DRIVER_NOT_LOADED)
    with opened(UUID, PLACE, lambda: library) as device:
        assert device == Absent("NVML: Driver Not Loaded")
    assert library.opened == 0


def test_the_sampled_quantities_are_those_of_the_device() -> None:
    with opened(UUID, PLACE, lambda: FakeNvml(BUSY)) as device:
        found = {quantity.name: (quantity, quantity.now()) for quantity in cuda_quantities(device)}
    assert found["cuda_power_w"][1] == 651.25
    assert found["cuda_memory_used_bytes"][1] == 3 * 2**30
    throttled, flags = found["cuda_throttled_share"]
    assert isinstance(flags, tuple)
    assert {name for name, flag in zip(throttled.labels, flags, strict=True) if flag} == {
        "power_cap",
        "thermal_software",
    }


def test_every_quantity_of_an_absent_device_gives_the_devices_reason() -> None:
    reasons = {quantity.now() for quantity in cuda_quantities(Absent("no driver"))}
    assert reasons == {Absent("no driver")}
