"""Budgets of models: given, or in the pyproject.toml of the project."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchgauge.analysis.comparison import open_analysis
from torchgauge.errors import UsageError
from torchgauge.report.budgets import BudgetReport, Limit, analysis_needs, check_view, limit, limits

# Settings of the analysis that a target's table may have in addition to limits.
SETTINGS: dict[str, type] = {
    "input": str, "batch": int, "seq": int, "dtype": str, "device": str, "mode": str, "as": str,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TargetBudget:
    limits: tuple[Limit, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Budgets:
    """`[tool.torchgauge.budgets]`: limits for every target; a table named after a target adds limits for it or
    replaces them."""

    common: Mapping[str, Any] = field(default_factory=dict)
    targets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    file: Path | None = None

    def of(self, target: str) -> TargetBudget:
        own = self.targets.get(target, {})
        settings: dict[str, Any] = {}
        for key in SETTINGS:
            if key not in own:
                continue
            value, kind = own[key], SETTINGS[key]
            values = value if key == "input" and isinstance(value, list) else [value]  # `input` may be several
            if not all(isinstance(one, kind) and not isinstance(one, bool) for one in values):
                raise UsageError(f"the budget of '{target}': '{key}' is {value!r}, not {kind.__name__}")
            if kind is int and value < 1:
                raise UsageError(f"the budget of '{target}': '{key}' must be at least 1, not {value}")
            settings[key] = values if key == "input" else value
        limited = {**self.common, **{key: value for key, value in own.items() if key not in SETTINGS}}
        return TargetBudget(tuple(limit(key, value) for key, value in limited.items()), settings)


def read_budgets(folder: Path, config: Path | None = None) -> Budgets:
    """The budgets of `config`; by default of the nearest pyproject.toml that has the table, in the folder or above it
    up to the root of its repository. Above that, other people's files would decide."""
    if config is not None:
        found = _read_table(config)
        if found is None:
            raise UsageError(f"'{config}' has no table [tool.torchgauge.budgets]")
        return found
    places = (folder, *folder.parents)
    depth = next((depth for depth, place in enumerate(places) if (place / ".git").exists()), 0)
    for file in (place / "pyproject.toml" for place in places[: depth + 1]):
        if file.is_file() and (found := _read_table(file)) is not None:
            return found
    return Budgets()


def _read_table(file: Path) -> Budgets | None:
    try:
        table: object = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"'{file}' cannot be read: {error}") from error
    for name in ("tool", "torchgauge", "budgets"):
        table = table.get(name) if isinstance(table, Mapping) else table
    if table is None:
        return None
    if not isinstance(table, Mapping):
        raise UsageError(f"[tool.torchgauge.budgets] of '{file}' is not a table")
    return Budgets(
        {key: value for key, value in table.items() if not isinstance(value, Mapping)},
        {key: value for key, value in table.items() if isinstance(value, Mapping)},
        file,
    )


def analysis_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a target's table as the arguments of `analyze`."""
    from torchgauge.source import parse_input

    names = {"input": "specs", "as": "code"}
    options = {names.get(key, key): value for key, value in settings.items()}
    if "specs" in options:
        options["specs"] = [parse_input(text) for text in options["specs"]]
    return options


def check(
    target: Any, budgets: Mapping[str, float | str], *, allow_unsafe_file: bool = False, **options: Any
) -> BudgetReport:
    """A model, target, saved run or analysis against limits such as {"params": "30M", "time_s": "10ms"}; what they
    need is measured. A file whose pickle would run dangerous code breaks every budget unless `allow_unsafe_file`.
    `options` are those of `analyze`."""
    wanted = limits(budgets)
    asked = {"advice": False, "weights": False, **options, **analysis_needs(wanted)}
    return check_view(open_analysis(target, **asked), wanted, allow_unsafe_file=allow_unsafe_file)
