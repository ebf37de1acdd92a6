"""Activations that could run in the kernel of the layer before them."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rules.folding import LINEAR_OPS
from torchgauge.facts import OpRecord

_PRODUCTS = LINEAR_OPS | {"aten::bmm", "aten::baddbmm"}
_RISK = "compiling takes time for every new shape"


@rule("linear-activation", family="fusion", option="compile")
def linear_activation(evidence: Evidence) -> Iterator[Advice]:
    """Where few features meet many rows, the activation's pass over memory costs as much as the product's. Plain
    torch.compile leaves a product to its library (measured on a CPU: no gain): there the weights must be frozen, on
    CUDA the kernels tuned."""
    if (evidence.is_train and not evidence.is_cuda) or _is_script(evidence):
        return
    how = 'mode="max-autotune"' if evidence.is_cuda else 'options={"freezing": True}'
    # Frozen on a CPU, a linear layer takes its activation along, a product of two batches does not.
    products = _PRODUCTS if evidence.is_cuda else LINEAR_OPS
    for op in evidence.flow.of_category("activation"):
        product = evidence.flow.source(op)
        if product is None or product.op not in products or not product.weights:
            continue
        if not evidence.flow.is_kept_for(product, op):
            continue
        yield Advice(
            rule="linear-activation",
            where=Where(op.module, (product.index, op.index)),
            evidence={"activation": op.op, "linear": product.module, "activation_bytes_moved": moved(op)},
            recommendation="compile the model with its kernels tuned: the activation can run with the linear layer"
            if evidence.is_cuda
            else "compile the model with its weights frozen: the activation runs with the linear layer",
            change=Patch(f"model = torch.compile(model{'' if evidence.is_cuda else '.eval()'}, {how})"),
            expected_gain=evidence.share([op]).gain(
                0.0 if evidence.is_cuda else 0.3, 1.0, "the activation's pass over its input and output"
            ),
            risk=_RISK if evidence.is_cuda else f"only under torch.no_grad(); {_RISK}",
            confidence="medium",
        )


@rule("conv-bn-activation", family="fusion", option="compile")
def conv_bn_activation(evidence: Evidence) -> Iterator[Advice]:
    """What is left when the batch norm is folded; compiled and frozen, both go."""
    if evidence.is_train or _is_script(evidence):
        return
    for op in evidence.flow.of_category("activation"):
        chain = _convolution_before(evidence, op)
        if not chain:
            continue
        yield Advice(
            rule="conv-bn-activation",
            where=Where(chain[-1].module, tuple(op.index for op in chain)),
            evidence={
                "activation": chain[-1].op,
                "convolution": chain[0].module,
                "activation_bytes_moved": moved(chain[-1]),
            },
            recommendation="compile the model with its weights frozen: the activation runs with the convolution",
            change=Patch('model = torch.compile(model.eval(), options={"freezing": True})'),
            expected_gain=evidence.share(chain[-1:]).gain(
                # On CUDA convolutions are library kernels, and the activation keeps a pass unless it joins another.
                0.0 if evidence.is_cuda else 0.3,
                1.0,
                "the activation's pass over its input and output, without the batch norm's",
            ),
            risk=f"only under torch.no_grad(); {_RISK}",
            confidence="medium",
        )


def _is_script(evidence: Evidence) -> bool:
    """torch.compile leaves a script as it is."""
    return evidence.model is not None and evidence.model.is_scripted("")


def _convolution_before(evidence: Evidence, op: OpRecord) -> list[OpRecord]:
    """Convolution, batch norm if there is one, activation, each read by the next alone; empty where it is none. A norm
    by the statistics of the batch cannot be folded, and the activation waits for them."""
    chain = [op]
    while (source := evidence.flow.source(chain[0])) is not None and evidence.flow.is_kept_for(source, chain[0]):
        chain.insert(0, source)
        if source.category == "convolution":
            return chain if source.weights else []
        if "batch_norm" not in source.op or source.signature.attributes.get("training") or len(chain) > 2:
            break
    return []
