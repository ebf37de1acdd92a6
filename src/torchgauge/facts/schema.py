"""Check untrusted JSON against the expected types, and make records of it.

The types are Python's own annotations: a `TypedDict` or a dataclass is an object with at least these keys, of which
`NotRequired` ones and those with a default may be missing; a tuple is a list; `Annotated[…, Rule]` is a type with a
condition. It is checked once, where it is read; the rest of the program relies on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import inf, isfinite
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from torchgauge.errors import FormatError, TorchgaugeError

T = TypeVar("T")
Check = Callable[[Any], None]

# Far above every figure; products of two or three still fit a float.
MAX_NUMBER = 10**100
# Counts, bytes and sizes: the product of a dozen dimensions must fit a float.
MAX_WHOLE = 10**24
# Structures of inputs and outputs are a few levels deep; Python's recursion limit is far above.
MAX_DEPTH = 60

_WORDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a whole number",
          float: "a number", NoneType: "null"}  # fmt: skip


class Rule(NamedTuple):
    """A condition on a value of the right type, and in words what it asks for."""

    holds: Callable[[Any], bool]
    words: str


Count = Annotated[int, Rule(lambda value: value >= 0, "a non-negative whole number")]


def one_of(*choices: str) -> Rule:
    return Rule(choices.__contains__, f"one of {', '.join(map(repr, choices))}")


class MismatchError(Exception):
    """The expected type of a value; `keys` lead to it, the innermost first."""

    def __init__(self, expected: str, value: Any) -> None:
        super().__init__(expected)
        self.expected, self.value = expected, value
        self.keys: list[str] = []

    def describe(self) -> str:
        shown = repr(self.value)
        if isinstance(self.value, dict | list | tuple):
            shown = _WORDS[dict if isinstance(self.value, dict) else list]
        place = "".join(reversed(self.keys)).removeprefix(".")
        return f"{place or 'it'} is {shown if len(shown) < 60 else shown[:60] + '…'}, not {self.expected}"


def conform(value: Any, kind: type[T], what: str, error: type[TorchgaugeError] = FormatError) -> T:
    """The value, if it is of the type `kind`; otherwise raises `error`, with `what` and the path of the wrong key."""
    try:
        check_of(kind)(value)
    except MismatchError as mismatch:
        raise error(f"{what}: {mismatch.describe()}") from None
    return value


def read(value: Any, kind: type[T], what: str) -> T:
    """The value in the form of its type, once it is found to be of it: instances of the dataclasses within, and tuples.
    Members that a dataclass lacks are ignored."""
    conform(value, kind, what)
    make = _maker_of(cast(Any, kind))
    return cast(T, value if make is None else make(value))


def read_records(value: Any, kind: type[T], what: str) -> list[T]:
    return read(value, list[kind], what)  # type: ignore[valid-type]


def as_json(value: Any) -> Any:
    """The inverse of `read`: dataclasses as objects, tuples as lists."""
    if is_dataclass(value):
        return {item.name: as_json(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list | tuple) else value


@cache
def _maker_of(kind: Any) -> Callable[[Any], Any] | None:
    """The function that turns JSON into a value of the type; None where it is one already."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _maker_of(arguments[0])
    if is_dataclass(kind) or is_typeddict(kind):
        makers = {key: _maker_of(hint) for key, hint in get_type_hints(kind).items()}
        changed = {key: make for key, make in makers.items() if make is not None}

        def members(row: dict[str, Any]) -> dict[str, Any]:
            return {key: changed[key](row[key]) if key in changed else row[key] for key in makers if key in row}

        if is_dataclass(kind):
            construct: Any = kind
            return lambda row: construct(**members(row))
        return (lambda row: row | members(row)) if changed else None
    if origin in (Union, UnionType):  # `X | None`
        some = next(filter(None, map(_maker_of, arguments)), None)
        return None if some is None else lambda value: None if value is None else some(value)
    if origin not in (tuple, list, dict, Mapping):
        return None
    item = _maker_of(arguments[0 if origin is tuple else -1])
    if item is None:
        return tuple if origin is tuple else None
    if origin in (tuple, list):
        return lambda value: origin(map(item, value))
    return lambda value: {key: item(each) for key, each in value.items()}


_checks: dict[Any, Check] = {}


def check_of(kind: Any) -> Check:
    """The function that raises `MismatchError` unless a value is of a type."""
    if kind not in _checks:
        _checks[kind] = _make_check(kind)
    return _checks[kind]


