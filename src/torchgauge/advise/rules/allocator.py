"""Memory that a run gives back to the system, and the next one gets again."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.op_time import FRESH_S_PER_BYTE
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.units import format_exact

# Another allocator, or settings of glibc's.
_ALLOCATORS = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_")
_PAGE = 4096
# Of the time of the page faults, what was saved: 0.25 to 1.4 for 21 of 26 models (docs/accuracy.md).
_LEAST, _MOST = 0.25, 1.4
# No model saved more (51 %).
_MOST_SAVED = 0.6


@rule("freed-memory", family="memory", option="memory")
def freed_memory(evidence: Evidence) -> Iterator[Advice]:
    """glibc gives the unused end of its heap back to Linux, and every block from 32 MiB on: the next run gets each page
    anew, which Linux clears. Whether a heap shrinks depends on what the process has allocated before, so only page
    faults that a profile counted are evidence."""
    ran, faults = evidence.capture.environment, (evidence.figures.get("counters") or {}).get("page_faults")
    is_set = any(name.startswith(_ALLOCATORS) for name in ran.settings)
    if evidence.device != "cpu" or not evidence.time_s or not faults or is_set or "glibc" not in ran.platform:
        return
    share = faults * _PAGE * FRESH_S_PER_BYTE / evidence.time_s
    yield Advice(
        rule="freed-memory",
        where=Where(""),
        evidence={"page_faults": round(faults), "page_bytes": _PAGE},
        recommendation="keep freed memory: start Python with MALLOC_TRIM_THRESHOLD_=2147483647 MALLOC_MMAP_MAX_=0",
        change=None,
        expected_gain=Gain(
            "time_s",
            min(_LEAST * share, _MOST_SAVED),
            min(_MOST * share, _MOST_SAVED),
            f"{format_exact(round(faults))} measured page faults of memory that glibc freed",
        ),
        risk="the process keeps as much memory as its largest run needs",
        confidence="medium",
    )
