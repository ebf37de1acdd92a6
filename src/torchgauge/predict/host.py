"""Host time of a run: the time of the processor that launches the device's kernels.

The unit is the time of the sample of `host_sample`, a small model whose run waits for the host alone. The costs of ops
and modules are parts of it, fitted to 76 models by `tools/kernels/collect_host.py` (H200, torch 2.11), with the sample
run between their steps: the host's speed changes by half within seconds, the proportions hardly at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import exp2, hypot
from pathlib import Path

from torchgauge.facts import OpRecord, Signature
from torchgauge.predict.coordinates import is_silent, locate

_MATMULS = frozenset(f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm"))
_NORMS = frozenset(f"aten::native_{name}_norm" for name in ("batch", "layer", "group"))
CUDNN_ATTENTION = "aten::_scaled_dot_product_cudnn_attention"
# A list that an op of the optimizer goes over: one call for many tensors.
_LISTED = ("aten::_foreach", "aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad")
# For an op that was not measured: the median of the measured ones.
_UNKNOWN_WEIGHT = 1.2


_RECURRENT = {"aten::_cudnn_rnn": "recurrent", "aten::_cudnn_rnn_backward": "recurrent_backward"}
_HALF_TYPES = ("float16", "bfloat16")
_CALIBRATED = "as calibrated"


def host_work(op: OpRecord, per_op: Mapping[str, float], *, trains: bool) -> Iterator[tuple[str, float]]:
    """The parts of the costs that an op has and how much of each, as a model's code, autograd's engine or an optimizer
    calls it. `per_op` weights ops without a separate cost."""
    if trains and op.phase == "optimizer":  # counting its steps, on the CPU, is in the costs of its lists
        yield "listed", len(op.signature.inputs) if op.op.startswith(_LISTED) else 0
    elif is_silent(op):
        yield "view", 1
    elif op.op in _RECURRENT:
        yield _RECURRENT[op.op], 1
        # cuDNN is asked where each weight lies: for the gradients, and to gather weights that are not in one buffer, as
        # in bfloat16.
        if op.op != "aten::_cudnn_rnn" or op.signature.dtype == "bfloat16":
            attributes = op.signature.attributes
            yield "recurrent_weight", 4 * int(attributes["num_layers"]) * (2 if attributes.get("bidirectional") else 1)
        yield "launch", launches(op.signature)
    elif trains:
        yield "backward_op" if op.phase == "backward" else "forward_op", 1
    elif op.op == "aten::convolution":
        yield _convolution_part(op.signature), 1
    elif op.op in _MATMULS or op.op in _NORMS:
        yield "matmul" if op.op in _MATMULS else "norm", 1
    elif "_attention" in op.op:
        yield "cudnn_attention" if op.op == CUDNN_ATTENTION else "attention", 1
    else:
        yield "other", per_op.get(op.op, _UNKNOWN_WEIGHT)
        if op.op == "aten::cat":
            yield "cat_input", len(op.signature.inputs)
    if op.op == "aten::convolution" and (count := launches(op.signature)) > 1:
        yield "launch", count


def launches(signature: Signature) -> int:
    """The kernels of a call if a library launches many of them for one op: two for each step of a recurrent layer, and
    one per group for a 16-bit convolution in channels-last order with several filters per channel (both seen on the
    H200, cuDNN 9.19)."""
    if signature.op in _RECURRENT:
        return 2 * locate(signature).launches
    if signature.op != "aten::convolution" or signature.dtype not in _HALF_TYPES:
        return 1
    data, made = signature.inputs[0], signature.outputs[0]
    groups = int(signature.attributes.get("groups", 1))
    is_channels_last = data.stride is not None and len(data.shape) == 4 and data.stride[1] == 1
    return groups if is_channels_last and 1 < groups == data.shape[1] < made.shape[1] else 1


def _convolution_part(signature: Signature) -> str:
    """Depthwise ones run a kernel of torch itself, the others cuDNN's, which may convert the layout around it."""
    data, weight = signature.inputs[:2]
    groups = int(signature.attributes.get("groups", 1))
    if 1 < groups == data.shape[1] == signature.outputs[0].shape[1]:
        return "depthwise"
    kind = "grouped" if groups > 1 else "pointwise" if all(size == 1 for size in weight.shape[2:]) else "spatial"
    return f"{kind}_half" if signature.dtype in _HALF_TYPES else kind


@dataclass(frozen=True)
class _Costs:
    """In parts of the sample's forward (`forward`, `per_op`, `plan`) or of its training step (`train`).

    forward: convolutions (depthwise, pointwise, spatial, grouped, those of 16-bit types with `_half`), matmul, norm,
    cudnn_attention, attention, other, cat_input, view, module. train: forward_op, backward_op, view, listed, module.
    Both: recurrent, recurrent_backward, recurrent_weight, launch (of each kernel where a call has many).
    `per_op` weights the others by their bare calls, relative to a pointwise op. `structure` is half of a 90 % interval
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
        """The calibrated host; without a calibration (or with one of an earlier version) that of the H200 machines that
        the costs were fitted on."""
        if not facts or "forward_s" not in facts:
            return cls(**_fitted()[1], source="not calibrated: typical of H200 machines")
        # Without cuDNN's attention, calibration measures no plan.
        plan_s = facts.get("plan_s") or _fitted()[0].plan * facts["forward_s"]
        return cls(facts["forward_s"], facts["train_s"], plan_s, facts["spread"], _CALIBRATED)

    @property
    def is_measured(self) -> bool:
        """Whether it is that of the machine itself."""
        return self.source == _CALIBRATED

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

    def later_seconds(self, call: Signature, *, trains: bool) -> float:
        """Host time after the first kernel of an op that launches many: the device works in the meantime."""
        costs = _fitted()[0]
        each = costs.train["launch"] * self.train_s if trains else costs.forward["launch"] * self.forward_s
        return each * (launches(call) - 1)

    def module_seconds(self, *, trains: bool) -> float:
        costs = _fitted()[0]
        return costs.train["module"] * self.train_s if trains else costs.forward["module"] * self.forward_s
