"""Loops in Python over ops that one larger op could do: time steps, samples, heads, branches."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import compress

from torchgauge.advise.dataflow import SIZED_BY_VALUE, VALUE_READS
from torchgauge.advise.evidence import TENSOR_CORES, Evidence
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rounds import may_need_each_other
from torchgauge.facts import FREE, Cost, OpRecord, TensorSpec

# Fewer rounds are as often written out on purpose: query, key and value, two branches.
_LEAST_ROUNDS, LEAST_STEPS = 4, 8
# From one step to the one before, ops of a cell: an LSTM written out has about twenty.
_MOST_BETWEEN = 40
_MOST_PER_ROUND = 24
# Of the ops of a round, those that must not depend on the round before where rounds are longer than that.
_LEAST_INDEPENDENT_SHARE = 0.8
RECURRENT_LAYERS = {"LSTM", "GRU", "RNN", "ParametrizedLSTM", "ParametrizedGRU", "ParametrizedRNN"}
# Of the time of a loop's ops, what their calls must take. A loop of 64 rounds over 10 MB each, where they took 4 %, got
# 35 % slower when it was done at once, one of 8 frames, where they took 27 %, got 11 % slower.
_LEAST_CALL_SHARE = 0.3
# The same for networks of several layers that read one tensor. Of 36 mixtures of 4 to 32 experts (one thread), the 24
# from here on got 19 to 92 % faster at once, the others 62 % slower to 20 % faster.
_LEAST_CALL_SHARE_OF_NETWORKS = 0.15
# Rows of a product that take as long to multiply as its weight takes to read: a core does about 15 FLOP for a byte that
# it gets from memory, and a row is half a FLOP for each byte of the weight.
_BALANCED_ROWS = 30
# Weights of a round below this stay in a core's own cache until the next; the least share of a loop's time that reads
# them. A loop of 32 rows over 2 MB of weights took 89 % less at once, one of 16 small images over 44 MB 65 %.
_LEAST_UNCACHED, _LEAST_READ_SHARE = 1 << 20, 0.3
# Of what is predicted to be saved where rounds are done at once, what is at least; the inverse is the most. How code
# joins the rounds is not known: tensors may have to be stacked, and parts of the result are strided.
LEAST_AT_ONCE = 0.65
# A layer is a gate if its input is this many times smaller than what it was pooled from.
_GATE_RATIO = 8
# Products of two matrices, which have no dimension for the batch: the place of the second.
_WEIGHT_AT = {"aten::mm": 1, "aten::addmm": 2, "aten::mv": 0, "aten::addmv": 1}
BEFORE_LOOP = "do this for all steps at once, before the loop: it does not need the state"
_JOINED = "call this once on its inputs joined along the batch, not on each in turn"
_GROUPED = "use one convolution with groups=batch: the loop runs one per sample, each with its own weights"
# Measured with one thread: a convolution in groups takes as long as the loop (0.8 to 1.2 of it), windows and a product
# half of it; from about 60,000 elements of windows a sample on, their copies take as long as the loop.
_UNFOLDED = "unfold the windows and use one einsum: the loop runs once per sample, each with its own weights"
_MOST_UNFOLDED = 60_000
_JOINS = {"aten::cat", "aten::stack"}
_SELECTIONS = {"aten::index", "aten::index_select", "aten::gather"}


@dataclass(frozen=True, slots=True)
class Loop:
    """Products of one line of code, one for each round, and the ops that run in all rounds. `near` are those too that
    run in some rounds, or once: a round may need the one before through them."""

    products: tuple[OpRecord, ...]
    body: tuple[OpRecord, ...]
    near: tuple[OpRecord, ...] = ()

    @property
    def rounds(self) -> int:
        return len(self.products)


@rule("loop-over-samples", family="loops")
def loop_over_samples(evidence: Evidence) -> Iterator[Advice]:
    for advice in (*_recurrent_by_sample(evidence), *_by_sample(evidence)):
        if not needs_round_before(evidence, advice):
            yield advice


def needs_round_before(evidence: Evidence, advice: Advice) -> bool:
    """Whether the code of a loop says that a round may need the one before, though none of this run did."""
    place = evidence.code_at(advice.where.source or evidence.source_of(advice.where.ops[0]))
    return place is not None and may_need_each_other(*place, (advice.where.module or "").split("."))


def _by_sample(evidence: Evidence) -> Iterator[Advice]:
    same = product_loops(evidence)
    steps = {op.source for loop in same if is_recurrent(evidence, loop) for op in loop.products}
    by_parts = [
        *product_loops(evidence, part, one_weight=False),
        *product_loops(evidence, part),
        *_loops_over_parts(evidence),
    ]
    covered: set[int] = set()
    routed = {op.index for mixture in evidence.mixtures if not mixture.is_dense for op in mixture.ops}
    routed |= {op.index for loop in by_parts for op in loop.products if _has_rows_by_value(evidence, op)}
    for loop in by_parts:
        # A product that needs the round before, as of a state and the part of a sequence, cannot be batched.
        if loop.products[0].source in steps or loop.products[-1] not in _side_by_side(loop):
            continue
        # Experts that get as many rows as tokens choose them have no batched form; `host-wait` covers them.
        if not (covered | routed).isdisjoint(op.index for op in loop.products):
            continue
        covered |= {op.index for op in loop.body}
        if not _is_of_small_ops(evidence, loop) and _weights_again(evidence, loop) < _LEAST_READ_SHARE:
            continue
        names = {op.weights for op in loop.products}
        if len(names) > 1:
            # A batched product takes parts of one size. Products of constants are computed once: `recomputed-weight`.
            # The two weights of a cell that is called several times are not layers side by side.
            sizes = {tuple(spec.shape for spec in op.signature.inputs) for op in loop.products}
            is_cell = len(names) < loop.rounds and len({op.module for op in loop.products}) == 1
            are_constant = evidence.dataflow.constants.issuperset(op.index for op in loop.products)
            if len(sizes) > 1 or is_cell or are_constant:
                continue
            words = "stack the weights of these layers and use torch.bmm: each reads one part of a tensor"
            if loop.products[0].category == "convolution":
                words = (
                    f"use one convolution with groups={loop.rounds} for these layers: each reads one part of a tensor"
                )
            yield loop_advice(evidence, "parallel-linears", loop, words, batched(evidence, loop))
            continue
        words = "do this once for the whole tensor: its parts (samples, steps, heads) are computed one by one"
        first, base = loop.products[0], evidence.dataflow.base(loop.products[0], 0)
        # A convolution of a tile of each image: on whole images it has other borders.
        if first.category == "convolution" and base and base[1].shape[:2] == first.signature.inputs[0].shape[:2]:
            words = _JOINED
        # To select rows alone is one gather for all rounds.
        readers = [user for op in loop.products for user in evidence.flow.users(op)]
        reductions = sum(user.category == "reduction" for user in readers)
        if first.op in _SELECTIONS and reductions >= loop.rounds - 1:
            words = "use index_add or scatter_reduce for all samples: the loop selects the rows of each in turn"
        if (advice := _samples_advice(evidence, loop, words)) is not None:
            yield advice

    independent = [_are_independent(evidence, loop) for loop in same]
    waiting = [loop for loop, is_apart in zip(same, independent, strict=True) if not is_apart]
    for loop in compress(same, independent):
        begin, end = loop.products[0].index, loop.products[-1].index
        # A product of a cell's input may be independent where that of its state is not: `loop-over-steps` covers it.
        # The first product of a network speaks for the others.
        is_held_up = any(begin < op.index < end for other in waiting for op in other.products)
        # Which part of a weight a round takes is unknown: experts in one tensor have different ones.
        is_sliced = any(_takes_part_of_weight(evidence, op) for op in loop.products)
        if is_held_up or is_sliced or not covered.isdisjoint(op.index for op in loop.products):
            continue
        covered |= {op.index for op in loop.body}
        is_large = not _is_of_small_ops(evidence, loop) and _weights_again(evidence, loop) < _LEAST_READ_SHARE
        advice = None if is_large else _samples_advice(evidence, loop, _JOINED)
        if advice is not None and _is_worth_joining(evidence, loop):
            yield advice


def _samples_advice(evidence: Evidence, loop: Loop, words: str) -> Advice | None:
    """With other words where each round has a convolution or product with a weight for it alone, made in the round or a
    part of a tensor: inputs joined along the batch would all meet one weight. None where that gains nothing."""
    # Each round has its own statistics, or a value decides what it does.
    has_statistics = any("batch_norm" in op.op and op.signature.attributes.get("training") for op in loop.body)
    if has_statistics or any(op.op in VALUE_READS for op in loop.body) or _reads_on_host(evidence, loop):
        return None
    # Rows that values choose are another number in each round, though they may be all or none with random weights.
    ragged = set[int | None]()
    for op in loop.body:
        if op.op in SIZED_BY_VALUE or _has_rows_by_value(evidence, op) or not ragged.isdisjoint(op.producers):
            ragged.add(op.index)
    # A layer in front of them can still be called once; a comparison is not worth it.
    if ragged and (not loop.products[0].cost.macs or not ragged.isdisjoint(op.index for op in loop.products)):
        return None
    loop = Loop(loop.products, tuple(op for op in loop.body if op.index not in ragged), loop.near)
    sizes = {tuple(spec.shape for spec in op.signature.inputs) for op in loop.products}
    if len(sizes) > 1:
        # Parts of different sizes can be joined for a product, and for nothing that goes across their rows.
        if loop.products[0].category != "matmul":
            return None
        loop = Loop(loop.products, loop.products)
    made = {op.index for op in loop.body if op.status != FREE}
    constants = evidence.dataflow.constants  # a weight made of parameters alone is the same in every round
    apart = _side_by_side(loop)
    own = [
        op
        for op in apart
        if len(op.producers) > (at := _WEIGHT_AT.get(op.op, 1))
        and (
            (op.producers[at] in made and op.producers[at] not in constants)
            or evidence.dataflow.reads_part(op, at) is not None
            or (op.weights and _takes_part_of_weight(evidence, op))
        )
    ]
    # Where rounds need the one before, which matrices can be had at once is not known.
    inside = {op.index for op in apart}
    if own and any(op.cost.macs and op.index not in inside for op in loop.body):
        return None
    convolutions = [op for op in own if op.category == "convolution"]
    if convolutions:
        windows = [op.cost.macs // max(op.signature.inputs[1].shape[0], 1) for op in convolutions]
        if not evidence.is_cuda and max(windows) > _MOST_UNFOLDED:
            return None
        words = _GROUPED if evidence.is_cuda else _UNFOLDED
    elif any(op.op in _WEIGHT_AT for op in own):
        words = "use torch.bmm for all of them at once: the loop multiplies each by a different matrix"
    # Of a cell in a loop over steps, the part that does not need the state: the cell itself stays where it is.
    staying = [op for op in loop.body if inside and op.index not in inside and op.status != FREE]
    around = f"{loop.products[0].module.rpartition('.')[0]}."
    if any(f"{op.module}.".startswith(around) for op in staying):
        words = BEFORE_LOOP
    return loop_advice(evidence, "loop-over-samples", loop, words, batched(evidence, loop), staying)


def _reads_on_host(evidence: Evidence, loop: Loop) -> bool:
    """Whether the code of the loop brings tensors to the host in each round, as for an assignment by SciPy: what it
    computes there decides what the round reads."""
    place = evidence.code_at(loop.products[0])
    around = None if place is None else place[0].enclosing(place[0].statement(place[1]), ast.For, ast.While)
    if place is None or around is None:
        return False
    for read in evidence.capture.run.host_reads:
        file, _, line = (read.source or "").rpartition(":")
        if file == place[0].file and around.lineno <= int(line) <= (around.end_lineno or around.lineno):
            return True
    return False


def _is_of_small_ops(evidence: Evidence, loop: Loop) -> bool:
    """Whether calls are a good part of the time of its ops. Rounds of large ops gain nothing by being done at once, and
    need the memory of all rounds."""
    return evidence.share(_side_by_side(loop)).calls >= _LEAST_CALL_SHARE


def _weights_again(evidence: Evidence, loop: Loop) -> float:
    """Of the time of its ops on a CPU, what the rounds take to read the same large weights again."""
    names = {name for op in loop.body if op.cost.macs for name in op.weights}
    nbytes = sum(evidence.params[name].spec.nbytes for name in names if name in evidence.params)
    if evidence.is_cuda or len({op.weights for op in loop.products}) > 1 or nbytes < _LEAST_UNCACHED:
        return 0.0
    return read_again(evidence, _side_by_side(loop))


def read_again(evidence: Evidence, ops: Sequence[OpRecord]) -> float:
    """Of the time of these ops, what their products take to read weights: all where they have one row, half where the
    multiplications with it take as long."""
    seconds, reading, whole = evidence.times.seconds, 0.0, 0.0
    for op in ops:
        took = seconds.get(op.index, 0.0)
        whole += took
        if op.weights and op.cost.macs:
            sizes = [evidence.params[name].spec.numel for name in op.weights if name in evidence.params]
            rows = op.cost.macs / max(*sizes, 1, 1)
            reading += took / (1 + rows / _BALANCED_ROWS)
    return reading / whole if whole else 0.0


def _is_worth_joining(evidence: Evidence, loop: Loop) -> bool:
    """Not a gate, which makes a few numbers of a large map: to join the maps costs more than the calls. Compares what
    the outermost module that is called in each round reads with what its product reads."""
    first, unit = loop.products[0], loop.products[0].module
    pooled = evidence.flow.source(first)
    if pooled is not None and pooled.category in ("reduction", "pooling"):
        large, small = pooled.signature.inputs[0].nbytes, pooled.signature.outputs[0].nbytes
        if large > _GATE_RATIO * small:
            return False
    while (path := unit.rpartition(".")[0]) in evidence.modules and path:
        if evidence.modules[path].calls < loop.rounds:
            break
        unit = path
    near = [op for op in loop.body if f"{op.module}.".startswith(f"{unit}.")] or [first]
    own, reads, given = {op.index for op in near}, dict[object, int](), 0
    for op in (*near, *loop.products):
        for at, spec in enumerate(op.signature.inputs):
            base = evidence.dataflow.base(op, at)
            if base is not None and base[0] not in own:
                reads[base[0]] = max(reads.get(base[0], 0), spec.nbytes)
            given += spec.nbytes if base is not None and op in loop.products else 0
    return sum(reads.values()) <= _GATE_RATIO * given


def _has_rows_by_value(evidence: Evidence, op: OpRecord) -> bool:
    """Whether it selects or reads rows that `nonzero`, `where` or a mask chose: each round gets another number."""
    for selection in (op, *evidence.flow.sources(op)):
        if selection.op not in _SELECTIONS or selection.weights:
            continue
        for at in range(1, len(selection.signature.inputs)):
            source = evidence.flow.source(selection, at)
            is_mask = selection.op == "aten::index" and evidence.dataflow.is_mask(selection, at)
            if is_mask or (source is not None and source.op in SIZED_BY_VALUE):
                return True
    return False


def _recurrent_by_sample(evidence: Evidence) -> Iterator[Advice]:
    """Recurrent layers that a loop calls on one sample after the other, as `gru(x[i:i+1])`: none needs the one
    before."""
    for path in sorted(evidence.once(_recurrent_layers)):
        calls = _calls_of_layer(evidence, path)
        if len(calls) < _LEAST_ROUNDS or evidence.modules[path].calls != len(calls):
            continue
        number = {op.index: at for at, ops in enumerate(calls) for op in ops}
        entries = [next(op for op in ops if op.category != "allocation") for ops in calls]
        reads = [
            (evidence.dataflow.base(op, at), spec) for op in entries for at, spec in enumerate(op.signature.inputs)
        ]
        parts = {(base, spec.numel) for base, spec in reads if base is not None and base[0] not in number}
        # Each takes as large a part of one tensor.
        is_parted = len(parts) == 1 and all(size * len(calls) <= whole.numel for (_, whole), size in parts)
        if not is_parted or _needs_call_before(evidence, number):
            continue
        own = [op for ops in calls for op in ops]
        loop, share, fewer = Loop(tuple(entries), tuple(own)), evidence.share(own), 1 - 1 / len(calls)
        saved = None if evidence.is_cuda else saved_at_once(evidence, own, loop)
        low, high = 0.85 * fewer * share.calls, fewer * min(2 * share.calls, 1.0)
        if saved is not None:
            low, high = LEAST_AT_ONCE * saved, min(saved / LEAST_AT_ONCE, fewer)
        gain = share.gain(low, high, f"one call in place of {len(calls)}")
        yield loop_advice(evidence, "loop-over-samples", loop, _JOINED, gain)


def _calls_of_layer(evidence: Evidence, path: str) -> list[list[OpRecord]]:
    """The ops of a layer by call; between two calls the code around it takes the next part of a tensor."""
    calls, is_inside = list[list[OpRecord]](), False
    for op in evidence.forward:
        if op.module != path:
            is_inside = False
            continue
        if not is_inside:
            calls.append([])
        is_inside = True
        if op.status != FREE:
            calls[-1].append(op)
    return calls if all(any(op.category != "allocation" for op in ops) for ops in calls) else []


def _needs_call_before(evidence: Evidence, number: Mapping[int, int]) -> bool:
    """Whether a call reads what an earlier one made, by itself or through other ops. `number`: of the call, by op."""
    behind = set[int | None]()
    for op in evidence.forward:
        own = number.get(op.index)
        if own is None:
            if any(source in behind or source in number for source in op.producers):
                behind.add(op.index)
        elif any(source in behind or number.get(source or -1, own) != own for source in op.producers):
            return True
    return False


def _loops_over_parts(evidence: Evidence) -> Iterator[Loop]:
    """Of ops of any kind that take equal parts of one tensor, and whose rounds need nothing of each other. A loop over
    different layers is left to those rules."""
    groups: dict[tuple[object, ...], list[OpRecord]] = {}
    number = evidence.dataflow.call_number
    for op in evidence.flow.steps:
        if op.source is not None and op.signature.inputs and not is_recurrent_layer(evidence, op.module):
            groups.setdefault((op.source, outline(op.module), number(op), op.weights), []).append(op)
    covered: set[int] = set()
    for group in groups.values():
        if len(group) < _LEAST_ROUNDS or not covered.isdisjoint(op.index for op in group):
            continue
        for ops in _by_tensor(evidence, group, _rows):
            if _is_written_out(evidence, ops[0]):
                continue
            loop = with_body(evidence, ops)
            weights: dict[tuple[str | None, str], set[tuple[str, ...]]] = {}
            for op in loop.body:
                if op.weights and op.status != FREE:
                    weights.setdefault((op.source, op.op), set()).add(op.weights)
            is_of_layers = any(len(names) > 1 for names in weights.values())
            if not is_of_layers and len(_side_by_side(loop)) >= _LEAST_INDEPENDENT_SHARE * len(loop.body):
                covered |= {op.index for op in loop.body}
                yield loop


def _is_written_out(evidence: Evidence, op: OpRecord) -> bool:
    """Whether a line runs several times without a loop: its function is called for queries and for keys, as that of a
    rotary embedding, or it names the parts one by one."""
    place, record = evidence.code_at(op), evidence.modules.get(op.module)
    statement = None if place is None else place[0].statement(place[1])
    if place is None or statement is None or record is None or record.calls != 1:
        return False
    source, seen = place[0], set[str]()
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        function = source.enclosing(node, ast.FunctionDef)
        if source.is_in_loop(getattr(node, "lineno", 0)):
            return False
        if function is None or function.name == "forward" or function.name in seen:
            continue
        seen.add(function.name)
        uses = source.uses.get(function.name, [])
        calls = [each for each in uses if isinstance(call := source.parents.get(each), ast.Call) and call.func is each]
        # Where it is not called by its name, as by `map` or in another file, a loop may be behind it.
        if not calls or len(calls) < len(uses):
            return False
        todo += calls
    return True


def _are_independent(evidence: Evidence, loop: Loop) -> bool:
    """The same layer on different tensors of one shape, none of which depends on an earlier call."""
    if evidence.is_train or len({op.producers for op in loop.products}) < loop.rounds - 1:
        return False
    products, behind = {op.index for op in loop.products}, set[int | None]()
    for op in evidence.forward:
        if loop.products[0].index <= op.index <= loop.products[-1].index:
            needs_one = not behind.isdisjoint(op.producers)
            if needs_one and op.index in products:
                return False
            if needs_one or op.index in products:
                behind.add(op.index)
    # What Python reads of a round may come back in the next one.
    return not any(index in behind and index < loop.products[-1].index for index in evidence.read_on_host)


def is_recurrent_layer(evidence: Evidence, path: str) -> bool:
    """Whether a module is a recurrent layer of torch's: by its name, or by its weights where it is a subclass."""
    return path in evidence.once(_recurrent_layers)


