"""An event file, read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import torchgauge
from tests.report.sample import sample_capture
from torchgauge.analysis import Analysis

pytest.importorskip("tensorboard", reason="tensorboard is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def logged(analysis: Analysis, folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    from torchgauge.integrations.tensorboard import log_analysis

    with SummaryWriter(str(folder)) as writer:
        log_analysis(writer, analysis, step=3)
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0, "histograms": 0})
    events.Reload()
    return events


def text_of(events: Any, name: str) -> str:
    return str(events.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode())


def test_totals_are_scalars_and_modules_a_table(tmp_path: Path) -> None:
    analysis = Analysis(sample_capture())
    events = logged(analysis, tmp_path)
    (params,) = events.Scalars("torchgauge/params")
    assert (params.value, params.step) == (analysis.totals.params, 3)
    assert "torchgauge/time_s" not in events.Tags()["scalars"], "what is not known is not logged"
    table = text_of(events, "torchgauge/modules").splitlines()
    assert len(table) == 2 + len(analysis.modules)
    assert "<i>" not in text_of(events, "torchgauge/modules"), "names are data"
    assert all(line.startswith("    ") for line in text_of(events, "torchgauge/report").splitlines())


def test_weights_are_histograms_of_all_their_values(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    events = logged(torchgauge.analyze(model, input_size=(1, 4), weights=True, deep=False), tmp_path)
    (found,) = events.Histograms("torchgauge/weights/weight")
    values = found.histogram_value
    assert values.num == sum(values.bucket) == 12
    assert values.sum == pytest.approx(model.weight.sum().item(), rel=1e-4)
    assert values.sum_squares == pytest.approx(model.weight.square().sum().item(), rel=1e-4)
