"""A source edit applied to a copy of a model: its modules get classes whose functions are those of the edited file.

Nothing is imported or executed again, and nothing that other code uses changes: functions and classes of the user's
files get twins, which see each other in place of the originals.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from torch import nn
from torch.jit import ScriptModule

from torchgauge.advise import SourceEdit
from torchgauge.capture.recorder import source_line
from torchgauge.source.modules import all_modules
from torchgauge.verify.registry import NotApplicableError


def apply_edit(model: nn.Module, edit: SourceEdit) -> None:
    """Change the classes of this model's modules; the model must be a copy."""
    twins = _Twins(edit)
    for module in all_modules(model):
        if isinstance(module, ScriptModule):
            continue
        module.__class__ = twins.of(type(module))
        for name, value in vars(module).items():
            if isinstance(value, FunctionType | MethodType):
                vars(module)[name] = twins.of(value)
    twins.connect()
    if not twins.is_edited:
        raise NotApplicableError("the edited lines are not those of the code that was loaded")


class _Twins:
    """Twins of functions and classes, each made once. They refer to each other in circles, so namespaces and closures
    are filled when all twins are known."""

    def __init__(self, edit: SourceEdit) -> None:
        self._edits = {each.file: each for each in edit.files}
        self._codes: dict[str, Mapping[CodeType, CodeType]] = {}  # by file: the code before and after
        self._made: dict[int, Any] = {}
        self._namespaces: dict[int, dict[str, Any]] = {}
        self._unfilled: list[tuple[CellType | dict[str, Any], Any]] = []
        self._originals: list[object] = []  # kept, so that no other object gets an id of `_made`
        self.is_edited = False

    def of(self, value: Any) -> Any:
        """The twin of a function, method or class of modules; other values have none."""
        if id(value) in self._made:
            return self._made[id(value)]
        if isinstance(value, FunctionType):
            twin: Any = self._function(value)
        elif isinstance(value, type) and issubclass(value, nn.Module):
            twin = self._class(value)
        elif isinstance(value, staticmethod | classmethod):
            twin = type(value)(self.of(value.__func__))
        elif isinstance(value, property):
            twin = property(self.of(value.fget), self.of(value.fset), self.of(value.fdel), value.__doc__)
        elif isinstance(value, MethodType):
            twin = MethodType(self.of(value.__func__), value.__self__)
        else:
            return value
        self._made[id(value)] = twin
        self._originals.append(value)
        return twin

    def connect(self) -> None:
        while self._unfilled:
            place, content = self._unfilled.pop()
            if isinstance(place, CellType):
                place.cell_contents = self.of(content)
            else:
                place.update({name: self.of(value) for name, value in content.items()})

    def _function(self, value: FunctionType) -> FunctionType:
        line = source_line(value.__code__.co_filename, 0) or "/"
        is_own = "/" not in line  # else of an installed package
        code, names, cells = value.__code__, value.__globals__, value.__closure__ or ()
        if is_own:
            if id(names) not in self._namespaces:
                self._namespaces[id(names)] = dict(names)
                self._unfilled.append((self._namespaces[id(names)], names))
            names = self._namespaces[id(names)]
            code = self._code(code, line.rpartition(":")[0])
        else:
            # A decorator of a package, such as torch.no_grad(), closes over the function that it wraps.
            self._made[id(value)] = value  # where it closes over itself
            inner = [cell.cell_contents for cell in cells if cell != CellType()]
            if all(self.of(each) is each for each in inner if isinstance(each, FunctionType)):
                return value
        closure = tuple(CellType() for _ in cells)
        filled = [(new, old) for new, old in zip(closure, cells, strict=True) if old != CellType()]
        self._unfilled += [(new, old.cell_contents) for new, old in filled]
        twin = FunctionType(code, names, value.__name__, value.__defaults__, closure or None)
        twin.__kwdefaults__, twin.__qualname__ = value.__kwdefaults__, value.__qualname__
        twin.__dict__.update(value.__dict__)
        return twin

    def _class(self, value: type) -> type:
        bases, members = tuple(map(self.of, value.__bases__)), {n: self.of(each) for n, each in vars(value).items()}
        if all(map(operator.is_, (*bases, *members.values()), (*value.__bases__, *vars(value).values()))):
            return value
        own = {name: member for name, member in members.items() if name not in ("__dict__", "__weakref__")}
        twin: type = type(value)(value.__name__, bases, own)
        return twin

    def _code(self, code: CodeType, file: str) -> CodeType:
        path, edit = code.co_filename, self._edits.get(file)
        if edit is None:
            return code
        if path not in self._codes:
            sides = (compile(text, path, "exec", dont_inherit=True) for text in (edit.before, edit.after))
            before, after = (dict(_named_codes(side)) for side in sides)
            self._codes[path] = {old: after[place] for place, old in before.items() if place in after}
        found = self._codes[path].get(code, code)
        self.is_edited = self.is_edited or found != code
        return found


def _named_codes(code: CodeType, around: str = "") -> Iterator[tuple[str, CodeType]]:
    """The functions in a code object, by name and, among those of one name in one function, by number."""
    count = Counter[str]()
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            place = f"{around}.{inner.co_name}#{count[inner.co_name]}"
            count[inner.co_name] += 1
            yield place, inner
            yield from _named_codes(inner, place)
