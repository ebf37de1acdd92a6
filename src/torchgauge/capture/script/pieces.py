"""Ops that take a tensor apart: a tensor without data costs nothing, but each of its pieces does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchgauge.capture.script.texts import require_length

Count = Callable[..., int]


def _unbound(tensor: Any, dim: int = 0) -> int:
    return int(tensor.shape[dim]) if tensor.dim() else 0


def _split(tensor: Any, size: Any, dim: int = 0) -> int:
    return -(-_unbound(tensor, dim) // max(size, 1)) if isinstance(size, int) else len(size)


def _chunks(tensor: Any, count: Any, dim: int = 0) -> int:
    return min(count, _unbound(tensor, dim)) if isinstance(count, int) else 0


def _sections(tensor: Any, count: Any, *_: Any) -> int:
    return count if isinstance(count, int) else 0


_PIECES: dict[str, Count] = {
    "aten::unbind": _unbound,
    "aten::split": _split,
    "aten::unsafe_split": _split,
    "aten::chunk": _chunks,
    "aten::unsafe_chunk": _chunks,
    "aten::tensor_split": _sections,
}


def bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The op, or one that first refuses to make more pieces than anyone can hold."""
    count = _PIECES.get(name)
    if count is None:
        return function

    def run(*args: Any) -> Any:
        require_length(count(*args))
        return function(*args)

    return run


def to_list(tensor: Any, dim: int, kind: int) -> Any:
    require_length(tensor.numel())
    return tensor.tolist()
