"""What a model hardly means to compute: these come before any gain."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence

from torchgauge.advise.code import Patch, SourceEdit, called
from torchgauge.advise.dataflow import same_axis
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.masks import fill_value
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord

_SOFTMAX = {"aten::_softmax", "aten::_log_softmax", "aten::softmax", "aten::log_softmax"}
_PROBABILITIES = {"aten::_softmax", "aten::softmax"}
# Ops that may run between two softmaxes: scales, shifts, norms and copies of probabilities, which do not make logits of
# them as a logarithm does.
_BETWEEN = {
    f"aten::{name}"
    for name in ("_to_copy", "clone", "native_dropout", "mul", "div", "add", "sub", "rsub", "neg", "clamp", "clamp_min",
                 "clamp_max", "pow", "sqrt", "sum", "mean", "amax", "linalg_vector_norm", "reciprocal", "expand_copy")
}  # fmt: skip
_MOST_BETWEEN = 12
_DROPOUTS = {"aten::native_dropout", "aten::_fused_dropout"}
# Ops that write a tensor several times.
_COPYING = {"aten::repeat", "aten::repeat_interleave", "aten::clone", "aten::expand_copy"}
# Ops that write to a tensor without reading it.
_OVERWRITING = {"aten::copy_", "aten::fill_", "aten::zero_"}
_DRAWS = {"aten::bernoulli", "aten::bernoulli_"}
_UNIFORM = {"aten::rand", "aten::rand_like", "aten::uniform_", "aten::uniform"}
_MASKING = {"aten::mul", "aten::masked_fill", "aten::where"}
_SCALES = {"aten::mul", "aten::div"}
_COMPLEMENTS = {"aten::rsub", "aten::bitwise_not", "aten::logical_not"}
_THRESHOLDS = {"aten::lt", "aten::le", "aten::gt", "aten::ge", "aten::floor", "aten::floor_"}
# What the layers of torch fill their weights with, and layers that do.
_INITIALIZING = {"aten::uniform_", "aten::normal_"}
_LAYERS = (
    "Linear", "Bilinear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "RNN",
    "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell", "Embedding", "EmbeddingBag", "MultiheadAttention",
)  # fmt: skip
# Where these functions take `training` without its name.
_TRAINING_PLACES = {"dropout": 2, "dropout2d": 2, "alpha_dropout": 2, "batch_norm": 5}
# Usual are 1e-12 to 1e-3, and RecVAE has 0.1 on purpose. What is passed by mistake is larger: a momentum as 0.8 or 0.9,
# a number of channels, True.
_LARGE_EPS = 0.5
_EPS_SECOND = ("BatchNorm", "InstanceNorm", "LayerNorm", "RMSNorm", "SyncBatchNorm")
_TRAINED = "results in evaluation are random and less accurate"


def _bug(
    rule_name: str,
    op: OpRecord,
    words: str,
    change: Patch | SourceEdit | None,
    risk: str,
    source: str | None = None,
    **evidence: object,
) -> Advice:
    return Advice(
        rule=rule_name,
        where=Where(op.module, (op.index,), op.weights[0] if len(op.weights) == 1 else None, source),
        evidence={"op": op.op, **evidence},
        recommendation=words,
        change=change,
        expected_gain=None,
        risk=risk,
        confidence="high",
        kind="bug",
    )


@rule("double-softmax", family="bugs")
def double_softmax(evidence: Evidence) -> Iterator[Advice]:
    for op in evidence.flow.named(*_SOFTMAX):
        source = _softmax_before(evidence, op)
        if source is None or source.signature.outputs[0].numel != op.signature.inputs[0].numel:
            continue
        # The first of the two goes: a module, or the call of a function.
        change: Patch | SourceEdit | None = evidence.without_calls([source], ("softmax",))
        record = evidence.modules.get(source.module)
        if record is not None and record.type == "Softmax" and source.module:
            change = Patch("model.set_submodule(path, torch.nn.Identity())", ("path",), ((source.module,),))
        yield _bug(
            "double-softmax",
            op,
            "remove one softmax: this one gets probabilities, not scores (cross_entropy has its own)",
            change,
            "none, unless two are intended",
            first=source.module,
        )


def _softmax_before(evidence: Evidence, op: OpRecord) -> OpRecord | None:
    """The softmax whose probabilities, and nothing else of the data, are what a softmax over the same axis is given:
    rows that are normalised and then columns, or positions and then channels, are not a mistake."""
    found: OpRecord | None = None
    seen, todo, is_same_axis = {op.index}, [(op, _axis(op))], False
    while todo and len(seen) <= _MOST_BETWEEN:
        near, axis = todo.pop()
        for at, index in enumerate(near.producers):
            source = evidence.flow.source(near, at)
            if source is None or index in seen:
                if (near.index, at) in evidence.dataflow.input_reads:
                    return None
                continue
            before = None if axis is None else _axis_before(near, at, source, axis)
            if source.op in _PROBABILITIES and found in (None, source):
                found, is_same_axis = source, is_same_axis or (before is not None and before == _axis(source))
            elif source.op.rstrip("_") in _BETWEEN:
                seen.add(source.index)
                todo.append((source, before))
            elif source.index not in evidence.dataflow.constants:
                return None
    return found if is_same_axis and not todo else None


def _axis(softmax: OpRecord) -> int | None:
    dim = softmax.signature.attributes.get("dim")
    return dim % max(len(softmax.signature.outputs[0].shape), 1) if isinstance(dim, int) else None


def _axis_before(op: OpRecord, at: int, source: OpRecord, axis: int) -> int | None:
    """The axis of what `source` made that is this axis of what `op` makes of it, element by element; None where `op`
    makes fewer elements, or views in between split the axis or joined it with others."""
    read, made = op.signature.inputs[at], op.signature.outputs[0]
    place = axis + len(read.shape) - len(made.shape)
    if place < 0 or read.numel != made.numel:
        return None
    return same_axis(place, read, source.signature.outputs[0])


def _in_training_only(evidence: Evidence, op: OpRecord) -> SourceEdit | None:
    """A function is given the mode of the module around it. A module that still trains after `model.eval()` is put back
    into that mode by the model's own code whenever it is called: nothing to paste lasts."""
    if _has_own_mode(evidence, op):
        return None
    found = evidence.call_of(
        op, ("dropout", "dropout2d", "alpha_dropout", "batch_norm", "scaled_dot_product_attention")
    )
    # A layer of such a name, `self.batch_norm(x)`, takes no mode.
    if found is None or not found[0].has_self(found[1]) or not found[0].is_of_import(found[1].func):
        return None
    source, call = found
    if called(call) == "batch_norm" and not _has_statistics(evidence, op, call):
        return None
    if called(call) != "scaled_dot_product_attention":
        return source.edit(source.with_keyword(call, "training", "self.training", place=_TRAINING_PLACES[called(call)]))
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "dropout_p"), None)
    value = None if given is None else f"{source.operand(given)} if self.training else 0.0"
    return None if value is None else source.edit(source.with_keyword(call, "dropout_p", value))


