"""How much a report says, and how its module table is shaped."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from torchgauge.errors import UsageError
from torchgauge.report.columns import COLUMNS, DEFAULT_COLUMNS

# Wide enough for long module paths in a file; a terminal gives its own width.
PLAIN_WIDTH = 100


class Detail(IntEnum):
    """A screen, a document, or every parameter and every op."""

    BRIEF = 0
    LONG = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class Options:
    """`depth` None: as deep as fits a page; `sort` None: the order of registration; `ops`: also the ops, distributions
    and coverage; `all_advice`: all of the advice, not the first few; `tensors`: a list of stored tensors in place of
    modules. `detail` is set by the format."""

    depth: int | None = None
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    sort: str | None = None
    width: int = PLAIN_WIDTH
    ops: bool = False
    all_advice: bool = False
    tensors: bool = False
    detail: Detail = Detail.BRIEF

    def rows(self, brief: int, long: int) -> int:
        """How many rows a ranking has."""
        return long if self.detail else brief

    def __post_init__(self) -> None:
        if self.depth is not None and self.depth < 0:
            raise UsageError(
                f"a depth of {self.depth} shows nothing; give 0 for the model alone, 1 for its children, …"
            )
        for name in (*self.columns, *([self.sort] if self.sort else [])):
            if name not in COLUMNS:
                raise UsageError(f"there is no column '{name}'; choose from: {', '.join(COLUMNS)}")
