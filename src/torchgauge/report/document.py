"""The JSON document of the contract: valid for any reader, one row per line so that it can be searched and compared."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from torchgauge.report.options import Options
from torchgauge.report.registry import renderer
from torchgauge.view import View


@renderer("json", suffix=".json")
def render_document(view: View, options: Options) -> str:
    members = [f" {json.dumps(key)}: {_member(value)}" for key, value in view.to_dict().items()]
    return "{\n" + ",\n".join(members) + "\n}\n"


def _member(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {json_line(item)}" for item in value) + "\n ]"
    return json_line(value)


def json_line(value: Any) -> str:
    """JSON on one line that any reader takes."""
    # Escaped beyond ASCII: a name may hold half a surrogate pair, which no encoding can write.
    try:
        return json.dumps(value, allow_nan=False, default=str)
    except ValueError:
        # An infinity: rare enough that walking through every value beforehand would be the larger cost.
        return json.dumps(json_value(value), allow_nan=False)


def json_value(value: Any) -> Any:
    """The value with what JSON cannot hold (infinities, types, slices) given by its text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return dict(_members(value))
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return str(value)


def _members(mapping: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        yield str(key), json_value(value)
