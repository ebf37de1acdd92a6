"""State that an analysis must not change: settings of the process, other threads, memory, the surrounding context."""

from __future__ import annotations

import ctypes
import random
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import torchgauge as tg
from torchgauge.capture import SETTINGS


class Runs(nn.Module):
    """Does what the test asks for, then its usual work; `looks`: reads tensor values, so that the run is a real one."""

    def __init__(self, act: Callable[[], object], *, looks: bool = False, raises: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.act = act
        self.looks = looks
        self.raises = raises

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.act()
        if self.raises:
            raise ValueError("after all that")
        return x if self.looks and bool(x.sum() == 1) else self.layer(x)


def change_everything() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(3)
    torch.set_grad_enabled(not torch.is_grad_enabled())
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
    torch.backends.cuda.matmul.allow_tf32 = not torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.enable_math_sdp(False)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.set_autocast_enabled("cpu", True)
    torch.autograd.set_detect_anomaly(True)
    torch.set_printoptions(precision=1)
    sys.setrecursionlimit(3210)
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    torch.set_warn_always(True)


def state() -> dict[str, Any]:
    settings = {name: read() for name, (read, _) in SETTINGS.items()}
    states = (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    default = dict(vars(torch._GLOBAL_DEVICE_CONTEXT))  # empty, not a None, for torch 2.6
    return settings | {"random": states, "device": torch.empty(0).device, "default device": default}


@pytest.mark.parametrize("looks", [False, True], ids=["fake", "real"])
@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
def test_settings_that_a_forward_changes_are_set_back(looks: bool, raises: bool) -> None:
    model = Runs(change_everything, looks=looks, raises=raises)
    before = state()
    if raises:
        with pytest.raises(tg.ForwardError, match="after all that"):
            tg.analyze(model, inputs=torch.ones(2, 4))
    else:
        tg.analyze(model, inputs=torch.ones(2, 4))
    assert state() == before


def test_modes_that_a_forward_enters_and_does_not_leave_are_left() -> None:
    before = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    tg.analyze(Runs(lambda: FlopCounterMode(display=False).__enter__()), input_size=(2, 4))
    tg.analyze(Runs(lambda: torch.device("meta").__enter__()), input_size=(2, 4))
    assert (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()) == before
    assert torch.ones(1).sum() == 1


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_another_thread_runs_the_same_model_meanwhile(mode: str) -> None:
    """The analysis waits in the middle of its forward until the other thread has run the model."""
    started, done = threading.Event(), threading.Event()
    seen: list[Any] = []
    thread = threading.get_ident()

    def meet() -> None:
        if threading.get_ident() == thread:
            started.set()
            assert done.wait(30)

    model = nn.Sequential(nn.LayerNorm(4), nn.Dropout(0.5), Runs(meet), nn.LSTM(4, 4))
    model.train(mode == "inference")  # the other mode

    def other() -> None:
        started.wait(30)
        try:
            output, _ = model(torch.ones(8, 4))
            gradient = torch.autograd.grad(output.sum(), next(model.parameters()))[0]
            condition = torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x, (torch.ones(1),))
            seen.extend((type(output), type(gradient), model[0].training, condition.item()))
        except Exception as error:
            seen.append(error)
        finally:
            done.set()

    worker = threading.Thread(target=other)
    worker.start()
    tg.analyze(model, input_size=(8, 4), mode=mode)
    worker.join(30)
    assert seen == [torch.Tensor, torch.Tensor, mode == "inference", 2.0]


def test_no_class_is_patched_while_a_model_runs() -> None:
    before = nn.Module.__call__, nn.Module._call_impl

    def look() -> None:
        assert (nn.Module.__call__, nn.Module._call_impl) == before

    assert tg.analyze(Runs(look), input_size=(2, 4)).totals.macs == 32


ELSEWHERE = torch.ones(4)

WAYS: dict[str, Callable[[Any], object]] = {
    "numpy": lambda t: t.detach().numpy().fill(0),
    "data.numpy": lambda t: t.data.numpy().fill(0),
    "asarray": lambda t: np.asarray(t.detach()).fill(0),
    "data_ptr": lambda t: ctypes.memset(t.data_ptr(), 0, t.nbytes),
    "untyped_storage": lambda t: t.untyped_storage().fill_(0),
    "dlpack": lambda t: torch.utils.dlpack.from_dlpack(t.detach()).zero_(),
    "in place": lambda t: t.data.zero_(),
    "set_": lambda t: t.data.set_(t.data).zero_(),
}


class Holder:
    def __init__(self) -> None:
        self.table = torch.ones(4)


class Reaches(nn.Module):
    """Writes to every tensor that it can get at."""

    def __init__(self, way: Callable[[torch.Tensor], object], looks: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("buffer", torch.ones(4))
        self.plain = torch.ones(4)
        self.holder = Holder()
        self.nested = {"deep": [torch.ones(4)]}
        self.closed_over = torch.ones(4)
        self.give: Callable[[], torch.Tensor] = lambda held=self.closed_over: held  # type: ignore[misc]
        self.way = way
        self.looks = looks

    def tensors(self) -> list[torch.Tensor]:
        held: list[Any] = [
            self.layer.weight,
            self.buffer,
            self.plain,
            self.holder.table,
            self.nested["deep"][0],
            self.give(),
        ]
        return [*held, ELSEWHERE]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        for tensor in (*self.tensors(), x):
            self.way(tensor)
        return x if self.looks and bool(x.sum() == 1) else y


@pytest.mark.parametrize("mode", ["inference", "train"])
@pytest.mark.parametrize("looks", [False, True], ids=["fake", "real"])
@pytest.mark.parametrize("way", WAYS)
def test_no_way_to_memory_reaches_the_users_tensors(way: str, looks: bool, mode: str) -> None:
    model, x = Reaches(WAYS[way], looks), torch.ones(4, 4)
    before = [tensor.detach().clone() for tensor in (*model.tensors(), x)]
    found = tg.analyze(model, inputs=x, mode=mode)
    assert found.totals.macs == 4 * 4 * 4 * (1 if mode == "inference" else 2)
    for old, now in zip(before, (*model.tensors(), x), strict=True):
        assert torch.equal(old, now)


MODEL = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())


def analyzed_macs(model: nn.Module = MODEL) -> int:
    return int(tg.analyze(model, input_size=(2, 4)).totals.macs)


def test_an_analysis_works_inside_modes_traces_and_compiled_code() -> None:
    with FakeTensorMode():
        assert analyzed_macs() == 32
        fake = nn.Linear(4, 4)
        assert analyzed_macs(fake) == 32
    assert analyzed_macs(fake) == 32
    with torch.inference_mode():
        assert analyzed_macs() == 32
    with FlopCounterMode(display=False) as counter:
        assert analyzed_macs() == 32
    assert counter.get_total_flops() == 0
    traced = torch.jit.trace(lambda x: x + analyzed_macs(), torch.ones(2))
    assert traced(torch.zeros(1)).item() == 32
    compiled = torch.compile(lambda x: x + analyzed_macs(), backend="eager")
    assert compiled(torch.zeros(1)).item() == 32


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad])
def test_inside_a_function_transform_the_error_says_to_call_it_outside(transform: Any) -> None:
    with pytest.raises(tg.InputError, match=r"torch\.func.*outside"):
        transform(lambda x: (analyzed_macs(), x.sum())[1])(torch.ones(3))
    assert analyzed_macs() == 32


