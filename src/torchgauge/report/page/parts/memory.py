"""Memory over the run, and what the peak is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from torchgauge.facts import OpRecord, View
from torchgauge.facts.peak_memory import memory_at_peak, memory_over_run
from torchgauge.report.columns import format_shapes
from torchgauge.report.content.memory import Categories, at_peak, find_memory_peak, moments
from torchgauge.report.measurements import measured_member
from torchgauge.report.options import Options
from torchgauge.report.page.parts.live_at_peak import Alive, PeakContents, live_at_peak
from torchgauge.report.page.payload import part
from torchgauge.report.peak import find_peak

_LISTED = 20
_MEASURED = (
    "rss_before_bytes", "rss_peak_bytes", "rss_growth_bytes", "rss_method", "cuda_before_bytes",
    "cuda_allocated_peak_bytes", "cuda_reserved_peak_bytes", "optimizer_state_bytes", "pattern",
)  # fmt: skip


@part("memory")
def memory(view: View, options: Options) -> dict[str, Any] | None:
    """The static course is the ops' `live_bytes`; `measured` is what a real run allocated."""
    if not view.capture.ops:
        return None
    peak = find_peak(view)
    return {
        "param_bytes": view.totals.param_bytes,
        "buffer_bytes": view.totals.buffer_bytes,
        "input_bytes": view.capture.input_bytes,
        "total": _total(view),
        **_kept(view),
        "peak_bytes": peak.activation_bytes,
        "peak_op": peak.op and _place(peak.op),
        "phases": _phases(view.capture.ops),
        "at_peak": _contents(live_at_peak(view)),
        "measured": _measured(view),
    }


def _total(view: View) -> dict[str, Any] | None:
    use = memory_at_peak(view.capture)
    if use is None:
        return None
    return {
        "bytes": use.total,
        "op": use.op and _place(use.op),
        "parameters": use.parameters,
        "buffers": use.buffers,
        "activations": use.activations,
        "gradients": use.gradients,
        "optimizer state": use.optimizer_state,
    }


def _kept(view: View) -> dict[str, Any]:
    """Of a training step, by op: what of `live_bytes` are gradients and optimizer state."""
    if view.capture.run.step is None:
        return {}
    uses = [use for use in memory_over_run(view.capture) if use.op]
    live = [use.op.live_bytes if use.op else 0 for use in uses]
    return {
        "gradients": [use.gradients for use in uses],
        "optimizer_state": [alive - use.activations - use.gradients for alive, use in zip(live, uses, strict=True)],
    }


def _place(op: OpRecord) -> dict[str, Any]:
    shapes = format_shapes([list(spec.shape) for spec in op.signature.outputs])
    return {"index": op.index, "op": op.op, "module": op.module, "phase": op.phase, "shapes": shapes}


def _phases(ops: Iterable[OpRecord]) -> list[dict[str, Any]]:
    """Where each phase begins; nothing for a single one."""
    starts: dict[str, int] = {}
    for op in ops:
        starts.setdefault(op.phase, op.index)
    return [{"name": name, "op": index} for name, index in starts.items()] if len(starts) > 1 else []


def _contents(found: PeakContents | None) -> dict[str, Any] | None:
    if found is None:
        return None
    rest = found.alive[_LISTED:]
    modules, kinds = Counter[str](), Counter[str]()
    for entry in found.alive:
        modules[entry.op.module] += entry.nbytes
        kinds[entry.kind] += entry.nbytes
    return {
        "tensors": [_alive(entry) for entry in found.alive[:_LISTED]],
        "more": {"count": len(rest), "bytes": sum(entry.nbytes for entry in rest)},
        "modules": [{"path": path, "bytes": nbytes} for path, nbytes in modules.most_common(_LISTED)],
        "module_count": len(modules),
        "kinds": [{"name": kind, "bytes": nbytes} for kind, nbytes in kinds.most_common()],
        "inputs_bytes": found.inputs_bytes,
        "other_bytes": found.other_bytes,
    }


def _alive(entry: Alive) -> dict[str, Any]:
    reader = entry.reader and {"index": entry.reader.index, "op": entry.reader.op}
    return _place(entry.op) | {"bytes": entry.nbytes, "kind": entry.kind, "reader": reader}


def _measured(view: View) -> dict[str, Any] | None:
    figures = measured_member(view, "memory")
    if not figures:
        return None
    run, peak, held = moments(view), find_memory_peak(view), at_peak(view)
    return {
        "ops": [moment.op for moment in run],
        "activations": [moment.activations_bytes + moment.gradients_bytes for moment in run],
        "workspace": [moment.workspace_bytes for moment in run],
        "peak_bytes": peak and peak.measured_bytes,
        "predicted_bytes": peak and peak.predicted_bytes,
        "difference_share": peak and peak.difference_share,
        "held": held and _held(held),
        "figures": {key: figures[key] for key in _MEASURED if figures.get(key) is not None},
    }


def _held(held: Categories) -> dict[str, Any]:
    return {
        "op": _place(held.op),
        "parameters": held.parameters_bytes,
        "buffers": held.buffers_bytes,
        "inputs": held.inputs_bytes,
        "activations": held.activations_bytes,
        "gradients": held.gradients_bytes,
        "workspace": held.workspace_bytes,
    }
