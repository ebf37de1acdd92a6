"""Options of an analysis: target, type, device, depth of the weight statistics."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchgauge.errors import InputError, UsageError
from torchgauge.facts import COMPILED, EAGER, EXECUTIONS, ArchitectureRecord
from torchgauge.source.target_check import is_model_path

if TYPE_CHECKING:
    import torch

    from torchgauge.source import Source
    from torchgauge.weights import ScanRequest


def chosen_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    from torchgauge.source import parse_dtype

    return parse_dtype(dtype) if isinstance(dtype, str) else dtype


def chosen_device(device: torch.device | str | None) -> torch.device:
    import torch

    try:
        chosen = torch.device(device or "cpu")
    except RuntimeError as error:
        raise InputError(f"no device '{device}'; name one of torch's, such as cpu, cuda, cuda:1 or mps") from error
    # Code that keeps something per device (cuDNN's RNNs) wants its number.
    return torch.device("cuda", 0) if chosen.type == "cuda" and chosen.index is None else chosen


def pretended_device(device: torch.device, *, is_run: bool) -> tuple[torch.device, tuple[str, ...]]:
    """The device that the tensors of the static pass claim, and warnings. A CPU-only torch cannot claim CUDA: an error,
    unless real runs were requested too; then the static figures are those of the CPU."""
    import torch

    if device.type != "cuda" or torch.version.cuda is not None or torch.version.hip is not None:
        return device, ()
    unknown = f"this torch is CPU-only and has no '{device}'"
    if not is_run:
        raise InputError(f"{unknown}; omit --device: parameters and MACs are the same on the CPU")
    return torch.device("cpu"), (f"{unknown}: the static figures are those of the CPU",)


def chosen_execution(execution: str | None, target: Any) -> str:
    """The requested execution; by default, that of the model: a compiled one is analysed as such."""
    from torch.nn import Module

    if execution is not None and execution not in EXECUTIONS:
        raise UsageError(f"no execution '{execution}'; one of: {', '.join(EXECUTIONS)}")
    # Dynamo is loaded once a model has been compiled.
    if execution is None and isinstance(target, Module) and "torch._dynamo" in sys.modules:
        from torchgauge.measure.compiled import is_compiled

        return COMPILED if is_compiled(target) else EAGER
    return execution or EAGER


def unwrapped(target: Any) -> Any:
    """A path as text, a module without what torch.compile and data parallelism put around it."""
    from torch.nn import Module

    from torchgauge.capture import unwrap

    subject = os.fspath(target) if isinstance(target, os.PathLike) else target
    return unwrap(subject) if isinstance(subject, Module) else subject


def stored_path(target: Any, *, takes_code: bool = True) -> str | None:
    """The file or folder that a target names; None for a live model and for Python code. Where code is not a target
    (`takes_code`), a Python file is a file like others."""
    if not isinstance(target, str | os.PathLike):
        return None
    text = os.fspath(target)
    path = text.strip().removeprefix("hf:")
    return path if (is_model_path(text) if takes_code else os.path.exists(path)) else None


# Default size limits of automatic scans, in bytes.
WEIGHTS_BYTES = 4 << 30
DEEP_BYTES = 2 << 30


def switch(value: bool | str, name: str) -> bool | None:
    """None for "auto"."""
    if value == "auto":
        return None
    if not isinstance(value, bool):
        raise UsageError(f'{name} is True, False or "auto", not {value!r}')
    return value


def reads_weights(source: Source, weights: bool | None) -> bool:
    if weights is not None:
        return weights
    return source.index is not None and source.index.stored_bytes <= WEIGHTS_BYTES


@dataclass(frozen=True, slots=True)
class Depth:
    """How far weight values are analysed; `deep` None decides by size."""

    deep: bool | None
    spectrum: bool

    @classmethod
    def of(cls, deep: bool | str, spectrum: bool) -> Depth:
        chosen = switch(deep, "deep")
        if spectrum and chosen is False:
            raise UsageError("singular values are deep figures: leave out --no-deep (deep=False) or --spectrum")
        return cls(True if spectrum else chosen, spectrum)

    def request(self, nbytes: int) -> ScanRequest:
        from torchgauge.weights import ScanRequest

        deep = nbytes <= DEEP_BYTES if self.deep is None else self.deep
        return ScanRequest(deep=deep, spectrum=self.spectrum)


def known_heads(architecture: ArchitectureRecord | None) -> int | None:
    heads = architecture.hyperparameters.get("heads") if architecture else None
    return heads if isinstance(heads, int) else None
