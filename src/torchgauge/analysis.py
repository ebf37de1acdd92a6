"""The Python API: `analyze` ties the layers together, `Analysis` holds the result, `load` reads a saved one.

Nothing here imports torch until a model is analysed: a saved run can be read and rendered without it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchgauge import report
from torchgauge.errors import FormatError, ForwardError, InputError, TargetError, UsageError
from torchgauge.progress import Tell, stage, steps, transfer
from torchgauge.records import ArchitectureRecord, Capture, EnergyFacts, RunRecord, WeightStatistics
from torchgauge.saved import capture_from_document
from torchgauge.view import Row, View

if TYPE_CHECKING:
    import pandas
    import torch

    from torchgauge.capture import Seen
    from torchgauge.checkpoint import Index
    from torchgauge.energy.carbon import Footprint
    from torchgauge.measure.target import Asked
    from torchgauge.source import InputSpec, Source
    from torchgauge.weights.scanning.scan import ScanRequest

MODES = ("inference", "train")
NO_CODE = "no code: static figures need --as TARGET"
NOT_RUN = "the weights alone: the code was not run"
# What is looked at without being asked for: a reflex, not a task.
WEIGHTS_BYTES = 4 << 30
DEEP_BYTES = 2 << 30
SCAN_MEMBERS = (
    "schema_version", "tool", "created", "environment", "target", "architecture", "totals", "weights",
    "weight_summary", "against", "pickle",
)  # fmt: skip


class Analysis(View):
    """What was found out about a model: totals, modules, ops, and every way to look at them.

    `describe` finds the architecture when it is first asked for; the capture holds it from then on.
    """

    def __init__(self, capture: Capture, describe: Callable[[], ArchitectureRecord] | None = None) -> None:
        super().__init__(capture)
        self._describe = describe

    @cached_property
    def architecture(self) -> Row:
        if self._describe is not None:
            self.capture = replace(self.capture, architecture=self._describe())
            self._describe = None  # it holds the model
        return super().architecture

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of the contract; `weight_ops` has what weights' values tell of the ops that use them."""
        from torchgauge.weights.whole.per_op import weight_ops

        return {**super().to_dict(), "weight_ops": weight_ops(self.capture.ops, self.weights, self.capture.params)}

    def to_dataframe(self, table: str = "modules") -> pandas.DataFrame:
        """The rows of "modules", "ops" or "weights" as a pandas DataFrame."""
        return report.to_dataframe(self, table)

    def save(self, path: str | Path) -> None:
        """Write a report; the suffix names the format."""
        report.save(self, path)

    def __str__(self) -> str:
        return report.render(self, "text")

    def __repr__(self) -> str:
        totals = self.totals
        macs = f"{totals.macs} MACs" if self.capture.has_code else "no code"
        return f"<Analysis of {self.capture.target.name}: {totals.params} params, {macs}>"

    def _repr_html_(self) -> str:
        return report.render(self, "fragment")


