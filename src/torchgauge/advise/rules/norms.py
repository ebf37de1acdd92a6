"""Normalisation written out by hand (square, mean, root, product), instance norms, and norms across rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.flow import Flow
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import ModuleRecord, OpRecord, TensorSpec

_MOST_EPS = 1e-2
_ROOTS = ("aten::rsqrt", "aten::sqrt", "aten::pow")
_ROOT_EXPONENTS = (0.5, -0.5)
_SUMS = ("aten::add", "aten::add_")
_VARIANCES = ("aten::var", "aten::var_mean")
_SPREADS = (*_VARIANCES, "aten::mean")
_SCALES = ("aten::mul", "aten::div", "aten::mul_", "aten::div_")
GROUP_NORM = """\
old = model.get_submodule(path)
new = torch.nn.GroupNorm(old.num_features, old.num_features, old.eps, affine=False)
new.weight, new.bias = old.weight, old.bias
model.set_submodule(path, new)"""
# By layer, the dimensions of a batch.
_INSTANCE_NORMS = {"InstanceNorm1d": 3, "InstanceNorm2d": 4, "InstanceNorm3d": 5}
# Of the work of an instance norm, what a group norm saves: 0.82 to 0.88 for 14 shapes of 0.3 to 16 MB alone. In models
# the next layer may then wait for the memory that the instance norm had brought into the cache.
_SPARED = (0.35, 0.85)
# Elements of a channel below which a group norm hardly gains (16: 15 to 35 %) or loses time (4: twice as long).
_LEAST_BY_CHANNEL = 32


@dataclass(frozen=True, slots=True)
class Norm:
    """`kind` is "layer" or "RMS" over the last dimension, "group" over all but the first."""

    ops: tuple[OpRecord, ...]
    kind: str

    @property
    def read(self) -> TensorSpec:
        return self.ops[0].signature.inputs[0]

    @property
    def size(self) -> int:
        """Of the parameters that torch's norm takes."""
        return self.read.shape[1 if self.kind == "group" else -1]

    @property
    def eps(self) -> float:
        return next(float(op.signature.attributes["other"]) for op in self.ops if _is_eps(op))

    @property
    def is_in_order(self) -> bool:
        """Whether torch's norm on a CPU takes what is read as it is, or copies it by whole rows."""
        return self.read.stride is None or (self.kind == "layer" and self.read.stride[-1] == 1)

    @property
    def words(self) -> str:
        if self.kind == "group":
            return "use F.group_norm with 1 group: written out, each op reads and writes memory"
        return f"use torch's {self.kind} norm: written out, each of its ops reads and writes memory"


@rule("norm-by-hand", family="fusion")
def norm_by_hand(evidence: Evidence) -> Iterator[Advice]:
    norms = written_norms(evidence)
    in_module: dict[str, list[Norm]] = {}
    for norm in norms:
        in_module.setdefault(norm.ops[0].module, []).append(norm)
    for norm in norms:
        ops = norm.ops
        copied = 0 if norm.read.stride is None or evidence.is_cuda else 2 * norm.read.nbytes
        spared = max(0.0, 1 - (moved(max(ops, key=moved)) + copied) / sum(map(moved, ops)))
        yield Advice(
            rule="norm-by-hand",
            where=Where(ops[0].module, tuple(op.index for op in ops)),
            evidence={
                "norm": norm.kind,
                "ops": len(ops),
                "passes": [op.op for op in ops],
                "bytes_moved": sum(map(moved, ops)),
            },
            recommendation=norm.words,
            change=_torch_norm(evidence, norm, in_module[ops[0].module]),
            expected_gain=evidence.share(ops).one_pass(spared, len(ops)),
            risk="rounding differs; keep a cast to float32 inside the norm",
            confidence="high",
        )


