"""Real runs: latency, per-module and per-op time, memory, threads, system counters.

subject ──▶ latency (nothing attached: the total)
   ├──────▶ module times, profile ──joined──▶ static ops (the parts, from separate runs)
   ├──────▶ memory
   └──────▶ sampler, counters (during separate runs)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.measure.absence import Absent, Instrument
    from torchgauge.measure.calibrate import DTYPES, DevicePeaks, ProbeDiedError, doubts
    from torchgauge.measure.counters import GENERAL, Counted, counting, list_counters, memory_events, tally
    from torchgauge.measure.latency import (
        Budget,
        Timed,
        median_interval,
        middle_half,
        nearest,
        percentile,
        relative_half_width,
        time_runs,
    )
    from torchgauge.measure.measuring import HostWatch, MeasurementPlan, measure, module_paths
    from torchgauge.measure.module_times import ModuleWatch, inclusive_sums, time_modules
    from torchgauge.measure.nvml import Device, opened
    from torchgauge.measure.parts import allocation_peak, device_module_times, fragmentation, trace_of
    from torchgauge.measure.perf_events import (
        RAW,
        Count,
        Event,
        FloatEvent,
        Processor,
        decode,
        float_events,
        parse_processor,
        refusal,
        uncounted_work,
    )
    from torchgauge.measure.profile import (
        RUN,
        DeviceKernel,
        HostEvent,
        OpTime,
        Profiled,
        align,
        join,
        profile_runs,
        split_runs,
    )
    from torchgauge.measure.rates import COPY, buffer_bytes, last_cache_bytes, matmul, outcome
    from torchgauge.measure.readings import (
        Quantity,
        Value,
        cuda_quantities,
        nvml_device,
        process_quantities,
        processor_quantities,
    )
    from torchgauge.measure.sampler import (
        MOST_NUMBERS,
        MOST_POINTS,
        Sampler,
        Samples,
        Series,
        list_quantities,
        sampling,
    )
    from torchgauge.measure.settings import (
        Settings,
        applied,
        read_settings,
        serial_share,
        serial_shares,
        thread_count,
        thread_counts,
    )
    from torchgauge.measure.subject import Subject, ready, require_device
    from torchgauge.measure.sweep import Sweep, batch_size, parse_sweeps, rebatched

__all__ = [
    "COPY", "DTYPES", "GENERAL", "MOST_NUMBERS", "MOST_POINTS", "RAW", "RUN", "Absent", "Budget", "Count", "Counted",
    "Device", "DeviceKernel", "DevicePeaks", "Event", "FloatEvent", "HostEvent", "HostWatch", "Instrument",
    "MeasurementPlan", "ModuleWatch", "OpTime", "ProbeDiedError", "Processor", "Profiled", "Quantity", "Sampler",
    "Samples", "Series", "Settings", "Subject", "Sweep", "Timed", "Value", "align", "allocation_peak", "applied",
    "batch_size", "buffer_bytes", "counting", "cuda_quantities", "decode", "device_module_times", "doubts",
    "float_events", "fragmentation", "inclusive_sums", "join", "last_cache_bytes", "list_counters", "list_quantities",
    "matmul", "measure", "median_interval", "memory_events", "middle_half", "module_paths", "nearest", "nvml_device",
    "opened", "outcome", "parse_processor", "parse_sweeps", "percentile", "process_quantities", "processor_quantities",
    "profile_runs", "read_settings", "ready", "rebatched", "refusal", "relative_half_width", "require_device",
    "sampling", "serial_share", "serial_shares", "split_runs", "tally", "thread_count", "thread_counts", "time_modules",
    "time_runs", "trace_of", "uncounted_work",
]  # fmt: skip

__getattr__ = lazy_names(__name__)
