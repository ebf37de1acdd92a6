"""Maximum pooling in one dimension after the other."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.processor import maximum_ns, seen_windows
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord

_POOLS = {f"aten::max_pool{n}d{end}": n for n in (2, 3) for end in ("", "_with_indices")}
_LAYERS = {"MaxPool2d", "MaxPool3d"}
# How far the time that is saved is from the predicted one: 24 pools of 2 and 3 dimensions, windows of 3 to 13.
_LESS, _MORE = 0.1, 0.1
_LEAST_SPARED = 0.2
_ROWS_FIRST = """\
pools = [torch.nn.{}(size, 1, padding) for size, padding in parts]
model.set_submodule(path, torch.nn.Sequential(*pools))"""


@rule("large-max-pool", family="order")
def large_max_pool(evidence: Evidence) -> Iterator[Advice]:
    """The maximum of a window is that of its rows' maxima. On a CPU a pool compares each value of each window."""
    if evidence.is_cuda or evidence.is_train:
        return
    for op in evidence.flow.of_category("pooling"):
        # With a stride the first of two pools would compute rows that the second leaves out.
        is_dense = op.op in _POOLS and set(_by_dimension(op, "stride", 0)) == {1}
        if not is_dense or op.signature.attributes.get("ceil_mode") or _reads_indices(evidence, op):
            continue
        seen, window = seen_windows(op), _by_dimension(op, "kernel_size", 1)
        spared = 1 - sum(maximum_ns([size]) for size in seen) / maximum_ns(seen)
        if spared < _LEAST_SPARED:
            continue
        record = evidence.modules.get(op.module)
        yield Advice(
            rule="large-max-pool",
            where=Where(op.module, (op.index,)),
            evidence={"window": list(window), "compared": prod(window), "needed": sum(window)},
            recommendation="pool rows first, then columns: the result is the same, with fewer values to compare",
            change=pools_by_row(op, None if record is None else record.type),
            expected_gain=evidence.share([op]).gain(
                spared - _LESS, min(spared + _MORE, 1.0), "fewer values are compared"
            ),
            risk="where values are equal, gradients go to another of them",
            confidence="high",
        )


def _by_dimension(op: OpRecord, name: str, otherwise: int) -> tuple[int, ...]:
    """An attribute of a pool, which may have one value for all dimensions, or none."""
    value, dimensions = op.signature.attributes.get(name), _POOLS[op.op]
    values = tuple(value) if isinstance(value, list | tuple) and value else (otherwise,)
    return values * dimensions if len(values) == 1 else values


def pools_by_row(op: OpRecord, layer: str | None) -> Patch | None:
    """Code for a pool that is a layer of torch's, of type `layer`."""
    window, padding = _by_dimension(op, "kernel_size", 1), _by_dimension(op, "padding", 0)
    if layer not in _LAYERS or set(_by_dimension(op, "dilation", 1)) != {1}:
        return None
    parts = []
    for at in reversed(range(len(window))):
        sizes = tuple(size if axis == at else 1 for axis, size in enumerate(window))
        parts.append((sizes, tuple(pad if axis == at else 0 for axis, pad in enumerate(padding))))
    return Patch(_ROWS_FIRST.format(layer), ("path", "parts"), ((op.module, tuple(parts)),))


def _reads_indices(evidence: Evidence, op: OpRecord) -> bool:
    """Whether something reads the positions of the maxima, or the layer gives them to its caller."""
    record = evidence.modules.get(op.module)
    if isinstance(record.outputs if record is not None and record.type in _LAYERS else None, list):
        return True
    return any(
        source == op.index and spec.dtype == "int64"
        for user in evidence.flow.users(op)
        for source, spec in zip(user.producers, user.signature.inputs, strict=False)
    )
