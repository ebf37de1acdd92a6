"""Memory that grows with every step, or is wider than it needs to be."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchgauge.advise.code import SourceEdit, called
from torchgauge.advise.dataflow import same_axis
from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rules.casts import CASTS
from torchgauge.advise.rules.loops import is_recurrent_layer, outline
from torchgauge.facts import OpRecord, enclosing_paths

_CAT = ("aten::cat",)
# Products of two tensors that are made in the run read a slice of a longer cache as fast as a tensor without gaps.
_OF_CACHES = ("attention", "matmul")
# Repetitions in a row that make a loop.
_LEAST_GROWTH = 3
_CAST = "aten::_to_copy"
_SOLVERS = tuple(
    f"aten::{name}"
    for name in (
        "cholesky", "linalg_cholesky", "linalg_eig", "linalg_inv", "linalg_ldl", "linalg_lu", "linalg_qr",
        "linalg_solve", "linalg_svd", "_linalg_", "triangular_solve", "inverse", "geqrf", "lu_",
    )
)  # fmt: skip
_CASTS = {_CAST, "aten::clone"}
# Arguments of transformers that make a model keep tensors of every layer.
_STATES = ("output_hidden_states", "output_attentions")
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
_ZEROS = {"aten::zeros", "aten::new_zeros", "aten::zeros_like", "aten::zero_"}
_ONES = {"aten::ones", "aten::new_ones", "aten::ones_like"}
# Tensors of one kind that make a loop; and the least share of the peak that is worth an edit.
_LEAST_HELD, _LEAST_EXCESS = 8, 0.1
# Methods that put something into a list or dictionary.
_FILL = ("append", "extend", "insert", "update", "setdefault")


@rule("grown-by-cat", family="memory")
def grown_by_cat(evidence: Evidence) -> Iterator[Advice]:
    """A tensor that is copied to be made a little longer: in a loop, or call by call."""
    flow, reads = evidence.flow, evidence.dataflow.input_reads
    chains: dict[int, list[OpRecord]] = {}
    for op in flow.named(*_CAT):
        # A line that joins its own result: cats of other lines are skip connections.
        near = (source for source in flow.sources(op) if source.op in _CAT and source.source == op.source)
        length = op.signature.outputs[0].numel
        before = next((source for source in near if source.signature.outputs[0].numel < length), None)
        chain = chains.pop(before.index, [before]) if before is not None else []
        chains[op.index] = [*chain, op]
    for ops in chains.values():
        # Most of it may be a tensor that the model was given, and it gives it back.
        first, parts = ops[0], ops[0].signature.inputs
        given = [spec.numel for at, spec in enumerate(parts) if (first.index, at) in reads]
        is_extended = len(ops) == 1 and flow.is_result(first) and len(parts) == 2 and len(given) == 1
        is_extended = is_extended and given[0] * 2 > first.signature.outputs[0].numel
        is_given_back = any(flow.is_result(op) for op in ops[:-1])
        if (len(ops) < _LEAST_GROWTH and not is_extended) or is_given_back:
            continue
        how, share = "the copies of the earlier parts", evidence.share(ops)
        readers = _readers_of_whole(evidence, ops if is_extended else ops[:-1])
        if not readers and not is_extended:
            words = "collect the parts in a list and join them once: each cat copies all that came before"
            risk, saved = "none, unless code outside forward reads the joined parts between steps", 1 - 2 / len(ops)
            gain = share.gain(0.7 * saved, saved, how)
        elif readers and all(op.category in _OF_CACHES and not op.weights for op in readers):
            words = "write into a cache that is allocated once: cat copies all that came before at every step"
            risk = "the longest sequence must be known, and its cache must fit in memory"
            gain = share.gain(0.7, 1.0, how, fewer_calls=0.0)  # the new part is still written
        else:
            # Layers and pointwise ops that read all of it would read a part of a buffer, with gaps between its rows: a
            # dense block of batch norms and convolutions got 4 % to 17 % slower.
            continue
        yield Advice(
            rule="grown-by-cat",
            where=Where(ops[-1].module, tuple(op.index for op in ops)),
            evidence={"copies": len(ops), "bytes_moved": sum(map(moved, ops))},
            recommendation=words,
            change=None,
            expected_gain=gain,
            risk=risk,
            confidence="high",
        )


def _readers_of_whole(evidence: Evidence, grown: list[OpRecord]) -> list[OpRecord]:
    """The ops, but for these cats, that read more than half of what has grown so far, or a window of several parts: at
    once, or behind copies and pointwise ops without a weight, as torch scales the keys of attention that it writes
    out."""
    flow, inside, todo, found = evidence.flow, {op.index for op in grown}, list(grown), list[OpRecord]()
    # What came before is the largest of the tensors that a cat joins.
    largest = max((sorted(spec.numel for spec in op.signature.inputs)[-2:][0] for op in grown), default=0)
    for made in todo:
        for user in flow.users(made):
            places = [at for at, source in enumerate(user.producers) if source == made.index]
            is_cat_of_chain = user.source == made.source and user.op in _CAT
            read = [user.signature.inputs[at] for at in places if evidence.dataflow.reads_part(user, at) is not None]
            if is_cat_of_chain or (len(read) == len(places) and all(spec.numel <= largest for spec in read)):
                continue
            is_passed_on = user.op in _CASTS or (user.category == "elementwise" and not user.weights)
            if not is_passed_on or not flow.users(user) or flow.is_result(user):
                found.append(user)
            elif user.index not in inside:
                inside.add(user.index)
                todo.append(user)
    return found


@rule("grows-with-calls", family="memory")
def grows_with_calls(evidence: Evidence) -> Iterator[Advice]:
    """An attribute that held more tensors after a second call than after the first."""
    for found in evidence.capture.run.growing:
        yield Advice(
            rule="grows-with-calls",
            where=Where(found.module, (), None, found.source),
            evidence={"attribute": found.attribute, "bytes_per_call": found.nbytes},
            recommendation="empty this attribute at the start of each call: it keeps the tensors of every call so far",
            change=None,
            expected_gain=None,
            risk="none, unless the caller reads what earlier calls left there",
            confidence="high",
            kind="bug",
        )


@rule("held-activations", family="memory")
def held_activations(evidence: Evidence) -> Iterator[Advice]:
    """Tensors that are not read any more but are still held: by a list of every layer's output, by an attribute."""
    # What runs a script here keeps the values of a block to its end.
    if evidence.capture.target.kind == "torchscript":
        return
    # Weights that a hook computes at each call and keeps in an attribute (weight norm) are not activations.
    gone = {*evidence.kept, *evidence.dataflow.constants}
    given = {index for index, _ in evidence.dataflow.input_reads}
    gone |= {
        op.index for op in evidence.forward if op.weights and set(op.producers) == {None} and op.index not in given
    }
    known = {held.op: held for held in evidence.capture.run.held if held.op not in gone}
    groups: dict[tuple[object, ...], list[OpRecord]] = {}
    for op in evidence.flow.steps if known else ():
        if is_recurrent_layer(evidence, op.module):
            continue  # torch keeps the states of the steps until its call ends
        kind = (op.source, op.op, op.signature.outputs[:1], outline(op.module))
        groups.setdefault(kind, []).append(op)
    peak, found = evidence.totals.peak_activation_bytes or 1, (0.0, list[OpRecord]())
    for ops in groups.values():
        dead = [op for op in ops if op.index in known]
        # What runs scripted functions here keeps tensors that a run would free, also those of the file's other code.
        place = evidence.code_at(dead[0]) if dead else None
        is_scripted = place is not None and bool(place[0].scripted)
        if len(dead) >= _LEAST_HELD - 1 and not is_scripted and not _is_for_others(evidence, dead):
            found = max(found, (1 - _peak_without(evidence, dead) / peak, dead), key=lambda each: each[0])
    share, dead = found
    if share < _LEAST_EXCESS:
        return
    module, source = evidence.package_call(dead[0]) or (dead[0].module, evidence.loop_line(dead))
    words = "let these tensors go (del x): a name, a list or an attribute holds them, nothing reads them"
    if (asked := _asked_states(evidence, source)) is not None:
        words = f"leave out {asked}: nothing reads the tensors that it holds"
    elif (container := _container(evidence, dead[0])) is not None:
        name, lines = container
        words = f"keep only what is read again in {name}: it holds the others for nothing"
        # Its other tensors too, whatever their shapes: they are freed together.
        released, group = known[dead[0].index].released, {op.index for op in dead}
        others = (op for op in evidence.forward if op.source in lines and op.index in known)
        group |= {op.index for op in others if known[op.index].released == released}
        dead = [op for op in evidence.forward if op.index in group]
        share = 1 - _peak_without(evidence, dead) / peak
    yield Advice(
        rule="held-activations",
        where=Where(module, tuple(op.index for op in dead), source=source),
        evidence={
            "tensors": len(dead),
            "held_bytes": sum(op.signature.activation_bytes for op in dead),
            "peak_bytes": peak,
        },
        recommendation=words,
        change=None,
        expected_gain=Gain("peak_activation_bytes", share, share, "the peak without the tensors that nothing reads"),
        risk="code outside forward may read what an attribute holds",
        confidence="high",
    )


