"""A million tensors: what `torch.save` writes is read tensor by tensor, and the limits grow with the file."""

from __future__ import annotations

import io
import json
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

import torchgauge as tg
from torchgauge.checkpoint import open_checkpoint
from torchgauge.checkpoint.pickle import take_tensor
from torchgauge.report import render, render_pieces


def _state() -> dict[str, Any]:
    storage = torch.arange(24.0)
    return OrderedDict(
        scalar=torch.tensor(1.5),
        vector=torch.zeros(300),
        matrix=torch.zeros(70_000, 2),
        whole=storage.view(4, 6),
        part=storage.view(4, 6)[1:3, 2:4],
        transposed=torch.zeros(3, 5).t(),
        five=torch.zeros(1, 2, 3, 4, 5),
        half=torch.zeros(3, 3, dtype=torch.bfloat16),
        empty=torch.zeros(0, 4),
        parameter=torch.nn.Parameter(torch.zeros(4)),
        wants_gradient=torch.zeros(2, requires_grad=True),
        **{f"layer{number}": torch.zeros(2, 2) for number in range(100)},
    )


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_tensors_taken_as_one_are_those_that_single_opcodes_make(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.pt"
    torch.save(_state(), path, pickle_protocol=protocol)
    together = open_checkpoint(path)
    monkeypatch.setattr("torchgauge.checkpoint.pickle.machine.take_tensor", lambda machine, at: 0)
    assert open_checkpoint(path) == together
    assert [entry.spec.shape for entry in together.entries] == [tuple(t.shape) for t in _state().values()]
    assert {entry.name: entry.shared_with for entry in together.entries}["part"] == "whole"


def test_most_tensors_of_a_state_dict_are_taken_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def take(machine: Any, at: int) -> int:
        end = take_tensor(machine, at)
        taken.append(end)
        return end

    torch.save({f"layer{number}.weight": torch.zeros(4, 3) for number in range(200)}, tmp_path / "state.pt")
    monkeypatch.setattr("torchgauge.checkpoint.pickle.machine.take_tensor", take)
    open_checkpoint(tmp_path / "state.pt")
    assert sum(end > 0 for end in taken) >= 198


def test_a_memo_that_is_written_over_is_not_taken_for_what_it_was(tmp_path: Path) -> None:
    """The number of the storage's class is given to another class between two tensors."""
    torch.save({"a": torch.zeros(2), "b": torch.zeros(2), "c": torch.zeros(2)}, tmp_path / "state.pt")
    entries = open_checkpoint(tmp_path / "state.pt").entries
    assert [entry.spec.dtype for entry in entries] == ["float32"] * 3
    with zipfile.ZipFile(tmp_path / "state.pt") as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in records if name.endswith("data.pkl"))
    kind = b"ctorch\nFloatStorage\nq"
    number = records[name][records[name].index(kind) + len(kind)]
    again = b"ctorch\nIntStorage\nq" + bytes([number]) + b"0"
    third = records[name].index(b"X\x01\x00\x00\x00c")
    records[name] = records[name][:third] + again + records[name][third:]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for record, content in records.items():
            archive.writestr(record, content)
    (tmp_path / "edited.pt").write_bytes(buffer.getvalue())
    entries = open_checkpoint(tmp_path / "edited.pt").entries
    assert [entry.spec.dtype for entry in entries] == ["float32", "float32", "int32"]


def test_a_large_pickle_may_make_more_values_than_a_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits grow with the file: a valid one with a million tensors was refused as broken."""
    monkeypatch.setattr("torchgauge.checkpoint.limits.PICKLE_MEMORY_BYTES", 10_000)
    monkeypatch.setattr("torchgauge.checkpoint.limits.PICKLE_OPCODES", 1024)
    monkeypatch.setattr("torchgauge.checkpoint.limits.PATH_STEPS", 100)
    torch.save({f"layer{number}.weight": torch.zeros(4, 3) for number in range(2000)}, tmp_path / "state.pt")
    assert len(open_checkpoint(tmp_path / "state.pt").entries) == 2000


def test_the_document_comes_in_pieces_and_holds_no_rows(tmp_path: Path) -> None:
    torch.save({f"layer{number}.weight": torch.zeros(4, 3) for number in range(2000)}, tmp_path / "state.pt")
    scan = tg.scan_weights(tmp_path / "state.pt", weights=False)
    pieces = list(render_pieces(scan, "json"))
    assert max(map(len, pieces)) < sum(map(len, pieces)) / 5
    assert not {"weights", "modules"} & scan.__dict__.keys(), "rows that nobody asked for are not kept"
    document = json.loads(b"".join(pieces))
    assert len(document["weights"]) == 2000
    assert document == json.loads(render(scan, "json")) == json.loads(json.dumps(scan.to_dict()))
    assert document["weights"] == json.loads(json.dumps(scan.weights))
