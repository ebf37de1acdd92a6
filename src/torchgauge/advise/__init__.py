"""Rules: evidence -> recommendation with an expected gain. Nothing is said without evidence in this model."""

from torchgauge.advise.evidence import Evidence, Machine
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import RULES, advise, check_names, rule

__all__ = ["RULES", "Advice", "Evidence", "Gain", "Machine", "Where", "advise", "check_names", "rule"]
