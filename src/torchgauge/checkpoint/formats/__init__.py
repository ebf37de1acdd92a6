"""Formats of single files, one module each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.checkpoint.formats.gguf import BLOCKS, PLAIN

__all__ = ["BLOCKS", "PLAIN"]

__getattr__ = lazy_names(__name__)
