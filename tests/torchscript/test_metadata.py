"""The metadata of an archive is reported, and its names are data."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg


def torchscript(folder: Path, extra: str = "notes.txt") -> Path:
    path = folder / "model.pt"
    torch.jit.save(torch.jit.script(nn.Sequential(nn.Linear(4, 4))), path, _extra_files={extra: b"hello"})
    return path


def exported(folder: Path) -> Path:
    path = folder / "model.pt2"
    program = torch.export.export(nn.Linear(4, 4), (torch.zeros(2, 4),))
    torch.export.save(program, path, extra_files={"notes.txt": "hello"})
    return path


def records(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name).decode("latin-1").strip() for name in archive.namelist()}


def test_the_metadata_of_torchscript_is_in_the_document(tmp_path: Path) -> None:
    path = torchscript(tmp_path)
    assert tg.analyze(path).to_dict()["target"]["metadata"] == {
        "file_version": records(path)["version"],
        "byteorder": "little",
        "serialization_id": records(path)[".data/serialization_id"],
        "extra_files": "notes.txt",
    }


def test_the_metadata_of_an_exported_program_holds_its_versions(tmp_path: Path) -> None:
    path = exported(tmp_path)
    program = json.loads(records(path)["models/model.json"])
    found = tg.analyze(path).capture.target.metadata
    assert found["torch_version"] == program["torch_version"] == torch.__version__
    assert found["schema_version"] == "{major}.{minor}".format(**program["schema_version"])
    assert found["opset_version"] == f"aten {program['opset_version']['aten']}"
    assert (found["archive_format"], found["extra_files"]) == ("pt2", "notes.txt")


@pytest.mark.parametrize("make", [torchscript, exported])
def test_the_metadata_survives_saving_and_is_one_line_of_the_text(make: Any, tmp_path: Path) -> None:
    path = make(tmp_path)
    found = tg.analyze(path)
    found.save(tmp_path / "run.json")
    assert tg.load(tmp_path / "run.json").capture.target == found.capture.target
    assert "byteorder little" in " ".join(str(found).split())
    assert "byteorder little" in " ".join(str(tg.scan_weights(path)).split())


def test_a_live_module_has_no_metadata() -> None:
    assert tg.analyze(nn.Linear(4, 4)).to_dict()["target"]["metadata"] == {}


def test_a_name_that_would_act_on_the_terminal_is_escaped(tmp_path: Path) -> None:
    text = str(tg.analyze(torchscript(tmp_path, "\x1b[31mred")))
    assert "\x1b" not in text
    assert "\\x1b[31mred" in text
