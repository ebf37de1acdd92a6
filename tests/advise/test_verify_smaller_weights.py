"""Weights of low rank, in fewer bits, sparse, padded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.advise.trying import apart, applied, bench, changed, not_applicable, row, x
from torchgauge import analyze
from torchgauge.advise import Evidence, advise
from torchgauge.verify import Bench, judge

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(32, 32), (4, 32)),
        (nn.Conv2d(8, 32, 3, stride=2, padding=1), (1, 8, 9, 9)),
        (nn.Conv1d(32, 32, 1, bias=False), (1, 32, 5)),
    ],
)
def test_a_layer_of_low_rank_becomes_two(layer: Any, shape: tuple[int, ...]) -> None:
    flat = layer.weight.data.flatten(1)
    layer.weight.data = (x(flat.shape[0], 4) @ x(4, flat.shape[1])).view_as(layer.weight)
    model = nn.Sequential(layer).eval()
    place = bench(model, x(*shape))
    advice = row("low-rank", "param_bytes", module="0", weight="0.weight", rank=4)
    verdict = judge(place, [applied(place, advice)], "param_bytes", 0.05)

    before, after = flat.numel(), 4 * sum(flat.shape)
    bias = 0 if layer.bias is None else 32
    assert verdict.gain == pytest.approx(1 - (after + bias) / (before + bias))
    assert verdict.error.relative is not None
    assert verdict.error.relative < 1e-4
    assert verdict.is_kept


@pytest.mark.parametrize(("name", "limit"), [("int8", 0.01), ("fp8_e4m3", 0.05)])
def test_linear_layers_are_kept_in_eight_bits(name: str, limit: float) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval()
    place = bench(model, x(4, 64))
    advice = row("quantize-weights", "param_bytes", module="0", weight="0.weight", format=name)
    verdict = judge(place, [applied(place, advice)], "param_bytes", 0.05)

    # Codes of one byte, a scale of four for each row, and the unchanged bias.
    assert verdict.after == 64 * 64 + 2 * 64 * 4
    assert verdict.error.relative is not None
    assert 0 < verdict.error.relative < limit
    assert "8 bits" in not_applicable(place, row("quantize-weights", module="0", format="nf4"))


def test_the_smallest_weights_are_removed_and_the_rest_is_stored_in_compressed_rows() -> None:
    linear = nn.Linear(64, 16, bias=False)
    linear.weight.data.copy_(torch.where(x(16, 64) > 1.5, x(16, 64), 1e-6 * x(16, 64)))
    model = nn.Sequential(linear).eval()
    kept = int((linear.weight.abs() > 1e-3).sum())
    share = round(1 - kept / 1024, 3)
    place = bench(model, x(4, 64))
    advice = row("unstructured-pruning", "param_bytes", module="0", weight="0.weight", removable_share=share)
    how = applied(place, advice)
    verdict = judge(place, [how], "param_bytes", 0.05)

    left = 1024 - round(share * 1024)
    assert verdict.after == 8 * left + 8 * 17
    assert verdict.is_kept
    assert not how.in_plan


def test_only_sparse_tensor_cores_compute_two_of_four() -> None:
    place = bench(nn.Linear(16, 16), x(4, 16))

    assert "Ampere" in not_applicable(place, row("two-four-sparsity", weight="weight"))


def test_odd_sizes_are_padded_and_cut_off_again() -> None:
    model = nn.Sequential(nn.Linear(100, 70), nn.ReLU(), nn.Linear(70, 128, bias=False)).eval()
    place = bench(model, x(4, 100))
    places: list[dict[str, Any]] = [{"module": path, "ops": [], "weight": None, "evidence": {}} for path in ("0", "2")]

    side = changed(place, row("odd-dimensions", module="0", places=places))

    shapes = [tuple(weight.shape) for name, weight in side.subject.model.named_parameters() if "weight" in name]
    assert shapes == [(128, 128), (128, 128)]
    assert apart(place, side) < 1e-6


def test_values_that_fit_a_narrower_type_are_stored_in_it_without_loss() -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False)).eval()
    model[0].weight.data = model[0].weight.data.bfloat16().float()
    found = analyze(model, inputs=(x(2, 64),), weights=True, advice=False, progress=False)
    advice = next(a.member() for a in advise(Evidence(found.capture, found)) if a.rule == "narrower-type")
    place = bench(model, x(2, 64))
    place = Bench(place.subject, found.capture, False, 0.02)
    how = applied(place, advice)
    verdict = judge(place, [how], "param_bytes", 0.0)

    assert verdict.gain == 0.5
    assert verdict.error.relative == 0
    assert verdict.is_kept
