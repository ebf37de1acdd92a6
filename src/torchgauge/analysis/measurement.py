"""Measured runs and their energy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchgauge.analysis.options import chosen_device
from torchgauge.errors import TorchgaugeError, UsageError
from torchgauge.facts import Capture, EnergyFacts, Measured
from torchgauge.progress import announce, stage, steps
from torchgauge.units import format_things

if TYPE_CHECKING:
    import torch

    from torchgauge.capture import Request, Trace
    from torchgauge.energy.carbon import Footprint
    from torchgauge.facts.document_types import SweepPoint
    from torchgauge.measure.compiled import CompiledRuns
    from torchgauge.measure.settings import Settings
    from torchgauge.measure.subject import Subject
    from torchgauge.measure.target import MeasureOptions
    from torchgauge.source import GivenInputs, Source


def measurements_asked(
    target: object,
    profile: bool,
    sweep: str | Sequence[str] | Mapping[str, Sequence[Any]] | None,
    settings: Settings,
    *,
    is_compiled: bool = False,
) -> MeasureOptions:
    from torch.nn import Module

    from torchgauge.capture import unwrap
    from torchgauge.measure.sweep import DTYPE, parse_sweeps
    from torchgauge.measure.target import MeasureOptions

    is_wrapped = isinstance(target, Module) and unwrap(target) is not target and not is_compiled
    notes = (f"measured without its {type(target).__name__} wrapper",) if is_wrapped else ()
    sweeps = parse_sweeps(sweep)
    if is_compiled and any(one.key == DTYPE for one in sweeps):
        raise UsageError("a compiled model is not swept over dtype: analyse it once with each --dtype")
    return MeasureOptions(profile, sweeps, settings, (*notes, *settings.notes))


def measure_runs(
    source: Source,
    asked: MeasureOptions,
    progress: bool | None,
    traced: Trace | None,
    request: Request,
    given: GivenInputs,
    compiled: CompiledRuns | None = None,
) -> tuple[Measured, EnergyFacts | None]:
    """The measurements of the runs, and the metered energy, which `complete_energy` completes with estimates."""
    from torchgauge.energy.target import EnergyWatch, with_efficient_points
    from torchgauge.measure.settings import OPS
    from torchgauge.measure.target import measure_target, refused

    watch = EnergyWatch(asked.settings.budget_s)
    if traced is None:
        measured = refused(nothing_to_run(source), asked)
    else:
        if asked.settings.level(profile=asked.profile) == OPS:
            asked = replace(asked, notes=(*asked.notes, *ensure_roof(request.device, progress)))
        stages = (("energy", watch.measure),) if asked.profile else ()
        asked = replace(asked, more=stages, at_point=watch.at_point)
        if compiled is not None:
            asked = replace(asked, more=(("kernels", compiled.measure), *stages), prepare=compiled.compiled)

            def at_point(subject: Subject, run: Callable[[], None], row: SweepPoint) -> None:
                compiled.at_point(subject, run, row)
                watch.at_point(subject, run, row)

            asked = replace(asked, at_point=at_point)
        with steps("measuring", shown=progress) as report_progress:
            measured = measure_target(source, traced, request, given, asked, report_progress)
    return with_efficient_points(measured), watch.facts


def ensure_roof(device: torch.device, progress: bool | None) -> list[str]:
    """Measure what the device reaches where its peaks are neither published nor measured yet; op times are compared
    with it. A busy processor is not measured: later analyses would predict their times from its rates. Returns notes
    for the report: that it was measured, or why not."""
    import torch

    from torchgauge.cache import cache_folder
    from torchgauge.hardware import cpu_name, has_cuda
    from torchgauge.measure.calibrate import calibrate_device, other_work
    from torchgauge.measure.target import device_peaks

    is_there = device.type == "cpu" or (device.type == "cuda" and has_cuda(device.index))
    if not is_there or device_peaks(device) is not None:
        return []
    busy = other_work() if device.type == "cpu" else None
    if busy is not None:
        return [f"no roofline: the machine is {busy}; when it is idle, run torchgauge system --calibrate"]
    name = cpu_name() if device.type == "cpu" else torch.cuda.get_device_name(device)
    announce(f"measuring the roof of {name} once, for some seconds (kept in {cache_folder()})", shown=progress)
    threads = f", {format_things(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else ""
    try:
        with stage("calibrating", shown=progress) as report_progress:
            found = calibrate_device(str(device), name, f"with torch {torch.__version__}{threads}", report_progress)
        return [f"the roof of {name} was measured in this run; later analyses predict times from it", *found.notes]
    except TorchgaugeError as error:
        return [f"no roofline: {error}"]


def nothing_to_run(source: Source) -> str:
    """Why nothing could be run."""
    if source.model is not None and not source.is_inferred:
        return "its code reads tensor values and failed in a real run; see the warnings"
    reason = "there is no code to run" if source.model is None else "the inferred code fails"
    return f"{reason}: give it with code= (--as TARGET)"


def requested_footprint(
    country: str | None, intensity: float | None, pue: float | None, rate_per_s: float | None, *, profile: bool
) -> Footprint | None:
    if not profile and country is None and intensity is None and pue is None and rate_per_s is None:
        return None
    from torchgauge.energy.carbon import footprint

    return footprint(country, intensity, pue, rate_per_s, has_default=profile)


def complete_energy(capture: Capture, metered: EnergyFacts | None, emitted: Footprint | None) -> EnergyFacts:
    from torchgauge.energy.target import energy_facts

    return energy_facts(capture, chosen_device(capture.run.device), metered, emitted)
