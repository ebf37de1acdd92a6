"""A callback for Lightning: the summary of the model when fitting starts.

    from torchgauge.integrations.lightning import GaugeSummary

    trainer = Trainer(callbacks=[GaugeSummary(depth=2, save=["model.html"])])

It takes `example_input_array` where the module has one, else the first batch of training. It works with `lightning` and
with `pytorch_lightning`, whichever is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchgauge.errors import MissingDependencyError
from torchgauge.integrations.summary import Summary, given_inputs, total_scalars

if TYPE_CHECKING:
    from torchgauge.analysis import Analysis

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback_types() -> tuple[type, ...]:
    """The callback classes of the packages in use; if none is, of the first that is installed."""
    installed = [name for name in PACKAGES if find_spec(name.partition(".")[0]) is not None]
    names = [name for name in PACKAGES if sys.modules.get(name)] or installed[:1]
    if not names:
        raise MissingDependencyError("lightning", "the Lightning callback")
    from torchgauge.source.packages import torchvision_importable

    # Lightning's metrics import torchvision, which may not fit this torch.
    with torchvision_importable():
        try:
            return tuple(dict.fromkeys(import_module(name).Callback for name in names))
        except ImportError as error:
            raise MissingDependencyError("lightning", "the Lightning callback") from error


class GaugeSummary(*_callback_types()):  # type: ignore[misc]
    """Prints the model's totals and its module tree, on the first process only; `log` gives the totals to the trainer's
    loggers. `analysis` is the result. Further options are those of `analyze`."""

    def __init__(
        self,
        *,
        depth: int | None = None,
        columns: Sequence[str] | None = None,
        save: Sequence[str | Path] = (),
        show: bool = True,
        log: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self._summary = Summary(depth, columns, save, show, options)
        self._log = log
        self.analysis: Analysis | None = None
        self._is_waiting = False

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Summarize the model now if it has an example of its inputs."""
        self.analysis, self._is_waiting = None, bool(trainer.is_global_zero)
        example = getattr(pl_module, "example_input_array", None)
        if self._is_waiting and example is not None:
            # A tuple holds the arguments, as in Lightning.
            self._summarize(trainer, pl_module, example)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._is_waiting:
            self._summarize(trainer, pl_module, given_inputs(pl_module, batch))

    def _summarize(self, trainer: Any, pl_module: Any, inputs: Any) -> None:
        self._is_waiting = False
        self.analysis = self._summary.of(pl_module, inputs=inputs)
        if self._log and self.analysis is not None:
            for logger in trainer.loggers:
                logger.log_metrics(total_scalars(self.analysis), step=trainer.global_step)