class WeightScan(Analysis):
    """The tensors of a checkpoint: one row each, and their totals."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON document, without what only a model that runs has."""
        document = super().to_dict()
        return {key: document[key] for key in SCAN_MEMBERS}

    def to_dataframe(self, table: str = "weights") -> pandas.DataFrame:
        return report.to_dataframe(self, table)

    def save(self, path: str | Path) -> None:
        """Write the list of tensors: `.json`, `.csv`, `.weights.csv` or `.txt`."""
        report.save_weights(self, path)

    def __str__(self) -> str:
        return report.render(self, "weights")

    def __repr__(self) -> str:
        return f"<WeightScan of {self.capture.target.name}: {len(self.weights)} tensors>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def analyze(
    target: str | os.PathLike[str] | torch.nn.Module | torch.export.ExportedProgram,
    *,
    input_size: Sequence[Any] | Mapping[str, Sequence[int]] | None = None,
    inputs: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    mode: str = "inference",
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
    weights: bool | str = "auto",
    deep: bool | str = "auto",
    spectrum: bool = False,
    code: str | torch.nn.Module | None = None,
    allow_pickle: bool = False,
    progress: bool | None = None,
) -> Analysis:
    """Analyse a model without doing its arithmetic; it is left exactly as it was.

    `target` is a module, a target string or the path of a file or folder; `code` is the target that builds the model of
    bare weights. Nothing in a file is executed unless `allow_pickle`. `inputs` is a tensor, a tuple of positional
    arguments or a dict of keywords, `input_size` one shape or several; without either they are inferred. `dtype` is the
    type of the floating parameters and inputs, `device` where tensors pretend to be and where runs are measured.

    `inference` measures time and memory of real runs; `profile` besides every op, the system and thread scaling;
    `sweep` repeats it over a quantity ({"batch": [1, 2, 4]}; seq, dtype, threads). What fails there is said in
    `measurements["failure"]`, and what was found until then is kept. `threads`, `budget_s` (seconds for the undisturbed
    runs), `memory_fraction` (of a CUDA device) and `profile_level` ("latency", "modules", "ops") are its settings;
    TORCHGAUGE_THREADS and the like stand for those not given.

    `profile` measures energy too, where the device has a meter; without one it is estimated, with a range. `carbon` is
    the country of the grid ("DE"), or `carbon_intensity` its grams per kWh; `pue` is the data centre's overhead.

    `weights` reads the values of the parameters ("auto": of files and folders up to 4 GiB, not of live modules), `deep`
    adds what needs more than one pass ("auto": up to 2 GiB), `spectrum` all singular values. `progress` None shows
    progress on a terminal.
    """
    if mode not in MODES:
        raise UsageError(f"no mode '{mode}'; one of: {', '.join(MODES)}")
    depth = _Depth.of(deep, spectrum)
    emitted = _footprint(carbon, carbon_intensity, pue)
    settings: dict[str, Any] = {"threads": threads, "budget_s": budget_s, "profile_level": profile_level}
    settings["memory_fraction"] = memory_fraction
    is_measured = inference or profile or sweep is not None
    asked = _asked(target, profile, sweep, settings) if is_measured else None
    from torch.nn import Module

    from torchgauge.capture import unwrap
    from torchgauge.source import resolve

    with stage("analysing", shown=progress) as tell:
        subject = os.fspath(target) if isinstance(target, os.PathLike) else target
        subject = unwrap(subject) if isinstance(subject, Module) else subject
        source = resolve(subject, code=code, allow_pickle=allow_pickle, progress=tell)
        if source.model is None:
            found, seen = Analysis(_stored_capture(source)), None
        else:
            chosen = _dtype(dtype)
            given = {"input_size": input_size, "inputs": inputs, "kwargs": kwargs, "batch": batch, "seq": seq}
            given |= {"specs": specs, "dtype": chosen}
            place = device or (_home(subject) if asked else None)
            request = {"device": _device(place), "dtype": chosen, "train": mode == "train"}
            found, seen = _run(source, given, request)
    measured_energy: EnergyFacts | None = None
    if asked is not None:
        seen_with = (seen, request, given) if seen else ()
        measured_energy = _add_measurements(found, source, asked, progress, *seen_with)
    if profile or emitted is not None:
        _add_energy(found, measured_energy, emitted)
    if _reads_weights(source, _switch(weights, "weights")):
        _add_statistics(found, source, depth, progress)
    return found


def _asked(target: Any, profile: bool, sweep: Any, settings: Mapping[str, Any]) -> Asked:
    from torch.nn import Module

    from torchgauge.capture import unwrap
    from torchgauge.measure.settings import read_settings
    from torchgauge.measure.sweep import parse_sweeps
    from torchgauge.measure.target import Asked

    is_wrapped = isinstance(target, Module) and unwrap(target) is not target
    notes = (f"measured without its {type(target).__name__} around it",) if is_wrapped else ()
    return Asked(profile, parse_sweeps(sweep), read_settings(**settings), notes)


