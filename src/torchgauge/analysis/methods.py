"""Modules and parameters that the code of a class reads although one call of the model does not: in other methods that
callers use (`predict`, `encode`, `generate`), and in branches that other arguments take."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from types import FunctionType

# Methods that set parameters up, or list them: they compute nothing from data.
_SETUP = re.compile(
    r"_*(init|reset|load|save|freeze|unfreeze|tie|copy|set_|train$|eval$|extra_repr|configure|\w*param)"
)
# Methods of containers that hand out nothing of what is in them.
_FILL = ("append", "extend", "insert", "update", "setdefault", "clear")
# The dictionaries of a module's children and parameters.
_TABLES = ("_modules", "_parameters")


@dataclass(frozen=True, eq=False)
class _Method:
    tree: ast.FunctionDef

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def reads(self) -> list[tuple[ast.expr, list[str]]]:
        """Expressions that lead from a variable to something, and the names on the way, those of variables included:
        `self.blocks[0].norm` is self, blocks, norm."""
        found = [(node, _names(node)) for node in ast.walk(self.tree) if isinstance(node, ast.expr)]
        inner = {id(node.value) for node, names in found if names and isinstance(node, ast.Attribute | ast.Subscript)}
        return [(node, names) for node, names in found if len(names) > 1 and id(node) not in inner]

    def readings(self, names: list[str], *, handed_out: bool = False) -> Iterator[ast.expr]:
        """The expressions that read the attribute at these names from `self`, or at the last name from another
        variable. A method that only returns it counts with `handed_out` alone."""
        statements = [each for each in self.tree.body if not isinstance(each, ast.Expr)]
        for node, (root, *path) in self.reads:
            wanted = names if root == "self" else names[-1:]
            is_there = len(path) >= len(wanted) and all(map(fnmatchcase, wanted, path))
            is_handed_out = statements == [self.parents[node]] and not handed_out
            if is_there and not is_handed_out and not _is_setting(path[len(wanted) :]):
                yield node

    def uses(self, names: list[str]) -> bool:
        """Whether every call of the method reads an attribute of what is at these names, or calls a method of it."""
        for node in self.readings(names):
            around: ast.AST = node
            is_always = True
            while is_always and around is not self.tree:
                around = self.parents[around]
                is_always = not isinstance(around, ast.If | ast.IfExp | ast.BoolOp | ast.Try)
            root, *path = _names(node)
            if is_always and len(path) > (len(names) if root == "self" else 1) and path[-1] != "forward":
                return True
        return False

    def replaces(self, names: list[str]) -> bool:
        """Whether it calls a module with other tensors in the place of its parameters, which are read by name then."""
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and node.args]
        modules = [_names(node.args[0]) for node in calls if _names(node.func)[-1:] == ["functional_call"]]
        return any(names[: len(path)] == path for root, *path in filter(None, modules) if root == "self")

    def writes(self, names: list[str]) -> bool:
        """Whether it assigns to the attribute at these names, or to elements of it, or calls a method that changes
        it."""
        for node in ast.walk(self.tree):
            written: list[str] = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                *written, method = _names(node.func) or [""]
                is_change = method in _FILL or (method.endswith("_") and not method.endswith("__"))
                written = written if is_change else []
            elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
                own = [node.attr] if isinstance(node, ast.Attribute) else []
                written = [*_names(node.value), *own]
            is_other = written[:1] != ["self"] and written[1:] == names[-1:]  # `layer.scale = …` in a loop
            if is_other or (written[:1] == ["self"] and written[1 : 1 + len(names)] == names):
                return True
            # A function that is given the whole tensor may write to it.
            given = node.args if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else []
            if any(_names(each) == ["self", *names] for each in given):
                return True
        return False

    def hands_on(self, name: str) -> bool:
        """Whether it sets the attribute to one of its arguments as it is, or in a new list."""
        arguments = {each.arg for each in ast.walk(self.tree.args) if isinstance(each, ast.arg)}
        assigned: list[tuple[ast.expr, ast.expr]] = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                        assigned += zip(target.elts, node.value.elts, strict=False)
                    assigned.append((target, node.value))
        for target, value in assigned:
            if not isinstance(target, ast.Attribute) or target.attr != name:
                continue
            while isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and len(value.args) == 1:
                value = value.args[0]
            if isinstance(value, ast.ListComp | ast.GeneratorExp) and isinstance(value.elt, ast.Name):
                value = value.generators[0].iter
            if isinstance(value, ast.Name) and value.id in arguments:
                return True
        return False

    @cached_property
    def given(self) -> set[str]:
        """The arguments of the method, and the variables that get what is computed from them."""
        found = {each.arg for each in ast.walk(self.tree.args) if isinstance(each, ast.arg)} - {"self"}
        assigned = [node for node in ast.walk(self.tree) if isinstance(node, ast.Assign)]
        for _ in assigned:
            known = len(found)
            for node in assigned:
                if not found.isdisjoint(each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)):
                    targets = [each for target in node.targets for each in ast.walk(target)]
                    found |= {each.id for each in targets if isinstance(each, ast.Name)} - {"self"}
            if len(found) == known:
                break
        return found

    def depends_on_arguments(self, node: ast.AST) -> bool:
        """Whether it is in a branch, or behind a return, that an argument of the method or a random number decides
        on."""
        while node is not self.tree:
            around = self.parents[node]
            tests = [around.test] if isinstance(around, ast.If | ast.IfExp) and node is not around.test else []
            if isinstance(around, ast.For) and node is not around.iter and _is_number_of_rounds(around.iter):
                tests.append(around.iter)
            for block in ("body", "orelse"):
                before = getattr(around, block, ())
                for statement in before[: before.index(node)] if isinstance(before, list) and node in before else ():
                    returns = any(isinstance(each, ast.Return) for each in ast.walk(statement))
                    tests += [statement.test] if isinstance(statement, ast.If) and returns else []
            for test in tests:
                read, text = {each.id for each in ast.walk(test) if isinstance(each, ast.Name)}, ast.unparse(test)
                if (read & self.given or "rand" in text) and "training" not in text:
                    return True
            node = around
        return False


def _is_number_of_rounds(node: ast.expr) -> bool:
    """`range(steps)`, not `range(len(x))` or `range(x.shape[1])`."""
    is_range = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"
    return (
        is_range
        and not any(isinstance(each, ast.Attribute | ast.Subscript) for each in ast.walk(node))
        and (sum(isinstance(each, ast.Call) for each in ast.walk(node)) == 1)
    )


def is_read_otherwise(kind: type, place: str) -> bool:
    """Whether the class reads a module or parameter in a method that neither `__init__` nor `forward` runs, where other
    arguments lead, or by a name that it computes, or uses it without calling it, or with other tensors as its
    parameters; `place` is its path from a module of the class."""
    names = [name for name in place.split(".") if not name.isdigit()]
    run, others, _ = _methods(kind)
    if not names:
        return False
    reading = [method for method in others if not _SETUP.match(method.tree.name)]
    if any(method.replaces(names) for method in (*run, *others)):
        return True
    return any(True for method in reading for _ in method.readings(names)) or any(
        method.uses(names)
        or any(method.depends_on_arguments(node) or "*" in "".join(_names(node)) for node in method.readings(names))
        for method in run
    )


def is_read_after_call(kind: type, place: str) -> bool:
    """Whether the class reads what a call leaves in an attribute: in a method that `forward` does not run, or where
    other arguments lead. `place` is its path from a module of the class."""
    names = [name for name in place.split(".") if not name.isdigit()]
    run, others, _ = _methods(kind)
    return any(
        _names(node)[-1] not in _FILL and (method in others or method.depends_on_arguments(node))
        for method in (*run, *others)
        for node in method.readings(names, handed_out=True)
    )


def is_written(kind: type, place: str) -> bool:
    """Whether the class writes to a buffer in a method that `__init__` does not run, as a codebook that is trained by
    moving averages; `place` is its path from a module of the class."""
    names = [name for name in place.split(".") if not name.isdigit()]
    run, others, _ = _methods(kind)
    return any(method.writes(names) for method in (*run, *others))


def is_filled_from_outside(kind: type, name: str) -> bool:
    """Whether what an attribute holds comes from the code that makes the module or calls its methods."""
    run, others, making = _methods(kind)
    if any(method.hands_on(name) for method in making):
        return True
    return any(method.writes([name]) for method in (*run, *others))


@lru_cache(maxsize=64)
def _methods(kind: type) -> tuple[list[_Method], ...]:
    """The methods that `forward` calls for any arguments, those that neither it nor `__init__` calls, and those that
    `__init__` calls and `forward` does not."""
    known: dict[str, list[_Method]] = {}
    for base in kind.__mro__:
        for name, member in vars(base).items() if base.__module__.partition(".")[0] != "torch" else ():
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            with suppress(ValueError):  # wrapped in itself
                function = inspect.unwrap(function)
            if isinstance(function, FunctionType) and (tree := _tree(function)) is not None:
                known.setdefault(name, []).append(_Method(tree))

    def reached(start: str) -> set[str]:
        found, todo = set[str](), [start]
        while todo:
            if (name := todo.pop()) not in found:
                found.add(name)
                reads = [(method, *read) for method in known.get(name, ()) for read in method.reads]
                todo += [
                    path[1]
                    for method, node, path in reads
                    if path[1] in known and (start == "__init__" or not method.depends_on_arguments(node))
                ]
        return found

    run = reached("forward")
    making = reached("__init__")
    others = [name for name in known if name not in run | making]
    return tuple([method for name in names for method in known.get(name, ())] for names in (run, others, making - run))


def _tree(function: FunctionType) -> ast.FunctionDef | None:
    try:
        (found,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, SyntaxError, ValueError):  # made in a shell, or in the midst of a line
        return None
    return found if isinstance(found, ast.FunctionDef) else None


def _names(node: ast.expr) -> list[str]:
    """Empty for an expression of another form, and for one that is written to."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return []
    if isinstance(node, ast.Attribute):
        names = _names(node.value)
        return [*names, *([] if node.attr in _TABLES else [node.attr])] if names else []
    if isinstance(node, ast.Subscript):
        names = _names(node.value)
        return [*names, *_text(node.slice)] if names else []
    is_getattr = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"
    if isinstance(node, ast.Call) and is_getattr and len(node.args) > 1:
        names, last = _names(node.args[0]), _text(node.args[1])
        return [*names, *last] if names and last else []
    return []


def _text(node: ast.expr) -> list[str]:
    """The name that a text gives, with a star for each part that is computed; empty for a number or variable."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)]
    return []


def _is_setting(path: list[str]) -> bool:
    """Whether the path ends at an attribute that every module has, such as `parameters()`, or at a layer's size."""
    from torch import nn

    return bool(path) and path[0] != "forward" and (hasattr(nn.Module, path[0]) or path[0].endswith("_features"))
