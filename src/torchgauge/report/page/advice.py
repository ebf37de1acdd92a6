"""Advice with its evidence and verification, and the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.facts import View
from torchgauge.report.content.advice import (
    WITHDRAWN,
    advice_of,
    effect_text,
    error_text,
    evidence_texts,
    gained_text,
    is_withdrawn,
    measured_text,
    options_of,
    place_text,
    plan_of,
)
from torchgauge.report.options import Options
from torchgauge.report.page.payload import part

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Advice

_MAX_PLACES = 40


@part("advice")
def advice(view: View, options: Options) -> dict[str, object] | None:
    """Likely bugs, then the largest expected gain; what a measurement refuted is withdrawn."""
    found, plan = plan_of(view), None
    if not view.advice and not view.options and not found:
        return None
    if found is not None and found["rules"]:  # some combination held
        plan = {
            "rules": list(found["rules"]),
            "gain": gained_text(found),
            "output": error_text(found["output_error"]),
            "code": found["code"],
        }
    rows, choices = ([_row(row) for row in some] for some in (advice_of(view), options_of(view)))
    return {"rows": rows, "options": choices, "plan": plan, "withdrawn_title": WITHDRAWN}


def _row(row: Advice) -> dict[str, object]:
    gain, verified = row["expected_gain"], row.get("verified")
    return {
        "rule": row["rule"],
        "recommendation": row["recommendation"],
        "code": row["code"],
        "risk": row["risk"],
        "confidence": row["confidence"],
        "place": place_text(row),
        "module": row["where"]["module"],
        "kind": row.get("kind", "gain"),
        "gain": effect_text(row),
        "low": gain and gain["low"],
        "high": gain and gain["high"],
        "how": gain and f"{gain.get('basis', 'predicted')}: {gain.get('how')}",
        "measured": measured_text(row),
        "measured_gain": verified and verified["gain"],
        "is_verified": verified is not None,
        "is_withdrawn": is_withdrawn(row),
        "withdrawn_for": verified and verified["reason"],
        "evidence": evidence_texts(row),
        "places": [
            place.get("weight") or place.get("module") or "the model itself"
            for place in (row["evidence"].get("places") or ())[:_MAX_PLACES]
        ],
        "place_count": row["evidence"].get("count", 1),
    }
