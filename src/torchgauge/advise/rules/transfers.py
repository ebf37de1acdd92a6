"""Traffic between host and device inside the forward pass."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torchgauge.advise.code import Source, called, receiver
from torchgauge.advise.dataflow import RANDOM, SIZED_BY_VALUE, VALUE_READS
from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.graph_capture import is_avoided_in_graph, prevents_graph
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rounds import may_change
from torchgauge.facts import FREE, HostRead, OpRecord
from torchgauge.units import format_count, format_seconds, format_whole_percent

# A transfer makes host and device wait for each other; PCIe 4 moves about 25 GB/s.
_LATENCY_S, _LINK_BYTES_PER_S = 10e-6, 25e9
# A wait drains the queue: the value is copied, then the next kernel is launched into an idle device. The second is what
# a host takes for an op of eager code, the model's Python included (20 to 27 µs in the forecasts of six models
# for an H200).
_STALL_S, _LAUNCH_S = 15e-6, 20e-6
_GPU_FLOPS_PER_S, _GPU_BYTES_PER_S = 50e12, 1.5e12
# How many ops back to look for the origin of a value that is read, and for weights that it was computed from.
_NEAR_OPS, _FAR_OPS = 20, 200
# Reads of single elements at one line of a loop, from which on one `.tolist()` before it is better.
_MANY_READS = 3
# Ops that compute row by row.
_BY_ROW = {"activation", "convolution", "copy", "elementwise", "matmul", "normalization", "softmax", "view"}
# What code asks for to learn which device it runs on.
_DEVICE_TESTS = {"is_available", "is_cuda", "device", "use_cuda", "cuda"}
_PACK = "aten::_pack_padded_sequence"
_INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
# Calls that make a tensor of values in Python.
_FROM_VALUES = (
    "tensor", "as_tensor", "asarray", "from_numpy", "new_tensor", "Tensor", "FloatTensor", "LongTensor", "IntTensor",
    "BoolTensor",
)  # fmt: skip
# Calls that give a number of a tensor to Python, and those that bring a tensor to the host.
_READ_CALLS = ("item", "tolist", "int", "float", "bool")
_BRINGING_CALLS = ("cpu", "numpy", "tolist")
# Classes of torch.distributions, which look at the values of their arguments. `validate_args=False` does not reach the
# distributions that some are made of: a OneHotCategorical has a Categorical.
_DISTRIBUTIONS = {
    "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Dirichlet", "Exponential", "Gamma", "Geometric",
    "Gumbel", "HalfNormal", "Laplace", "LogNormal", "LowRankMultivariateNormal", "MixtureSameFamily", "Multinomial",
    "MultivariateNormal", "NegativeBinomial", "Normal", "OneHotCategorical", "Pareto", "Poisson", "RelaxedBernoulli",
    "RelaxedOneHotCategorical", "StudentT", "TransformedDistribution", "Uniform", "VonMises", "Weibull",
}  # fmt: skip
_OF_DISTRIBUTIONS = {"log_prob", "cdf", "icdf"}


class Remedy(NamedTuple):
    """What to do, and its risk. `{}` is the call that the host waits for."""

    words: str
    risk: str


# What a value is for only its author knows: the advice says what is certain.
_READING = Remedy(
    "avoid {} in forward: the host waits for the value while the device idles",
    "the value may be needed on the host",
)
_SELECTING = Remedy(
    "avoid {} in forward: the host waits for the result's size while the device idles",
    "with fixed shapes the entries that are dropped now are computed too",
)
# Of a device that waits for launches, for all waits of a run together.
_CAPTURING = Remedy(
    "avoid this and every other host wait: they prevent capturing the run in a CUDA graph",
    "the values may be needed on the host; a graph has fixed shapes",
)
# Here the code says what it waits for.
_TOGETHER = Remedy(
    "read these values with one .tolist() before the loop: the host waits for each",
    "ops on single values, such as a clamp, must move before the loop too",
)
_STACKING = Remedy(
    "use torch.stack: torch.tensor reads these tensors, and the host waits for each",
    "numbers in the list must become tensors; the result takes their dtype",
)
_LOADING = Remedy(
    "read this value once, after loading the weights: in each call the host waits for it",
    "for inference only: it must be read again when the weights change",
)
_VALIDATING = Remedy(
    "call Distribution.set_default_validate_args(False): the host waits for this check",
    "invalid arguments are no longer detected here",
)
_SORTING = Remedy(
    "sort samples by length and pass enforce_sorted=True: the host waits to unsort",
    "results come in the sorted order",
)
_PRINTING = Remedy("print outside forward: to format a tensor the host waits for its values", "none")
_ROUTING = Remedy(
    "sort tokens by expert and multiply in groups: the host waits for each nonzero",
    "results come in the sorted order and must be put back",
)
_TELLING = Remedy("pass is_causal: otherwise this layer compares the mask, and the host waits", "none")
# Layers of torch that compare their mask with a causal one unless `is_causal` is given.
_MASK_READERS = {"TransformerEncoder", "TransformerDecoder", "Transformer"}


@rule("device-transfer", family="devices")
def device_transfer(evidence: Evidence) -> Iterator[Advice]:
    """A copy to another kind of device than the model's."""
    copies = evidence.flow.named("aten::_to_copy")
    found = [(op, to) for op in copies if (to := _other_device(evidence, op)) is not None]
    for op, to in found:
        yield Advice(
            rule="device-transfer",
            where=Where(op.module, (op.index,)),
            evidence={"op": op.op, "device": to, "bytes": moved(op)},
            recommendation="keep the tensor on the model's device: a transfer in forward makes the device wait",
            change=None,
            expected_gain=_waiting(evidence, op) if evidence.on is None else _waiting_on_gpu(evidence, len(found)),
            risk="the work that the host does with the tensor moves to the device",
            confidence="high",
        )


