"""Real runs: latency, per-module and per-op time, memory, threads, system counters.

subject ──▶ latency (nothing attached: the total)
   ├──────▶ module times, profile ──joined──▶ static ops (the parts, from runs of their own)
   ├──────▶ memory
   └──────▶ sampler, counters (beside the runs)
"""

from torchgauge.measure.latency import Budget, Timed, time_runs
from torchgauge.measure.subject import Subject, ready

__all__ = ["Budget", "Subject", "Timed", "ready", "time_runs"]
