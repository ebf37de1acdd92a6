"""What a run takes of the host, the processor that launches the device's kernels.

The unit is the time of the sample of `host_sample`, a small model whose run waits for the host alone. The costs of ops
and modules are parts of it, fitted to 76 models (`tools/collect_host.py`, H200, torch 2.11) between whose steps the
sample ran: the host's speed changes by half within seconds, its proportions hardly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import exp2, hypot
from pathlib import Path

from torchgauge.facts import OpRecord
from torchgauge.predict.coordinates import is_silent, locate

_MATMULS = frozenset(f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm"))
_NORMS = frozenset(f"aten::native_{name}_norm" for name in ("batch", "layer", "group"))
CUDNN_ATTENTION = "aten::_scaled_dot_product_cudnn_attention"
# A list that an op of the optimizer goes over: one call for many tensors.
_LISTED = ("aten::_foreach", "aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad")
# Of an op that was not measured: the middle of those that were.
_UNKNOWN_WEIGHT = 1.2


def host_work(op: OpRecord, per_op: Mapping[str, float], *, trains: bool) -> Iterator[tuple[str, float]]:
    """The parts of the costs that an op has and how much of each, as a model's code, autograd's engine or an optimizer
    calls it. `per_op` weighs ops that have no part of their own."""
    if trains and op.phase == "optimizer":  # counting its steps, on the CPU, is in the costs of its lists
        yield "listed", len(op.signature.inputs) if op.op.startswith(_LISTED) else 0
    elif is_silent(op):
        yield "view", 1
    elif trains:
        yield "backward_op" if op.phase == "backward" else "forward_op", 1
    elif op.op == "aten::convolution":
        yield "convolution_half" if op.signature.dtype in ("float16", "bfloat16") else "convolution", 1
    elif op.op in _MATMULS or op.op in _NORMS:
        yield "matmul" if op.op in _MATMULS else "norm", 1
    elif "_attention" in op.op:
        yield "cudnn_attention" if op.op == CUDNN_ATTENTION else "attention", 1
    else:
        yield "other", per_op.get(op.op, _UNKNOWN_WEIGHT)
        if op.op == "aten::cat":
            yield "cat_input", len(op.signature.inputs)


@dataclass(frozen=True)
class _Costs:
    """In parts of the sample's forward (`forward`, `per_op`, `plan`) or of its training step (`train`).

    forward: convolution, convolution_half (a 16-bit one), matmul, norm, cudnn_attention, attention, other, cat_input,
    view, module, recurrent_step, recurrent_backward_step. train: forward_op, backward_op, view, listed, module.
    `per_op` weighs the others: their bare calls against that of a pointwise op. `structure` is half of a 90 % interval
    in octaves: models that were left out of the fit."""

    forward: Mapping[str, float]
    train: Mapping[str, float]
    per_op: Mapping[str, float]
    plan: float
    structure: float


@cache
def _fitted() -> tuple[_Costs, Mapping[str, float]]:
    """The costs, and the speed of the hosts that they were measured on."""
    facts = json.loads((Path(__file__).parent / "host.json").read_text())
    return _Costs(**facts["costs"]), facts["speed"]


@dataclass(frozen=True)
class Host:
    """The speed of a host: seconds of the sample's forward and training step, and of a plan that cuDNN builds for an
    attention whose lengths it has not seen. `spread` is half of the 90 % interval of the speed, in octaves."""

    forward_s: float
    train_s: float
    plan_s: float
    spread: float
    source: str

    @classmethod
    def of(cls, facts: Mapping[str, float] | None) -> Host:
        """As calibration measured it; without (or from a file that an earlier version wrote) that of the H200 machines
        that the costs were fitted on."""
        if not facts or "forward_s" not in facts:
            return cls(**_fitted()[1], source="as measured on the hosts of H200s")
        # Where cuDNN has no attention, calibration measures no plan.
        plan_s = facts.get("plan_s") or _fitted()[0].plan * facts["forward_s"]
        return cls(facts["forward_s"], facts["train_s"], plan_s, facts["spread"], "as calibration measured it")

    @property
    def low(self) -> float:
        return 1 / self.high

    @property
    def high(self) -> float:
        """Times what is likely: 90 % of runs take less than this and more than `low`."""
        return exp2(hypot(self.spread, _fitted()[0].structure))

    @property
    def view_s(self) -> float:
        return _fitted()[0].forward["view"] * self.forward_s

    def seconds(self, op: OpRecord, *, trains: bool) -> float:
        costs = _fitted()[0]
        parts, unit_s = (costs.train, self.train_s) if trains else (costs.forward, self.forward_s)
        return unit_s * sum(parts[name] * amount for name, amount in host_work(op, costs.per_op, trains=trains))

    def module_seconds(self, *, trains: bool) -> float:
        costs = _fitted()[0]
        return costs.train["module"] * self.train_s if trains else costs.forward["module"] * self.forward_s

    def least_seconds(self, op: OpRecord) -> float:
        """What a recurrent layer takes at least in eager execution: cuDNN launches the steps of most one by one."""
        kinds = {"aten::_cudnn_rnn": "recurrent_step", "aten::_cudnn_rnn_backward": "recurrent_backward_step"}
        if op.op not in kinds:
            return 0.0
        return _fitted()[0].forward[kinds[op.op]] * self.forward_s * locate(op.signature).launches
