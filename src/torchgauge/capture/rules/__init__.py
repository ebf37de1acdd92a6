"""Shape rules of our own, with torch's kernels as the fallback."""

from torchgauge.capture.rules import layers, matmul, pointwise
from torchgauge.capture.rules.registry import RULES, Rule, shape_rule

__all__ = ["RULES", "Rule", "find_rule", "shape_rule"]

_FILES = (layers, matmul, pointwise)


def find_rule(op: str, tags: frozenset[str]) -> Rule | None:
    """The rule of an op; elementwise ops share one."""
    rule = RULES.get(op)
    if rule is None and "pointwise" in tags:
        return pointwise.pointwise_rule(op)
    return rule
