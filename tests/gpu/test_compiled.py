"""On a CUDA device: the kernels that Inductor generates are those of a profiled run, each joined to its modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchgauge as tg
from tests.compiled.models import WIDTH, Prints, Whole

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("mode", ["inference", "train"])
@pytest.mark.parametrize("build", [Whole, Prints])
def test_kernels_of_a_profiled_run_are_joined_to_modules(build: type[nn.Module], mode: str) -> None:
    found = tg.analyze(
        build().cuda(), input_size=(4096, WIDTH), execution="compiled", inference=True, mode=mode, budget_s=0.2
    )
    compiled = found.capture.compiled
    assert found.measurements is not None
    assert found.measurements["failure"] is None
    assert compiled is not None
    assert compiled.is_run
    assert all(kernel.time_s is not None and sum(kernel.modules.values()) > 0.99 for kernel in compiled.kernels)
    assert any(kernel.name.startswith("triton_") for kernel in compiled.kernels)
    if mode == "inference":
        assert compiled.joined_s is not None
        assert compiled.profiled_s is not None
        assert compiled.joined_s > 0.99 * compiled.profiled_s


def test_without_a_run_the_kernels_are_triton_s_too() -> None:
    found = tg.analyze(Whole().cuda(), input_size=(64, WIDTH), execution="compiled").capture.compiled
    assert found is not None
    assert not found.is_run
    assert any(kernel.name.startswith("triton_") for kernel in found.kernels)
