"""Apply advice to copies of the model and measure them against the original; confirmed advice becomes a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.verify.bench import *
    from torchgauge.verify.check import *
    from torchgauge.verify.claims import *
    from torchgauge.verify.code import *
    from torchgauge.verify.difference import *
    from torchgauge.verify.edits import *
    from torchgauge.verify.pairs import *
    from torchgauge.verify.plan import *
    from torchgauge.verify.registry import *
    from torchgauge.verify.second_process import *
    from torchgauge.verify.verdict import *
    from torchgauge.verify.verification import *

_HOMES = {
    "check": ("CodeCheck",),
    "claims": ("Claims",),
    "code": ("function_text", "optimised"),
    "edits": ("apply_edit",),
    "difference": ("Difference", "compare_outputs", "output_tensors"),
    "verdict": ("Verdict", "compared", "confirmed", "judge"),
    "pairs": ("LEAST_PAIRS", "Paired", "ROUNDS", "Switches", "switches_kept", "time_pairs"),
    "plan": ("no_plan",),
    "registry": ("Applied", "NotApplicableError", "TRANSFORMATIONS", "Trial", "load_transformations", "transformation"),
    "second_process": ("Job", "Setup"),
    "bench": ("Bench", "Side"),
    "verification": ("REASONS", "read_budget", "unverified", "verify"),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
