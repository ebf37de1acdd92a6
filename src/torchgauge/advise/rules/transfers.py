"""Traffic between host and device inside the forward pass."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torchgauge.advise.code import called
from torchgauge.advise.dataflow import RANDOM, SIZED_BY_VALUE, VALUE_READS
from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.graph_capture import is_avoided_in_graph, prevents_graph
from torchgauge.advise.host_values import HostUse, host_uses
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rules.constants import made_from_weights
from torchgauge.facts import FREE, HostRead, OpRecord
from torchgauge.units import format_count, format_seconds, format_whole_percent

# A transfer makes host and device wait for each other; PCIe 4 moves about 25 GB/s.
_LATENCY_S, _LINK_BYTES_PER_S = 10e-6, 25e9
# A wait drains the queue: the value is copied, then the next kernel is launched into an idle device.
_STALL_S, _LAUNCH_S = 15e-6, 6e-6
_GPU_FLOPS_PER_S, _GPU_BYTES_PER_S = 50e12, 1.5e12
# How many ops back to look for the origin of a value that is read, and for weights that it was computed from.
_NEAR_OPS, _FAR_OPS = 20, 200
# Waits in a forward from which on they are shown though nothing is known about what the values are for.
_MANY_WAITS = 3
# Of the ops that have as many rows as values choose, those that only select: a mask can take their place.
_SELECTS = {"aten::nonzero", "aten::argwhere", "aten::masked_select"}
# Ops that keep the number of the rows that they select, or join them.
_BY_ROW = {"aten::index", "aten::index_select", "aten::gather", "aten::embedding", "aten::cat", "aten::stack"}
# What code asks for to learn which device it runs on.
_DEVICE_TESTS = {"is_available", "is_cuda", "device", "use_cuda", "cuda"}
_PACK = "aten::_pack_padded_sequence"
# Calls that make a tensor of values in Python.
_FROM_VALUES = (
    "tensor", "as_tensor", "asarray", "from_numpy", "new_tensor", "Tensor", "FloatTensor", "LongTensor", "IntTensor",
    "BoolTensor",
)  # fmt: skip
# Calls that give a number of a tensor to Python.
_READ_CALLS = ("item", "tolist", "int", "float", "bool")


class Remedy(NamedTuple):
    """What to do, with the reason; in a few words, to be followed by what a CUDA graph gains then; and the risk."""

    words: str
    short: str
    risk: str


# Both get the call that the host waits for in place of {}.
_SELECTING = Remedy(
    "keep shapes fixed and mask the rest: the host waits for the size of {}",
    "keep shapes fixed, without {}",
    "entries that are left out now are computed too",
)
# Of rows that the caller gets.
_RETURNING = Remedy(
    "return all rows and the mask, select outside: the host waits for the size of {}",
    "return all rows and the mask, without {}",
    "the code that calls the model has to select the rows",
)
_READING = Remedy(
    "keep this value on the device: the host waits for {}",
    "keep this value on the device",
    "code that uses the value in Python must be rewritten with tensor ops",
)
_CHOOSING = Remedy(
    "use torch.where in place of this `if`: the host waits for its condition",
    "choose with torch.where in place of this `if`",
    "both sides of the branch are computed every time",
)
_STOPPING = Remedy(
    "test for the end of this loop less often: the host waits for every test",
    "run a fixed number of steps",
    "steps after the end are computed too, and must not change the result",
)
# What the value is for is not known: only what is certain is said.
_WAITING = Remedy(
    "{} makes the host wait for the device here: nothing is launched meanwhile",
    "{} makes the host wait: no CUDA graph can replay this run",
    "the value may be needed on the host",
)
_RECORDING = Remedy(
    "store the tensor and read its value after forward: the host waits for {}",
    "store the tensor, read its value after forward",
    "code that takes the number gets a tensor",
)
_CHECKING = Remedy(
    "take this check of values out of forward: the host waits for its result",
    "take this check of values out of forward",
    "bad values are no longer noticed here",
)
_VALIDATING = Remedy(
    "pass validate_args=False: the host waits for the check of these arguments",
    "pass validate_args=False to this distribution",
    "arguments out of range are no longer noticed here",
)
# Of values that decide how long a loop or how large a tensor is.
_SIZING = Remedy(
    "pass these lengths from the host: shapes depend on them, so it waits",
    "pass these lengths from the host",
    "the code that calls the model has to pass them",
)
_FIXING = Remedy(
    "give these tensors a fixed size: the host waits for lengths the model computes",
    "give these tensors a fixed size",
    "padding is computed too, and must be masked",
)
# Of the elements of one tensor, which a loop reads one by one.
_TOGETHER = Remedy(
    "read these values with one .tolist() before the loop: the host waits for each",
    "read these values with one .tolist() before the loop",
    "ops on single values, such as a clamp, must move before the loop too",
)
# `torch.tensor([a, b])` of tensors.
_STACKING = Remedy(
    "use torch.stack: torch.tensor reads these tensors, and the host waits for each",
    "use torch.stack in place of torch.tensor",
    "numbers in the list must become tensors; the result takes their dtype",
)
# Of values of parameters alone.
_LOADING = Remedy(
    "read this value once, after loading the weights: in each call the host waits for it",
    "read this value once, after loading the weights",
    "for inference only: it must be read again when the weights change",
)
# `pad_packed_sequence` brings the order of the samples to the host.
_SORTING = Remedy(
    "sort samples by length and pass enforce_sorted=True: the host waits to unsort",
    "sort the samples by length before the model",
    "results come in the sorted order",
)
_PRINTING = Remedy(
    "print outside forward: to format a tensor the host waits for its values",
    "print and log outside forward",
    "none",
)
# Of experts, which get as many rows as tokens choose them.
_ROUTING = Remedy(
    "sort tokens by expert and multiply in groups: the host waits for each nonzero",
    "sort tokens by expert, multiply in groups",
    "results come in the sorted order and must be put back",
)
# Of experts whose tokens are sorted already.
_CAPACITY = Remedy(
    "give each expert a fixed number of rows: the host waits to learn how many it gets",
    "give each expert a fixed capacity",
    "tokens above the capacity are dropped",
)
_TELLING = Remedy(
    "pass is_causal: otherwise this layer compares the mask, and the host waits",
    "pass is_causal",
    "none",
)
# After these the host does not wait at all; None: the value has to be there.
_ONCE = (_SIZING, _LOADING, None)
_BY_USE = {
    HostUse.ARGUMENT_CHECK: _VALIDATING,
    HostUse.STOP: _STOPPING,
    HostUse.CHECK: _CHECKING,
    HostUse.BRANCH: _CHOOSING,
    HostUse.OPERAND: _READING,
    HostUse.REPORT: _PRINTING,
    HostUse.RECORD: _RECORDING,
}
# Of a device that waits for launches; the second where the waits alone bring less than `_LEAST_ALONE` of the time.
_THEN_GRAPH = "then the model can be captured in a CUDA graph"
_GRAPH_ALONE = "the gain is the CUDA graph you can then capture"
_LEAST_ALONE = 0.01
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
    uses: dict[str | None, set[HostUse]] = {}
    for source in {*(read.source for read in reads), *(op.source for op, _ in asking)}:
        place = evidence.code_at(source)
        uses[source] = set() if place is None else host_uses(*place)
    fitting = [
        (op, _by_use(evidence, uses[op.source], [op], found) if op.op in VALUE_READS and found is _WAITING else found)
        for op, found in asking
    ]
    one_by_one = _read_one_by_one(evidence, [op for op, _ in asking if op.op in VALUE_READS])
    remedies = [
        *(_TOGETHER if op.index in one_by_one and found not in _ONCE else found for op, found in fitting),
        *(_remedy_of_read(evidence, read, uses[read.source]) for read in reads),
    ]
    # A line in a loop brings the results of several ops to the host.
    times = [*(1 for _ in asking), *(max(len(read.made_by or ()), 1) for read in reads)]
    waits = sum(times)
    on_gpu = _waiting_on_gpu(evidence, waits)
    # Most of the gain of a device that waits for launches is the graph's, which is yet to be captured.
    alone = min(waits * on_gpu.middle, 1.0)
    then = None if not evidence.waits_for_host else _GRAPH_ALONE if alone < _LEAST_ALONE else _THEN_GRAPH
    if {_SIZING, _FIXING, _TOGETHER, None}.intersection(remedies) or (then is not None and prevents_graph(evidence)):
        then = None  # a graph has fixed shapes, and is replayed without Python
    # One wait for a value that may be needed is worth showing only where it prevents a graph, or where it was measured.
    is_measured = evidence.is_cuda and evidence.on is None and then is None
    unknown = sum(count for count, remedy in zip(times, remedies, strict=True) if remedy is _WAITING)
    is_shown = then is not None or is_measured or unknown >= _MANY_WAITS
    shares = {} if then is None else {"share_without_graph": alone}
    if then is not None:
        # A run without waits can be replayed as a CUDA graph, one with them cannot: one gain for all of them.
        idle, without = evidence.idle_share, "the wait" if waits == 1 else f"all {waits} waits"
        on_gpu = replace(
            on_gpu,
            low=min(on_gpu.low + idle / 2, 1.0),
            high=min(on_gpu.high + idle, 1.0),
            how=f"{on_gpu.how}; without {without} a CUDA graph can replay the run, of which the device is idle for "
            f"{format_whole_percent(idle)}",
            touched=frozenset(op.index for op in evidence.forward),
        )
    for (op, _), remedy in zip(asking, remedies, strict=False):
        known = {"op": op.op, "ops_before": op.index, **shares}
        gain = _waiting(evidence, op) if is_measured else on_gpu
        if remedy is not None:
            where = Where(op.module, (op.index,))
            yield _host_advice(remedy, _call(evidence, op), then, where, known, gain, is_shown=is_shown)
    for read, remedy, count in zip(reads, remedies[len(asking) :], times[len(asking) :], strict=True):
        if remedy is not None:
            call = read.call if read.call in ("print", "tensor") else f".{read.call}()"
            where, known = Where(read.module, source=read.source), {"call": read.call, "waits": count, **shares}
            # A graph is one gain for all of them.
            each = 1 if then is not None else count
            gain = replace(on_gpu, low=min(each * on_gpu.low, 1.0), high=min(each * on_gpu.high, 1.0))
            yield _host_advice(remedy, call, then, where, known, gain, is_shown=is_shown)


def _read_one_by_one(evidence: Evidence, reads: Sequence[OpRecord]) -> set[int]:
    """Reads at one line that take single elements of one tensor, as `places[i].item()` in a loop does."""
    of_tensor: dict[tuple[str | None, object], list[int]] = {}
    for read in reads:
        op: OpRecord | None = read
        # Back over ops on one value to the tensor that it is an element of: what made it has more of them.
        while op is not None and op.signature.inputs and op.signature.inputs[0].numel == 1:
            if (tensor := evidence.dataflow.reads_part(op, 0)) is not None:
                of_tensor.setdefault((read.source, tensor), []).append(read.index)
                break
            op = evidence.flow.source(op)
    return {index for found in of_tensor.values() if len(found) >= _MANY_WAITS for index in found}


def _is_for_host(evidence: Evidence, at: OpRecord | str | None) -> bool:
    """Whether a line is in a branch that the device decides on, as `else: x = x.cpu()` behind
    `if torch.cuda.is_available():` is: on a device it does not run."""
    place = evidence.any_code_at(at)
    statement = None if place is None else place[0].statement(place[1])
    if place is None or statement is None:
        return False
    branches = [each for each in ast.walk(statement) if isinstance(each, ast.IfExp)]
    tests = [each.test for each in (*branches, *place[0].around(statement)) if isinstance(each, ast.If | ast.IfExp)]
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


def _remedy_of_read(evidence: Evidence, read: HostRead, uses: set[HostUse]) -> Remedy | None:
    if read.call == "tensor":
        return _STACKING
    place = evidence.code_at(read.source)
    if place is not None and place[0].calls(place[1], "pad_packed_sequence"):
        return _SORTING
    packed = {_lengths_of(evidence, op) for op in evidence.flow.named(_PACK)} - {None}
    if not packed.isdisjoint(read.made_by or ()):
        uses = uses | {HostUse.LENGTH}
    makers = (evidence.flow.op(index) for index in read.made_by or () if index is not None)
    made = [op for op in makers if op is not None]
    return _by_use(evidence, uses, made, _PRINTING if read.call == "print" else _WAITING)


def _by_use(evidence: Evidence, uses: set[HostUse], made_by: Sequence[OpRecord], other: Remedy) -> Remedy | None:
    """By what the value decides; None where it has to be on the host: the shape that the model computes for a view can
    be neither passed from outside nor padded."""
    near = [each for op in made_by for each in (op, *evidence.dataflow.ancestors(op, _FAR_OPS))]
    # Lengths of the inputs can be passed from the host, those that the model computes cannot.
    computed = evidence.once(made_from_weights)
    is_computed = any(op.weights or op.index in computed for op in made_by)
    read = {name for op in near for name in op.weights}
    buffers = {param.name for param in evidence.capture.params if param.is_buffer}  # may change from call to call
    is_constant = made_by and evidence.dataflow.constants.issuperset(op.index for op in made_by)
    if is_constant and read and read.isdisjoint(buffers) and not evidence.is_train:
        return _LOADING
    is_state = is_constant and bool(read)  # a number in a buffer, which this call does not compute
    sizes = {HostUse.SHAPE, HostUse.LENGTH, HostUse.WINDOW} & uses
    if sizes and not is_state and not is_computed:
        return _SIZING
    # The window at a position that the model computes is not longer for a larger position.
    if sizes - {HostUse.WINDOW} and not is_state:
        return None if HostUse.SHAPE in uses else _FIXING
    return next((remedy for use, remedy in _BY_USE.items() if use in uses), other) if other is _WAITING else other


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
        return "torch.equal"
    found = place[0].calls(place[1], *_READ_CALLS) if place is not None else []
    # `float(x)` reads a number, `x.float()` does not.
    is_method = {called(call): isinstance(call.func, ast.Attribute) for call in found}
    calls = {name for name, method in is_method.items() if method == (name in ("item", "tolist"))}
    if len(calls) == 1:
        name = calls.pop()
        return f".{name}()" if is_method[name] else f"{name}()"
    return "reading a tensor's value"


def _host_advice(
    remedy: Remedy,
    call: str,
    then: str | None,
    where: Where,
    known: Mapping[str, Any],
    gain: Gain,
    *,
    is_shown: bool,
) -> Advice:
    is_certain = remedy is not _WAITING
    words = remedy.words if then is None else f"{remedy.short}; {then}" if is_certain else remedy.short
    return Advice(
        rule="host-wait",
        where=where,
        evidence=known,
        recommendation=words.replace("{}", call),
        change=None,
        expected_gain=gain if is_certain or is_shown else replace(gain, low=0.0),
        risk=remedy.risk,
        confidence="medium" if is_certain or is_shown else "low",
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
        is_constant = not op.weights and _is_made_on_host(evidence, made)
        return None if is_constant else _WAITING
    if op.op == _PACK:
        lengths = _lengths_of(evidence, op)
        is_read = any(lengths in (read.made_by or ()) for read in evidence.capture.run.host_reads)
        return None if lengths is None or is_read or lengths in evidence.dataflow.constants else _SIZING
    if op.op in SIZED_BY_VALUE:
        near = {op.index, *(each.index for each in evidence.dataflow.ancestors(op, _NEAR_OPS))}
        routed = (each for each in evidence.mixtures if not near.isdisjoint(choice.index for choice in each.choices))
        mixture = next(routed, None)
        if mixture is None:
            return _WAITING if op.op not in _SELECTS else _RETURNING if _is_returned(evidence, op) else _SELECTING
        asked = sum(each.op in SIZED_BY_VALUE and each.module == op.module for each in evidence.forward)
        return _ROUTING if asked >= mixture.experts else _CAPACITY
    # `x[mask]` needs the positions in the mask; integers, wherever they are, are positions already.
    if not evidence.dataflow.is_known or not evidence.dataflow.is_sized_by_value(op):
        return None
    return _WAITING if _spares_work(evidence, op) else _RETURNING if _is_returned(evidence, op) else _SELECTING


def _is_returned(evidence: Evidence, op: OpRecord) -> bool:
    """Whether the model returns the rows that are selected, perhaps computed on one by one or joined with others."""
    todo, seen = [op], {op.index}
    while todo:
        near = todo.pop()
        if evidence.flow.is_result(near):
            return True
        for user in evidence.flow.users(near):
            is_row_by_row = user.category in ("elementwise", "activation", "copy") or user.op in _BY_ROW
            if is_row_by_row and user.index not in seen:
                seen.add(user.index)
                todo.append(user)
    return False


def _spares_work(evidence: Evidence, op: OpRecord) -> bool:
    """Whether the products behind a selection of rows take longer than the wait, as the vocabulary of a masked language
    model does: with all rows they would take that time again."""
    behind: set[int | None] = {op.index}
    macs = 0
    for each in evidence.forward:
        if each.index > op.index and not behind.isdisjoint(each.producers):
            behind.add(each.index)
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
        if op.index in constants:
            if any(not each.signature.inputs and _names_device(evidence, each) for each in near):
                return False
            continue
        # A random number: asked for without a device, or scaled by a tensor that is not a buffer, as those of
        # `torch.distributions`, which stays on the host when the model moves.
        free = [(each, at) for each in near for at, source in enumerate(each.producers) if source is None]
        if any((each.index, at) in reads for each, at in free) or (not free and _is_placed(evidence, op)):
            return False
        if not any(RANDOM in each.signature.tags for each in near):
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
        how = f"a wait of {format_seconds(_STALL_S)} next to launches of {format_seconds(_LAUNCH_S)} (assumed)"
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
