"""A run without network, and what it left on the disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.report.sample import sample_capture
from torchgauge.analysis import Analysis

pytest.importorskip("wandb", reason="wandb is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_an_analysis_is_logged_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    from torchgauge.integrations.wandb import log_analysis

    monkeypatch.setenv("WANDB_SILENT", "true")
    analysis = Analysis(sample_capture())
    with wandb.init(mode="offline", dir=str(tmp_path), project="gauge") as run:
        log_analysis(run, analysis)
        assert run.summary["torchgauge/params"] == analysis.totals.params
        folder = Path(run.dir)
    (table,) = folder.rglob("media/table/**/*.json")
    rows = json.loads(table.read_text())
    assert len(rows["data"]) == len(analysis.modules)
    assert rows["columns"][:2] == ["path", "type"]
    (page,) = folder.rglob("media/html/**/*.html")
    assert "Content-Security-Policy" in page.read_text()
