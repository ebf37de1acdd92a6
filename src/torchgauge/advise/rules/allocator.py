"""Memory that a run gives back to the system, and the next one gets again."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.op_time import FRESH_S_PER_BYTE
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule

# Another allocator, or settings of glibc's.
_ALLOCATORS = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_")
_PAGE = 4096
# Of the predicted time of page faults, what was saved: 0.25 to 1.4 for 21 of 26 models (docs/accuracy.md). Whether
# a heap can shrink depends on what the process has allocated before: 3 of 17 other models, drawn at random, saved
# nothing, so only the page faults of blocks that are never kept are sure.
_LEAST, _MOST = 0.25, 1.4
# No model saved more (51 %).
_MOST_SAVED = 0.6


@rule("freed-memory", family="memory", option="memory")
def freed_memory(evidence: Evidence) -> Iterator[Advice]:
    """glibc gives the unused end of its heap back to Linux, and every block from 32 MiB on: the next run gets each page
    anew, which Linux clears."""
    ran, times = evidence.capture.environment, evidence.times
    is_set = any(name.startswith(_ALLOCATORS) for name in ran.settings)
    if evidence.device != "cpu" or times.basis != "predicted" or is_set or "glibc" not in ran.platform:
        return
    always, perhaps = (sum(each.values()) for each in evidence.fresh_s)
    least, share = (faults / max(times.total + perhaps, 1e-12) for faults in (always, always + perhaps))
    if not share:
        return
    yield Advice(
        rule="freed-memory",
        where=Where(""),
        evidence={"page_faults": round((always + perhaps) / (_PAGE * FRESH_S_PER_BYTE)), "page_bytes": _PAGE},
        recommendation="keep freed memory: start Python with MALLOC_TRIM_THRESHOLD_=2147483647 MALLOC_MMAP_MAX_=0",
        change=None,
        expected_gain=Gain(
            "time_s", _LEAST * least, min(_MOST * share, _MOST_SAVED), "page faults of memory that glibc freed"
        ),
        risk="the process keeps as much memory as its largest run needs",
        confidence="medium",
    )
