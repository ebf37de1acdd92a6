"""Code that advice shows: statements that run on the model, or an edit of the model's own source.

Nothing in between: a `Patch` uses `model` (and `inputs`, a tuple of the model's arguments) and names that it defines; a
`SourceEdit` is a diff of the user's file in the names of that file. Advice that can give neither has no code.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from functools import cached_property, lru_cache
from itertools import takewhile
from textwrap import indent
from typing import TypeVar

from torchgauge.advise.listing import literal
from torchgauge.advise.variables import bound, functions, stored, unassigned
from torchgauge.facts import ModuleRecord
from torchgauge.nested import find_all

# Their text can stand anywhere an operand can.
_ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.Tuple, ast.List)
# Columns of a line; longer calls are broken.
_LINE_COLUMNS = 100
_FUNCTIONAL = "torch.nn.functional"

Node = TypeVar("Node", bound=ast.AST)


_SET = "model.set_submodule("
_REPLACE_MODULE = """\
def replace_module(path, new):
    old = model.get_submodule(path)
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            model.set_submodule(name, new)
"""


@dataclass(frozen=True, slots=True)
class Patch:
    """Statements that run as they are after `model = …`: `setup` once, then `body` with the `variables` set to each of
    `rows`, the names of modules and parameters that it is for."""

    body: str
    variables: tuple[str, ...] = ()
    rows: tuple[tuple[object, ...], ...] = ()
    setup: str = ""
    note: str = ""

    def text(self) -> str:
        body = self.body
        if self.rows:
            rows = list(dict.fromkeys(self.rows))
            listed = literal([row[0] for row in rows] if len(self.variables) == 1 else rows)
            body = f"for {', '.join(self.variables)} in {listed}:\n{indent(body, '    ')}"
        return "\n".join(part.strip("\n") for part in (self.note, self.setup, body) if part)

    @property
    def replaced(self) -> list[str]:
        """The modules that it may replace by others."""
        return list(find_all(self.rows, str)) if _SET in self.body else []

    def under_all_names(self, modules: Iterable[ModuleRecord]) -> Patch:
        """The same for a model of these modules; of those that it holds under several names, forward may use any."""
        several = [record for record in modules if record.aliases]
        if _SET not in self.body or not any(each.params or each.path in self.replaced for each in several):
            return self
        setup = f"{_REPLACE_MODULE}\n{self.setup}"
        return replace(self, setup=setup, body=self.body.replace(_SET, "replace_module("))


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Bytes of a file, and what takes their place."""

    start: int
    end: int
    new: bytes

    def is_apart(self, other: Span) -> bool:
        """Two insertions at one place are not."""
        is_elsewhere = (self.start, self.end) != (other.start, other.end)
        return is_elsewhere and (self.end <= other.start or other.end <= self.start)


@dataclass(frozen=True, slots=True)
class FileEdit:
    file: str
    before: bytes
    spans: tuple[Span, ...]

    @property
    def lines(self) -> set[int]:
        """The numbers of the lines that change."""
        found = set[int]()
        for span in self.spans:
            first = self.before.count(b"\n", 0, span.start) + 1
            found |= set(range(first, first + self.before.count(b"\n", span.start, span.end - 1) + 1))
        return found

    @property
    def after(self) -> bytes:
        result = self.before
        for span in sorted(self.spans, reverse=True):
            result = result[: span.start] + span.new + result[span.end :]
        return result


