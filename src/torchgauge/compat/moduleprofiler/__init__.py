"""moduleprofiler's interface: parameters, sizes, operations and inference time of every module.

What differs from moduleprofiler 0.0.4, and why, is in docs/migrating/moduleprofiler.md.
"""

from torchgauge.compat.moduleprofiler.ops import get_default_io_size_map, get_default_ops_map, own_count
from torchgauge.compat.moduleprofiler.profiler import ModuleProfiler
from torchgauge.compat.moduleprofiler.utils import ops_to_flops, realtime_factor

__all__ = [
    "ModuleProfiler", "get_default_io_size_map", "get_default_ops_map", "ops_to_flops", "own_count",
    "realtime_factor",
]  # fmt: skip
