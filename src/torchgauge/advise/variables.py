"""Variables of a function in a user's code: where they are assigned, and where they are read unassigned."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

Function = ast.FunctionDef | ast.AsyncFunctionDef
# These have their own variables; the target of `:=` is assigned where it is read.
_SCOPES = (ast.comprehension, ast.NamedExpr, ast.FunctionDef, ast.AsyncFunctionDef)


def functions(tree: ast.AST) -> list[Function]:
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def bound(node: ast.AST) -> Iterator[str]:
    """The name that an argument, an import, a function or a class binds."""
    if isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name


def stored(*nodes: ast.AST) -> set[str]:
    """Variables that are assigned inside, and arguments."""
    inside = [each for node in nodes for each in ast.walk(node)]
    names = {each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return names | {each.arg for each in inside if isinstance(each, ast.arg)}


def unassigned(function: Function) -> set[str]:
    """Names that a function reads or deletes where one of its paths has not assigned them; those of the module and of
    builtins are among them."""
    paths = _Paths()
    paths.after(function.body, stored(function.args))
    return paths.found


class _Paths:
    """Follows the statements of a function with the variables that every path up to there assigns. A loop may run no
    round, and a block that `try` guards may end anywhere."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def after(self, block: Sequence[ast.stmt], assigned: set[str] | None) -> set[str] | None:
        """The variables that are assigned behind a block; None where its end is not reached."""
        for node in block:
            assigned = None if assigned is None else self._step(node, assigned)
        return assigned

    def _read(self, assigned: set[str], *nodes: ast.AST) -> None:
        inside = [each for node in nodes for each in ast.walk(node)]
        own = stored(*(each for each in inside if isinstance(each, (*_SCOPES, ast.arg))))
        names = {each.id for each in inside if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Store)}
        self.found |= names - own - assigned

    def _step(self, node: ast.stmt, assigned: set[str]) -> set[str] | None:
        match node:
            case ast.If(test, body, orelse):
                self._read(assigned, test)
                known = assigned | stored(test)
                return _both(self.after(body, known), self.after(orelse, known))
            case ast.While(test, body, orelse):
                self._read(assigned, test)
                self.after(body, assigned | stored(test))
                return self.after(orelse, assigned | stored(test))
            case ast.For(target, iterable, body, orelse) | ast.AsyncFor(target, iterable, body, orelse):
                self._read(assigned, iterable)
                self.after(body, assigned | stored(target))
                return self.after(orelse, assigned)
            case ast.With(items, body) | ast.AsyncWith(items, body):
                self._read(assigned, *(item.context_expr for item in items))
                return self.after(body, assigned | stored(*items))
            case ast.Try(body, handlers, orelse, final):
                ends = self.after(orelse, self.after(body, assigned))
                for handler in handlers:
                    name = {handler.name} if handler.name else set()
                    ends = _both(ends, self.after(handler.body, assigned | name))
                done = self.after(final, assigned)
                return None if ends is None or done is None else ends | done
        return self._simple(node, assigned)

    def _simple(self, node: ast.stmt, assigned: set[str]) -> set[str] | None:
        self._read(assigned, node)
        match node:
            case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
                return None
            case ast.AugAssign(target):
                self.found |= stored(target) - assigned
            case ast.Delete(targets):
                return assigned - {target.id for target in targets if isinstance(target, ast.Name)}
        # Imports, and functions and classes inside.
        names = {name for part in (node, *ast.iter_child_nodes(node)) for name in bound(part)}
        return assigned | stored(node) | names


def _both(one: set[str] | None, other: set[str] | None) -> set[str] | None:
    """What is assigned where two paths meet."""
    return other if one is None else one if other is None else one & other