@rule("instance-norm", family="fusion")
def instance_norm(evidence: Evidence) -> Iterator[Advice]:
    """Torch runs an instance norm as a batch norm with statistics of its input, whose CPU kernel has no vector code. A
    group norm with one channel in each group computes the same in 0.12 to 0.18 of the time (14 shapes, 2 cores)."""
    if evidence.is_cuda or evidence.on or evidence.is_train:
        return
    for op in evidence.flow.of_category("normalization"):
        signature, record = op.signature, evidence.modules.get(op.module)
        if "batch_norm" not in op.op or not signature.attributes.get("training") or signature.inputs[0].shape[0] != 1:
            continue
        layer = record if record is not None and record.type in _INSTANCE_NORMS else None
        channels = None if layer is None else _channels(layer)
        if channels is None and (layer is not None or evidence.call_of(op, ("instance_norm",)) is None):
            continue
        # A group norm of images with their channels last took 3 to 6 times as long; an instance norm copies them first.
        copies = [source for source in evidence.flow.sources(op) if source.op == "aten::clone"]
        is_copied = any((source.module, source.source) == (op.module, op.source) for source in copies)
        if is_copied or prod(signature.inputs[0].shape[2:]) < _LEAST_BY_CHANNEL:
            continue
        # Torch only warns of another number of channels, as of a sequence, whose length changes.
        features = None if evidence.model is None else evidence.model.norm_features(op.module)
        calls = [each for each in evidence.flow.of_category("normalization") if each.module == op.module]
        is_one_size = len({each.signature.inputs[0].shape[1] for each in calls}) == 1
        is_replaced = layer is not None and features in (None, channels) and is_one_size
        # Torch repeats the parameters for each sample first.
        ops = [*(source for source in evidence.flow.sources(op) if source.weights and source.op == "aten::repeat"), op]
        yield Advice(
            rule="instance-norm",
            where=Where(op.module, tuple(each.index for each in ops)),
            evidence={"ops": len(ops), "is_layer": is_replaced},
            recommendation="use a group norm with one channel per group: the same, with a faster CPU kernel",
            change=Patch(GROUP_NORM, ("path",), ((op.module,),)) if is_replaced else None,
            expected_gain=evidence.share(ops).gain(
                *_SPARED, "measured for group norms of such shapes", fewer_calls=0.4
            ),
            risk="rounding differs; a group norm needs the batch dimension",
            confidence="high",
        )


def _channels(layer: ModuleRecord) -> int | None:
    """Of a batch that the layer gets: a group norm does not take a single sample."""
    given = layer.inputs[0] if isinstance(layer.inputs, list) and layer.inputs else None
    is_batch = isinstance(given, TensorSpec) and len(given.shape) == _INSTANCE_NORMS[layer.type]
    return given.shape[1] if isinstance(given, TensorSpec) and is_batch else None


def written_norms(evidence: Evidence) -> list[Norm]:
    """Those that torch has in one pass. On the CPU it has no such RMS norm, and its other norms copy what is not in
    order first."""
    found = [norm for op in evidence.flow.named(*_ROOTS) if (norm := _norm(evidence, op))]
    # Of a weight that is standardised in each call all can be computed before: `recomputed-weight`.
    found = [norm for norm in found if norm.ops[0].index not in evidence.dataflow.constants]
    return [norm for norm in found if evidence.is_cuda or (norm.kind != "RMS" and norm.is_in_order)]


def _torch_norm(evidence: Evidence, norm: Norm, same: Sequence[Norm]) -> Patch | None:
    """For a module that does nothing else, with its parameters; a norm amid a larger forward has to be edited. `same`
    are those of all calls of the module."""
    path, ops, read, size = norm.ops[0].module, norm.ops, norm.read, norm.size
    scales = [op.weights for op in ops if op.weights and op.op in _SCALES]
    shifts = [op.weights for op in ops if op.weights and op.op in _SUMS]
    shapes = {evidence.params[name].spec.shape if name in evidence.params else () for op in ops for name in op.weights}
    # By channel, the second dimension of what a group norm reads.
    by_channel = [(1, size, *(1 for _ in read.shape[2:])), (size, *(1 for _ in read.shape[2:]))]
    is_plain = all(shape in by_channel if norm.kind == "group" else shape == (size,) for shape in shapes)
    is_one = len({(each.kind, each.size, each.eps) for each in same}) == 1
    if not is_one or not evidence.is_whole(path, (op for each in same for op in each.ops), len(same)):
        return None
    if len(scales) > 1 or len(shifts) > 1 or not is_plain or (shifts and not (norm.kind != "RMS" and scales)):
        return None
    given = f", bias={bool(shifts)}" if norm.kind == "layer" and scales else ""
    kind = {"layer": f"LayerNorm({size}", "RMS": f"RMSNorm({size}", "group": f"GroupNorm(1, {size}"}[norm.kind]
    flag = "affine" if norm.kind == "group" else "elementwise_affine"
    lines = [f"old, new = model.get_submodule(path), torch.nn.{kind}, eps={norm.eps}, {flag}={bool(scales)}{given})"]
    pairs = [*zip(("weight",), scales, strict=False), *zip(("bias",), shifts, strict=False)]
    for own, weights in pairs:
        old = f"old.{weights[0].rpartition('.')[2]}"
        flat = f"torch.nn.Parameter({old}.detach().flatten())" if norm.kind == "group" else old
        lines.append(f"new.{own} = {flat}")
    return Patch("\n".join([*lines, "model.set_submodule(path, new)"]), ("path",), ((path,),))


