"""`analyze` ties the layers together."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torchgauge.analysis.advice import (
    ModelInMemory,
    Opened,
    check_verify,
    code_check,
    expected_here,
    expected_times,
    verify_advice,
    without_patch,
)
from torchgauge.analysis.isolated import isolation_remarks, needs_isolation, read_analysis, require_isolated
from torchgauge.analysis.measurement import complete_energy, measure_runs, measurements_asked, requested_footprint
from torchgauge.analysis.options import (
    Depth,
    chosen_device,
    chosen_dtype,
    chosen_execution,
    pretended_device,
    reads_weights,
    stored_path,
    switch,
    unwrapped,
)
from torchgauge.analysis.result import Analysis
from torchgauge.analysis.static_capture import static_run, stored_capture
from torchgauge.analysis.weight_scan import read_statistics
from torchgauge.errors import InputError, TorchgaugeError, UsageError, errors_as_torchgauge
from torchgauge.facts import COMPILED, Capture, EnergyFacts
from torchgauge.facts.experts import dense_warnings
from torchgauge.interpreter import safe_path_of_children
from torchgauge.isolation import is_isolated
from torchgauge.progress import Progress, stage
from torchgauge.registry import collector_paused
from torchgauge.source.target_check import check_target

if TYPE_CHECKING:
    import torch

    from torchgauge.advise.registry import Check
    from torchgauge.capture import Request, Trace
    from torchgauge.source import GivenInputs, InputSpec, Source

MODES = ("inference", "train")
COMPILED_OUTSIDE = "the model was compiled outside the isolated process, with the rights of this process"
MEASURED_OUTSIDE = "the model was measured outside the isolated process, with the rights of this process"


@safe_path_of_children()
def analyze(
    target: str | os.PathLike[str] | torch.nn.Module | torch.export.ExportedProgram,
    input_size: Sequence[Any] | Mapping[str, Sequence[int]] | None = None,
    *,
    inputs: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    mode: str = "inference",
    execution: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    specs: Sequence[InputSpec] = (),
    inference: bool = False,
    profile: bool = False,
    sweep: str | Sequence[str] | Mapping[str, Sequence[Any]] | None = None,
    threads: int | None = None,
    budget_s: float | None = None,
    memory_fraction: float | None = None,
    profile_level: str | None = None,
    carbon: str | None = None,
    carbon_intensity: float | None = None,
    pue: float | None = None,
    carbon_rate: float | None = None,
    weights: bool | str = "auto",
    deep: bool | str = "auto",
    spectrum: bool = False,
    advice: bool = True,
    silence: Sequence[str] = (),
    all_advice: bool = False,
    verify: bool = False,
    on: str | Sequence[str] = (),
    code: str | torch.nn.Module | None = None,
    allow_pickle: bool = False,
    memory_limit: int | str | None = None,
    time_limit: float | None = None,
    require_isolation: bool = False,
    progress: bool | None = None,
) -> Analysis:
    """Analyse a model: parameters, MACs, FLOPs, bytes and memory, per module and op. Nothing is computed unless
    something is measured, and the model is left unchanged.

    What to analyse:

    - `target`: a module, a target string such as "timm:resnet50", or the path of a file or folder. Nothing in a
      file is executed unless `allow_pickle` is set.
    - `code`: the target that builds the model of a bare state dict.
    - `inputs`: a tensor, a tuple of positional arguments or a dict of keyword arguments; `kwargs` adds keyword
      arguments.
    - `input_size`: one shape or several, such as (1, 3, 224, 224). Without `inputs` and `input_size` the inputs are
      inferred, with `batch` and `seq`.
    - `dtype`: the type of floating-point parameters and inputs. `device`: the device to analyse for and to measure
      on.
    - `mode`: "inference", or "train" for forward, backward and optimizer step.
    - `execution`: "eager", or "compiled" for the graphs, breaks and kernels of `torch.compile`. The default is
      "compiled" for a model that is compiled already. Generated code is run only if something is measured.

    What to measure:

    - `inference`: time and memory of real runs, per module. `profile`: also per op, with energy, system load and
      thread scaling.
    - `sweep`: repeat the measurement, such as {"batch": [1, 2, 4]}; keys are batch, seq, dtype and threads.
    - `threads`, `budget_s` (seconds for the undisturbed runs), `memory_fraction` (of a CUDA device) and
      `profile_level` ("latency", "modules" or "ops"): settings; environment variables such as TORCHGAUGE_THREADS
      give their defaults.
    - `carbon`: the country of the grid, such as "DE" (default with `profile`: the world), or `carbon_intensity` in
      grams of CO2e per kWh. `pue`: power usage effectiveness of the data centre. `carbon_rate`: samples per second,
      for grams per year.

    If measuring fails, `measurements["failure"]` has the reason, and the results so far are kept.

    What else to report:

    - `weights`: read the values of the parameters ("auto": of files and folders up to 4 GiB, not of live modules).
      `deep`: also figures that need several passes ("auto": up to 2 GiB). `spectrum`: also all singular values.
    - `advice`: recommendations. `silence`: rules to omit. `all_advice`: also gains that are too small to be shown
      by default.
    - `verify`: apply each recommendation to a copy of the model and measure it; refuted advice is withdrawn,
      confirmed advice is combined into a plan. TORCHGAUGE_VERIFY_BUDGET: seconds for each (default: 4).
    - `on`: devices, such as "h200" or ["l4", "24GiB"]. Memory, time and the gains of advice are predicted for them,
      the time also per op and module for the first device whose speed is known.
    - `progress`: None shows progress on a terminal.

    Files and folders are read in a process without rights. `memory_limit` ("4GiB", or bytes; default: 2 GiB or
    twice the size of the file) and `time_limit` (seconds; default: 300, more for large files) limit it.
    `require_isolation`: refuse a file where a part of the isolation is missing (`torchgauge system`).
    """
    options = dict(locals())
    if isinstance(target, str | os.PathLike):
        check_target(os.fspath(target))
    if mode not in MODES:
        raise UsageError(f"no mode '{mode}'; one of: {', '.join(MODES)}")
    depth = Depth.of(deep, spectrum)
    if is_isolated() and "torch" not in sys.modules:
        return describe_weights(str(target).strip(), depth, weights, advice, silence, progress, all_advice=all_advice)
    if verify:
        check_verify(advice)
    emitted = requested_footprint(carbon, carbon_intensity, pue, carbon_rate, profile=profile)
    chosen_run = chosen_execution(execution, target)
    runs = Runs(inference or profile or sweep is not None, verify, chosen_run == COMPILED)
    if require_isolation:
        require_isolated(target, allow_pickle=allow_pickle, measuring=runs.are_real, compiling=runs.compiled)
    settings, asked = None, None
    if runs.are_real:
        from torchgauge.measure.settings import read_settings

        settings = read_settings(
            threads=threads, budget_s=budget_s, profile_level=profile_level, memory_fraction=memory_fraction
        )
    if runs.measured and settings is not None:
        asked = measurements_asked(target, profile, sweep, settings, is_compiled=runs.compiled)
    if needs_isolation(target, allow_pickle):
        found = read_file(options, is_measured=any(runs))
        if not any(runs):
            return found
    from torchgauge.capture import Request
    from torchgauge.source import GivenInputs
    from torchgauge.source.offline import offline_for

    given = GivenInputs(input_size, inputs, kwargs, chosen_dtype(dtype), batch, seq, specs)
    with errors_as_torchgauge(stored_path(target)), offline_for(target):
        # With torch loaded a collection takes about 50 ms, and a first analysis triggers many.
        is_live = not isinstance(target, str | os.PathLike)
        with stage("analysing", shown=progress) as report_progress, collector_paused() if is_live else nullcontext():
            opened = Opened(unwrapped(target), code, allow_pickle)
            source, asked_device, pretended = open_source(opened, target, silence, device, runs, report_progress)
            request = Request(asked_device, given.dtype, mode == "train", source.build_real)
            capture, traced = static_run(source, given, replace(request, device=pretended))
        metered: EnergyFacts | None = None
        if asked is not None:
            compiled = None
            if runs.compiled:
                from torchgauge.measure.compiled import CompiledRuns, root_options

                compiled = CompiledRuns(request, root_options(target))
            measured, metered = measure_runs(source, asked, progress, traced, request, given, compiled)
            capture = replace(capture, measured=measured, compiled=compiled.facts if compiled is not None else None)
        if runs.compiled and traced is not None and capture.compiled is None:
            capture = add_compiled(capture, source, traced, target, request, progress, is_asked=execution is not None)
        if profile or emitted is not None:
            capture = replace(capture, energy=complete_energy(capture, metered, emitted))
        if reads_weights(source, switch(weights, "weights")):
            statistics = read_statistics(source, capture.architecture, depth, progress)
            capture = replace(capture, statistics=statistics)
        if on:
            capture = add_predictions(capture, source, target, given, on, mode, chosen_run, progress)
    found = Analysis(capture)
    found = found.with_remarks(warnings=(*isolation_remarks(), *dense_warnings(found.mixtures)))
    if advice:
        found = add_advice(found, source, traced, request, on, silence, progress, all_advice=all_advice, verify=verify)
    if verify and settings is not None:
        with offline_for(target):
            verified, plan = verify_advice(found.capture, source, traced, request, settings, progress, opened)
        count = len(found.capture.advice)
        found = found.with_remarks(advice=verified[:count], options=verified[count:], plan=plan)
    return found


# Larger files take longer to read than torch to import.
_SMALL_BYTES = 1 << 20


def may_be_weights_alone(path: str, options: Mapping[str, Any]) -> bool:
    """Whether a file may turn out to need no torch: a small one, and nothing is asked about a model that runs."""
    asked = ("code", "input_size", "inputs", "kwargs", "dtype", "device", "batch", "seq", "specs", "on", "execution")
    is_small = os.path.isfile(path) and os.path.getsize(path) <= _SMALL_BYTES and not path.endswith(".json")
    # Inputs may be tensors, which have no truth value.
    given = (value for name in asked if (value := options.get(name)) is not None)
    is_asked = any(not isinstance(value, Sequence | Mapping) or value for value in given)
    return is_small and options.get("mode") == "inference" and not is_asked


def describe_weights(
    target: str, depth: Depth, weights: bool | str, advice: bool, silence: Sequence[str], progress: bool | None, *,
    all_advice: bool,
) -> Analysis:  # fmt: skip
    """The analysis of a file without code, which needs no torch; for other files the reader is started again with
    torch."""
    from torchgauge.checkpoint import open_checkpoint
    from torchgauge.isolation import NeedsPackageError
    from torchgauge.source.identify import may_be_listed
    from torchgauge.source.source import PROGRAMS, Source, stored_target
    from torchgauge.source.state_names import logical_shapes

    with errors_as_torchgauge(stored_path(target)):
        with stage("analysing", shown=progress) as report_progress:
            index = open_checkpoint(target.removeprefix("hf:"), progress=report_progress)
            has_code = index.format in (*PROGRAMS, "gguf")
            if has_code or (index.adapter is None and may_be_listed(logical_shapes(index))):
                raise NeedsPackageError("torch")
            source = Source(None, stored_target(index, target), index=index, warnings=index.warnings)
            capture = stored_capture(source)
        if reads_weights(source, switch(weights, "weights")):
            statistics = read_statistics(source, capture.architecture, depth, progress)
            capture = replace(capture, statistics=statistics)
    found = Analysis(capture)
    if advice:
        found = add_advice(found, source, None, None, (), silence, progress, all_advice=all_advice, verify=False)
    return found


class Runs(NamedTuple):
    """Requests that run the model's code for more than its ops."""

    measured: bool
    verified: bool
    compiled: bool

    @property
    def are_real(self) -> bool:
        return self.measured or self.verified