def _home(subject: Any) -> torch.device | None:
    """Where a live model is: there it is measured, unless told otherwise."""
    from torch.nn import Module

    tensors = [*subject.parameters(), *subject.buffers()] if isinstance(subject, Module) else []
    return next((tensor.device for tensor in tensors if not tensor.is_meta), None)


def _add_measurements(
    found: Analysis,
    source: Source,
    asked: Asked,
    progress: bool | None,
    seen: Seen | None = None,
    request: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
) -> EnergyFacts | None:
    """What a meter told is given back: it is made whole with what else is known."""
    from torchgauge.capture import Request
    from torchgauge.energy.target import EnergyWatch, with_efficient_points
    from torchgauge.measure.target import measure_target, refused

    watch = EnergyWatch(asked.settings.budget_s)
    if seen is None:
        reason = "there is no code to run" if source.model is None else "the code that was inferred for it fails"
        measured = refused(f"{reason}: give it with code= (--as TARGET)", asked)
    else:
        wanted = Request(**request or {}, build_real=source.build_real)
        stages = (("energy", watch.measure),) if asked.profile else ()
        asked = replace(asked, more=stages, at_point=watch.at_point)
        with steps("measuring", shown=progress) as tell:
            measured = measure_target(source, seen, wanted, given or {}, asked, tell)
    found.capture = replace(found.capture, measured=with_efficient_points(measured))
    return watch.facts


def _footprint(country: str | None, intensity: float | None, pue: float | None) -> Footprint | None:
    from torchgauge.energy.carbon import footprint

    return footprint(country, intensity, pue)


def _add_energy(found: Analysis, facts: EnergyFacts | None, emitted: Footprint | None) -> None:
    from torchgauge.energy.target import energy_facts

    device = _device(found.capture.run.device)
    found.capture = replace(found.capture, energy=energy_facts(found.capture, device, facts, emitted))


def _reads_weights(source: Source, weights: bool | None) -> bool:
    if weights is not None:
        return weights
    return source.index is not None and source.index.stored_bytes <= WEIGHTS_BYTES


def _add_statistics(found: Analysis, source: Source, depth: _Depth, progress: bool | None) -> None:
    """The values of the stored weights; without files, of the model's own parameters."""
    from torchgauge.weights.scanning.gathering import weight_statistics
    from torchgauge.weights.stream.live import LiveTensors

    live = None if source.index is not None else LiveTensors(source.runnable)
    index = source.stored if live is None else live.index
    request = depth.request(index.stored_bytes)
    if request.deep:
        request = replace(request, heads=_heads(found))
    with transfer("reading the weights", shown=progress) as tell:
        statistics = weight_statistics(index, request, tell=tell, reader=live)
    found.capture = replace(found.capture, statistics=statistics)


def _switch(value: bool | str, name: str) -> bool | None:
    """None for "auto"."""
    if value == "auto":
        return None
    if not isinstance(value, bool):
        raise UsageError(f'{name} is True, False or "auto", not {value!r}')
    return value


@dataclass(frozen=True, slots=True)
class _Depth:
    """How far the values are looked into; `deep` None leaves it to the size."""

    deep: bool | None
    spectrum: bool

    @classmethod
    def of(cls, deep: bool | str, spectrum: bool) -> _Depth:
        chosen = _switch(deep, "deep")
        if spectrum and chosen is False:
            raise UsageError("singular values are deep figures: leave out --no-deep (deep=False) or --spectrum")
        return cls(True if spectrum else chosen, spectrum)

    def request(self, nbytes: int) -> ScanRequest:
        from torchgauge.weights.scanning.scan import ScanRequest

        deep = nbytes <= DEEP_BYTES if self.deep is None else self.deep
        return ScanRequest(deep=deep, spectrum=self.spectrum)


