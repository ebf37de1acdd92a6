"""Batch norms that inference need not compute: a scale and a shift per channel, which a neighbouring layer can hold."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import dedent

from torchgauge.advise.code import Patch, called
from torchgauge.advise.dataflow import same_axis
from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.processor import is_in_patches, loops_over_groups
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord, TensorSpec, enclosing_paths

LINEAR_OPS = {"aten::addmm", "aten::mm", "aten::linear"}
NORMS = {"BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"}
# timm's batch norm with an activation inside, which stays.
_NORM_WITH_ACTIVATION = "BatchNormAct2d"
_ROLES = {"conv-bn-fusion": "convolution", "linear-bn-fusion": "linear", "norm-linear-fusion": "layer"}
_PAIR = "    layer, bn = model.get_submodule(first), model.get_submodule(second)\n"
_REPLACE = """\
    model.set_submodule(first, fused)
    model.set_submodule(second, getattr(bn, 'act', torch.nn.Identity()))
"""
# Bodies of a loop over pairs; verification runs the same lines.
INTO_CONVOLUTION = f"""\
{_PAIR}\
    transposed = 'Transpose' in type(layer).__name__
    fused = torch.nn.utils.fusion.fuse_conv_bn_eval(layer.eval(), bn.eval(), transposed)
{_REPLACE}"""
INTO_LINEAR = f"""\
{_PAIR}\
    fused = torch.nn.utils.fusion.fuse_linear_bn_eval(layer.eval(), bn.eval())
{_REPLACE}"""
INTO_LAYER_BEHIND = f"""\
{_PAIR}\
    scale = bn.weight / (bn.running_var + bn.eps).sqrt()
    shift = bn.bias - bn.running_mean * scale
    sums = layer.weight.reshape(*layer.weight.shape[:2], -1).sum(-1)
    bias = 0 if layer.bias is None else layer.bias
    layer.bias = torch.nn.Parameter((sums @ shift + bias).detach())
    scaled = (layer.weight.transpose(1, -1) * scale).transpose(1, -1)
    layer.weight = torch.nn.Parameter(scaled.detach().contiguous())
    model.set_submodule(second, torch.nn.Identity())