def _norm(evidence: Evidence, root: OpRecord) -> Norm | None:
    """The ops of one normalisation, each reading what the one before made."""
    flow = evidence.flow
    if root.op == "aten::pow" and root.signature.attributes.get("exponent") not in _ROOT_EXPONENTS:
        return None
    eps = flow.source(root)
    spreads = _means(flow, flow.source(eps)) if eps is not None and _is_eps(eps) else []
    kind = _kind(spreads)
    scaled = next((op for op in flow.users(root) if op.op in _SCALES), None)
    if eps is None or kind is None or scaled is None or spreads[0].op not in _SPREADS:
        return None
    if not _divides(scaled, root, kind):
        return None
    # Torch's norms divide by the number of elements, not by one less.
    if any(op.signature.attributes.get("correction", 1) for op in spreads if op.op in _VARIANCES):
        return None
    square = None if spreads[0].op in _VARIANCES else flow.source(spreads[0])
    if spreads[0].op not in _VARIANCES and (square is None or not _is_square(square)):
        return None
    # The mean and its difference to the input, where the root scales that, perhaps after a parameter did.
    centred, inner = _centred(flow, scaled, kind), list[OpRecord]()
    if not centred:
        inner = [
            op
            for op in flow.sources(scaled)
            if op.op in _SCALES and _is_affine(op, kind) and flow.is_kept_for(op, scaled)
        ]
        centred = _centred(flow, inner[0], kind) if len(inner) == 1 else []
    # A norm over the variance always takes the mean away, and one over all positions is that of torch with it.
    if not centred and (square is None or kind == "group"):
        return None
    if not _is_of_one_tensor(evidence, centred, square or spreads[0], scaled, root, kind):
        return None
    if centred and square is not None:
        # The difference may be written out twice.
        again = flow.source(square)
        if again is None or again.op != "aten::sub" or again.producers != centred[-1].producers:
            return None
        centred = [*centred, again]
    # Scale and shift by parameters behind it.
    affine: list[OpRecord] = []
    reader = flow.only_reader(scaled)
    while reader is not None and reader.op in (*_SCALES, *_SUMS) and _is_affine(reader, kind) and len(affine) < 2:
        affine.append(reader)
        reader = flow.only_reader(reader)
    squares = [square] if square is not None else []
    found = {op.index: op for op in (*centred, *squares, *spreads, eps, root, *inner, scaled, *affine)}
    *within, _ = ops = [found[index] for index in sorted(found)]
    # A mean or deviation that is needed elsewhere is computed all the same, as one that is kept to undo the norm.
    kept = evidence.capture.run.kept_ops
    is_needed = (flow.is_result(op) or op.index in kept for op in within)
    if any(is_needed) or any(not found.keys() >= {user.index for user in flow.users(op)} for op in within):
        return None
    return Norm(tuple(ops), kind if centred else "RMS")


def _divides(scaled: OpRecord, root: OpRecord, kind: str) -> bool:
    """Whether an op divides by the root of the spread, and each element by that of its sample."""
    is_inverse = root.op == "aten::rsqrt" or root.signature.attributes.get("exponent") == -0.5
    at = scaled.producers.index(root.index)
    is_division = scaled.op.startswith("aten::div")
    return is_division is not is_inverse and (at == 1 or is_inverse) and _is_by_sample(scaled, at, kind)


