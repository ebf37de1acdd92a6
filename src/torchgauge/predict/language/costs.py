"""The cost of a pass by module, also at lengths that are too long to be traced.

The code of a model may loop over its tokens in Python (the reference code of Mamba and RWKV does): a prompt of 100,000
tokens is then millions of ops. Between the lengths at which windows fill, their number is a polynomial of the length,
and so is every cost. Such a model is traced at five shorter lengths with the same remainder modulo 64 or 512: three
of them determine the polynomial, and the other two must agree with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from torchgauge.facts import FREE, OpRecord, ParamRecord, is_within
from torchgauge.predict.language.passes import Pass

FIGURES = ("macs", "flops", "bytes_read", "bytes_written")
PARTS = ("weight_bytes", "matrix_bytes", "ops", "skipped_flops")
# Ops of one pass that are traced at most; longer prompts are extrapolated.
MAX_OPS = 10_000


@dataclass(frozen=True)
class Cost:
    """One call of the model for the whole batch. `weight_bytes` is the part of `bytes_read` that is parameters,
    `matrix_bytes` the part of these that is matrices of layers: what quantised formats quantise. `skipped_flops` is the
    part of `flops` that a causal kernel leaves out: scores of later tokens. `modules` have the figures of `FIGURES` and
    the same two parts."""

    macs: int = 0
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    weight_bytes: int = 0
    matrix_bytes: int = 0
    ops: int = 0
    skipped_flops: int = 0
    modules: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    uncounted: Mapping[str, int] = field(default_factory=dict)


def cost_of(run: Pass, params: Iterable[ParamRecord], stored: Mapping[str, int] | None = None) -> Cost:
    """`stored` has the bytes of parameters that are stored in another form than the one they are computed in."""
    stored = stored or {}
    sizes = {param.name: param.spec for param in params if not param.is_buffer}
    totals = dict.fromkeys((*FIGURES, *PARTS), 0)
    modules: dict[str, list[int]] = defaultdict(lambda: [0] * (len(FIGURES) + 2))
    uncounted: dict[str, int] = defaultdict(int)
    for segment in run.segments:
        times = segment.times
        for op in segment.ops:
            totals["ops"] += times
            if op.status == FREE:
                continue
            if op.status == "uncounted":
                uncounted[op.op] += times
            cost = op.cost
            row = modules[layer_pattern(op.module, segment.paths)]
            for place, name in enumerate(FIGURES):
                value = getattr(cost, name) * times
                totals[name] += value
                row[place] += value
            totals["skipped_flops"] += _skipped_flops(op) * times
            specs = [sizes[name] for name in dict.fromkeys(op.weights) if name in sizes]
            if not specs:
                continue
            # Bytes read minus the other inputs: of an embedding table, or of experts, only a part is read.
            counts, others = [spec.numel for spec in specs], 0
            for spec in op.signature.inputs:
                if spec.numel in counts:
                    counts.remove(spec.numel)
                else:
                    others += spec.distinct_bytes
            held = max(cost.bytes_read - others, 0) * times
            names = [name for name in dict.fromkeys(op.weights) if name in stored and name in sizes]
            if names:
                share = sum(stored[name] for name in names) / max(sum(sizes[name].nbytes for name in names), 1)
                saved = held - round(held * share)
                held -= saved
                totals["bytes_read"] -= saved
                row[2] -= saved
            totals["weight_bytes"] += held
            row[-2] += held
            if segment.paths and op.cost.macs and any(len(spec.shape) > 1 for spec in specs):
                totals["matrix_bytes"] += held
                row[-1] += held
    return Cost(**totals, modules={path: tuple(row) for path, row in modules.items()}, uncounted=dict(uncounted))


def _skipped_flops(op: OpRecord) -> int:
    """The FLOPs of an attention for scores of later tokens, which are counted and which a causal kernel leaves out. An
    attention with a mask of its own computes them."""
    if op.category != "attention" or op.signature.attributes.get("is_causal") is not True:
        return 0
    query, key = (spec.shape for spec in op.signature.inputs[:2])
    if len(query) < 2 or len(key) < 2 or not key[-2]:
        return 0
    queries, keys = query[-2], key[-2]
    within = min(queries, keys)
    computed = within * (within + 1) // 2 + (queries - within) * keys
    return op.cost.flops - op.cost.flops * computed // (queries * keys)


def layer_pattern(path: str, layers: list[str]) -> str:
    """`model.layers.*.mlp` for the module of a layer: equal layers are reported together."""
    for layer in layers:
        if is_within(path, layer):
            return f"{layer.rpartition('.')[0]}.*{path[len(layer) :]}"
    return path


def extended(lengths: list[int], values: list[Any], tokens: int) -> Any:
    """Extrapolate numbers, or structures of numbers, from five lengths to `tokens`; None where they do not lie on one
    polynomial of the second degree."""
    first = values[0]
    if isinstance(first, dict):
        if any(set(value) != set(first) for value in values):
            return None
        found = {key: extended(lengths, [value[key] for value in values], tokens) for key in first}
        return None if any(value is None and first[key] is not None for key, value in found.items()) else found
    if isinstance(first, list | tuple):
        if any(len(value) != len(first) for value in values):
            return None
        items = [extended(lengths, [value[place] for value in values], tokens) for place in range(len(first))]
        return (
            None if any(item is None and first[n] is not None for n, item in enumerate(items)) else type(first)(items)
        )
    if type(first) is not int:
        return first if all(value == first for value in values) else None
    points = list(zip(lengths, values, strict=True))
    if any(lagrange(points[2:], length) != value for length, value in points[:2]):
        return None
    result = lagrange(points[2:], tokens)
    return int(result) if result.denominator == 1 else None


def lagrange(points: list[tuple[int, int]], at: int) -> Fraction:
    total = Fraction(0)
    for x, y in points:
        term = Fraction(y)
        for other, _ in points:
            if other != x:
                term *= Fraction(at - other, x - other)
        total += term
    return total