def _container(evidence: Evidence, op: OpRecord) -> tuple[str, set[str]] | None:
    """The one list or dictionary that the loop around an op fills, and the lines of the loop."""
    place = evidence.code_at(op)
    loop = None if place is None else place[0].enclosing(place[0].statement(place[1]), ast.For, ast.While)
    if place is None or loop is None:
        return None
    filled = set[str]()
    for node in ast.walk(loop):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            filled |= set() if isinstance(node.slice, ast.Constant) else {ast.unparse(node.value)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            filled.add(ast.unparse(node.func.value))
    file = (op.source or "").rpartition(":")[0]
    lines = {f"{file}:{line}" for line in range(loop.lineno, (loop.end_lineno or loop.lineno) + 1)}
    return (filled.pop(), lines) if len(filled) == 1 else None


def _asked_states(evidence: Evidence, source: str | None) -> str | None:
    """The argument by which a call of transformers gets the states or the attention weights of every layer."""
    place = evidence.code_at(source)
    calls = [] if place is None else list(ast.walk(place[0].statement(place[1]) or ast.Pass()))
    arguments = [argument for call in calls if isinstance(call, ast.Call) for argument in call.keywords]
    return next(
        (f"{each.arg}=True" for each in arguments if each.arg in _STATES and ast.unparse(each.value) == "True"), None
    )


def _is_for_others(evidence: Evidence, dead: list[OpRecord]) -> bool:
    """Whether an attribute still holds them after the call, and other code of the model reads an attribute that the
    class fills: a loss of activations, a method that returns the maps."""
    place = evidence.code_at(dead[0])
    is_kept = not {op.index for op in dead}.isdisjoint(evidence.capture.run.kept_ops)
    if evidence.model is None or place is None or not is_kept:
        return False
    source, line = place
    owner = source.enclosing(source.statement(line), ast.ClassDef)
    functions = [node for node in ast.walk(owner or ast.Pass()) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    # A hook that `__init__` defines is a function too.
    nodes = [node for each in functions if getattr(each, "name", "") != "__init__" for node in ast.walk(each)]
    stored = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    containers = [
        node.func.value
        for node in nodes
        if isinstance(node, ast.Call) and called(node) in _FILL and isinstance(node.func, ast.Attribute)
    ]
    containers += [node.value for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)]
    stored |= {node.attr for node in containers if isinstance(node, ast.Attribute)}
    return any(
        evidence.model.is_read_after_call(f"{path}.{name}".removeprefix("."))
        for name in stored
        for path in enclosing_paths(dead[0].module)
    )


def _peak_without(evidence: Evidence, dead: list[OpRecord]) -> int:
    """The most bytes alive if these tensors were freed after their last reader."""
    changes = dict[int, int]()
    known = {held.op: held for held in evidence.capture.run.held}
    for op in dead:
        held, nbytes = known[op.index], op.signature.activation_bytes
        changes[held.last_read + 1] = changes.get(held.last_read + 1, 0) - nbytes
        changes[held.released] = changes.get(held.released, 0) + nbytes
    extra, most = 0, evidence.capture.input_bytes
    for op in evidence.forward:
        extra += changes.get(op.index, 0)
        most = max(most, op.live_bytes + extra)
    return most


@rule("double-precision", family="types")
def double_precision(evidence: Evidence) -> Iterator[Advice]:
    """Ops in float64 in a model whose parameters are not."""
    # A table that is rebuilt at each call is reported by another rule, whatever its dtype.
    wide = [op for op in evidence.flow.steps if _is_double(op) and op.index not in evidence.dataflow.constants]
    # Tensors that are cast back at once are reported by `cast-round-trip`.
    back = {op.index: evidence.flow.only_reader(op) for op in wide if op.op == _CAST and _widens(op)}
    trips = {
        each
        for index, reader in back.items()
        if reader is not None and reader.op == _CAST and not _gives_double(reader)
        for each in (index, reader.index)
    }
    wide = [op for op in wide if op.index not in trips]
    if not wide:
        return
    params = [param.spec for param in evidence.capture.params if param.spec.is_floating and not param.is_buffer]
    is_meant = sum(spec.nbytes for spec in params if spec.dtype == "float64") * 2 > sum(spec.nbytes for spec in params)
    # A model that gets float32 and gives back float32 hardly wants float64 in between.
    is_meant = is_meant and not any(entry.spec.dtype == "float32" for entry in evidence.capture.inputs)
    given = any(entry.spec.dtype == "float64" for entry in evidence.capture.inputs)
    # Factorizations and their solutions fail in float32, or lose digits.
    is_solved = any(op.op.startswith(_SOLVERS) for op in wide)
    if is_meant or given or is_solved:
        return
    # Casts go away. Of the work of the other ops 0.3 to 0.6 does, and more where a processor widens one operand element
    # by element: 15 µs in place of 54 for 300 × 384 elements times a row of float64.
    low = high = 0.0
    for op in wide:
        share, is_cast = evidence.share([op]), op.op in _CASTS
        is_widened = not evidence.is_cuda and any(spec.dtype == "float32" for spec in op.signature.inputs)
        least, most = (0.9, 1.0) if is_cast else (0.5, 0.8) if is_widened else (0.3, 0.6)
        work = share.value if is_cast else share.value * (1 - share.calls)
        low, high = low + least * work, high + most * work
    first, how = wide[0], "half of the bytes, twice the rate, no casts"
    words = "keep this in float32: a float64 tensor, or double(), widens all that follows from it"
    if all(op.op in _CASTS for op in wide):
        words = "make this tensor in float32: it is made in float64, as by NumPy, and cast at every call"
    yield Advice(
        rule="double-precision",
        where=Where(first.module, tuple(op.index for op in wide)),
        evidence={"ops": len(wide), "first": first.op, "bytes_moved": sum(map(moved, wide))},
        recommendation=words,
        change=None if any(op.weights and _is_double(op) for op in wide) else _in_single(evidence, first),
        expected_gain=Gain("time_s", low, high, how, evidence.share(wide).ops),
        risk="sums over very many elements may need the precision",
        confidence="high",
    )


def _in_single(evidence: Evidence, op: OpRecord) -> SourceEdit | None:
    """The line that makes the first wide tensor, with float32 in place of what it asks for."""
    place = evidence.code_at(op)
    if place is None:
        return None
    source, line = place
    named = [node for node in source.expressions(line) if isinstance(node, ast.Attribute)]
    types = [node for node in named if node.attr in ("float64", "double") and source.text(node.value) == "torch"]
    spans = [span for node in types for span in source.replaced(node, "torch.float32")]
    for call in source.calls(line, "double"):
        if isinstance(call.func, ast.Attribute) and not call.args:
            spans += source.replaced(call, f"{source.text(call.func.value)}.float()")
    return source.edit(spans)


def _widens(op: OpRecord) -> bool:
    return _gives_double(op) and not any(spec.dtype == "float64" for spec in op.signature.inputs)


def _gives_double(op: OpRecord) -> bool:
    return any(spec.dtype == "float64" for spec in op.signature.outputs)


def _is_double(op: OpRecord) -> bool:
    return any(spec.dtype == "float64" and spec.shape for spec in (*op.signature.outputs, *op.signature.inputs))


@rule("one-hot-product", family="memory")
def one_hot_product(evidence: Evidence) -> Iterator[Advice]:
    """A product with rows of which one element is 1: a lookup."""
    for op in (*evidence.flow.named(*_PRODUCTS), *evidence.flow.of_category("recurrent")):
        made = next((chain for source in evidence.flow.sources(op) if (chain := _one_hot(evidence, source))), None)
        if made is None or not _adds_classes(op, made[-1]):
            continue
        # Rows that something else reads stay.
        made = made if all(evidence.flow.only_reader(each) for each in made) else made[-1:]
        is_read = evidence.flow.only_reader(made[-1]) is None
        touched, words = (
            [op] if is_read else [*made, op],
            "look the rows up: a product with one-hot rows multiplies with zeros",
        )
        low, high, how = 0.8, 1.0, "the one-hot rows and the product become a lookup"
        if is_recurrent_layer(evidence, op.module):
            words = "give this layer an embedding in place of one-hot rows: most of its product is with zeros"
            if op.category == "recurrent":  # one op for the products with inputs and states
                sizes = [evidence.params[name].spec.numel for name in op.weights if name in evidence.params]
                low, high = (share * max(sizes, default=0) / max(sum(sizes), 1) for share in (0.6, 1.0))
                how = "the product with the one-hot rows becomes a lookup"
        yield Advice(
            rule="one-hot-product",
            where=Where(op.module, tuple(each.index for each in touched), op.weights[-1] if op.weights else None),
            evidence={"one_hot_shape": list(made[-1].signature.outputs[0].shape), "macs": op.cost.macs},
            recommendation=words,
            change=_looked_up(evidence, made, op),
            expected_gain=evidence.share(touched).gain(low, high, how),
            risk="none" if _is_checked(evidence, made) else "a lookup raises for indices that now give rows of zeros",
            confidence="high",
        )


def _adds_classes(product: OpRecord, rows: OpRecord) -> bool:
    """Whether a product adds up over the classes. Over the rows, with the one-hot matrix turned, it sums the rows of
    each class."""
    made, place = rows.signature.outputs[0], product.producers.index(rows.index)
    axis = same_axis(len(made.shape) - 1, made, product.signature.inputs[place])
    is_second = product.op in _PRODUCTS and place == len(product.producers) - 1
    read = len(product.signature.inputs[place].shape)
    return axis == read - (2 if is_second else 1)


def _is_checked(evidence: Evidence, made: list[OpRecord]) -> bool:
    """Whether the indices are in range: a comparison with all numbers that is written out takes any."""
    places = [place for op in made if (place := evidence.code_at(op)) is not None]
    is_compared = any(op.op == "aten::eq" for op in made)
    return not is_compared or any(source.calls(line, "one_hot") for source, line in places)


def _looked_up(evidence: Evidence, made: list[OpRecord], product: OpRecord) -> SourceEdit | None:
    """Where the one-hot rows are made in the expression of the product."""
    place = evidence.code_at(product)
    if place is None or place[0].functional is None:
        return None
    source, line = place
    for call in source.calls(line, "one_hot"):
        node: ast.AST = call
        while isinstance(around := source.parents[node], ast.Attribute | ast.Call) and source.product(around) is None:
            if isinstance(around, ast.Call) and (around.func is not node or called(around) not in CASTS):
                break
            node = around
        factors = source.product(around)
        if factors is not None and factors[0] is node and call.args and product.op != "aten::bmm":
            lookup = f"{source.functional}.embedding({source.text(call.args[0])}, {source.text(factors[1])})"
            return source.edit(source.replaced(around, lookup))
        record = evidence.modules.get(product.module)
        is_layer = record is not None and record.type == "Linear" and node in getattr(around, "args", ())
        # A module around the layer has no weight to look up.
        name = product.module.rpartition(".")[2]
        if isinstance(around, ast.Call) and is_layer and called(around) == name and call.args:
            layer = source.text(around.func)
            bias = f" + {layer}.bias" if len(product.weights) == 2 else ""
            lookup = f"{source.functional}.embedding({source.text(call.args[0])}, {layer}.weight.T){bias}"
            return source.edit(source.replaced(around, lookup if source.is_alone(around) else f"({lookup})"))
    return None


def _one_hot(evidence: Evidence, op: OpRecord) -> list[OpRecord] | None:
    """The ops that make one-hot rows of indices: a comparison with all numbers, ones that are scattered, rows of an
    identity."""
    flow, chain = evidence.flow, [op]
    while chain[0].op in _CASTS and (source := flow.source(chain[0])) is not None:
        chain.insert(0, source)
    first = chain[0]
    sources = {source.op for source in flow.sources(first)}
    is_comparison = first.op == "aten::eq" and "aten::arange" in sources
    # Ones into zeros: with other values (the gates of experts) it is a weighted sum.
    is_scattered = (
        first.op.startswith("aten::scatter")
        and bool(sources & _ZEROS)
        and (first.signature.attributes.get("value") == 1 or bool(sources & _ONES))
        # Several in a row are several ones.
        and first.signature.inputs[1].shape[int(first.signature.attributes.get("dim") or 0)] == 1
    )
    is_identity = first.op in ("aten::index", "aten::index_select", "aten::embedding") and "aten::eye" in sources
    is_one_hot = first.op == "aten::one_hot" or is_comparison or is_scattered or is_identity
    return [*(s for s in flow.sources(first) if s.op == "aten::eye"), *chain] if is_one_hot else None
