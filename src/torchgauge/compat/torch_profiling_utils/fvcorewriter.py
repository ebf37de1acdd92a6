"""FLOPs and activations of a model as dicts and JSON files, in fvcore's units."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchgauge.compat.fvcore.nn import ActivationCountAnalysis, FlopCountAnalysis
from torchgauge.compat.fvcore.nn.jit_analysis import JitModelAnalysis
from torchgauge.compat.fvcore.nn.jit_handles import Handle, elementwise_flop_counter, get_shape

Counts = dict[str, int]
Inputs = torch.Tensor | tuple[object, ...]


def _cumsum_flops(inputs: list[Any], outputs: list[Any]) -> int:
    """Each element but the first of a line is added to the sum so far."""
    shape = get_shape(inputs[0]) or []
    length = shape[inputs[1].toIValue()] if shape else 1
    return prod(shape) - prod(shape) // length if length else 0


# Ops that the writer counts in addition to fvcore: arithmetic by its result, sums by their additions.
EXTRA_OPS: dict[str, Handle] = {
    "aten::add": elementwise_flop_counter(0, 1),
    "aten::sub": elementwise_flop_counter(0, 1),
    "aten::mul": elementwise_flop_counter(0, 1),
    "aten::div": elementwise_flop_counter(0, 1),
    "aten::sum": elementwise_flop_counter(1, -1),
    "aten::mean": elementwise_flop_counter(1, 0),  # the sum's, and a division for each result
    "aten::cumsum": _cumsum_flops,
}


class FVCoreWriter:
    """Several inputs are given as a tuple. Without a model, call `analyze` first."""

    def __init__(self, model: nn.Module | None = None, inputs: Inputs | None = None) -> None:
        self._analyses: tuple[JitModelAnalysis, JitModelAnalysis] | None = None
        if model is not None and inputs is not None:
            self.analyze(model, inputs)

    def analyze(self, model: nn.Module, inputs: Inputs) -> None:
        """Take this model and these inputs from now on."""
        flops = FlopCountAnalysis(model, inputs).set_op_handle(**EXTRA_OPS)
        self._analyses = flops, ActivationCountAnalysis(model, inputs)

    def get_flop_dict(self, by: str = "by_module") -> Counts:
        """FLOPs by "by_module" (the whole is "") or "by_operator"."""
        return _counts(self._analysed()[0], by)

    def get_activation_dict(self, by: str = "by_module") -> Counts:
        """Activations by "by_module" (the whole is "") or "by_operator"."""
        return _counts(self._analysed()[1], by)

    def write_flops_to_json(self, output_filename: str | Path, by: str = "by_module") -> None:
        _write(self.get_flop_dict(by), output_filename)

    def write_activations_to_json(self, output_filename: str | Path, by: str = "by_module") -> None:
        _write(self.get_activation_dict(by), output_filename)

    def _analysed(self) -> tuple[JitModelAnalysis, JitModelAnalysis]:
        if self._analyses is None:
            raise RuntimeError("no model: pass one with its inputs, or call analyze(model, inputs) first")
        return self._analyses


def _counts(analysis: JitModelAnalysis, by: str) -> Counts:
    if by == "by_module":
        return dict(analysis.by_module())
    if by == "by_operator":
        return dict(analysis.by_operator())
    raise ValueError(f"counts are 'by_module' or 'by_operator', not {by!r}")


def _write(counts: Counts, filename: str | Path) -> None:
    Path(filename).write_text(json.dumps(counts, indent=4) + "\n", encoding="utf-8")
