"""If the conventions agree, our MACs are half the flops of torch's own formulas, on random shapes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import flop_registry

from tests.cost.calls import cost, spec

aten = torch.ops.aten
SEEDS = range(4)


def torch_macs(op: Any, *shapes_and_values: Any, out: Any = None) -> int:
    rule: Callable[..., int] = flop_registry[op]

    def on_meta(value: Any) -> Any:
        return torch.empty(value, device="meta") if isinstance(value, tuple) else value

    return rule(*map(on_meta, shapes_and_values), out_val=on_meta(out)) // 2


@pytest.mark.parametrize("seed", SEEDS)
def test_matrix_products(seed: int) -> None:
    batch, rows, shared, columns = random.Random(seed).sample(range(1, 40), 4)
    left, right, out = (rows, shared), (shared, columns), (rows, columns)
    ours = cost("aten::mm", spec(*out), self=spec(*left), mat2=spec(*right)).macs
    assert ours == torch_macs(aten.mm, left, right, out=out)
    batched = cost("aten::bmm", spec(batch, *out), self=spec(batch, *left), mat2=spec(batch, *right)).macs
    assert batched == torch_macs(aten.bmm, (batch, *left), (batch, *right), out=(batch, *out))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions(rank: int, groups: int, transposed: bool) -> None:
    given, wanted = 4, 6
    kernel, side = (3, 2, 5)[:rank], (7, 8, 9)[:rank]
    x = torch.empty(2, given, *side, device="meta")
    channels = (given, wanted // groups) if transposed else (wanted, given // groups)
    weight = torch.empty(*channels, *kernel, device="meta")
    out = aten.convolution(x, weight, None, [2] * rank, [1] * rank, [1] * rank, transposed, [0] * rank, groups)
    ours = cost(
        "aten::convolution", spec(*out.shape), input=spec(*x.shape), weight=spec(*weight.shape), transposed=transposed
    ).macs
    rest = (None, [2] * rank, [1] * rank, [1] * rank, transposed, [0] * rank, groups)
    assert ours == torch_macs(aten.convolution, tuple(x.shape), tuple(weight.shape), *rest, out=tuple(out.shape))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mask", [(True, True, False), (True, False, False), (False, True, False)])
def test_gradients_of_convolutions_without_groups(mask: tuple[bool, bool, bool], transposed: bool) -> None:
    x, weight = (2, 4, 9, 8), (4, 4, 3, 2)
    stride, padding = [2, 1], [1, 0]
    out = tuple(
        aten.convolution(
            torch.empty(x, device="meta"), torch.empty(weight, device="meta"), None, stride, padding, [1, 1],
            transposed, [0, 0], 1,
        ).shape
    )  # fmt: skip
    ours = cost(
        "aten::convolution_backward",
        grad_output=spec(*out),
        input=spec(*x),
        weight=spec(*weight),
        transposed=transposed,
        output_mask=list(mask),
    ).macs
    rest = (None, stride, padding, [1, 1], transposed, [0, 0], 1, list(mask))
    gradients = (torch.empty(x, device="meta"), torch.empty(weight, device="meta"), None)
    rule = flop_registry[aten.convolution_backward]
    meta = [torch.empty(shape, device="meta") for shape in (out, x, weight)]
    assert ours == rule(*meta, *rest, out_val=gradients) // 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
def test_attention_and_its_gradient(kernel: str, seed: int) -> None:
    batch, heads, queries, keys, size, value = random.Random(seed).sample(range(1, 30), 6)
    q, k, v = (batch, heads, queries, size), (batch, heads, keys, size), (batch, heads, keys, value)
    out = (batch, heads, queries, value)
    name = f"_scaled_dot_product_{kernel}_attention"
    specs = {"query": spec(*q), "key": spec(*k), "value": spec(*v)}
    forward = cost(f"aten::{name}", spec(*out), **specs).macs
    assert forward == torch_macs(getattr(aten, name), q, k, v, out=out)
    backward = cost(f"aten::{name}_backward", **specs, grad_out=spec(*out)).macs
    # torch counts the scores that a fused kernel computes anew; the contract's MACs do not depend on the kernel.
    recomputed = batch * heads * queries * keys * size
    assert backward + recomputed == torch_macs(getattr(aten, f"{name}_backward"), out, q, k, v)
