"""What reports say: one file per group of sections, which every format renders.

A file here has `sections(view, options)`, which yields them. Nothing else lists them: `Topic` says where in the report
a section stands, and without one it comes last.

    def sections(view: View, options: Options) -> Iterator[Section]:
        yield Section("Names", (Text(f"{len(view.modules)} modules"),))
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from torchgauge.facts import View
from torchgauge.report.model import Section
from torchgauge.report.options import Options


def sections_of(view: View, options: Options) -> list[Section]:
    """All sections of the report, in the order of their topics."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    found = [section for module in modules for section in module.sections(view, options)]
    return sorted(found, key=lambda section: section.topic)
