"""One file with everything in it: the template, the style, the scripts and the data."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any

from torchgauge.report.escape import html_text

# In the order of their dependencies.
KIT = (
    "dom", "format", "store", "selection", "tip", "chart", "marks", "rows",
    "groups", "partition", "paint", "fills", "table", "section", "theme",
)  # fmt: skip
STYLES = ("page.css", "graph.css", "charts.css")
# The data are inside a script element: nothing in them may end it or begin a comment.
_ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


def assemble(title: str, payload: Mapping[str, Any], sections: Sequence[str], picture: str = "") -> str:
    """The page. `sections` name the files that draw it, in order; `payload` is plain JSON data by part; `picture` is an
    SVG that a section shows."""
    script = "\n".join(
        [
            *(_asset(f"kit/{name}.js") for name in KIT),
            *(_asset(f"sections/{name}.js") for name in sections),
            "tg.start();",
        ]
    )
    # The page fetches nothing and runs no other script, whatever the data contain.
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    return Template(_asset("page.html")).substitute(
        title=html_text(title),
        policy=policy,
        style="\n".join(map(_asset, STYLES)),
        plain=plain_overview(payload),
        picture=picture,
        payload=json.dumps(payload, allow_nan=False, separators=(",", ":")).translate(_ESCAPES),
        script=script,
    )


def plain_overview(payload: Mapping[str, Any]) -> str:
    """The figures of the overview as text, for a reader without scripts."""
    found = payload.get("overview")
    if not found:
        return ""
    items = ""
    for card in found["cards"]:
        note = card["note"] if card["kind"] == "static" else f"{card['kind']}; {card['note']}"
        label, value, remark = map(html_text, (card["label"], card["value"], note))
        items += f"<dt>{label}</dt><dd><b>{value}</b> <small>{remark}</small></dd>"
    warnings = "\n".join(map(html_text, found["warnings"]))
    heading = f"<h1>{html_text(found['name'])}</h1><p>{html_text(found['kind'])} · {html_text(found['run'])}</p>"
    return f'{heading}<p class="warning lines">{warnings}</p><dl class="facts">{items}</dl>'


def _asset(name: str) -> str:
    return files("torchgauge.report.page").joinpath("assets", name).read_text(encoding="utf-8")