def _make_check(kind: Any) -> Check:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (Any, object):  # any JSON
        return _check_plain
    if kind in (int, float):
        return _number(kind)
    if kind in _WORDS and kind not in (dict, list):
        return _of_type(kind)
    if is_typeddict(kind) or is_dataclass(kind):
        return _object(kind)
    if origin is Annotated:
        return _ruled(check_of(arguments[0]), arguments[1:])
    if origin in (Union, UnionType):
        return _either(arguments)
    if origin is Literal:
        return _ruled(lambda value: None, (one_of(*arguments),))
    if origin is list or (origin is tuple and arguments[-1] is ...):
        return _list(arguments[0])
    if origin is tuple:
        width = Rule(lambda value: len(value) == len(arguments), f"a list of {len(arguments)}")
        return _ruled(_list(arguments[0]), (width,))
    if origin in (dict, Mapping) and arguments[0] is str:
        return _mapping(check_of(arguments[1]))
    raise TypeError(f"{kind} has no form in JSON")


def _of_type(kind: type) -> Check:
    def check(value: Any) -> None:
        if type(value) is not kind:
            raise MismatchError(_WORDS[kind], value)

    return check


def _number(kind: type) -> Check:
    def check(value: Any) -> None:
        found = type(value)
        # JSON has one kind of number: a float may be written without its fraction.
        if found is not kind and not (found is int and kind is float):
            raise MismatchError(_WORDS[kind], value)
        # Values of weights reach to the ends of float64; NaN and infinity are null in a document.
        most = MAX_WHOLE if kind is int else MAX_NUMBER
        if not (isfinite(value) if found is float else -most <= value <= most):
            raise MismatchError("a number of ordinary size", value if found is float else inf)

    return check


def _require_plain(value: Any, levels: int) -> None:
    """Any JSON, with numbers of ordinary size and not too deep."""
    if type(value) in (int, float):
        check_of(type(value))(value)
    elif isinstance(value, dict | list | tuple):
        if not levels:
            raise MismatchError(f"nested less than {MAX_DEPTH} levels deep", value)
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            try:
                _require_plain(item, levels - 1)
            except MismatchError as error:
                error.keys.append(f".{key}" if isinstance(value, dict) else f"[{key}]")
                raise


def _check_plain(value: Any) -> None:
    _require_plain(value, MAX_DEPTH)


def is_plain_json(value: Any) -> bool:
    """Whether all numbers in any JSON are of ordinary size."""
    try:
        _check_plain(value)
    except MismatchError:
        return False
    return True


def _object(kind: Any) -> Check:
    hints = get_type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        defaults = ((item.name, item.default, item.default_factory) for item in fields(kind))
        optional = {name for name, value, make in defaults if value is not MISSING or make is not MISSING}
    else:
        optional = {key for key, hint in hints.items() if get_origin(hint) is NotRequired} | kind.__optional_keys__
    required = hints.keys() - optional
    checks = {
        key: check_of(get_args(hint)[0] if get_origin(hint) is NotRequired else hint) for key, hint in hints.items()
    }

    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise MismatchError(_WORDS[dict], value)
        if not required <= value.keys():
            missing = next(key for key in hints if key in required and key not in value)
            raise MismatchError(f"an object with '{missing}'", value)
        for key, item in value.items():
            check_member = checks.get(key)
            if check_member is not None:
                try:
                    check_member(item)
                except MismatchError as error:
                    error.keys.append(f".{key}")
                    raise

    return check


def _list(kind: Any) -> Check:
    check_item = check_of(kind)

    def check(value: Any) -> None:
        if not isinstance(value, list | tuple):
            raise MismatchError(_WORDS[list], value)
        # Histograms are long: a list of numbers alone is seen to be one as a whole.
        types = set(map(type, value)) if len(value) > 8 else None
        if (types == {float} and kind is float and isfinite(sum(value))) or (
            types == {int} and kind is Count and min(value) >= 0 and max(value) <= MAX_WHOLE
        ):
            return
        at = 0
        try:
            for item in value:
                check_item(item)
                at += 1
        except MismatchError as error:
            error.keys.append(f"[{at}]")
            raise

    return check


def _mapping(check_item: Check) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise MismatchError(_WORDS[dict], value)
        for key, item in value.items():
            try:
                check_item(item)
            except MismatchError as error:
                error.keys.append(f".{key}")
                raise

    return check


def _either(kinds: tuple[Any, ...]) -> Check:
    """`X | None`, or one of several; the error is that of the last, which is where the details are."""
    *others, last = sorted((kind for kind in kinds if kind is not NoneType), key=lambda kind: kind not in _WORDS)
    allows_null = NoneType in kinds
    checks = [check_of(kind) for kind in others]
    check_last = check_of(last)

    def check(value: Any) -> None:
        if value is None and allows_null:
            return
        for check_other in checks:
            try:
                return check_other(value)
            except MismatchError:
                continue
        try:
            check_last(value)
        except MismatchError as error:
            if not error.keys and allows_null:
                error.expected += " or null"
            raise

    return check


def _ruled(check_type: Check, rules: tuple[Rule, ...]) -> Check:
    def check(value: Any) -> None:
        check_type(value)
        for rule in rules:
            if not rule.holds(value):
                raise MismatchError(rule.words, value)

    return check
