"""What reports say: one file per group of sections, which every format renders.

A file here has `sections(view, options)`, which yields them; files are taken in the order of their names. Nothing else
lists them:

    def sections(view: View, options: Options) -> Iterator[Section]:
        yield Section("Names", (Text(f"{len(view.modules)} modules"),))
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from torchgauge.facts import View
from torchgauge.report.model import Section
from torchgauge.report.options import Options


def sections_of(view: View, options: Options) -> Iterator[Section]:
    for module in iter_modules(__path__):
        yield from import_module(f"{__name__}.{module.name}").sections(view, options)
