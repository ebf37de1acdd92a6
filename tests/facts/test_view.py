"""Everything that is derived from a capture is derived once."""

from __future__ import annotations

from collections import Counter
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg


def test_an_analysis_derives_tree_totals_and_mixtures_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str) -> Any:
        original = resolve_name(f"torchgauge.facts.view:{name}")

        def count(*args: Any) -> Any:
            calls[name] += 1
            return original(*args)

        return count

    names = ("build_tree", "totals_row", "find_mixtures")
    for name in names:
        monkeypatch.setattr(f"torchgauge.facts.view.{name}", counted(name))
    found = tg.analyze(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), inputs=torch.ones(1, 4))
    assert found.totals.macs == 16
    assert str(found)
    assert calls == dict.fromkeys(names, 1)


def test_remarks_are_those_of_the_new_view_and_figures_are_kept() -> None:
    found = tg.analyze(nn.Linear(4, 4), inputs=torch.ones(1, 4), advice=False)
    assert found.advice == []
    totals = found.totals
    advice: Any = [{"rule": "a"}]
    plan: Any = {"rules": ["a"]}
    changed = found.with_remarks(warnings=["careful"], advice=advice, plan=plan)
    assert changed.totals is totals
    assert changed.capture.run.warnings[-1] == "careful"
    assert [row.rule for row in changed.advice] == ["a"]
    assert changed.plan == {"rules": ["a"]}
    assert found.plan is None
    assert type(changed) is type(found)
