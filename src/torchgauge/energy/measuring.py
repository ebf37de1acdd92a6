"""The energy of a model that is ready to run: meter, whole run, temperatures, parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Literal

import torch

from torchgauge.energy import thermal
from torchgauge.energy.attribution import Attributed, Replayed, Whole, attribute, heavy_op_groups, op_groups_of
from torchgauge.energy.energy_window import Effort, EnergyWindow, RunEnergy, measure_energy, measure_energy_window
from torchgauge.energy.meter import Meter, choose, counting, describe_meter, meters_of
from torchgauge.energy.op_replay import Play, collect, prepare, waiting_play
from torchgauge.facts import EnergyFacts, OpRecord
from torchgauge.facts.figures import MEASURED
from torchgauge.facts.measurements import UNAVAILABLE
from torchgauge.measure.absence import Absent
from torchgauge.measure.latency import middle_half
from torchgauge.measure.measuring import failure_text, items_per_run
from torchgauge.measure.module_times import module_paths
from torchgauge.measure.nvml import Device
from torchgauge.measure.profile import OpTime, join, op_times, profile_runs
from torchgauge.measure.readings import nvml_device
from torchgauge.measure.sampler import Samples, sampling
from torchgauge.measure.subject import Subject

if TYPE_CHECKING:
    from torchgauge.facts.document_types import EnergyFigures
    from torchgauge.facts.document_types import Meter as MeterRow


BOUNDARY = "device, not host"


def blank(origin: Literal["measured", "unavailable"]) -> EnergyFigures:
    """The figures of one run, none known; joules are those of one inference (of one step in training)."""
    return {
        "origin": origin, "reason": None, "boundary": BOUNDARY, "meters": [], "joules": None, "ci95_j": None,
        "net_joules": None, "watts_mean": None, "watts_peak": None, "idle_watts": None, "flops_per_joule": None,
        "joules_per_sample": None, "joules_per_token": None, "estimated_joules": None, "estimated_watts_mean": None,
        "estimated_flops_per_joule": None, "trials": None, "iterations": None, "window_s": None,
        "power_limit_watts": None, "notes": [], "thermal": None, "attribution": None, "carbon": None,
    }  # fmt: skip


def unavailable(reason: str, meters: Iterable[MeterRow] = ()) -> EnergyFigures:
    """No reading: the reason, and that of each meter. An estimate may still be added."""
    return {**blank(UNAVAILABLE), "reason": reason, "meters": [row.copy() for row in meters]}


_PROFILED_RUNS = 5
# The longest ops are run alone, until they make up this share of the ops' time.
_HEAVY_SHARE = 0.95
_REPLAY_UPDATES = 8
_MIN_REPLAY_S = 0.5
# Until the device's power control has settled.
_SETTLE_S = 0.3


@dataclass(frozen=True, slots=True)
class EnergyPlan:
    """`parts_s` is the time for running ops alone, 0 for the whole only."""

    effort: Effort = field(default_factory=Effort)
    parts_s: float = 30.0


def measure_run(
    subject: Subject, ops: Sequence[OpRecord], plan: EnergyPlan | None = None, *, run: Callable[[], None] | None = None
) -> EnergyFacts:
    """Without a meter, or if the runs are too short for it, the figures give the reason; nothing is estimated here.

    `run` is what is measured, where that is not the subject's own forward: a training step."""
    place = _place(subject.device)
    with meters_of(place) as found:
        meter, meter_rows = choose(found, place), [describe_meter(meter) for meter in found]
        if isinstance(meter, Absent):
            return EnergyFacts(unavailable(f"no energy meter: {meter.reason}", meter_rows))
        with counting(meter) as counter:
            return _MeteredRun(subject, ops, run or subject.run, counter, plan or EnergyPlan()).facts(meter_rows)


