"""Activation functions that a model computes in several pointwise ops, found by what they compute.

The ops between a tensor and a result are run on a grid of numbers and compared with the functions that torch has one
kernel for, so that `x * relu6(x + 3) / 6`, `x * clamp(x / 6 + 0.5, 0, 1)` and any other way to write it are one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from torchgauge.advise.dataflow import Dataflow
from torchgauge.advise.flow import Flow
from torchgauge.facts import OpRecord

# Where functions are compared, all of them finite: between the kinks at -3, 0, 3 and 6, on both sides of each.
_GRID = tuple(-8.03 + 0.37 * step for step in range(44))
# Constants are often written with six digits; the two forms of GELU are 5e-4 apart.
_TOLERANCE = 2e-5
_MOST_OPS = 16


@dataclass(frozen=True, slots=True)
class Function:
    """A function of one number that torch has a kernel for: its name in torch.nn.functional with the arguments behind
    the tensor, and the module. `value` computes it; `other_kernel` is the op, if it has another name.
    """

    name: str
    module: str
    value: Callable[[float], float]
    arguments: str = ""
    other_kernel: str = ""

    @property
    def kernel(self) -> str:
        return self.other_kernel or self.name

    def call(self, tensor: str) -> str:
        return f"{self.name}({tensor}{self.arguments})"


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def _gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _elu(x: float, alpha: float = 1.0) -> float:
    return x if x > 0 else alpha * math.expm1(x)


FUNCTIONS = (
    Function("gelu", "GELU('none')", lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))), ", approximate='none'"),
    Function("gelu", "GELU('tanh')", _gelu_tanh, ", approximate='tanh'", "gelu_tanh"),
    Function("silu", "SiLU()", lambda x: x * _sigmoid(x)),
    Function("mish", "Mish()", lambda x: x * math.tanh(_softplus(x))),
    Function("hardswish", "Hardswish()", lambda x: x * min(max(x + 3, 0), 6) / 6),
    Function("hardsigmoid", "Hardsigmoid()", lambda x: min(max(x + 3, 0), 6) / 6),
    Function("softplus", "Softplus()", _softplus),
    Function("logsigmoid", "LogSigmoid()", lambda x: -_softplus(-x), "", "log_sigmoid_forward"),
    Function("elu", "ELU()", _elu),
    Function("selu", "SELU()", lambda x: 1.0507009873554805 * _elu(x, 1.6732632423543772)),
    Function("leaky_relu", "LeakyReLU()", lambda x: max(x, 0.01 * x)),
    Function("leaky_relu", "LeakyReLU(0.2)", lambda x: max(x, 0.2 * x), ", 0.2"),
    Function("relu6", "ReLU6()", lambda x: min(max(x, 0), 6)),
    Function("relu", "ReLU()", lambda x: max(x, 0)),
    Function("sigmoid", "Sigmoid()", _sigmoid),
    Function("tanh", "Tanh()", math.tanh),
)

# By op, its result from its operands; the second is the attribute `other` where it is a number.
_UNARY: Mapping[str, Callable[[float], float]] = {
    "neg": lambda x: -x, "abs": abs, "exp": math.exp, "expm1": math.expm1, "log": math.log, "log1p": math.log1p,
    "sqrt": math.sqrt, "rsqrt": lambda x: 1 / math.sqrt(x), "reciprocal": lambda x: 1 / x, "square": lambda x: x * x,
    "sigmoid": _sigmoid, "tanh": math.tanh, "erf": math.erf, "erfc": math.erfc, "relu": lambda x: max(x, 0.0),
    "log_sigmoid_forward": lambda x: -_softplus(-x), "_to_copy": float,
}  # fmt: skip
_BINARY: Mapping[str, Callable[[float, float], float]] = {
    "mul": lambda x, y: x * y, "div": lambda x, y: x / y, "maximum": max, "minimum": min,
    "gt": lambda x, y: float(x > y), "ge": lambda x, y: float(x >= y), "lt": lambda x, y: float(x < y),
    "le": lambda x, y: float(x <= y),
}  # fmt: skip
_SUMS = {"add": 1, "sub": -1, "rsub": -1}
# Allocations by the value that fills them; None: an argument.
_FILLED = {"zeros_like": 0.0, "ones_like": 1.0, "zeros": 0.0, "ones": 1.0, "scalar_tensor": None, "full_like": None}
# A number that was made as a tensor has no known value; those that the formulas of GELU need are tried.
_CONSTANTS = (math.sqrt(2 / math.pi), math.sqrt(2), math.sqrt(0.5))
_MOST_UNKNOWN = 2
_FROM_NUMBERS = "aten::lift_fresh"  # of torch.tensor
_LINEAR = {"neg", "mul", "div", "_to_copy", *_SUMS}

Values = list[float]


@dataclass(frozen=True, slots=True)
class Written:
    """Ops that compute `function` of one tensor, in order; nothing else reads what they make but the last. `numbers`
    make the constants in it, as the root of a tensor."""

    function: Function
    ops: tuple[OpRecord, ...]
    numbers: tuple[OpRecord, ...] = ()


def written_activations(flow: Flow, dataflow: Dataflow) -> list[Written]:
    """The longest ones, in the order of their ops."""
    found: list[Written] = []
    covered: set[int] = set()
    known: dict[object, Function | None] = {}
    for last in reversed(flow.steps):
        if last.index in covered or not _is_pointwise(last):
            continue
        longest = None
        for cone in _cones(flow, dataflow, last, covered):
            # A product of sums is none of the functions; a cast behind one stays.
            if _name(last) == "_to_copy" or all(_name(op) in _LINEAR for op in cone.ops):
                continue
            key = cone.key()
            if key not in known:
                known[key] = cone.function()
            function = known[key]
            # The function itself and ops that change nothing, as the addition of zeros: it is called already.
            if function is not None and function.kernel not in map(_name, cone.ops):
                made = (op.producers[place] for op in cone.ops for place in range(len(op.producers)))
                numbers = [op for index in made if index is not None and (op := flow.op(index)) not in cone.ops]
                own = [op for op in numbers if op is not None and op.signature.outputs[0].numel == 1]
                before = [source for op in own for source in dataflow.ancestors(op, _MOST_OPS)]
                longest = Written(function, tuple(cone.ops), (*own, *before))
        if longest is not None:
            covered |= {op.index for op in longest.ops}
            found.append(longest)
    return found[::-1]


def _name(op: OpRecord) -> str:
    return op.op.removeprefix("aten::").rstrip("_")


def _is_pointwise(op: OpRecord) -> bool:
    """Whether it is known what an op computes from the numbers at one place of its inputs."""
    name, given = _name(op), op.signature.attributes
    if len(op.signature.outputs) != 1 and name != "log_sigmoid_forward":
        return False
    if name == "pow":
        return isinstance(given.get("exponent"), int | float)
    is_plain = not given.get("rounding_mode") and op.signature.outputs[0].dtype != "complex64"
    is_special = name in ("hardtanh", "clamp", "clamp_min", "clamp_max", "where", "masked_fill", "softplus", "silu")
    return is_plain and not op.weights and (name in _UNARY or name in _BINARY or name in _SUMS or is_special)


@dataclass(slots=True)
class _Cone:
    """Ops that lead from tensors to one result: `ops` in order, and by op and place what is read from outside."""

    ops: list[OpRecord]
    tensor: set[tuple[int, int]]
    constants: dict[tuple[int, int], float | None]

    def key(self) -> object:
        """Equal for cones that compute the same thing in the same way."""
        number = {op.index: at for at, op in enumerate(self.ops)}
        return tuple(
            (
                op.op,
                repr(sorted(op.signature.attributes.items())),
                tuple(
                    number.get(source, -1)
                    if source is not None and source in number
                    else self.constants.get((op.index, place), "tensor")
                    for place, source in enumerate(op.producers)
                ),
            )
            for op in self.ops
        )

    def function(self) -> Function | None:
        """The one that these ops compute; None where it is none of them."""
        unknown = [place for place, value in self.constants.items() if value is None]
        if len(unknown) > _MOST_UNKNOWN:
            return None
        for tried in product(_CONSTANTS, repeat=len(unknown)):
            values = self._run({**self.constants, **dict(zip(unknown, tried, strict=True))})
            for function in FUNCTIONS if values else ():
                wanted = map(function.value, _GRID)
                if all(
                    abs(got - want) <= _TOLERANCE * (1 + abs(want)) for got, want in zip(values, wanted, strict=True)
                ):
                    return function
        return None

    def _run(self, constants: Mapping[tuple[int, int], float | None]) -> Values:
        """At the points of the grid; empty where a number has no result."""
        made: dict[int, Values] = {}
        for op in self.ops:
            operands: list[Values] = []
            for place, source in enumerate(op.producers):
                constant = constants.get((op.index, place))
                if constant is not None:
                    operands.append([constant] * len(_GRID))
                elif source in made and (op.index, place) not in self.tensor:
                    operands.append(made[source])
                else:
                    operands.append(list(_GRID))
            try:
                made[op.index] = [_value(op, list(numbers)) for numbers in zip(*operands, strict=True)]
            except (ValueError, ZeroDivisionError, OverflowError, IndexError, TypeError):
                return []
        return made[self.ops[-1].index]


def _value(op: OpRecord, operands: list[float]) -> float:
    """What an op makes of the numbers at one place. `x * x` lists its one tensor once."""
    name, given = _name(op), op.signature.attributes
    if name in _SUMS:
        other = given.get("other", operands[-1])
        term = _SUMS[name] * float(given.get("alpha", 1)) * float(other)
        return float(other) - float(given.get("alpha", 1)) * operands[0] if name == "rsub" else operands[0] + term
    if name in _UNARY:
        return _UNARY[name](operands[0])
    if name in _BINARY:
        return _BINARY[name](operands[0], float(given.get("other", operands[-1])))
    if name == "pow":
        return float(operands[0] ** given["exponent"])
    if name == "where":
        return operands[1] if operands[0] else operands[2]
    if name == "masked_fill":
        return float(given["value"]) if operands[1] else operands[0]
    if name == "silu":
        return operands[0] * _sigmoid(operands[0])
    if name == "softplus":
        beta = float(given.get("beta", 1))
        return _softplus(operands[0] * beta) / beta
    if len(operands) > 1:
        raise TypeError("bounds that are tensors")
    low = given.get("min_val", given.get("min", -math.inf))
    high = given.get("max_val", given.get("max", math.inf))
    return min(max(operands[0], -math.inf if low is None else low), math.inf if high is None else high)


def _cones(flow: Flow, dataflow: Dataflow, last: OpRecord, covered: set[int]) -> Iterator[_Cone]:
    """Back from one op, op by op, the cones of two and more whose outside reads are of one tensor and of numbers."""
    members, size = {last.index: last}, last.signature.outputs[0].numel
    for _ in range(_MOST_OPS):
        outside = [
            (op, place, source)
            for op in members.values()
            for place, source in enumerate(op.producers)
            if source is None or source not in members
        ]
        cone = _closed(flow, dataflow, sorted(members.values(), key=lambda op: op.index), outside, size)
        if cone is not None and len(members) > 1:
            yield cone
        near = [flow.op(source) for _, _, source in outside if source is not None]
        inner = [op for op in near if op is not None and _joins(flow, op, members, covered, size)]
        if not inner:
            return
        nearest = max(inner, key=lambda op: op.index)
        members[nearest.index] = nearest


def _joins(flow: Flow, op: OpRecord, members: Mapping[int, OpRecord], covered: set[int], size: int) -> bool:
    users = flow.users(op)
    is_free = op.index not in covered and op.index not in members and not flow.is_result(op)
    if not is_free or not _is_pointwise(op) or op.signature.outputs[0].numel != size:
        return False
    if not all(user.index in members or flow.is_dead(user) for user in users):
        return False
    # A transposed view of it puts other numbers at a place.
    made = op.signature.outputs[0]
    return all(
        (spec.shape, spec.stride) == (made.shape, made.stride)
        for user in users
        for source, spec in zip(user.producers, user.signature.inputs, strict=False)
        if source == op.index
    )


def _closed(
    flow: Flow,
    dataflow: Dataflow,
    ops: Sequence[OpRecord],
    outside: Sequence[tuple[OpRecord, int, int | None]],
    size: int,
) -> _Cone | None:
    """None where more than one tensor is read from outside. Parts of a tensor may be different ones."""
    constants: dict[tuple[int, int], float | None] = {}
    tensors: list[tuple[OpRecord, int]] = []
    for op, place, source in outside:
        spec, made = op.signature.inputs[place], None if source is None else flow.op(source)
        filled = made is not None and made.op.removeprefix("aten::") in _FILLED
        if made is not None and filled:
            own = _FILLED[made.op.removeprefix("aten::")]
            given = made.signature.attributes
            constants[op.index, place] = own if own is not None else given.get("s", given.get("fill_value"))
        elif spec.numel == 1 and size > 1:
            # A tensor that the code makes of numbers, not one that is kept or learned.
            near = () if made is None else (made, *dataflow.ancestors(made, _MOST_OPS))
            is_kept = any(each.weights or (None in each.producers and each.op != _FROM_NUMBERS) for each in near)
            if not near or is_kept or not dataflow.is_constant_input(op, place):
                return None
            constants[op.index, place] = None
        elif spec.numel != size or not spec.is_floating:
            return None
        else:
            tensors.append((op, place))
    wholes = {dataflow.reads_whole(op, place) for op, place in tensors}
    specs = {op.signature.inputs[place] for op, place in tensors}
    is_one = len(tensors) == 1 or (len(wholes) == 1 and None not in wholes and len(specs) == 1)
    if not is_one:
        return None
    return _Cone(list(ops), {(op.index, place) for op, place in tensors}, constants)
