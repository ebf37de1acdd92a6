"""Ops that could be one: a batch norm behind a convolution, an activation behind a linear layer."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.records import OpRecord

_LINEAR_OPS = {"aten::addmm", "aten::mm", "aten::linear", "aten::bmm", "aten::baddbmm"}
_NORMS = {"BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"}
# Below this share of the model an activation is not worth a change.
_LEAST_ACTIVATION_TIME, _LEAST_ACTIVATION_BYTES = 0.05, 0.15
_LEAST_NORM = 0.005


@rule("conv-bn-fusion", family="fusion")
def conv_bn(evidence: Evidence) -> Iterator[Advice]:
    """In inference a batch norm is a scale and a shift per channel: the convolution before it can hold them."""
    if evidence.is_train:
        return
    pairs = [pair for op in evidence.flow.steps if (pair := _folding_pair(evidence, op))]
    if evidence.share(norm for _, norm in pairs).value < _LEAST_NORM:
        return
    for convolution, norm in pairs:
        yield Advice(
            rule="conv-bn-fusion",
            where=Where(norm.module, (convolution.index, norm.index)),
            evidence={"convolution": convolution.module, "norm_bytes_moved": moved(norm)},
            recommendation="fold the batch norm into the convolution before it: inference needs no pass for it",
            code=_fold_code(evidence, convolution, norm),
            expected_gain=evidence.share([norm]).gain(0.5, 1.0, "the batch norm's pass over its input and output"),
            risk="for inference only, and only if nothing else reads the convolution's output; rounding differs",
            confidence="high" if evidence.is_released(convolution, norm) else "medium",
        )


def _folding_pair(evidence: Evidence, norm: OpRecord) -> tuple[OpRecord, OpRecord] | None:
    if "batch_norm" not in norm.op or norm.signature.attributes.get("training", False) or not norm.weights:
        return None
    convolution = evidence.flow.before(norm)
    if convolution is None or convolution.category != "convolution" or not convolution.weights:
        return None
    is_repeated = any(evidence.modules[op.module].calls > 1 for op in (convolution, norm) if op.module)
    if is_repeated or not (evidence.is_released(convolution, norm) or _is_read_once(evidence, convolution, norm)):
        return None
    return (convolution, norm) if evidence.flow.sources(norm)[0] == convolution.index else None


def _is_read_once(evidence: Evidence, convolution: OpRecord, norm: OpRecord) -> bool:
    """A sum of two tensors like this one may have it as the other operand."""
    made = convolution.signature.outputs[0]
    later = (op for op in evidence.flow.steps if op.index > norm.index)
    return evidence.flow.users(convolution) == [norm.index] and all(op.signature.inputs.count(made) < 2 for op in later)


def _fold_code(evidence: Evidence, convolution: OpRecord, norm: OpRecord) -> str | None:
    """None where the two are not plain modules: a batch norm with an activation inside cannot be taken out."""
    first, second = (evidence.modules.get(op.module) for op in (convolution, norm))
    if first is None or second is None or not first.type.startswith("Conv") or second.type not in _NORMS:
        return None
    transposed = ", transpose=True" if convolution.signature.attributes.get("transposed") else ""
    conv, bn = f"model.get_submodule('{first.path}')", f"model.get_submodule('{second.path}')"
    fused = f"torch.nn.utils.fusion.fuse_conv_bn_eval({conv}, {bn}{transposed})"
    return f"model.set_submodule('{first.path}', {fused}); model.set_submodule('{second.path}', torch.nn.Identity())"


@rule("linear-activation", family="fusion")
def linear_activation(evidence: Evidence) -> Iterator[Advice]:
    """Where few features meet many rows, the activation's pass over memory costs as much as the product's."""
    found = [(product, op) for op in evidence.flow.steps if (product := _product_before(evidence, op))]
    share = evidence.share(op for _, op in found)
    if share.value < (_LEAST_ACTIVATION_TIME if share.quantity == "time_s" else _LEAST_ACTIVATION_BYTES):
        return
    for product, op in found:
        yield Advice(
            rule="linear-activation",
            where=Where(op.module, (product.index, op.index)),
            evidence={"activation": op.op, "linear": product.module, "activation_bytes_moved": moved(op)},
            recommendation="let the activation run in the linear layer's kernel: compiled, it needs no pass of its own",
            code="model = torch.compile(model)",
            expected_gain=evidence.share([op]).gain(0.3, 1.0, "the activation's pass over its input and output"),
            risk="compiling takes time at the first call and at every new shape",
            confidence="medium",
        )


def _product_before(evidence: Evidence, op: OpRecord) -> OpRecord | None:
    if op.category != "activation":
        return None
    product = evidence.flow.before(op)
    is_product = product is not None and product.op in _LINEAR_OPS and bool(product.weights)
    return product if product and is_product and product.index in evidence.flow.sources(op) else None
