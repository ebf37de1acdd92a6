"""A compiled forecast takes its fusions from Inductor, and says so; without a compiler it follows a rule."""

from __future__ import annotations

from typing import Any

import pytest

import torchgauge as tg
from tests.compiled.models import WIDTH, Whole
from torchgauge.analysis import Forecast

SIZE = (64, WIDTH)


def compiled_forecast(**options: Any) -> Forecast:
    found = tg.forecast(Whole(), on="h200", execution="compiled", input_size=SIZE, **options)
    assert isinstance(found, Forecast)
    return found


def test_fusions_are_inductors() -> None:
    kernels = tg.analyze(Whole(), input_size=SIZE, execution="compiled", advice=False).capture.compiled
    assert kernels is not None
    found = compiled_forecast()
    assert [row["op"] for row in found.ops] == ["aten::addmm", "inductor::fused"] * 2
    assert "fusions are those of Inductor's CPU backend" in found.warnings
    assert [kernel.kind for kernel in kernels.kernels] == ["extern", "generated"] * 2


def test_runs_without_inductor_follow_the_rule_of_thumb() -> None:
    (remark,) = [text for text in compiled_forecast(amp="bf16").warnings if text.startswith("fusions")]
    assert "rule of thumb" in remark


def test_without_a_compiler_the_forecast_says_which_fusions_it_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config, cpp_builder

    def none_found() -> str:
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none_found)
    assert config.cpp.cxx
    (remark,) = [text for text in compiled_forecast().warnings if text.startswith("fusions")]
    assert "rule of thumb" in remark
    assert "C++ compiler" in remark


def test_an_analysis_for_a_device_predicts_the_execution_that_was_asked_for() -> None:
    found = tg.analyze(Whole(), input_size=SIZE, execution="compiled", on="h200", advice=False)
    (there,) = found.capture.forecast
    alone = compiled_forecast()
    assert (there["execution"], there["predicted_time_s"]) == ("compiled", alone.time_s)
    assert "fusions are those of Inductor's CPU backend" in there["warnings"]
    assert found.capture.predicted is not None
    assert found.capture.predicted.modules[""]["predicted_time_s"] == pytest.approx(alone.time_s)
