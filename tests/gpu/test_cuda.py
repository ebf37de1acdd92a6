"""On a CUDA device: fake tensors that pretend to be there against real runs there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import torchgauge as tg
from tests import zoo
from torchgauge.capture import Request, trace_fake, trace_real
from torchgauge.source import Candidate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

KERNELS = {
    SDPBackend.MATH: None,
    SDPBackend.FLASH_ATTENTION: "aten::_scaled_dot_product_flash_attention",
    SDPBackend.EFFICIENT_ATTENTION: "aten::_scaled_dot_product_efficient_attention",
    SDPBackend.CUDNN_ATTENTION: "aten::_scaled_dot_product_cudnn_attention",
}
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ladder": (zoo.Residual, (2, 8)),
    "hand-written attention": (zoo.HandAttention, (2, 16, 32)),
    "fused attention": (zoo.FusedAttention, (2, 16, 32)),
    "LSTM": (lambda: zoo.Recurrent(nn.LSTM, num_layers=2, bidirectional=True), (5, 3, 12)),
    "GRU": (lambda: zoo.Recurrent(nn.GRU), (5, 3, 12)),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3)),
        (2, 3, 16, 16),
    ),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2),
        (2, 8, 32),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_macs_and_params_are_those_of_the_cpu(name: str) -> None:
    build, size = MODELS[name]
    cpu, cuda = (tg.analyze(build(), input_size=size, device=device) for device in ("cpu", "cuda"))
    assert (cuda.totals.params, cuda.totals.macs) == (cpu.totals.params, cpu.totals.macs)
    assert cuda.totals.uncounted_ops == 0


@pytest.mark.parametrize("name", MODELS)
def test_ops_shapes_and_costs_are_those_of_a_real_run_there(name: str) -> None:
    build, size = MODELS[name]
    request = Request(device=torch.device("cuda", 0))
    candidate = Candidate((torch.randn(size),), {}, None)
    model = build()
    fake, real = trace_fake(model, candidate, request), trace_real(model, candidate, request, "to compare")
    # cuDNN looks for its weights in one buffer, with views and allocations that a fake tensor has no memory for.
    ours, theirs = ([op for op in run.ops if op.status != "free"] for run in (fake, real))
    assert [op.op for op in ours] == [op.op for op in theirs]
    for seen, true in zip(ours, theirs, strict=True):
        assert seen.signature.cost == true.signature.cost, f"op {seen.index}: {seen.op}"
        assert seen.signature.outputs[0].shape == true.signature.outputs[0].shape, seen.op


@pytest.mark.parametrize("backend", KERNELS)
def test_every_attention_kernel_counts_the_same(backend: SDPBackend) -> None:
    model = zoo.FusedAttention(width=256, heads=4)
    with sdpa_kernel(backend):
        found = tg.analyze(model, input_size=(2, 128, 256), dtype="bf16", device="cuda")
    rows, scores = 2 * 128, 2 * 128 * 128
    assert found.totals.macs == 4 * rows * 256 * 256 + 2 * scores * 256
    kernel = KERNELS[backend]
    assert kernel is None or kernel in {op.op for op in found.ops}


def test_a_machine_without_the_device_can_pretend_as_well() -> None:
    code = (
        "import torchgauge as tg; from tests import zoo;"
        "a = tg.analyze(zoo.FusedAttention(), input_size=(2, 16, 32), device='cuda'); print(a.totals.macs)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": "src:."},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == str(tg.analyze(zoo.FusedAttention(), input_size=(2, 16, 32)).totals.macs), done.stderr