def _other_device(evidence: Evidence, op: OpRecord) -> str | None:
    """The device that the op copies to, if it is not the model's. A change of layout stays where it is. Of a model that
    is analysed on the host for a device, the tensor must come from the host or go there: `x.type_as(y)` follows y."""
    device, layout = (op.signature.attributes.get(name) for name in ("device", "memory_format"))
    if not isinstance(device, str) or device.partition(":")[0] == evidence.device or layout is not None:
        return None
    is_of_run = device.partition(":")[0] == evidence.capture.run.device.partition(":")[0]
    is_meant = not is_of_run or _names_host(evidence, op) or _comes_from_host(evidence, op)
    return device if is_meant else None


def _comes_from_host(evidence: Evidence, op: OpRecord) -> bool:
    """Whether a tensor comes neither from inputs nor from weights, as one of a list, and its code names no device."""
    for each in (op, *evidence.dataflow.ancestors(op, _FAR_OPS)):
        reads = {(each.index, at) for at in range(len(each.signature.inputs))}
        if each.weights or not reads.isdisjoint(evidence.dataflow.input_reads):
            return False
        if not each.signature.inputs and _is_placed(evidence, each):
            return False
    return True


def _is_placed(evidence: Evidence, op: OpRecord) -> bool:
    """Whether the statement of an op names a device, or is not known."""
    place = evidence.any_code_at(op)
    return place is None or place[0].statement(place[1]) is None or _names_device(evidence, op)


def _names_device(evidence: Evidence, op: OpRecord) -> bool:
    place = evidence.any_code_at(op)
    statement = None if place is None else place[0].statement(place[1])
    return place is not None and statement is not None and "device" in place[0].text(statement)


def _names_host(evidence: Evidence, op: OpRecord | str | None) -> bool:
    """Whether the statement of an op, or at a line, has `.cpu()`, the text "cpu" or a type of the host, as
    `torch.FloatTensor`."""
    place = evidence.any_code_at(op)
    statement = None if place is None else place[0].statement(place[1])
    for node in () if statement is None else ast.walk(statement):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.partition(":")[0] == "cpu":
            return True
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name == "cpu" or (name.endswith("Tensor") and name != "Tensor"):
            return True
    return False