def _run(source: Source, given: dict[str, Any], request: dict[str, Any]) -> tuple[Analysis, Seen | None]:
    from torchgauge.capture import Request, see
    from torchgauge.source import candidate_inputs

    model = source.runnable
    try:
        seen = see(model, candidate_inputs(model, **given), Request(**request, build_real=source.build_real))
    except (ForwardError, InputError) as error:
        if not source.is_inferred:
            raise
        # The code was a conclusion of ours: that it fails is no fault of the file.
        failed = replace(source, warnings=(*source.warnings, f"the inferred code failed: {error}"))
        return Analysis(_stored_capture(failed)), None
    capture = Capture(
        **_circumstances(source),
        run=replace(seen.run, warnings=(*source.warnings, *seen.run.warnings)),
        inputs=seen.inputs,
        modules=seen.modules,
        params=seen.params,
        ops=seen.ops,
        input_bytes=seen.input_bytes,
    )
    return Analysis(capture, lambda: _architecture(source, seen)), seen


def _architecture(source: Source, seen: Seen) -> ArchitectureRecord:
    from torchgauge.source.architecture import describe_run, describe_shapes, stated_hyperparameters
    from torchgauge.source.state_names import model_shapes

    stated = stated_hyperparameters(source.runnable)
    found = describe_run(seen.modules, seen.params, seen.ops, stated)
    if not source.assumed:
        return found
    # The model states what was assumed when it was built: only the file knows better.
    return replace(found, hyperparameters=describe_shapes(model_shapes(source.stored)).hyperparameters)


def _stored_capture(source: Source) -> Capture:
    """What names and shapes tell where there is no code to run."""
    from torchgauge.source.architecture import describe_shapes
    from torchgauge.source.state_names import model_shapes
    from torchgauge.source.weight_tree import module_records, module_types, param_records

    index = source.stored
    # First: what it takes for a while is free again for the records, which stay.
    architecture = describe_shapes(model_shapes(index))
    params = param_records(index)
    return Capture(
        **_circumstances(source),
        run=RunRecord(None, NO_CODE if source.model is None else NOT_RUN, "cpu", False, source.warnings),
        inputs=(),
        modules=module_records(params, module_types(source)),
        params=params,
        ops=(),
        architecture=architecture,
    )


def _circumstances(source: Source) -> dict[str, Any]:
    from torchgauge import __version__
    from torchgauge.environment import collect_environment
    from torchgauge.source.weight_tree import stored_record

    return {
        "target": source.record,
        "environment": collect_environment(import_torch=sys.modules.get("torch") is not None),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "stored": None if source.index is None else stored_record(source),
    }


def scan_weights(
    path: str | os.PathLike[str],
    *,
    weights: bool | str = "auto",
    deep: bool | str = "auto",
    spectrum: bool = False,
    threads: int | None = None,
    dask: str | None = None,
    resume: bool = False,
    against: str | os.PathLike[str] | None = None,
    code: str | torch.nn.Module | None = None,
    allow_pickle: bool = False,
    on_row: Callable[[Mapping[str, Any]], None] | None = None,
    progress: bool | None = None,
) -> WeightScan:
    """The tensors of a checkpoint file or folder and what their values tell; nothing in it is executed unless
    `allow_pickle`.

    `weights` False reads the headers alone; "auto" reads the values, unless `against` names a checkpoint to compare
    with. `deep` adds what needs more than one pass ("auto": up to 2 GiB), `spectrum` all singular values. `dask` is the
    address of a cluster, or `local:N` for N processes; `resume` goes on with a scan that was interrupted. `code` is the
    target that builds the model: names and shapes are checked, and it tells modules and roles. `on_row` gets each row
    as it is finished, in the order of the files.
    """
    place, depth = os.fspath(path), _Depth.of(deep, spectrum)
    reads = _switch(weights, "weights")
    with stage("reading", shown=progress) as tell:
        source = _open_weights(place, code, allow_pickle, tell)
        found = WeightScan(_stored_capture(source))
        other = None if against is None else _open_index(os.fspath(against), tell)
    statistics = WeightStatistics({})
    if reads or (reads is None and other is None):
        request = depth.request(source.stored.stored_bytes)
        request = replace(request, heads=_heads(found), threads=threads, dask=dask, resume=resume, journal=True)
        statistics = _scanned(found, source.stored, request, on_row, progress)
    if other is not None:
        statistics = replace(statistics, against=_compared(source.stored, other, threads, progress))
    if statistics.scan or other is not None:
        found.capture = replace(found.capture, statistics=statistics)
    return found


