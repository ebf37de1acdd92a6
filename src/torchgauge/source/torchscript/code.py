"""Scan the source in an archive (Python's grammar, TorchScript's semantics) and refuse code that may do harm."""

from __future__ import annotations

import ast
import re

from torchgauge.errors import FormatError
from torchgauge.source.allowed_ops import DENIED_NAMES, require_allowed

# Classes of C++ whose objects an archive may hold: packed weights.
_CLASSES = ("quantized", "xnnpack", "rnn")
_CLASS_NAME = re.compile(rb"torch\.classes\.(\w+(?:\.\w+)*)")
# Code that runs while an archive is read (`__setstate__`) may only unpack its weights.
_DEFINITIONS = re.compile(r"^(?=class |def )", re.MULTILINE)
# Tokens of one class or function: Python's syntax tree takes up to 800 bytes per token. Classes are checked one by one.
MAX_TOKENS = 2_000_000
_TOKEN = re.compile(r"\w+|[^\w\s]")
_UNPACKING = frozenset(("annotate", "unchecked_cast", "uninitialized"))
_ROOTS = frozenset(("torch", "ops", "__torch__", "CONSTANTS"))
_HARMLESS_METHODS = frozenset(("__init__", "__getstate__", "__setstate__"))
# Ops that a file could print or start work with while it is read.
_NOT_UNPACKING = frozenset(("Print", "fork", "awaitable", "awaitable_nowait", "awaitable_wait"))
# Attributes of a script module in Python, which members of these names would replace.
_PLUMBING = frozenset(
    (
        "__call__", "__class__", "__delattr__", "__dict__", "__getattr__", "__getattribute__", "__new__", "__reduce__",
        "__reduce_ex__", "__setattr__", "_buffers", "_c", "_call_impl", "_concrete_type", "_initializing", "_modules",
        "_parameters", "_wrapped_call_impl",
    )
)  # fmt: skip


def scan_code(source: bytes, where: str) -> frozenset[str]:
    """The special methods that the source defines. Raises `FormatError` unless every op it can call is allowed."""
    special: set[str] = set()
    try:
        # Given bytes, Python would obey a line that declares another encoding, which torch ignores.
        for part in _DEFINITIONS.split(source.decode("utf-8")):
            if sum(1 for _ in _TOKEN.finditer(part)) > MAX_TOKENS:
                raise FormatError(f"a class or function in the code of {where} is too long to be checked")
            special |= _scan_part(ast.parse(part), where)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FormatError(f"the code of {where} cannot be read: {type(error).__name__}") from error
    return frozenset(special)


def _scan_part(tree: ast.Module, where: str) -> set[str]:
    special = set()
    methods: dict[int, dict[str, ast.FunctionDef]] = {}  # of its class, by the id of a method
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            own = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
            methods |= {id(each): own for each in own.values()}
        if isinstance(node, ast.Attribute):
            match _dotted(node):
                case ("torch", name, *_):
                    require_allowed(f"aten::{name}", where)
                case ("ops", namespace, name, *_):
                    require_allowed(f"{namespace}::{name}", where)
                case ("__torch__", "torch", "classes", namespace, *rest) if namespace not in _CLASSES:
                    raise _unknown_class(".".join((namespace, *rest)), where)
                case (*_, name) if name in DENIED_NAMES:
                    raise _outside(name, where)
        elif isinstance(node, ast.Name) and node.id in DENIED_NAMES:
            raise _outside(node.id, where)
        elif isinstance(node, ast.Call) and _dotted(node.func) == ("getattr",):
            _check_getattr(node, where)
        elif isinstance(node, ast.ClassDef):
            _check_members(node, where)
        elif isinstance(node, ast.FunctionDef):
            special |= {node.name} if node.name.startswith("__") and node.name.endswith("__") else set()
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                _check_default(default, where)
            if node.name == "__setstate__":
                _check_unpacking(node, where, methods.get(id(node), {}))
    return special


def scan_pickle(content: bytes, where: str) -> None:
    """Refuse objects of unknown C++ classes: creating them runs their code, whether the source names them or not. In a
    pickle, a class is plain text after a line with its module."""
    for name in _CLASS_NAME.findall(content.replace(b"\n", b".")):
        if name.split(b".")[0].decode() not in _CLASSES:
            raise _unknown_class(name.decode(), where)