def _is_by_sample(op: OpRecord, at: int, kind: str) -> bool:
    """Whether it is given one number for all that a norm takes together."""
    shape = op.signature.outputs[0].shape
    kept = 1 if kind == "group" else len(shape) - 1
    return op.signature.inputs[at].shape == (*shape[:kept], *(1 for _ in shape[kept:]))


def _is_of_one_tensor(
    evidence: Evidence, centred: Sequence[OpRecord], spread: OpRecord, scaled: OpRecord, root: OpRecord, kind: str
) -> bool:
    """Whether a tensor is scaled by its own spread, and its own mean taken away, not those of another."""
    if not centred:
        at = next(at for at, source in enumerate(scaled.producers) if source == root.index)
        whole = _read(evidence, scaled, 1 - at) if len(scaled.producers) == 2 else None
        return whole is not None and whole == _read(evidence, spread, 0)
    *means, difference = centred
    if difference.producers[1:] != (means[-1].index,) or not _is_by_sample(difference, 1, kind):
        return False
    whole, given = _read(evidence, difference, 0), _read(evidence, spread, 0)
    is_own = given == whole or evidence.flow.source(spread) is difference or spread.op not in _VARIANCES
    return whole is not None and whole == _read(evidence, means[0], 0) and is_own


def _read(evidence: Evidence, op: OpRecord, at: int) -> object | None:
    """A key for what an op reads, before it is cast: equal for one tensor in one shape; None where it is not known."""
    read = op.signature.inputs[at]
    while (source := evidence.flow.source(op, at)) is not None and source.op == "aten::_to_copy":
        op, at = source, 0
    origin = evidence.dataflow.input_reads.get((op.index, at)) if source is None else (source.index,)
    return None if origin is None else (origin, read.shape, read.stride)


def _centred(flow: Flow, scaled: OpRecord, kind: str) -> list[OpRecord]:
    """The means and the difference that a product reads."""
    for op in flow.sources(scaled):
        for mean in flow.sources(op) if op.op == "aten::sub" else ():
            means = _means(flow, mean) if mean.op in ("aten::mean", "aten::var_mean") else []
            if means and _kind(means) == kind:
                return [*means, op]
    return []


def _means(flow: Flow, last: OpRecord | None) -> list[OpRecord]:
    """A reduction, and the means of one dimension after the other that it is the last of."""
    found: list[OpRecord] = []
    while last is not None and (last.op == "aten::mean" or (not found and last.op in _SPREADS)):
        found.insert(0, last)
        before = flow.source(last) if last.op == "aten::mean" else None
        is_step = before is not None and before.op == "aten::mean" and flow.is_kept_for(before, last)
        last = before if is_step else None
    return found


def _kind(reductions: Sequence[OpRecord]) -> str | None:
    """By the dimensions that are reduced: the last one, or all but the first."""
    if not reductions:
        return None
    rank = len(reductions[0].signature.inputs[0].shape)
    dims = set[int]()
    for op in reductions:
        given = op.signature.attributes.get("dim")
        # Means of means keep their dimensions.
        if not isinstance(given, list) or len(op.signature.inputs[0].shape) != rank:
            return None
        dims |= {int(dim) % rank for dim in given}
    if dims == {rank - 1} and len(reductions) == 1:
        return "layer"
    return "group" if rank > 2 and dims == set(range(1, rank)) else None


def _is_affine(op: OpRecord, kind: str) -> bool:
    """By a parameter with one number for each place in the last dimension; of a group norm, for each channel."""
    made, given = op.signature.outputs[0], min(op.signature.inputs, key=lambda spec: spec.numel)
    from_last = len(made.shape) - 1 if kind == "group" else 1
    size = made.shape[-from_last]
    is_along = len(given.shape) >= from_last and given.shape[-from_last] == given.numel == size
    return bool(op.weights) and is_along


def _is_eps(op: OpRecord) -> bool:
    value = op.signature.attributes.get("other")
    return op.op in _SUMS and isinstance(value, float) and 0 < value < _MOST_EPS


def _is_square(op: OpRecord) -> bool:
    if op.op == "aten::pow":
        return op.signature.attributes.get("exponent") == 2
    # Of `x * x` the one tensor is listed once.
    return op.op == "aten::mul" and len(op.signature.inputs) == 1 and "other" not in op.signature.attributes