def _scanned(
    found: WeightScan, index: Index, request: ScanRequest, on_row: Callable[[Mapping[str, Any]], None] | None,
    progress: bool | None,
) -> WeightStatistics:  # fmt: skip
    from torchgauge.weights.scanning.gathering import weight_statistics

    rows = {row.name: row for row in found.weights} if on_row is not None else {}

    def pass_on(name: str, figures: dict[str, Any]) -> None:
        if on_row is not None:
            on_row(rows[name] | figures)

    with transfer("scanning", shown=progress) as tell:
        statistics = weight_statistics(index, request, tell=tell, on_row=pass_on)
    for name, _ in statistics.failures:
        pass_on(name, {})
    found.__dict__.pop("weights", None)  # rows without figures
    return statistics


def _compared(index: Index, other: Index, threads: int | None, progress: bool | None) -> dict[str, Any]:
    from torchgauge.weights.comparing.against import compare

    with transfer("comparing", shown=progress) as tell:
        return compare(index, other, threads=threads, tell=tell)


def _heads(found: Analysis) -> int | None:
    heads = found.architecture.hyperparameters.get("heads")
    return heads if isinstance(heads, int) else None


def _open_weights(place: str, code: str | torch.nn.Module | None, allow_pickle: bool, tell: Tell) -> Source:
    """Without code there is no need for torch."""
    if code is None and not allow_pickle:
        from torchgauge.source.opened import Source, stored_target

        index = _open_index(place, tell)
        return Source(None, stored_target(index, place), index=index, warnings=index.warnings)
    from torchgauge.source import resolve
    from torchgauge.source.files import Opening, open_weights

    joined = None if code is None else resolve(code)
    return open_weights(place, Opening(place, joined, allow_pickle, tell))


def _open_index(place: str, tell: Tell) -> Index:
    from torchgauge.checkpoint import open_checkpoint

    if not Path(place).exists():
        raise TargetError(f"there is no file '{place}'")
    return open_checkpoint(place, progress=tell)


def load(path: str | Path) -> Analysis:
    """A saved run (`.json`)."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"cannot read '{path}': {error.strerror or error}") from error
    except ValueError as error:
        raise FormatError(f"'{path}' is no JSON file: {error}") from error
    return Analysis(capture_from_document(document, str(path)))


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    from torchgauge.source import parse_dtype

    return parse_dtype(dtype) if isinstance(dtype, str) else dtype


def _device(device: torch.device | str | None) -> torch.device:
    import torch

    try:
        chosen = torch.device(device or "cpu")
    except RuntimeError as error:
        raise InputError(f"no device '{device}': {str(error).splitlines()[0]}") from error
    if chosen.type == "cuda" and torch.version.cuda is None and torch.version.hip is None:
        raise InputError(
            f"this build of torch knows no '{device}' device, so tensors cannot pretend to be there; leave it out: "
            "parameters and MACs are the same on the CPU"
        )
    # Code that keeps something per device (cuDNN's RNNs) wants its number.
    return torch.device("cuda", 0) if chosen.type == "cuda" and chosen.index is None else chosen