"""
_HOW = "the batch norm's pass over its input and output"
_RISK = "for inference only; rounding differs in the last digits"
# Folding changes which blocks glibc gives back to Linux, so it may add page faults: of 81 measured models seven saved
# nothing or lost time, one of which is predicted to gain less than 1 %. In the six others the norms take less than this
# part of a run, and more than so many times that part where no memory is kept; 16 models like them got faster. Blocks
# between the two sizes, which glibc keeps, are in four of the six (docs/accuracy.md).
_RISK_OF_PAGES = "for inference only; page faults of freed memory may make it slower"
_MOST_RISKY_SHARE, _LEAST_RISKY_RATIO = 0.06, 2.3
_LEAST_RISKY_BYTES, _MOST_RISKY_BYTES = 6 << 20, 32 << 20
# With few norms of large blocks, what the heap does with one block decides: of 19 such models in which the norms take
# less than this part of a run, 10 saved nothing; of 27 others, one (docs/accuracy.md).
_FEW_NORMS, _LEAST_SWINGING_BYTES, _MOST_SWINGING_SHARE = 16, 1 << 20, 0.08


@dataclass(frozen=True, slots=True)
class Pair:
    """A batch norm and the layer that can hold it; `norms` are its calls, where the two always run together."""

    layer: OpRecord
    norm: OpRecord
    norms: tuple[OpRecord, ...] = ()


@rule("conv-bn-fusion", family="fusion")
def conv_bn(evidence: Evidence) -> Iterator[Advice]:
    yield from _advice(
        evidence,
        "conv-bn-fusion",
        _layer_before(evidence, _is_convolution),
        "fold the batch norm into the convolution before it: this removes one memory pass",
        lambda pair: _is_plain(evidence, pair, "Conv") and _fuses(pair),
        INTO_CONVOLUTION,
    )


@rule("linear-bn-fusion", family="fusion")
def linear_bn(evidence: Evidence) -> Iterator[Advice]:
    yield from _advice(
        evidence,
        "linear-bn-fusion",
        _layer_before(evidence, _is_linear_by_channel),
        "fold the batch norm into the linear layer before it: this removes one memory pass",
        # torch's function takes no norm without a weight.
        lambda pair: _is_plain(evidence, pair, "Linear") and f"{pair.norm.module}.weight" in pair.norm.weights,
        INTO_LINEAR,
    )


@rule("norm-linear-fusion", family="fusion")
def norm_linear(evidence: Evidence) -> Iterator[Advice]:
    """A batch norm in front of a layer that reads nothing else and pads nothing: its zeros would not be scaled."""

    def is_affine(pair: Pair) -> bool:
        layer, norm = (evidence.modules[op.module] for op in (pair.layer, pair.norm))
        is_layer = layer.type == "Linear" or layer.type.startswith("Conv")
        return is_layer and norm.type in NORMS and f"{norm.path}.weight" in pair.norm.weights

    norms = (norm for norm in _inference_norms(evidence) if _runs_once(evidence, norm))
    readers = ((norm, evidence.flow.only_reader(norm)) for norm in norms)
    yield from _advice(
        evidence,
        "norm-linear-fusion",
        [
            Pair(reader, norm)
            for norm, reader in readers
            if reader is not None and _takes_norm(evidence, norm, reader) and not _has_layer_before(evidence, norm)
        ],
        "fold the batch norm into the layer behind it: this removes one memory pass",
        is_affine,
        INTO_LAYER_BEHIND,
    )


def _advice(
    evidence: Evidence,
    rule_name: str,
    pairs: list[Pair],
    words: str,
    is_plain: Callable[[Pair], bool],
    statements: str,
) -> Iterator[Advice]:
    """The code does it for all pairs of plain modules; the others have none."""
    pairs = [pair for pair in pairs if not _is_slow_with_bias(evidence, pair.layer)]
    if evidence.is_train or not pairs:
        return
    are_plain = [is_plain(pair) for pair in pairs]
    times, norms = evidence.times, [op.index for pair in pairs for op in pair.norms or (pair.norm,)]
    norms_s, fresh_s = (sum(seconds.get(index, 0.0) for index in norms) for seconds in (times.seconds, times.fresh_s))
    all_fresh_s = sum(times.fresh_s.values())
    is_hidden = all_fresh_s > norms_s
    ratio = times.total * (norms_s + fresh_s) / max(norms_s * (times.total + all_fresh_s), 1e-30)
    largest = max(pair.norm.signature.outputs[0].nbytes for pair in pairs)
    is_large = is_hidden and _LEAST_RISKY_BYTES <= largest < _MOST_RISKY_BYTES
    is_undecided = norms_s < _MOST_RISKY_SHARE * times.total and (is_large or ratio > _LEAST_RISKY_RATIO)
    is_swinging = len(norms) < _FEW_NORMS and _LEAST_SWINGING_BYTES <= largest < _MOST_RISKY_BYTES
    if is_swinging and not evidence.is_cuda and norms_s < _MOST_SWINGING_SHARE * times.total:
        is_hidden = is_undecided = True
    for pair, has_code in zip(pairs, are_plain, strict=True):
        # On CUDA a convolution adds its bias in a separate kernel; one without a bias gets one from the norm. The call
        # of the norm goes away all the same.
        adds_bias = evidence.is_cuda and pair.layer.category == "convolution" and not _has_bias(evidence, pair.layer)
        # On a processor the norm reads what the layer has just written, from the nearest cache.
        low, high = (0.6, 0.85) if adds_bias else (0.8, 1.0) if evidence.is_cuda else (0.7, 0.9)
        low = 0.0 if is_undecided else low
        yield Advice(
            rule=rule_name,
            where=Where(pair.norm.module, tuple(sorted((pair.layer.index, pair.norm.index)))),
            evidence={_ROLES[rule_name]: pair.layer.module, "norm_bytes_moved": moved(pair.norm)},
            recommendation=words,
            change=Patch(
                dedent(statements), ("first", "second"), ((pair.layer.module, pair.norm.module),), "model.eval()"
            )
            if has_code
            else None,
            expected_gain=evidence.share(pair.norms or (pair.norm,)).gain(
                low,
                high,
                _HOW + (", less the bias's" if adds_bias else ""),
                fewer_calls=1.0 if adds_bias else None,
            ),
            risk=_RISK_OF_PAGES if is_hidden else _RISK,
            confidence="low" if is_undecided else "medium" if is_hidden else "high",
        )


def _has_bias(evidence: Evidence, layer: OpRecord) -> bool:
    weights = [evidence.params[name].spec for name in layer.weights if name in evidence.params]
    return any(len(spec.shape) == 1 for spec in weights)


def _is_slow_with_bias(evidence: Evidence, layer: OpRecord) -> bool:
    """Whether it is a convolution without a bias that torch computes without oneDNN on a CPU, where one takes about as
    long as the norm: of one small volume, where a bias is first copied to each element of the result (1 to 7 % of the
    convolution), or in groups one after the other, where each gets its part (40 % more)."""
    if layer.category != "convolution" or evidence.is_cuda or _has_bias(evidence, layer):
        return False
    is_volume = len(layer.signature.inputs[0].shape) == 5 and is_in_patches(layer)
    return is_volume or loops_over_groups(layer, evidence.capture.environment.threads)


def _inference_norms(evidence: Evidence) -> Iterator[OpRecord]:
    """Batch norms by their running statistics."""
    for op in evidence.flow.of_category("normalization"):
        if "batch_norm" in op.op and op.weights and not op.signature.attributes.get("training"):
            yield op


def _runs_once(evidence: Evidence, op: OpRecord) -> bool:
    return not op.module or evidence.modules[op.module].calls == 1


def _layer_before(evidence: Evidence, is_layer: Callable[[OpRecord, OpRecord], bool]) -> list[Pair]:
    """A network that runs on several images calls both as often, one behind the other."""
    calls: dict[tuple[str, str], list[tuple[OpRecord, OpRecord]]] = {}
    for norm in _inference_norms(evidence):
        layer = evidence.flow.source(norm)
        if layer is None or not is_layer(layer, norm) or not _takes_behind(evidence, layer, norm):
            continue
        is_chosen = are_chosen_apart(evidence, (layer.module, norm.module))
        if not (_is_order_needed(evidence, norm) or is_chosen or _is_skipped(evidence, layer, norm)):
            calls.setdefault((layer.module, norm.module), []).append((layer, norm))
    found = []
    for paths, pairs in calls.items():
        norms: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
        for layer, norm in pairs:
            norms.setdefault(layer.weights, set()).add(norm.weights)
        # A norm with statistics for each step of a loop would need a layer for each step.
        is_one_to_one = all(len(each) == 1 for each in norms.values())
        if not is_one_to_one or not are_alone(evidence, [layer for layer, _ in pairs]):
            continue
        counts = {evidence.modules[path].calls for path in paths if path}
        if "" in paths and len(pairs) > 1:
            found += [Pair(layer, norm) for layer, norm in pairs]
        elif counts <= {len(pairs)}:
            found.append(Pair(*pairs[0], tuple(norm for _, norm in pairs)))
    return found


def are_chosen_apart(evidence: Evidence, paths: Sequence[str]) -> bool:
    """Whether one of these modules is among several of which this call left some out, and another one is not: a norm
    or a layer for each domain. What is done to the other would be wrong for those."""
    called = evidence.once(_called_paths)
    for path in paths:
        for around, child in pairwise(enclosing_paths(path)):
            is_shared = all(each == child or each.startswith(f"{child}.") for each in paths)
            if is_shared or evidence.modules[around].type not in ("ModuleList", "ModuleDict"):
                continue
            kind = evidence.modules[child].type
            others = [each for each in evidence.capture.modules if each.parent == around and each.type == kind]
            if any(each.path not in called for each in others):
                return True
    return False


def _called_paths(evidence: Evidence) -> frozenset[str]:
    records = evidence.capture.modules
    return frozenset(path for each in records if each.calls for path in enclosing_paths(each.path))


def _is_skipped(evidence: Evidence, layer: OpRecord, norm: OpRecord) -> bool:
    """Whether another branch of the code calls the layer without the norm, as some do for a batch of one."""
    place = evidence.code_at(norm)
    owner = None if place is None else place[0].enclosing(place[0].statement(place[1]), ast.ClassDef)
    names = Counter(called(node) for node in ast.walk(owner or ast.Pass()) if isinstance(node, ast.Call))
    layer_calls, norm_calls = (names[op.module.rpartition(".")[2]] for op in (layer, norm))
    return layer_calls > norm_calls > 0


def _is_order_needed(evidence: Evidence, norm: OpRecord) -> bool:
    """Whether a norm also puts the channels of a turned tensor in order for the op that comes next. Without it a sum
    over the last dimension would jump from row to row: such a model got 6 to 31 % slower."""
    given, made = norm.signature.inputs[0], norm.signature.outputs[0]
    # A norm keeps the order "channels last" of images and volumes; for three dimensions there is no such order.
    if given.stride is None or len(given.shape) != 3 or evidence.is_cuda:
        return False
    # From one row to the next; an analysis without data records the order of the input for the result too.
    step = made.stride[-1] if made.stride else 1
    todo, seen = [norm], set[int]()
    while todo:
        op = todo.pop()
        for user in evidence.flow.users(op):
            if user.index in seen:
                continue
            seen.add(user.index)
            read = user.signature.inputs[user.producers.index(op.index)]
            if user.category in ("elementwise", "activation"):
                todo.append(user)
            elif read.shape[-1:] == made.shape[-1:] and (read.stride[-1] if read.stride else 1) == step:
                return True
    return False


def _has_layer_before(evidence: Evidence, norm: OpRecord) -> bool:
    """It is folded into that one."""
    layer = evidence.flow.source(norm)
    if layer is None or not (_is_convolution(layer, norm) or _is_linear_by_channel(layer, norm)):
        return False
    return _runs_once(evidence, layer) and _takes_behind(evidence, layer, norm)


def _takes_behind(evidence: Evidence, layer: OpRecord, norm: OpRecord) -> bool:
    return _holds_weight(layer) and evidence.flow.is_kept_for(layer, norm)


def _holds_weight(layer: OpRecord) -> bool:
    """Its inputs but the data are parameters as they are, not made from some: a norm of the weight would undo a
    scale."""
    data = 1 if layer.op == "aten::addmm" else 0
    return bool(layer.weights) and all(source is None for at, source in enumerate(layer.producers) if at != data)


def are_alone(evidence: Evidence, layers: Sequence[OpRecord]) -> bool:
    """Whether no other op reads the weights of these, as the decoder of a tied autoencoder does, and the model keeps no
    result of them: these are needed as they are."""
    own, users = {op.index for op in layers}, evidence.weight_users
    if not own.isdisjoint(evidence.capture.run.kept_ops):
        return False
    return all(user.index in own for op in layers for name in op.weights for user in users.get(name, ()))


def is_pointwise_convolution(op: OpRecord) -> bool:
    """A 1×1 convolution that computes each pixel from all channels of that pixel: a linear layer over the channels."""
    given = op.signature.attributes
    if op.category != "convolution" or given.get("transposed") or int(given.get("groups") or 1) != 1:
        return False
    is_plain = not any(given.get("padding") or ()) and set(given.get("stride") or (1,)) == {1}
    return is_plain and set(op.signature.inputs[1].shape[2:]) == {1}


def _is_convolution(layer: OpRecord, norm: OpRecord) -> bool:
    """The channels of both are the same: a view between them may have split them, or made positions of them."""
    made, read = layer.signature.outputs[0], norm.signature.inputs[0]
    return layer.category == "convolution" and _has_same_channels(made, read)


def _has_same_channels(made: TensorSpec, read: TensorSpec) -> bool:
    return made == read or (made.numel == read.numel and same_axis(1, read, made) == 1)


def _is_linear_by_channel(layer: OpRecord, norm: OpRecord) -> bool:
    """The features of the product are the channels of the norm: they lie next to each other in memory."""
    if layer.op not in LINEAR_OPS:
        return False
    read = norm.signature.inputs[0]
    step = 1 if read.stride is None and len(read.shape) == 2 else read.stride[1] if read.stride else 0
    return step == 1 and read.shape[1] == layer.signature.outputs[0].shape[-1]


def _takes_norm(evidence: Evidence, norm: OpRecord, layer: OpRecord) -> bool:
    made = norm.signature.outputs[0]
    is_own = _holds_weight(layer) and _runs_once(evidence, layer) and are_alone(evidence, [layer, norm])
    if not is_own or len(made.shape) < 2:
        return False
    if layer.op in LINEAR_OPS:
        inner = layer.cost.macs // max(layer.signature.outputs[0].numel, 1)
        return inner == made.shape[1] and made.numel == made.shape[0] * made.shape[1]
    known = layer.signature.attributes
    is_plain = not known.get("transposed") and known.get("groups") == 1 and not any(known.get("padding") or ())
    return layer.category == "convolution" and is_plain and _has_same_channels(made, layer.signature.inputs[0])


def _is_plain(evidence: Evidence, pair: Pair, kind: str) -> bool:
    """Modules of torch's, or timm's batch norm with an activation inside: what they do is known by their names. A layer
    of the model's own may have such a name, and its weight turned."""
    layer, norm = (evidence.modules[op.module].type for op in (pair.layer, pair.norm))
    is_own = evidence.model is not None and not evidence.model.is_torch_layer(pair.layer.module)
    return layer.startswith(kind) and not is_own and (norm in NORMS or norm == _NORM_WITH_ACTIVATION)


def _fuses(pair: Pair) -> bool:
    """With groups the weights of a transposed convolution lie otherwise than torch's function takes them to."""
    known = pair.layer.signature.attributes
    return not known.get("transposed") or known.get("groups") == 1
