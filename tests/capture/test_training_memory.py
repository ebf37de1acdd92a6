"""Memory of a training step: closed forms, and a real second step watched storage by storage."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import torchgauge as tg
from tests import zoo
from torchgauge.capture import Request, trace
from torchgauge.facts import View
from torchgauge.source import candidate_inputs


def test_adamw_keeps_two_copies_of_the_trained_parameters_and_a_step_counter_each() -> None:
    totals = tg.analyze(zoo.Residual(width=8, blocks=3), input_size=(2, 8), mode="train").totals
    assert totals.gradient_bytes == totals.param_bytes
    assert totals.optimizer_bytes == 2 * totals.param_bytes + 4 * 6  # a weight and a bias in each block


def test_frozen_parameters_have_neither_gradient_nor_optimizer_state() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))
    model[0].requires_grad_(False)
    totals = tg.analyze(model, input_size=(2, 16), mode="train").totals
    trained = (16 * 4 + 4) * 4
    assert (totals.gradient_bytes, totals.optimizer_bytes) == (trained, 2 * trained + 2 * 4)
    # The first layer's output is read by the second's weight gradient; the input would be by the frozen one's.
    assert totals.saved_activation_bytes == 2 * 16 * 4


def test_a_parameter_without_a_gradient_counts_only_as_a_parameter() -> None:
    totals = tg.analyze(zoo.Unused(), mode="train", input_size=(2, 4)).totals
    trained = totals.gradient_bytes
    assert 0 < trained < totals.param_bytes
    assert totals.optimizer_bytes == 2 * trained + 2 * 4


def test_a_linear_layer_saves_its_input_and_not_its_output() -> None:
    totals = tg.analyze(nn.Linear(8, 4), input_size=(2, 8), mode="train").totals
    assert totals.saved_activation_bytes == 2 * 8 * 4


@pytest.mark.parametrize(("momentum", "copies"), [(0.0, 0), (0.9, 1)])
def test_sgd_keeps_nothing_unless_it_has_momentum(momentum: float, copies: int) -> None:
    model = nn.Linear(8, 4)
    totals = _totals_with(model, lambda trained: torch.optim.SGD(trained, lr=0.1, momentum=momentum))
    assert totals.optimizer_bytes == copies * totals.param_bytes
    assert totals.gradient_bytes == totals.param_bytes


def test_inference_needs_no_memory_for_training() -> None:
    totals = tg.analyze(nn.Linear(8, 4), input_size=(2, 8)).totals
    assert (totals.gradient_bytes, totals.optimizer_bytes, totals.saved_activation_bytes) == (0, 0, 0)
    assert totals.total_bytes == totals.param_bytes + totals.peak_activation_bytes


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def _frozen_start() -> nn.Module:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    model[0].requires_grad_(False)
    return model


def _image() -> nn.Module:
    head = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 7 * 7, 5))
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), head)


MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "many activations": (lambda: zoo.Residual(width=16, blocks=6), torch.randn(256, 16)),
    "many parameters": (lambda: zoo.Residual(width=64, blocks=2), torch.randn(2, 64)),
    "convolutions": (_image, torch.randn(4, 3, 16, 16)),
    "attention": (lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True), torch.randn(4, 12, 16)),
    "frozen": (_frozen_start, torch.randn(64, 32)),
    "checkpointed": (Checkpointed, torch.randn(64, 32)),
    "reads tensor values": (zoo.BranchesOnFloat, torch.ones(8, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_total_is_the_peak_of_a_real_second_step(name: str) -> None:
    build, x = MODELS[name]
    model = build().train()
    totals = tg.analyze(model, inputs=x, mode="train").totals
    assert totals.total_bytes == _peak_of_second_step(model, x)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "checkpointed"])
def test_saved_activations_are_those_that_autograd_packs(name: str) -> None:
    build, x = MODELS[name]
    model = build().train()
    owned = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    packed: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in owned:
            packed[storage._cdata] = storage
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(x)
    assert output is not None
    saved = sum(storage.nbytes() for storage in packed.values())
    assert tg.analyze(model, inputs=x, mode="train").totals.saved_activation_bytes == saved


def test_checkpointing_saves_the_inputs_of_its_blocks_alone() -> None:
    totals = tg.analyze(Checkpointed(), input_size=(64, 32), mode="train").totals
    assert totals.saved_activation_bytes == 3 * 64 * 32 * 4


def test_a_saved_run_has_the_same_figures(tmp_path: Any) -> None:
    found = tg.analyze(zoo.Residual(), input_size=(2, 8), mode="train")
    found.save(tmp_path / "run.json")
    assert tg.load(tmp_path / "run.json").totals == found.totals
    # A version that did not record it.
    old = View(replace(found.capture, run=replace(found.capture.run, step=None))).totals
    assert {old[key] for key in ("gradient_bytes", "optimizer_bytes", "saved_activation_bytes", "total_bytes")} == {
        None
    }


def _totals_with(model: nn.Module, optimizer: Callable[[Any], torch.optim.Optimizer]) -> Any:
    found = tg.analyze(model, input_size=(2, 8), mode="train")
    candidates = candidate_inputs(model, input_size=(2, 8))
    traced = trace(model, candidates, Request(torch.device("cpu"), train=True, optimizer=optimizer))
    return View(replace(found.capture, run=traced.run, ops=traced.ops)).totals


class _Live(TorchDispatchMode):
    """Bytes of the storages that ops have allocated and that are still alive."""

    def __init__(self, known: Iterator[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in known}
        self.live = self.peak = sum(storage.nbytes() for storage in self._known.values())
        self._alive: dict[int, Any] = {}

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        if key in self._known or key in self._alive:
            return

        def died(_: object) -> None:
            self.live -= nbytes
            del self._alive[key]

        self._alive[key] = weakref.ref(storage, died)
        self.live += nbytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else [result]:
            if isinstance(item, torch.Tensor):
                self.add(item)
        self.peak = max(self.peak, self.live)
        return result


def _peak_of_second_step(model: nn.Module, x: torch.Tensor) -> int:
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    output = model(x)
    output.backward(torch.ones_like(output))
    optimizer.step()
    optimizer.zero_grad()
    del output
    state = [tensor for entry in optimizer.state.values() for tensor in entry.values()]
    live = _Live(iter([x, *model.parameters(), *model.buffers(), *state]))
    with live, torch.autograd.set_multithreading_enabled(False):
        output = model(x)
        start = torch.ones_like(output)
        output.backward(start)
        optimizer.step()
    return live.peak
