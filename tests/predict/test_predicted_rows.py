"""Predicted time in the rows of an analysis that names a device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchgauge as tg
from torchgauge.report import Options, render
from torchgauge.report.page import build_payload

SOURCES = {"measured", "published", "carried over", "data sheet"}


class Attending(nn.Module):
    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.mix(x).view(batch, length, 3, 8, width // 8).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts)
        out: torch.Tensor = self.norm(x + self.out(seen.transpose(1, 2).reshape(x.shape)))
        return out


def analysed(mode: str = "inference", on: str = "h200", **options: object) -> tg.Analysis:
    with torch.device("meta"):
        model = Attending().to(torch.bfloat16)
    inputs = torch.empty(8, 256, 512, dtype=torch.bfloat16, device="meta")
    return tg.analyze(model, inputs=inputs, mode=mode, on=on, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 4, 6)])
def test_padding_of_any_dimensions_is_predicted(shape: tuple[int, ...]) -> None:
    class Pads(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.pad(x, (0, 6))

    found = tg.analyze(Pads(), inputs=torch.ones(shape), on="h200", advice=False).capture.forecast[0]
    assert 0 < found["predicted_low_s"] <= found["predicted_time_s"] <= found["predicted_high_s"]


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_ops_and_modules_add_up_to_the_forecast(mode: str) -> None:
    found = analysed(mode, advice=False)
    whole = found.capture.forecast[0]["predicted_time_s"]
    rows = [row for row in found.ops if row.predicted_time_s is not None]
    assert found.modules[0].predicted_time_s == pytest.approx(whole)
    # Ops of a module that the analysis saw none in are in the module's row alone.
    assert 0.98 * whole < sum(row["predicted_time_s"] for row in rows) <= whole * 1.001
    for row in rows:
        assert row["predicted_low_s"] <= row["predicted_time_s"] <= row["predicted_high_s"]
    assert {row.predicted_source for row in rows if row.predicted_device_s} <= SOURCES
    assert all(0 < row["predicted_roof_share"] <= 1.05 for row in rows if row["predicted_device_s"] and row.flops)


def test_an_op_has_the_time_of_the_kernel_that_the_device_runs_in_its_place() -> None:
    attention = next(row for row in analysed(advice=False).ops if row.category == "attention")
    assert attention.op.endswith("_for_cpu")
    assert attention["predicted_device_s"] > 0
    # 8 × 8 heads of 256 tokens, width 64: 1 GFLOP, which an H200 does in 5 to 100 µs.
    assert 1e-6 < attention["predicted_device_s"] < 1e-4


def test_every_format_has_the_figures(tmp_path: Path) -> None:
    found = analysed()
    found.save(tmp_path / "run.json")
    saved = tg.load(tmp_path / "run.json")
    assert saved.capture.predicted == found.capture.predicted
    for name in ("csv", "ops.csv", "xml", "jsonl"):
        assert "predicted_time_s" in render(saved, name)
    assert "Where the time goes on NVIDIA H200, predicted" in str(saved)
    table = render(saved, "text", Options(columns=("predicted_time_s", "predicted_source")))
    assert "≈" in table
    assert "measured" in table
    pytest.importorskip("pandas")
    frame = saved.to_dataframe("ops")
    assert frame["predicted_high_s"].max() > 0


def test_the_roofline_is_that_of_the_device_that_is_not_there() -> None:
    roofline = build_payload(analysed(on="a100", advice=False), Options())["roofline"]
    assert roofline["is_predicted"]
    assert roofline["device"] == "NVIDIA A100 80GB"
    assert roofline["peaks"]["bytes_per_s"] == pytest.approx(2.04e12, rel=0.01)
    products = [point for point in roofline["points"] if point["category"] == "matmul"]
    assert products
    for point in products:
        roof = min(312e12, point["intensity"] * roofline["peaks"]["bytes_per_s"])
        assert 0.02 * roof < point["flops_per_s"] < 1.05 * roof
    assert {point["source"] for point in roofline["points"]} <= SOURCES


def test_without_a_device_the_figures_are_null() -> None:
    found = tg.analyze(Attending(), inputs=torch.empty(1, 16, 512), advice=False)
    assert found.ops[0].predicted_time_s is None
    assert found.modules[0].predicted_source is None
    sized = tg.analyze(Attending(), inputs=torch.empty(1, 16, 512), on="24GiB", advice=False)
    assert sized.capture.predicted is None
    assert sized.modules[0].predicted_time_s is None


class Halting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.step(x)
            if bool((x > 100).all()):
                break
        return x


def test_a_model_that_cannot_be_predicted_is_analysed_without_a_prediction() -> None:
    """The very models whose host reads the device's values: what an analysis would say of them must not be lost."""
    found = tg.analyze(Halting(), inputs=torch.zeros(4, 8), on="h200")
    assert not found.capture.fit
    assert any("no prediction of the whole run on h200" in warning for warning in found.capture.run.warnings)
    assert any(row["rule"] == "host-wait" for row in found.advice)
    with pytest.raises(tg.UsageError, match="no device"):
        tg.analyze(Halting(), inputs=torch.zeros(4, 8), on="h2000")
