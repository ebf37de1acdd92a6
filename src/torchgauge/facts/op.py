"""Op calls and what they cost.

An op that repeats with equal inputs shares one `Signature` (shapes, cost, category); an `OpRecord` adds only what
differs from call to call: the order, the module it ran in, the memory alive, the parameters it used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchgauge.facts.tensor import TensorSpec

CATEGORIES = (
    "matmul", "convolution", "attention", "recurrent", "normalization", "activation", "pooling", "softmax",
    "elementwise", "reduction", "embedding", "indexing", "sort", "fft", "loss", "resize", "communication", "copy",
    "view", "allocation", "other",
)  # fmt: skip

COUNTED, FREE, UNCOUNTED = "counted", "free", "uncounted"


@dataclass(frozen=True, slots=True)
class Cost:
    """The work of one op call, in the units of the contract."""

    macs: int = 0
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.macs + other.macs,
            self.flops + other.flops,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )


@dataclass(frozen=True, slots=True)
class Signature:
    """One way an op was called: shared by all its equal calls. `conversion_bytes` are copies of arguments in another
    type that exist while it runs; `OpRecord.live_bytes` includes them."""

    op: str
    overload: str
    category: str
    status: str
    tags: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: Mapping[str, Any]
    cost: Cost
    activation_bytes: int
    conversion_bytes: int = field(default=0, compare=False)

    @property
    def dtype(self) -> str | None:
        """The type the arithmetic runs in: that of the first arithmetic input, else of the first tensor."""
        specs = (*self.inputs, *self.outputs)
        return next((spec.dtype for spec in specs if spec.is_arithmetic), specs[0].dtype if specs else None)


@dataclass(slots=True)  # a frozen one takes five times as long to make, and there is one for every op
class OpRecord:
    """One op call, in the order of execution. Not to be changed."""

    index: int
    signature: Signature
    module: str
    live_bytes: int
    weights: tuple[str, ...] = ()
    phase: str = "forward"
    source: str | None = None  # file:line, where the graph of the model has it
    # The op that last wrote the memory of each input; None for parameters, constants and the model's inputs, which
    # know their readers.
    producers: tuple[int | None, ...] = ()

    @property
    def op(self) -> str:
        return self.signature.op

    @property
    def category(self) -> str:
        return self.signature.category

    @property
    def status(self) -> str:
        return self.signature.status

    @property
    def cost(self) -> Cost:
        return self.signature.cost
