"""Work that gives the same result at every call, or that was done before."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchgauge.advise.code import Patch, Source, called
from torchgauge.advise.dataflow import takes_shape_alone
from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rules.broadcast import copies_by_sample
from torchgauge.advise.rules.loops import is_recurrent_layer
from torchgauge.advise.rules.norms import written_norms
from torchgauge.advise.rules.unread import unread_ops
from torchgauge.facts import FREE, ModuleRecord, OpRecord, enclosing_paths

# On their own these are as often buffers to write to as constants.
_PLAIN = {
    f"aten::{name}"
    for name in ("ones", "zeros", "full", "scalar_tensor", "empty", "new_zeros", "new_ones", "new_full", "zeros_like",
                 "ones_like", "full_like", "fill_", "zero_")
}  # fmt: skip
_ZEROS = {"aten::zeros", "aten::new_zeros", "aten::zeros_like"}
_PRODUCTS = ("matmul", "convolution", "recurrent")
# Products whose first argument is what they are added to.
_ADDING = {"aten::addmm", "aten::baddbmm", "aten::_sparse_addmm", "aten::addmv", "aten::addbmm"}
# Calls that bring more than one value to the host.
_ARRAYS = {"cpu", "numpy", "tolist"}
# Layers of torch that make indices for themselves.
_OWN_INDICES = {"EmbeddingBag", "MultiheadAttention", "MaxUnpool2d", "AdaptiveLogSoftmaxWithLoss", "Upsample"}
_DIFFERENT = "in training dropout may make the two differ; the result is kept in memory"
# Contexts and decorators that switch gradients off.
_OFF = ("no_grad", "inference_mode", "set_grad_enabled")
# Functions that permute their arguments themselves.
_TURN_INSIDE = {"einsum", "tensordot"}
# So far back the ops are followed that lead to new data of a parameter.
_MOST_ANCESTORS = 200
# Of a recurrent layer, what the input and the first state are multiplied with.
_FIRST_WEIGHTS = ("weight_ih_l0", "weight_hh_l0")


@rule("recomputed-constant", family="constants")
def recomputed_constant(evidence: Evidence) -> Iterator[Advice]:
    """Positions, masks and tables that depend on shapes alone."""
    if evidence.capture.run.number_arguments:  # lengths, say, that a mask is made of
        return
    for module, ops in _constant_groups(evidence, from_weights=False):
        own = {op.index for op in ops}
        users = {op.index: evidence.flow.users(op) for op in ops}
        # Zeros to write to are needed anew in each call; those that a table is made from are not.
        inside = {index for index, found in users.items() if found and own.issuperset(user.index for user in found)}
        ops = [op for op in ops if op.op not in _PLAIN or op.index in inside]
        # A start value, not a table, where data is written into it.
        writers = [user for found in users.values() for user in found if user.op.endswith("_")]
        written = {user.producers[0] for user in writers if user.index not in evidence.dataflow.constants}
        tables = [op for op in ops if op.op not in _PLAIN and op.index not in written]
        if not tables:
            continue
        views = _views_between(evidence, ops)
        yield Advice(
            rule="recomputed-constant",
            where=Where(module, tuple(op.index for op in ops), source=_longest(evidence, tables)),
            evidence={"ops": len(ops), "made_by": sorted({op.op for op in ops}), "bytes_moved": sum(map(moved, ops))},
            recommendation="compute this once and keep it in a buffer: it depends only on shapes",
            change=None,
            expected_gain=evidence.share([*ops, *views]).gain(0.9, 1.0, "these ops go away"),
            risk="a buffer has a fixed size: keep one for each shape that occurs",
            confidence="high",
        )


def _longest(evidence: Evidence, ops: Sequence[OpRecord]) -> str | None:
    """The line of the op that takes longest of those whose line is known."""
    known = [op for op in ops if evidence.line_of(op.index) is not None] or ops
    return evidence.line_of(max(known, key=lambda op: evidence.times.seconds.get(op.index, 0.0)).index)


def _views_between(evidence: Evidence, ops: Sequence[OpRecord]) -> list[OpRecord]:
    """Views between these ops, and tensors made of Python's numbers that only these ops read: they go away too."""
    gone, last = {op.index for op in ops}, ops[-1].index
    others = {
        source for op in evidence.forward if op.status != FREE and op.index not in gone for source in op.producers
    }
    found: list[OpRecord] = []
    for op in evidence.forward:
        if op.status == FREE and op.index < last and op.index in evidence.dataflow.constants:
            is_number = op.op == "aten::lift_fresh" and op.index not in others
            if is_number or (op.producers and gone.issuperset(op.producers)):
                gone.add(op.index)
                found.append(op)
    return found