def _recurrent_layers(evidence: Evidence) -> frozenset[str]:
    named = [record.path for record in evidence.capture.modules if record.type in RECURRENT_LAYERS]
    return evidence.capture.recurrent_layers.union(named)


@lru_cache(maxsize=1 << 14)
def outline(path: str) -> str:
    """The path of a module with # for each number: the same for all blocks of a stack."""
    return re.sub(r"\d+", "#", path)


@rule("parallel-linears", family="loops")
def parallel_linears(evidence: Evidence) -> Iterator[Advice]:
    """Layers with different weights that read one tensor: embeddings of its columns, and products."""
    tables: dict[tuple[object, ...], list[OpRecord]] = {}
    for op in evidence.flow.of_category("embedding"):
        column = _slice(evidence, op)
        if op.source is not None and op.weights and column is not None:
            width = op.signature.outputs[0].shape[-1]
            tables.setdefault((op.source, outline(op.module), width, column), []).append(op)
    for ops in tables.values():
        if len({op.weights for op in ops}) == len(ops) >= LEAST_STEPS:
            loop = with_body(evidence, ops)
            words = "join these tables and add an offset to each column's indices: one lookup in place of many"
            yield loop_advice(evidence, "parallel-linears", loop, words, batched(evidence, loop))
    for loop in product_loops(evidence, _whole, one_weight=False):
        names, first = {op.weights for op in loop.products}, {op.index for op in loop.products}
        # Convolutions with other kernels, strides or dilations cannot be one.
        kinds = {(op.signature.inputs[1].shape[1:], repr(op.signature.attributes)) for op in loop.products}
        if loop.products[0].category == "convolution" and len(kinds) > 1:
            continue
        is_sliced = len(names) == 1 and all(_takes_part_of_weight(evidence, op) for op in loop.products)
        if len(names) < loop.rounds and not is_sliced:
            continue
        # Blocks that all read one tensor, as decoders their encoder's, do so far apart, and depend on each other.
        is_near, apart = max(first) - min(first) <= _MOST_PER_ROUND * loop.rounds, _side_by_side(loop)
        if not is_near and len(apart) < _LEAST_INDEPENDENT_SHARE * len(loop.body):
            continue
        # Parts of a joined result are strided, and norms of such parts lose more than the product gains: 14 to 17 % for
        # experts with batch norms.
        if any(user.category == "normalization" for op in loop.products for user in evidence.flow.users(op)):
            continue
        shared = _whole(evidence, loop.products[0])
        rest = [op for op in apart if op.cost.macs and op.weights and _whole(evidence, op) != shared]
        words = "join these layers into one and split its result: all read the same tensor"
        if len(rest) >= loop.rounds - 1:
            # A batched product of large matrices takes as long as one by one, or longer.
            if not evidence.is_cuda and evidence.share(apart).calls < _LEAST_CALL_SHARE_OF_NETWORKS:
                continue
            words = "join the first weights of these networks into one layer and use torch.bmm for the rest"
        yield loop_advice(evidence, "parallel-linears", loop, words, batched(evidence, loop))


