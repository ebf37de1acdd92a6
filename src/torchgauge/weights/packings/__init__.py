"""Layouts of packed parameters, one file per family: each turns stored codes and scales back into values."""

from __future__ import annotations

# Importing a layout registers it.
from torchgauge.weights.packings import awq, bitsandbytes, compressed, gguf, gptq, scaled, small_floats
from torchgauge.weights.packings.packing import (
    LAYOUTS,
    Block,
    Packing,
    Unpacked,
    dequantized_figures,
    find_packing,
    unpack,
)

__all__ = [
    "LAYOUTS",
    "Block",
    "Packing",
    "Unpacked",
    "awq",
    "bitsandbytes",
    "compressed",
    "dequantized_figures",
    "find_packing",
    "gguf",
    "gptq",
    "scaled",
    "small_floats",
    "unpack",
]
