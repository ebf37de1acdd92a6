"""What the host waits for gets a remedy that fits what the value is for, or none."""

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
from torchgauge.advise import advise


@pytest.mark.parametrize("case", WAITING, ids=lambda case: case.name)
def test_the_remedy_fits_what_the_value_is_for(case: Waiting) -> None:
    evidence = seen(case.fault, inputs=case.inputs)
    found = [advice for advice in said(evidence) if advice.rule == "host-wait"]
    shown = [advice for advice in advise(evidence) if advice.rule == "host-wait"]

    assert [case.remedy in advice.recommendation for advice in found] == [True]
    assert bool(shown) == case.is_shown


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


class Levels(nn.Module):
    """A number that is stored; a variable of the same name is tested in another method."""

    level: float

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, h: Tensor) -> Tensor:
        h = self.layer(h)
        level = h.abs().mean().item()
        self.level = level
        return h

    def checked(self, level: float) -> float:
        if level > 3:
            raise ValueError("too loud")
        return level


def test_a_variable_of_another_method_is_another_one() -> None:
    found = [each.recommendation for each in said(seen(Levels(), inputs=(x(4, 32),))) if each.rule == "host-wait"]
    assert len(found) == 1
    assert "check" not in found[0]


def routed(self: Any, h: Tensor) -> Tensor:
    h = self.short(h) if h.mean() > 0 else self.long(h)
    return h


def of_those(self: Any, h: Tensor, valid: Tensor) -> Tensor:
    h = self.short(h)
    if valid.sum() == 0:
        h = h * 0
    else:
        chosen = h[valid]
        h = chosen.mean(0)
    return h


def logged(self: Any, h: Tensor) -> Tensor:
    h = self.short(h)
    print("level", h.mean().item())
    return h


def test_layers_and_parts_of_tensors_are_not_chosen_by_where() -> None:
    parts: dict[str, nn.Module] = {"short": nn.Linear(8, 8), "long": nn.Sequential(nn.Linear(8, 99), nn.Linear(99, 8))}
    assert not [words for words in host_waits(routed, x(4, 8), **parts) if "torch.where" in words]
    assert not [words for words in host_waits(of_those, x(4, 8), x(4) > 0, **parts) if "torch.where" in words]


def test_a_number_that_is_printed_is_printed_outside() -> None:
    (words,) = host_waits(logged, x(4, 8), short=nn.Linear(8, 8))
    assert words.startswith("print outside forward")


def scaled_down(self: Any, h: Tensor) -> Tensor:
    h = self.short(h)
    scale = h.std().item()
    if scale > 1:
        h = h / scale
    return h


def test_the_line_that_reads_a_value_is_not_called_an_if() -> None:
    (words,) = host_waits(scaled_down, x(4, 8), short=nn.Linear(8, 8))
    assert words.startswith("keep this value on the device")


def walk(self: Any, scores: Tensor) -> Tensor:
    best = scores.argmax(-1)  # steps × nodes: where to go from each node
    path = [best[0, 0].item()]
    for step in best[1:]:
        path.append(step[path[-1]].item())
    return self.layer(scores[:, 0]) + len(path)


def walks(self: Any, scores: Tensor) -> tuple[Tensor, list[float]]:
    chosen = []
    for step in scores:
        chosen.append(step.max().item())
    return self.layer(scores[:, 0]), chosen


def test_values_that_the_next_step_takes_are_not_only_stored() -> None:
    on_the_way, collected = (host_waits(each, x(6, 5, 5), layer=nn.Linear(5, 5)) for each in (walk, walks))

    assert not any("store the tensor" in text for text in on_the_way)
    assert any("store the tensor" in text for text in collected)


def suppressed(self: Any, boxes: Tensor) -> Tensor:
    corners, kept, left = self.layer(boxes), [], list(range(boxes.shape[0]))
    while left:
        kept.append(left.pop(0))
        if not left:
            break
        others = torch.tensor(left)
        apart = (corners[others] - corners[kept[-1]]).abs().sum(-1) > 1.0
        left = others[apart].tolist()
    return corners[kept]


def until_small(self: Any, a: Tensor) -> Tensor:
    size = 1.0
    while size > 0.5:
        a = self.layer(a) * 0.1
        size = a.norm().item()
    return a


def test_a_list_that_a_loop_works_off_is_needed_for_more_than_its_end() -> None:
    found = [host_waits(each, x(8, 4), layer=nn.Linear(4, 4)) for each in (suppressed, until_small)]

    assert [any("for the end of this loop" in text for text in texts) for texts in found] == [False, True]
