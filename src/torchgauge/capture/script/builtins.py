"""What TorchScript does with numbers, texts, lists and dicts, in Python: such values are Python's own here.

Torch's operators for them would work on copies: an `append` would be lost.
Methods that make a text longer check its length first: torch's own would fill the memory.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from torchgauge.capture.signals import Endless

LONGEST = 1 << 22  # elements of one list or text that a graph may make; `Budget` has the limit for all of them


def require_length(count: int) -> None:
    if count > LONGEST:
        raise Endless(f"the graph makes a list or text of {count:,} elements")


def require_spelled_length(*values: Any) -> None:
    """Of what goes through every list in a list: a thousand times one list is short in memory and long when spelled."""
    waiting: list[Any] = [values]
    count = 0
    while waiting:
        items = waiting.pop()
        count += len(items)
        require_length(count)
        nested = items.values() if isinstance(items, dict) else items
        waiting.extend(item for item in nested if isinstance(item, list | tuple | dict))


def _padded(pad: Callable[..., str]) -> Callable[..., str]:
    def run(text: str, width: int, *fill: str) -> str:
        require_length(width)
        return pad(text, width, *fill)

    return run


def _expand_tabs(text: str, size: int = 8) -> str:
    require_length(len(text) + text.count("\t") * size)
    return text.expandtabs(size)


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    found = text.count(old)
    times = found if limit < 0 else min(found, limit)
    require_length(len(text) + times * (len(new) - len(old)))
    return text.replace(old, new, limit)


def _join(separator: str, parts: list[str]) -> str:
    require_length(len(separator) * len(parts) + sum(map(len, parts)))
    return separator.join(parts)


TEXTS: dict[str, Callable[..., Any]] = {
    "aten::ljust": _padded(str.ljust),
    "aten::rjust": _padded(str.rjust),
    "aten::center": _padded(str.center),
    "aten::zfill": _padded(str.zfill),
    "aten::expandtabs": _expand_tabs,
    "aten::replace": _replace,
    "aten::join": _join,
}


def _multiply(left: Any, right: Any) -> Any:
    for items, times in ((left, right), (right, left)):
        if isinstance(items, list | str):
            require_length(len(items) * times)
    return _wrapped(left * right)


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, list | str):
        require_length(len(left) + len(right))
    return _wrapped(left + right)


def _extend(items: list[Any], more: list[Any]) -> list[Any]:
    require_length(len(items) + len(more))
    items += more
    return items


def _repeat(items: list[Any], times: int) -> list[Any]:
    require_length(len(items) * times)
    items *= times
    return items


def _range(count: int) -> list[int]:
    require_length(count)
    return list(range(count))


def _wrapped(value: Any) -> Any:
    """An integer has 64 bits; without end, a loop could make one that fills the memory."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63) if type(value) is int else value


def _format(text: str, *values: Any) -> str:
    """Each `{}` is the next value. Python's own `format` would also look up attributes that a text names."""
    require_spelled_length(values)
    parts = text.split("{}")
    filled = [part + str(value) for part, value in zip(parts, values, strict=False)]
    result = "".join(filled) + "{}".join(parts[len(filled) :])
    require_length(len(result))
    return result


def _text(value: Any) -> str:
    require_spelled_length((value,))
    return str(value)


def _to_list(tensor: Any, dim: int, kind: int) -> Any:
    require_length(tensor.numel())
    return tensor.tolist()


def _changed(items: Any, _: None) -> Any:
    return items


BUILTINS: dict[str, Callable[..., Any]] = {
    "aten::add": _add,
    "aten::sub": operator.sub,
    "aten::mul": _multiply,
    "aten::neg": operator.neg,
    "aten::floordiv": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::div": operator.truediv,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
    "aten::__xor__": operator.xor,
    "aten::__not__": operator.not_,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::__contains__": operator.contains,
    "aten::__getitem__": operator.getitem,
    "aten::len": len,
    "aten::Int": int,
    "aten::Float": float,
    "aten::Bool": bool,
    "aten::str": _text,
    "aten::add_": _extend,
    "aten::mul_": _repeat,
    "aten::append": lambda items, item: _changed(items, items.append(item)),
    "aten::extend": _extend,
    "aten::insert": lambda items, index, item: items.insert(index, item),
    "aten::pop": lambda items, *where: items.pop(*where),
    "aten::popitem": lambda items: items.popitem(),
    "aten::clear": lambda items: items.clear(),
    "aten::remove": lambda items, item: items.remove(item),
    "aten::reverse": lambda items: items.reverse(),
    "aten::copy": lambda items: items.copy(),
    "aten::index": lambda items, *item: items.index(*item),
    "aten::count": lambda items, *item: items.count(*item),
    "aten::list": list,
    "aten::dict": dict,
    "aten::keys": lambda items: list(items.keys()),
    "aten::values": lambda items: list(items.values()),
    "aten::items": lambda items: list(items.items()),
    "aten::get": lambda items, *key: items.get(*key),
    "aten::setdefault": lambda items, *key: items.setdefault(*key),
    "aten::update": lambda items, other: items.update(other),
    "aten::_set_item": lambda items, key, item: _changed(items, operator.setitem(items, key, item)),
    "aten::Delete": operator.delitem,
    "aten::slice": lambda items, start, stop, step: items[slice(start, stop, step)],
    "aten::format": _format,
    "aten::__range_length": lambda start, stop, step: len(range(start, stop, step)),
    "aten::__derive_index": lambda index, start, step: start + index * step,
    "aten::ceil": math.ceil,
    "aten::floor": math.floor,
    "aten::sqrt": math.sqrt,
    "aten::log": math.log,
    "aten::exp": math.exp,
    "aten::warn": lambda *message: None,
    "aten::_unwrap_optional": lambda value: value,
    "aten::is_scripting": lambda: True,
    "aten::_get_tracing_state": lambda: False,
    "aten::has_torch_function": lambda *values: False,
    "aten::manual_seed": lambda *seed: None,
    "prim::min": min,
    "prim::max": max,
    "prim::abs": abs,
    "prim::rangelist": _range,
    "prim::StringIndex": operator.getitem,
    "prim::unchecked_cast": lambda value: value,
    "prim::unchecked_unwrap_optional": lambda value: value,
    "prim::Print": lambda *values: None,
    "prim::ListConstruct": lambda *items: list(items),
    "prim::TupleConstruct": lambda *items: items,
    "prim::TupleIndex": operator.getitem,
    "prim::DictConstruct": lambda *items: dict(zip(items[::2], items[1::2], strict=True)),
    "prim::IfThenElse": lambda condition, yes, no: yes if condition else no,
    "prim::Uninitialized": lambda: None,
    **TEXTS,
    "prim::tolist": _to_list,
}
