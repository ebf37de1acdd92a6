"""Real runs: latency, per-module and per-op time, memory, threads, system counters.

subject ──▶ latency (nothing attached: the total)
   ├──────▶ module times, profile ──joined──▶ static ops (the parts, from separate runs)
   ├──────▶ memory
   └──────▶ sampler, counters (during separate runs)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.measure.absence import *
    from torchgauge.measure.calibrate import *
    from torchgauge.measure.counters import *
    from torchgauge.measure.latency import *
    from torchgauge.measure.measuring import *
    from torchgauge.measure.module_times import *
    from torchgauge.measure.nvml import *
    from torchgauge.measure.parts import *
    from torchgauge.measure.perf_events import *
    from torchgauge.measure.profile import *
    from torchgauge.measure.rates import *
    from torchgauge.measure.readings import *
    from torchgauge.measure.sampler import *
    from torchgauge.measure.settings import *
    from torchgauge.measure.subject import *
    from torchgauge.measure.sweep import *

_HOMES = {
    "absence": ("Absent", "Instrument"),
    "calibrate": (
        "DTYPES", "DevicePeaks", "ProbeDiedError", "calibrate_device", "doubts", "measure_rates", "other_work",
    ),
    "counters": ("Counted", "GENERAL", "counting", "list_counters", "memory_events", "tally"),
    "latency": (
        "Budget", "Timed", "median_interval", "middle_half", "nearest", "percentile", "relative_half_width",
        "time_runs",
    ),
    "measuring": ("HostWatch", "MeasurementPlan", "measure", "module_paths"),
    "module_times": ("ModuleWatch", "inclusive_sums", "time_modules"),
    "nvml": ("Device", "opened"),
    "parts": ("allocation_peak", "device_module_times", "fragmentation", "trace_of"),
    "perf_events": (
        "Count", "Event", "FloatEvent", "Processor", "RAW", "decode", "float_events", "parse_processor", "refusal",
        "uncounted_work",
    ),
    "profile": (
        "DeviceKernel", "HostEvent", "OpTime", "Profiled", "RUN", "align", "join", "profile_runs", "split_runs",
        "unjoined_calls",
    ),
    "rates": ("COPY", "PACE", "buffer_bytes", "last_cache_bytes", "matmul", "outcome"),
    "readings": (
        "Quantity", "Value", "cuda_quantities", "nvml_device", "process_quantities", "processor_quantities",
    ),
    "sampler": ("MAX_NUMBERS", "MAX_POINTS", "Sampler", "Samples", "Series", "list_quantities", "sampling"),
    "settings": (
        "Settings", "applied", "read_settings", "serial_share", "serial_shares", "thread_count", "thread_counts",
    ),
    "subject": ("Subject", "ready", "require_device"),
    "sweep": ("Sweep", "batch_size", "parse_sweeps", "rebatched"),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
