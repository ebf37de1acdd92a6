"""TARGET -> a runnable model, and the inputs to run it with.

The names below load on first use: what reads stored weights alone does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.source.candidate import Candidate
    from torchgauge.source.exported import load_exported
    from torchgauge.source.inputs import candidate_inputs
    from torchgauge.source.source import Source
    from torchgauge.source.target import resolve
    from torchgauge.source.torchscript import load_torchscript
    from torchgauge.source.torchvision_ops import ensure_torchvision_imports, torchvision_ops_are_stubs
    from torchgauge.source.user_inputs import InputSpec, parse_dtype, parse_input

__all__ = [
    "Candidate",
    "InputSpec",
    "Source",
    "candidate_inputs",
    "ensure_torchvision_imports",
    "load_exported",
    "load_torchscript",
    "parse_dtype",
    "parse_input",
    "resolve",
    "torchvision_ops_are_stubs",
]

_HOMES = {
    "candidate": ("Candidate",),
    "exported": ("load_exported",),
    "inputs": ("candidate_inputs",),
    "source": ("Source",),
    "target": ("resolve",),
    "torchscript": ("load_torchscript",),
    "torchvision_ops": ("ensure_torchvision_imports", "torchvision_ops_are_stubs"),
    "user_inputs": ("InputSpec", "parse_dtype", "parse_input"),
}
__getattr__ = lazy_names(__name__, _HOMES)
