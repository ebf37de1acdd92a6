from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.checkpoint.reading import assert_same, raw_items
from torchgauge.checkpoint import Role, Verdict, open_checkpoint, sniff


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.blocks = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(2)])
        self.table: torch.Tensor
        self.register_buffer("table", torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).mean((2, 3)) + self.table
        for block in self.blocks:
            x = block(x)
        return x


def all_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@pytest.fixture
def net() -> nn.Module:
    return Net().eval()


@pytest.mark.parametrize("traced", [False, True])
def test_a_torchscript_archive_gives_modules_tensors_and_roles(tmp_path: Path, net: nn.Module, traced: bool) -> None:
    script = torch.jit.trace(net, torch.randn(1, 3, 8, 8)) if traced else torch.jit.script(net)
    script.save(tmp_path / "net.bin")
    index = open_checkpoint(tmp_path / "net.bin")
    assert index.format == sniff(tmp_path / "net.bin") == "torchscript"
    tensors = all_tensors(net)
    assert_same(index, {entry.name: tensors[entry.name] for entry in index.entries})
    assert {entry.name for entry in index.entries} == set(tensors)
    params = {entry.name for entry in index.entries if entry.role is Role.PARAMETER}
    assert params == {name for name, _ in net.named_parameters()}
    expected = [name for name, _ in net.named_modules() if not traced or name != "blocks"]
    assert [module.path for module in index.modules if not traced or module.path != "blocks"] == expected
    types = {module.path: module.type for module in index.modules}
    assert types["stem.0"] == "torch.nn.modules.conv.Conv2d"
    assert all(found.verdict is Verdict.EXPECTED for found in index.imports)


def test_the_weights_of_a_frozen_model_are_its_constants(tmp_path: Path, net: nn.Module) -> None:
    torch.jit.freeze(torch.jit.script(net)).save(tmp_path / "frozen.pt")
    index = open_checkpoint(tmp_path / "frozen.pt")
    # The norm is folded into the convolution; the table can no longer be distinguished from a weight.
    assert index.logical_params == (4 * 3 * 9 + 4) + 2 * 16 + 4
    weights = {torch_weight.detach().numpy().tobytes() for torch_weight in net.get_submodule("blocks").parameters()}
    assert weights <= {raw_items(entry) for entry in index.entries if entry.spec.shape == (4, 4)}


def test_extra_files_of_an_archive_are_named(tmp_path: Path, net: nn.Module) -> None:
    torch.jit.script(net).save(tmp_path / "net.pt", _extra_files={"labels.txt": "cat dog"})
    assert open_checkpoint(tmp_path / "net.pt").archive["extra_files"] == "labels.txt"


def test_an_exported_program_gives_its_tensors_and_roles(tmp_path: Path, net: nn.Module) -> None:
    torch.export.save(torch.export.export(net, (torch.randn(1, 3, 8, 8),)), tmp_path / "net.pt2")
    index = open_checkpoint(tmp_path / "net.pt2")
    assert index.format == sniff(tmp_path / "net.pt2") == "exported"
    tensors = all_tensors(net)
    assert {entry.name for entry in index.entries} == set(tensors)
    assert_same(index, {entry.name: tensors[entry.name] for entry in index.entries})
    params = {entry.name for entry in index.entries if entry.role is Role.PARAMETER}
    assert params == {name for name, _ in net.named_parameters()}
    assert Verdict.DANGEROUS not in {found.verdict for found in index.imports}
    assert index.warnings == ()


def test_the_older_layout_of_exported_programs_is_read(tmp_path: Path, net: nn.Module) -> None:
    """Up to PyTorch 2.7: the program as JSON, the tensors as torch files within the archive."""
    specs = [{"parameter": {"parameter_name": name}} for name, _ in net.named_parameters()]
    program = {"graph_module": {"signature": {"input_specs": specs}}}
    with zipfile.ZipFile(tmp_path / "old.pt2", "w") as archive:
        archive.writestr("serialized_exported_program.json", json.dumps(program))
        archive.writestr("serialized_state_dict.pt", torch_bytes_of(net.state_dict()))
        archive.writestr("serialized_constants.pt", torch_bytes_of({"table": net.get_buffer("table")}))
        archive.writestr("version", "7.3")
    index = open_checkpoint(tmp_path / "old.pt2")
    assert index.format == "exported"
    assert_same(index, {**net.state_dict(), "table": net.get_buffer("table")})
    assert index.logical_params == sum(p.numel() for p in net.parameters())


def torch_bytes_of(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
