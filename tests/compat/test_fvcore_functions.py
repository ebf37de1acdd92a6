"""Handles for autograd functions, which is how code around Mamba counts its kernels; fvcore itself is the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchgauge.compat.fvcore import nn as ours

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class SelectiveScanFn(torch.autograd.Function):
    """The recurrence written out, as where the kernel is not installed."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Any = None, n: int = 1
    ) -> Tensor:
        ctx.save_for_backward(u, delta, a, b, c)
        state = u.new_zeros(u.shape[0], u.shape[1], a.shape[1])
        steps = []
        for at in range(u.shape[2]):
            state = state * torch.exp(delta[:, :, at, None] * a) + u[:, :, at, None] * b[:, None, :, at]
            steps.append(torch.einsum("bdn,bn->bd", state, c[:, :, at]))
        return torch.stack(steps, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return (*gradients, *[None] * 6)


class CrossMerge(torch.autograd.Function):
    """With its own context, two results, and a function within the function."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return Flipped.apply(x), x.sum(-1)  # type: ignore[no-untyped-call]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Flipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.flip(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].flip(-1)


kept_apply = SelectiveScanFn.apply


class Block(nn.Module):
    def __init__(self, width: int = 6, states: int = 4) -> None:
        super().__init__()
        self.in_proj = nn.Linear(width, width)
        self.x_proj = nn.Linear(width, 2 * states)
        self.A_logs = nn.Parameter(torch.randn(width, states))
        self.Ds = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        xs = self.in_proj(x).transpose(1, 2)
        dts = torch.sigmoid(xs)
        Bs, Cs = self.x_proj(x).transpose(1, 2).chunk(2, 1)  # noqa: N806
        As, Ds = -torch.exp(self.A_logs), self.Ds  # noqa: N806
        y = SelectiveScanFn.apply(xs, dts, As, Bs, Cs, Ds, 3)  # type: ignore[no-untyped-call]
        merged, _ = CrossMerge.apply(y)  # type: ignore[no-untyped-call]
        return (merged + kept_apply(xs, dts, As, Bs, Cs)).transpose(1, 2)  # type: ignore[no-untyped-call]


def scan_flops(inputs: list[Any], outputs: list[Any]) -> int:
    """Like public code: sizes by position, tensors by the names of the caller's variables."""
    assert inputs[0].debugName().startswith("xs")
    with_d = len(inputs) > 5 and inputs[5].debugName().startswith("Ds")
    batch, width, length = inputs[0].type().sizes()
    states = inputs[2].type().sizes()[1]
    assert outputs[0].type().sizes() == [batch, width, length]
    return int(9 * batch * length * width * states + (batch * width * length if with_d else 0))


HANDLES: dict[str, Any] = {
    "prim::PythonOp.SelectiveScanFn": scan_flops,
    "prim::PythonOp.CrossMerge": lambda inputs, outputs: 11 * len(inputs),
    "prim::PythonOp.Flipped": lambda inputs, outputs: 13,
    "aten::exp": None,
    "aten::neg": None,
}


@pytest.fixture
def model() -> Iterator[nn.Module]:
    before = dict(vars(torch.autograd.function._SingleLevelFunction))
    yield nn.Sequential(Block(), Block())
    assert dict(vars(torch.autograd.function._SingleLevelFunction)) == before


@pytest.mark.parametrize("kind", ["FlopCountAnalysis", "ActivationCountAnalysis"])
@pytest.mark.parametrize("with_gradients", [True, False])
def test_handles_of_autograd_functions_count_as_in_fvcore(model: nn.Module, kind: str, with_gradients: bool) -> None:
    original = pytest.importorskip("fvcore.nn")
    x = torch.randn(2, 5, 6)
    found = []
    with torch.set_grad_enabled(with_gradients):
        for package in (ours, original):
            analysis = getattr(package, kind)(model, x).set_op_handle(**HANDLES)
            found.append((analysis.by_module_and_operator(), analysis.total(), analysis.unsupported_ops("0")))
    assert found[0] == found[1]
    assert found[0][0]["1"]["PythonOp.SelectiveScanFn"] == 2 * 9 * 2 * 5 * 6 * 4 + 2 * 6 * 5


def test_flop_count_takes_such_handles_too(model: nn.Module) -> None:
    original = pytest.importorskip("fvcore.nn")
    x = torch.randn(2, 5, 6)
    (mine, unsupported), (theirs, expected) = (
        package.flop_count(model, (x,), supported_ops=HANDLES) for package in (ours, original)
    )
    assert mine == theirs
    assert unsupported == expected


def test_a_function_without_a_handle_counts_what_runs_inside_it(model: nn.Module) -> None:
    analysis = ours.FlopCountAnalysis(model, torch.randn(2, 5, 6))
    assert analysis.by_operator("0")["einsum"] == 2 * 5 * (2 * 6 * 4)
    # Nothing counts in the other one, so it is what is unsupported, as in fvcore.
    assert analysis.unsupported_ops("0")["prim::PythonOp.CrossMerge"] == 1
    assert not {"aten::flip", "prim::PythonOp.Flipped"} & set(analysis.unsupported_ops())


def test_a_function_can_be_made_free(model: nn.Module) -> None:
    free = dict.fromkeys(("prim::PythonOp.SelectiveScanFn", "prim::PythonOp.CrossMerge"))
    analysis = ours.FlopCountAnalysis(model, torch.randn(2, 5, 6)).set_op_handle(**free)
    assert set(analysis.by_operator()) == {"linear"}
    assert not any("PythonOp" in op for op in analysis.unsupported_ops())


class NumpySum(torch.autograd.Function):
    """A kernel that is not an op of torch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.empty_like(x).copy_(torch.from_numpy(x.detach().numpy().cumsum(-1)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Outside(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return NumpySum.apply(x)  # type: ignore[no-untyped-call]


def test_a_kernel_outside_torch_is_unsupported_without_a_handle_and_counted_with_one() -> None:
    analysis = ours.FlopCountAnalysis(Outside(), torch.randn(2, 3))
    assert analysis.total() == 0
    assert analysis.unsupported_ops() == {"prim::PythonOp.NumpySum": 1}
    assert analysis.set_op_handle("prim::PythonOp.NumpySum", lambda inputs, outputs: 6).total() == 6


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        raise ZeroDivisionError

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def test_a_function_that_failed_leaves_nothing_behind() -> None:
    class Caught(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            try:
                return Failing.apply(x)  # type: ignore[no-untyped-call]
            except ZeroDivisionError:
                return x @ x.T

    assert ours.FlopCountAnalysis(Caught(), torch.randn(2, 3)).by_operator() == {"matmul": 12}
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction)