def _has_own_mode(evidence: Evidence, op: OpRecord) -> bool:
    """Whether it runs in a layer of torch's that `model.eval()` is meant to put in evaluation; without running
    statistics a batch norm has no such mode."""
    record = evidence.modules.get(op.module)
    if record is None or record.type.startswith("BatchNorm"):
        return f"{op.module}.running_mean".removeprefix(".") in evidence.params
    return "Dropout" in record.type


def _mode_set_at(evidence: Evidence, op: OpRecord) -> tuple[str, str | None]:
    """The line of the model's code that puts the layer back in training mode, as words and as a place."""
    model = evidence.model if _has_own_mode(evidence, op) else None
    line = None if model is None else model.mode_set_at(op.module)
    return ("" if line is None else f"; {line} puts it in training mode"), line


def _has_statistics(evidence: Evidence, op: OpRecord, call: ast.Call) -> bool:
    """Whether a call of `batch_norm` that always trains is given running statistics, which it needs in evaluation."""
    is_literal = any(isinstance(each, ast.Constant) for each in _given_mode(call))
    return is_literal and (bool(_buffers(evidence, op)) or len(op.signature.inputs) == 5)


def _buffers(evidence: Evidence, op: OpRecord) -> list[str]:
    return [name for name in op.weights if name in evidence.params and evidence.params[name].is_buffer]


def _given_mode(call: ast.Call) -> list[ast.expr]:
    """The argument `training` of a function of torch.nn.functional, if it is given."""
    place = _TRAINING_PLACES[called(call)]
    return [*call.args[place : place + 1], *(each.value for each in call.keywords if each.arg == "training")]