@rule("host-wait", family="devices")
def host_wait(evidence: Evidence) -> Iterator[Advice]:
    """Values that Python asks for. They cost little on a CPU: the gain is what they cost on a GPU."""
    reads, asking = _waits(evidence)
    reads = [read for read in reads if not evidence.is_kept(read.source)]
    asking = [(op, found) for op, found in asking if not evidence.is_kept(op)]
    if not evidence.is_cuda or evidence.on is not None:  # the run was on the host
        reads = [read for read in reads if not _is_for_host(evidence, read.source)]
        asking = [(op, found) for op, found in asking if not _is_for_host(evidence, op)]
    if not asking and not reads:
        return
    useful = {op.index for op, remedy in asking if remedy is _SELECTING and _spares_work(evidence, op)}
    asking = [(op, remedy) for op, remedy in asking if op.index not in useful]
    one_by_one = _read_one_by_one(evidence, [op for op, _ in asking if op.op in VALUE_READS])
    # Where, the call, what to do, and how often: a line in a loop brings the results of several ops to the host.
    waits = [
        (Where(op.module, (op.index,)), _call(evidence, op), _TOGETHER if op.index in one_by_one else remedy, 1)
        for op, remedy in asking
    ]
    for read in reads:
        call = read.call if read.call in ("print", "tensor") else f".{read.call}()"
        where, times = Where(read.module, source=read.source), max(len(read.made_by or ()), 1)
        waits.append((where, call, _remedy_of_read(evidence, read), times))
    total = sum(times for *_, times in waits)
    on_gpu = _waiting_on_gpu(evidence, total)
    if evidence.waits_for_host and not useful and not prevents_graph(evidence):
        # A run without waits can be replayed as a CUDA graph, one with them cannot: one gain for all of them.
        idle, without = evidence.idle_share, "the wait" if total == 1 else f"all {total} waits"
        gain = replace(
            on_gpu,
            low=min(on_gpu.low + idle / 2, 1.0),
            high=min(on_gpu.high + idle, 1.0),
            how=f"{on_gpu.how}; without {without} a CUDA graph can replay the run, of which the device is idle for "
            f"{format_whole_percent(idle)}",
            touched=frozenset(op.index for op in evidence.forward),
        )
        alone = min(total * on_gpu.middle, 1.0)
        remedies = {remedy for *_, remedy, _ in waits}
        only = remedies.pop() if len(remedies) == 1 and remedies.isdisjoint((_READING, _SELECTING)) else _CAPTURING
        for where, call, _, times in waits:
            yield _host_advice(only, call, where, {"call": call, "waits": times, "share_without_graph": alone}, gain)
        return
    for where, call, remedy, times in waits:
        low, high = (min(times * share, 1.0) for share in (on_gpu.low, on_gpu.high))
        gain = replace(on_gpu, low=low, high=high)
        op = evidence.flow.op(where.ops[0]) if where.ops else None
        if op is not None and evidence.is_cuda and evidence.on is None:
            gain = _waiting(evidence, op)
        yield _host_advice(remedy, call, where, {"call": call, "waits": times}, gain)


def _read_one_by_one(evidence: Evidence, reads: Sequence[OpRecord]) -> set[int]:
    """Reads at one line that take single elements of one tensor, as `places[i].item()` in a loop does."""
    of_tensor: dict[tuple[str | None, object], list[int]] = {}
    for read in reads:
        op: OpRecord | None = read
        place = evidence.any_code_at(read)
        if place is not None and (not place[0].is_in_loop(place[1]) or may_change(*place)):
            continue
        # Back over ops on one value to the tensor that it is an element of: what made it has more of them.
        while op is not None and op.signature.inputs and op.signature.inputs[0].numel == 1:
            # What is compared with something that another op makes, perhaps in this round, cannot be read before it.
            if len([source for source in op.producers if source is not None]) > 1:
                break
            if (tensor := evidence.dataflow.reads_part(op, 0)) is not None:
                of_tensor.setdefault((read.source, tensor), []).append(read.index)
                break
            op = evidence.flow.source(op)
    return {index for found in of_tensor.values() if len(found) >= _MANY_READS for index in found}


def _is_for_host(evidence: Evidence, at: OpRecord | str | None) -> bool:
    """Whether a line is in a branch that the device decides on, as `else: x = x.cpu()` behind
    `if torch.cuda.is_available():` is: on a device it does not run."""
    place = evidence.any_code_at(at)
    statement = None if place is None else place[0].statement(place[1])
    if place is None or statement is None:
        return False
    branches = [each for each in ast.walk(statement) if isinstance(each, ast.IfExp)]
    function = place[0].enclosing(statement, ast.FunctionDef)
    calls = [] if function is None or function.name == "forward" else place[0].calls_to(function.name)
    around = [*branches, *place[0].around(statement), *(node for call in calls for node in place[0].around(call))]
    tests = [each.test for each in around if isinstance(each, ast.If | ast.IfExp)]
    return any(
        isinstance(each, ast.Attribute) and each.attr in _DEVICE_TESTS for test in tests for each in ast.walk(test)
    )


