"""The JSON document as XML, in the form that `torchgauge.xsd` describes.

A member is an attribute where the schema declares it and the value fits its type, else a keyed child, so that every
document is valid, also one with members the schema does not know. `pytest tests/report --regenerate` writes the
attributes of the schema from the table of figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from html import escape
from importlib.resources import files
from typing import Any

from torchgauge.facts import View
from torchgauge.facts.figures import MODULES, OPS, TOTALS, WEIGHTS, Unit, figures_of
from torchgauge.report.escape import html_text
from torchgauge.report.options import Options
from torchgauge.report.registry import renderer
from torchgauge.units import visible

NAMESPACE = "urn:torchgauge:1"
SCHEMA = "torchgauge.xsd"
_XSD = "{http://www.w3.org/2001/XMLSchema}"

# The members of the document: rows by the name of their element, single rows, and free structures, in the order of the
# schema. Other members come last, keyed.
ROWS = {
    "inputs": "input", "modules": "module", "ops": "op", "parameters": "parameter", "weights": "weight",
    "advice": "recommendation",
}  # fmt: skip
SINGLES = ("tool", "environment", "target", "capture", "totals")
ORDER = (
    "tool", "environment", "target", "inputs", "capture", "architecture", "totals", "modules", "ops", "parameters",
    "weights", "weight_summary", "against", "pickle", "measurements", "trace", "energy", "advice",
)  # fmt: skip


# The same few names and types come again in every row.
_quoted = lru_cache(maxsize=10_000)(html_text)


@renderer(
    "xml",
    suffix=".xml",
    contents="the document as XML; its schema is `torchgauge.xsd`, in the package",
    scans=(".xml",),
)
def render_xml(view: View, options: Options) -> str:
    document = view.to_dict()
    version, created = document["schema_version"], _quoted(str(document["created"]))
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<torchgauge xmlns="{NAMESPACE}" schema_version="{version}" created="{created}">',
    ]
    for name in ORDER:
        value = document.get(name)
        if value is None:
            continue
        if name in SINGLES:
            lines.append(_row(name, value))
        else:
            inside = (_row(ROWS[name], row) for row in value) if name in ROWS else _members(value)
            lines += [f"<{name}>", *inside, f"</{name}>"]
    for name, value in document.items():
        if name not in (*ORDER, "schema_version", "created") and value is not None:
            lines.append(_element(value, name))
    return "\n".join([*lines, "</torchgauge>\n"])


def _row(tag: str, row: Mapping[str, object]) -> str:
    declared = attributes_of(tag)
    plain, nested = [], []
    for key, value in row.items():
        if value is None:
            continue
        if key in declared and (text := _FORMS[declared[key]](value)) is not None:
            plain.append(f' {key}="{text}"')
        else:
            nested.append(_element(value, key))
    start = f"<{tag}{''.join(plain)}"
    return f"{start}>{''.join(nested)}</{tag}>" if nested else f"{start}/>"


def _members(mapping: Mapping[str, object]) -> Iterator[str]:
    for key, value in mapping.items():
        if value is not None:
            yield _element(value, str(key))


def _element(value: object, key: str | None = None) -> str:
    name = "" if key is None else f' key="{_quoted(key)}"'
    if value is None:
        return f"<null{name}/>"
    if isinstance(value, Mapping):
        return f"<object{name}>{''.join(_members(value))}</object>"
    if isinstance(value, list | tuple):
        # Numbers alone are one text: a histogram or a trace has thousands.
        if value and all(type(item) is int for item in value):
            return f"<integers{name}>{' '.join(map(str, value))}</integers>"
        if value and all(map(_is_number, value)):
            return f"<numbers{name}>{' '.join(map(repr, value))}</numbers>"
        return f"<list{name}>{''.join(map(_element, value))}</list>"
    if isinstance(value, bool):
        return f"<boolean{name}>{'true' if value else 'false'}</boolean>"
    if isinstance(value, int):
        return f"<integer{name}>{value}</integer>"
    if isinstance(value, float) and math.isfinite(value):
        return f"<number{name}>{value!r}</number>"
    # A value that is not finite is text, as in the JSON.
    return f"<text{name}>{_text(str(value))}</text>"


@lru_cache(maxsize=10_000)
def _text(text: str) -> str:
    """Lines stay lines: the code of an advice has several."""
    return "\n".join(escape(visible(line), quote=False) for line in text.split("\n"))


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


_FORMS: Mapping[str, Callable[[Any], str | None]] = {
    "xs:string": lambda value: _quoted(value) if isinstance(value, str) else None,
    "xs:boolean": lambda value: ("true" if value else "false") if isinstance(value, bool) else None,
    **dict.fromkeys(("count", "bytes"), lambda value: str(value) if type(value) is int and value >= 0 else None),
    **dict.fromkeys(("xs:double", "seconds", "joules"), lambda value: repr(value) if _is_number(value) else None),
}


# The type of an attribute by its unit; other numbers are xs:double.
_TYPES = {
    Unit.TEXT: "xs:string", Unit.COUNT: "count", Unit.WHOLE: "count", Unit.BYTES: "bytes", Unit.SECONDS: "seconds",
    Unit.JOULES: "joules",
}  # fmt: skip


@cache
def attributes_of(tag: str) -> dict[str, str]:
    """The attributes that the schema declares for a row: the name -> the type."""
    from xml.etree import ElementTree

    schema = ElementTree.fromstring(schema_text())
    rows = {found.attrib["name"]: found for found in schema.iter(f"{_XSD}complexType") if "name" in found.attrib}
    return {found.attrib["name"]: found.attrib["type"] for found in rows[tag].iter(f"{_XSD}attribute")}


def schema_text() -> str:
    """The schema, with the attributes of rows as the table of figures has them."""
    text = files("torchgauge.report").joinpath(SCHEMA).read_text(encoding="utf-8")
    for level, tag in ((TOTALS, "totals"), (MODULES, "module"), (OPS, "op"), (WEIGHTS, "weight")):
        declared = "".join(
            f'    <xs:attribute name="{figure.key}" type="{_TYPES.get(figure.unit, "xs:double")}"/>\n'
            for figure in figures_of(level)
            if figure.unit.is_scalar
        )
        start = text.index("/>\n", text.index(f'<xs:complexType name="{tag}">')) + len("/>\n")
        text = text[:start] + declared + text[text.index("  </xs:complexType>", start) :]
    return text