def open_source(
    opened: Opened,
    target: object,
    silence: Sequence[str],
    device: torch.device | str | None,
    runs: Runs,
    progress: Progress,
) -> tuple[Source, torch.device, torch.device]:
    """The source, with the right to run for real where that was asked for; the device of real runs, and the one that
    the tensors of the static pass claim."""
    from torchgauge.source import resolve

    source = resolve(opened.target, code=opened.code, allow_pickle=opened.allow_pickle, progress=progress)
    if silence:
        from torchgauge.advise import check_names

        # A target's own file may bring rules, so their names are known only now.
        check_names(silence)
    # Weights without code run nowhere; by default a live model runs where it is.
    place = None if source.model is None else device
    if source.model is not None and not device and any(runs):
        tensors = (*source.model.parameters(), *source.model.buffers())
        place = next((tensor.device for tensor in tensors if not tensor.is_meta), None)
    asked = chosen_device(place)
    pretended, remarks = pretended_device(asked, is_run=runs.are_real)
    if needs_isolation(target, opened.allow_pickle):
        remarks = (*remarks, MEASURED_OUTSIDE if runs.are_real else COMPILED_OUTSIDE)
    source = replace(source, warnings=(*source.warnings, *remarks))
    if runs.compiled:
        from torchgauge.measure.compiled import require_code

        require_code(source)
    if runs.are_real:
        from torchgauge.source.real_model import runs_allowed

        source = runs_allowed(source)
    return source, asked, pretended