def loop_advice(
    evidence: Evidence, name: str, loop: Loop, words: str, gain: Gain, staying: Sequence[OpRecord] = ()
) -> Advice:
    """`staying`: the ops of the rounds that stay in the loop, as those of a cell that need the state."""
    first, module = loop.products[0], loop.products[0].module
    line = evidence.loop_line(loop.products, staying)
    is_part = any(f"{op.module}.".startswith(f"{module.rpartition('.')[0]}.") for op in staying)
    # Layers that read one tensor in evaluation may read different samples of it in training.
    dropouts = [each for each in evidence.capture.modules if "Dropout" in each.type and line is not None]
    calls = sum(each.calls for each in dropouts if any(place.endswith(str(line)) for place in each.called_from))
    is_dropped = name == "parallel-linears" and not evidence.is_train and calls >= loop.rounds - 1
    has_statistics = name == "loop-over-samples" and any("batch_norm" in op.op for op in loop.body)
    return Advice(
        rule=name,
        where=Where(
            module if is_part else module.rpartition(".")[0] or module,
            tuple(op.index for op in loop.products),
            source=line,
        ),
        evidence={"rounds": loop.rounds, "ops": len(loop.body), "op": first.op},
        recommendation=words,
        change=None,
        expected_gain=gain,
        risk="in training each of these layers has its own dropout; rounding differs"
        if is_dropped
        else "in training the batch norms then see all rounds at once; one op needs the memory of all"
        if has_statistics
        else "one op needs the memory of all rounds at once"
        + ("" if first.category == "embedding" else "; rounding differs"),
        confidence="medium",
    )


