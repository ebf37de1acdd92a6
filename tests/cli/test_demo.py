from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from torchgauge.cli import main
from torchgauge.cli.demo import FILES
from torchgauge.cli.demo_model import CLASSES, DemoNet

WIDTH, DEPTH, TOKENS, SIDE = 192, 6, 196, 56


def closed_form_macs() -> int:
    stem = SIDE * SIDE * (WIDTH // 4) * 3 * 7 * 7 + TOKENS * WIDTH * (WIDTH // 4) * 4 * 4
    block = TOKENS * 12 * WIDTH * WIDTH + 2 * TOKENS * TOKENS * WIDTH
    return stem + DEPTH * block + WIDTH * CLASSES


def test_the_demo_model_runs() -> None:
    with torch.no_grad():
        assert DemoNet(width=16, depth=1, heads=2)(torch.zeros(2, 3, 224, 224)).shape == (2, CLASSES)


def test_the_demo_prints_and_writes_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    out, err = capsys.readouterr()
    assert "0–5 ×6 Block" in out
    assert err.splitlines() == [f"wrote {tmp_path / name}" for name in FILES]
    assert (tmp_path / "torchgauge-demo.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    totals = json.loads((tmp_path / "torchgauge-demo.json").read_text())["totals"]
    assert totals["macs"] == closed_form_macs()
    assert totals["params"] == sum(p.numel() for p in DemoNet().parameters())
    assert "0–5 ×6 Block" in (tmp_path / "torchgauge-demo.txt").read_text(encoding="utf-8")
