"""Einsum: operands are contracted from left to right, as torch does without a path of its own.

Each step costs one MAC per combination of all the labels it touches; a label that only one of the two has and nobody
needs afterwards is summed before the product, which is not a MAC but one flop per element.
"""

from __future__ import annotations

from math import prod

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.cost.work import products
from torchgauge.facts import TensorSpec

Sizes = dict[str, int]


@formula("aten::einsum", category="matmul")
def einsum(call: Call) -> Work:
    # The labels of each operand with their sizes, and those of the output; "…" becomes upper Greek letters.
    tensors = call["tensors"]
    inputs, arrow, output = call["equation"].replace(" ", "").partition("->")
    names = inputs.split(",")
    dots = [_ellipsis(name, spec) for name, spec in zip(names, tensors, strict=True)]
    longest = max(dots, key=len)
    terms = [
        dict(zip(name.replace("...", dotted), spec.shape, strict=True))
        for name, dotted, spec in zip(names, dots, tensors, strict=True)
    ]
    if not arrow:
        letters = inputs.replace(",", "").replace(".", "")
        output = "..." + "".join(sorted(label for label in set(letters) if letters.count(label) == 1))
    output = output.replace("...", longest)
    macs = extra = 0
    left = terms[0]
    for position, right in enumerate(terms[1:], start=1):
        needed = set(output).union(*terms[position + 1 :])
        left, left_sum = _sum_unneeded(left, needed | set(right))
        right, right_sum = _sum_unneeded(right, needed | set(left))
        # A size of one broadcasts.
        joined = {label: max(left.get(label, 1), right.get(label, 1)) for label in {**left, **right}}
        macs += prod(joined.values())
        extra += left_sum + right_sum
        left = {label: size for label, size in joined.items() if label in needed}
    _, last_sum = _sum_unneeded(left, set(output))
    return products(call, macs, extra + last_sum)


def _ellipsis(name: str, spec: TensorSpec) -> str:
    """One letter per dimension the dots stand for, aligned at the right."""
    if "..." not in name:
        return ""
    hidden = len(spec.shape) - len(name.replace("...", ""))
    return "".join(chr(0x391 + hidden - 1 - i) for i in range(hidden))


def _sum_unneeded(term: Sizes, needed: set[str]) -> tuple[Sizes, int]:
    kept = {label: size for label, size in term.items() if label in needed}
    return kept, 0 if len(kept) == len(term) else prod(term.values())
