"""The Python API: `analyze` ties the layers together, `Analysis` holds the result, `load` reads a saved one.

Nothing here imports torch until a model is analysed: a saved run can be read and rendered without it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchgauge import report
from torchgauge.errors import FormatError, ForwardError, InputError, UsageError
from torchgauge.progress import stage
from torchgauge.records import ArchitectureRecord, Capture, RunRecord
from torchgauge.saved import capture_from_document
from torchgauge.view import Row, View

if TYPE_CHECKING:
    import pandas
    import torch

    from torchgauge.capture import Seen
    from torchgauge.source import InputSpec, Source

MODES = ("inference", "train")
NO_CODE = "no code: static figures need --as TARGET"
SCAN_MEMBERS = (
    "schema_version", "tool", "created", "environment", "target", "architecture", "totals", "weights", "pickle",
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
    code: str | torch.nn.Module | None = None,
    allow_pickle: bool = False,
    progress: bool | None = None,
) -> Analysis:
    """Analyse a model without doing its arithmetic; it is left exactly as it was.

    `target` is a module, a target string or the path of a file or folder; `code` is the target that builds the model of
    bare weights. Nothing in a file is executed unless `allow_pickle`. `inputs` is a tensor, a tuple of positional
    arguments or a dict of keywords, `input_size` one shape or several; without either they are inferred. `dtype` is the
    type of the floating parameters and inputs, `device` where tensors pretend to be. `progress` None shows progress on
    a terminal.
    """
    if mode not in MODES:
        raise UsageError(f"no mode '{mode}'; one of: {', '.join(MODES)}")
    from torch.nn import Module

    from torchgauge.capture import unwrap
    from torchgauge.source import resolve

    with stage("analysing", shown=progress) as tell:
        subject = os.fspath(target) if isinstance(target, os.PathLike) else target
        subject = unwrap(subject) if isinstance(subject, Module) else subject
        source = resolve(subject, code=code, allow_pickle=allow_pickle, progress=tell)
        if source.model is None:
            return Analysis(_stored_capture(source))
        chosen = _dtype(dtype)
        given = {"input_size": input_size, "inputs": inputs, "kwargs": kwargs, "batch": batch, "seq": seq}
        request = {"device": _device(device), "dtype": chosen, "train": mode == "train"}
        return _run(source, given | {"specs": specs, "dtype": chosen}, request)


def _run(source: Source, given: dict[str, Any], request: dict[str, Any]) -> Analysis:
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
        return Analysis(_stored_capture(failed))
    capture = Capture(
        **_circumstances(source),
        run=replace(seen.run, warnings=(*source.warnings, *seen.run.warnings)),
        inputs=seen.inputs,
        modules=seen.modules,
        params=seen.params,
        ops=seen.ops,
        input_bytes=seen.input_bytes,
    )
    return Analysis(capture, lambda: _architecture(source, seen))


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
    from torchgauge.source.weight_tree import module_records, param_records

    index = source.stored
    params = param_records(index)
    return Capture(
        **_circumstances(source),
        run=RunRecord(None, NO_CODE, "cpu", False, source.warnings),
        inputs=(),
        modules=module_records(index, params),
        params=params,
        ops=(),
        architecture=describe_shapes(model_shapes(index)),
    )


def _circumstances(source: Source) -> dict[str, Any]:
    from torchgauge import __version__
    from torchgauge.environment import collect_environment
    from torchgauge.source.weight_tree import stored_record

    return {
        "target": source.record,
        "environment": collect_environment(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "stored": None if source.index is None else stored_record(source.index, executed=source.is_unpickled),
    }


def scan_weights(path: str | os.PathLike[str], *, progress: bool | None = None) -> WeightScan:
    """The tensors of a checkpoint file or folder, from its headers; nothing in it is executed."""
    from torchgauge.source.files import open_weights

    with stage("reading", shown=progress) as tell:
        return WeightScan(_stored_capture(open_weights(os.fspath(path), progress=tell)))


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
