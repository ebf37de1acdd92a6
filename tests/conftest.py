from __future__ import annotations

import gc
import importlib
import locale
import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import hypothesis
import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

import torchgauge.capture
from torchgauge.source import all_modules, ensure_torchvision_imports

# The same examples on every machine, however slow it is, and also where the checkout cannot be written to.
hypothesis.settings.register_profile("anywhere", database=None, deadline=None, derandomize=True)
hypothesis.settings.load_profile("anywhere")

# One thread, also in the processes that tests start: several workers share the cores, and the threads of a small model
# spend most of their time waiting for each other there. Tests that are about threads set their number.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

# The libraries that the tests load are millions of objects. The collector walks them less often, and neither it nor the
# search for tensors that a run left behind looks at those that are loaded here. Test modules come later: what they
# hold is found. A worker of xdist loads all libraries sooner or later; who runs one file does not wait for them.
if "PYTEST_XDIST_WORKER" in os.environ:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ensure_torchvision_imports()
        for library in ("torch._dynamo", "torch.export", "timm", "transformers", "scipy.stats", "pandas", "numba"):
            with suppress(ImportError):
                importlib.import_module(library)
gc.collect()
gc.freeze()
gc.set_threshold(20_000, 20, 20)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="run the tests in a random order that follows from the seed")
    parser.addoption("--regenerate", action="store_true", help="write the golden files anew; then read the diff")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--shuffle")
    if seed is not None:
        random.Random(seed).shuffle(items)


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test may change what the next one finds in the interpreter or in torch."""

    def state() -> dict[str, Any]:
        return {
            "recursion limit": sys.getrecursionlimit(),
            "working directory": os.getcwd(),
            "default dtype": torch.get_default_dtype(),
            "gradients": torch.is_grad_enabled(),
            "determinism": torch.are_deterministic_algorithms_enabled(),
            "threads": torch.get_num_threads(),
            "time zone": os.environ.get("TZ"),
            "locale": locale.setlocale(locale.LC_ALL),
        }

    before = state()
    yield
    monkeypatch.undo()
    assert state() == before


@pytest.fixture(autouse=True)
def no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model that a test analyses must be left unchanged, and so must the process."""
    original = torchgauge.capture.trace

    def trace(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        before = _fingerprint(model), _process_state()
        try:
            return original(model, *args, **kwargs)
        finally:
            after = _fingerprint(model), _process_state()
            assert after[0] == before[0], "the analysis changed the model"
            assert after[1] == before[1], "the analysis changed the state of the process"

    monkeypatch.setattr(torchgauge.capture, "trace", trace)


@pytest.fixture(autouse=True)
def no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile measures the machine once and remembers it: no test waits for that, or writes to the user's cache."""
    monkeypatch.setattr("torchgauge.analysis.measurement.ensure_roof", lambda device, progress: [])


@pytest.fixture(autouse=True)
def short_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement begins with a collection of all garbage, so that none falls into it. It walks everything that the
    tests of this process have loaded, which takes longer than the measurement: here it looks at young objects only."""
    monkeypatch.setattr("torchgauge.measure.latency.gc", SimpleNamespace(collect=lambda: gc.collect(0)))


@contextmanager
def _outside() -> Iterator[None]:
    """Modes and traces that a test analyses in must not see the checks of this file."""
    engine: Any = torch._C
    tracing = engine._get_tracing_state()
    engine._set_tracing_state(None)
    try:
        with _disable_current_modes():
            yield
    finally:
        engine._set_tracing_state(tracing)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The user's cache must not influence a test, and tests leave nothing there."""
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(tmp_path_factory.getbasetemp() / f"cache-{uuid4().hex}"))


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the user's terminal or shell decides a test; those that are about one make it.

    Measurements are short: users wait 10 s for a median and 4 s for a verdict, tests that need more say so."""
    theirs = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "PYTORCH_PROFILER_LEVEL",
              "PYTORCH_CUDA_MEMORY_FRACTION")  # fmt: skip
    own = [name for name in os.environ if name.startswith("TORCHGAUGE_") and name != "TORCHGAUGE_CACHE"]
    for name in (*theirs, *own):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHGAUGE_BUDGET", "0.1")
    monkeypatch.setenv("TORCHGAUGE_VERIFY_BUDGET", "0.2")


@pytest.fixture
def without_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read in this process: for tests that look into it, or that show what holds without the isolation."""
    for module in ("isolated", "pipeline", "weight_scan"):
        monkeypatch.setattr(f"torchgauge.analysis.{module}.needs_isolation", lambda *_, **__: False)
    monkeypatch.setattr("torchgauge.analysis.comparison.is_isolated", lambda: True)


def _process_state() -> tuple[Any, ...]:
    with _outside():
        numbers = torch.get_rng_state().numpy().tobytes()
    return (
        nn.Module.__call__,
        numbers,
        random.getstate(),
        np.random.get_state()[1].tobytes(),  # type: ignore[index]
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch._C._len_torch_dispatch_stack(),
        sys.getrecursionlimit(),
    )


def _fingerprint(model: nn.Module) -> dict[str, Any]:
    with _outside():
        try:
            return {
                "keys": list(model.state_dict(keep_vars=True).keys()),
                "modules": [(name, id(module), _attributes(module)) for name, module in model.named_modules()],
                "tensors": [(name, _tensor(tensor)) for name, tensor in _tensors(model)],
            }
        except RecursionError:  # nested deeper than torch itself can follow
            return {"modules": [(id(module), _attributes(module)) for module in all_modules(model)]}


def _tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def _attributes(module: nn.Module) -> Any:
    if isinstance(module, torch.jit.ScriptModule):
        return getattr(module, "training", None)
    return [(name, id(value), _contents(value)) for name, value in vars(module).items() if name != "training"] + [
        ("training", module.training)
    ]


def _contents(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, id(item)) for key, item in value.items()]
    return [id(item) for item in value] if isinstance(value, list | tuple | set) else None


def _tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    if isinstance(tensor, nn.parameter.UninitializedParameter | nn.parameter.UninitializedBuffer):
        return (id(tensor), "uninitialised")
    if is_traceable_wrapper_subclass(tensor) and not hasattr(tensor, "_local_tensor"):
        parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        return (id(tensor), *(_tensor(part) for part in parts if isinstance(part, torch.Tensor)))
    has_content = not tensor.is_meta and not isinstance(tensor, FakeTensor)
    local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
    dense = local if local.layout is torch.strided else local.to_dense()
    content = b"" if not has_content else dense.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    return (id(tensor), content, tensor.device, tensor.dtype, tensor.requires_grad, id(tensor.grad), dense.stride())
