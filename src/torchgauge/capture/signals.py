"""What stops a run on ghosts: caught inside `capture/`, never shown to a user as it is."""

from __future__ import annotations


class DataDependent(Exception):  # noqa: N818 - a signal, not an error
    """The model looks at values that only a real run can know."""

    def __init__(self, op: str, module: str = "") -> None:
        super().__init__(op)
        self.op = op
        self.module = module


class Endless(RuntimeError):  # noqa: N818 - a signal, not an error
    """A loop was given up: with other inputs it would only take as long again."""