@pytest.mark.parametrize("looks", [False, True], ids=["fake", "real"])
def test_a_hook_that_removes_itself_is_still_there(looks: bool) -> None:
    """Like compressed-tensors, which restores weights in a hook of the first forward, whose handle the model holds."""
    model, calls = Runs(lambda: None, looks=looks), []

    def first(module: Any, args: Any) -> None:
        calls.append(module)
        module.handle.remove()

    model.__dict__["handle"] = model.register_forward_pre_hook(first)
    tg.analyze(model, inputs=torch.ones(2, 4))
    assert len(model._forward_pre_hooks) == 1
    calls.clear()
    model(torch.ones(2, 4))
    model(torch.ones(2, 4))
    assert calls == [model]


def test_a_handle_of_a_hook_whose_module_is_gone() -> None:
    model = Runs(lambda: None)
    gone = nn.Linear(4, 4)
    model.__dict__["handles"] = [
        gone.register_forward_hook(lambda *_: None),
        gone.register_forward_pre_hook(lambda *_, **__: None, with_kwargs=True),
    ]
    del gone
    assert tg.analyze(model, inputs=torch.ones(2, 4)).totals.macs == 2 * 4 * 4


def test_parameters_in_a_mapping_of_a_library() -> None:
    """Like compressed-tensors' offloaded weights: a mapping that compares a new value with the old one."""

    class Offloaded(dict[str, Any]):
        def __setitem__(self, name: str, tensor: Any) -> None:
            raise AssertionError("nothing is to be put here")

    model = Runs(lambda: None)
    model.layer._parameters = Offloaded(model.layer._parameters)
    assert tg.analyze(model, inputs=torch.ones(2, 4)).totals.macs == 2 * 4 * 4


class InitialisedByFirstCall(nn.Module):
    """Like the activation normalisation of flows."""

    is_set: torch.Tensor

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.shift = nn.Parameter(torch.zeros(4))
        self.register_buffer("is_set", torch.tensor(0.0 if way == "other memory" else 0))
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_set > 0:
            if self.way == "written":
                self.shift.data.copy_(x.mean(0))
            else:
                self.shift.data = x.mean(0)
            self.is_set.fill_(1)
        y: torch.Tensor = self.layer(x + self.shift)
        return y


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("way", ["written", "assigned", "other memory"])
def test_a_parameter_that_the_first_call_initialises_waits_for_the_users_first_call(way: str, inference: bool) -> None:
    model = InitialisedByFirstCall(way).eval()
    memory = model.shift.data_ptr()
    tg.analyze(model, inputs=torch.ones(2, 4), advice=False, inference=inference)
    assert (model.shift.tolist(), float(model.is_set)) == ([0.0] * 4, 0.0)
    assert model.shift.data_ptr() == memory
