"""`torchgauge check [TARGET …] --max KEY=LIMIT`."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchgauge.cli.output import check_outputs, deliver, print_findings, show_progress
from torchgauge.cli.target_options import (
    add_measuring_options,
    add_prediction_options,
    add_target_options,
    target_arguments,
)
from torchgauge.errors import TorchgaugeError, UsageError
from torchgauge.progress import say, stage
from torchgauge.report.registry import CHECK, find_format

if TYPE_CHECKING:
    from torchgauge.analysis.budgets import TargetBudget
    from torchgauge.report.budgets import BudgetReport, Limit

SUMMARY = "check a model against a budget, for CI; exit status 3 if a limit is broken"
DESCRIPTION = """\
Check a model against limits such as --max params=30M --max time_s=10ms
--max peak_activation_bytes=200MB.

Limits are also read from [tool.torchgauge.budgets] in the pyproject.toml of the
working directory, or above it in the same repository. A table
[tool.torchgauge.budgets."TARGET"] is for that target only, and can set how it
is analysed: input, batch, seq, dtype, device, mode, as. Without TARGET, every
target that has such a table is checked. Python code that only the file names
runs with --config pyproject.toml, or once --trust-config was given.
A limit on time_s measures the model as --inference does, one on energy_j as
--profile does. With --on h200, limits on predicted_time_s and
fit.h200.used_bytes are possible too. --against main.json --max-increase macs=1%
limits a figure to that of a saved run and 1 % more.

