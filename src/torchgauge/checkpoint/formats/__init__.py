"""Formats of single files, one module each."""

from torchgauge.checkpoint.formats.gguf import BLOCKS, PLAIN

__all__ = ["BLOCKS", "PLAIN"]