Reading = Callable[[Evidence, OpRecord], object | None]


def product_loops(evidence: Evidence, read: Reading | None = None, *, one_weight: bool = True) -> list[Loop]:
    """Of ops with the same line, kind and shape: a loop, or blocks that are called one after the other. `read`: the
    tensor that all rounds must read, from what one round reads. `one_weight`: all rounds use the same parameters."""
    groups: dict[tuple[object, ...], list[OpRecord]] = {}
    for op in evidence.flow.of_category(*TENSOR_CORES):
        is_wanted = op.source is not None and op.cost.macs and not is_recurrent_layer(evidence, op.module)
        if is_wanted and (op.weights or (read is part and one_weight)):
            path = outline(op.module)
            # A kernel may only write to its arguments. Experts get different numbers of tokens.
            shapes = tuple(output.shape if one_weight else output.shape[-1:] for output in op.signature.outputs)
            key: tuple[object, ...] = (op.source, path, op.op, shapes, op.weights if one_weight else None)
            if op.category == "convolution" and not one_weight:  # one layer has one window, stride and dilation
                key = (*key, op.signature.inputs[1].shape[1:], repr(op.signature.attributes))
            groups.setdefault(key, []).append(op)
    found = [ops for ops in groups.values() if len(ops) >= _LEAST_ROUNDS]
    if read is not None:
        found = [ops for group in found for ops in _by_tensor(evidence, group, read)]
    return [with_body(evidence, ops) for ops in found]


