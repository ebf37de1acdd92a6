"""What stops a run on fake tensors: caught inside `capture/`, never shown to a user as it is."""

from __future__ import annotations

WORKS_ON_SPARSE = "works on sparse tensors"


class DataDependent(Exception):  # noqa: N818 - a signal, not an error
    """The model needs what only a real run can know: values, mostly; `why` is what the report says of the model."""

    def __init__(self, op: str, module: str = "", why: str = "looks at the values of its data") -> None:
        super().__init__(op)
        self.op = op
        self.module = module
        self.why = why


class Endless(RuntimeError):  # noqa: N818 - a signal, not an error
    """A loop was given up: with other inputs it would only take as long again."""
