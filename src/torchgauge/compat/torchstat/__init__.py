"""torchstat's interface: layer by layer parameters, memory, MAdd, Flops, memory traffic and share of the time.

What differs from torchstat 0.0.7, and why, is in docs/migrating/torchstat.md.
"""

from torchgauge.compat.torchstat.compute_flops import compute_flops
from torchgauge.compat.torchstat.compute_madd import compute_madd
from torchgauge.compat.torchstat.compute_memory import compute_memory
from torchgauge.compat.torchstat.model_hook import ModelHook
from torchgauge.compat.torchstat.reporter import report_format
from torchgauge.compat.torchstat.stat_tree import StatNode, StatTree
from torchgauge.compat.torchstat.statistics import ModelStat, stat

__all__ = [
    "ModelHook", "ModelStat", "StatNode", "StatTree", "compute_flops", "compute_madd", "compute_memory",
    "report_format", "stat",
]  # fmt: skip
