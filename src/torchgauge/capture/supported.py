"""Whether this processor can run arithmetic in a type: tested in a separate process, which may crash."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import cache

import torch
from torch import nn

from torchgauge.capture.fake_tensor import dtype_name
from torchgauge.interpreter import python_command, python_environment

# Torch has its own kernels for the others on every processor; these use instructions that some processors lack.
_PROBED_TYPES = frozenset((torch.bfloat16, torch.float16))
_TIMEOUT_S = 120.0
# The sizes are such that torch hands the work to oneDNN, as in a model.
_PROBE = """
import torch
dtype = getattr(torch, {name!r})
with torch.no_grad():
    torch.nn.Linear(256, 256, dtype=dtype)(torch.ones(64, 256, dtype=dtype))
    torch.nn.Conv2d(16, 16, 3, dtype=dtype)(torch.ones(2, 16, 32, 32, dtype=dtype))
"""


def missing_arithmetic(dtype: torch.dtype | None, device: torch.device) -> str | None:
    """Why matrix products in this type cannot run here; None where they can."""
    return _probe(dtype_name(dtype)) if device.type == "cpu" and dtype in _PROBED_TYPES else None


def unsupported(model: nn.Module, device: torch.device, dtype: torch.dtype | None = None) -> str | None:
    """The same for the types of a model's parameters, or for `dtype`: an instruction that the processor lacks would end
    the user's program, not raise."""
    kinds = dict.fromkeys(dtype or parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(filter(None, (missing_arithmetic(kind, device) for kind in kinds)), None)


@cache
def _probe(name: str) -> str | None:
    command, variables = python_command("-c", _PROBE.format(name=name)), python_environment()
    try:
        code = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False, env=variables).returncode
    except subprocess.TimeoutExpired:
        return f"{name} did not respond within {_TIMEOUT_S:.0f} s"
    return f"{name} cannot run on this processor: {death_text(code)}" if code else None


def death_text(code: int) -> str:
    """The meaning of the exit status of a process."""
    if code == -signal.SIGILL:
        return "the processor lacks an instruction that torch uses for it (SIGILL)"
    if sys.platform != "win32" and code == -signal.SIGKILL:
        return "it was stopped: it took too long, or was out of memory"
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with status {code}"
