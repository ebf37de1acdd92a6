"""Layouts of packed parameters: each turns stored codes and scales back into values."""

from __future__ import annotations

# Importing a layout registers it.
from torchgauge.weights.packings import bitsandbytes, gguf, scaled, words
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
    "LAYOUTS", "Block", "Packing", "Unpacked", "bitsandbytes", "dequantized_figures", "find_packing", "gguf", "scaled",
    "unpack", "words",
]  # fmt: skip