@rule("dropout-in-evaluation", family="bugs")
def dropout_in_evaluation(evidence: Evidence) -> Iterator[Advice]:
    if evidence.is_train:
        return
    found_ops, first_call = list[OpRecord](), set(evidence.capture.run.first_call_ops)
    for op in evidence.forward:
        attributes = op.signature.attributes
        # A mask that is drawn and not used changes no result; one that the first call draws and keeps is a choice of
        # connections, as in a reservoir.
        if op.index in first_call or (evidence.flow.results and op.index not in evidence.dataflow.reaching):
            continue
        is_dropout = (
            op.op in _DROPOUTS
            or (op.category == "attention" and bool(attributes.get("dropout_p")))
            or (op.category == "recurrent" and bool(attributes.get("dropout")) and bool(attributes.get("train")))
        )
        if is_dropout or _is_dropout_by_hand(evidence, op):
            found_ops.append(op)
    samples = _samples(evidence, found_ops)
    for op in found_ops:
        # Several samples of one tensor are Monte Carlo dropout, and so is what each of them goes through.
        if 1 < samples <= len(evidence.same_calls(op)) or _drops_copies(evidence, op):
            continue
        # An author who writes `training=True` means it: the randomness of a pre-net, Monte Carlo dropout. So does one
        # who adds a setting to the mode, or writes a class of dropout that stays on. Left out, the mode is true by
        # default, and forgotten.
        found = evidence.call_of(op, tuple(_TRAINING_PLACES))
        modes = [] if found is None else _given_mode(found[1])
        if any(_is_true(each) or _is_setting(each) for each in modes) or _is_called_with_true(evidence, op, modes):
            continue
        if evidence.model is not None and evidence.model.is_dropout_that_stays_on(op.module):
            continue
        cause, line = _mode_set_at(evidence, op)
        yield _bug(
            "dropout-in-evaluation",
            op,
            f"switch this dropout off in evaluation: {_TRAINED}{cause}",
            _in_training_only(evidence, op),
            "none, unless the randomness is intended (Monte Carlo dropout)",
            line,
        )


@rule("layer-in-forward", family="bugs")
def layer_in_forward(evidence: Evidence) -> Iterator[Advice]:
    """A layer that every call makes: its weights are random, and an optimizer never sees them."""
    first_call = set(evidence.capture.run.first_call_ops)
    seen = set[tuple[str | None, str]]()
    for op in evidence.forward:
        place = (op.source, op.module)
        if op.op not in _INITIALIZING or op.index in first_call or place in seen:
            continue
        if evidence.flow.results and op.index not in evidence.dataflow.reaching:
            continue
        # A filter that is written into a new layer takes the place of what was drawn.
        size, users = op.signature.inputs[0].numel, evidence.flow.users(op)
        if all(user.op in _OVERWRITING and user.signature.inputs[0].numel == size for user in users):
            continue
        code = evidence.code_at(op)
        if code is None or not code[0].calls(code[1], *_LAYERS) or evidence.is_kept(op):
            continue
        seen.add(place)
        yield _bug(
            "layer-in-forward",
            op,
            "make this layer in __init__: here every call draws new weights, and none is trained",
            None,
            "none, unless random weights are intended",
        )


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_setting(mode: ast.expr) -> bool:
    """Whether an argument or an attribute can switch it on beside the mode of the module: `self.training or
    self.is_sampled`."""
    parts = mode.values if isinstance(mode, ast.BoolOp) else []
    modes = [isinstance(part, ast.Attribute) and part.attr == "training" for part in parts]
    return any(modes) and not all(modes)


def _drops_copies(evidence: Evidence, op: OpRecord) -> bool:
    """Whether it is given the same values several times: samples of one tensor in a batch."""
    dropping, at = _dropped(evidence, op)
    source = None if at is None else evidence.flow.source(dropping, at)
    if at is None or source is None:
        return False
    # A copy of a tensor that was expanded reads its elements more than once.
    read = [dropping.signature.inputs[at], *(source.signature.inputs[:1] if source.op in _COPYING else ())]
    return min(each.distinct_numel for each in read) < read[0].numel


def _dropped(evidence: Evidence, op: OpRecord) -> tuple[OpRecord, int | None]:
    """The op that drops elements, by a mask that `op` draws or on its own, and where it reads them."""
    made = [op]
    while made[-1].op not in _DROPOUTS | {"aten::mul"} and (users := list(evidence.flow.users(made[-1]))):
        made.append(users[0])
    inside = {each.index for each in made}
    return made[-1], next((at for at, source in enumerate(made[-1].producers) if source not in inside), None)


