"""What the model's code does with a value that it brings to the host."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from enum import Enum

from torchgauge.advise.code import Source, called

# Methods and functions that bring values to the host: `int(x)` does, `x.int()` does not.
_READ_METHODS = {"item", "tolist", "cpu", "numpy"}
_READ_FUNCTIONS = {"int", "float", "bool"}
# Calls that take lengths, and those that take the sizes of all dimensions: these can be neither padded nor capped.
_TAKE_LENGTHS = {
    "range", "arange", "zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty", "split",
    "repeat", "expand", "pad", "topk", "repeat_interleave", "pack_padded_sequence", "one_hot",
}  # fmt: skip
_TAKE_SHAPES = {"view", "reshape", "unflatten"}
# Of these, the functions that take a tensor first.
_TAKE_TENSOR_FIRST = {"split", "pad", "topk", "repeat_interleave", "pack_padded_sequence", "one_hot", "reshape"}
_TORCH_MODULES = {"torch", "F", "nn.functional", "torch.nn.functional"}
# Calls whose result is on the host where what they are given is.
_ON_HOST = _READ_METHODS | _READ_FUNCTIONS | {"len", "max", "min", "sum", "abs", "round", "any", "all", "ceil", "floor"}
# What is asked of tensors other than their values.
_OF_TENSORS = {"shape", "size", "dtype", "device", "dim", "ndim"}
# Classes of torch.distributions; unless `validate_args=False` is passed they look at the values of their arguments.
_DISTRIBUTIONS = {
    "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Dirichlet", "Exponential", "Gamma", "Geometric",
    "Gumbel", "HalfNormal", "Laplace", "LogNormal", "LowRankMultivariateNormal", "MixtureSameFamily", "Multinomial",
    "MultivariateNormal", "NegativeBinomial", "Normal", "OneHotCategorical", "Pareto", "Poisson", "RelaxedBernoulli",
    "RelaxedOneHotCategorical", "StudentT", "TransformedDistribution", "Uniform", "VonMises", "Weibull",
}  # fmt: skip
_OF_DISTRIBUTIONS = {"log_prob", "cdf", "icdf"}


# Statements that only report a value.
_REPORTS = {"print", "warn", "warning", "info", "debug", "error", "log"}


class HostUse(Enum):
    LENGTH = "how often a loop runs, or how long a tensor is"
    SHAPE = "the shape that a tensor is viewed as"
    WINDOW = "where a part of a tensor begins and ends"
    STOP = "whether a loop ends here"
    CHECK = "whether to raise or report an error"
    BRANCH = "which of two values a variable gets"
    ARGUMENT_CHECK = "whether the arguments of a distribution are valid"
    OPERAND = "a number that is computed with"
    REPORT = "a number that is printed or logged"
    RECORD = "a number that is only stored or returned"


def host_uses(source: Source, line: int) -> set[HostUse]:
    """What the values that a line brings to the host are for, in its function and in those of this file that call it;
    empty where that is not certain."""
    # `a if bool(x.any()) else b` gives one of two values.
    choices = [each for each in source.expressions(line) if isinstance(each, ast.IfExp)]
    asking = [choice for choice in choices if any(isinstance(each, ast.Call) for each in ast.walk(choice.test))]
    if asking:
        are_light = all(_are_light([choice.body, choice.orelse]) for choice in asking)
        return {HostUse.BRANCH} if are_light else set()
    statement = source.statement(line)
    function = source.enclosing(statement, ast.FunctionDef, ast.AsyncFunctionDef)
    if statement is None or function is None:
        return set()
    here = [each for each in source.expressions(line) if isinstance(each, ast.Call)]
    reads = [
        call
        for call in here
        if called(call) in (_READ_METHODS if isinstance(call.func, ast.Attribute) else _READ_FUNCTIONS)
    ]
    found: set[HostUse] = set()
    if isinstance(statement, ast.If | ast.While | ast.Assert):
        found = _uses_of_test(source, statement)
    elif not reads and any(_checks_arguments(source, call) for call in here):
        return {HostUse.ARGUMENT_CHECK}
    elif not reads:
        # The number stays inside what is called here, or is an index: what the line assigns is not the number.
        return _sizes_at(here, source, line)
    elif (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and called(statement.value) in _REPORTS
    ):
        found = {HostUse.REPORT}
    elif all(_is_recorded(source, call) for call in reads):
        found = {HostUse.RECORD}
    todo: list[tuple[ast.AST, ast.stmt | None, set[str]]] = [(function, statement, set())]
    seen: set[ast.AST] = set()
    while todo:
        inside, start, names = todo.pop()
        if inside in seen:
            continue
        seen.add(inside)
        values, on_host = _followed(source, inside, start, names), _followed(source, inside, start, names, _ON_HOST)
        # Attributes are read by the other methods of the file; a variable of the same name there is another one.
        kept = {name for name in values if name.startswith(".")}
        scopes = [(inside, values, on_host), *([(source.tree, kept, on_host & kept)] if kept else [])]
        for scope, reached, numbers in scopes:
            found |= _sizes(source, scope, reached, reads) | _other_uses(source, scope, numbers, reads)
        for each in ast.walk(inside):
            if isinstance(each, ast.Return) and each.value is not None and isinstance(inside, ast.FunctionDef):
                todo += _callers(source, inside.name, each.value, values)
    return found


def _other_uses(source: Source, scope: ast.AST, numbers: set[str], reads: list[ast.Call]) -> set[HostUse]:
    """What is tested and computed with numbers that are on the host."""
    found: set[HostUse] = set()
    for each in ast.walk(scope):
        if isinstance(each, ast.If | ast.While | ast.Assert) and _tests(source, each.test, numbers):
            # A list that a loop works off is needed for more than the test.
            loop: ast.AST | None = source.enclosing(each, ast.For, ast.While)
            calls = {node for node in ast.walk(loop or ast.Pass()) if isinstance(node, ast.Call)}
            calls -= set(ast.walk(each.test))
            is_needed = any(_reads(source, argument, numbers) for call in calls for argument in call.args)
            uses = _uses_of_test(source, each)
            uses = uses - {HostUse.STOP} if is_needed else uses
            # The value is read elsewhere, so that is the line to change, not the `if`.
            found |= {HostUse.OPERAND if use is HostUse.BRANCH else use for use in uses}
        elif isinstance(each, ast.BinOp) and any(
            side in reads or not numbers.isdisjoint(_named(side)) for side in (each.left, each.right)
        ):
            found.add(HostUse.OPERAND)
    return found


def _checks_arguments(source: Source, call: ast.Call) -> bool:
    """Whether a call makes a distribution of torch, also as `super().__init__(…)` of a class derived from one, or asks
    one for a probability."""
    if called(call) != "__init__":
        return called(call) in _DISTRIBUTIONS | _OF_DISTRIBUTIONS
    owner = source.enclosing(call, ast.ClassDef)
    bases = owner.bases if isinstance(owner, ast.ClassDef) else []
    return any(ast.unparse(base).rpartition(".")[2] in _DISTRIBUTIONS for base in bases)


def _followed(
    source: Source, function: ast.AST, start: ast.stmt | None, names: set[str], through: set[str] | None = None
) -> set[str]:
    """The variables and attributes of a function that the value reaches through assignments and loops; `through`: the
    calls that it may go through, all if None."""
    values = set(names)
    while True:
        known = len(values)
        for each in ast.walk(function):
            if isinstance(each, ast.Assign) and (each is start or _reads(source, each.value, values)):
                calls = {called(call) for call in ast.walk(each.value) if isinstance(call, ast.Call)}
                if each is start or through is None or calls <= through:
                    values |= {name for target in each.targets for name in _stored(target)}
            elif isinstance(each, ast.For | ast.comprehension) and (each is start or _reads(source, each.iter, values)):
                values |= set(_stored(each.target))
        if len(values) == known:
            return values


def _sizes_at(calls: list[ast.Call], source: Source, line: int) -> set[HostUse]:
    """What a tensor decides that a line takes as a number without asking for it: `torch.zeros(n)`, `x[i, : n[i]]`."""
    names = {called(call) for call in calls}
    if names & _TAKE_SHAPES:
        return {HostUse.SHAPE}
    slices = [each for each in source.expressions(line) if isinstance(each, ast.Slice)]
    ends = [end for each in slices for end in (each.lower, each.upper) if end is not None]
    is_bound = any(isinstance(each, ast.Name) for end in ends for each in ast.walk(end))
    return {HostUse.LENGTH} if names & _TAKE_LENGTHS or is_bound else set()


def _sizes(source: Source, whole: ast.AST, values: set[str], reads: list[ast.Call]) -> set[HostUse]:
    read_here = {around for call in reads for around in _around(source, call)}
    found: set[HostUse] = set()
    for each in ast.walk(whole):
        given: list[ast.expr] = []
        if isinstance(each, ast.Call) and called(each) in _TAKE_LENGTHS | _TAKE_SHAPES:
            takes_tensor = called(each) in _TAKE_TENSOR_FIRST and _is_function(each.func)
            given = [*each.args[takes_tensor:], *(keyword.value for keyword in each.keywords)]
        elif isinstance(each, ast.Slice):
            given = [end for end in (each.lower, each.upper, each.step) if end is not None]
        sizes = [size for size in given if size in read_here or _reads(source, size, values)]
        if sizes:
            is_shape = isinstance(each, ast.Call) and called(each) in _TAKE_SHAPES
            is_window = isinstance(each, ast.Slice) and {each.lower, each.upper} <= set(sizes)
            found.add(HostUse.WINDOW if is_window else HostUse.SHAPE if is_shape else HostUse.LENGTH)
    return found


def _is_function(function: ast.expr) -> bool:
    """Whether it is of a module, as `torch.split` and `F.pad`, and not a method of a tensor."""
    return isinstance(function, ast.Name) or (
        isinstance(function, ast.Attribute) and ast.unparse(function.value) in _TORCH_MODULES
    )


def _tests(source: Source, test: ast.expr, names: set[str]) -> bool:
    """Whether a condition looks at the value, and not at whether there is one."""
    if isinstance(test, ast.BoolOp):
        return any(_tests(source, each, names) for each in test.values)
    is_of_object = isinstance(test, ast.Compare) and any(isinstance(each, ast.Is | ast.IsNot) for each in test.ops)
    is_of_type = isinstance(test, ast.Call) and called(test) in ("isinstance", "hasattr", "is_tensor")
    return not is_of_object and not is_of_type and _reads(source, test, names)


def _uses_of_test(source: Source, statement: ast.If | ast.While | ast.Assert) -> set[HostUse]:
    if isinstance(statement, ast.Assert):
        return {HostUse.CHECK}
    if isinstance(statement, ast.While):
        return {HostUse.STOP}
    # `if bad: raise …`, also with a message first.
    last = statement.body[-1]
    is_report = isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and called(last.value) in _REPORTS
    if isinstance(last, ast.Raise) or is_report:
        return {HostUse.CHECK}
    is_in_loop = source.enclosing(source.parents.get(statement), ast.For, ast.While) is not None
    if isinstance(last, ast.Break | ast.Return) and is_in_loop:
        return {HostUse.STOP}
    # Whether both sides may run is certain only where they do nothing but give variables their values.
    sides = [*statement.body, *statement.orelse]
    targets = [target for each in sides if isinstance(each, ast.Assign) for target in each.targets]
    is_choice = all(isinstance(each, ast.Assign) for each in sides) and all(isinstance(t, ast.Name) for t in targets)
    return {HostUse.BRANCH} if is_choice and _are_light(sides) else set()


def _are_light(sides: Sequence[ast.AST]) -> bool:
    """Whether both sides can be computed: no layers, which may take longer than the wait, and no parts of tensors,
    which may have another shape."""
    nodes = [node for each in sides for node in ast.walk(each)]
    takes_part = any(isinstance(node, ast.Subscript) and _takes_part(node) for node in nodes)
    return not takes_part and not any(isinstance(node, ast.Call) and _may_be_layer(node.func) for node in nodes)


def _takes_part(node: ast.Subscript) -> bool:
    """Whether an index does more than to add dimensions, as `mask[..., None]` does."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    is_new = [isinstance(part, ast.Constant) and part.value in (None, ...) for part in parts]
    is_all = [isinstance(part, ast.Slice) and ast.unparse(part) == ":" for part in parts]
    return not all(map(max, zip(is_new, is_all, strict=True)))


