"""Shape rules of our own, with torch's kernels as the fallback."""

from torchgauge.capture.rules import (
    attention,
    convolution,
    copies,
    matmul,
    normalization,
    pointwise,
    pooling,
    recurrent,
    reduction,
)
from torchgauge.capture.rules.pointwise import pointwise_rule
from torchgauge.capture.rules.registry import RULES, Rule, shape_rule

__all__ = ["RULES", "Rule", "find_rule", "shape_rule"]

_FILES = (attention, convolution, copies, matmul, normalization, pointwise, pooling, recurrent, reduction)


def find_rule(op: str, tags: frozenset[str]) -> Rule | None:
    """The rule of an op; elementwise ops share one."""
    rule = RULES.get(op)
    if rule is None and "pointwise" in tags:
        return pointwise_rule(op)
    return rule