@dataclass(frozen=True, slots=True)
class SourceEdit:
    """Lines of the model's own code and what they should become."""

    files: tuple[FileEdit, ...]
    note: str = ""

    def changes(self, source: str) -> bool:
        """Whether a line of code, as "file.py:LINE", is among those that change."""
        file, _, line = source.replace("\\", "/").rpartition(":")
        return any(edit.file == file and int(line) in edit.lines for edit in self.files)

    def text(self) -> str:
        """A diff, as `patch` takes it: the lines that change, without context, and a newline at the end."""
        lines = [f"{self.note}\n"] if self.note else []
        for edit in self.files:
            # Only these end a line for `patch`, and a carriage return before them is part of the line.
            before, after = (re.findall(r"[^\n]*\n|[^\n]+", text.decode()) for text in (edit.before, edit.after))
            lines += unified_diff(before, after, edit.file, edit.file, n=0)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def merged_changes(found: Sequence[Patch | SourceEdit | None], left: Sequence[str] = ()) -> Patch | SourceEdit | None:
    """The code of several places: of the kind that covers more of them. `left`: the modules of those without code."""
    patches = [code for code in found if isinstance(code, Patch)]
    edits = [code for code in found if isinstance(code, SourceEdit)]
    # Several places may have one edit, and a patch without rows changes the model as a whole.
    covered = len(set(patches) if len(patches) >= len(edits) else set(edits))
    others = len(found) - max(len(patches), len(edits))
    is_for_all = len(patches) >= len(edits) and any(not patch.rows for patch in patches)
    is_partial = bool(others) and not is_for_all
    note = f"# covers {covered} of {covered + others} places" if is_partial else ""
    if note and left and left[0]:
        note += f"; the others, such as {left[0]}, are changed in their source"
    if len(patches) >= len(edits):
        groups: dict[tuple[str, str, tuple[str, ...]], Patch] = {}
        for patch in patches:
            key = (patch.setup, patch.body, patch.variables)
            groups[key] = replace(patch, rows=groups[key].rows + patch.rows) if key in groups else patch
        if len(groups) == 1:
            return replace(patches[0], rows=next(iter(groups.values())).rows, note=note)
        # What is set up once comes first, then what is done with it.
        setup = "\n".join(dict.fromkeys(patch.setup for patch in groups.values() if patch.setup))
        texts = [replace(patch, setup="").text() for patch in groups.values()]
        return Patch("\n".join(dict.fromkeys(texts)), setup=setup, note=note) if groups else None
    files: dict[str, FileEdit] = {}
    for edit in (each for code in edits for each in code.files):
        known = files.setdefault(edit.file, replace(edit, spans=()))
        # Several layers run one line, and lines of two places may be one statement.
        if all(span.is_apart(other) for span in edit.spans for other in known.spans):
            files[edit.file] = replace(known, spans=known.spans + edit.spans)
    return SourceEdit(tuple(files.values()), note)


_CACHES = {"lru_cache", "cache", "cached_property"}
# Parts of the names of functions that give another number each time.
_DRAWING = {"random", "rng", "time", "now", "randint", "randrange", "choice", "choices", "shuffle", "permutation"}
# Expressions that give what they read another name.
_NAMED = (ast.Name, ast.Attribute, ast.Subscript, ast.IfExp, ast.BoolOp)
_TRAINING = {"training", "is_training"}
_GROWING = {"append", "extend", "insert", "pop", "clear", "update"}
# Parts of the names of methods that an object is prepared with before its first call.
_PREPARING = ("init", "reset_parameters", "build", "load", "register")