def _may_be_layer(function: ast.expr) -> bool:
    """`self.block(…)`, `layer(…)`; methods of tensors and functions of torch are not."""
    if isinstance(function, ast.Name):
        return function.id not in _ON_HOST
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id == "self"


def _is_recorded(source: Source, call: ast.Call) -> bool:
    """Whether the value that a call brings to the host is only stored in an attribute or a container, given to a call
    whose result nothing takes, as `losses.append(…)`, or returned."""
    statement = source.enclosing(call, ast.stmt)
    if any(
        isinstance(each, ast.BinOp | ast.Compare | ast.BoolOp | ast.comprehension) for each in _around(source, call)
    ):
        return False
    if isinstance(statement, ast.Assign):
        are_kept = all(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)
        # Not an index of what is assigned to.
        return (
            are_kept
            and call in ast.walk(statement.value)
            and not any(_is_taken_from(source, target, statement) for target in statement.targets)
        )
    taking = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(taking, ast.Call) and isinstance(taking.func, ast.Attribute):
        return not _is_taken_from(source, taking.func.value, statement)
    return isinstance(statement, ast.Expr | ast.Return)


def _is_taken_from(source: Source, stored: ast.AST, statement: ast.stmt | None) -> bool:
    """Whether the function takes values out of the variable or attribute that a statement stores one in, as the path of
    a search is read at its end."""
    while isinstance(stored, ast.Subscript):
        stored = stored.value
    function = source.enclosing(statement, ast.FunctionDef, ast.AsyncFunctionDef)
    if function is None or not isinstance(stored, ast.Name | ast.Attribute):
        return False
    text = source.text(stored)
    for each in ast.walk(function):
        if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Load) and source.text(each) == text:
            around = source.parents[each]
            is_taken = isinstance(around, ast.Subscript) and isinstance(around.ctx, ast.Load) and around.value is each
            if is_taken or isinstance(around, ast.For | ast.comprehension | ast.BinOp | ast.Compare):
                return True
    return False


