"""Layouts of packed parameters: one file per family, each turns stored codes and scales back to values."""

from __future__ import annotations

# Importing a layout registers it.
from torchgauge.weights.packings import awq, bitsandbytes, compressed, gptq, scaled, small_floats
from torchgauge.weights.packings.packing import LAYOUTS, Block, Names, Packing, Read

__all__ = [
    "LAYOUTS",
    "Block",
    "Names",
    "Packing",
    "Read",
    "awq",
    "bitsandbytes",
    "compressed",
    "gptq",
    "scaled",
    "small_floats",
]