def _is_called_with_true(evidence: Evidence, op: OpRecord, modes: Sequence[ast.expr]) -> bool:
    """Whether the code that calls the module, perhaps in another file, passes True for an argument that decides on the
    dropout: as its mode, or in an `if` around it."""
    record, place = evidence.modules.get(op.module), evidence.any_code_at(op)
    statement = None if place is None else place[0].statement(place[1])
    function = None if place is None else place[0].enclosing(statement, ast.FunctionDef)
    if record is None or place is None or statement is None or function is None:
        return False
    tests = [around.test for around in place[0].around(statement) if isinstance(around, ast.If)]
    names = {each.id for root in (*modes, *tests) for each in ast.walk(root) if isinstance(each, ast.Name)}
    parameters = [each.arg for each in function.args.args[1:]]  # without self
    lines = [found for line in record.called_from if (found := evidence.any_code_at(line)) is not None]
    for call in (node for source, line in lines for node in source.expressions(line) if isinstance(node, ast.Call)):
        passed = [*zip(parameters, call.args, strict=False), *((word.arg, word.value) for word in call.keywords)]
        if any(name in names and name in parameters and _is_true(value) for name, value in passed):
            return True
    return False


def _samples(evidence: Evidence, dropouts: Sequence[OpRecord]) -> int:
    """How often a line drops elements of the same tensor anew, for the same layers to read: the most of all lines."""
    first, counts = evidence.dataflow.first_runs, Counter[tuple[object, ...]]()
    for op in dropouts:
        dropping, at = _dropped(evidence, op)
        data = None if at is None else evidence.dataflow.reads_whole(dropping, at)
        if data is not None:
            readers = tuple(user.weights for user in evidence.flow.users(dropping))
            data = first.get(data, data) if isinstance(data, int) else data
            counts[op.source, op.module, op.op, data, readers] += 1
    return max(counts.values(), default=0)


def _is_dropout_by_hand(evidence: Evidence, op: OpRecord) -> bool:
    """Uniform numbers against a threshold that is the same in every call, or draws with such a chance, and the result
    multiplied with data. Against a threshold from the data it is a sample (a routing, a rounding, a hidden unit)."""
    if op.op in _DRAWS:
        chances = range(1 if op.op.endswith("_") else 0, len(op.producers))
        if not all(evidence.dataflow.is_constant_input(op, at) for at in chances):
            return False
        if any(_is_learned(evidence, op, at) for at in chances):
            return False
    elif op.op not in _UNIFORM:
        return False
    near, found, from_noise, cut_names = [op], list[OpRecord](), {op.index}, set[str]()
    uncut, mixed = {op.index}, set[int]()
    for _ in range(4):
        near = [user for each in near if not each.cost.macs for user in evidence.flow.users(each)]
        found += near
        if any(each.category == "sort" for each in near):
            return False  # a random order, or a choice of so many
        cuts = [each for each in near if each.op in _THRESHOLDS]
        cut_names |= {each.op for each in cuts}
        from_noise |= {each.index for each in near if each not in cuts}
        for cut in cuts:
            others = [at for at, source in enumerate(cut.producers) if source not in from_noise]
            if not all(evidence.dataflow.is_constant_input(cut, at) for at in others):
                return False
            if any(_is_learned(evidence, cut, at) for at in others) or not mixed.isdisjoint(cut.producers):
                return False  # a connection that is trained, or numbers that are rounded at random
        for each in near:
            if each not in cuts and not uncut.isdisjoint(each.producers):
                uncut.add(each.index)
                others = [at for at, source in enumerate(each.producers) if source not in uncut]
                if not mixed.isdisjoint(each.producers) or not all(
                    evidence.dataflow.is_constant_input(each, at) for at in others
                ):
                    mixed.add(each.index)
    if any(_puts_in_others(evidence, each) for each in found):
        return False  # signs, or the token of a masked autoencoder
    if any(each.op in _THRESHOLDS and evidence.flow.is_result(each) for each in found):
        return False  # which elements are hidden is what a loss of the caller needs
    masked = [each for each in found if each.op.rstrip("_") in _MASKING and len(each.producers) > 1]
    # A denoising autoencoder corrupts what it is given; dropout of an input scales what it leaves.
    inputs = evidence.dataflow.input_reads
    is_input = any((each.index, at) in inputs for each in masked for at in range(len(each.producers)))
    scales = [each.signature.attributes.get("other") for each in found if each.op.rstrip("_") in _SCALES]
    if is_input and not any(isinstance(number, int | float) for number in scales):
        return False
    return bool(masked) and bool(cut_names or op.op in _DRAWS) and not _is_choice(evidence, found)


