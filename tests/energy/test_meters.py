"""Meters from what the system shows: folders, driver libraries and commands that answer as the real ones do."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.measure.fake_nvml import BUSY, PLACE, UUID, FakeNvml
from torchgauge.energy import (
    FINDERS,
    JOULES,
    MACHINE,
    WATTS,
    Integrated,
    Meter,
    Reading,
    ReplayClock,
    ReplayMeter,
    Unwrapped,
    amd_meters,
    apple_meters,
    battery_meters,
    choose,
    counting,
    describe_meter,
    meters,
    meters_of,
    nvml_device_meters,
    perf_meters,
    rapl_meters,
)
from torchgauge.measure import Absent, Count, opened


def domain(folder: Path, entry: str, name: str, energy_uj: int, range_uj: int = 1_000_000) -> Path:
    path = folder / entry
    path.mkdir(parents=True)
    for file, text in (("name", name), ("energy_uj", energy_uj), ("max_energy_range_uj", range_uj)):
        (path / file).write_text(f"{text}\n")
    return path


def rapl_of(folder: Path) -> dict[str, Meter]:
    with ExitStack() as stack:
        return {found.name: found for found in rapl_meters("cpu", stack, folder)}


def read(found: Meter) -> float:
    reading = found.read()
    assert isinstance(reading, Reading), reading
    return reading.value


def test_packages_and_memory_make_the_processor_and_cores_lie_inside(tmp_path: Path) -> None:
    domain(tmp_path, "intel-rapl:0", "package-0", 100_000)
    domain(tmp_path, "intel-rapl:0:0", "core", 70_000)
    domain(tmp_path, "intel-rapl:0:1", "dram", 20_000)
    domain(tmp_path, "intel-rapl:1", "package-1", 300_000)
    found = rapl_of(tmp_path)
    assert list(found) == ["RAPL", "RAPL package", "RAPL core", "RAPL dram"]
    assert read(found["RAPL"]) == pytest.approx(0.42)
    assert read(found["RAPL package"]) == pytest.approx(0.4)
    assert read(found["RAPL core"]) == pytest.approx(0.07)
    assert found["RAPL"].covers == "cpu"
    assert found["RAPL core"].covers != "cpu"


def test_each_domain_turns_at_its_own_range(tmp_path: Path) -> None:
    first = domain(tmp_path, "intel-rapl:0", "package-0", 990_000, range_uj=1_000_000)
    second = domain(tmp_path, "intel-rapl:1", "package-1", 100_000, range_uj=5_000_000)
    processor = rapl_of(tmp_path)["RAPL"]
    before = read(processor)
    (first / "energy_uj").write_text("40000\n")
    (second / "energy_uj").write_text("150000\n")
    assert read(processor) - before == pytest.approx(0.05 + 0.05)
    (first / "energy_uj").write_text("30000\n")
    assert read(processor) - before == pytest.approx(0.05 + 0.05 + 0.99)


def test_the_same_counters_by_another_way_are_not_counted_twice(tmp_path: Path) -> None:
    domain(tmp_path, "intel-rapl:0", "package-0", 100_000)
    domain(tmp_path, "intel-rapl-mmio:0", "package-0", 100_000)
    assert read(rapl_of(tmp_path)["RAPL"]) == pytest.approx(0.1)


def test_a_domain_whose_name_cannot_be_read_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "intel-rapl:0" / "name").mkdir(parents=True)
    assert "cannot be read" in str(rapl_of(tmp_path)["RAPL"].available())


def test_without_a_powercap_folder_the_reason_says_so(tmp_path: Path) -> None:
    found = rapl_of(tmp_path / "powercap")["RAPL"]
    assert "does not exist" in str(found.available())
    assert isinstance(found.read(), Absent)


def test_a_folder_without_packages_says_so(tmp_path: Path) -> None:
    domain(tmp_path, "intel-rapl:0", "psys", 5)
    assert "no counter of a package" in str(rapl_of(tmp_path)["RAPL"].available())


def test_files_that_root_alone_may_read_say_what_would_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    domain(tmp_path, "intel-rapl:0", "package-0", 1)

    def refuse(path: Path) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("torchgauge.energy.processor._number", refuse)
    assert "root only" in str(rapl_of(tmp_path)["RAPL"].available())


def test_a_counter_file_that_goes_away_is_absent_from_then_on(tmp_path: Path) -> None:
    folder = domain(tmp_path, "intel-rapl:0", "package-0", 1)
    processor = rapl_of(tmp_path)["RAPL"]
    assert processor.available() is None
    (folder / "energy_uj").unlink()
    assert "cannot be read" in str(processor.available())


def test_rapl_measures_the_processor_only() -> None:
    with ExitStack() as stack:
        assert list(rapl_meters("cuda:0", stack)) == []


class FakeKernel:
    def __init__(self) -> None:
        self.opened: list[Any] = []
        self.closed: list[int] = []
        self.refusal: Absent | None = None

    def threads(self) -> list[int]:
        return []

    def open(self, event: Any, thread: int) -> int | Absent:
        if self.refusal is not None:
            return self.refusal
        self.opened.append(event)
        return len(self.opened) - 1

    def start(self, counter: int) -> None:
        pass

    def stop(self, counter: int) -> None:
        pass

    def read(self, counter: int) -> Count:
        return Count(1000 * (counter + 1), 1, 1)

    def close(self, counter: int) -> None:
        self.closed.append(counter)


def power_folder(folder: Path) -> Path:
    (folder / "events").mkdir(parents=True)
    for name, text in (
        ("type", "22"), ("cpumask", "0,32"), ("events/energy-pkg", "event=0x02"),
        ("events/energy-pkg.scale", "0.5"), ("events/energy-cores", "event=0x01"), ("events/energy-cores.scale", "9"),
    ):  # fmt: skip
        (folder / name).write_text(f"{text}\n")
    return folder


def test_perf_counts_the_packages_of_every_socket_in_joules(tmp_path: Path) -> None:
    kernel = FakeKernel()
    with ExitStack() as stack:
        (found,) = perf_meters("cpu", stack, power_folder(tmp_path / "power"), kernel)
        assert read(found) == 0.5 * (1000 + 2000)
        assert [(event.kind, event.config, event.machine_cpu) for event in kernel.opened] == [(22, 2, 0), (22, 2, 32)]
    assert sorted(kernel.closed) == [0, 1]


def test_perf_says_why_it_may_not_count(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.refusal = Absent("not permitted")
    with ExitStack() as stack:
        (found,) = perf_meters("cpu", stack, power_folder(tmp_path / "power"), kernel)
        assert found.available() == "not permitted"
        (none,) = perf_meters("cpu", stack, tmp_path / "nowhere", kernel)
        assert none.available() == "the kernel exposes no power events"
        (tmp_path / "power" / "type").write_text("unknown")
        (spoilt,) = perf_meters("cpu", stack, tmp_path / "power", kernel)
        assert "cannot be read" in str(spoilt.available())


def nvml_meters(values: dict[str, dict[str, int]]) -> list[Meter]:
    with opened(UUID, PLACE, lambda: FakeNvml(values)) as device:
        return list(nvml_device_meters(device, "cuda:0"))


def test_nvml_counts_joules_and_shows_watts() -> None:
    counter, power = nvml_meters(BUSY)
    assert counter.unit == JOULES
    assert read(counter) == pytest.approx(5_000_000.123)
    assert (power.unit, read(power)) == (WATTS, 651.25)
    assert counter.update_period_s == 0.1


def test_a_device_without_the_counter_falls_to_its_power() -> None:
    found = nvml_meters({name: value for name, value in BUSY.items() if "Energy" not in name})
    assert found[0].available() == "NVML: Not Supported"
    chosen = choose(found, "cuda:0")
    assert not isinstance(chosen, Absent)
    assert chosen.unit == WATTS


def test_of_two_devices_the_one_that_is_used_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CUDA_VISIBLE_DEVICES=1 torch's device 0 is NVML's 1: the UUID identifies it."""
    asked: list[str] = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: SimpleNamespace(uuid=UUID))

    def watched(uuid: str, place: str) -> Any:
        asked.append(uuid)
        return opened(uuid, place, lambda: FakeNvml(BUSY, known=f"GPU-{UUID}"))

    monkeypatch.setattr("torchgauge.measure.readings.opened", watched)
    with meters_of("cuda:0") as found:
        chosen = choose(found, "cuda:0")
        assert not isinstance(chosen, Absent)
        assert (chosen.name, chosen.covers) == ("NVML energy counter", "cuda:0")
    assert asked == [UUID]


