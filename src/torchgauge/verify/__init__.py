"""Advice applied to copies of the model and measured beside it; what holds becomes a plan."""

from torchgauge.verify.registry import TRANSFORMATIONS, load_transformations, transformation
from torchgauge.verify.trial import Applied, NotApplicableError, Trial

__all__ = ["TRANSFORMATIONS", "Applied", "NotApplicableError", "Trial", "load_transformations", "transformation"]
