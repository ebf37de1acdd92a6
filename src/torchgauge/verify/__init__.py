"""Apply advice to copies of the model and measure them against the original; confirmed advice becomes a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.verify.bench import Bench, Side
    from torchgauge.verify.check import CodeCheck
    from torchgauge.verify.code import function_text, optimised
    from torchgauge.verify.difference import Difference, compare_outputs, output_tensors
    from torchgauge.verify.edits import apply_edit
    from torchgauge.verify.pairs import LEAST_PAIRS, ROUNDS, Paired, Switches, switches_kept, time_pairs
    from torchgauge.verify.plan import no_plan
    from torchgauge.verify.registry import (
        TRANSFORMATIONS,
        Applied,
        NotApplicableError,
        Trial,
        load_transformations,
        transformation,
    )
    from torchgauge.verify.second_process import Job, Setup
    from torchgauge.verify.verdict import Verdict, compared, confirmed, judge
    from torchgauge.verify.verification import REASONS, read_budget, unverified, verify

__all__ = [
    "LEAST_PAIRS", "REASONS", "ROUNDS", "TRANSFORMATIONS", "Applied", "Bench", "CodeCheck", "Difference", "Job",
    "NotApplicableError", "Paired", "Setup", "Side", "Switches", "Trial", "Verdict", "apply_edit", "compare_outputs",
    "compared", "confirmed", "function_text", "judge", "load_transformations", "no_plan", "optimised", "output_tensors",
    "read_budget", "switches_kept", "time_pairs", "transformation", "unverified", "verify",
]  # fmt: skip

_HOMES = {
    "check": ("CodeCheck",),
    "code": ("function_text", "optimised"),
    "difference": ("Difference", "compare_outputs", "output_tensors"),
    "edits": ("apply_edit",),
    "verdict": ("Verdict", "compared", "confirmed", "judge"),
    "pairs": ("LEAST_PAIRS", "Paired", "ROUNDS", "Switches", "switches_kept", "time_pairs"),
    "plan": ("no_plan",),
    "registry": ("Applied", "NotApplicableError", "TRANSFORMATIONS", "Trial", "load_transformations", "transformation"),
    "second_process": ("Job", "Setup"),
    "bench": ("Bench", "Side"),
    "verification": ("REASONS", "read_budget", "unverified", "verify"),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
