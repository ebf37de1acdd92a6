"""Layers that compute rows which nothing reads: a head over all positions of which the last one is taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torchgauge.advise.dataflow import RANDOM
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import LEAST_PREDICTED_TIME, rule
from torchgauge.advise.rules.broadcast import CLOSED
from torchgauge.advise.rules.folding import LINEAR_OPS
from torchgauge.advise.rules.loops import outline
from torchgauge.facts import OpRecord, TensorSpec
from torchgauge.nested import find_all

# The share of the rows that may be read at most.
_MOST_READ = 0.5
# Ops that treat rows one by one, where they work along the last dimension.
_ALONG_ROWS = {"aten::native_layer_norm", "aten::_fused_rms_norm", "aten::_softmax", "aten::_log_softmax", "aten::glu"}
_POINTWISE = ("elementwise", "activation")
_SELECTIONS = {"aten::index", "aten::index_select", "aten::gather"}


@rule("unread-rows", family="order", least_time=LEAST_PREDICTED_TIME)
def unread_rows(evidence: Evidence) -> Iterator[Advice]:
    """In inference: `head(x)[:, -1]`, where `head(x[:, -1])` does. Layers of a stack are left alone, whose last one
    would have to be called in another way than the others, and so are those in library code."""
    if evidence.is_train or not evidence.dataflow.is_known:
        return
    stacked = Counter(outline(op.module) for op in evidence.flow.named(*LINEAR_OPS))
    covered = set[int]()
    for layer in evidence.flow.named(*LINEAR_OPS):
        record = evidence.modules.get(layer.module)
        is_closed = record is None or record.type in CLOSED or evidence.library_of(layer) is not None
        if is_closed or not layer.weights or layer.index in covered or stacked[outline(layer.module)] > 1:
            continue
        chain, read = _until_selected(evidence, layer)
        if read > _MOST_READ:
            continue
        covered |= {op.index for op in chain}
        yield Advice(
            rule="unread-rows",
            where=Where(layer.module, tuple(op.index for op in chain), source=evidence.call_line(layer.module)),
            evidence={"ops": len(chain), "rows": _rows(layer.signature.outputs[0]), "share_read": read},
            recommendation="select before this layer: most rows of its result are not read",
            change=None,
            expected_gain=evidence.share(chain).gain(
                0.7 * (1 - read), 1 - read, "the rows that nothing reads", fewer_calls=0.0
            ),
            risk="not where a loss or other code reads all rows",
            confidence="high",
        )


def _until_selected(evidence: Evidence, layer: OpRecord) -> tuple[list[OpRecord], float]:
    """The layer and the ops behind it that treat its rows one by one, until only some of them are read; and the share
    of the rows that is."""
    chain, flow = [layer], evidence.flow
    while True:
        last = chain[-1]
        made, users = last.signature.outputs[0], flow.users(last)
        if flow.is_held(last):
            return chain, _share_returned(evidence, last) if flow.is_result(last) and not users else 1.0
        reads = [
            (user, spec)
            for user in users
            for spec, source in zip(user.signature.inputs, user.producers, strict=False)
            if source == last.index
        ]
        if not reads:
            return chain, 1.0
        rows = [_rows_read(user, spec, made) for user, spec in reads]
        if None not in rows:
            return chain, sum(filter(None, rows)) / max(_rows(made), 1)
        (following, read), *others = reads
        is_whole = not others and read.numel == made.numel and read.shape[-1:] == made.shape[-1:]
        if not is_whole or not following.signature.outputs or not _treats_rows_alone(following, made):
            return chain, 1.0
        chain.append(following)


def _rows(made: TensorSpec) -> int:
    return made.numel // max(made.shape[-1], 1)


def _rows_read(user: OpRecord, read: TensorSpec, made: TensorSpec) -> int | None:
    """Of a reader that takes whole rows, but not all; None for another, and for one that writes to them."""
    width = made.shape[-1]
    if user.op.endswith("_"):
        return None
    if user.op in _SELECTIONS and read.numel == made.numel and read is user.signature.inputs[0]:
        taken = user.signature.outputs[0]
        is_by_rows = user.op != "aten::gather" and taken.shape[-1:] == (width,) and taken.numel < made.numel
        return _rows(taken) if is_by_rows else None
    is_by_rows = read.shape[-1:] == (width,) and (read.stride is None or read.stride[-1] == 1)
    return _rows(read) if is_by_rows and read.numel < made.numel else None


def _treats_rows_alone(op: OpRecord, made: TensorSpec) -> bool:
    result = op.signature.outputs[0]
    if RANDOM in op.signature.tags or op.op.endswith("dropout"):
        return False
    if op.op in LINEAR_OPS:
        return op.producers[1 if op.op == "aten::addmm" else 0] is not None and bool(op.weights)
    if op.op in _ALONG_ROWS:
        dim = op.signature.attributes.get("dim")
        # A norm has statistics for each row, or for several rows together.
        own = [spec.numel for spec in op.signature.outputs[1:]]
        is_along = dim in (None, -1, len(op.signature.inputs[0].shape) - 1)
        return is_along and all(each in (0, _rows(made)) for each in own)
    small = all(spec.numel * 2 <= made.numel for spec in op.signature.inputs if spec.numel != made.numel)
    return op.category in _POINTWISE and len(op.signature.inputs) <= 2 and small and result.numel == made.numel


def _share_returned(evidence: Evidence, op: OpRecord) -> float:
    """Of what the op made, the part that the model gives back."""
    made = op.signature.outputs[0]
    root = next(iter(evidence.capture.modules), None)
    given = [] if root is None else list(find_all(root.outputs, TensorSpec))
    # Of several results, a view of other rows is known by its strides.
    fitting = [
        spec
        for spec in given
        if spec.shape[-1:] == made.shape[-1:] and (spec.stride[-1] == 1 if spec.stride else len(given) == 1)
    ]
    if len(given) != len(evidence.flow.results) or len(fitting) != 1:
        return 1.0
    return fitting[0].numel / max(made.numel, 1)
