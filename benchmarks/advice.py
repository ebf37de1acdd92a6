"""Precision and recall of the advice over a zoo of models with one planted fault each, and their clean twins.

    python benchmarks/advice.py [-o results.json]

A fault counts as found where its rule names its place. A false alarm is advice of that rule at another place, or for
the twin. Prints Markdown tables and a verdict on every limit; the exit status is 1 where one is broken.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import tables
from judging import Verdict

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.advise.planted import Planted, places  # noqa: E402 -- the zoo is the tests'
from torchgauge.advise import RULES  # noqa: E402

LEAST_FAULTS = 25
LEAST_PRECISION = LEAST_RECALL = 0.95


@dataclass(frozen=True, slots=True)
class Outcome:
    family: str
    rule: str
    case: str
    found: bool
    false_alarms: int


def main() -> int:
    options = _parse()
    outcomes = [judge(case) for case in zoo()]
    verdicts = judged(outcomes)
    print(f"\n## rules\n\n{by_rule(outcomes)}")
    for line in wrong(outcomes):
        print(line)
    print(f"\n## verdict\n\n{tables.verdicts(verdicts)}")
    if options.output:
        document = {"cases": [asdict(o) for o in outcomes], "verdicts": [asdict(v) for v in verdicts]}
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def zoo() -> list[Planted]:
    files = sorted((ROOT / "tests" / "advise").glob("zoo_*.py"))
    return [case for file in files for case in import_module(f"tests.advise.{file.stem}").CASES]


def judge(case: Planted) -> Outcome:
    said = case.in_fault()
    right = [advice for advice in said if case.place in places(advice)]
    false_alarms = len(said) - len(right) + len(case.in_twin())
    return Outcome(RULES[case.rule].family, case.rule, case.name, bool(right), false_alarms)


def precision(outcomes: Sequence[Outcome]) -> float:
    found = sum(outcome.found for outcome in outcomes)
    said = found + sum(outcome.false_alarms for outcome in outcomes)
    return found / said if said else 0.0


def recall(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.found for outcome in outcomes) / len(outcomes) if outcomes else 0.0


def judged(outcomes: Sequence[Outcome]) -> list[Verdict]:
    exact, complete, rules = precision(outcomes), recall(outcomes), {outcome.rule for outcome in outcomes}
    unproven = sorted(set(RULES) - rules)
    return [
        Verdict(f"at least {LEAST_FAULTS} faults", str(len(outcomes)), len(outcomes) >= LEAST_FAULTS),
        Verdict(f"precision at least {LEAST_PRECISION}", f"{exact:.3f}", exact >= LEAST_PRECISION),
        Verdict(f"recall at least {LEAST_RECALL}", f"{complete:.3f}", complete >= LEAST_RECALL),
        Verdict("every rule has a fault", ", ".join(unproven) or f"all {len(rules)}", not unproven),
    ]


def by_rule(outcomes: Sequence[Outcome]) -> str:
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.family, outcome.rule), []).append(outcome)
    rows = [
        (*name, str(len(group)), str(sum(o.found for o in group)), str(sum(o.false_alarms for o in group)))
        for name, group in sorted(groups.items())
    ]
    return tables.table(("family", "rule", "faults", "found", "false alarms"), rows)


def wrong(outcomes: Sequence[Outcome]) -> list[str]:
    missed = [f"- {o.rule} misses '{o.case}'" for o in outcomes if not o.found]
    return [*missed, *(f"- {o.rule} is a false alarm in '{o.case}'" for o in outcomes if o.false_alarms)]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", dest="output", type=Path, metavar="FILE", help="results as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
