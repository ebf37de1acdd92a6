"""GGUF's quantized blocks, dequantized by the `gguf` package of llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchgauge.checkpoint import Entry
from torchgauge.checkpoint.formats.gguf import BLOCKS
from torchgauge.isolation import NeedsPackageError, is_isolated
from torchgauge.weights.packings.packing import BLOCK_VALUES, Block, Packing, ReadBytes, Tensors, layout

_SIZES = {name: (values, nbytes) for name, values, nbytes in BLOCKS.values()}


@layout("gguf")
def gguf(entry: Entry, tensors: Tensors, read: ReadBytes) -> Packing | None:
    """None without the package, and for types that it cannot dequantize; then the statistics are of the bytes."""
    if entry.encoding is None or entry.big_endian:
        return None
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError:
        return None
    except PermissionError as error:
        if is_isolated():
            raise NeedsPackageError("gguf") from error
        raise
    kind = GGMLQuantizationType.__members__.get(entry.encoding)
    if kind is None:
        return None
    values, nbytes = _SIZES[entry.encoding]
    try:
        dequantize(np.zeros((1, nbytes), np.uint8), kind)
    except (NotImplementedError, KeyError, ValueError):
        return None
    blocks_at_once = max(BLOCK_VALUES // values, 1)
    shape = (*entry.spec.shape[:-1], entry.spec.shape[-1] // nbytes * values)

    def blocks() -> Iterator[Block]:
        total = entry.nbytes // nbytes
        for start in range(0, total, blocks_at_once):
            count = min(blocks_at_once, total - start)
            data = np.frombuffer(read(entry, start * nbytes, count * nbytes), np.uint8).reshape(count, nbytes)
            yield Block(np.ascontiguousarray(dequantize(data, kind), np.float32).ravel(), data.ravel())

    return Packing(f"gguf {entry.encoding}", 8, shape, blocks)
