"""Tables on the pages that say what the code says: written by `--regenerate`, compared otherwise.

<!-- table: options analyze -->
…
<!-- end -->
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from torchgauge.cli import build_parser
from torchgauge.facts import Unit, figures_of
from torchgauge.report import COLUMNS, suffixes_of
from torchgauge.report.budgets import KEYS

_TABLE = re.compile(r"(<!-- table: (?P<name>\S+)(?: (?P<of>\S+))? -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)


def generated(page: Path) -> Iterator[tuple[str, str, str]]:
    """Name, what the page has, what the code says."""
    for match in _TABLE.finditer(page.read_text(encoding="utf-8")):
        yield f"{match['name']} {match['of'] or ''}".strip(), match["body"], _table(match)


def regenerate(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    page.write_text(_TABLE.sub(lambda match: f"{match[1]}{_table(match)}{match[5]}", text), encoding="utf-8")


def _table(match: re.Match[str]) -> str:
    return TABLES[match["name"]](match["of"] or "")


def subparsers() -> dict[str, argparse.ArgumentParser]:
    actions = build_parser()._actions
    choices = next(action.choices for action in actions if isinstance(action, argparse._SubParsersAction))
    return dict(choices or {})


def options_table(command: str) -> str:
    parser = subparsers()[command]
    rows = []
    for group in parser._action_groups:
        shown = [action for action in group._group_actions if action.help is not argparse.SUPPRESS]
        shown = [action for action in shown if not isinstance(action, argparse._HelpAction)]
        rows += [(_spelling(action), _meaning(action)) for action in shown]
    lines = ["| option | meaning |", "|---|---|", *(f"| {option} | {meaning} |" for option, meaning in rows)]
    return "\n".join(lines) + "\n"


def _spelling(action: argparse.Action) -> str:
    value = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else "")
    if not action.option_strings:
        return f"`{value or action.dest}`"
    suffix = f" {value}" if value and action.nargs != 0 else ""
    return ", ".join(f"`{_escaped(option + suffix)}`" for option in action.option_strings)


def _meaning(action: argparse.Action) -> str:
    return _escaped(action.help or "")


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")


def columns_table(_: str) -> str:
    meanings = {figure.key: figure.meaning for figure in figures_of("modules")}
    rows = [f"| `{name}` | {_escaped(column.title)} | {_escaped(meanings[name])} |" for name, column in COLUMNS.items()]
    return "\n".join(["| column | heading | meaning |", "|---|---|---|", *rows]) + "\n"


def limits_table(_: str) -> str:
    meanings = {figure.key: figure.meaning for figure in figures_of("totals")}
    needs = {None: "", "inference": ", as with `--inference`", "profile": ", as with `--profile`"}
    rows = [f"| `{name}` | {_escaped(meanings[name])}{needs[key.needs]} |" for name, key in KEYS.items()]
    return "\n".join(["| key | meaning |", "|---|---|", *rows]) + "\n"


def keys_table(level: str) -> str:
    units = {Unit.WHOLE: "count", Unit.SHARE: "share", Unit.RATE: "per second", Unit.NUMBER: "number"}
    rows = [
        f"| `{figure.key}` | {units.get(figure.unit, figure.unit.value)} | {_escaped(figure.meaning)} |"
        for figure in figures_of(level)
    ]
    return "\n".join([f"<!-- keys: {level} -->", f"| {level} | unit | |", "|---|---|---|", *rows]) + "\n"


def formats_table(result: str) -> str:
    rows = [f"| `{suffix}` | {_escaped(format.contents)} |" for suffix, format in suffixes_of(result).items()]
    return "\n".join(["| suffix | contents |", "|---|---|", *rows]) + "\n"


TABLES: dict[str, Callable[[str], str]] = {
    "options": options_table,
    "columns": columns_table,
    "limits": limits_table,
    "keys": keys_table,
    "formats": formats_table,
}
