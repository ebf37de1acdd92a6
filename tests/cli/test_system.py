from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.report.sample import ENVIRONMENT
from torchgauge.cli import main
from torchgauge.hardware import Device, Peaks, System, collect_environment, cpu_name, parse_cpuinfo
from torchgauge.measure import DevicePeaks, Instrument
from torchgauge.report import cell_width


def test_the_machine_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["system"]) == 0
    out = capsys.readouterr().out
    assert torch.__version__ in out
    assert cpu_name() in out


def test_the_json_has_base_units(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["system", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert document["environment"]["torch"] == torch.__version__
    assert document["environment"]["threads"] == torch.get_num_threads()
    assert document["environment"]["memory_bytes"] > document["available_memory_bytes"] > 0
    assert bool(document["backends"]["cuda"]) is torch.cuda.is_available()


def test_the_files_follow_their_suffix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["system", "--quiet", "-o", str(tmp_path / "s.json"), "-o", str(tmp_path / "s.txt")]) == 0
    assert json.loads((tmp_path / "s.json").read_text())["tool"]["name"] == "torchgauge"
    assert (tmp_path / "s.txt").read_text().startswith("System ")
    assert main(["system", "-o", str(tmp_path / "s.csv")]) == 2
    assert ".json, .txt" in capsys.readouterr().err


GPU = Device("A GPU", "cuda", 1, 80 * 2**30, "9.0", 132)
MACHINE = System(ENVIRONMENT, 4, 8, 2**33, {"mkldnn": True, "cuda": "13.0", "mps": False}, (GPU,))
SOURCES = {
    "peaks": "torchgauge.measure.calibrate.peaks",
    "sensors": "torchgauge.measure.sampler.list_quantities",
    "counters": "torchgauge.measure.counters.list_counters",
    "meters": "torchgauge.energy.meter.list_meters",
}


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `torchgauge system` prints for a machine with these devices, sensors, counters and meters."""

    def run(**lists: object) -> str:
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr("torchgauge.hardware.collect_system", lambda: MACHINE)
        for name, source in SOURCES.items():
            monkeypatch.setattr(source, lambda *_, name=name: lists.get(name, []))
        assert main(["system"]) == 0
        return capsys.readouterr().out

    return run


def test_devices_show_memory_and_capability(described: Callable[..., str]) -> None:
    text = described()
    assert "Device    cuda:1 A GPU, 80.0 GiB, compute capability 9.0, 132 multiprocessors\n" in text
    assert "Backends  mkldnn yes, cuda 13.0, mps no\n" in text
    assert "Cores     4 physical, 8 logical, 8 usable\n" in text
    assert "Memory    16.0 GiB, 8.00 GiB available\n" in text


def test_sensors_and_counters_are_there_or_say_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["system", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    sensors = {row["name"]: row for row in document["sensors"]}
    assert sensors["rss_bytes"]["available"] is True
    assert sensors["rss_bytes"]["resolution_unit"] == "B"
    assert {"RAPL", "NVML energy counter"} <= {row["name"] for row in document["meters"]}
    for row in (*document["sensors"], *document["counters"], *document["meters"]):
        assert row["available"] is (row["reason"] is None)
    assert document["calibration"] == []


def test_a_sensor_shows_what_it_resolves_and_an_absent_one_why(described: Callable[..., str]) -> None:
    sensor: Instrument = {
        "name": "cuda_power_w", "device": "cuda:0", "available": True, "reason": None, "source": "NVML",
        "update_period_s": 1.0, "resolution": 0.001, "resolution_unit": "W",
    }  # fmt: skip
    absent: Instrument = {"name": "cycles", "available": False, "reason": "no such event"}
    text = " ".join(described(sensors=[sensor], counters=[absent]).split())
    assert "cuda_power_w (cuda:0) every 1.00 s, in steps of 0.001 W, from NVML" in text
    assert "cycles absent: no such event" in text


def test_the_lines_fit_the_terminal(described: Callable[..., str]) -> None:
    reason = "the processor, or the virtual machine around it, does not offer this event"
    row: Instrument = {"name": "cycles", "available": False, "reason": reason}
    text = described(counters=[row])
    assert max(map(cell_width, text.splitlines())) <= 80
    assert reason in " ".join(text.split())


def test_peaks_are_shown_with_their_source_or_as_unknown(described: Callable[..., str]) -> None:
    peaks = Peaks("A GPU", {"float32": 67e12, "int8": 2e15}, 4.8e12, None, "a datasheet")
    row = DevicePeaks("cuda:0", "A GPU", published=peaks, measured=None)
    known, unknown = (" ".join(described(peaks=[one]).split()) for one in (row, replace(row, published=None)))
    assert "Peaks cuda:0: float32 67.0 TFLOP/s, int8 2.00 POP/s, memory 4.80 TB/s (a datasheet)" in known
    assert "Peaks cuda:0: unknown; torchgauge system --calibrate" in unknown


def test_calibrating_measures_remembers_and_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def probe(device: str, parts: Sequence[str]) -> Iterator[str]:
        for part in parts:
            yield json.dumps({"begin": part})
            yield json.dumps({"end": part} | ({"reason": "not here"} if part == "tf32" else {"rate": 5e9}))

    monkeypatch.setenv("TORCHGAUGE_CACHE", str(tmp_path))
    monkeypatch.setattr("torchgauge.measure.calibrate.run_probe", probe)
    assert main(["system", "--calibrate", "--kernel-seconds", "1"]) == 0
    out = capsys.readouterr().out
    assert "Peaks     cpu: float32 5.00 GFLOP/s, " in out
    assert "Missing   cpu tf32: not here\n" in out
    assert main(["system"]) == 0
    assert (tmp_path / "kernels-cpu.npz").exists()
    again = capsys.readouterr().out
    assert "Peaks     cpu: float32 5.00 GFLOP/s, " in again
    assert "Missing" not in again


def test_the_environment_follows_the_threads_of_torch() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert collect_environment().threads == before + 1
    finally:
        torch.set_num_threads(before)


def test_the_environment_names_loaded_packages_only() -> None:
    environment = collect_environment()
    assert environment.packages["numpy"]
    assert environment.cpu_cores is not None
    assert 1 <= environment.cpu_cores <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: Intel(R)  Xeon(R) CPU\nmodel name\t: other\n", "Intel(R) Xeon(R) CPU"),
        ("processor : 0\nBogoMIPS : 48.00\nCPU implementer : 0x41\n", ""),
        ("processor\t: 0\nModel\t: Raspberry Pi 5\n", "Raspberry Pi 5"),
    ],
)
def test_the_processor_is_named_where_the_system_names_it(text: str, name: str) -> None:
    assert parse_cpuinfo(text) == name