def _by_tensor(evidence: Evidence, ops: Sequence[OpRecord], read: Reading) -> Iterator[list[OpRecord]]:
    """Those that read the same tensor, where they are enough for a loop."""
    groups: dict[object, list[OpRecord]] = {}
    for op in ops:
        if (tensor := read(evidence, op)) is not None:
            groups.setdefault(tensor, []).append(op)
    yield from (group for group in groups.values() if len(group) >= _LEAST_ROUNDS)


def with_body(evidence: Evidence, products: Sequence[OpRecord]) -> Loop:
    """What runs between the first and the last about as often as the products. The next layer of a stack runs the same
    lines in another loop, before or after this one; the next layer of a Sequential runs in every round. A loop around
    this one runs it again: there its line does as many products as a round has."""
    begin, end = products[0].index, products[-1].index
    own = {path for op in products for path in _path_and_parents(op.module)}
    kinds = {outline(path) for path in own}
    same = evidence.same_calls(products[0])
    before, behind = [at for at in same if at < begin], [at for at in same if at > end]
    left = -(len(same) - len(before) - len(behind)) % len(products)  # of the last round, behind its product
    first = max(begin - _MOST_BETWEEN, before[-1 - left] + 1 if len(before) > left else 0)
    last = min(end + _MOST_BETWEEN, behind[left] - 1 if len(behind) > left else end + _MOST_BETWEEN)
    near = [op for op in evidence.forward if first <= op.index <= last]
    inside = {op.module for op in near if begin <= op.index <= end}
    others = {
        module
        for module in {op.module for op in near} - inside
        if any(path not in own and outline(path) in kinds for path in _path_and_parents(module))
    }
    near = [op for op in near if op.module not in others]
    # A line before or behind the loop may run as often as it, as that of query, key and value.
    count = Counter((op.source, op.op) for op in near if begin <= op.index <= end)
    body = [op for op in near if count[op.source, op.op] >= len(products) - 1 and op.source is not None]
    return Loop(tuple(products), tuple(body), tuple(near))


