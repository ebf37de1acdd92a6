"""Ops that take a tensor apart: a tensor without data costs nothing, but each of its pieces does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchgauge.errors import ForwardError

MOST_PIECES = 1 << 20  # more than any model has use for
_NAMES = frozenset(("unbind", "split", "split_with_sizes", "chunk", "tensor_split", "hsplit", "vsplit", "dsplit",
                    "combinations"))  # fmt: skip


def count_pieces(op: str, arguments: Mapping[str, Any]) -> int:
    """How many tensors an op that takes one apart would make of these arguments, by the names of its schema; 0 for any
    other op."""
    if not takes_apart(op):
        return 0
    shape, dim = arguments["self"].shape, arguments.get("dim") or 0
    length = int(shape[dim]) if shape and -len(shape) <= dim < len(shape) else 0
    for given in ("split_size", "split_sizes", "chunks", "sections", "indices", "r"):
        value = arguments.get(given)
        if isinstance(value, list | tuple):
            return len(value) + 1
        if isinstance(value, int):
            return -(-length // max(value, 1)) if given == "split_size" else max(value, 0)
    return length


def takes_apart(op: str) -> bool:
    return op.partition("::")[2].removeprefix("unsafe_").removesuffix("_copy") in _NAMES


def bounded(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The operator; where it takes tensors apart, one that first refuses to make more pieces than anyone can hold. Some
    make room for all of them before the first one is made, where no dispatch mode sees it."""
    if not takes_apart(op):
        return function
    schema: Any = function._schema  # type: ignore[attr-defined]
    names = [argument.name for argument in schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        count = count_pieces(op, dict(zip(names, args, strict=False)) | kwargs)
        if count > MOST_PIECES:
            raise ForwardError(f"the graph takes a tensor into {count:,} pieces ({op})")
        return function(*args, **kwargs)

    run._schema = schema  # type: ignore[attr-defined]
    return run
