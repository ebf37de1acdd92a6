from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from torchgauge.source import Candidate, candidate_inputs, ensure_torchvision_imports

# A torchvision that does not match torch warns once; the test of that warning runs in a separate process.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)
    ensure_torchvision_imports()


@pytest.fixture
def random_state_is_left_alone() -> Iterator[None]:
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    yield
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Threads that wait for busy cores make small models a hundred times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(_one_thread: None) -> Callable[[nn.Module, Candidate], Any]:
    """Call the model with the candidate, its tensors without values filled with zeros."""

    def call(model: nn.Module, candidate: Candidate) -> Any:
        args, kwargs = tree_map(_with_values, (candidate.args, candidate.kwargs))
        with torch.no_grad():
            return model.eval()(*args, **kwargs)

    return call


@pytest.fixture
def first_that_runs(run: Callable[[nn.Module, Candidate], Any]) -> Callable[..., Candidate]:
    """The first candidate that the model takes."""

    def find(model: nn.Module, **options: Any) -> Candidate:
        for candidate in candidate_inputs(model, **options):
            try:
                run(model, candidate)
            except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
                continue
            return candidate
        raise AssertionError("no candidate runs")

    return find


def _with_values(value: Any) -> Any:
    return torch.zeros_like(value, device="cpu") if isinstance(value, Tensor) and value.is_meta else value