Kind = tuple[str | None, str, str, tuple[str, ...]]


def kind_of(op: OpRecord) -> Kind:
    """Equal for the ops that one place in the code makes in every round."""
    return op.source, op.op, op.module, op.weights


def carried(loop: Loop) -> list[OpRecord]:
    """The ops that lead from the product of one round to that of the next: what the state of a loop goes through. Empty
    where no round needs the one before."""
    before, behind = links(loop)
    start = kind_of(loop.products[0])
    around = reached(before, start) & reached(behind, start)
    return [op for op in loop.body if kind_of(op) in around]


def between(evidence: Evidence, loop: Loop) -> list[OpRecord]:
    """The ops that lead from the product of any round to that of a later one, those too that run in a few rounds."""
    products = {op.index for op in loop.products}
    behind, before = set[int | None](products), set[int | None]()
    ops = [op for op in evidence.forward if loop.products[0].index <= op.index <= loop.products[-1].index]
    for op in ops:
        if not behind.isdisjoint(op.producers):
            behind.add(op.index)
    for op in reversed(ops):
        if op.index in products or op.index in before:
            before.update(op.producers)
    return [op for op in ops if op.index in behind and op.index in before and op.status != FREE]


def kept_by_rounds(loop: Loop) -> set[Kind]:
    """The kinds of ops that need what they made in the round before, whether the product does or not: those that any
    state of the loop goes through."""
    starts, (before, behind) = _round_starts(loop), links(loop)
    made = {op.index: op for op in loop.body}
    number = {index: bisect_right(starts, index) for index in made}
    # A line may add three terms: only what one round hands to a later one is a state.
    handed = {
        (kind_of(made[source]), kind_of(op))
        for op in loop.body
        for source in op.producers
        if source is not None and source in made and 0 < number[source] < number[op.index]
    }
    kept: set[Kind] = set()
    for giver, reader in handed:
        kept |= {reader, *reached(behind, reader)} & {giver, *reached(before, giver)}
    return kept


