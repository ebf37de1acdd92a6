"""Report formats, one file each. `registry.py` finds them here; nothing else lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.report.formats.comprehensive import CHAPTERS
    from torchgauge.report.formats.dot import quoted
    from torchgauge.report.formats.latex import LEFT_OUT, escape_latex, paragraph
    from torchgauge.report.formats.markdown import LONGEST_NAME, code, escape_markdown
    from torchgauge.report.formats.text import report_lines, write_sections
    from torchgauge.report.formats.trace import ModuleRange, module_ranges
    from torchgauge.report.formats.xml import NAMESPACE, ORDER, ROWS, SCHEMA, SINGLES, attributes_of, schema_text

__all__ = [
    "CHAPTERS", "LEFT_OUT", "LONGEST_NAME", "NAMESPACE", "ORDER", "ROWS", "SCHEMA", "SINGLES", "ModuleRange",
    "attributes_of", "code", "escape_latex", "escape_markdown", "module_ranges", "paragraph", "quoted", "report_lines",
    "schema_text", "write_sections",
]  # fmt: skip

_HOMES = {
    "comprehensive": ("CHAPTERS",),
    "dot": ("quoted",),
    "latex": ("LEFT_OUT", "escape_latex", "paragraph"),
    "markdown": ("LONGEST_NAME", "code", "escape_markdown"),
    "text": ("report_lines", "write_sections"),
    "trace": ("ModuleRange", "module_ranges"),
    "xml": ("NAMESPACE", "ORDER", "ROWS", "SCHEMA", "SINGLES", "attributes_of", "schema_text"),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