def host_waits(evidence: Evidence) -> bool:
    """Whether the host waits for values in the middle of a run, or sends some: no graph of it can be captured."""
    if any(_other_device(evidence, op) is not None for op in evidence.flow.named("aten::_to_copy")):
        return True
    # A table that the model keeps is sent in its first call, before a graph is captured.
    if evidence.is_cuda and any(_is_sent(evidence, op) and not evidence.is_kept(op) for op in evidence.forward):
        return True
    return any(_waits(evidence))


def _waits(evidence: Evidence) -> tuple[list[HostRead], list[tuple[OpRecord, Remedy]]]:
    """The calls and the ops that the host waits for, also while a graph is captured."""
    reads, on_host = _waiting_reads(evidence)
    asking = [(op, found) for op in evidence.forward if (found := _remedy(evidence, op, on_host)) is not None]
    lines = {*(read.source for read in reads), *(op.source for op, _ in asking)}
    avoided = {line for line in lines if is_avoided_in_graph(evidence, line)}
    return (
        [read for read in reads if read.source not in avoided],
        [(op, found) for op, found in asking if op.source not in avoided],
    )


def _is_sent(evidence: Evidence, op: OpRecord) -> bool:
    """Whether the model's code makes a tensor of Python's values, or one without a device, as by `torch.arange(n)`:
    of a model that is analysed on the host, `.to(device)` behind it is not seen. Single numbers without a device need
    not be sent."""
    is_fresh = op.op == "aten::lift_fresh"
    if evidence.capture.run.device.partition(":")[0] != "cpu" or (op.signature.inputs and not is_fresh):
        return False
    place, is_number = evidence.any_code_at(op), op.signature.outputs[0].shape == ()
    if is_fresh:
        # A list of indices is sent to where the tensor is.
        if not is_number and any(
            op.index in user.producers[1:] for user in evidence.flow.users(op) if user.op in _INDEXED
        ):
            return True
        calls = [] if place is None else place[0].calls(place[1], *_FROM_VALUES)
        return bool(calls) and (not is_number or _names_device(evidence, op))
    calls = [] if place is None or is_number else place[0].calls(place[1], op.op.removeprefix("aten::"))
    return bool(calls) and not any(keyword.arg in (None, "device") for call in calls for keyword in call.keywords)


def _waiting_reads(evidence: Evidence) -> tuple[list[HostRead], set[int]]:
    """Calls that bring values to the host which are not there yet; and the ops whose results are there because of an
    earlier `.cpu()`, before `.numpy()`, or as the lengths of packed sequences: they made such a value, or follow from
    such values alone."""
    reads, on_host = list[HostRead](), set[int]()
    # Random numbers and constants are asked for where the other operands are.
    drawn = {op.index for op in evidence.forward if RANDOM in op.signature.tags and set(op.producers) <= {None}}
    drawn |= evidence.dataflow.constants
    host_inputs = _inputs_on_host(evidence)
    # Integers that no op has written: code of the host has, as that of `pad_packed_sequence` writes the lengths. They
    # and the batch sizes of packed sequences are on the host for any device.
    packing = {op.index for op in evidence.forward if op.op in (_PACK, "aten::empty")}

    def follow() -> None:
        for op in evidence.forward:
            given = {evidence.dataflow.input_reads.get((op.index, at)) for at in range(len(op.producers))} - {None}
            read = zip(op.producers, op.signature.inputs, strict=False)
            inputs = [(source, spec) for source, spec in read if source is not None and source not in drawn]
            are_there = all(at in on_host or (at in packing and spec.dtype == "int64") for at, spec in inputs)
            is_from_host = given <= host_inputs and are_there
            if (inputs or given) and is_from_host and not op.weights:
                on_host.add(op.index)

    if host_inputs or packing:
        follow()
    for read in evidence.capture.run.host_reads:
        if _is_made_on_host(evidence, read.made_by) or (read.made_by and on_host.issuperset(read.made_by)):
            continue
        # Without `.cpu()` before it, this raises for a tensor on a device: the model's code has it on the host.
        is_there = read.call == "numpy" and not _names_host(evidence, read.source)
        reads += [] if is_there else [read]
        if read.call == "cpu" or is_there:
            on_host.update(index for index in read.made_by or () if index is not None)
            follow()
    return reads, on_host