def require_harmless_reading(special_methods: frozenset[str], where: str) -> None:
    """Code that unpacks weights may not call anything, but operators can be methods: both together are refused."""
    if "__setstate__" in special_methods and not special_methods <= _HARMLESS_METHODS:
        raise _runs(where)


def _outside(name: str, where: str) -> FormatError:
    return FormatError(f"{where} calls {name}, which has effects outside the model, so it is not run")


def _runs(where: str) -> FormatError:
    return FormatError(f"{where} runs code while it is read (__setstate__), so it is not read")


def _unknown_class(name: str, where: str) -> FormatError:
    return FormatError(f"{where} uses the class {name}, which torchgauge does not know, so it is not read")


def _dotted(node: ast.expr) -> tuple[str, ...]:
    """The names of `a.b.c`; an expression in front of them is an empty name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    names.append(node.id if isinstance(node, ast.Name) else "")
    return tuple(reversed(names))


def _check_members(node: ast.ClassDef, where: str) -> None:
    is_module = any(_dotted(base) == ("Module",) for base in node.bases)
    for statement in node.body:
        names: list[object] = []
        match statement:
            case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case ast.Assign(targets=targets):
                names = [each.slice.value for each in targets
                         if isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Constant)]  # fmt: skip
        if is_module and not _PLUMBING.isdisjoint(names):
            raise FormatError(f"{where} defines the reserved member {names[0]}, so it is not read")
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            _check_default(statement.value, where)


def _check_default(value: ast.expr, where: str) -> None:
    """Torch evaluates the defaults of arguments and fields while it reads an archive, so they must be plain values."""
    for node in ast.walk(value):
        is_harmless = isinstance(node, ast.Call) and _dotted(node.func) in {(name,) for name in _UNPACKING}
        if isinstance(node, ast.Call | ast.BinOp) and not is_harmless and not _is_number(node):
            raise FormatError(f"{where} computes something while it is read (a default), so it is not read")


def _is_number(node: ast.expr) -> bool:
    """A complex number is written as a sum."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float | complex)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return _is_number(left) and _is_number(right)
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
    return False


def _check_getattr(call: ast.Call, where: str) -> None:
    """Only `getattr(self, "0")` is allowed, which accesses a module whose name is a number."""
    names = {node.id for argument in call.args for node in ast.walk(argument) if isinstance(node, ast.Name)}
    texts = [node.value for node in call.args[1:] if isinstance(node, ast.Constant)]
    if names & _ROOTS or len(texts) != 1 or texts[0] in DENIED_NAMES:
        raise FormatError(f"{where} uses getattr in a way that torchgauge does not support")


def _check_unpacking(function: ast.FunctionDef, where: str, methods: dict[str, ast.FunctionDef]) -> None:
    """`methods` of the same class may be called, each once: quantized convolutions pack their weights in one. Those
    call no others, so that reading takes no longer than the code is long."""
    nodes = list(ast.walk(function))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound = stored | {node.arg for node in nodes if isinstance(node, ast.arg)}
    if (
        "self" in stored
        or bound & (_ROOTS | _UNPACKING)
        or any(isinstance(node, ast.While | ast.For | ast.With) for node in nodes)
    ):
        raise _runs(where)
    takes_self = [argument.arg for argument in function.args.args[:1]] == ["self"]
    called: set[str] = set()
    for call in [_dotted(node.func) for node in nodes if isinstance(node, ast.Call)]:
        match call:
            case ("self", name) if takes_self and name in methods and name not in called:
                called.add(name)
                _check_unpacking(methods[name], where, {})
            case _ if not _only_unpacks(call):
                raise _runs(where)


def _only_unpacks(name: tuple[str, ...]) -> bool:
    match name:
        case ("ops", "quantized", op):
            return "prepack" in op or op.startswith("make_quantized")
        case ("ops", "prim", op):
            return op not in _NOT_UNPACKING
        case ("torch", "__isnot__" | "__is__" | "len" | "list" | "eq" | "ne"):
            return True
        case (single,):
            return single in _UNPACKING
    return False
