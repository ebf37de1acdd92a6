"""Code of advice, as a user would take it: run on a copy of the model, or applied to the source of its classes."""

from __future__ import annotations

import ast
import builtins
import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torchgauge.advise import Advice, SourceEdit
from torchgauge.verify import apply_edit

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
    with switches_restored():
        if isinstance(advice.change, SourceEdit):
            for file in advice.change.files:
                assert applied(file.before.decode(), code) == file.after.decode()
            changed, given = copy.deepcopy(model), inputs
            apply_edit(changed, advice.change)
        else:
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
    scope: dict[str, Any] = {"torch": torch, "model": copy.deepcopy(model), "inputs": inputs}
    exec(code, scope)
    return scope["model"], tuple(scope["inputs"])


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