def _changed_by(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement assigns, or a call changes in place: `x.add_(1)`, `x.append(1)`."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield node.target
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        if name in _GROWING or (name.endswith("_") and not name.endswith("__") and name != "requires_grad_"):
            yield node.func.value


def _own_attribute(node: ast.expr, own: str) -> str | None:
    """`x` of `self.x`, `self.x[0]` and `self.x.data`, where the object is called `own`."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == own:
            return node.attr
        node = node.value
    return None


@lru_cache(maxsize=32)
def parsed(file: str, text: str) -> Source | None:
    """The file, which many models of a process may share; None for code that was compiled from a part of it, as of a
    page of docs."""
    try:
        return Source(file, text)
    except (SyntaxError, ValueError):
        return None


class Source:
    """A file of the model's code, to look up what is written at a line and to edit it."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self._text = file, text.encode()
        self.tree = ast.parse(text)
        # A model runs one line in many layers.
        self._by_line: dict[int, ast.stmt | None] = {}
        self._edits: dict[tuple[Span, ...], SourceEdit | None] = {}
        self._changed_in: dict[ast.ClassDef, frozenset[str | None]] = {}

    @cached_property
    def _starts(self) -> list[int]:
        """By line, the offset of its first byte."""
        starts = [0, 0]
        for line in self._text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        return starts

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def uses(self) -> dict[str, list[ast.Name | ast.Attribute]]:
        """By name, where the file has it as a variable or an attribute."""
        found: dict[str, list[ast.Name | ast.Attribute]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name | ast.Attribute):
                found.setdefault(node.id if isinstance(node, ast.Name) else node.attr, []).append(node)
        return found

    @cached_property
    def functional(self) -> str | None:
        """What this file calls torch.nn.functional; None where it has no name for it."""
        known: dict[str, str] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Import):
                for name in node.names:
                    top = name.name.partition(".")[0]
                    known |= {name.name: name.asname} if name.asname else {top: top}
            elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
                known |= {f"{node.module}.{name.name}": name.asname or name.name for name in node.names}
        if _FUNCTIONAL in known:
            return known[_FUNCTIONAL]
        if "torch.nn" in known:
            return f"{known['torch.nn']}.functional"
        return f"{known['torch']}.nn.functional" if "torch" in known else None

    @cached_property
    def scripted(self) -> tuple[str, ...]:
        """Functions of this file that torch.jit.script compiles."""
        functions = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)]
        return tuple(f.name for f in functions if any("jit.script" in self.text(d) for d in f.decorator_list))

    @cached_property
    def imported(self) -> set[str]:
        """Names that imports bind, anywhere in the file; of `import *`, those that torch usually has."""
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = [name for node in nodes for name in node.names]
        usual = {"torch", "nn", "F"} if any(name.name == "*" for name in names) else set[str]()
        return usual.union(*map(bound, names))

    def is_of_import(self, function: ast.expr) -> bool:
        """Whether it is a name that the file imports, or an attribute of one: `F.relu`, not `self.relu` or `x.relu`."""
        while isinstance(function, ast.Attribute):
            function = function.value
        return isinstance(function, ast.Name) and function.id in self.imported

    def text(self, node: ast.AST) -> str:
        start, end = self._range(node)
        return self._text[start:end].decode()

    def operand(self, node: ast.AST) -> str:
        """Its text, in brackets where it could not stand as an operand."""
        text = self.text(node)
        return text if isinstance(node, _ATOMS) else f"({text})"

    def _range(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt | ast.keyword)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.lineno] + node.col_offset, self._starts[node.end_lineno] + node.end_col_offset

    def statement(self, line: int) -> ast.stmt | None:
        """The innermost statement that has the line; None for the body of none, as in a decorator."""
        if line not in self._by_line:
            having = [node for node in self._statements if node.lineno <= line <= (node.end_lineno or 0)]
            self._by_line[line] = max(having, key=lambda node: (node.lineno, -(node.end_lineno or 0)), default=None)
        return self._by_line[line]

    @cached_property
    def _statements(self) -> list[ast.stmt]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt)]

    def enclosing(self, node: ast.AST | None, *kinds: type[Node]) -> Node | None:
        """The innermost node of these kinds that has the node in it, or is it."""
        while node is not None and not isinstance(node, kinds):
            node = self.parents.get(node)
        return node

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes that have it in them, from the inside out."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def line_text(self, line: int) -> str | None:
        """The line as it is written, without its indent and comment; None for a line that is empty."""
        if not 0 < line < len(self._starts) - 1:
            return None
        text = self._text[self._starts[line] : self._starts[line + 1]].decode()
        return text.partition("  #")[0].strip() or None

    def is_in_loop(self, line: int) -> bool:
        """Whether a line is inside a loop of its function, or has a comprehension."""
        statement = self.statement(line)
        if statement is None:
            return False
        if any(isinstance(node, ast.comprehension) for node in ast.walk(statement)):
            return True
        around = takewhile(lambda node: not isinstance(node, ast.FunctionDef | ast.Lambda), self.around(statement))
        return any(isinstance(node, ast.For | ast.While) for node in (statement, *around))

    def next_statement(self, statement: ast.stmt) -> ast.stmt | None:
        """The one behind it in the same block."""
        for _, value in ast.iter_fields(self.parents[statement]):
            if isinstance(value, list) and statement in value[:-1]:
                behind = value[value.index(statement) + 1]
                return behind if isinstance(behind, ast.stmt) else None
        return None

    def is_kept(self, line: int) -> bool:
        """Whether what a line computes is kept in an attribute that a condition around it looks at first:
        `if self.mask is None: self.mask = …`, or by a function with `@lru_cache`. Later calls find it there."""
        node: ast.AST | None = self.statement(line)
        while node is not None:
            if isinstance(node, ast.FunctionDef):
                functions = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
                if any(self.text(each).rpartition(".")[2] in _CACHES for each in functions):
                    return True
            if isinstance(node, ast.If):
                looked_at = {self.text(each) for each in ast.walk(node.test) if isinstance(each, ast.Attribute)}
                stores = [each for inside in node.body for each in ast.walk(inside) if isinstance(each, ast.Attribute)]
                if any(isinstance(each.ctx, ast.Store) and self.text(each) in looked_at for each in stores):
                    return True
            node = self.parents.get(node)
        return False

    def reads_state(self, line: int) -> bool:
        """Whether what a line computes may differ in the next call: it reads an attribute that other code changes, an
        argument of `forward` that callers may leave out, a clock, or a random number of the host. Also under a name
        that the function gives it."""
        statement = self.statement(line)
        function = self.enclosing(statement, ast.FunctionDef)
        if statement is None or function is None:
            return False
        # Of a loop or branch the line is its first one.
        roots: list[ast.AST] = [statement]
        if isinstance(statement, ast.If | ast.While):
            roots = [statement.test]
        elif isinstance(statement, ast.For):
            roots = [statement.iter]
        return self._is_state(roots, function, frozenset())

    def _is_state(self, roots: list[ast.AST], function: ast.FunctionDef, callees: frozenset[str]) -> bool:
        """Whether expressions of a function read what other calls change, by themselves or as arguments that it is
        called with; `callees`: functions that were followed to their callers."""
        names = {each.id for root in roots for each in ast.walk(root) if isinstance(each, ast.Name)}
        assigned = [
            each.value
            for each in ast.walk(function)
            if isinstance(each, ast.Assign)
            and any(isinstance(at, ast.Name) and at.id in names for target in each.targets for at in ast.walk(target))
        ]
        if any(self._is_drawn(each) for root in (*roots, *assigned) for each in ast.walk(root)):
            return True
        owner, parameters = self.enclosing(function, ast.ClassDef), [each.arg for each in function.args.args]
        is_method = owner is not None and bool(parameters)
        # `h, c = self.state`, `given or self.empty`
        roots = [*roots, *(value for value in assigned if isinstance(value, _NAMED))]
        read = [each for root in roots for each in ast.walk(root) if isinstance(getattr(each, "ctx", None), ast.Load)]
        if owner is not None and is_method:
            left_out = parameters[len(parameters) - len(function.args.defaults) :] if function.name == "forward" else ()
            # `h = default(given, self.start)` calls a function for what `given or self.start` does.
            choosing = [each for each in assigned if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)]
            offered = [*read, *(argument for call in choosing for argument in call.args)]
            if any(isinstance(each, ast.Name) and each.id in left_out for each in offered):
                return True
            changed = self._changed(owner) | self._set_from_outside
            # A layer that is called has code that says what it reads.
            layers = {node.func for root in roots for node in ast.walk(root) if isinstance(node, ast.Call)}
            values = [each for each in read if isinstance(each, ast.Attribute) and each not in layers]
            if any(_own_attribute(each, parameters[0]) in changed for each in values):
                return True
        if function.name in callees or "__" in function.name:
            return False
        given = {each.id for each in read if isinstance(each, ast.Name)}.intersection(parameters[is_method:])
        for call in self._calls_of(function, owner) if given else ():
            caller = self.enclosing(call, ast.FunctionDef)
            passed = dict(zip(parameters[is_method:], call.args, strict=False))
            passed |= {each.arg: each.value for each in call.keywords if each.arg is not None}
            arguments = [value for name, value in passed.items() if name in given]
            if caller is not None and self._is_state([*arguments], caller, callees | {function.name}):
                return True
        return False

    def calls_to(self, name: str) -> list[ast.Call]:
        """The calls of a function or method of this name, as the file writes them."""
        return self._calls_to.get(name, [])

    def _calls_of(self, function: ast.FunctionDef, owner: ast.ClassDef | None) -> list[ast.Call]:
        """The calls of a function in its file; of `forward`, those of the attributes that an object of its class is
        assigned to."""
        is_forward = owner is not None and function.name == "forward"
        names = self._attributes_of.get(owner.name, set()) if owner is not None and is_forward else {function.name}
        return [call for name in names for call in self._calls_to.get(name, ())]

    @cached_property
    def _calls_to(self) -> dict[str, list[ast.Call]]:
        found: dict[str, list[ast.Call]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                function = node.func
                while isinstance(function, ast.Subscript):  # self.layers[i](x)
                    function = function.value
                name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def _attributes_of(self) -> dict[str, set[str]]:
        """By the name of a function or class, the attributes that get what a call of it makes."""
        found: dict[str, set[str]] = {}
        # Layers that a list gets first: `layers.append(Cell(…))`, then `self.layers = nn.ModuleList(layers)`.
        listed: dict[tuple[ast.FunctionDef | None, str], list[ast.Call]] = {}
        for node in ast.walk(self.tree):
            is_append = isinstance(node, ast.Call) and called(node) == "append" and isinstance(node.func, ast.Attribute)
            if isinstance(node, ast.Call) and is_append:
                name = self.text(receiver(node, self) or node)
                calls = [each for given in node.args for each in ast.walk(given) if isinstance(each, ast.Call)]
                listed.setdefault((self.enclosing(node, ast.FunctionDef), name), []).extend(calls)
        for node in ast.walk(self.tree):
            targets = [each for each in _changed_by(node) if isinstance(each, ast.Attribute)]
            if isinstance(node, ast.Assign) and targets:
                function = self.enclosing(node, ast.FunctionDef)
                inside = list(ast.walk(node.value))
                calls = [each for each in inside if isinstance(each, ast.Call)]
                calls += [
                    call
                    for each in inside
                    if isinstance(each, ast.Name)
                    for call in listed.get((function, each.id), ())
                ]
                for call in calls:
                    found.setdefault(called(call), set()).update(each.attr for each in targets)
        return found

    def _is_drawn(self, node: ast.AST) -> bool:
        """Whether it is a call that has another result each time: `random.random()`, `time.time()`, `next(steps)`."""
        if not isinstance(node, ast.Call) or "torch." in self.text(node.func):
            return False
        if called(node) == "next":
            return not any(word in self.text(node) for word in ("parameters", "buffers"))
        return not _DRAWING.isdisjoint(self.text(node.func).split("."))

    @cached_property
    def _set_from_outside(self) -> frozenset[str]:
        """Attributes that the file sets on other objects than `self`: `layer.rate = rate`."""
        found = set[str]()
        for node in ast.walk(self.tree):
            function = self.enclosing(node, ast.FunctionDef) if isinstance(node, ast.Assign | ast.AugAssign) else None
            if function is None or any(word in function.name for word in _PREPARING):
                continue
            own = [given.arg for given in function.args.args[:1]]
            targets = [target for target in _changed_by(node) if isinstance(target, ast.Attribute)]
            found |= {target.attr for target in targets if self.text(target.value) not in own}
        return frozenset(found)

    def _changed(self, owner: ast.ClassDef) -> frozenset[str | None]:
        """The attributes that methods of a class assign or change, but for those that prepare an object, and branches
        for training alone."""
        if owner not in self._changed_in:
            methods = [each for each in owner.body if isinstance(each, ast.FunctionDef) and each.args.args]
            preparing = [each for each in methods if any(word in each.name for word in _PREPARING)]
            prepared = {each.name for each in preparing}
            for method in preparing:  # with the methods that they call
                calls = {called(node) for node in ast.walk(method) if isinstance(node, ast.Call)} - prepared
                preparing += [each for each in methods if each.name in calls and each.name != "forward"]
                prepared |= calls
            self._changed_in[owner] = frozenset(
                _own_attribute(target, method.args.args[0].arg)
                for method in methods
                if method not in preparing
                for node in ast.walk(method)
                for target in _changed_by(node)
                # Training writes to the data of parameters: a constraint, an average.
                if not self.is_for_training(node) and ".data" not in self.text(target)
            ) - {None}
        return self._changed_in[owner]

    def is_for_training(self, node: ast.AST) -> bool:
        """Whether it is in a branch `if self.training:`, or in one that an argument switches on: `if update:`."""
        function = self.enclosing(node, ast.FunctionDef)
        given = set[str]() if function is None else {each.arg for each in function.args.args}
        for around in self.around(node):
            test = around.test if isinstance(around, ast.If) and node in around.body else None
            is_switch = isinstance(test, ast.Name) and test.id in given
            if is_switch or (isinstance(test, ast.Attribute) and test.attr in _TRAINING):
                return True
            node = around
        return False

    def calls_training(self, node: ast.AST) -> bool:
        """Whether it calls a function or method of this file that asks whether the model is trained."""
        names = {called(each) for each in ast.walk(node) if isinstance(each, ast.Call)} - {"forward"}
        functions = [each for each in self._statements if isinstance(each, ast.FunctionDef) and each.name in names]
        attributes = [each for found in functions for each in ast.walk(found) if isinstance(each, ast.Attribute)]
        return any(each.attr in _TRAINING for each in attributes)

    def expressions(self, line: int) -> list[ast.expr]:
        """What the line computes, in the order in which it does."""
        return self._expressions.get(line, [])

    @cached_property
    def _expressions(self) -> dict[int, list[ast.expr]]:
        """By line; that of a call is where its name stands, or where it begins."""
        found: dict[int, list[ast.expr]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.expr):
                named = node.func.end_lineno if isinstance(node, ast.Call) else None
                for line in {node.lineno, named or node.lineno}:
                    found.setdefault(line, []).append(node)
        for nodes in found.values():
            nodes.sort(key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0, -node.col_offset))
        return found

    def calls(self, line: int, *names: str) -> list[ast.Call]:
        """Calls on a line by the last part of their name: `softmax` finds `F.softmax(x)` and `x.softmax(-1)`."""
        return [node for node in self.expressions(line) if isinstance(node, ast.Call) and called(node) in names]

    def product(self, node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
        """The factors of a matrix product: `a @ b`, `torch.matmul(a, b)`, `a.bmm(b)`."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return node.left, node.right
        if not isinstance(node, ast.Call) or called(node) not in ("matmul", "bmm", "mm") or node.keywords:
            return None
        first = receiver(node, self)
        given = node.args if first in node.args or first is None else [first, *node.args]
        return (given[0], given[1]) if len(given) == 2 else None

    # --- edits

    def without(self, call: ast.Call) -> list[Span]:
        """`x.clone()` becomes `x`, and `F.softmax(x, -1)` too: what it is called on is what stays."""
        start, end = self._range(call)
        stays = receiver(call, self)
        if stays is None:
            return []
        first, last = self._range(stays)
        around = self.parents[call]
        if isinstance(around, ast.Assign) and [self.text(each) for each in around.targets] == [self.text(stays)]:
            siblings = [block for _, block in ast.iter_fields(self.parents[around]) if isinstance(block, list)]
            if any(around in block and len(block) > 1 for block in siblings) and (gone := self.deleted(around)):
                return gone  # what is left would be `x = x`
        opens, closes = (b"", b"") if isinstance(stays, _ATOMS) or self.is_alone(call) else (b"(", b")")
        # The brackets around the receiver of a method are part of what stands before its name.
        if isinstance(call.func, ast.Attribute) and stays is call.func.value:
            name = self._text.rindex(b".", last, self._range(call.func)[1])
            return [Span(len(self._text[:name].rstrip()), end, b"")]
        return [Span(start, first, opens), Span(last, end, closes)]

    def is_alone(self, node: ast.AST) -> bool:
        """Nothing around it binds more closely: the value of an assignment, or an argument."""
        return isinstance(self.parents[node], ast.Assign | ast.Return | ast.Call | ast.keyword | ast.Lambda)

    def replaced(self, node: ast.AST, new: str) -> list[Span]:
        return [Span(*self._range(node), new.encode())]

    def replaced_by_call(self, node: ast.AST, function: str, arguments: Sequence[str], behind: str = "") -> list[Span]:
        """One argument to a line where the call is long; without the brackets that an operator needed."""
        start, end = self._range(node)
        if self._text[start - 1 : start] + self._text[end : end + 1] == b"()" and not isinstance(node, ast.Call):
            before = self._text[: start - 1].rstrip()[-1:]
            start, end = (start, end) if before.isalnum() or before in b"_])" else (start - 1, end + 1)
        line = self._text[:start].rpartition(b"\n")[2].decode()
        margin = line[: len(line) - len(line.lstrip())]
        call = f"{function}({', '.join(arguments)})"
        if len(line) + len(call) > _LINE_COLUMNS:
            call = "".join([f"{function}(\n", *(f"{margin}    {each},\n" for each in arguments), f"{margin})"])
        return [Span(start, end, f"{call}{behind}".encode())]

    def deleted(self, statement: ast.stmt) -> list[Span]:
        """With its lines; not the only statement of a block, nor one of several on a line."""
        start, end = self._range(statement)
        first, last = self._starts[statement.lineno], self._text.find(b"\n", end) + 1
        around = self._text[first:start] + self._text[end:last]
        return [Span(first, last, b"")] if not around.strip() and last else []

    def without_around(self, outer: ast.Call, inner: ast.expr) -> list[Span]:
        """`f(g(x))` becomes `g(x)`."""
        (start, end), (first, last) = self._range(outer), self._range(inner)
        return [Span(start, first, b""), Span(last, end, b"")]

    def under(self, statement: ast.stmt, header: str) -> list[Span]:
        """The statement in a separate block."""
        margin = " " * statement.col_offset
        text = self.text(statement).replace("\n", "\n    ")
        return self.replaced(statement, f"{header}\n{margin}    {text}")

    def has_self(self, node: ast.AST) -> bool:
        """Whether it is inside a method."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, ast.FunctionDef | ast.Lambda):
                return bool(node.args.args) and node.args.args[0].arg == "self"
        return False

    def written_out(self, line: int, call: Callable[[str], str]) -> SourceEdit | None:
        """The expression that a line computes, as one function of torch.nn.functional of the one variable in it."""
        statement = self.statement(line)
        if not isinstance(statement, ast.Assign | ast.Return) or self.functional is None:
            return None
        value = statement.value
        if value is None or any(isinstance(node, ast.Tuple | ast.List | ast.IfExp) for node in ast.walk(value)):
            return None
        # A layer that is called inside would be lost with the rest of the expression.
        calls = [node.func for node in ast.walk(value) if isinstance(node, ast.Call)]
        if any(self.text(function).startswith("self.") for function in calls):
            return None
        names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)} - self.imported - set(dir(builtins))
        targets = [target for node in self.tree.body if isinstance(node, ast.Assign) for target in node.targets]
        constants = {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
        names -= constants | {"self"}
        whole = self.replaced(value, f"{self.functional}.{call(*names)}") if len(names) == 1 else []
        return self.edit(whole) if whole else None

    def with_keyword(self, call: ast.Call, name: str, value: str, *, place: int | None = None) -> list[Span]:
        """`f(x)` becomes `f(x, name=value)`; a value that is given already, by name or at `place`, is replaced."""
        if place is not None and len(call.args) > place:
            return self.replaced(call.args[place], value)
        for keyword in call.keywords:
            if keyword.arg == name:
                return self.replaced(keyword.value, value)
        _, end = self._range(call)
        given = [*call.args, *call.keywords]
        at = max((self._range(node)[1] for node in given), default=end - 1)
        return [Span(at, at, f"{', ' if given else ''}{name}={value}".encode())]

    def edit(self, spans: Iterable[Span]) -> SourceEdit | None:
        """None where nothing changes, or where the file would not compile, use a name it does not have, or read a
        variable that it no longer assigns."""
        wanted = tuple(dict.fromkeys(spans))
        if b"\r\n" in self._text:
            ends = [span.new.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") for span in wanted]
            wanted = tuple(replace(span, new=new) for span, new in zip(wanted, ends, strict=True))
        if wanted not in self._edits:
            edit = FileEdit(self.file, self._text, wanted)
            try:
                after = ast.parse(edit.after)
                is_right = edit.after != edit.before and _names(after) <= self._known and self._assigns(after, wanted)
            except SyntaxError:
                is_right = False
            self._edits[wanted] = SourceEdit((edit,)) if is_right else None
        return self._edits[wanted]

    def _assigns(self, after: ast.AST, spans: Sequence[Span]) -> bool:
        """Whether the functions that these spans change read no variable unassigned that was assigned before."""
        old, new = functions(self.tree), functions(after)
        if len(old) != len(new):
            return True
        for was, now in zip(old, new, strict=True):
            start, end = self._range(was)
            is_changed = any(start <= span.start and span.end <= end for span in spans)
            if is_changed and stored(was) & unassigned(now) - unassigned(was):
                return False
        return True

    @cached_property
    def _known(self) -> set[str]:
        return _names(self.tree) | set(dir(builtins))


def called(call: ast.Call) -> str:
    """The last part of the name that is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def receiver(call: ast.Call, source: Source) -> ast.expr | None:
    """The tensor that a call works on: that of a method, else the first argument, or torch's argument `input`."""
    if isinstance(call.func, ast.Attribute) and not source.is_of_import(call.func):
        return call.func.value
    named = [keyword.value for keyword in call.keywords if keyword.arg == "input"]
    return next(iter([*call.args, *named]), None)


def _names(tree: ast.AST) -> set[str]:
    """Every name that a file binds or reads."""
    found: set[str] = set()
    todo = [tree]
    while todo:  # half the time of ast.walk, which a file of thousands of lines makes worth it
        node = todo.pop()
        if isinstance(node, ast.Name):
            found.add(node.id)
            continue
        found.update(bound(node))
        for value in node.__dict__.values():
            if isinstance(value, list):
                todo += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST):
                todo.append(value)
    return found
