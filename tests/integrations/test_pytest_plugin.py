"""The fixture in a separate test suite."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = ("pytester",)
PLUGIN = "torchgauge.integrations.pytest_plugin"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def arguments() -> list[str]:
    """Where the package is installed with this entry point, pytest loads it by itself."""
    is_installed = any(entry.value == PLUGIN for entry in entry_points(group="pytest11"))
    return [] if is_installed else ["-p", PLUGIN]


def test_the_package_offers_the_plugin_to_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"torchgauge": PLUGIN}


def test_a_broken_budget_fails_with_the_modules_that_break_it(pytester: pytest.Pytester, arguments: list[str]) -> None:
    pytester.makepyfile(
        """
        from torch import nn

        def test_within(gauge_budget):
            report = gauge_budget(nn.Linear(4, 2), params=10, macs="1k", input_size=(1, 4))
            assert report.exit_status == 0

        def test_broken(gauge_budget):
            gauge_budget(nn.Sequential(nn.Linear(4, 2)), params=9, input_size=(1, 4))
        """
    )
    result = pytester.runpytest_inprocess(*arguments, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*params is 1 over its limit*", "0 * Linear * 1 * 10 * 100.0 %*"])


def test_the_limits_of_the_project_are_taken_where_none_are_given(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    pytester.makepyprojecttoml("[tool.torchgauge.budgets]\nparams = 9\n")
    pytester.makepyfile(
        """
        from torch import nn

        def test_it(gauge_budget):
            gauge_budget(nn.Linear(4, 2), input_size=(1, 4))
        """
    )
    pytester.runpytest_inprocess(*arguments, "-p", "no:cacheprovider").assert_outcomes(failed=1)


def test_the_table_of_a_target_says_how_it_is_analysed(pytester: pytest.Pytester, arguments: list[str]) -> None:
    pytester.makepyfile(
        nets="from torch import nn\nclass Net(nn.Linear):\n    def __init__(self): super().__init__(4, 2)"
    )
    table = '[tool.torchgauge.budgets."nets.py:Net"]\nmacs = 24\ninput = "3x4"\n'
    pytester.makepyprojecttoml(table)
    pytester.makepyfile(
        """
        def test_it(gauge_budget):
            assert gauge_budget("nets.py:Net").verdicts[0].value == 3 * 8
        """
    )
    pytester.runpytest_inprocess(*arguments, "-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_pytest_starts_without_torch() -> None:
    code = f"import sys, {PLUGIN}; print('torch' in sys.modules, 'numpy' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "False False\n"
