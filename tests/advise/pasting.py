"""Code of advice, as a user would take it: run on a copy of the model, or applied to the file that the model is in."""

from __future__ import annotations

import ast
import builtins
import copy
import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torchgauge.advise import Advice

# What the docs say is there.
GIVEN = {"torch", "model", "inputs"}
# They give something else on purpose: another result, other types, weights to train, or nothing before it is compiled.
OTHER_RESULT = {
    "double-softmax", "dropout-in-evaluation", "batch-statistics-in-evaluation", "state-written-in-evaluation",
    "embedding-dominated", "unstructured-pruning", "structured-pruning", "low-rank", "bfloat16-weights",
    "memory-bound-layers",
}  # fmt: skip
# They need a device, a compiler or a package that tests do without.
NOT_RUN = {
    "two-four-sparsity", "launch-bound", "launch-limit", "quantize-weights", "optimizer-state", "linear-activation",
    "conv-bn-activation", "dispatch-bound", "pointwise-chain", "scan-in-python", "autocast-bf16",
}  # fmt: skip


def check_code(advice: Advice, model: Any, inputs: tuple[Any, ...]) -> None:
    """The code of a piece of advice is complete, runs on the model it was given for, and does not change its result."""
    code = advice.code
    if code is None:
        return
    if advice.code_kind == "patch":
        check_names(code)
    if advice.rule in NOT_RUN or not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        return
    if any(parameter.is_meta for parameter in model.parameters()):
        return
    before = _run(model, inputs)
    if advice.code_kind == "edit":
        with edited(code):
            after, again = _run(model, inputs), _run(model, inputs)
    else:
        with switches_restored():
            changed, given = pasted(model, code, inputs)
            after, again = _run(changed, given), _run(changed, given)
    if advice.rule in OTHER_RESULT:
        torch.testing.assert_close(again, after)
    else:
        loose = 2e-2 if advice.rule in ("cast-round-trip", "cast-round-pointwise", "type-promotion") else 1e-3
        torch.testing.assert_close(after, before, rtol=loose, atol=loose, check_dtype=False, check_stride=False)


@contextmanager
def switches_restored() -> Iterator[None]:
    """Torch's own switches, which code of advice may set, are those of the whole process."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.backends.mha.set_fastpath_enabled(fast)


def check_names(code: str) -> None:
    """Every name is bound in the code, Python's, or given."""
    tree = ast.parse(code)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)} | GIVEN | set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name.partition(".")[0])
    assert {node.id for node in names} <= bound, code


def pasted(model: nn.Module, code: str, inputs: tuple[Any, ...]) -> tuple[nn.Module, tuple[Any, ...]]:
    """A copy of the model that the code was run on, and the inputs as it leaves them."""
    scope: dict[str, Any] = {"torch": torch, "model": _copied(model), "inputs": inputs}
    exec(code, scope)
    return scope["model"], tuple(scope["inputs"])


def _copied(model: nn.Module) -> nn.Module:
    """Functions in attributes stay: those of the file are exchanged where they are."""
    return copy.deepcopy(model)


@contextmanager
def edited(diff: str) -> Iterator[None]:
    """The functions of a file as a diff of it makes them, for as long as the block lasts."""
    file = re.search(r"^--- (.+)$", diff, re.MULTILINE)
    assert file is not None, diff
    loaded = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    paths = {str(module.__file__) for module in loaded if getattr(module, "__file__", None)}
    (path,) = (path for path in paths if Path(path).name == file[1])
    text = Path(path).read_text()
    new = applied(text, diff)
    codes = [list(_codes(compile(each, path, "exec", dont_inherit=True))) for each in (text, new)]
    exchange = dict(zip(*codes, strict=True))
    functions = [each for each in gc.get_objects() if type(each) is FunctionType and each.__code__ in exchange]
    before = [function.__code__ for function in functions]
    try:
        for function in functions:
            function.__code__ = exchange[function.__code__]
        yield
    finally:
        for function, code in zip(functions, before, strict=True):
            function.__code__ = code


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def applied(text: str, diff: str) -> str:
    lines, moved = text.splitlines(), 0
    for hunk in re.split(r"^@@ ", diff, flags=re.MULTILINE)[1:]:
        head, *body = hunk.splitlines()
        place = re.match(r"-(\d+)(?:,(\d+))? ", head)
        assert place is not None, hunk
        first, count = int(place[1]) - 1, int(place[2] or 1)
        old, new = ([line[1:] for line in body if line[:1] == sign] for sign in "-+")
        start = first + moved + (count == 0)
        assert lines[start : start + count] == old, hunk
        lines[start : start + count] = new
        moved += len(new) - count
    return "\n".join(lines) + "\n"


def _run(model: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    given = copy.deepcopy(inputs)
    torch.manual_seed(0)
    with torch.no_grad():
        out = model(*given)
    return [leaf.float() for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor) and not leaf.is_complex()]
