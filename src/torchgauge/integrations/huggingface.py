"""A callback for the Trainer of transformers: the summary of the model when training begins.

    from torchgauge.integrations.huggingface import GaugeCallback

    trainer = Trainer(model, args, train_dataset=data, callbacks=[GaugeCallback(depth=2, seq=128)])

The inputs are inferred from the model's configuration, with the batch size of the training: no data are drawn, so
the order of the samples is unaffected.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchgauge.errors import MissingDependencyError
from torchgauge.integrations.summary import Summary
from torchgauge.source.packages import torchvision_importable

try:
    # It may import torchvision, which may not fit this torch.
    with torchvision_importable():
        from transformers import TrainerCallback
except ImportError as error:
    raise MissingDependencyError("transformers", "the callback of its Trainer") from error

if TYPE_CHECKING:
    from torchgauge.analysis import Analysis


class GaugeCallback(TrainerCallback):  # type: ignore[misc]
    """Prints the model's totals and its module tree, on the first process only. `analysis` is the result. Further
    options are those of `analyze`: `seq`, `inputs`, `mode` …"""

    def __init__(
        self,
        *,
        depth: int | None = None,
        columns: Sequence[str] | None = None,
        save: Sequence[str | Path] = (),
        show: bool = True,
        **options: Any,
    ) -> None:
        self._summary = Summary(depth, columns, save, show, options)
        self.analysis: Analysis | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs.get("model")
        if not state.is_world_process_zero or model is None:
            return
        given = {} if {"inputs", "input_size"} & self._summary.options.keys() else {"batch": args.train_batch_size}
        self.analysis = self._summary.of(model, **given)