def _inputs_on_host(evidence: Evidence) -> set[int | None]:
    """The model's inputs that are lengths of packed sequences: torch takes these from the host only. Where the code
    calls `.cpu()` on an input, it may be on the device."""
    if any(index is not None and index < 0 for read in evidence.capture.run.host_reads for index in read.made_by or ()):
        return set()
    found = set[int | None]()
    for op in evidence.flow.named(_PACK):
        at = 1
        while (made := evidence.flow.source(op, at)) is not None and made.op in ("aten::sort", "aten::_to_copy"):
            op, at = made, 0
        if made is None:
            found.add(evidence.dataflow.input_reads.get((op.index, at)))
    return found - {None}


def _remedy_of_read(evidence: Evidence, read: HostRead) -> Remedy:
    if read.call in ("tensor", "print"):
        return _STACKING if read.call == "tensor" else _PRINTING
    place = evidence.code_at(read.source)
    if place is not None and place[0].calls(place[1], "pad_packed_sequence"):
        return _SORTING
    made = [op for index in read.made_by or () if index is not None and (op := evidence.flow.op(index)) is not None]
    return _LOADING if _is_of_weights(evidence, made) else _READING


def _is_of_weights(evidence: Evidence, made_by: Sequence[OpRecord]) -> bool:
    """Whether a value follows from parameters alone. Buffers may change from call to call."""
    near = [each for op in made_by for each in (op, *evidence.dataflow.ancestors(op, _FAR_OPS))]
    read = {name for op in near for name in op.weights}
    buffers = {param.name for param in evidence.capture.params if param.is_buffer}
    is_constant = evidence.dataflow.constants.issuperset(op.index for op in made_by)
    return is_constant and bool(read) and read.isdisjoint(buffers) and not evidence.is_train


def _lengths_of(evidence: Evidence, pack: OpRecord) -> int | None:
    """The op that made the lengths of packed sequences, before they were sorted; None where they were given."""
    made = evidence.flow.source(pack, 1)
    while made is not None and made.op in ("aten::sort", "aten::_to_copy"):
        made = evidence.flow.source(made)
    return None if made is None else made.index


def _call(evidence: Evidence, op: OpRecord) -> str:
    """What the code at this line calls that the host waits for."""
    if op.op == "aten::index":
        return "x[mask]"
    place = evidence.code_at(op)
    choices = place[0].calls(place[1], "where") if place is not None and op.op == "aten::nonzero" else []
    if any(len(call.args) + len(call.keywords) == 1 for call in choices):
        return "torch.where(condition)"
    if op.op not in VALUE_READS:
        return op.op.removeprefix("aten::").strip("_").removesuffix("2")
    if op.op == "aten::equal":
        # torch.istft checks by it that its window is not zero.
        written = evidence.any_code_at(op)
        is_checked = written is not None and written[0].calls(written[1], "istft")
        return "torch.istft" if is_checked else "torch.equal"
    found = place[0].calls(place[1], *_READ_CALLS) if place is not None else []
    # `float(x)` reads a number, `x.float()` does not.
    is_method = {called(call): isinstance(call.func, ast.Attribute) for call in found}
    calls = {name for name, method in is_method.items() if method == (name in ("item", "tolist"))}
    if len(calls) == 1:
        name = calls.pop()
        return f".{name}()" if is_method[name] else f"{name}()"
    statement = None if place is None else place[0].statement(place[1])
    is_test = isinstance(statement, ast.If | ast.While | ast.Assert)
    return f"`{type(statement).__name__.lower()}` on a tensor" if is_test else "reading a tensor's value"


def _host_advice(remedy: Remedy, call: str, where: Where, known: Mapping[str, Any], gain: Gain) -> Advice:
    return Advice(
        rule="host-wait",
        where=where,
        evidence=known,
        recommendation=remedy.words.replace("{}", call),
        change=None,
        expected_gain=gain,
        risk=remedy.risk,
        confidence="medium",
    )


