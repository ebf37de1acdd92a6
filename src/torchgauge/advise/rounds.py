"""What the code of a loop says about its rounds: one run may have rounds that need nothing of each other, or parts of
equal sizes, only because of its values."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence

from torchgauge.advise.code import Source, called

# Methods of containers that put something in.
_FILL = ("append", "extend", "insert", "update")
_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)


def may_need_each_other(source: Source, line: int, modules: Sequence[str]) -> bool:
    """Whether a round of the loop around a line may end it, read a variable that an earlier round made of what the line
    computes, or take a part whose size is the round's own: `x[i, : lengths[i]]`. `modules`: the names on the path of
    the module that the line calls, if it calls one."""
    statement = source.statement(line)
    if statement is None:
        return False
    inside = [node for node in ast.walk(statement) if isinstance(node, _COMPREHENSIONS)]
    loop = source.enclosing(statement, ast.For, ast.While, ast.FunctionDef)
    if inside or not isinstance(loop, ast.For | ast.While):
        own = _names(each.target for node in inside for each in node.generators)
        return _takes_own_sizes(inside, {name: {name} for name in own})
    nodes = [node for each in loop.body for node in ast.walk(each)]
    if any(isinstance(node, ast.Break | ast.Return) for node in nodes):
        return True
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call) and called(node) in modules]
    call = max(calls, key=lambda each: modules.index(called(each)), default=None)
    computed = call or getattr(statement, "value", None) or statement
    given = [*call.args, *(each.value for each in call.keywords)] if call else [computed]
    assigned = [(set(_names(targets)), value) for targets, value in _assignments(nodes)]
    needed, made = set(_names(given, ast.Load)), set[str]()
    for _ in assigned:  # as often as a name can lead to another
        for targets, value in assigned:
            read = set(_names([value], ast.Load))
            if targets & needed:
                needed |= read
            if made & read or computed in ast.walk(value):
                made |= targets
    targets = set(_names([loop.target] if isinstance(loop, ast.For) else []))
    if needed & made & _carried(loop.body, targets):
        return True
    varying = {name: {name} for name in targets}
    for _ in assigned:
        for names, value in assigned:
            roots = set[str]().union(*(varying.get(each, ()) for each in _names([value], ast.Load)))
            varying |= {name: varying.get(name, set[str]()) | (roots or {name}) for name in names}
    return _takes_own_sizes([*given, *(value for names, value in assigned if names & needed)], varying)


def may_change(source: Source, line: int) -> bool:
    """Whether the loop around a line writes to a variable that the line reads, as the scores of a soft suppression."""
    statement = source.statement(line)
    loop = (
        None if statement is None else source.enclosing(source.parents[statement], ast.For, ast.While, ast.FunctionDef)
    )
    if statement is None or not isinstance(loop, ast.For | ast.While):
        return False
    read = set(_names([getattr(statement, "test", None) or getattr(statement, "value", None) or statement], ast.Load))
    written = [targets for targets, _ in _assignments(node for each in loop.body for node in ast.walk(each))]
    names = {name for targets in written for name in _names(targets)}
    return bool(read & names - set(_names(getattr(statement, "targets", []))))


def _assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[list[ast.expr], ast.expr]]:
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield node.targets, node.value
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.For):
            value = node.iter if isinstance(node, ast.For) else node.value
            if value is not None:
                yield [node.target], value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) in _FILL:
            yield from (([node.func.value], value) for value in node.args)


def _names(nodes: Iterable[ast.AST], context: type[ast.expr_context] | None = None) -> Iterator[str]:
    """Variables and attributes of `self`; what is assigned to an element counts as assigned to the whole."""
    for node in nodes:
        for each in ast.walk(node):
            is_own = isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self"
            if isinstance(each, ast.Name) and each.id != "self" and (context is None or isinstance(each.ctx, context)):
                yield each.id
            elif is_own and isinstance(each, ast.Attribute):
                yield f"self.{each.attr}"


def _carried(body: Sequence[ast.stmt], known: set[str]) -> set[str]:
    """Names that a round may read before it assigns them: what they hold is from the round before."""
    found = set[str]()
    for statement in body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        # Who assigns an element keeps the others.
        whole = [each for each in targets if not isinstance(each, ast.Subscript)]
        found |= set(_names([node for node in ast.iter_child_nodes(statement) if node not in whole])) - known
        known = known.union(_names(whole))
    return found


def _takes_own_sizes(nodes: Iterable[ast.AST], varying: Mapping[str, set[str]]) -> bool:
    """Whether a part is taken whose bounds vary in different ways: `x[i, : lengths[i]]`, not `x[:, i : i + 1]`.
    `varying`: by name, what its value in a round depends on."""

    def roots(bound: ast.expr | None) -> set[str]:
        names = set(_names([bound])) if bound is not None else set[str]()
        return set[str]().union(*(varying.get(name, ()) for name in names))

    slices = [each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Slice)]
    return any(roots(each.lower) != roots(each.upper) for each in slices)