@dataclass(frozen=True, slots=True)
class _MeteredRun:
    """A subject under a meter; `run` is what is measured, the `ops` those of the static analysis."""

    subject: Subject
    ops: Sequence[OpRecord]
    run: Callable[[], None]
    meter: Meter
    plan: EnergyPlan

    def facts(self, meter_rows: list[MeterRow]) -> EnergyFacts:
        kind = self.subject.device.type
        with ExitStack() as stack:
            device: Device | Absent = Absent(f"the run is on the {kind}")
            if kind == "cuda":
                device = stack.enter_context(nvml_device(int(_place(self.subject.device).partition(":")[2])))

            def thermometer() -> float | None:
                found = device if isinstance(device, Absent) else device.temperature_c()
                return None if isinstance(found, Absent) else found

            with sampling(quantities=list(thermal.quantities(device, kind))) as samples:
                energy = measure_energy(self.meter, self.run, self.plan.effort, thermometer=thermometer)
            if isinstance(energy, Absent):
                return EnergyFacts(unavailable(energy.reason, meter_rows))
            figures = self._figures(energy, samples, device)
            # The meter that was used, then the others.
            used = (self.meter.name, self.meter.covers)
            marked: list[MeterRow] = [{**row, "used": (row["name"], row.get("covers")) == used} for row in meter_rows]
            figures["meters"] = sorted(marked, key=lambda row: not row["used"])
            parts = self._parts(energy) if self.plan.parts_s else Absent("not asked for")
        if isinstance(parts, Absent):
            figures["attribution"] = {"method": None, "reason": parts.reason}
            return EnergyFacts(figures)
        figures["attribution"] = parts.figures
        return EnergyFacts(
            figures,
            {path: {"energy_j": joules} for path, joules in parts.modules.items()},
            {index: {"energy_j": joules} for index, joules in parts.ops.items()},
        )

    def _figures(self, energy: RunEnergy, samples: Samples, device: Device | Absent) -> EnergyFigures:
        flops = sum(op.cost.flops for op in self.ops)
        found = energy.figures(flops=flops, samples=items_per_run(self.subject), tokens=tokens_per_run(self.subject))
        heat = thermal.thermal_figures(samples.figures(), energy.trials)
        watts = heat["series"].get(thermal.POWER, {"values": []})["values"]
        found["watts_peak"] = max([*(trial.span.watts for trial in energy.trials), *watts])
        limit = device if isinstance(device, Absent) else device.power_limit_w()
        notes = []
        if not energy.is_steady:
            notes.append("energy and temperature were still changing when the warm-up ended")
        if heat["is_throttled"]:
            notes.append(f"the device was throttled: {', '.join(heat['throttled'] or ())}")
        return {
            **blank(MEASURED),
            **found,
            "thermal": heat,
            "notes": notes,
            "power_limit_watts": None if isinstance(limit, Absent) else limit,
        }

    def _parts(self, energy: RunEnergy) -> Attributed | Absent:
        subject, on_device = self.subject, self.subject.device.type == "cuda"
        try:
            # While the device is as warm as in the trials: the time of each op, and how long a run keeps it busy.
            profiled = profile_runs(self.run, module_paths(subject.model), _PROFILED_RUNS, device=subject.device)
            runs = middle_half(profiled, lambda found: found.end_ns - found.start_ns)
            times = op_times([join(self.ops, found) for found in runs], on_device=on_device)
            if on_device:
                busy_s = median(sum(kernel.duration_ns for kernel in found.kernels) * 1e-9 for found in runs)
            else:
                busy_s = sum(time.time_s for time in times.values())
            if not times:
                return Absent("no static op was found in the profiled runs")
            waiting = self._play(waiting_play(subject.device))
            if isinstance(waiting, Absent):
                return waiting
            replayed, refused = self._replay(times)
        # Running a model under a recorder takes memory; the whole is known, and is kept.
        except (RuntimeError, MemoryError) as error:
            return Absent(failure_text(error))
        whole = Whole(energy.joules, energy.seconds, busy_s, waiting.watts)
        return attribute(self.ops, times, whole, replayed, refused)

    def _replay(self, times: Mapping[int, OpTime]) -> tuple[list[Replayed], dict[str, str]]:
        # Each of its two spans waits for an update at both ends.
        each_s = _SETTLE_S + self._play_s + 4 * self.meter.update_period_s
        most = int(self.plan.parts_s / each_s)
        heavy = heavy_op_groups(op_groups_of(self.ops, times), share=_HEAVY_SHARE, most=most)
        calls = collect(self.subject, self.run, [kind.key for kind in heavy])
        replayed: list[Replayed] = []
        refused: dict[str, str] = {}
        for kind in heavy:
            if kind.key not in calls:
                refused[kind.key[0]] = "was not seen in a real run with these shapes"
                continue
            # Popped, so that the memory of one kind is free for the next.
            play = prepare(calls.pop(kind.key), kind.seconds_each, self.subject.device)
            span = play if isinstance(play, Absent) else self._play(play)
            if isinstance(span, Absent):
                refused[kind.key[0]] = span.reason
            else:
                assert isinstance(play, Play)
                replayed.append(Replayed(kind, span, play.is_graph))
        return replayed, refused

    @property
    def _play_s(self) -> float:
        return max(_REPLAY_UPDATES * self.meter.update_period_s, _MIN_REPLAY_S)

    def _play(self, play: Play) -> EnergyWindow | Absent:
        """The span of a play, its iterations being calls."""
        span = measure_energy_window(self.meter, play.run, _SETTLE_S)
        if not isinstance(span, Absent):
            span = measure_energy_window(self.meter, play.run, self._play_s)
        if isinstance(span, Absent):
            return span
        return EnergyWindow(span.joules, span.seconds, span.iterations * play.calls)


def tokens_per_run(subject: Subject) -> int | None:
    """The number of token ids: integers in a batch of sequences. None if the inputs have none."""
    for value in (*subject.args, *subject.kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dim() == 2 and value.dtype in (torch.int64, torch.int32):
            return value.numel()
    return None


def _place(device: torch.device) -> str:
    """The device as meters name it: torch resolves CUDA_VISIBLE_DEVICES."""
    if device.type == "cuda":
        return f"cuda:{device.index if device.index is not None else torch.cuda.current_device()}"
    return device.type
