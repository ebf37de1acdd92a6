"""Mixtures of experts: which experts one token reaches, from the flow of data through the recorded ops.

A *choice* turns scores into the indices of some alternatives: `topk`, `argmax`, a sort that is cut off, a table of
expert numbers. Everything derived from its indices (positions, masks, gates) is a *selection*, whatever ops it goes
through. A *bank* is weights in equal pieces: a tensor of which an op reads one slice at a time or all slices together,
in any order of dimensions, or modules of equal shapes under one parent. Where a selection meets a bank (it gathers the
tokens that a piece multiplies, gathers the pieces, or weighs their results), the pieces are the experts that the choice
is among. So group-limited routing, whose first choice only masks the scores of the second, needs no special rule, nor
do shared experts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_
from typing import NamedTuple, TypeVar

from torchgauge.facts.capture import Capture
from torchgauge.facts.module import ParamRecord
from torchgauge.facts.op import FREE, OpRecord
from torchgauge.facts.tensor import TensorSpec

T = TypeVar("T")

# Ops that give the places of the best.
_BEST = frozenset(("aten::topk", "aten::multinomial", "aten::argmax", "aten::argmin", "aten::max", "aten::min"))
_SORTS = frozenset(("aten::sort", "aten::argsort"))
_COMPARISONS = frozenset(f"aten::{name}" for name in ("ge", "gt", "le", "lt", "eq", "ne"))
_LOOKUPS = frozenset(("aten::index", "aten::index_select", "aten::gather", "aten::embedding"))
_CHOOSING = _BEST | _SORTS | _LOOKUPS
_PRODUCTS = frozenset(f"aten::{name}" for name in ("mm", "bmm", "matmul", "addmm", "baddbmm"))
# Of the pairs of a token and an expert that were chosen, those that must be computed: experts of limited capacity drop
# some, and some alternatives have no weights.
_LEAST_COMPUTED = 0.25
# Ops between a layer and the product with its result: views and copies aside, a bias or an activation.
_MOST_BETWEEN = 4


@dataclass(frozen=True, slots=True)
class Choice:
    """The op at `index` chooses `chosen` of `alternatives` for each of `rows`; a table of expert numbers does not say
    among how many."""

    index: int
    module: str
    chosen: int
    alternatives: int | None
    rows: int
    is_mask: bool = False


class Bank(NamedTuple):
    """Weights in `pieces` equal parts: the slices of one tensor, or the modules of one parent."""

    path: str
    pieces: int
    is_tensor: bool

    def is_parallel_to(self, other: Bank) -> bool:
        """Whether both have as many pieces, in the same module or in modules of the same parent."""
        own, others = (path.rpartition(".")[0] for path in (self.path, other.path))
        siblings = own.rpartition(".")[0] == others.rpartition(".")[0]
        return self.pieces == other.pieces and (own == others or siblings)


@dataclass(frozen=True)
class Mixture:
    """The experts that some choices are among; of their parameters those that are matrices, and the ops that multiply
    with them."""

    choices: tuple[Choice, ...]
    experts: int
    params: tuple[ParamRecord, ...]
    matrices: tuple[ParamRecord, ...]
    ops: tuple[OpRecord, ...]

    @property
    def module(self) -> str:
        """The path of the module that makes the choice."""
        return self.choices[0].module

    @property
    def chosen(self) -> int:
        return sum(choice.chosen for choice in self.choices)

    @property
    def share(self) -> float:
        """The share of the experts that one token reaches: those chosen, less alternatives without any computation."""
        chosen = sum(choice.chosen / (choice.alternatives or self.experts) for choice in self.choices)
        computed = self.computed / max(self.tokens * self.experts, 1) if self.macs else 1.0
        return min(chosen, computed, 1.0)

    @property
    def idle_params(self) -> int:
        """Parameters of the experts that one token does not reach."""
        return round(sum(param.spec.numel for param in self.params) * (1 - self.share))

    @property
    def tokens(self) -> int:
        """A choice has a row for each token; where experts choose tokens, a row for each expert."""
        first = self.choices[0]
        experts_choose = first.alternatives not in (None, 0, self.experts) and first.rows == self.experts
        return first.alternatives or first.rows if experts_choose else first.rows

    @cached_property
    def macs(self) -> int:
        return sum(op.cost.macs for op in self.ops)

    @property
    def computed(self) -> float:
        """Pairs of a token and an expert whose products are computed."""
        return self.macs * self.experts / max(sum(param.spec.numel for param in self.matrices), 1)

    @property
    def is_routed(self) -> bool:
        """Whether what was chosen is computed: where edges choose among relations whose layers work on nodes, or tokens
        among clusters whose sum a layer reads, far fewer rows are computed than were chosen."""
        picked = sum(choice.rows * choice.chosen for choice in self.choices)
        return not self.macs or self.computed >= _LEAST_COMPUTED * picked

    @property
    def is_dense(self) -> bool:
        """Whether every expert is computed for every token."""
        read = {name for op in self.ops for name in op.weights}
        is_whole = all(param.name in read for param in self.matrices)
        return is_whole and self.share < 1 and self.computed > 0.99 * self.tokens * self.experts


def active_params(params: Iterable[ParamRecord], mixtures: Iterable[Mixture]) -> int:
    """Parameters that one token reaches, routing balanced; all of them where nothing is routed."""
    total = sum(param.spec.numel for param in params if not param.is_buffer)
    return total - sum(mixture.idle_params for mixture in mixtures)


def dense_warnings(mixtures: Iterable[Mixture]) -> list[str]:
    """Warnings about mixtures that compute all experts: their MACs exceed those of the active parameters."""
    counts = dict.fromkeys((mixture.chosen, mixture.experts) for mixture in mixtures if mixture.is_dense)
    return [
        f"all {experts} experts are computed for every token, which uses {chosen} of them: MACs count all, "
        "active_params those it uses"
        for chosen, experts in counts
    ]


def find_mixtures(capture: Capture) -> list[Mixture]:
    """Every mixture of experts of a model, in the order of their choices."""
    ops = [op for op in capture.ops if op.phase == "forward"]
    choices = _find_choices(ops)
    if not choices:
        return []
    ops = list(_see_through_copies(ops))
    banks = _Banks(capture, choices.values())
    links = _link(ops, choices, banks)
    # A weight may be in banks within banks (gate and up projection of each expert): the innermost counts.
    linked: dict[str, Bank] = {}
    for bank in sorted(links, key=lambda bank: len(banks.params[bank]), reverse=True):
        linked.update(dict.fromkeys(banks.params[bank], bank))
    groups: dict[tuple[tuple[Choice, ...], int], list[ParamRecord]] = defaultdict(list)
    for param in capture.params:
        if param.name in linked and not param.is_buffer:
            bank = linked[param.name]
            groups[links[bank], bank.pieces].append(param)
    readers: dict[str, list[OpRecord]] = defaultdict(list)
    for op in ops:
        for name in dict.fromkeys(op.weights) if op.cost.macs else ():
            readers[name].append(op)
    found = []
    for (chosen, pieces), params in groups.items():
        matrices = []
        for param in params:
            # Stacked biases have one dimension in addition to that of the experts.
            shape = [size for size in param.spec.shape if size > 1]
            if len(shape) - (linked[param.name].is_tensor and pieces in shape) > 1:
                matrices.append(param)
        used = {op.index: op for param in matrices for op in readers[param.name]}
        ordered = tuple(used[index] for index in sorted(used))
        found.append(Mixture(chosen, pieces, tuple(params), tuple(matrices), ordered))
    return sorted((each for each in found if each.is_routed), key=lambda mixture: mixture.choices[0].index)


def _see_through_copies(ops: Iterable[OpRecord]) -> Iterator[OpRecord]:
    """The ops without the copies and casts of single weights, whose readers read the weight itself: `einsum` and
    `reshape` copy a weight to bring its dimensions in order, autocast casts it."""
    copied: dict[int | None, tuple[str, ...]] = {}
    for op in ops:
        names = [name for producer in op.producers for name in copied.get(producer, ())]
        if names:
            producers = tuple(None if producer in copied else producer for producer in op.producers)
            op = replace(op, weights=(*op.weights, *names), producers=producers)
        if op.signature.category == "copy" and len(op.weights) == 1 and op.producers == (None,):
            copied[op.index] = op.weights
        else:
            yield op


def _find_choices(ops: Iterable[OpRecord]) -> dict[int, Choice]:
    """The ops that choose, by index. A sort is one where only a part of its order is read."""
    found: dict[int, Choice] = {}
    sorts: dict[int | None, OpRecord] = {}
    for op in ops:
        for spec, producer in zip(op.signature.inputs, op.producers, strict=False) if sorts else ():
            if producer in sorts and not spec.is_arithmetic:
                order = sorts[producer]
                size, rows = _alternatives(order)
                if spec.numel < size * rows:
                    found[order.index] = Choice(order.index, order.module, max(spec.numel // rows, 1), size, rows)
        if op.op not in _CHOOSING or not op.signature.inputs:
            continue
        first, (size, rows) = op.signature.inputs[0], _alternatives(op)
        if op.op in _LOOKUPS:
            # A table has a row of expert numbers for each token; a lookup of single numbers chooses nothing.
            looked_up = op.signature.outputs[0]
            is_table = op.weights and not first.is_arithmetic and len(first.shape) == 2
            if is_table and size and looked_up.shape[-1:] == (size,):
                found[op.index] = Choice(op.index, op.module, size, None, looked_up.numel // size)
        elif first.is_floating and not all(spec.is_arithmetic for spec in op.signature.outputs):
            counts = {"aten::topk": "k", "aten::multinomial": "num_samples"}
            chosen = int(op.signature.attributes.get(counts[op.op], size)) if op.op in counts else 1
            if op.op in _SORTS:
                sorts[op.index] = op
            elif chosen < size:
                found[op.index] = Choice(op.index, op.module, chosen, size, rows)
    return found


def _alternatives(op: OpRecord) -> tuple[int, int]:
    """How many an op chooses among, and how often it chooses; without a dimension all elements are one row."""
    scores, dim = op.signature.inputs[0], op.signature.attributes.get("dim", -1)
    if not scores.shape or not isinstance(dim, int):
        return scores.numel, 1
    size = scores.shape[dim]
    return size, scores.numel // max(size, 1)


class _Banks:
    """The banks whose number of pieces is one that something is chosen among; sets of them are bits."""

    def __init__(self, capture: Capture, choices: Iterable[Choice]) -> None:
        self.params: dict[Bank, tuple[str, ...]] = {}
        self._bits: dict[Bank, int] = {}
        self._listed: list[Bank] = []
        self._alternatives = {choice.alternatives for choice in choices}
        self._sizes = {size for choice in choices for size in (choice.alternatives, choice.rows) if size}
        self._has_table = any(choice.alternatives is None for choice in choices)
        self._specs = {param.name: param.spec for param in capture.params if not param.is_buffer}
        self._of_param: dict[str, int] = defaultdict(int)
        self._read: dict[tuple[tuple[str, ...], int], int] = {}
        self._started: set[tuple[str, ...]] = set()
        self._children: set[tuple[Bank, str]] = set()
        self.in_a_row: set[Bank] = set()
        for bank, names in _equal_modules(self._specs):
            if self._is_size(bank.pieces):
                for name in names:
                    self._of_param[name] |= self._bit(bank, names)

    def members(self, bits: int) -> Iterator[tuple[Bank, int]]:
        for bank in _members(self._listed, bits):
            yield bank, self._bits[bank]

    def read_by(self, op: OpRecord) -> int:
        """The banks that an op reads a piece of, or all pieces side by side; a view reads nothing."""
        if op.status == FREE:
            return 0
        key = op.weights, id(op.signature)
        read = self._read.get(key)
        if read is None:
            read = 0
            for name in op.weights:
                read |= self._of_param.get(name, 0)
            # The filters of a convolution are not experts, however many there are.
            for name, view in self._views(op) if op.category != "convolution" else ():
                bank = self._stacked(name, view, op)
                if bank is not None:
                    read |= self._bit(bank, (name,))
            self._read[key] = read
        return read

    def note_order(self, op: OpRecord, read: int, after: int) -> None:
        """Modules of which one first works on what another gave are layers, not alternatives."""
        if op.weights in self._started:
            return
        self._started.add(op.weights)
        for bank, bit in self.members(read):
            start = len(bank.path) + 1 if bank.path else 0
            for name in op.weights if not bank.is_tensor else ():
                child = bank, name[start : name.find(".", start)]
                if self._of_param[name] & bit and child not in self._children:
                    self._children.add(child)
                    if after & bit:
                        self.in_a_row.add(bank)

    def read_by_several(self, ops: Iterable[OpRecord]) -> set[tuple[int, int]]:
        """Each op with a result that it and other modules of its bank read whole, as the sum over the neighbours in a
        graph: this says nothing about which of the modules is chosen."""
        made: dict[int, OpRecord] = {}
        readers: dict[tuple[Bank, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for op in ops:
            made[op.index] = op
            for bank, bit in self.members(self.read_by(op)) if op.weights else ():
                start = len(bank.path) + 1 if bank.path else 0
                names = [name for name in op.weights if not bank.is_tensor and self._of_param[name] & bit]
                for spec, source in zip(op.signature.inputs, op.producers, strict=False) if names else ():
                    if source in made and spec.numel == made[source].signature.outputs[0].numel:
                        readers[bank, source][names[0][start : names[0].find(".", start)]].append(op.index)
        return {
            (index, source)
            for (_, source), children in readers.items()
            if len(children) > 1
            for read in children.values()
            for index in read
        }

    def are_others(self, names: Iterable[str]) -> bool:
        """Whether a parameter is among them, not buffers alone."""
        return not self._specs.keys().isdisjoint(names)

    def _bit(self, bank: Bank, names: tuple[str, ...]) -> int:
        if bank not in self._bits:
            self._bits[bank] = 1 << len(self._listed)
            self._listed.append(bank)
            self.params[bank] = names
        return self._bits[bank]

    def _views(self, op: OpRecord) -> Iterator[tuple[str, TensorSpec]]:
        """The weights of an op, each with the part of it that is read; inputs of the model and constants, which have
        no producer either, are distinguished by their sizes."""
        names = dict.fromkeys(op.weights)
        pairs = zip(op.signature.inputs, op.producers, strict=False)
        held = [view for view, producer in pairs if producer is None and view.numel]
        for name in names:
            whole = self._specs.get(name)
            if len(held) > len(names) and whole is not None:
                parts = [view for view in held if _is_part(view, whole)]
                held = held[held.index(max(parts, key=lambda view: view.numel)) :] if parts else held
            if held and whole is not None and _is_part(held[0], whole):
                yield name, held[0]
            held = held[1:]

    def _stacked(self, name: str, view: TensorSpec, op: OpRecord) -> Bank | None:
        """The bank that a tensor is, by the part of it that an op reads."""
        whole = self._specs[name]
        pieces = whole.numel // view.numel
        if pieces > 1:
            if whole.shape[0] in self._sizes and pieces % whole.shape[0] == 0:
                return Bank(name, whole.shape[0], True)  # also a part of a piece: the gate half of a matrix
            return Bank(name, pieces, True) if self._is_size(pieces) or self._has_table else None
        first = view.shape[0] if view.shape else 0
        is_batch = len(view.shape) > 2 and pieces == 1  # 0: it is repeated, along a batch of inputs
        if is_batch and (self._is_size(first) or self._has_table):
            return Bank(name, first, True)
        # Read whole, a matrix in a product is one matrix; in a sum or a lookup it has a row for each expert. Of three
        # dimensions any may be that of the experts: `einsum("td,edf->tef")` is a product of two matrices.
        if op.op in _LOOKUPS:
            dimensions: tuple[int, ...] = (first,)
        elif op.signature.category == "convolution" or (op.cost.macs and len(whole.shape) < 3):
            dimensions = ()
        else:
            dimensions = whole.shape
        fitting = [size for size in dimensions if size > 1 and size in self._sizes]
        # Each expert may choose among tokens, but the size of a dimension is more often that of the alternatives.
        fitting.sort(key=lambda size: size not in self._alternatives)
        return Bank(name, fitting[0], True) if fitting else None

    def _is_size(self, pieces: int) -> bool:
        """Whether something is chosen among so many, or among these and others that have no weights."""
        return pieces > 1 and any(pieces <= size <= 2 * pieces for size in self._sizes)


def _is_part(view: TensorSpec, whole: TensorSpec) -> bool:
    """Whether a view may be of the tensor: a part of it, all of it, or all of it repeated along a batch."""
    return whole.numel % view.numel == 0 or view.numel % max(whole.numel, 1) == 0


def _equal_modules(specs: Mapping[str, TensorSpec]) -> Iterator[tuple[Bank, tuple[str, ...]]]:
    """Modules of one parent whose parameters have equal names and shapes."""
    children: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in specs:
        end = name.find(".")
        start = 0
        while end >= 0:
            children[name[: max(start - 1, 0)]][name[start:end]].append(name)
            start, end = end + 1, name.find(".", end + 1)
    for parent, members in children.items():
        groups: dict[tuple[object, ...], list[str]] = defaultdict(list)
        counts: dict[tuple[object, ...], int] = defaultdict(int)
        for child, names in members.items() if len(members) > 1 else ():
            start = len(parent) + bool(parent) + len(child) + 1
            kind: tuple[object, ...] = tuple((name[start:], specs[name].shape) for name in names)
            groups[kind] += names
            counts[kind] += 1
        for kind, names in groups.items():
            if counts[kind] > 1:
                yield Bank(parent, counts[kind], False), tuple(names)


class _Flow(NamedTuple):
    """The contents of an op's result, as sets of bits: choices whose selection it is, choices whose best scores it
    is, banks whose result it is, and all banks it depends on in any way."""

    selected: int = 0
    scores: int = 0
    result: int = 0
    after: int = 0


def _link(ops: Iterable[OpRecord], choices: dict[int, Choice], banks: _Banks) -> dict[Bank, tuple[Choice, ...]]:
    """The choices among the pieces of each bank that a selection meets."""
    flows: dict[int | None, _Flow] = {}
    numbered: list[Choice] = []
    choice_bit: dict[int | None, int] = {}
    links: dict[Bank, tuple[Choice, ...]] = {}
    fed_by: dict[int, int] = defaultdict(int)  # by the banks an op reads, those whose results it is given
    known: dict[tuple[int, int, int], int] = {}
    asked = 0  # choices whose number the code has asked for
    by_number: dict[Bank, tuple[Choice, ...]] = {}
    ops = list(ops)
    made = {op.index: op for op in ops}
    shared = banks.read_by_several(ops)

    def is_adjacency(op: OpRecord) -> bool:
        """Whether a product relates tokens to each other, as the edges of a graph: of what was chosen with itself, as
        for tokens of one cluster, or with the rows that one module gave, whose own input was not selected before."""
        if op.op not in _PRODUCTS or op.weights:
            return False
        given = [flows[source].selected if source in flows else 0 for source in op.producers[-2:]]
        if given[0] and given[0] == given[-1] and op.signature.inputs[-2:][0].shape[-1] > 1:
            return True
        for source in op.producers:
            layer = None if source is None else made.get(source)
            for _ in range(_MOST_BETWEEN):
                if layer is None or layer.weights or len(set(layer.producers)) != 1:
                    break
                layer = None if layer.producers[0] is None else made.get(layer.producers[0])
            for bank, _ in banks.members(banks.read_by(layer)) if layer is not None and layer.weights else ():
                if not bank.is_tensor and bank not in links:
                    return True
        return False

    def meet(selected: int, read: int, result: int) -> int:
        """Link the banks that are read, or whose results are, to the choices that they meet; returns these."""
        unseen: dict[Choice, int] = {}
        for choice in _members(numbered, selected):
            # A choice that has seen a bank's results is not among its pieces; a table has not seen any.
            reached = read if choice.alternatives is None else read | result
            unseen[choice] = reached & ~flows[choice.index].after
        met = 0
        for bank, bit in banks.members(reduce(or_, unseen.values())):
            fitting = [choice for choice, bits in unseen.items() if bits & bit and _fits(choice, bank)]
            exact = [choice for choice in fitting if choice.alternatives == bank.pieces] or fitting
            found = [choice for choice in exact if not choice.is_mask] or exact[:1]
            if sum(choice.chosen for choice in found) > sum(choice.chosen for choice in links.get(bank, ())):
                links[bank] = tuple(found)
            for choice in found:
                met |= choice_bit[choice.index]
        return met

    for op in ops:
        selected = scores = result = after = 0
        for place, producer in enumerate(op.producers):
            flow = flows.get(producer)
            if flow is None:
                continue
            if (op.index, producer) in shared:
                result |= flow.result
            elif producer not in choice_bit:
                selected, scores, result = selected | flow.selected, scores | flow.scores, result | flow.result
            elif op.signature.inputs[place].is_arithmetic:
                scores |= choice_bit[producer]
            else:
                selected |= choice_bit[producer]
            after |= flow.after
        read = banks.read_by(op) if op.weights else 0
        if read:
            banks.note_order(op, read, after)
            for bank, bit in banks.members(read) if asked else ():
                numbers = [choice for choice in _members(numbered, asked) if choice.alternatives == bank.pieces]
                unseen_by = [choice for choice in numbers if not flows[choice.index].after & bit]
                by_number.setdefault(bank, tuple(unseen_by[:1]))
        if read and result:
            fed_by[read] |= result
        choice = choices.get(op.index)
        if scores and op.op in _COMPARISONS:
            # `scores >= kth_best`: a mask of as many as were best.
            best = next(_members(numbered, scores))
            choice = replace(best, index=op.index, module=op.module, is_mask=True)
        if choice is not None:
            choice_bit[op.index] = 1 << len(numbered)
            numbered.append(choice)
            flows[op.index] = _Flow(after=after | read)
            continue
        if op.op == "aten::_local_scalar_dense":
            asked |= selected
        if selected and is_adjacency(op):
            selected = scores = 0
        if selected and (read or result):
            meeting = selected, read, result
            if meeting not in known:
                known[meeting] = meet(*meeting)
            selected &= ~known[meeting]
        if op.weights and not read and banks.are_others(op.weights):
            # Weights that are not experts end a selection: their result is ordinary data.
            selected = scores = result = 0
        if selected or scores or result or after or read:
            flows[op.index] = _Flow(selected, scores, result | read, after | read)
    # The second matrix of an expert meets no selection where the first one's result goes straight into it.
    for read, result in fed_by.items():
        for bank, _ in banks.members(read):
            for other, _ in banks.members(result):
                if bank not in links and other in links and bank.is_tensor and bank.is_parallel_to(other):
                    links[bank] = links[other]
    # `experts[int(best)](x)`: which module is called depends on the choice, though no data flows from it.
    links = {bank: found for bank, found in by_number.items() if found and not bank.is_tensor} | links
    return {bank: found for bank, found in links.items() if bank not in banks.in_a_row}


def _fits(choice: Choice, bank: Bank) -> bool:
    """Whether the choice is among so many pieces: also where some alternatives have no weights, and where each expert
    chooses its tokens."""
    if choice.alternatives is None:
        return bank.is_tensor and choice.chosen < bank.pieces
    return bank.pieces <= choice.alternatives <= 2 * bank.pieces or (bank.is_tensor and choice.rows == bank.pieces)


def _members(items: list[T], bits: int) -> Iterator[T]:
    while bits:
        lowest = bits & -bits
        yield items[lowest.bit_length() - 1]
        bits ^= lowest
