"""How much a model from a file may make an analysis do. Each limit is far above what models need.

A graph of a few kilobytes can loop for ever, call itself an exponential number of times, or make lists that fill the
memory. The model of a caller's own code has no such limits: there a long run is the caller's decision.
"""

from __future__ import annotations

from math import inf

from torchgauge.capture.signals import Endless

OPS = 1 << 17  # each is a row of the report
TENSORS = 1 << 20  # that ops return, all together: `unbind` gives many at once
STEPS = 1 << 22  # nodes, branches and turns of loops that are interpreted; most are not ops
ELEMENTS = 1 << 23  # of lists, tuples and dicts, and sixteenths of the letters of texts


class Budget:
    """What is left of each; `Endless` where it is used up."""

    __slots__ = ("elements_left", "ops_left", "steps_left", "tensors_left")

    def __init__(self, *, is_limited: bool) -> None:
        self.ops_left: float = OPS if is_limited else inf
        self.tensors_left: float = TENSORS if is_limited else inf
        self.steps_left: float = STEPS if is_limited else inf
        self.elements_left: float = ELEMENTS if is_limited else inf

    def spend_op(self, tensors: int) -> None:
        self.ops_left -= 1
        if self.ops_left < 0:
            raise Endless(f"the graph runs more than {OPS:,} ops")
        self.tensors_left -= tensors
        self.require_tensors(0)

    def require_tensors(self, count: int) -> None:
        """To be asked before an op makes as many."""
        if count > self.tensors_left:
            raise Endless(f"the ops of the graph return more than {TENSORS:,} tensors")

    def spend_steps(self, count: int = 1) -> None:
        self.steps_left -= count
        if self.steps_left < 0:
            raise Endless(f"the graph takes more than {STEPS:,} steps and does not end")

    def spend_elements(self, count: int) -> None:
        self.elements_left -= count
        self.require_elements(0)

    def require_elements(self, count: int) -> None:
        """To be asked before a list or text of this length is made."""
        if count > self.elements_left:
            raise Endless(f"the graph makes lists and texts of more than {ELEMENTS:,} elements")
