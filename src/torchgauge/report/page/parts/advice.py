"""What to do about the model, with its evidence, what was verified, and the plan."""

from __future__ import annotations

from typing import Any

from torchgauge.facts import Row, View
from torchgauge.report.content.advice import (
    effect_text,
    error_text,
    figure_text,
    gained_text,
    is_withdrawn,
    measured_text,
    place_text,
    range_text,
)
from torchgauge.report.options import Options
from torchgauge.report.page.payload import part

_APART = ("places", "count")
_MOST_PLACES = 40
_KEYS = ("rule", "recommendation", "code", "risk", "confidence")


@part("advice")
def advice(view: View, options: Options) -> dict[str, Any] | None:
    """Likely bugs, then the largest expected gain; what a measurement refuted is withdrawn."""
    if not view.advice and not view.options and not view.plan:
        return None
    rows, choices = ([_row(row) for row in some] for some in (view.advice, view.options))
    plan = None
    if view.plan is not None and view.plan["rules"]:  # some combination held
        plan = {
            "rules": list(view.plan["rules"]),
            "gain": gained_text(view.plan),
            "output": error_text(view.plan["output_error"]),
            "code": view.plan["code"],
        }
    return {"rows": rows, "options": choices, "plan": plan}


def _row(row: Row) -> dict[str, Any]:
    evidence = {name: value for name, value in row["evidence"].items() if name not in _APART}
    gain, verified = row["expected_gain"] or {}, row.get("verified") or {}
    return {
        **{key: row[key] for key in _KEYS},
        "place": place_text(row),
        "module": row["where"]["module"],
        "kind": row.get("kind", "gain"),
        "gain": effect_text(row),
        "range": range_text(row),
        "low": gain.get("low"),
        "high": gain.get("high"),
        "how": gain.get("how"),
        "measured": measured_text(row),
        "measured_gain": verified.get("gain"),
        "is_verified": bool(verified),
        "is_withdrawn": is_withdrawn(row),
        "withdrawn_for": verified.get("reason"),
        "evidence": [text for name, value in evidence.items() if (text := figure_text(name, value))],
        "places": [
            place.get("weight") or place.get("module") or "the model itself"
            for place in (row["evidence"].get("places") or ())[:_MOST_PLACES]
        ],
        "place_count": row["evidence"].get("count", 1),
    }
