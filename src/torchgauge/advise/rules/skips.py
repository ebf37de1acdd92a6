"""Skip connections whose input is overwritten before it is added."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence, common_path
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord, TensorSpec, is_within

_ACTIVATIONS = {
    f"aten::{name}_"
    for name in ("relu", "leaky_relu", "elu", "silu", "hardtanh", "hardswish", "relu6", "mish", "gelu", "rrelu",
                 "rrelu_with_noise", "tanh", "sigmoid", "threshold", "clamp_min")
}  # fmt: skip
_SUMS = ("aten::add", "aten::add_")
# Activations that leave numbers from 0 on alone, ops whose results are such numbers, and ops that keep them so.
_KEEP_POSITIVE = {"aten::relu_", "aten::leaky_relu_", "aten::elu_"}
_POSITIVE = {
    f"aten::{name}"
    for name in ("relu", "relu_", "sigmoid", "sigmoid_", "_softmax", "softmax", "abs", "exp", "softplus", "rand",
                 "ones", "zeros", "hardsigmoid")
}  # fmt: skip
_KEEPING = {
    f"aten::{name}"
    for name in ("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "mean", "cat", "add", "add_", "mul",
                 "clone", "native_dropout", "_to_copy", "upsample_nearest2d", "upsample_bilinear2d")
}  # fmt: skip
_MOST_OPS_BACK = 8
# Modules of torch that take `inplace`.
_SWITCHED = {"ReLU", "ReLU6", "LeakyReLU", "ELU", "CELU", "SELU", "SiLU", "Hardswish", "Hardtanh", "Mish", "RReLU",
             "Threshold"}  # fmt: skip


@rule("in-place-before-skip", family="bugs")
def in_place_before_skip(evidence: Evidence) -> Iterator[Advice]:
    """`x + self.branch(x)`, where the branch starts with an activation in place: what is added is no longer x. Where
    activation and sum are in one forward (`y = self.act(x); y + self.conv(y)`), both paths may be meant to get it."""
    for written in evidence.flow.steps:
        if written.op not in _ACTIVATIONS:
            continue
        source, record = evidence.flow.source(written), evidence.modules.get(written.module)
        is_given = (written.index, 0) in evidence.dataflow.input_reads
        for total in evidence.flow.users(written):
            branch = _branch(evidence, written, total)
            # It must overwrite the input of the branch, with other numbers than were there.
            if branch is None or (not is_given if source is None else is_within(source.module, branch)):
                continue
            if written.op in _KEEP_POSITIVE and source is not None and _is_positive(evidence, source, _MOST_OPS_BACK):
                continue
            is_switched = record is not None and record.type in _SWITCHED
            yield Advice(
                rule="in-place-before-skip",
                where=Where(written.module, (written.index, total.index), source=evidence.line_of(total.index)),
                evidence={"op": written.op, "branch": branch},
                recommendation="use inplace=False here: this overwrites the input that the skip connection adds",
                change=Patch("model.get_submodule(path).inplace = False", ("path",), ((written.module,),))
                if is_switched
                else None,
                expected_gain=None,
                risk="trained weights expect this: train again, or add the activated input",
                confidence="high",
                kind="bug",
            )
            break


def _branch(evidence: Evidence, written: OpRecord, total: OpRecord) -> str | None:
    """The module that holds the activation and returns the other term of the sum to the module of the sum. Its result
    is a single tensor, so the sum gets the overwritten one from the caller."""
    if total.op not in _SUMS or len(total.producers) != 2 or total.producers[0] == total.producers[1]:
        return None
    own = total.producers.index(written.index)
    other, shape = evidence.flow.source(total, 1 - own), written.signature.outputs[0].shape
    if other is None or {spec.shape for spec in total.signature.inputs} != {shape}:
        return None
    # A module with several names is used in several places, and its path is that of the first.
    records = [evidence.modules.get(op.module) for op in (written, other)]
    if any(each is not None and each.aliases for each in records):
        return None
    common = common_path([written.module, other.module])
    is_below = common != total.module and is_within(common, total.module)
    record = evidence.modules.get(common)
    if not is_below or record is None or record.calls == 0 or not isinstance(record.outputs, TensorSpec):
        return None
    return common if written in evidence.dataflow.ancestors(other, _MOST_OPS_BACK * 8, until=written) else None


def _is_positive(evidence: Evidence, op: OpRecord, farthest: int) -> bool:
    """Whether no element of its result is below 0, by the ops that made it."""
    if op.op in _POSITIVE or op.op.rstrip("_") == "aten::hardtanh":
        return not op.op.startswith("aten::hardtanh") or op.signature.attributes.get("min_val") == 0
    if op.op not in _KEEPING or not farthest or op.weights:
        return False
    sources = [evidence.flow.source(op, at) for at in range(len(op.producers))]
    return bool(sources) and all(
        source is not None and _is_positive(evidence, source, farthest - 1) for source in sources
    )
