"""Kernels of Triton itself, where it is installed (`test_custom_code.py` has a stand-in for elsewhere)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.library import triton_op, wrap_triton

import torchgauge as tg

triton: Any = pytest.importorskip("triton")
tl: Any = pytest.importorskip("triton.language")


@triton.jit  # type: ignore[untyped-decorator]
def add_kernel(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore # noqa: N803
    place = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    tl.store(out_ptr + place, tl.load(a_ptr + place, mask=inside) + tl.load(b_ptr + place, mask=inside), mask=inside)


tuned_kernel = triton.autotune(
    configs=[triton.Config({"BLOCK": size}) for size in (64, 128)], key=["n"]
)(add_kernel)  # fmt: skip
guided_kernel = triton.heuristics({"BLOCK": lambda given: 128})(add_kernel)


def launch(kernel: Any, a: Tensor, b: Tensor, **options: int) -> Tensor:
    out = torch.empty_like(a)
    kernel[lambda meta: (triton.cdiv(a.numel(), meta["BLOCK"]),)](a, b, out, a.numel(), **options)
    return out


@triton_op("tg_triton_tests::add_twice", mutates_args={})
def add_twice(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty_like(a)
    wrap_triton(add_kernel)[(1,)](a, b, out, a.numel(), BLOCK=128)
    return out * 2


class Adds(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if self.way == "op":
            return add_twice(y, x)
        if self.way == "wrapped":
            return launch(wrap_triton(add_kernel), y, x, BLOCK=128) * 2
        kernel = {"direct": add_kernel, "tuned": tuned_kernel, "guided": guided_kernel}[self.way]
        return launch(kernel, y, x, **({"BLOCK": 128} if self.way == "direct" else {})) * 2


@pytest.mark.parametrize("way", ["direct", "tuned", "guided", "wrapped", "op"])
def test_a_kernel_is_an_op_however_it_is_launched(way: str) -> None:
    found = tg.analyze(Adds(way), inputs=torch.ones(3, 4))
    assert [op.op for op in found.ops if op.category not in ("view", "allocation")] == [
        "aten::addmm",
        "triton::add_kernel",
        "aten::mul",
    ]
    op = next(row for row in found.ops if row.op == "triton::add_kernel")
    assert (op.bytes_read, op.bytes_written, op.status) == (96, 48, "uncounted")
    assert (found.capture.run.mode, found.totals.macs) == ("fake", 48)
