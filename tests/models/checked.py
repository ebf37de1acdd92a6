"""`tg.analyze`, with what must hold for every model asserted on the way, and comparisons of two analyses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.facts import Sums

ADDITIVE = ("macs", "flops", "bytes_read", "bytes_written", "activation_bytes", "ops")

# Devices that tensors can pretend to be on.
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="torch is built without CUDA")
    ),
]


def analyze_checked(model: nn.Module, **options: Any) -> tg.Analysis:
    """A static analysis: on fake tensors, nothing uncounted, additive, parameters as torch counts, no trace left."""
    before = fingerprint(model)
    analysis = tg.analyze(model, **options)
    assert fingerprint(model) == before
    check_static(analysis)
    assert analysis.totals.params == sum(parameter.numel() for parameter in model.parameters())
    return analysis


def fingerprint(model: nn.Module) -> list[Any]:
    """State that an analysis must not change: attributes, modes and hooks, tensors and their versions, global state."""
    parts: list[Any] = [torch.is_grad_enabled(), bytes(torch.get_rng_state().numpy())]
    for path, module in model.named_modules():
        hooks = (list(module._forward_hooks), list(module._forward_pre_hooks))
        parts.append((path, id(module), module.training, hooks, sorted(vars(module))))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        parts.append((name, id(tensor), tensor._version, tensor.device, tensor.requires_grad, tensor.grad is None))
    return parts


def check_static(analysis: tg.Analysis) -> None:
    assert analysis.capture.run.mode == "fake"
    assert analysis.totals.uncounted_ops == 0
    check_additive(analysis)


def check_additive(analysis: tg.Analysis) -> None:
    """Each module's figures are its own ops' plus its children's; the root's are the sum over all ops."""
    analysis.tree.self_check(analysis.capture)
    expected = {row.path: Sums() for row in analysis.modules}
    for op in analysis.capture.ops:
        for path in _ancestors(op.module):
            expected[path].count(op.signature)
    for row in analysis.modules:
        assert {name: row[name] for name in ADDITIVE} == {name: expected[row.path][name] for name in ADDITIVE}
    for call in analysis.ops:
        assert call.flops >= 2 * call.macs
        assert call.status != "free" or call.flops == call.bytes_read == call.bytes_written == 0


def _ancestors(path: str) -> list[str]:
    """The path itself and all above it, up to the root."""
    parts = path.split(".") if path else []
    return [".".join(parts[:depth]) for depth in range(len(parts) + 1)]


def assert_same_figures(first: tg.Analysis, second: tg.Analysis) -> None:
    """Totals, every module row and every op row are equal."""
    assert first.totals == second.totals
    assert first.modules == second.modules
    assert first.ops == second.ops


def on_meta(build: Any, *arguments: Any, **options: Any) -> nn.Module:
    """A model built on the meta device: no weights in memory, nothing initialised."""
    with torch.device("meta"):
        model: nn.Module = build(*arguments, **options)
    return model
