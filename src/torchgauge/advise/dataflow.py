"""Which ops depend on the model's inputs, which compute the same thing, and which dimensions stay the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from torchgauge.advise.flow import Flow
from torchgauge.facts import FREE, Capture, OpRecord, TensorSpec, contiguous_stride

RANDOM = "nondeterministic_seeded"
SPLITS = frozenset({"aten::split", "aten::split_with_sizes", "aten::chunk", "aten::unbind"})
# Ops that hand a value of a tensor to Python.
VALUE_READS = frozenset({"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal"})
# Ops whose output size depends on values. Python may ask for that size.
SIZED_BY_VALUE = frozenset(
    {
        "aten::nonzero", "aten::argwhere", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim",
        "aten::unique_consecutive", "aten::bincount",
    }
)  # fmt: skip
# Ops whose result depends on their arguments alone, without tensors.
_FILLED = frozenset(
    f"aten::{name}" for name in ("arange", "eye", "full", "linspace", "ones", "tril_indices", "triu_indices", "zeros")
)
# Arguments that a number of the code's own goes into: an index or a length, an operand, an exponent.
_NUMBERS = ("index", "start", "end", "length", "other", "exponent", "value")
# Types of masks: torch takes bytes as one too.
_MASKS = frozenset({"bool", "uint8"})


class Dataflow:
    """The data flow of the forward pass; empty for files of versions that did not record the readers of inputs.
    `reads_state`: whether the code of an op reads what other calls change."""

    def __init__(
        self, capture: Capture, ops: Sequence[OpRecord], flow: Flow, reads_state: Callable[[OpRecord], bool]
    ) -> None:
        self._capture, self._ops, self._flow, self._reads_state = capture, ops, flow, reads_state
        self._by_index = {op.index: op for op in ops}
        self._trained = {param.name for param in capture.params if param.trainable}
        self._numel_of = {param.name: param.spec.numel for param in capture.params}

    @cached_property
    def input_reads(self) -> Mapping[tuple[int, int], int]:
        """By op and place among its inputs, the number of the model's input that it reads there."""
        reads = {}
        for number, given in enumerate(self._capture.inputs):
            for at in given.readers or ():
                reads[at[0], at[1]] = number
        return reads

    @cached_property
    def _ambiguous_reads(self) -> frozenset[tuple[int, int]]:
        """Reads of a tensor that was given for several inputs: another call has different ones."""
        places = Counter((at[0], at[1]) for given in self._capture.inputs for at in given.readers or ())
        return frozenset(place for place, count in places.items() if count > 1)

    @property
    def is_known(self) -> bool:
        """Not where arguments were given and no tensor was found in them."""
        inputs = self._capture.inputs
        is_found = bool(inputs) or not self._takes_arguments
        return bool(self._flow.steps) and is_found and all(given.readers is not None for given in inputs)

    @cached_property
    def _takes_arguments(self) -> bool:
        root = next(iter(self._capture.modules), None)
        return root is not None and bool(root.inputs)

    @cached_property
    def constants(self) -> frozenset[int]:
        """Ops whose results are the same in every call: made from shapes, constants and, in inference, parameters."""
        if not self.is_known:
            return frozenset()
        reads = self._capture.run.host_reads
        if reads:
            # Numbers that the code made itself, and reads again, say nothing about the inputs.
            own = self._constants(frozenset())
            reads = tuple(r for r in reads if r.made_by is None or not own.issuperset(r.made_by))
        found, results = self._constants(frozenset(read.module for read in reads)), self._flow.results
        # A model that was given something, and whose results are all constant, reads what it was given in another way.
        is_missed = bool(results) and found.issuperset(results) and self._takes_arguments
        return frozenset() if is_missed else found

    @cached_property
    def asked_for(self) -> frozenset[int]:
        """Ops that lead to numbers for Python alone, as those that check the arguments of a distribution."""
        needed: set[int | None] = {*self._flow.results, *self._capture.run.kept_ops}
        asked, found = set[int | None](), set[int]()
        for op in reversed(self._ops):
            if op.op in VALUE_READS or (op.index in asked and op.index not in needed):
                found.add(op.index)
                asked.update(op.producers)
            else:
                needed.update(op.producers)
        return frozenset(found)

    @cached_property
    def reaching(self) -> frozenset[int]:
        """Ops that a result of the model depends on."""
        found: set[int | None] = set(self._flow.results)
        for op in reversed(self._ops):
            if op.index in found:
                found.update(op.producers)
        return frozenset(index for index in found if index is not None)

    def _constants(self, readers: frozenset[str]) -> frozenset[int]:
        """The same, where the modules `readers` bring values of tensors to the host: such a module may use them in
        whatever it computes next, as it may the number of rows that values choose. Arrays of numpy have no producer."""
        held, given_values, picked = set[int](), set(readers), set[str]()
        # Tensors that the code makes of arrays and numbers, of which nothing says where they come from.
        has_arrays = bool(readers) or bool(self._capture.run.number_arguments)
        for op in self._ops:
            if (op.op in VALUE_READS or self.is_sized_by_value(op)) and not self._reads_constants_alone(op, held):
                given_values.add(op.module)
            is_from_values = op.module in given_values and (not op.weights or _takes_number(op))
            if is_from_values and op.status == FREE:  # part of a parameter or buffer, which later ops read by its name
                picked.update(op.weights)
            sizes = {spec.numel for spec in op.signature.inputs}
            is_from_values |= any(self._numel_of.get(name) not in sizes for name in picked.intersection(op.weights))
            is_from_values = is_from_values or (has_arrays and self._reads_unnamed(op))
            if RANDOM in op.signature.tags or is_from_values:
                continue
            if (takes_shape_alone(op) or self._reads_constants_alone(op, held)) and not self._reads_state(op):
                held.add(op.index)
        return frozenset(held)

    def _reads_unnamed(self, op: OpRecord) -> bool:
        """Whether it reads a tensor that is neither made by an op nor a parameter, buffer or input."""
        sizes = [self._numel_of.get(name) for name in op.weights]
        given = zip(op.signature.inputs, op.producers, strict=False)
        unnamed = [
            spec.numel
            for at, (spec, source) in enumerate(given)
            if source is None and (op.index, at) not in self.input_reads
        ]
        return len(unnamed) > len(sizes) or any(numel not in sizes for numel in unnamed if len(unnamed) == len(sizes))

    def _reads_constants_alone(self, op: OpRecord, held: set[int]) -> bool:
        if self._capture.run.train and not self._trained.isdisjoint(op.weights):
            return False
        if not self._updated.isdisjoint(op.weights):
            return False
        return all(
            source in held if source is not None else (op.index, place) not in self.input_reads
            for place, source in enumerate(op.producers)
        )

    @cached_property
    def _updated(self) -> frozenset[str]:
        """Parameters and buffers that the forward pass writes to."""
        return frozenset(
            name
            for op in self._ops
            if op.op.endswith("_")
            and op.producers
            and op.producers[0] is None
            and (op.index, 0) not in self.input_reads
            for name in op.weights
        )

    def is_constant_input(self, op: OpRecord, place: int) -> bool:
        source = op.producers[place]
        return source in self.constants if source is not None else (op.index, place) not in self.input_reads

    def is_mask(self, op: OpRecord, place: int) -> bool:
        """Whether an index is a mask. A capture on fake tensors has the positions in the mask in its place, with what
        made the mask as their producer: an op, an input of the model, or nothing for a buffer of the module."""
        read = op.signature.inputs[place]
        if read.dtype in _MASKS:
            return True
        base = self.base(op, place)
        if base is not None:
            return base[1].dtype in _MASKS
        return op.producers[place] is None and len(read.shape) == 1 and op.module in self._with_masks

    def is_sized_by_value(self, op: OpRecord) -> bool:
        """Whether values decide how many rows the result has, as in `x[mask]`."""
        is_selection = op.op == "aten::index" and not op.weights
        places = range(1, len(op.signature.inputs)) if is_selection else ()
        return op.op in SIZED_BY_VALUE or any(self.is_mask(op, at) for at in places)

    @cached_property
    def _with_masks(self) -> frozenset[str]:
        """Modules that have a mask among their buffers."""
        params = self._capture.params
        return frozenset(param.module for param in params if param.is_buffer and param.spec.dtype in _MASKS)

    def reads_whole(self, op: OpRecord, place: int) -> object | None:
        """A key for the tensor that is read as a whole at this place: the op that made it, or the model's input. None
        where a part of it is read, or its origin is unknown. Two reads of the same tensor have equal keys."""
        base, read = self.base(op, place), op.signature.inputs[place]
        # Of complex numbers the real parts are as many elements, of another type.
        if base is None or base[1].numel != read.distinct_numel or base[1].dtype != read.dtype:
            return None
        return base[0]

    def reads_part(self, op: OpRecord, place: int) -> object | None:
        """The tensor of which a part is read there."""
        base = self.base(op, place)
        if base is None or base[1].numel < 2 * op.signature.inputs[place].numel:
            return None
        return base[0]

    def base(self, op: OpRecord, place: int) -> tuple[object, TensorSpec] | None:
        source = op.producers[place]
        if source is None:
            number = self.input_reads.get((op.index, place))
            return None if number is None else (("input", number), self._capture.inputs[number].spec)
        made = self._by_index.get(source)
        if made is None:
            return None
        if len(made.signature.outputs) == 1:
            return source, self._written.get(source, made.signature.outputs[0])
        # Which of several outputs is read shows in its type and size: values and indices, a norm and its statistics.
        read = op.signature.inputs[place]
        fitting = [
            (number, spec)
            for number, spec in enumerate(made.signature.outputs)
            if spec.dtype == read.dtype and spec.numel >= read.numel
        ]
        return ((source, fitting[0][0]), fitting[0][1]) if len(fitting) == 1 else None

    @cached_property
    def _written(self) -> Mapping[int, TensorSpec]:
        """By op in place, the whole tensor that it wrote to: its own result may be a part of that."""
        found: dict[int, TensorSpec] = {}
        for op in self._ops:
            if not op.op.endswith("_") or not op.producers or len(op.signature.outputs) != 1:
                continue
            source, number = op.producers[0], self.input_reads.get((op.index, 0))
            made = None if source is None else self._by_index.get(source)
            before = None if number is None else self._capture.inputs[number].spec
            if made is not None and len(made.signature.outputs) == 1:
                before = found.get(made.index, made.signature.outputs[0])
            own = op.signature.outputs[0]
            found[op.index] = before if before is not None and before.numel > own.numel else own
        return found

    @property
    def repeated(self) -> Sequence[OpRecord]:
        """Ops that compute once more what an earlier op computed from the same tensors."""
        return [self._by_index[index] for index in self.first_runs]

    @cached_property
    def first_runs(self) -> Mapping[int, int]:
        """By each of these ops, the first one that computed it."""
        first: dict[object, int] = {}
        number: dict[int, int] = {}
        found: dict[int, int] = {}
        for op in self._flow.steps if self.is_known else ():
            key = self._key(op, number)
            if key is None:
                continue
            if key in first:
                found[op.index] = first[key]
            number[op.index] = first.setdefault(key, op.index)
        return found

    def _key(self, op: OpRecord, number: Mapping[int, int]) -> object | None:
        """Equal for equal calls on equal tensors; None where that is unknown."""
        signature = op.signature
        # Of the several results of an op those of recurrent layers are looked at: sequence and states.
        is_single = len(signature.outputs) == 1 or op.category == "recurrent"
        if op.op in _FILLED:
            return self.call_number(op)
        if op.op.endswith("_") or RANDOM in signature.tags or op.category == "allocation" or not is_single:
            return None
        parts: list[object] = []
        split = self._split_before(op) if op.op in ("aten::cat", "aten::stack") else None
        if split is not None:
            base = self._tensor(split, 0)
            whole = number.get(base, base) if isinstance(base, int) else base
            return self.call_number(op), (self.call_number(split), whole), op.weights
        for place in range(len(signature.inputs)):
            source = op.producers[place]
            if (op.index, place) in self._ambiguous_reads:
                return None
            if source is None and (op.index, place) not in self.input_reads:
                # A constant without a name, or a part of a parameter, and nothing says which.
                if not any(signature.inputs[place].numel == self._numel_of.get(name) for name in op.weights):
                    return None
                parts.append(None)
                continue
            # Indices of zeros stand for data that was not given.
            if self._is_zero(source) and signature.inputs[place].is_floating:
                parts.append("zeros")
                continue
            whole = self.reads_whole(op, place)
            if whole is None:
                return None
            parts.append(number.get(whole, whole) if isinstance(whole, int) else whole)
        return self.call_number(op), tuple(parts), op.weights

    def _split_before(self, joined: OpRecord) -> OpRecord | None:
        """The view op that splits one tensor into the parts which are joined in another way: heads as samples."""
        signature = joined.signature
        bases = {self._tensor(joined, place) for place in range(len(signature.inputs))}
        if len(signature.inputs) < 2 or len(bases) != 1 or None in bases:
            return None
        splits = [op for op in self._splits.get(bases.pop(), ()) if op.index < joined.index]
        is_whole = bool(splits) and tuple(splits[-1].signature.outputs) == tuple(signature.inputs)
        return splits[-1] if is_whole else None

    def _tensor(self, op: OpRecord, place: int) -> object | None:
        """The op that made what is read there, or the model's input; None for others."""
        number = self.input_reads.get((op.index, place))
        return ("input", number) if number is not None else op.producers[place]

    @cached_property
    def _splits(self) -> Mapping[object, list[OpRecord]]:
        """By the tensor that they split."""
        found: dict[object, list[OpRecord]] = {}
        for op in self._ops:
            if op.op in SPLITS and op.producers:
                found.setdefault(self._tensor(op, 0), []).append(op)
        return found

    def _is_zero(self, index: int | None) -> bool:
        """Whether an op made a tensor of zeros, all of its memory: any part of it is zero, as a first state is."""
        op = None if index is None else self._by_index.get(index)
        if op is not None and op.op == "aten::zero_" and op.producers[0] is not None:
            filled = self._by_index.get(op.producers[0])
            is_known = filled is not None and len(filled.signature.outputs) == 1 and op.index in self._written
            return is_known and self._written[op.index].numel == op.signature.outputs[0].numel
        return op is not None and op.op in ("aten::zeros", "aten::zeros_like", "aten::new_zeros")

    def call_number(self, op: OpRecord) -> int:
        """Equal for equal calls on tensors of equal shapes."""
        return self._call_numbers[id(op.signature)]

    @cached_property
    def _call_numbers(self) -> Mapping[int, int]:
        """By signature, which a run on fake tensors shares among equal calls, and a real one does not."""
        known: dict[object, int] = {}
        found: dict[int, int] = {}
        for op in self._ops:
            call = op.signature
            if id(call) not in found:
                key = (call.op, call.overload, call.inputs, call.outputs, repr(sorted(call.attributes.items())))
                found[id(call)] = known.setdefault(key, len(known))
        return found

    def ancestors(self, op: OpRecord, most: int, until: OpRecord | None = None) -> Iterator[OpRecord]:
        """The ops that it depends on, nearest first, at most `most`; stops at `until`."""
        seen, todo = {op.index}, [op]
        while todo and len(seen) <= most:
            near = todo.pop(0)
            if near is until:
                continue
            for source in self._flow.sources(near):
                if source.index not in seen:
                    seen.add(source.index)
                    todo.append(source)
                    yield source


def takes_shape_alone(op: OpRecord) -> bool:
    """Of the tensor that it is given, or its type or device: not the values."""
    return op.op.endswith("_like") or "::new_" in op.op


def _takes_number(op: OpRecord) -> bool:
    """Whether it takes a number that a value brought to the host may be: `self.alphas[t]`, `self.scale * t.item()`. A
    slice of everything takes none."""
    is_whole = op.op == "aten::slice" and op.signature.inputs[0].shape == op.signature.outputs[0].shape
    return not is_whole and any(op.signature.attributes.get(name) is not None for name in _NUMBERS)


def same_axis(axis: int, of: TensorSpec, other: TensorSpec) -> int | None:
    """The dimension of `other` that is dimension `axis` of `of`, by its step in memory, where both are views of one
    memory; None where it was split, joined with others, or is not known."""
    steps, others = ((spec.stride or contiguous_stride(spec.shape)) for spec in (of, other))
    found = [at for at, step in enumerate(others) if (step, other.shape[at]) == (steps[axis], of.shape[axis])]
    return found[0] if len(found) == 1 and of.shape[axis] > 1 else None