def _remedy(evidence: Evidence, op: OpRecord, on_host: Container[int]) -> Remedy | None:
    """What to do about an op whose result the host waits for; None where it does not wait."""
    if op.index in on_host:
        return None
    if op.op in VALUE_READS:
        source, record = evidence.flow.source(op), evidence.modules.get(op.module)
        # On a CPU `one_hot` looks for classes out of range; on CUDA it does not.
        if not evidence.is_cuda and source is not None and source.op in ("aten::max", "aten::min", "aten::aminmax"):
            makes = evidence.flow.named("aten::scatter_", "aten::scatter", "aten::eq")
            if any((each.source, each.module) == (op.source, op.module) for each in makes):
                return None
        if record is not None and record.type in _MASK_READERS:
            return _TELLING
        if source is not None and source.op == _PACK and op.signature.inputs[0].dtype == "int64":
            return None  # the batch sizes of packed sequences, which are always on the host
        if op.op == "aten::equal" and len({spec.shape for spec in op.signature.inputs}) == len(op.signature.inputs):
            return None  # one tensor, or two sizes: torch reads no element (set_sync_debug_mode on an H200)
        reads = evidence.dataflow.input_reads
        made = [source for at, source in enumerate(op.producers) if source is not None or (op.index, at) in reads]
        if (not op.weights and _is_made_on_host(evidence, made)) or _is_named_on_host(evidence, op):
            return None
        place = evidence.code_at(op)
        if place is not None and _checks_arguments(*place):
            return _VALIDATING
        return _LOADING if source is not None and _is_of_weights(evidence, [source]) else _READING
    if op.op == _PACK:
        lengths = _lengths_of(evidence, op)
        is_read = any(lengths in (read.made_by or ()) for read in evidence.capture.run.host_reads)
        return None if lengths is None or is_read or lengths in evidence.dataflow.constants else _READING
    if op.op in SIZED_BY_VALUE:
        near = {op.index, *(each.index for each in evidence.dataflow.ancestors(op, _NEAR_OPS))}
        routed = (each for each in evidence.mixtures if not near.isdisjoint(choice.index for choice in each.choices))
        mixture = next(routed, None)
        asked = sum(each.op in SIZED_BY_VALUE and each.module == op.module for each in evidence.forward)
        return _ROUTING if mixture is not None and asked >= mixture.experts else _SELECTING
    # `x[mask]` needs the positions in the mask; integers, wherever they are, are positions already.
    is_sized = evidence.dataflow.is_known and evidence.dataflow.is_sized_by_value(op)
    return _SELECTING if is_sized else None


def _checks_arguments(source: Source, line: int) -> bool:
    """Whether a line makes a distribution of torch, also as `super().__init__(…)` of a class derived from one, or asks
    one for a probability, and reads no value itself."""
    calls = [each for each in source.expressions(line) if isinstance(each, ast.Call)]
    if any(called(call) in _READ_CALLS for call in calls):
        return False
    if any("validate_args=True" in source.text(call) for call in calls):
        return False  # it decides before the default does
    for call in calls:
        owner = source.enclosing(call, ast.ClassDef) if called(call) == "__init__" else None
        bases = owner.bases if isinstance(owner, ast.ClassDef) else []
        names = {called(call), *(ast.unparse(base).rpartition(".")[2] for base in bases)}
        if called(call) in _OF_DISTRIBUTIONS or names & _DISTRIBUTIONS:
            return True
    return False


def _is_named_on_host(evidence: Evidence, read: OpRecord) -> bool:
    """Whether the code reads an element of a variable that it has brought to the host: `at = places.cpu()`, and in a
    loop `int(at[0, step])`. On a CPU such a copy is the tensor itself, and leaves no op."""
    place = evidence.any_code_at(read)
    function = None if place is None else place[0].enclosing(place[0].statement(place[1]), ast.FunctionDef)
    if place is None or function is None:
        return False
    values = [receiver(call, place[0]) for call in place[0].calls(place[1], *_READ_CALLS)]
    names = set[str]()
    for value in values:
        while isinstance(value, ast.Subscript):
            value = value.value
        names |= {value.id} if isinstance(value, ast.Name) else {""}
    brought = {
        target.id
        for each in ast.walk(function)
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call) and called(each.value) in _BRINGING_CALLS
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    return bool(names) and names <= brought