200MB is 200,000,000 bytes, 200MiB is 209,715,200.
Exit status: 0 within the limits, 3 a limit is exceeded or a file is unsafe, 1 a
figure is unknown.
"""
EXAMPLES = (
    "torchgauge check model.py:Net --max params=30M --max macs=5G",
    "torchgauge check run.json --max time_s=10ms -o verdicts.junit.xml",
    "torchgauge check model.py:Net --against main.json --max-increase macs=1%",
)
RESULT = CHECK


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", metavar="TARGET", nargs="*", help="a target as in analyze, or a saved run (.json)")
    group = parser.add_argument_group("budget")
    group.add_argument(
        "--max",
        dest="limits",
        action="append",
        default=[],
        metavar="KEY=LIMIT",
        help="repeatable: macs=5G, time_s=10ms",
    )
    group.add_argument("--against", metavar="RUN", help="a saved run (.json) that --max-increase refers to")
    group.add_argument(
        "--max-increase",
        dest="increases",
        action="append",
        default=[],
        metavar="KEY=AMOUNT",
        help="repeatable; how far a figure may exceed that of --against: an amount or a percentage",
    )
    group.add_argument(
        "--config", metavar="FILE", help="read the limits from this pyproject.toml; the code that it names may run"
    )
    group.add_argument(
        "--trust-config",
        action="store_true",
        help="run the code that the pyproject.toml names, and remember that it may run",
    )
    group.add_argument(
        "--github",
        action="store_true",
        help="print annotations for GitHub Actions (default where GITHUB_ACTIONS is set)",
    )
    group.add_argument(
        "--allow-unsafe-file", action="store_true", help="do not fail where a file's pickle would run dangerous code"
    )
    add_target_options(parser)
    add_measuring_options(parser)
    add_prediction_options(parser)


def run(args: argparse.Namespace) -> int:
    from torchgauge.report.budgets import budget_lines, parse_limit, render_annotations, render_json
    from torchgauge.report.budgets.rendering import unknown_words, verdict_words
    from torchgauge.report.layout import terminal_width
    from torchgauge.report.saving import write_whole

    given = [*(parse_limit(text) for text in args.limits), *limits_against(args.against, args.increases)]
    check_outputs(args.outputs, CHECK)
    budgets = target_budgets(args, given)
    # Output of the model's code is not part of the verdict.
    with redirect_stdout(sys.stderr):
        reports = [check_target(target, budget, args) for target, budget in budgets.items()]
    deliver(
        args,
        save=lambda path: write_whole(Path(path), find_format(path, CHECK).render(reports)),
        json=lambda: [render_json(reports)],
        lines=lambda: budget_lines(reports, terminal_width()),
    )
    if args.github or os.environ.get("GITHUB_ACTIONS") == "true":
        # The runner reads both streams; JSON has stdout to itself.
        (sys.stderr if args.json else sys.stdout).write(render_annotations(reports))
    # Unknown figures on stderr, and broken limits where stdout is JSON or silent.
    for report in reports:
        texts = [verdict_words(verdict) for verdict in report.broken] if args.quiet or args.json else []
        for text in (*texts, *unknown_words(report)):
            say(f"torchgauge: error: {report.target}: {text}")
    statuses = {report.exit_status for report in reports}
    return 3 if 3 in statuses else max(statuses)


def limits_against(run: str | None, increases: Sequence[str]) -> list[Limit]:
    """The limits that follow from the figures of a saved run."""
    from torchgauge.report.budgets import Increase

    allowed = [Increase.parse(text) for text in increases]
    if (run is None) != (not allowed):
        missing = "--max-increase KEY=AMOUNT" if run else "--against RUN.json"
        raise UsageError(f"an increase is a share of another run's figure: add {missing}")
    if run is None:
        return []
    from torchgauge.analysis import load

    base = load(run)
    return [increase.limit(base, Path(run).name) for increase in allowed]


def target_budgets(args: argparse.Namespace, given: Sequence[Limit]) -> dict[str, TargetBudget]:
    """The limits of each target; those of the command line override those of the project."""
    from dataclasses import replace

    from torchgauge.analysis.budgets import read_budgets

    known = read_budgets(Path.cwd(), None if args.config is None else Path(args.config))
    found = {}
    for target in args.targets or known.targets:
        budget = known.of(target)
        # A figure may have a limit and be compared with another run as well.
        limits = {(limit.key, limit.origin): limit for limit in (*budget.limits, *given)}
        found[target] = replace(budget, limits=tuple(limits.values()))
    if not found:
        raise UsageError('no target: name one, or add a table [tool.torchgauge.budgets."TARGET"]')
    if missing := [target for target, budget in found.items() if not budget.limits]:
        raise UsageError(f"'{missing[0]}' has no limits: give --max KEY=LIMIT, or [tool.torchgauge.budgets]")
    if known.file is not None:
        announce_code(known.file, found, args)
    return found


def announce_code(config: Path, budgets: Mapping[str, TargetBudget], args: argparse.Namespace) -> None:
    """Say which code runs because a configuration names it, or raise if it may not run."""
    from torchgauge.analysis.trust import require_trust
    from torchgauge.source.target_check import runs_code
    from torchgauge.units import visible

    named = [target for target in budgets if target not in args.targets]
    if args.code is None:
        named += [str(budget.settings["as"]) for budget in budgets.values() if "as" in budget.settings]
    code = sorted({name for name in named if runs_code(name)})
    if code:
        require_trust(config, code, is_named=args.config is not None, remember=args.trust_config)
        print(f"torchgauge: running {visible(', '.join(code))}, named by {visible(str(config))}", file=sys.stderr)


def check_target(target: str, budget: TargetBudget, args: argparse.Namespace) -> BudgetReport:
    """A target that cannot be analysed gets a report too: the others still have their verdicts, and CI its files."""
    from torchgauge.analysis.comparison import is_saved_run, open_analysis
    from torchgauge.report.budgets import check_view, unchecked

    shown = show_progress(args)
    try:
        # A saved run is checked without torch.
        asked = {"progress": shown} if is_saved_run(target) else analysis_arguments(target, budget, args)
        found = open_analysis(target, **asked)
    except UsageError:
        raise
    except TorchgaugeError as error:
        if args.debug:
            say(*traceback.format_exc().splitlines())
        return unchecked(target, budget.limits, str(error))
    print_findings(found)
    with stage(f"checking {target}", shown=shown):
        return check_view(found, budget.limits, allow_unsafe_file=args.allow_unsafe_file)


def analysis_arguments(target: str, budget: TargetBudget, args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of the analysis: the command line's, else those of the target's table; plus those that the limits
    need."""
    from torchgauge.report.budgets import analysis_needs

    names = {"input": "specs", "as": "code"}
    settings = {names.get(key, key): value for key, value in budget.settings.items()}
    # An option of the command line overrides that of the table.
    unset = {key: value for key, value in settings.items() if getattr(args, key) in (None, [], "inference")}
    own = argparse.Namespace(**vars(args) | unset)
    needs = analysis_needs(list(budget.limits))
    devices = [*args.on, *needs.get("on", ())]
    return target_arguments(own, target) | needs | {"on": devices, "advice": False, "weights": False}
