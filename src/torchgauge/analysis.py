"""The Python API: `analyze` ties the layers together, `Analysis` holds the result, `load` reads a saved one.

Nothing here imports torch until a model is analysed: a saved run can be read and rendered without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchgauge import report
from torchgauge.errors import FormatError, InputError, UsageError
from torchgauge.progress import stage
from torchgauge.records import Capture
from torchgauge.saved import capture_from_document
from torchgauge.view import View

if TYPE_CHECKING:
    import pandas
    import torch

    from torchgauge.source import InputSpec

MODES = ("inference", "train")


class Analysis(View):
    """What was found out about a model: totals, modules, ops, and every way to look at them."""

    def to_dataframe(self, table: str = "modules") -> pandas.DataFrame:
        """The rows of "modules" or "ops" as a pandas DataFrame."""
        return report.to_dataframe(self, table)

    def save(self, path: str | Path) -> None:
        """Write a report; the suffix names the format."""
        report.save(self, path)

    def __str__(self) -> str:
        return report.render(self, "text")

    def __repr__(self) -> str:
        totals = self.totals
        return f"<Analysis of {self.capture.target.name}: {totals.params} params, {totals.macs} MACs>"

    def _repr_html_(self) -> str:
        return report.render(self, "fragment")


def analyze(
    target: str | torch.nn.Module,
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
    progress: bool | None = None,
) -> Analysis:
    """Analyse a model without doing its arithmetic; it is left exactly as it was.

    `target` is a module or a target string. `inputs` is a tensor, a tuple of positional arguments or a dict of
    keywords, `input_size` one shape or several; without either they are inferred. `dtype` is the type of the floating
    parameters and inputs, `device` where tensors pretend to be. `progress` None shows progress on a terminal.
    """
    if mode not in MODES:
        raise UsageError(f"no mode '{mode}'; one of: {', '.join(MODES)}")
    from torchgauge.capture import Request, see, unwrap
    from torchgauge.environment import collect_environment
    from torchgauge.source import candidate_inputs, parse_dtype, resolve

    with stage("analysing", shown=progress):
        source = resolve(target if isinstance(target, str) else unwrap(target))
        chosen = parse_dtype(dtype) if isinstance(dtype, str) else dtype
        request = Request(_device(device), chosen, train=mode == "train", build_real=source.build_real)
        candidates = candidate_inputs(
            source.model,
            input_size=input_size,
            inputs=inputs,
            kwargs=kwargs,
            dtype=chosen,
            batch=batch,
            seq=seq,
            specs=specs,
        )
        seen = see(source.model, candidates, request)
    return Analysis(
        Capture(
            target=source.record,
            environment=collect_environment(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            version=_version(),
            run=seen.run,
            inputs=seen.inputs,
            modules=seen.modules,
            params=seen.params,
            ops=seen.ops,
            input_bytes=seen.input_bytes,
        )
    )


def load(path: str | Path) -> Analysis:
    """A saved run (`.json`)."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"cannot read '{path}': {error.strerror or error}") from error
    except ValueError as error:
        raise FormatError(f"'{path}' is no JSON file: {error}") from error
    return Analysis(capture_from_document(document, str(path)))


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
    return chosen


def _version() -> str:
    from torchgauge import __version__

    return __version__
