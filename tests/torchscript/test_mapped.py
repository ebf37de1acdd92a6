"""An archive is analysed with its tensors mapped from the file: with their values, and without taking memory."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.torchscript.archives import rewritten
from torchgauge.checkpoint import in_memory
from torchgauge.checkpoint.pickle import ImportLog, PickleMachine
from torchgauge.source import load_torchscript
from torchgauge.source.torchscript import with_prefixed_storages

pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")


class Scaled(nn.Module):
    """Its trace has constants, whose storages are numbered from 0 as those of its parameters are."""

    order: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("order", torch.arange(6))

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        scale = torch.tensor([0.5, 1.0, 2.0, 4.0])
        shift = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
        return {"logits": self.head(self.table(self.order[ids]) * scale + shift)}


def traced(folder: Path) -> Path:
    ids = torch.tensor([[1, 2, 3]])
    torch.jit.save(torch.jit.trace(Scaled(), ids, strict=False), folder / "traced.pt")
    return folder / "traced.pt"


def constants(module: Any) -> list[Tensor]:
    found = [node.output().toIValue() for node in module.inlined_graph.nodes() if node.kind() == "prim::Constant"]
    return [value for value in found if isinstance(value, Tensor)]


@pytest.mark.parametrize("is_unaligned", [False, True])
def test_parameters_buffers_and_constants_have_their_values(folder: Path, is_unaligned: bool) -> None:
    path = traced(folder)
    expected = torch.jit.load(path)
    found = load_torchscript(rewritten(path, lambda code: code) if is_unaligned else path)
    for mine, theirs in ((found.state_dict(), expected.state_dict()), (constants(found), constants(expected))):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert len(constants(found)) == 2
    assert found.head.weight is found.table.weight
    assert all(parameter.requires_grad for parameter in found.parameters())


def test_half_precision_weights_are_mapped(folder: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8).half(), nn.Linear(8, 4).to(torch.bfloat16))
    torch.jit.save(torch.jit.script(model), folder / "half.pt")
    torch.testing.assert_close(dict(load_torchscript(folder / "half.pt").state_dict()), dict(model.state_dict()))


class Key:
    """Stands for a storage in a pickle."""

    def __init__(self, name: str) -> None:
        self.identifier = ("storage", torch.FloatStorage, name, "cpu", 4)


class Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return obj.identifier if isinstance(obj, Key) else None


def test_the_names_of_storages_change_and_equal_texts_do_not(folder: Path) -> None:
    name = "7"
    with open(folder / "values.pkl", "wb") as file:
        Pickler(file, protocol=2).dump([Key(name), name, OrderedDict({name: Key(name)}), "8", Key("8"), Key("9")])
    changed = with_prefixed_storages((folder / "values.pkl").read_bytes(), "constants/")
    seen: list[str] = []

    def note(identifier: Any) -> str:
        seen.append(identifier[2])
        return "storage"

    values = PickleMachine(in_memory(changed, "", ""), ImportLog(), persistent=note).run()
    assert seen == ["constants/7", "constants/7", "constants/8", "constants/9"]
    assert values == ["storage", "7", {"7": "storage"}, "8", "storage", "storage"]


MEMORY = """
import resource, sys
import torchgauge as tg
from torchgauge.source import load_torchscript

def grown(path, features):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert tg.analyze(load_torchscript(path), input_size=(1, features)).totals.macs == 12 * features**2
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024

grown(sys.argv[1], 8)
print(grown(sys.argv[2], 2048))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units elsewhere")
def test_the_weights_are_not_in_memory_during_an_analysis(folder: Path) -> None:
    for name, features in (("small.pt", 8), ("large.pt", 2048)):
        layers = [nn.Linear(features, features, bias=False) for _ in range(12)]
        torch.jit.save(torch.jit.script(nn.Sequential(*layers)), folder / name)
    size = (folder / "large.pt").stat().st_size
    assert size > 200e6
    done = subprocess.run([sys.executable, "-c", MEMORY, folder / "small.pt", folder / "large.pt"],
                          check=True, capture_output=True, text=True)  # fmt: skip
    assert int(done.stdout) < size / 4
