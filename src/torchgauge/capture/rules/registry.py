"""Shape rules for ops whose meta kernel is slow or missing. A rule returns None where it would rather not say.

A rule never reports an error: what looks wrong is left to torch's own kernel, so that the user sees torch's message.
Results are `Spec`s (or tuples of them), the same that the real kernel's output would have, strides included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchgauge.capture.fake_tensor import Specs

Arguments = dict[str, Any]
Rule = Callable[[Arguments, Specs], Any]

RULES: dict[str, Rule] = {}


def shape_rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for op in ops:
            if op in RULES:
                raise ValueError(f"'{op}' has a shape rule already")
            RULES[op] = rule
        return rule

    return register