def add_compiled(
    capture: Capture,
    source: Source,
    traced: Trace,
    target: object,
    request: Request,
    progress: bool | None,
    *,
    is_asked: bool,
) -> Capture:
    """The capture with what torch.compile would make of the model. If it was not asked for and cannot be done, a
    warning says so."""
    from torchgauge.measure.compiled import compile_model, root_options

    try:
        with stage("compiling", shown=progress):
            compiled = compile_model(source.runnable, traced.candidate, request, root_options(target))
            return replace(capture, compiled=compiled)
    except TorchgaugeError as error:
        if is_asked:
            raise
        warning = f"the model is compiled, and was analysed as if it were eager: {error}"
        return replace(capture, run=replace(capture.run, warnings=(*capture.run.warnings, warning)))


def add_predictions(
    capture: Capture,
    source: Source,
    target: Any,
    given: GivenInputs,
    on: str | Sequence[str],
    mode: str,
    execution: str,
    progress: bool | None,
) -> Capture:
    """The capture with the predicted memory and time of the run on each of the devices."""
    from torchgauge.analysis.forecasting import predict_on
    from torchgauge.analysis.runs import RunOptions

    if source.model is None:
        raise InputError("weights alone do not determine what a run takes: add the code (--as file.py:Net)")
    options = RunOptions(
        target=target, mode=mode, inputs=given.inputs, kwargs=given.kwargs, input_size=given.input_size,
        specs=given.specs, dtype=given.dtype,
    )  # fmt: skip
    with stage("predicting memory and time", shown=progress):
        run = replace(options.run(source.model, given.batch, given.seq), kernels=capture.compiled)
        there = predict_on(run, on, capture.ops, execution)
    warned = replace(capture.run, warnings=(*capture.run.warnings, *there.warnings))
    return replace(capture, run=warned, fit=there.fits, forecast=there.forecasts, predicted=there.times)


