"""Budgets in a pyproject.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchgauge.analysis import analysis_options, check, read_budgets
from torchgauge.errors import UsageError
from torchgauge.report.budgets import Limit

TABLE = """
[tool.torchgauge.budgets]
params = "30M"
peak_activation_bytes = "200MB"

[tool.torchgauge.budgets."timm:resnet50"]
params = 26_000_000
macs = 5e9
input = "1x3x128x128"
batch = 2
"""


def test_a_targets_own_limits_go_before_those_of_all(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(TABLE)
    budgets = read_budgets(tmp_path)
    assert budgets.of("other.py:Net").limits == (Limit("params", 30e6), Limit("peak_activation_bytes", 200e6))
    own = budgets.of("timm:resnet50")
    assert own.limits == (Limit("params", 26e6), Limit("peak_activation_bytes", 200e6), Limit("macs", 5e9))
    assert own.settings == {"input": ["1x3x128x128"], "batch": 2}


@pytest.mark.parametrize(
    "line", ['batch = "two"', "input = 3", "mode = ['train']", "seq = true", 'colour = "red"', "batch = 0"]
)
def test_a_setting_of_another_kind_is_a_usage_error(line: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.torchgauge.budgets."a.py:Net"]\nparams = 3\n{line}\n')
    with pytest.raises(UsageError, match=line.split()[0]):
        read_budgets(tmp_path).of("a.py:Net")


def test_the_nearest_file_of_the_repository_with_the_table_counts(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(TABLE)
    (tmp_path / ".git").mkdir()
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text("[tool.other]\n")
    assert list(read_budgets(inner).targets) == ["timm:resnet50"]


def test_folders_above_the_repository_are_not_searched(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(TABLE)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert not read_budgets(inner).targets, "no repository: only the folder itself"
    (tmp_path / "a" / ".git").touch()  # a file in a work tree of git
    assert not read_budgets(inner).targets


def test_a_file_that_is_named_must_have_the_table(tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text(TABLE)
    assert read_budgets(tmp_path / "a", file).targets.keys() == {"timm:resnet50"}
    file.write_text("[tool.other]\n")
    with pytest.raises(UsageError, match="has no table"):
        read_budgets(tmp_path, file)


def test_a_folder_without_the_table_has_no_budget(tmp_path: Path) -> None:
    assert read_budgets(tmp_path).of("x").limits == ()


@pytest.mark.parametrize(
    "text", ["tool = 3\n", "[tool]\ntorchgauge = 3\n", "[tool.torchgauge]\nbudgets = 3\n", "nonsense"]
)
def test_a_file_that_cannot_be_read_is_a_usage_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        read_budgets(tmp_path)


def test_a_model_is_checked_from_python() -> None:
    from torch import nn

    found = check(nn.Linear(4, 2), {"params": 9, "macs": 8}, input_size=(1, 4))
    assert [verdict.state for verdict in found.verdicts] == ["broken", "within"]
    assert found.exit_status == 3


@pytest.mark.parametrize("value", ["inf", "nan", "-1", "true", "[1]", "2020-01-01", '"1e400"', '"-3"'])
def test_an_invalid_limit_is_a_usage_error(value: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.torchgauge.budgets]\nparams = {value}\n")
    with pytest.raises(UsageError, match=r"params|not a number"):
        read_budgets(tmp_path).of("x")


def test_the_settings_of_a_target_are_arguments_of_the_analysis(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(TABLE)
    options = analysis_options(read_budgets(tmp_path).of("timm:resnet50").settings)
    assert [spec.shape for spec in options.pop("specs")] == [(1, 3, 128, 128)]
    assert options == {"batch": 2}
