"""A fixture that checks models against budgets in a test suite; pytest finds it if torchgauge is installed.

    def test_the_model_stays_small(gauge_budget):
        gauge_budget(Net(), params="30M", macs="5G", input_size=(1, 3, 224, 224))

A broken budget fails the test and names the modules that break it. Nothing is imported until a test requests the
fixture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torchgauge.report.budgets import BudgetReport


@pytest.fixture
def gauge_budget() -> Callable[..., BudgetReport]:
    """`gauge_budget(target, params="30M", …)`: limits by their keys, other keywords are options of `analyze`; without
    limits, those of `[tool.torchgauge.budgets]`, where the target's own table may also say how it is analysed. Returns
    the report if all limits hold."""
    from pathlib import Path

    from torchgauge.analysis.budgets import analysis_options, check, read_budgets
    from torchgauge.report.budgets import KEYS, render_text

    def hold(target: Any, **given: Any) -> BudgetReport:
        limits = {key: given.pop(key) for key in list(given) if key in KEYS}
        options: dict[str, Any] = {}
        if not limits:
            budget = read_budgets(Path.cwd()).of(target if isinstance(target, str) else "")
            limits, options = {one.key: one.most for one in budget.limits}, analysis_options(budget.settings)
        if not limits:
            pytest.fail("no limits: pass them as keywords, or set them in [tool.torchgauge.budgets]", pytrace=False)
        report = check(target, limits, **options | given)
        if report.exit_status:
            pytest.fail(render_text([report], width=100), pytrace=False)
        return report

    return hold
