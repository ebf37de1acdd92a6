"""Calls in the source by which a text may become code, an attribute, a pattern, a path or a process."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "torchgauge"
_LONGEST = 90  # characters of a call that identify it
_ATTRIBUTES = ("getattr", "setattr", "delattr", "hasattr")
_CODE = frozenset(("eval", "exec", "compile", "__import__"))
_IMPORTS = frozenset(("import_module", "find_spec", "spec_from_file_location", "module_from_spec", "find_loader"))
_REGULAR = frozenset(("compile", "match", "fullmatch", "search", "findall", "finditer", "split", "sub", "subn"))
_OUTSIDE = ("subprocess.", "os.system", "os.popen", "os.exec", "os.spawn", "os.posix_spawn", "os.fork",
            "ctypes.CDLL", "ctypes.cdll", "multiprocessing.")  # fmt: skip
_BY_PATH = frozenset(("get_submodule", "set_submodule", "get_parameter", "get_buffer"))
_UNPICKLERS = ("pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load", "marshal.loads", "shelve.open")
_OF_TORCH = ("torch.ops", "torch.classes", "torch.jit.load", "torch.jit.script", "torch.jit.trace", "torch._C._jit",
             "torch._C.parse_schema", "torch._C.PyTorchFileReader", "fx.Graph", "fx.GraphModule")  # fmt: skip
# Where text of files is read: there every path that is made of something is looked at.
_READERS = ("capture", "checkpoint", "isolation", "source", "weights")
_OPENERS = frozenset(("open", "os.open", "io.open", "Path", "os.remove", "os.unlink", "os.replace", "os.rename",
                      "os.listdir", "os.scandir"))  # fmt: skip


def found_calls() -> dict[str, set[str]]:
    """By file of the package: the calls, as Python writes them."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        calls = set(_calls(ast.parse(path.read_text(encoding="utf-8")), name))
        # Of `torch.ops.aten.relu` the whole, not each of its parts.
        calls = {call for call in calls if not any(other.startswith(f"{call}.") for other in calls)}
        if calls:
            found[name] = calls
    return found


class _ShortTexts(ast.NodeTransformer):
    """Texts with places to fill in are written differently by each release of Python."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Name:
        return ast.Name("TEXT")


def _calls(tree: ast.AST, name: str) -> Iterator[str]:
    for node in ast.walk(_ShortTexts().visit(tree)):
        is_call = isinstance(node, ast.Call) and _is_noted(node, name)
        if is_call or (isinstance(node, ast.Attribute) and ast.unparse(node).startswith(_OF_TORCH)):
            yield ast.unparse(node)[:_LONGEST]


def _is_noted(call: ast.Call, name: str) -> bool:
    function = ast.unparse(call.func)
    last = function.rpartition(".")[2]
    is_fixed = [isinstance(argument, ast.Constant) for argument in call.args]
    if function in _ATTRIBUTES:
        return len(call.args) < 2 or not is_fixed[1]
    if last in _IMPORTS and is_fixed[:1] == [True]:
        return False
    if function in _CODE or last in _IMPORTS or function.startswith((*_OUTSIDE, *_UNPICKLERS)):
        return True
    if last in _BY_PATH:
        return is_fixed[:1] != [True]
    if last in ("attrgetter", "methodcaller") or (function == "type" and len(call.args) == 3):
        return True
    if function.startswith("re.") and last in _REGULAR:
        return not is_fixed or not is_fixed[0]
    if last in ("format", "format_map") and isinstance(call.func, ast.Attribute):
        return not isinstance(call.func.value, ast.Constant)
    if function in _OPENERS and name.startswith(_READERS):
        return not is_fixed or not is_fixed[0]
    return False