def _spares_work(evidence: Evidence, op: OpRecord) -> bool:
    """Whether the products with the rows that are selected take longer than the wait, as the vocabulary of a masked
    language model does: with all rows they would take that time again."""
    rows: set[int | None] = {op.index}
    macs = 0
    for each in evidence.forward:
        if each.index > op.index and each.category in _BY_ROW and not rows.isdisjoint(each.producers):
            rows.add(each.index)
            macs += each.cost.macs
    return 2 * macs / _GPU_FLOPS_PER_S > _STALL_S


def _is_made_on_host(evidence: Evidence, made_by: Sequence[int | None] | None) -> bool:
    """Whether what these ops made is a number of the model's own code, as `torch.IntTensor([n])` or
    `torch.tensor(x.shape)`: nothing says that it is on the device."""
    if made_by is None or not evidence.dataflow.is_known:
        return False
    constants, reads = evidence.dataflow.constants, evidence.dataflow.input_reads
    for op in (None if index is None else evidence.flow.op(index) for index in made_by):
        if op is None:
            return False
        near = [op, *evidence.dataflow.ancestors(op, _NEAR_OPS)]
        if any(each.weights for each in near):
            return False
        # Of a module that reads values of its input, what is made of nothing is still its own.
        inside = {each.index for each in near}
        is_own = all(
            source in inside or (source is None and (each.index, at) not in reads)
            for each in near
            for at, source in enumerate(each.producers)
        )
        is_random = any(RANDOM in each.signature.tags for each in near)
        if op.index in constants or (is_own and not is_random):
            if any(not each.signature.inputs and _names_device(evidence, each) for each in near):
                return False
            continue
        # A random number: asked for without a device, or scaled by a tensor that is not a buffer, as those of
        # `torch.distributions`, which stays on the host when the model moves.
        free = [(each, at) for each in near for at, source in enumerate(each.producers) if source is None]
        if any((each.index, at) in reads for each, at in free) or (not free and _is_placed(evidence, op)):
            return False
        if not is_random:
            return False
    return True


def _waiting_on_gpu(evidence: Evidence, waits: int) -> Gain:
    """One wait of so many, as a share of the run as it is predicted for the device that was named, else of launches at
    the pace of a host and kernels at the rates of a data-centre GPU."""
    if evidence.on is not None:
        rest = evidence.times.whole
        how = f"a wait of {format_seconds(_STALL_S)} (assumed) in addition to the predicted run"
    else:
        steps = [op for op in evidence.forward if op.status != FREE]
        kernels = (max(op.cost.flops / _GPU_FLOPS_PER_S, moved(op) / _GPU_BYTES_PER_S) for op in steps)
        rest = sum(max(_LAUNCH_S, seconds) for seconds in kernels)
        how = f"a wait of {format_seconds(_STALL_S)} next to ops of {format_seconds(_LAUNCH_S)} (assumed)"
    # All waits are as long: half of what is assumed, or half as much again.
    low, high = (stall / (rest + waits * stall) for stall in (0.5 * _STALL_S, 1.5 * _STALL_S))
    return Gain("time_s", low, high, how, device=evidence.on or "cuda", whole_s=rest + waits * _STALL_S)


def _waiting(evidence: Evidence, op: OpRecord) -> Gain:
    """Measured where it was; else what a link takes at least, as a share of that and the least time of all ops."""
    if op.index in evidence.op_times:
        return evidence.share([op]).gain(0.5, 1.0, "the op goes away")
    least = evidence.least_time
    if least is None:
        return evidence.share([op]).gain(0.0, 1.0, "the op goes away, and with it a wait that was not measured")
    seconds = _LATENCY_S + moved(op) / _LINK_BYTES_PER_S
    share = seconds / (seconds + least.whole(evidence.capture.ops))
    wait, rate = format_seconds(_LATENCY_S), f"{format_count(_LINK_BYTES_PER_S)}B/s"
    how = f"one wait of {wait} and the bytes at {rate} (assumed), next to the least time by the roofline"
    return Gain("time_s", 0.0, share, how)
