"""What the parts leave of the undisturbed run: time in no op, an idle device, Python between the ops."""

from __future__ import annotations

from dataclasses import dataclass

from torchgauge.facts import TraceRecord, View
from torchgauge.report.ranking import share_of


@dataclass(frozen=True, slots=True)
class Residue:
    """`total_s` is the undisturbed median; `in_ops_s` is from profiled runs, which take `overhead_share` longer, and is
    not scaled: where the profiler slows small ops much, `unexplained_s` is negative. `between_ops_s` is the host's time
    in no op, in the profiled run that took `profiled_s`."""

    total_s: float
    in_ops_s: float
    unexplained_s: float
    joined_ops: int
    static_ops: int
    overhead_share: float | None
    device_s: float | None
    device_idle_s: float | None
    profiled_s: float | None
    between_ops_s: float | None

    @property
    def unexplained_share(self) -> float:
        return share_of(self.unexplained_s, self.total_s)


def find_residue(view: View) -> Residue | None:
    """None where no run was profiled."""
    figures = view.measurements
    if figures is None or not figures.get("profile") or not figures.get("latency"):
        return None
    profile, total = figures["profile"], figures["latency"]["median_s"]
    trace = view.capture.measured.trace if view.capture.measured else None
    return Residue(
        total_s=total,
        in_ops_s=total - figures["unexplained_s"],
        unexplained_s=figures["unexplained_s"],
        joined_ops=profile["joined_ops"],
        static_ops=profile["static_ops"],
        overhead_share=profile["overhead_share"],
        device_s=profile.get("device_s"),
        device_idle_s=profile.get("device_idle_s"),
        profiled_s=trace.duration_ns * 1e-9 if trace else None,
        between_ops_s=between_calls_s(trace) if trace else None,
    )


def between_calls_s(trace: TraceRecord) -> float:
    """The time of the calling thread in no call. Where there is a device, only until the last call: then the host waits
    for it."""
    if not trace.calls:
        return trace.duration_ns * 1e-9
    caller = trace.modules[0][3] if trace.modules else trace.calls[0][3]
    covered = until = 0
    for start, duration, _, thread, _ in trace.calls:
        if thread == caller and start >= until:
            covered += duration
            until = start + duration
    return ((until if trace.kernels else trace.duration_ns) - covered) * 1e-9
