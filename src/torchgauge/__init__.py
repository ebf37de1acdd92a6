"""Everything worth knowing about a PyTorch model.

The names below load on first use, so that `import torchgauge` and `torchgauge --help` do not import torch.
"""

import sys

if not sys.flags.safe_path and sys.argv[:1] == ["-m"] and "torchgauge" in sys.orig_argv[-len(sys.argv)]:
    # `python -m torchgauge` puts the working folder first on the path: a file there called `typing.py` would be
    # imported in place of Python's, also by the next line. `from __future__` imports a module too.
    del sys.path[0]

TYPE_CHECKING = False  # the module `typing` is most of the time of `import torchgauge`
if TYPE_CHECKING:
    from typing import Any

    from torchgauge.analysis import (
        Analysis,
        Comparison,
        Fit,
        Forecast,
        KnownDevice,
        Llm,
        WeightScan,
        analyze,
        compare,
        devices,
        fit,
        flops_per_token,
        forecast,
        llm,
        load,
        mfu,
        scan_weights,
    )
    from torchgauge.cost import Call, Work, formula
    from torchgauge.errors import (
        FormatError,
        ForwardError,
        InputError,
        LimitError,
        MissingDependencyError,
        TargetError,
        TorchgaugeError,
        UnpicklingWarning,
        UsageError,
    )

__version__ = "1.0.0"

__all__ = [
    "Analysis", "Call", "Comparison", "Fit", "Forecast", "FormatError", "ForwardError", "InputError", "KnownDevice",
    "LimitError", "Llm", "MissingDependencyError", "TargetError", "TorchgaugeError", "UnpicklingWarning", "UsageError",
    "WeightScan", "Work", "__version__", "analyze", "compare", "devices", "fit", "flops_per_token", "forecast",
    "formula", "llm", "load", "mfu", "scan_weights",
]  # fmt: skip

_HOMES = {
    "analysis": (
        "Analysis", "Comparison", "Fit", "Forecast", "KnownDevice", "Llm", "WeightScan", "analyze", "compare",
        "devices", "fit", "flops_per_token", "forecast", "llm", "load", "mfu", "scan_weights",
    ),
    "cost": ("Call", "Work", "formula"),
    "errors": (
        "FormatError", "ForwardError", "InputError", "LimitError", "MissingDependencyError", "TargetError",
        "TorchgaugeError", "UnpicklingWarning", "UsageError",
    ),
}  # fmt: skip


def __getattr__(name: str) -> "Any":
    from torchgauge.registry import lazy_names  # half of the time of `import torchgauge`

    return lazy_names(__name__, _HOMES)(name)


def __dir__() -> list[str]:
    return list(__all__)
