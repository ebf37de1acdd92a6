"""What the host waits for is named, with a remedy where the code says what the value is for."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.advise.fault_classes import Does, x
from tests.advise.planted import said, seen
from tests.advise.waiting_models import WAITING, Waiting
from torchgauge import analyze


@pytest.mark.parametrize("case", WAITING, ids=lambda case: case.name)
def test_what_the_host_waits_for_is_named(case: Waiting) -> None:
    evidence = seen(case.fault, inputs=case.inputs)
    found = [advice for advice in said(evidence) if advice.rule == "host-wait"]

    assert [case.remedy in advice.recommendation for advice in found] == [True]


@pytest.mark.parametrize("case", WAITING, ids=lambda case: case.name)
def test_a_value_that_stays_on_the_device_is_not_waited_for(case: Waiting) -> None:
    assert [advice for advice in said(seen(case.twin, inputs=case.inputs)) if advice.rule == "host-wait"] == []


def host_waits(forward: Any, *inputs: Tensor, **parts: nn.Module) -> list[str]:
    found = said(seen(Does(forward, **parts).eval(), inputs=inputs))
    return [advice.recommendation for advice in found if advice.rule == "host-wait"]


def test_lengths_of_packed_sequences_are_on_the_host() -> None:
    def by_length(self: Any, h: Tensor, mask: Tensor) -> Tensor:
        packed = pack_padded_sequence(h, mask.sum(1).tolist(), batch_first=True)
        padded, lengths = pad_packed_sequence(packed, batch_first=True)
        kept, out = len(lengths), []
        for step in range(padded.shape[1]):
            while lengths[kept - 1] <= step:
                kept -= 1
            out.append(self.layer(padded[:kept, step]).sum(0))
        return torch.stack(out)

    mask = torch.arange(9) < torch.tensor([[9], [5], [2]])
    found = host_waits(by_length, x(3, 9, 32), mask, layer=nn.Linear(32, 32))
    # That of `tolist` is one; the lengths that come back are there.
    assert not [text for text in found if "this loop" in text]


def test_a_tensor_that_is_handed_to_numpy_at_once_is_on_the_host() -> None:
    """On a device `.numpy()` raises."""

    def of_array(self: Any, h: Tensor, where: Tensor) -> Tensor:
        return cast("Tensor", self.layer(h[torch.from_numpy(where.numpy() * 2)]))

    def of_copy(self: Any, h: Tensor, where: Tensor) -> Tensor:
        return cast("Tensor", self.layer(h[torch.from_numpy(where.cpu().numpy() * 2)]))

    given = x(64, 32), torch.arange(16)
    assert host_waits(of_array, *given, layer=nn.Linear(32, 32)) == []
    assert len(host_waits(of_copy, *given, layer=nn.Linear(32, 32))) == 1


def imported(folder: Path, code: str) -> Any:
    """A module of this code, which can be read again by its name."""
    file = folder / f"made_{uuid4().hex}.py"
    file.write_text(code)
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("made", "is_on_device"),
    [("torch.arange(8)", False), ("torch.arange(8, device=h.device)", True)],
)
def test_a_constant_that_is_made_on_the_device_is_waited_for(made: str, is_on_device: bool, tmp_path: Path) -> None:
    code = f"""
import torch
from torch import nn

class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, h):
        places = {made}
        steps = torch.arange(0, places[-1] + 1, device=h.device)
        return self.layer(h) + steps.sum()
"""
    model = imported(tmp_path, code).Steps()
    evidence = seen(model, inputs=(x(4, 32),))

    assert bool([advice for advice in said(evidence) if advice.rule == "host-wait"]) is is_on_device


@pytest.mark.parametrize(
    ("made", "is_sent"),
    [
        ("h.new_tensor([1.0, 2.0])", True),
        ("torch.tensor([1.0, 2.0], device=h.device)", True),
        ("torch.tensor(2.0, device=h.device)", True),
        ("torch.tensor(2.0)", False),
        ("torch.from_numpy(numpy.ones(2, dtype='float32')).to(h.device)", True),
        ("torch.ones(2, device=h.device)", False),
    ],
)
def test_a_model_that_sends_values_is_not_captured_in_a_graph(made: str, is_sent: bool, tmp_path: Path) -> None:
    code = f"import numpy\nimport torch\n\ndef forward(self, h):\n    return self.layers(h) * {made}.sum()\n"
    model = Does(imported(tmp_path, code).forward, layers=nn.Sequential(*(nn.Linear(32, 32) for _ in range(20))))
    found = analyze(model.eval(), inputs=(x(4, 32),), on="h200", progress=False).advice

    assert ("launch-bound" in {row["rule"] for row in found}) is not is_sent


def test_a_table_that_is_kept_is_sent_before_a_graph_is_captured(tmp_path: Path) -> None:
    code = """
import torch

def forward(self, h):
    if not hasattr(self, "table"):
        self.table = torch.tensor([1.0, 2.0], device=h.device)
    return self.layers(h) * self.table.sum()
"""
    model = Does(imported(tmp_path, code).forward, layers=nn.Sequential(*(nn.Linear(32, 32) for _ in range(20))))
    found = analyze(model.eval(), inputs=(x(4, 32),), on="h200", progress=False).advice

    assert "launch-bound" in {row["rule"] for row in found}