def _callers(
    source: Source, name: str, returned: ast.expr, values: set[str]
) -> Iterator[tuple[ast.AST, ast.stmt | None, set[str]]]:
    """The functions of this file that assign what the function `name` returns, and the variables that get the value."""
    for call in (each for each in ast.walk(source.tree) if isinstance(each, ast.Call) and called(each) == name):
        assigned, function = source.parents.get(call), source.enclosing(call, ast.FunctionDef, ast.AsyncFunctionDef)
        if not isinstance(assigned, ast.Assign) or function is None:
            continue
        target = assigned.targets[0]
        pairs: list[tuple[ast.AST, ast.AST]] = [(target, returned)]
        if isinstance(target, ast.Tuple) and isinstance(returned, ast.Tuple) and len(target.elts) == len(returned.elts):
            pairs = list(zip(target.elts, returned.elts, strict=True))
        names = {name for to, value in pairs if _reads(source, value, values) for name in _stored(to)}
        if names:
            yield function, None, names


def _reads(source: Source, node: ast.AST, names: set[str]) -> bool:
    """Whether it has one of the variables or attributes in it, other than for its shape or type."""
    return any(
        not names.isdisjoint(_named(each))
        and not (isinstance(around := source.parents.get(each), ast.Attribute) and around.attr in _OF_TENSORS)
        for each in ast.walk(node)
    )


def _around(source: Source, node: ast.AST) -> Iterator[ast.AST]:
    while not isinstance(node, ast.stmt) and node in source.parents:
        yield node
        node = source.parents[node]


def _named(node: ast.AST) -> Iterator[str]:
    """The name of a variable, or of an attribute of any object with a dot before it."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield f".{node.attr}"


def _stored(target: ast.AST) -> Iterator[str]:
    """What an assignment binds: variables, and attributes."""
    for each in ast.walk(target):
        if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Store):
            yield from _named(each)