@rule("recomputed-weight", family="constants")
def recomputed_weight(evidence: Evidence) -> Iterator[Advice]:
    """In inference what is computed from parameters alone does not change."""
    if evidence.is_train:
        return
    restoring = {op.index for op in evidence.restoring}
    # `broadcast-matmul` and `repeated-operand` cover copies whose number is that of the samples.
    changing = copies_by_sample(evidence) | _from_first_state(evidence) | _written_back(evidence)
    for module, group in _constant_groups(evidence, from_weights=True):
        ops = [op for op in group if op.index not in changing]
        weights = sorted({weight for op in ops for weight in op.weights})
        # `weight-cast` covers lone casts; quantized weights are unpacked on purpose.
        if all(op.op == "aten::_to_copy" for op in ops) or any(op.index in restoring for op in ops):
            continue
        yield Advice(
            rule="recomputed-weight",
            where=Where(
                module,
                tuple(op.index for op in ops),
                weights[0] if len(weights) == 1 else None,
                _longest(evidence, ops),
            ),
            evidence={"ops": len(ops), "weights": weights, "bytes_moved": sum(map(moved, ops))},
            recommendation="compute this once before inference: it depends only on parameters and buffers",
            change=_settled(evidence, module),
            expected_gain=evidence.share(ops).gain(0.9, 1.0, "these ops go away"),
            # One pass does not show what the model keeps for the next.
            risk="for inference only; input sizes may enter; no gain if it is cached",
            confidence="medium",
        )


def _from_first_state(evidence: Evidence) -> frozenset[int]:
    """Layers and products of tensors of zeros that the call made for itself, and what was computed from them: a state
    has other values in the next call. Zeros that are written to, or that sums start from, are not a state."""
    zeros, found = set[int](), set[int]()
    for op in evidence.forward:
        sources = [source for source in op.producers[op.op in _ADDING :] if source is not None]
        is_written = op.op.endswith("_") and len(sources) > 1
        if not found.isdisjoint(sources):
            found.add(op.index)
        elif op.op in _ZEROS or (not is_written and not zeros.isdisjoint(sources)):
            (found if op.category in _PRODUCTS else zeros).add(op.index)
    return frozenset(found)


def _written_back(evidence: Evidence) -> frozenset[int]:
    """What the model keeps as the data of its parameters, and the ops that lead there: `p.data = 0.9 * p.data + …` has
    another result in each call."""
    found = set[int]()
    for index in evidence.dataflow.constants.intersection(evidence.capture.run.kept_ops):
        place, op = evidence.any_code_at(evidence.source_of(index)), evidence.flow.op(index)
        if place is None or op is None:
            continue
        statement = place[0].statement(place[1])
        scope = place[0].enclosing(statement, ast.ClassDef) or place[0].tree
        function = place[0].enclosing(statement, ast.FunctionDef)
        assigned = [node for node in ast.walk(scope) if isinstance(node, ast.Assign)]
        written = [
            node
            for node in assigned
            if any(isinstance(target, ast.Attribute) and target.attr == "data" for target in node.targets)
        ]
        # On this line, or by a method that is called for it, perhaps by way of a variable.
        names = {name.id for node in written for name in ast.walk(node.value) if isinstance(name, ast.Name)} - {"self"}
        written += [
            node for node in assigned if any(isinstance(at, ast.Name) and at.id in names for at in node.targets)
        ]
        calls = [call for node in written for call in ast.walk(node.value) if isinstance(call, ast.Call)]
        if statement in written or any(called(call) == getattr(function, "name", None) for call in calls):
            found.update((index, *(near.index for near in evidence.dataflow.ancestors(op, _MOST_ANCESTORS))))
    return frozenset(found)


