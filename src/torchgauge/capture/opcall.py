"""One call of an op: what was called, with what, on which tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchgauge.capture.opinfo import OpInfo
from torchgauge.capture.structure import tensors_in


@dataclass(frozen=True, slots=True)
class OpCall:
    """`tensors` are the tensors among the arguments, in order, one entry per occurrence."""

    func: Any
    info: OpInfo
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: list[Any]

    @property
    def distinct(self) -> list[Any]:
        """The tensors, each once."""
        return list({id(tensor): tensor for tensor in self.tensors}.values())

    @property
    def written(self) -> list[Any]:
        """The tensors it writes to."""
        if not self.info.written:
            return []
        arguments = self.bind()
        return list(tensors_in([arguments[name] for name in self.info.written]))

    @property
    def wanted(self) -> list[bool] | None:
        """Of an op that computes all gradients whether they are wanted or not (oneDNN's LSTM): those that autograd
        uses, as the `output_mask` of others has it."""
        if self.info.name != "aten::mkldnn_rnn_layer_backward":
            return None
        given = dict(zip([name for name, _ in self.info.arguments], self.args, strict=False))
        return [given[name].requires_grad for name in ("input", "hx_", "cx_tmp", "weight1")]

    def bind(self) -> dict[str, Any]:
        """Arguments by their schema names, defaults filled in."""
        bound = dict(self.info.arguments)
        for index, value in enumerate(self.args):
            name = self.info.arguments[index][0] if index < len(self.info.arguments) else f"arg{index}"
            bound[name] = value
        bound.update(self.kwargs)
        return bound