def links(loop: Loop) -> tuple[Mapping[Kind, set[Kind]], Mapping[Kind, set[Kind]]]:
    """By kind of op, the kinds that make what it reads, and those that read what it makes, in any round."""
    inside = {op.index: kind_of(op) for op in loop.body}
    before: dict[Kind, set[Kind]] = {}
    behind: dict[Kind, set[Kind]] = {}
    for op in loop.body:
        for source in op.producers:
            if source is not None and source in inside:
                before.setdefault(inside[op.index], set()).add(inside[source])
                behind.setdefault(inside[source], set()).add(inside[op.index])
    return before, behind


def reached(edges: Mapping[Kind, set[Kind]], start: Kind) -> set[Kind]:
    found: set[Kind] = set()
    todo = [start]
    while todo:
        for near in edges.get(todo.pop(), ()):
            if near not in found:
                found.add(near)
                todo.append(near)
    return found


def _path_and_parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]


def _side_by_side(loop: Loop) -> list[OpRecord]:
    """The ops of the body that one batched op could do: those that need nothing of an earlier round. Blocks that are
    called one after the other share such products (a projection of the same condition), and nothing else."""
    starts, body = _round_starts(loop), {op.index for op in loop.body}
    latest: dict[int, int] = {}  # the last round whose body an op needs, or is in
    waiting: set[int] = set()
    kinds: set[tuple[str | None, str]] = set()  # the first round has none before it
    for op in loop.near or loop.body:
        before = [source for source in op.producers if source is not None and source in latest]
        is_inside = op.index in body
        latest[op.index] = max((latest[source] for source in before), default=0)
        number = bisect_right(starts, op.index) if is_inside else 0
        # What runs before the first round is not of the loop.
        if any(source in waiting or 0 < latest[source] < number for source in before):
            waiting.add(op.index)
            kinds.update([(op.source, op.op)] if is_inside else [])
        latest[op.index] = number if is_inside else latest[op.index]
    return [op for op in loop.body if (op.source, op.op) not in kinds]


def _round_starts(loop: Loop) -> list[int]:
    """The index of the first op of each round: of those that run as often as the products, the kind that comes first
    between one product and the next."""
    products = [op.index for op in loop.products]
    kinds: dict[tuple[str | None, str], list[int]] = {}
    for op in loop.body:
        kinds.setdefault((op.source, op.op), []).append(op.index)
    starts = products
    for found in kinds.values():
        each, rest = divmod(len(found), loop.rounds)
        first = found[:: max(each, 1)]
        is_aligned = not rest and all(
            at <= product and (not n or at > products[n - 1])
            for n, (at, product) in enumerate(zip(first, products, strict=False))
        )
        if is_aligned and first[0] < starts[0]:
            starts = first
    return starts


def _places(evidence: Evidence, op: OpRecord) -> list[int]:
    """The inputs that were made by ops or given to the model."""
    reads = evidence.dataflow.input_reads
    return [at for at, source in enumerate(op.producers) if source is not None or (op.index, at) in reads]


def _slice(evidence: Evidence, op: OpRecord) -> object | None:
    found = (evidence.dataflow.reads_part(op, place) for place in _places(evidence, op))
    return next((base for base in found if base is not None), None)


def _rows(evidence: Evidence, op: OpRecord) -> object | None:
    """Also a few rows of a tensor that are selected by a list of indices, as the atoms of a molecule. More than two
    reads of halves, as a rotary embedding makes, are not rounds."""
    base = evidence.dataflow.base(op, 0)
    if op.op not in _SELECTIONS or op.weights:
        is_half = base is not None and base[1].numel == 2 * op.signature.inputs[0].numel
        return None if is_half else _slice(evidence, op)
    is_few = base is not None and 2 * op.signature.outputs[0].numel <= base[1].numel
    return base[0] if base is not None and is_few else None


def part(evidence: Evidence, op: OpRecord) -> object | None:
    """Also rows that were selected, as the tokens of an expert are."""
    dataflow = evidence.dataflow
    found = [dataflow.reads_part(op, place) for place in _places(evidence, op)]
    selected = [source for source in evidence.flow.sources(op) if source.op in _SELECTIONS and not source.weights]
    found += [base[0] for source in selected if (base := dataflow.base(source, 0)) is not None]
    return next((base for base in found if base is not None), None)