@rule("repeated-work", family="constants")
def repeated_work(evidence: Evidence) -> Iterator[Advice]:
    """The same op on the same tensors, twice in one forward pass."""
    groups: dict[tuple[str, bool], list[OpRecord]] = {}
    # The difference to a mean, written twice in a norm: `norm-by-hand` covers it.
    in_norms = {op.index for norm in written_norms(evidence) for op in norm.ops}
    # A copy that other data is written into cannot be shared; both runs of an activation in place give the same.
    writers = [op for op in evidence.forward if op.op.endswith("_") and len(op.producers) > 1]
    written = {op.producers[0] for op in writers}
    # Of two equal calls on different lines, one that nothing reads goes away altogether: `unread-result` names it.
    unread = unread_ops(evidence)
    idle = {
        op.index
        for op in evidence.dataflow.repeated
        if not unread.isdisjoint((op.index, first := evidence.dataflow.first_runs[op.index]))
        and evidence.source_of(first) != op.source
    }
    for op in evidence.dataflow.repeated:
        # What a recurrent layer does inside one call is torch's; its whole call is one op.
        is_own = not is_recurrent_layer(evidence, op.module) or op.category == "recurrent"
        if (
            op.index not in evidence.dataflow.constants
            and is_own
            and op.index not in in_norms
            and op.index not in evidence.dataflow.asked_for
            and written.isdisjoint((op.index, evidence.dataflow.first_runs[op.index]))
            and op.index not in idle
            and not _is_chance(evidence, op)
            and not _has_dropout(evidence, op)
            and not _differs_in_training(evidence, op)
        ):
            # A layer or a reshape that needs its input in order copies it first, and the next one does so again.
            is_copy = op.op == "aten::clone" and op.signature.inputs[0].stride is not None
            if is_copy and _is_turned_inside(evidence, op):
                continue
            groups.setdefault((op.module, is_copy), []).append(op)
    for module, ops in _repeated_calls(evidence):
        groups[module, False] = ops
    for (module, is_copy), ops in groups.items():
        words = "compute this once and pass it on: the same ops ran on the same tensors before"
        if is_copy:
            words = "call .contiguous() once on the tensor that these ops read: it is strided, so each op copies it"
        yield Advice(
            rule="repeated-work",
            where=Where(module, tuple(op.index for op in ops), source=_longest(evidence, ops)),
            evidence={"ops": len(ops), "repeated": sorted({op.op for op in ops})},
            recommendation=words,
            change=None,
            expected_gain=replace(
                evidence.share(ops).gain(0.9, 1.0, "the repeated computations go away"), keeps_results=True
            ),
            risk=_DIFFERENT
            if not is_copy and _is_dropped(evidence, module)
            else "the result is kept in memory until its last use",
            confidence="high",
        )