def _is_learned(evidence: Evidence, op: OpRecord, at: int) -> bool:
    """Whether a chance that is the same in every call is made from trained parameters."""
    if op.producers[at] is None:
        names, todo = list(op.weights), list[OpRecord]()
    else:
        names, todo = [], [each for each in [evidence.flow.source(op, at)] if each is not None]
    for _ in range(_MOST_BETWEEN):
        names += [name for each in todo for name in each.weights]
        todo = [source for each in todo for source in evidence.flow.sources(each)]
    return any(name in evidence.params and evidence.params[name].trainable for name in names)


def _puts_in_others(evidence: Evidence, op: OpRecord) -> bool:
    """Whether it chooses between two values neither of which is zero."""
    if op.op.rstrip("_") == "aten::masked_fill":
        return op.signature.attributes.get("value") not in (None, 0)
    branches = [evidence.flow.source(op, at) for at in range(1, len(op.producers))]
    return op.op == "aten::where" and all(fill_value(each) != 0 for each in branches)


def _is_choice(evidence: Evidence, found: Sequence[OpRecord]) -> bool:
    """Whether what a mask leaves out is replaced by something else: a token that a masked model has to predict, another
    sample. `x * (1 - mask) + token * mask`, `torch.where(mask, token, x)`."""
    for op in found:
        if op.op in _COMPLEMENTS:
            source = evidence.flow.source(op)
            others = () if source is None else evidence.flow.users(source)
            if any(each.op.rstrip("_") in _MASKING for each in others):
                return True
        values = range(1, len(op.producers)) if op.op == "aten::where" else ()
        if len(values) == 2 and all(op.weights or not evidence.dataflow.is_constant_input(op, at) for at in values):
            return True
    return False


@rule("batch-statistics-in-evaluation", family="bugs")
def batch_statistics_in_evaluation(evidence: Evidence) -> Iterator[Advice]:
    if evidence.is_train:
        return
    for op in evidence.flow.of_category("normalization"):
        if "batch_norm" not in op.op or not op.signature.attributes.get("training"):
            continue
        # Instance norm runs as a batch norm over one sample with the channels of all.
        kind = evidence.modules[op.module].type if op.module in evidence.modules else ""
        has_statistics = "BatchNorm" in kind and bool(_buffers(evidence, op))
        if "InstanceNorm" in kind or (op.signature.inputs[0].shape[0] == 1 and not has_statistics):
            continue
        # The nodes of a graph that the model holds are the same for every sample: their statistics are too.
        if evidence.dataflow.is_known and evidence.dataflow.is_constant_input(op, 0):
            continue
        found = evidence.call_of(op, ("batch_norm",))
        if found is not None:
            source, call = found
            function = source.enclosing(call, ast.FunctionDef)
            names = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)} if function else set()
            # The function's caller chooses the statistics, as meta-learning does those of an episode.
            modes = _given_mode(call)
            if any((isinstance(each, ast.Name) and each.id in names) or _is_setting(each) for each in modes):
                continue
            # A class of norms that differs from torch's in that it forces them, as V-Net's: its author wants that.
            owner = source.enclosing(call, ast.ClassDef)
            is_norm = isinstance(owner, ast.ClassDef) and any("BatchNorm" in ast.unparse(base) for base in owner.bases)
            if is_norm and any(isinstance(each, ast.Constant) and each.value is True for each in modes):
                continue
        cause, line = _mode_set_at(evidence, op)
        if kind.startswith("BatchNorm") and not _buffers(evidence, op):
            cause = "; build this layer with track_running_stats=True, and collect them in training mode"
        yield _bug(
            "batch-statistics-in-evaluation",
            op,
            f"use running statistics in evaluation: with those of the batch, a sample's result depends on the others"
            f"{cause}",
            _in_training_only(evidence, op),
            "the statistics may have to be collected first, in training mode",
            line,
            buffers=list(op.weights),
        )


