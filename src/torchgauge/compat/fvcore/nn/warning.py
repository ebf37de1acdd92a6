"""What is worth a warning in the log: ops that nothing counts, modules that were not called."""

from __future__ import annotations

import logging
from collections import Counter

from torch import nn

_logger = logging.getLogger(__name__)
# These hold modules and are never called, or have a forward that does nothing.
_NOT_CALLED = (nn.ModuleList, nn.ModuleDict, nn.Module, nn.Identity)


def warn_unsupported(ops: Counter[str]) -> None:
    for op, times in ops.items():
        _logger.warning("Unsupported operator %s encountered %d time(s)", op, times)


def warn_uncalled(model: nn.Module, names: set[str]) -> None:
    modules = dict(model.named_modules())
    skipped = {kind.forward for kind in _NOT_CALLED}
    uncalled = sorted(name for name in names if type(modules[name]).forward not in skipped)
    if uncalled:
        _logger.warning(
            "These modules were never called, or only through other methods than forward; what they did then counts "
            "for their callers: %s",
            ", ".join(uncalled),
        )
