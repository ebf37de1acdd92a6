from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from torchgauge.cli import main
from torchgauge.source import load_real_model, resolve

WIDTH, DEPTH, TOKENS, SIDE, CLASSES = 192, 6, 196, 56, 100
MODEL = "torchgauge.cli.demo_model:DemoNet"


def closed_form_macs() -> int:
    stem = SIDE * SIDE * (WIDTH // 4) * 3 * 7 * 7 + TOKENS * WIDTH * (WIDTH // 4) * 4 * 4
    block = TOKENS * 12 * WIDTH * WIDTH + 2 * TOKENS * TOKENS * WIDTH
    return stem + DEPTH * block + WIDTH * CLASSES


def test_the_demo_model_runs() -> None:
    with torch.no_grad():
        assert load_real_model(resolve(MODEL)).model(torch.zeros(1, 3, 224, 224)).shape == (1, CLASSES)


def test_the_demo_prints_and_writes_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    out, err = capsys.readouterr()
    assert "0–5 ×6 Block" in out
    assert sorted(err.splitlines()) == [f"wrote {path}" for path in sorted(tmp_path.iterdir())]
    assert (tmp_path / "torchgauge-demo.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    totals = json.loads((tmp_path / "torchgauge-demo.json").read_text())["totals"]
    assert totals["macs"] == closed_form_macs()
    assert totals["params"] == sum(p.numel() for p in load_real_model(resolve(MODEL)).model.parameters())
    assert "0–5 ×6 Block" in (tmp_path / "torchgauge-demo.txt").read_text(encoding="utf-8")