@rule("state-written-in-evaluation", family="bugs")
def state_written_in_evaluation(evidence: Evidence) -> Iterator[Advice]:
    """A buffer that is overwritten as a whole with something made from data: an average that evaluation moves. A cache
    is written in part."""
    if evidence.is_train or not evidence.dataflow.is_known:
        return
    reported: set[str] = set()
    for op in evidence.forward:
        if not op.op.endswith("_") or len(op.weights) != 1 or op.weights[0] in reported or not op.signature.inputs:
            continue
        buffer = evidence.params.get(op.weights[0])
        written = op.signature.inputs[0]
        reads_data = any(not evidence.dataflow.is_constant_input(op, at) for at in range(1, len(op.signature.inputs)))
        if buffer is None or not buffer.is_buffer or not buffer.spec.is_floating or written.numel != buffer.spec.numel:
            continue
        # Writing at indices fills a cache, which evaluation must do too; so does a state go from call to call.
        if not reads_data or op.category in ("normalization", "indexing") or not _is_statistic(evidence, op):
            continue
        if not _is_read_first(evidence, buffer.name):
            continue
        reported.add(buffer.name)
        place, change = evidence.code_at(op), None
        if place is not None:
            source, line = place
            statement = source.statement(line)
            is_simple = isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign)
            if statement is not None and is_simple and source.has_self(statement):
                change = source.edit(source.under(statement, "if self.training:"))
        yield _bug(
            "state-written-in-evaluation",
            op,
            "update this buffer in training only: evaluation changes it, so results depend on what ran before",
            change,
            "none, unless the model is meant to adapt while it is used",
        )


def _is_read_first(evidence: Evidence, name: str) -> bool:
    """Whether a result depends on what earlier calls left in a buffer. The load of experts that the caller looks at,
    and what is written anew before it is read, change no result."""
    reads, reaching = evidence.dataflow.input_reads, evidence.dataflow.reaching
    return not evidence.flow.results or any(
        op.index in reaching and source is None and (op.index, at) not in reads
        for op in evidence.forward
        if name in op.weights
        for at, source in enumerate(op.producers)
        if at > 0 or op.op not in _OVERWRITING
    )


def _is_statistic(evidence: Evidence, op: OpRecord) -> bool:
    """Whether what is written is a sum over data, perhaps scaled: hidden states, membranes and the last frames of a
    stream are not, nor is a sum for each sample, as the keys and values of linear attention add up."""
    todo, seen = [op], {op.index}
    samples = evidence.capture.inputs[0].spec.shape[:1] if evidence.capture.inputs else ()
    has_samples = samples > (1,) and op.signature.inputs[0].shape[:1] == samples
    while todo and len(seen) <= _MOST_BETWEEN:
        near = todo.pop()
        for at in range(1 if near is op else 0, len(near.producers)):
            source = evidence.flow.source(near, at)
            if source is None or source.index in seen or source.index in evidence.dataflow.constants:
                continue
            seen.add(source.index)
            if source.category == "reduction" or (source.category == "matmul" and not source.weights):
                dims = source.signature.attributes.get("dim")
                is_first = dims is None or 0 in [dim % len(source.signature.inputs[0].shape) for dim in _listed(dims)]
                is_by_sample = source.op == "aten::bmm" if source.category == "matmul" else not is_first
                return not (has_samples and is_by_sample)
            if source.category in ("elementwise", "activation", "copy"):
                todo.append(source)
    return False


def _listed(dims: object) -> list[int]:
    return [dim for dim in (dims if isinstance(dims, list | tuple) else [dims]) if isinstance(dim, int)]


@rule("large-eps", family="bugs")
def large_eps(evidence: Evidence) -> Iterator[Advice]:
    """`nn.BatchNorm2d(64, 64)`: the second argument of torch's norms is eps."""
    for op in evidence.flow.of_category("normalization"):
        eps = op.signature.attributes.get("eps")
        record = evidence.modules.get(op.module)
        if not isinstance(eps, int | float) or eps < _LARGE_EPS or record is None:
            continue
        made_at = None if evidence.model is None else evidence.model.made_at(op.module)
        code = evidence.any_code_at(made_at)
        calls = [] if code is None else [each for each in code[0].expressions(code[1]) if isinstance(each, ast.Call)]
        # Of torch's norms it is the second argument; who writes its name means it.
        if not record.type.startswith(_EPS_SECOND) or any(
            word.arg == "eps" for call in calls for word in call.keywords
        ):
            continue
        yield _bug(
            "large-eps",
            op,
            "check the second argument of this norm: it is eps, not the momentum or a number of channels",
            None,
            "weights that were trained with this eps need it; change it before training",
            made_at,
            eps=eps,
        )