def _is_turned_inside(evidence: Evidence, op: OpRecord) -> bool:
    """Whether a copy is of a tensor that the code does not have: of a view that `einsum` makes of its argument, or of a
    matrix that a product repeats for every sample."""
    given, place = op.signature.inputs[0], evidence.code_at(op)
    is_repeated = any(not step for size, step in zip(given.shape, given.stride or (), strict=False) if size > 1)
    statement = None if place is None else place[0].statement(place[1])
    calls = [] if statement is None else [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return is_repeated or any(called(call) in _TURN_INSIDE for call in calls)


def _has_dropout(evidence: Evidence, op: OpRecord) -> bool:
    """Whether the code of an op has dropout, or the loop around it runs over some: evaluation does not run it, and
    training takes the mean of several samples of it."""
    place = None if evidence.is_train else evidence.code_at(op)
    statement = None if place is None else place[0].statement(place[1])
    if place is None or statement is None:
        return False
    loop = place[0].enclosing(statement, ast.For, ast.FunctionDef)
    header = place[0].text(loop.iter) if isinstance(loop, ast.For) else ""
    return "drop" in (header + place[0].text(statement)).lower()


def _differs_in_training(evidence: Evidence, op: OpRecord) -> bool:
    """Whether gradients cross one of the two runs and not the other, as in the two losses of a codebook. Or the runs
    read variables of different names, one of which gets what a step for training alone makes of the other, as noise or
    an augmentation: evaluation does not run the step, and then they are the same tensor."""
    first = evidence.flow.op(evidence.dataflow.first_runs[op.index])
    idle, idle_names = evidence.once(_calls_without_ops), evidence.once(_names_without_ops)
    around = [evidence.modules[path].called_from for path in enclosing_paths(op.module) if path in evidence.modules]
    for lines in ((op.source, None if first is None else first.source), *around):
        places = [place for line in dict.fromkeys(lines) if (place := evidence.any_code_at(line)) is not None]
        statements = {statement: place[0] for place in places if (statement := place[0].statement(place[1]))}
        if any("detach" in source.text(each) or ".data" in source.text(each) for each, source in statements.items()):
            return True
        if len({_is_without_gradients(source, each) for each, source in statements.items()}) > 1:
            return True
        calls = [[node for node in ast.walk(each) if isinstance(node, ast.Call)] for each in statements]
        # What training does to the arguments on the way: noise, dropout.
        steps = [arg for each in calls for call in each for arg in call.args if isinstance(arg, ast.Call)]
        if any(source.calls_training(each) for source in statements.values() for each in steps):
            return True
        if not idle_names.isdisjoint(map(called, steps)):
            return True
        read = [{arg.id for call in each for arg in call.args if isinstance(arg, ast.Name)} for each in calls]
        names = set[str]().union(*read)
        # One statement that calls the module twice names both variables.
        names -= set[str].intersection(*read) if len(read) > 1 else names if len(names) < 2 else set()
        for statement, source in statements.items():
            function = source.enclosing(statement, ast.FunctionDef)
            for node in ast.walk(function or statement):
                if not isinstance(node, ast.Assign):
                    continue
                stored = {each.id for at in node.targets for each in ast.walk(at) if isinstance(each, ast.Name)}
                if names.isdisjoint(stored):
                    continue
                if (source.file, node.lineno) in idle or source.is_for_training(node) or source.calls_training(node):
                    return True
    return False


def _is_without_gradients(source: Source, statement: ast.stmt) -> bool:
    """Whether gradients are off around a statement, in its function, where the file calls that, or for the variable
    that it assigns."""
    function = source.enclosing(statement, ast.FunctionDef)
    is_named = function is not None and function.name != "forward"
    places = [statement, *(source.calls_to(function.name) if function is not None and is_named else [])]
    items = [
        item.context_expr
        for place in places
        for node in source.around(place)
        if isinstance(node, ast.With)
        for item in node.items
    ]
    items += [] if function is None else function.decorator_list
    if any(name in source.text(each) for each in items for name in _OFF):
        return True
    if function is None or not isinstance(statement, ast.Assign):
        return False
    names = [each.id for at in statement.targets for each in ast.walk(at) if isinstance(each, ast.Name)]
    text = source.text(function)
    return "requires_grad" in text or any(f"{name}.detach" in text for name in names)


def _idle(evidence: Evidence) -> list[ModuleRecord]:
    """Modules that do nothing in evaluation."""
    busy = {path for op in evidence.forward for path in enclosing_paths(op.module)}
    idle = [each for path, each in evidence.modules.items() if path not in busy and each.type != "Identity"]
    return [] if evidence.is_train else [each for each in idle if each.calls]


def _names_without_ops(evidence: Evidence) -> frozenset[str]:
    return frozenset(each.path.rpartition(".")[2] for each in _idle(evidence))


def _calls_without_ops(evidence: Evidence) -> frozenset[tuple[str, int]]:
    """The lines that call such modules."""
    places = [evidence.any_code_at(line) for each in _idle(evidence) for line in each.called_from]
    return frozenset((place[0].file, place[1]) for place in places if place is not None)


def _is_dropped(evidence: Evidence, module: str) -> bool:
    """Whether dropout runs several times next to a module in training."""
    around = module.rpartition(".")[0]
    prefix = f"{around}." if around else ""
    dropouts = [each for path, each in evidence.modules.items() if path.startswith(prefix) and "Dropout" in each.type]
    return not evidence.is_train and sum(each.calls for each in dropouts) > 1


def _repeated_calls(evidence: Evidence) -> Iterator[tuple[str, list[OpRecord]]]:
    """The ops of second calls of a recurrent layer that torch runs step by step: a call is the same where its first
    products, with the input and with the first state, are."""
    repeated = evidence.dataflow.first_runs
    paths = {op.module for op in evidence.dataflow.repeated if op.category != "recurrent" and not evidence.is_train}
    for path in sorted(path for path in paths if path and is_recurrent_layer(evidence, path)):
        ops = [op for op in evidence.flow.steps if op.module == path and op.category != "recurrent"]
        each, rest = divmod(len(ops), max(evidence.modules[path].calls, 1))
        calls = [ops[start : start + each] for start in range(0, len(ops), each)] if each and not rest else []
        again = list[OpRecord]()
        for call in calls[1:]:
            firsts = [next((op for op in call if f"{path}.{name}" in op.weights), None) for name in _FIRST_WEIGHTS]
            if all(op is not None and op.index in repeated for op in firsts):
                again += call
        if again:
            yield path, again


def _is_chance(evidence: Evidence, op: OpRecord) -> bool:
    """Whether two rounds of one line may be the same for this run's data alone: the module, or one around it, has
    brought an array of values to the host before, and may take shapes and indices from it."""
    first = evidence.dataflow.first_runs[op.index]
    before = next(each for each in evidence.forward if each.index == first)
    if (before.source, before.module) != (op.source, op.module):
        return False
    constants = evidence.dataflow.constants
    for read in evidence.capture.run.host_reads:
        data = [index for index in read.made_by or () if index is not None and index not in constants]
        is_inside = not read.module or f"{op.module}.".startswith(f"{read.module}.")
        if read.call in _ARRAYS and data and is_inside and max(data) < op.index:
            return True
    return False


def _settled(evidence: Evidence, module: str) -> Patch | None:
    """Code for torch's parametrizations and hooks (weight norm, spectral norm). Anything else is computed in somebody's
    forward, and only its author can move it."""
    owner, is_parametrized, rest = module.partition(".parametrizations.")
    if is_parametrized:
        name = rest.partition(".")[0]
        remove = "torch.nn.utils.parametrize.remove_parametrizations(model.get_submodule(path), name)"
        return Patch(remove, ("path", "name"), ((owner, name),))
    hook = None if evidence.model is None else evidence.model.norm_hook(module)
    if hook is None:
        return None
    remove, name = hook
    # Code that writes to the parts of the weight needs them.
    parts = {param for param in evidence.params if param.startswith(f"{module}.{name}_".removeprefix("."))}
    if any(op.op.endswith("_") and not parts.isdisjoint(op.weights) for op in evidence.forward):
        return None
    return Patch(f"torch.nn.utils.{remove}(model.get_submodule(path), name)", ("path", "name"), ((module, name),))


def _constant_groups(evidence: Evidence, *, from_weights: bool) -> Iterator[tuple[str, list[OpRecord]]]:
    """By module, the ops that do not depend on the model's inputs; `from_weights`: those that come from a parameter or
    buffer, else those that come from none."""
    weighted = evidence.once(made_from_weights)
    groups: dict[str, list[OpRecord]] = {}
    for op in evidence.once(_always_constant):
        is_written = op.op.endswith("_") and bool(op.weights)  # state of the model
        record = evidence.modules.get(op.module)
        # One line of code makes these for itself: the 0, 1, 2, … that `one_hot` compares with, the additive form that
        # attention makes of a mask of booleans, the parameters that an instance norm repeats for each sample.
        reader = evidence.flow.only_reader(op)
        is_inside_torch = record is not None and record.type in _OWN_INDICES
        if reader is not None and reader.source == op.source:
            is_class_number = op.op == "aten::arange" and reader.op == "aten::eq"
            is_mask = reader.category == "attention" and any(spec.dtype == "bool" for spec in op.signature.inputs)
            is_norm_copy = op.op == "aten::repeat" and reader.category == "normalization"
            is_inside_torch = is_inside_torch or is_class_number or is_mask or is_norm_copy
        is_wanted = (op.index in weighted) == from_weights and op.status != FREE
        if is_wanted and not is_inside_torch and not is_written and not evidence.is_kept(op):
            groups.setdefault(op.module, []).append(op)
    yield from groups.items()


def made_from_weights(evidence: Evidence) -> frozenset[int]:
    """Ops that are computed from a parameter, a buffer or another tensor that a module holds, perhaps from inputs
    too."""
    found, inputs = set[int](), evidence.dataflow.input_reads
    for op in evidence.forward:
        is_held = any(source is None and (op.index, at) not in inputs for at, source in enumerate(op.producers))
        is_held = is_held and op.op != "aten::lift_fresh"  # a tensor that the call makes of Python's numbers
        if not takes_shape_alone(op) and (op.weights or is_held or not found.isdisjoint(op.producers)):
            found.add(op.index)
    return frozenset(found)


def _always_constant(evidence: Evidence) -> list[OpRecord]:
    """The first round of a loop starts from zeros, which does not make it a constant: all runs of a line must be."""
    constants = evidence.dataflow.constants
    if not constants:
        return []
    live = {key for op in evidence.forward if op.index not in constants for key in _runs_of_line(op)}
    found = [op for op in evidence.forward if op.index in constants and live.isdisjoint(_runs_of_line(op))]
    # Torch calls other ops for a parameter that is expanded, with which the first round may start, than for a result.
    products = [op for op in evidence.forward if op.weights and op.cost.macs]
    read = {(op.module, name) for op in products if op.index not in constants for name in op.weights}
    calls = {
        (op.module, op.source)
        for op in products
        if op.index in constants and not read.isdisjoint((op.module, name) for name in op.weights)
    }
    runs = Counter((op.op, op.module, op.source) for op in evidence.forward)
    rounds = Counter((op.module, op.source) for op in products)
    found = [
        op
        for op in found
        if (place := (op.module, op.source)) not in calls or runs[op.op, op.module, op.source] >= rounds[place]
    ]
    return [op for op in found if not _changes_in_while(evidence, op)]


def _runs_of_line(op: OpRecord) -> Iterator[tuple[object, ...]]:
    """Keys that the runs of one op share: the line of code that calls it, or its parameters."""
    if op.source is not None:
        yield op.op, op.module, op.source
    if op.weights:
        yield op.op, op.module, op.weights


def _changes_in_while(evidence: Evidence, op: OpRecord) -> bool:
    """Whether its line is the condition of a `while`, or reads what the loop's body assigns: with other inputs the loop
    runs more rounds, and computes it from other values."""
    place = evidence.code_at(op)
    statement = None if place is None else place[0].statement(place[1])
    if place is None or statement is None:
        return False
    loop = place[0].enclosing(statement, ast.While, ast.FunctionDef)
    if not isinstance(loop, ast.While):
        return False
    names = [each for inside in loop.body for each in ast.walk(inside) if isinstance(each, ast.Name)]
    assigned = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    read = [each for each in ast.walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]
    return statement is loop or any(name.id in assigned for name in read)
