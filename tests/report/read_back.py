"""The content of a rendered report, read back with the readers of its format."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

from torchgauge.report.formats import NAMESPACE, ROWS, SINGLES, attributes_of

Rows = list[dict[str, Any]]


class PageText(HTMLParser):
    """The elements and the text of HTML; the text of scripts by their type."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.scripts: list[tuple[str, str]] = []
        self._script: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._script = (dict(attrs).get("type") or "") if tag == "script" else None

    def handle_endtag(self, tag: str) -> None:
        self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is None:
            self.text.append(data)
        else:
            self.scripts.append((self._script, data))


def page_text(html: str) -> PageText:
    page = PageText()
    page.feed(html)
    page.close()
    return page


def page_payload(html: str) -> dict[str, Any]:
    (payload,) = [text for kind, text in page_text(html).scripts if kind == "application/json"]
    found: dict[str, Any] = json.loads(payload)
    return found


def page_column(store: dict[str, Any], name: str) -> list[Any]:
    """A column of the page's data; its forms are described in the page's column store."""
    found, length = store["columns"].get(name), store["length"]
    if isinstance(found, dict):
        return [found["same"]] * length if "same" in found else [found["table"][place] for place in found["index"]]
    return [None] * length if found is None else list(found)


def html_tables(html: str) -> list[list[list[str]]]:
    """The cells of every table of well-formed HTML."""
    root = ElementTree.fromstring(f"<html>{html}</html>")
    return [
        [["".join(cell.itertext()) for cell in row if cell.tag in ("td", "th")] for row in table.iter("tr")]
        for table in root.iter("table")
    ]


def parquet_content(data: bytes) -> dict[str, Any]:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(io.BytesIO(data))
    types = {field.name: str(field.type) for field in table.schema}
    return {"metadata": json.loads(table.schema.metadata[b"torchgauge"]), "types": types, "rows": table.to_pylist()}


def csv_rows(text: str) -> Rows:
    return list(csv.DictReader(io.StringIO(text)))


def xml_document(text: str) -> dict[str, Any]:
    """The JSON document again, without what is null."""
    root = ElementTree.fromstring(text)
    document: dict[str, Any] = {
        "schema_version": int(root.attrib["schema_version"]),
        "created": root.attrib["created"],
    }
    for element in root:
        tag = _tag(element)
        if tag in ROWS:
            document[tag] = [_row(row) for row in element]
        elif tag in SINGLES:
            document[tag] = _row(element)
        else:
            name = element.attrib.get("key", tag)
            document[name] = _value(element) if "key" in element.attrib else _members(element)
    return document


def _tag(element: ElementTree.Element) -> str:
    return element.tag.removeprefix(f"{{{NAMESPACE}}}")


def _row(element: ElementTree.Element) -> dict[str, Any]:
    kinds = attributes_of(_tag(element))
    plain = {key: _plain(text, kinds[key]) for key, text in element.attrib.items()}
    return plain | _members(element)


def _plain(text: str, kind: str) -> Any:
    if kind == "xs:string":
        return text
    if kind == "xs:boolean":
        return text == "true"
    return int(text) if kind in ("count", "bytes") else float(text)


def _members(element: ElementTree.Element) -> dict[str, Any]:
    return {child.attrib["key"]: _value(child) for child in element}


def _value(element: ElementTree.Element) -> Any:
    text = element.text or ""
    read: dict[str, Callable[[], Any]] = {
        "object": lambda: _members(element),
        "list": lambda: [_value(child) for child in element],
        "integers": lambda: [int(part) for part in text.split()],
        "numbers": lambda: [float(part) for part in text.split()],
        "integer": lambda: int(text),
        "number": lambda: float(text),
        "boolean": lambda: text == "true",
        "text": lambda: text,
        "null": lambda: None,
    }
    return read[_tag(element)]()


def markdown_tables(text: str) -> dict[str, list[list[str]]]:
    """The rows of the tables by the heading above them."""
    tables: dict[str, list[list[str]]] = {}
    heading = ""
    for line in text.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("| ") and not line.startswith(("| :-", "| -")):
            tables.setdefault(heading, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return tables


def latex_tables(text: str) -> dict[str, list[list[str]]]:
    """The rows of the tables by their label."""
    found = re.findall(r"\\label\{tab:torchgauge-(\w+)\}.*?\\midrule\n(.*?)\s*\\bottomrule", text, re.DOTALL)
    return {label: [_latex_cells(line) for line in body.splitlines()] for label, body in found}


def _latex_cells(line: str) -> list[str]:
    plain = line.strip().removesuffix(r"\\").strip()
    for written, meant in ((r"$\times$", "×"), (r"\%", "%"), (r"$\mu$", "µ"), ("{-}", "-")):
        plain = plain.replace(written, meant)
    return [cell.strip() for cell in re.split(r"(?<!\\)&", plain)]


def node_work(text: str) -> Iterator[tuple[int, int, int]]:
    """The index, MACs and FLOPs of every node of the comprehensive report."""
    pattern = r"^Node (\d+): .*?^  work +([\d,]+) MACs, ([\d,]+) FLOPs$"
    for index, macs, flops in re.findall(pattern, text, re.DOTALL | re.MULTILINE):
        yield int(index), int(macs.replace(",", "")), int(flops.replace(",", ""))