def test_a_meter_of_another_device_is_not_taken() -> None:
    clock = ReplayClock()
    one, other = ReplayMeter(clock, covers="cuda:0"), ReplayMeter(clock, covers="cuda:1")
    assert choose([one, other], "cuda:1") is other
    assert isinstance(choose([one], "cuda:1"), Absent)


def test_the_whole_machine_is_the_last_resort_and_every_reason_is_given() -> None:
    clock = ReplayClock()
    gone = ReplayMeter(clock, name="counter", absent="not supported")
    machine = ReplayMeter(clock, covers=MACHINE, name="battery")
    assert choose([machine, gone], "cuda:0") is machine
    machine.absent = "no battery"
    assert choose([machine, gone], "cuda:0") == Absent("battery: no battery; counter: not supported")


def test_an_offer_has_period_and_resolution_or_the_reason() -> None:
    row = describe_meter(ReplayMeter(ReplayClock(), absent="not here"))
    assert (row["available"], row["reason"], row["update_period_s"], row["resolution_j"]) == (
        False,
        "not here",
        0.1,
        1e-3,
    )


def test_meters_are_registered_once() -> None:
    with meters_of("cpu"), pytest.raises(ValueError, match="rapl"):
        meters("rapl")(lambda device, stack: [])
    assert {"nvml", "rapl", "perf power", "amdsmi", "powermetrics", "battery"} <= FINDERS.keys()