def add_advice(
    found: Analysis,
    source: Source,
    traced: Trace | None,
    request: Request | None,
    on: str | Sequence[str],
    silence: Sequence[str],
    progress: bool | None,
    *,
    all_advice: bool,
    verify: bool,
) -> Analysis:
    from torchgauge.advise import Evidence, advise, list_options

    with stage("looking for advice", shown=progress), collector_paused():
        live = None if source.model is None else ModelInMemory(source.model)
        evidence = Evidence(found.capture, found, **expected_times(found.capture, on), model=live)
        check: Check | None = None
        if source.model is not None and is_uninitialised(source.model):
            check = without_patch
        elif verify and request is not None:  # code runs only where the user asks for it
            check = code_check(evidence, source, traced, request, on)
        rows = [piece.member() for piece in advise(evidence, silence, all_advice=all_advice, check=check)]
        choices = [piece.member() for piece in list_options(evidence, silence, all_advice=all_advice)]
        expected = expected_here(evidence)
    failures = tuple(dict.fromkeys(evidence.failures))
    return found.with_remarks(warnings=failures, advice=rows, options=choices, expected=expected)


def read_file(options: Mapping[str, Any], *, is_measured: bool) -> Analysis:
    """The static part, read by a process without rights. Before a measurement only to see that it keeps its limits."""
    static = {"inference": False, "profile": False, "sweep": None, "verify": False, "execution": None}
    static |= {"weights": False, "advice": False} if is_measured else {}
    limits = {name: options[name] for name in ("memory_limit", "time_limit")}
    path = stored_path(options["target"])
    assert path is not None
    needs_torch = is_measured or not may_be_weights_alone(path, options)
    return read_analysis(Analysis, analyze, [path], {**options, **static}, **limits, needs_torch=needs_torch)


def is_uninitialised(model: torch.nn.Module) -> bool:
    """Whether it has lazy layers, which the first input gives their sizes."""
    from torchgauge.capture.restored_state import is_lazy

    return is_lazy(model)
