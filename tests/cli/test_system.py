from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from tests.report.sample import ENVIRONMENT
from torchgauge.cli import main
from torchgauge.cli.system import system_text
from torchgauge.environment import Device, System, collect_environment, cpu_name, parse_cpuinfo


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


def test_devices_show_memory_and_capability() -> None:
    device = Device("A GPU", "cuda", 1, 80 * 2**30, "9.0", 132)
    text = system_text(System(ENVIRONMENT, 4, 8, 2**33, {"mkldnn": True, "cuda": "13.0", "mps": False}, (device,)))
    assert "Device    cuda:1 A GPU, 80.0 GiB, compute capability 9.0, 132 multiprocessors\n" in text
    assert "Backends  mkldnn yes, cuda 13.0, mps no\n" in text
    assert "Cores     4 physical, 8 logical, 8 usable\n" in text
    assert "Memory    16.0 GiB, 8.00 GiB available\n" in text


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