def _takes_part_of_weight(evidence: Evidence, op: OpRecord) -> bool:
    whole = max((evidence.params[name].spec.numel for name in op.weights if name in evidence.params), default=0)
    held = [op.signature.inputs[at].numel for at, source in enumerate(op.producers) if source is None]
    return bool(held) and 2 * max(held) <= whole


def _whole(evidence: Evidence, op: OpRecord) -> object | None:
    found = [evidence.dataflow.reads_whole(op, place) for place in _places(evidence, op)]
    return next((base for base in found if base is not None), None)


def is_recurrent(evidence: Evidence, loop: Loop) -> bool:
    """Each round needs the one before, and a part of one tensor that all rounds share: a sequence. A layer that is
    applied to its own result again and again reads no such tensor."""
    if loop.rounds < LEAST_STEPS:
        return False
    bases: Counter[object] = Counter()
    for before, op in zip(loop.products, loop.products[1:], strict=False):
        near = [op, *evidence.dataflow.ancestors(op, _MOST_BETWEEN, before)]
        if before not in near:
            return False
        parts = {evidence.dataflow.reads_part(each, at) for each in near for at in range(len(each.signature.inputs))}
        bases.update(parts - {None})
    return bool(bases) and bases.most_common(1)[0][1] >= loop.rounds // 2


def batched(evidence: Evidence, loop: Loop) -> Gain:
    """One call in place of each round's: their dispatch goes away, and about as much again for products too small for
    the device, whose weights are read again. The op that joins the results of all rounds goes away too."""
    ops = _side_by_side(loop)
    made = {op.index for op in ops}
    joins = [
        op
        for op in evidence.forward
        if op.op in _JOINS and op.index not in made and len(made.intersection(op.producers)) >= loop.rounds - 1
    ]
    share = evidence.share([*ops, *joins])
    fewer, idle = 1 - 1 / loop.rounds, share.calls
    how = f"one round of ops in place of {loop.rounds}"
    # Where the host launches for a GPU, 0.85 to 1 of what is counted was saved in eight models on an H200.
    if evidence.is_cuda:
        return share.gain(0.85 * fewer * idle, fewer * min(2 * idle, 1.0), how)
    saved = saved_at_once(evidence, ops, loop)
    if saved is not None:
        return share.gain(LEAST_AT_ONCE * saved, min(saved / LEAST_AT_ONCE, fewer), how)
    products = evidence.share(op for op in ops if op.category in TENSOR_CORES)
    again = products.value * products.calls / share.value if share.value else 0.0
    return share.gain(0.7 * fewer * idle, fewer * min(idle + again, 1.0), how)


def saved_at_once(evidence: Evidence, ops: Sequence[OpRecord], loop: Loop) -> float | None:
    """Of the predicted time of ops of a loop's rounds, what one call for all rounds saves: its calls, and kernels that
    are better filled, as products with one weight that get more rows. None where op times were measured."""
    before_s = sum(evidence.times.seconds.get(op.index, 0.0) for op in ops)
    is_shared = len({op.weights for op in loop.products}) == 1
    known, after_s = dict[int, float](), 0.0  # equal calls share a signature
    for op in ops:
        if id(op.signature) not in known:
            seconds = evidence.seconds_of(_of_all_rounds(op, loop.rounds, is_shared=is_shared))
            if seconds is None:
                return None
            known[id(op.signature)] = seconds / loop.rounds
        after_s += known[id(op.signature)]
    return max(0.0, 1 - after_s / before_s) if before_s else None


def _of_all_rounds(op: OpRecord, rounds: int, *, is_shared: bool) -> OpRecord:
    """The same op on the tensors of all rounds. With a weight that all share, the rows of a product and the images of a
    convolution become more; else there are more matrices, or more elements."""
    signature, cost = op.signature, op.signature.cost
    weights = sum(spec.nbytes for spec, source in zip(signature.inputs, op.producers, strict=True) if source is None)
    has_more_rows = bool(op.weights) and is_shared and op.category in TENSOR_CORES
    held = weights if op.weights and is_shared else 0

    def grown(spec: TensorSpec) -> TensorSpec:
        if has_more_rows and spec.shape:
            rows = 1 if op.category == "recurrent" and len(spec.shape) == 3 else 0  # the first are the steps
            return replace(spec, shape=(*spec.shape[:rows], rounds * spec.shape[rows], *spec.shape[rows + 1 :]))
        stride = None if spec.stride is None else (spec.numel, *spec.stride)
        return replace(spec, shape=(rounds, *spec.shape), stride=stride)

    inputs = [
        spec if source is None and is_shared and op.weights else grown(spec)
        for spec, source in zip(signature.inputs, op.producers, strict=True)
    ]
    whole = Cost(
        rounds * cost.macs, rounds * cost.flops, rounds * (cost.bytes_read - held) + held, rounds * cost.bytes_written
    )
    outputs = tuple(map(grown, signature.outputs))
    return replace(op, signature=replace(signature, inputs=tuple(inputs), outputs=outputs, cost=whole))