def test_a_counter_goes_before_a_power() -> None:
    clock = ReplayClock()
    power, counter = ReplayMeter(clock, unit=WATTS), ReplayMeter(clock)
    assert choose([power, counter], "cuda:0") is counter


@pytest.mark.parametrize(
    ("files", "watts"),
    [
        ({"power_now": "12500000"}, 12.5),
        ({"power_now": "-12500000"}, 12.5),
        ({"current_now": "1500000", "voltage_now": "12000000"}, 18.0),
    ],
)
def test_a_battery_that_is_used_shows_its_power(tmp_path: Path, files: dict[str, str], watts: float) -> None:
    folder = tmp_path / "BAT0"
    folder.mkdir()
    for name, text in {"type": "Battery", "status": "Discharging", **files}.items():
        (folder / name).write_text(text + "\n")
    (battery,) = battery_meters("cpu", ExitStack(), tmp_path)
    assert battery.unit == WATTS
    assert read(battery) == pytest.approx(watts)
    (folder / "status").write_text("Charging\n")
    assert battery.read() == Absent("the machine does not run on its battery (charging)")


def test_no_battery_is_said(tmp_path: Path) -> None:
    (battery,) = battery_meters("cpu", ExitStack(), tmp_path)
    assert battery.read() == Absent("no battery here")


def test_powermetrics_reports_the_power_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    text = "*** Sampled\nCPU Power: 4210 mW\nGPU Power: 15700 mW\n"
    for device, watts in (("cpu", 4.21), ("mps:0", 15.7)):
        (found,) = apple_meters(device, ExitStack(), lambda: text)
        assert found.unit == WATTS
        assert read(found) == pytest.approx(watts)
    (silent,) = apple_meters("mps", ExitStack(), lambda: "nothing")
    assert isinstance(silent.read(), Absent)


def test_amd_counts_in_its_own_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    class RefusalError(Exception):
        pass

    places = {"one": "0000:03:00.0", "two": "0000:83:00.0"}
    counts = {"two": {"energy_accumulator": 2_000_000, "counter_resolution": 15.3}}
    closed: list[bool] = []
    library = SimpleNamespace(
        AmdSmiException=RefusalError,
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: closed.append(True),
        amdsmi_get_processor_handles=lambda: list(places),
        amdsmi_get_gpu_device_bdf=places.get,
        amdsmi_get_energy_count=counts.get,
    )
    used = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x83, pci_device_id=0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: used)
    with ExitStack() as stack:
        (found,) = amd_meters("cuda:0", stack, lambda: library)
        assert read(found) == pytest.approx(30.6)
    assert closed == [True]


def test_amd_without_its_package_says_so() -> None:
    def missing() -> Any:
        raise ImportError("No module named 'amdsmi'")

    with ExitStack() as stack:
        (found,) = amd_meters("cuda:0", stack, missing)
        assert "cannot be imported" in str(found.available())


def test_a_counter_without_a_range_that_falls_was_reset() -> None:
    counter = Unwrapped()
    assert counter.grown(5.0) == 5.0
    assert isinstance(counter.grown(4.0), Absent)


def test_watts_are_summed_over_time() -> None:
    clock = ReplayClock()
    power = ReplayMeter(clock, watts=lambda at: 100 * at, unit=WATTS)
    integrated = Integrated(power)
    for _ in range(11):
        found = read(integrated)
        clock.sleep(0.2)
    assert found == pytest.approx(100 * 2.0**2 / 2)


def test_a_meter_that_counts_is_used_as_it_is() -> None:
    counter = ReplayMeter(ReplayClock())
    with counting(counter) as found:
        assert found is counter
    with counting(ReplayMeter(ReplayClock(), unit=WATTS)) as found:
        assert found.unit == JOULES
