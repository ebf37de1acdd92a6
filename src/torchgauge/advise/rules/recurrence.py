"""Loops in Python whose rounds need the one before: time steps of a cell, scans, running sums."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from torchgauge.advise.code import Patch, called
from torchgauge.advise.dataflow import VALUE_READS
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.flow import has_complex
from torchgauge.advise.op_time import FRESH_S_PER_BYTE
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rules.loops import (
    BEFORE_LOOP,
    LEAST_AT_ONCE,
    LEAST_STEPS,
    RECURRENT_LAYERS,
    Kind,
    Loop,
    between,
    carried,
    is_recurrent,
    is_recurrent_layer,
    kept_by_rounds,
    kind_of,
    links,
    loop_advice,
    needs_round_before,
    part,
    product_loops,
    reached,
    read_again,
    saved_at_once,
    with_body,
)
from torchgauge.facts import FREE, Cost, OpRecord, TensorSpec

_CELLS = ("LSTMCell", "GRUCell", "RNNCell")
_PRODUCTS = {"aten::mm", "aten::addmm", "aten::linear", "aten::matmul"}
_ACTIVATIONS = {"aten::tanh", "aten::sigmoid", "aten::relu"}
# What the state of a recurrent layer of torch's goes through. Anything else (a softmax over an encoder, a convolution,
# an exponential gate, an argmax) makes it another cell.
_OF_CELLS = {
    *_PRODUCTS,
    *_ACTIVATIONS,
    *(f"aten::{name}" for name in ("add", "sub", "rsub", "mul", "cat", "stack", "clone", "copy", "_to_copy")),
}
_COPIES = {f"aten::{name}" for name in ("cat", "stack", "clone", "copy", "_to_copy")}
_COLLECTS = {*_COPIES, "aten::add"}
_FROM_GATES = {*_COPIES, "aten::sub", "aten::rsub"}
_POINTWISE = ("elementwise", "activation", "copy")
# Of the work of a loop of pointwise ops, what its compiled code saves (low, high): three models
# got 7, 30 and 77 % faster, where the calls alone were expected to save 5, 10 and 26 %.
_LEAST_FUSED, _MOST_FUSED = 0.3, 0.8
# Ops of an unrolled loop that can be compiled in minutes: 600 took 45 seconds, twice as many more than twice as long.
_MOST_COMPILED = 5_000
# Of a parallel scan, how many times as long as the next one a level is at least: two, less what odd lengths leave.
_LEVEL = 1.5
_SUMS = {"add", "sub", "rsub", "neg"}
_LSTM = "aten::mkldnn_rnn_layer"
_NOT_FED_BACK = "not where a result is fed back, as in generation"
_NOT_DROPPED = "not with dropout of the state, nor where a result is fed back"
_OTHER_RESET = "torch's GRU applies its reset gate after the product: train again"
# Of the time of a loop over an LSTM's cells, the least that one call is said to save.
_LEAST_BY_LAYER = 0.05
# So far back a term of a sum is followed to the term before.
_MOST_ANCESTORS = 500
# Elements of sigmoids and tanhs may differ by a round from what a formula says.
_ELEMENTS_TOLERANCE = 0.2


@rule("loop-over-steps", family="loops")
def loop_over_steps(evidence: Evidence) -> Iterator[Advice]:
    """Time steps of a cell that torch has as a layer, and layers that the state of any cell does not go through."""
    covered: set[int] = set()
    for loop in _layers_by_step(evidence):
        covered |= {op.index for op in loop.body}
        words = "call this recurrent layer once on the whole sequence: now it is called for every step"
        found = loop_advice(evidence, "loop-over-steps", loop, words, _fused(evidence, loop))
        yield replace(found, risk=_NOT_DROPPED if _has_dropout(evidence, loop) else _NOT_FED_BACK)
    recurrent = [loop for loop in product_loops(evidence) if is_recurrent(evidence, loop)]
    loops = [loop for loop in recurrent if not _asks_python(evidence, loop)]
    for loop in loops:
        through = carried(loop)
        layer = _layer_of(evidence, loop, through)
        if layer is not None and covered.isdisjoint(op.index for op in loop.products):
            # The ops that make what a step reads next to the state: the product with its input.
            inside = {op.index for op in through}
            feeds = [op for op in loop.body if op.index not in inside]
            feeds = [op for op in feeds if any(user.index in inside for user in evidence.flow.users(op))]
            words = f"use torch.nn.{layer} for the loop over time steps: one call for all"
            leaving = Loop(loop.products, (*through, *feeds))
            found = loop_advice(evidence, "loop-over-steps", leaving, words, _fused(evidence, leaving))
            resets_first = layer == "GRU" and _scales_before_products(through)
            risk = _NOT_DROPPED if _has_dropout(evidence, loop) else _NOT_FED_BACK
            yield replace(found, risk=_OTHER_RESET if resets_first else risk)
            covered |= {op.index for op in feeds}
    for loop, words, staying in _outside_the_state(evidence, recurrent):
        if covered.isdisjoint(op.index for op in loop.products):
            loop = Loop(loop.products, tuple(op for op in loop.body if op.index not in covered))
            covered |= {op.index for op in loop.body}
            share, fewer = evidence.share(loop.body), 1 - 1 / loop.rounds
            how = f"one call of these ops in place of {loop.rounds}, which reads their weights once"
            again = (1 - share.calls) * read_again(evidence, loop.body)
            low, high = 0.7 * share.calls + 0.5 * again, min(2 * share.calls + again, 1.0)
            saved = None if evidence.is_cuda else saved_at_once(evidence, loop.body, loop)
            if saved is not None:
                low, high = LEAST_AT_ONCE * saved / fewer, min(saved / fewer / LEAST_AT_ONCE, 1.0)
                # The results of all steps may take memory that the process gets anew in each call.
                inside = {op.index for op in loop.body}
                handed = [op for op in loop.body if any(user.index not in inside for user in evidence.flow.users(op))]
                fresh_s = FRESH_S_PER_BYTE * sum(op.signature.outputs[0].nbytes for op in handed if op.status != FREE)
                before_s = sum(evidence.times.seconds.get(op.index, 0.0) for op in loop.body)
                fresh = fresh_s / max(before_s, 1e-12)
                low, high = max(0.0, low - fresh), max(0.0, high - fresh / 2)
            gain = share.gain(fewer * low, fewer * high, how)
            found = loop_advice(evidence, "loop-over-steps", loop, words, gain, staying)
            # A value that Python reads, as a random number, may decide what another round gets.
            begin, end = loop.products[0].index, loop.products[-1].index
            is_asked = any(op.op in VALUE_READS and begin < op.index < end for op in evidence.forward)
            if not is_asked or not needs_round_before(evidence, found):
                yield replace(found, risk=_NOT_FED_BACK)


def _asks_python(evidence: Evidence, loop: Loop) -> bool:
    """Whether the rounds hand values to Python, by which the next one may be chosen, or which it gets as a tensor."""
    begin, end = loop.products[0].index, loop.products[-1].index
    is_read = any(begin <= index < end for index in evidence.read_on_host)
    return is_read or any(op.op in VALUE_READS for op in loop.body)


def _has_dropout(evidence: Evidence, loop: Loop) -> bool:
    """Whether the steps have dropout, perhaps of the state, which evaluation does not show: as a module, or in the code
    of the loop."""
    lines = {evidence.loop_line(loop.products), *(evidence.line_of(op.index) for op in loop.body)} - {None}
    for line in lines:
        place = evidence.code_at(line)
        around = None if place is None else place[0].enclosing(place[0].statement(place[1]), ast.For, ast.While)
        if place is None or around is None:
            continue
        if "drop" in place[0].text(around).lower():
            return True
        inside = range(around.lineno, (around.end_lineno or around.lineno) + 1)
        for record in evidence.capture.modules:
            calls = [called_from.rpartition(":") for called_from in record.called_from]
            at = [int(number) for file, _, number in calls if file == place[0].file and number.isdigit()]
            if "Dropout" in record.type and any(number in inside for number in at):
                return True
    return False


def _layers_by_step(evidence: Evidence) -> Iterator[Loop]:
    """Recurrent layers of torch's that are called for each step with the state of the step before, and with inputs that
    do not need it. A layer in both directions sees a single step from both sides."""
    for path, record in evidence.modules.items():
        if record.calls < LEAST_STEPS or record.type not in RECURRENT_LAYERS:
            continue
        prefix = f"{path}.".removeprefix(".")
        steps = [op for op in evidence.flow.steps if f"{prefix}weight_hh_l0" in op.weights]
        if len(steps) != record.calls or f"{prefix}weight_hh_l0_reverse" in evidence.params:
            continue
        loop = with_body(evidence, steps)
        # Only the ops of the layer leave the loop: the others stay in it, or have advice of their own.
        own = tuple(op for op in loop.body if op.module == path)
        through = between(evidence, loop)
        inside = {op.index for op in through}
        reads_state = any(
            op.producers[0] in inside if op.category == "recurrent" else f"{prefix}weight_hh_l0" not in op.weights
            for op in through
            if f"{prefix}weight_ih_l0" in op.weights
        )
        if not through or any(op.module != path for op in through) or reads_state or _asks_python(evidence, loop):
            continue
        # Of several layers one call returns the output of the last one for each step, and the states of the last step.
        states = [op for op in own if op.op in _COPIES and f"{prefix}weight_hh_l1" in evidence.params]
        is_read = any(user.module != path for op in states for user in evidence.flow.users(op))
        if not is_read and not _hands_out_cell(evidence, loop, through):
            yield Loop(loop.products, own)


def _layer_of(evidence: Evidence, loop: Loop, through: Sequence[OpRecord]) -> str | None:
    """The layer of torch's that runs the steps of a loop whose state goes through these ops. None where a step computes
    something else, or where its input needs the state of the step before."""
    path, kinds = loop.products[0].module, {kind_of(op) for op in through}
    # What is fed back in some of the steps is a part of them too.
    if any(kind_of(op) not in kinds for op in between(evidence, loop)) or _hands_out_cell(evidence, loop, through):
        return None
    # Steps of other sizes, as of a batch that gets smaller, hand their state to these, or get it from them.
    first, last = loop.products[0], loop.products[-1]
    same = [op for op in evidence.flow.steps if kind_of(op) == kind_of(first)]
    behind = next((op for op in same if op.index > last.index), None)
    for op, others in ((first, {op.index for op in same} - {first.index}), (behind, {last.index})):
        near = [] if op is None else evidence.dataflow.ancestors(op, 2 * len(loop.body) // loop.rounds)
        if any(each.index in others for each in near):
            return None
    record = evidence.modules.get(path)
    if record is not None and record.type in _CELLS:
        is_fed_back = any(name.endswith("_ih") for op in through for name in op.weights)
        if is_fed_back or any(op.module != path and op.category != "copy" for op in through):
            return None
        return record.type.removesuffix("Cell")
    names = [op.op.rstrip("_") for op in through]
    scales = [op for op, name in zip(through, names, strict=True) if name == "aten::mul"]
    # A product of a product is a longer chain than a cell's, and a scale with a weight is a peephole.
    if not set(names) <= _OF_CELLS or any(op.weights for op in scales) or _multiplies_twice(through):
        return None
    if _adds_to_state(loop, through) or _adds_behind_gates(through) or _adds_given(evidence, through):
        return None
    elements = {
        name: sum(op.signature.outputs[0].numel for op, own in zip(through, names, strict=True) if own == name)
        for name in _ACTIVATIONS
    }
    tanh, sigmoid, relu = (elements[f"aten::{name}"] for name in ("tanh", "sigmoid", "relu"))
    tanhs = round(names.count("aten::tanh") / loop.rounds)
    if not sigmoid and not scales:
        return "RNN" if tanhs + round(names.count("aten::relu") / loop.rounds) == 1 else None
    gates = {2: ("LSTM", 1.5), 1: ("GRU", 2.0)}  # by tanhs in a step, the elements of its sigmoids for each of theirs
    layer, each = gates.get(tanhs, ("", 0.0))
    # Only gates scale: a cell whose state decays, or whose candidate has a factor, is another one.
    if not all(_is_gated(op, through) for op in scales):
        return None
    if not layer or relu or abs(sigmoid / tanh / each - 1) > _ELEMENTS_TOLERANCE:
        return None
    return layer if _updates(through, layer) >= loop.rounds - 1 else None


def _hands_out_cell(evidence: Evidence, loop: Loop, through: Sequence[OpRecord]) -> bool:
    """Whether code outside the cell reads more of a step than its output: torch's layers return that of every step, and
    the state of the cell of the last one only."""
    by_index = {op.index: op for op in through}
    # A step of oneDNN's takes the state of the cell last.
    cells = {at for op in through if op.op == _LSTM for at in op.producers[-1:] if at is not None}
    if cells:
        return any(
            user.index not in by_index for at in cells & by_index.keys() for user in evidence.flow.users(by_index[at])
        )
    todo = [op for op in through if op.op in _PRODUCTS]
    outputs: set[Kind] = set()  # what the next step multiplies, and the copies of it
    while todo:
        for index in todo.pop().producers:
            source = None if index is None else by_index.get(index)
            if source is not None and kind_of(source) not in outputs:
                outputs.add(kind_of(source))
                todo += [source] if source.op.rstrip("_") in _COPIES else []
    last = loop.products[-1].index
    inner = [op for op in through if op.index < last and kind_of(op) not in outputs and op.op not in _PRODUCTS]
    return any(user.index not in by_index for op in inner for user in evidence.flow.users(op))


def _adds_to_state(loop: Loop, through: Sequence[OpRecord]) -> bool:
    """Whether a state is handed from step to step without a product or a gate: one to which each step adds. A GRU may
    be written as the state and a gated difference to it."""
    by_index, length = {op.index: op for op in through}, dict[int, int]()
    for op in through:
        sources = [by_index[index] for index in op.producers if index is not None and index in by_index]
        scaled = [source for source in sources if source.op.rstrip("_") == "aten::mul"]
        differences = [
            each for scale in scaled for at in scale.producers if (each := by_index.get(at or -1)) is not None
        ]
        is_difference = any(each.op.rstrip("_") in ("aten::sub", "aten::rsub") for each in differences)
        ends = op.op in _PRODUCTS or op.op.rstrip("_") == "aten::mul" or (is_difference and len(sources) > 1)
        length[op.index] = 0 if ends else 1 + max((length[source.index] for source in sources), default=0)
    return max(length.values(), default=0) > 1 + len(through) // loop.rounds


def _adds_behind_gates(through: Sequence[OpRecord]) -> bool:
    """Whether a step adds something else than parameters to what the next one multiplies, as its input for a shortcut.
    Cells add their inputs in front of an activation."""
    inside, added, counts = {op.index for op in through}, set[int | None](), Counter[Kind]()
    for op in through:
        name = op.op.rstrip("_")
        if name in ("aten::add", "aten::sub"):
            others = [source for source in op.producers if source not in inside]
            if any(source is not None for source in others) or (others and not op.weights):
                added.add(op.index)
        elif name in _COPIES and not added.isdisjoint(op.producers):
            added.add(op.index)
        counts[kind_of(op)] += op.op in _PRODUCTS and not added.isdisjoint(op.producers)
    return max(counts.values(), default=0) > 1  # the first step has a state from before the loop


def _adds_given(evidence: Evidence, through: Sequence[OpRecord]) -> bool:
    """Whether a step adds an input of the model or a row of a table as it is: torch's layers multiply what they are
    given with a weight, which would be another product."""
    reads, inside = evidence.dataflow.input_reads, {op.index for op in through}
    for op in through:
        if op.op.rstrip("_") in ("aten::add", "aten::sub"):
            others = [source for source in evidence.flow.sources(op) if source.index not in inside]
            is_given = any((op.index, at) in reads for at in range(len(op.producers)))
            if is_given or any(source.category == "embedding" for source in others):
                return True
    return False


def _is_gated(scale: OpRecord, through: Sequence[OpRecord]) -> bool:
    """Whether it multiplies with a sigmoid, or with one minus a sigmoid."""
    gates: set[int | None] = set()
    for op in through:
        name = op.op.rstrip("_")
        is_from_gate = name in _FROM_GATES and not gates.isdisjoint(op.producers)
        if name == "aten::sigmoid" or is_from_gate:
            gates.add(op.index)
    return not gates.isdisjoint(scale.producers)


def _updates(through: Sequence[OpRecord], layer: str) -> int:
    """How often the ops of a loop make a state as this layer of torch's does: `o * tanh(f * c + i * g)` with three
    gates, `z * h + (1 - z) * n` with one gate and what it leaves, or the same as `h + z * (n - h)`."""
    by_index = {op.index: op for op in through}

    def sources(op: OpRecord, *names: str) -> list[OpRecord]:
        found = []
        for index in op.producers:
            source = by_index.get(-1 if index is None else index)
            while source is not None and source.op.rstrip("_") in _COPIES and len(source.producers) == 1:
                source = by_index.get(-1 if source.producers[0] is None else source.producers[0])
            found += [source] if source is not None and source.op.removesuffix("_") in names else []
        return found

    count = 0
    for op in through:
        name = op.op.rstrip("_")
        if layer == "LSTM":
            cells = [cell for tanh in sources(op, "aten::tanh") for cell in sources(tanh, "aten::add")]
            terms = [term for cell in cells for term in sources(cell, "aten::mul")]
            count += name == "aten::mul" and len(terms) == 2 and any(sources(term, "aten::tanh") for term in terms)
        elif name in ("aten::add", "aten::sub"):
            terms = sources(op, "aten::mul")
            gates = [gate for term in terms for gate in sources(term, "aten::sigmoid")]
            left = [rest for term in terms for rest in sources(term, "aten::rsub", "aten::sub")]
            is_rest = any(gate in sources(rest, "aten::sigmoid") for gate in gates for rest in left)
            is_step = len(terms) == 1 and any(not set(op.producers).isdisjoint(rest.producers) for rest in left)
            count += (len(terms) == 2 and is_rest) or is_step
    return count


def _scales_before_products(through: Sequence[OpRecord]) -> list[OpRecord]:
    """The multiplications by element whose results a product reads, at once or behind copies."""
    by_index, found = {op.index: op for op in through}, list[OpRecord]()
    todo = [index for op in through if op.op in _PRODUCTS for index in op.producers]
    seen: set[int] = set()
    while todo:
        index = todo.pop()
        source = None if index is None or index in seen else by_index.get(index)
        if source is None:
            continue
        seen.add(source.index)
        if source.op.rstrip("_") == "aten::mul":
            found.append(source)
        if source.op.rstrip("_") in _COPIES:
            todo += source.producers
    return found


def _multiplies_twice(through: Sequence[OpRecord]) -> bool:
    """Whether a product reads another one without an activation between them."""
    by_index = {op.index: op for op in through}
    for product in (op for op in through if op.op in _PRODUCTS):
        todo, seen = [product], {product.index}
        while todo:
            for index in todo.pop().producers:
                source = None if index is None or index in seen else by_index.get(index)
                if source is None or source.op.rstrip("_") in _ACTIVATIONS:
                    continue
                if source.op in _PRODUCTS:
                    return True
                seen.add(source.index)
                todo.append(source)
    return False


def _outside_the_state(evidence: Evidence, loops: Sequence[Loop]) -> Iterator[tuple[Loop, str, list[OpRecord]]]:
    """Layers that a loop over steps calls in each of them, though the state does not go through them: those that make
    its inputs, and those whose results are only collected. By line of the loop, so that each is named; with the ops
    that stay in the loop."""
    # A solver calls its network several times a step: the ops that change the state run less often than the products.
    states = {kind_of(op) for loop in loops for op in (*carried(loop), *between(evidence, loop))}
    lines = {op.source for loop in loops for op in loop.products}
    repeated = {op.index for op in evidence.dataflow.repeated} if loops else set()  # `repeated-work` covers them
    for loop in loops:
        before, behind = links(loop)
        # What the next round does may depend on values that are handed to Python.
        asked = {kind_of(op) for op in loop.body if op.op in VALUE_READS or op.index in evidence.read_on_host}
        is_chosen = any(not states.isdisjoint({kind, *reached(before, kind)}) for kind in asked)
        # Other states of the loop, as a memory that the cell writes to, stay in it, and so does what they are made of.
        # Lists of results and their sums can be made after the loop.
        others = kept_by_rounds(loop) - states
        kept, is_collected = states | others, all(kind[1].rstrip("_") in _COLLECTS for kind in others)
        fed = states | asked | (set() if is_collected else others)
        kinds = dict.fromkeys(kind for op in loop.body if (kind := kind_of(op)) not in kept)
        # In some rounds alone a result may be fed back, as with teacher forcing now and then.
        needing, feeding = _linked(loop, kept, fed)
        needs = {kind: kind in needing or not kept.isdisjoint(reached(before, kind)) for kind in kinds}
        feeds = {kind: kind in feeding or not fed.isdisjoint({kind, *reached(behind, kind)}) for kind in kinds}
        ahead = [op for op in loop.body if (kind := kind_of(op)) in needs and not needs[kind] and not is_chosen]
        after = [op for op in loop.body if (kind := kind_of(op)) in needs and needs[kind] and not feeds[kind]]
        for ops, words in (
            (ahead, BEFORE_LOOP),
            (after, "do this once for all steps, after the loop: the state does not need it"),
        ):
            units: dict[str, list[OpRecord]] = {}
            own = {op.index for op in ops}
            staying = [op for op in loop.body if op.index not in own and op.status != FREE]
            for op in ops:
                record = evidence.modules.get(op.module)
                if record is not None and record.type in _CELLS:
                    continue  # a cell of torch's cannot be called without its state
                units.setdefault(evidence.loop_line([op], staying) or op.source or "", []).append(op)
            for unit in units.values():
                products = [op for op in unit if op.weights and op.cost.macs]
                first = [op for op in products if kind_of(op) == kind_of(products[0])]
                # `loop-over-samples` covers those that take the parts of a tensor on another line than the state.
                is_covered = bool(first) and first[0].source not in lines and part(evidence, first[0]) is not None
                if len(first) >= loop.rounds - 1 and repeated.isdisjoint(op.index for op in first) and not is_covered:
                    yield Loop(tuple(first), tuple(unit)), words, staying


def _linked(loop: Loop, givers: set[Kind], takers: set[Kind]) -> tuple[set[Kind], set[Kind]]:
    """The kinds of ops that need what ops of the kinds `givers` made, and those that lead to ops of the kinds `takers`,
    also through ops that not all rounds run."""
    needing, leading = set[int | None](), set[int | None]()
    for op in loop.near:
        if kind_of(op) in givers or not needing.isdisjoint(op.producers):
            needing.add(op.index)
    for op in reversed(loop.near):
        if kind_of(op) in takers or op.index in leading:
            leading.update((op.index, *op.producers))
    kinds = [{kind_of(op) for op in loop.body if op.index in found} for found in (needing, leading)]
    return kinds[0], kinds[1]


def _fused(evidence: Evidence, loop: Loop) -> Gain:
    """Of a loop whose body is what leaves it. On CUDA one kernel does a step. On a CPU the work of a step stays, and of
    the calls those from Python go: LSTM is one call of oneDNN that also joins the pointwise ops, GRU and RNN run step
    by step in C++, where an op still has to be called (four models: 5 % to 54 %, the less the larger the batch)."""
    ops = loop.body
    share, how = evidence.share(ops), "one fused loop in place of a Python loop over small ops"
    if evidence.is_cuda:
        return share.gain(0.85, 0.97, how)  # 0.9 to 0.97 in four models on an H200
    tanhs = sum(op.op.rstrip("_") == "aten::tanh" for op in ops)  # two in each step; those of GRU and RNN have one
    is_lstm = tanhs >= 2 * loop.rounds - 2 or any(op.category == "recurrent" for op in ops)
    layer = _lstm(loop) if is_lstm else None
    layer_s = None if layer is None else evidence.seconds_of(layer)
    if layer_s is not None:
        before_s = sum(evidence.times.seconds.get(op.index, 0.0) for op in ops)
        saved = max(1 - layer_s / before_s, _LEAST_BY_LAYER) if before_s else 0.0
        return share.gain(LEAST_AT_ONCE * saved, min(saved / LEAST_AT_ONCE, 0.98), how)
    spared = ((0.8, 0.2), (0.95, 0.6)) if is_lstm else ((0.35, 0.0), (0.8, 0.2))
    low, high = (of_calls * share.calls + of_work * (1 - share.calls) for of_calls, of_work in spared)
    return share.gain(low, high, how)


def _lstm(loop: Loop) -> OpRecord | None:
    """One call of oneDNN's LSTM with the products of a loop over its steps."""
    products = [op for op in loop.body if op.weights and op.cost.macs]
    if not products:
        return None
    first = products[0].signature
    weights = {
        op.weights: op.signature.inputs[1:3] if op.category == "recurrent" else op.signature.inputs[-1:]
        for op in products
    }
    held = tuple(spec for specs in weights.values() for spec in specs)
    # The rows of a step: the multiplications of a product by the size of its weight.
    rows = max(products[0].cost.macs // max(sum(spec.numel for spec in next(iter(weights.values()))), 1), 1)
    given = TensorSpec((loop.rounds, rows, held[0].shape[0]), first.inputs[0].dtype)
    macs, flops = sum(op.cost.macs for op in products), sum(op.cost.flops for op in products)
    cost = Cost(macs, flops, given.nbytes + sum(spec.nbytes for spec in held), given.nbytes)
    inputs = (given, *held)
    signature = replace(first, op=_LSTM, category="recurrent", inputs=inputs, outputs=(given,), cost=cost)
    return replace(products[0], signature=signature)


def _adds_one_by_one(evidence: Evidence, loop: Loop) -> bool:
    """Whether each step adds to the sum of the step before; a loop around it starts a new sum. Terms that each round
    computes without the round before are to be computed at once, and then added up by the op that does so: other rules
    cover them."""
    sums = {op.index for op in loop.products}
    if any(op.signature.attributes.get("alpha", 1) != 1 for op in loop.products):
        return False  # weighted
    # Frames that are added to a place that moves on overlap; a place for each round of a loop around this one does not.
    written = sums | {op.index for op in loop.body if op.op == "aten::copy_"}
    views = [op for op in loop.body if op.status == FREE and op.producers and op.producers[0] in written]
    if 2 * len({repr(op.signature.attributes) for op in views}) > loop.rounds:
        return False
    copies = {op.index: op.producers for op in loop.body if op.op.rstrip("_") in _COPIES}
    for before, op in zip(loop.products, loop.products[1:], strict=False):
        # `total[i] += term` copies the sum back into its place.
        read = {
            index for source in op.producers for index in (source, *copies.get(-1 if source is None else source, ()))
        }
        if before.index not in read:
            return False
    body = {op.index for op in loop.body} - sums
    terms = [source for op in loop.products for source in evidence.flow.sources(op) if source.index in body]
    if 2 * len(terms) < loop.rounds:
        return True
    makers = {op.index for op in terms}
    return any(
        not makers.isdisjoint(near.index for near in evidence.dataflow.ancestors(op, _MOST_ANCESTORS))
        for op in terms[1:]
    )


def _is_linear(through: Sequence[OpRecord]) -> bool:
    """Whether each step adds something to its state or scales it: what a scan can compute for all steps at once."""
    inside = {op.index for op in through}
    for op in through:
        states = [at for at, source in enumerate(op.producers) if source in inside]
        name = op.op.removeprefix("aten::").removesuffix("_")
        is_scaled = name == "mul" and len(states) < 2
        is_scaled = is_scaled or (name == "div" and 1 not in states) or (name == "lerp" and 2 not in states)
        if name not in _SUMS and op.op not in _COPIES and not is_scaled:
            return False
    return True


def _breaks_graphs(evidence: Evidence, module: str) -> bool:
    """Whether torch.compile would stop at a value that Python asks for, or at the `Variable` of old code: the parts of
    a loop that it then compiles are slower than the loop."""

    def is_inside(path: str) -> bool:
        return not module or f"{path}.".startswith(f"{module}.")

    own = [op for op in evidence.forward if is_inside(op.module)]
    if any(op.op in VALUE_READS for op in own) or any(
        is_inside(read.module) for read in evidence.capture.run.host_reads
    ):
        return True
    places = [evidence.code_at(line) for line in dict.fromkeys(op.source for op in own)]
    trees = {id(place[0]): place[0].tree for place in places if place is not None}
    nodes = (node for tree in trees.values() for node in ast.walk(tree))
    return any(isinstance(node, ast.Call) and called(node) == "Variable" for node in nodes)


@rule("scan-in-python", family="loops")
def scan_in_python(evidence: Evidence) -> Iterator[Advice]:
    """A recurrence of pointwise ops over the steps of a sequence: a state-space model's scan, a running average."""
    groups: dict[tuple[str, str, str], list[OpRecord]] = {}
    for op in evidence.flow.of_category("elementwise"):
        if op.source is not None and not op.weights and not is_recurrent_layer(evidence, op.module):
            groups.setdefault((op.source, op.module, op.op), []).append(op)
    reported: set[str] = set()
    # Lines that multiply with weights: the pointwise ops of a cell of torch's come from the line that calls it.
    layers = {(op.source, op.module) for op in evidence.forward if op.weights and op.cost.macs}
    cells = {op.index for loop in product_loops(evidence) if is_recurrent(evidence, loop) for op in loop.body}
    for (source, module, _), steps in groups.items():
        if (
            len(steps) < LEAST_STEPS
            or module in reported
            or (source, module) in layers
            or not is_recurrent(evidence, Loop(tuple(steps), ()))
        ):
            continue
        sizes = [op.signature.outputs[0].numel for op in steps]
        if 2 * sum(_LEVEL * after <= before for before, after in pairwise(sizes)) >= len(sizes) - 1:
            continue  # the levels of a parallel scan, each half as long as the one before
        loop = with_body(evidence, steps)
        through = carried(loop)
        # A step that looks for the largest element of its state, or indexes with it, is not a scan.
        if not through or any(op.category not in _POINTWISE for op in through) or _asks_python(evidence, loop):
            continue
        is_sum = {op.op.rstrip("_") for op in through} - _COPIES == {"aten::add"}
        place = evidence.any_code_at(steps[0])
        # `a + b + c + …` adds different tensors.
        is_written_out = is_sum and place is not None and not place[0].is_in_loop(place[1])
        if is_sum and (is_written_out or not _adds_one_by_one(evidence, loop)):
            continue
        # A loop with a layer in it is a cell's; it has its own advice. The terms of a sum may come from layers.
        inside = through if is_sum else loop.body
        is_of_cell = (source, module) in layers and not is_sum
        if is_of_cell or any((op.weights and op.cost.macs) or op.index in cells for op in inside):
            continue
        reported.add(module)
        share, record = evidence.share(inside), evidence.modules.get(module)
        # A module that is called for each step has no loop to compile.
        has_loop = record is None or LEAST_STEPS * record.calls <= len(steps)
        is_scripted = evidence.model is not None and evidence.model.is_scripted(module)
        can_compile = not is_scripted and len(loop.body) <= _MOST_COMPILED and not _breaks_graphs(evidence, module)
        can_compile = can_compile and not any(map(has_complex, loop.body))
        # Over the whole length at once it writes every step's state: for a Mamba 16 steps at a time were 22 % faster,
        # the whole length 89 % slower.
        ways = ["compute this recurrence as a scan over chunks of steps"] if _is_linear(between(evidence, loop)) else []
        ways += ["compile its loop"] if can_compile else []
        if not ways and not is_sum:
            continue
        least_fused, most_fused = (_LEAST_FUSED, _MOST_FUSED) if can_compile and not is_sum else (0.0, 0.0)
        words = f"{', or '.join(ways)}: Python runs small ops step by step"
        if is_sum:
            is_read = any(len(evidence.flow.users(op)) > 1 for op in through)
            words = "use torch.cumsum" if is_read else "use torch.sum along this dimension"
            words += ": Python adds one part after the other"
        yield Advice(
            rule="scan-in-python",
            where=Where(module, tuple(op.index for op in steps)),
            evidence={"steps": loop.rounds, "ops": len(inside), "op": steps[0].op},
            recommendation=words,
            change=Patch("model.get_submodule(path).compile()", ("path",), ((module,),))
            if can_compile and has_loop and not is_sum
            else None,
            expected_gain=share.gain(
                0.5 * share.calls + least_fused * (1 - share.calls),
                min(1.2 * share.calls + most_fused * (1 - share.calls), 0.98),
                f"the calls of {loop.rounds} steps, and what they write in between",
            ),
            risk="rounding differs in the last digits"
            if is_sum or not can_compile
            else "compiling may take minutes for each length; a scan rounds differently",
            confidence="medium",
        )
