"""What to do about the model: likely bugs, then the largest gains; the options of every model; the plan."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.facts import View
from torchgauge.report.advice_text import effect_text, figure_text, place_text, range_text
from torchgauge.report.model import Block, Code, Item, Listing, Section, Text, Topic, more, notes
from torchgauge.report.options import Options
from torchgauge.report.verified_text import is_withdrawn, measured_text, plan_text, withdrawn_text

SHOWN = 5
# Before its code, a piece of advice takes no more lines of the terminal.
MOST_LINES = 3
# Longer code stands below the list.
CODE_LINES_BESIDE = 2
_NO_FIGURES = ("places", "count")


def sections(view: View, options: Options) -> Iterator[Section]:
    standing = [row for row in view.advice if not is_withdrawn(row)]
    shown = standing if options.all_advice else standing[: options.rows(SHOWN, len(standing))]
    items: list[Item] = []
    below: list[Section] = []
    for number, row in enumerate(shown, start=1):
        said = (f"{row['rule']} at {place_text(row)}", range_text(row), f"risk: {row['risk']}")
        facts = [("", "; ".join(part for part in said if part))]
        if options.detail:
            evidence = {name: value for name, value in row["evidence"].items() if name not in _NO_FIGURES}
            told = ", ".join(text for name, value in evidence.items() if (text := figure_text(name, value)))
            facts += [("evidence", told or "none"), ("confidence", str(row["confidence"]))]
        code = "\n".join(line for line in (row["code"] or "").splitlines() if line.strip())
        if code.count("\n") >= CODE_LINES_BESIDE:
            title = f"Code for advice {number}: {row['rule']}"
            below.append(Section(title, (Code(code),), Topic.ADVICE, page_part="advice"))
            code = ""
        measured = measured_text(row)
        after = [("", measured)] if measured else []
        items.append(Item(f"{effect_text(row)}: {row['recommendation']}", facts, code, after=after))
    blocks: list[Block] = [Listing(items, mark="1.", max_lines=MOST_LINES)] if items else []
    blocks += [Text(text, is_remark=True) for text in more(len(standing) - len(shown))]
    blocks += _withdrawn([withdrawn_text(row) for row in view.advice if is_withdrawn(row)])
    if blocks:
        yield Section("Advice", tuple(blocks), Topic.ADVICE, page_part="advice")
    yield from below
    yield from _choices(view)
    if view.plan is not None:
        plan = (Text(plan_text(view.plan)), Code(view.plan["code"])) if view.plan["rules"] else ()
        none = (Text(f"none: {view.plan['reason']}"),) if not plan else ()
        yield Section("Plan", (*plan, *none), Topic.ADVICE, page_part="advice")


def _choices(view: View) -> Iterator[Section]:
    """Choices that every model has, a line each."""
    items = []
    for row in view.options:
        if not is_withdrawn(row):
            measured = f"; {measured_text(row)}" if row.get("verified") else ""
            items.append(Item(f"{effect_text(row)}: {row['recommendation']} ({row['rule']}){measured}"))
    blocks: list[Block] = [Listing(items, max_lines=MOST_LINES)] if items else []
    blocks += _withdrawn([withdrawn_text(row) for row in view.options if is_withdrawn(row)])
    if blocks:
        yield Section("Options", tuple(blocks), Topic.ADVICE, page_part="advice")


def _withdrawn(found: list[str]) -> list[Block]:
    return [Text("Withdrawn: refuted when tried"), *notes(found, is_remark=True)] if found else []
