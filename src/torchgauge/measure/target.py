"""Measures a target as requested: a real model, on its device, with its settings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace

import torch

from torchgauge.capture import Request, Trace, trace
from torchgauge.errors import UsageError
from torchgauge.facts import Measured, blank_measurements
from torchgauge.hardware import Peaks, cpu_name, has_cuda, peaks_of
from torchgauge.measure.measuring import INTERRUPTED, MeasurementPlan, Stage, clear_traceback, failure_text, measure
from torchgauge.measure.settings import LATENCY, OPS, Settings, applied
from torchgauge.measure.subject import Subject, ready, require_device
from torchgauge.measure.sweep import BATCH, SEQ, AtPoint, Inputs, Sweep, batch_size, measure_sweep, rebatched
from torchgauge.progress import Progress
from torchgauge.source import Candidate, GivenInputs, Source, load_real_model
from torchgauge.source.exported import ExportedModel
from torchgauge.source.user_inputs import holds_tensor

Prepare = Callable[[Subject], AbstractContextManager[Subject]]


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """`profile`: ops, system, counters and threads too; `notes` are remarks on the target. `more` are further stages,
    `at_point` adds to the row of a sweep, `prepare` changes the subject (compiles it)."""

    profile: bool = False
    sweeps: tuple[Sweep, ...] = ()
    settings: Settings = field(default_factory=Settings)
    notes: tuple[str, ...] = ()
    more: tuple[tuple[str, Stage], ...] = ()
    at_point: AtPoint | None = None
    prepare: Prepare | None = None


def measure_target(
    source: Source,
    traced: Trace,
    request: Request,
    given: GivenInputs,
    asked: MeasureOptions,
    progress: Progress | None = None,
) -> Measured:
    """Measure the model that was `traced`, with the same inputs. `failure` says what failed; the rest is kept."""
    fixed = given.has_shapes or holds_tensor(given.kwargs or {}) or isinstance(source.model, ExportedModel)

    def inputs(key: str, value: int) -> Candidate:
        """Inferred inputs are inferred again; given inputs, or those of an export, are repeated."""
        if fixed:
            return rebatched(traced.candidate, value)
        changed = replace(given, batch=value) if key == "batch" else replace(given, seq=value)
        return trace(source.runnable, changed.candidates(source.runnable), request).candidate

    # Usage errors are reported before anything runs.
    keys = {sweep.key for sweep in asked.sweeps}
    if fixed and SEQ in keys:
        raise UsageError("a sweep over seq changes inferred inputs: leave out those that you give, or give each length")
    if fixed and BATCH in keys:
        batch_size(traced.candidate)
    measured = Measured({**blank_measurements(), "notes": list(asked.notes)})
    settings = asked.settings.figures(profile=asked.profile)
    try:
        require_device(request.device)
        with ExitStack() as stack:
            stack.enter_context(applied(asked.settings, request.device))
            real = load_real_model(source)
            running = ready(
                real.model,
                traced.candidate,
                device=request.device,
                dtype=request.dtype,
                train=request.train,
                is_owned=real.is_owned,
                notes=(*asked.notes, *real.notes),
                ops=traced.ops,
            )
            subject = stack.enter_context(running)
            if asked.prepare is not None:
                subject = stack.enter_context(asked.prepare(subject))
            level = asked.settings.level(profile=asked.profile)
            plan = MeasurementPlan(
                profile=level == OPS,
                train=request.train,
                budget=asked.settings.budget,
                peaks=device_peaks(request.device),
                parts=level != LATENCY,
                system=asked.profile,
                more=asked.more,
            )
            measured = measure(subject, traced.ops, plan, progress)
            _add_sweep(measured, subject, inputs, request, asked, progress)
    # Building and running it are the code of others, which may raise anything.
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        measured = replace(measured, figures={**measured.figures, "failure": failure_text(error)})
        clear_traceback(error)
    finally:
        if request.device.type == "cuda" and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    return replace(measured, figures={**measured.figures, "settings": settings})


def refused(reason: str, asked: MeasureOptions) -> Measured:
    """The measurements of a target that cannot be run."""
    return Measured(
        {**blank_measurements(), "failure": reason, "settings": asked.settings.figures(profile=asked.profile)}
    )


def device_peaks(device: torch.device) -> Peaks | None:
    """None if unknown or if the device is absent."""
    if device.type != "cuda":
        return peaks_of(cpu_name(), device.type)
    return peaks_of(torch.cuda.get_device_name(device), device.type) if has_cuda(device.index) else None


def _add_sweep(
    measured: Measured,
    subject: Subject,
    inputs: Inputs,
    request: Request,
    asked: MeasureOptions,
    progress: Progress | None,
) -> None:
    """Row by row, so that an interruption leaves those before it."""
    figures = measured.figures
    if not asked.sweeps or figures["failure"] == INTERRUPTED:
        return
    rows = figures["sweep"] = []
    budget, train = asked.settings.budget, request.train
    for row in measure_sweep(
        subject, asked.sweeps, inputs, budget=budget, train=train, at_point=asked.at_point, progress=progress
    ):
        rows.append(row)
        if row["failure"] == INTERRUPTED:
            figures["failure"] = INTERRUPTED
