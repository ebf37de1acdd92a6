"""The shapes that packed weights have once unpacked: by those a model can be recognised."""

from __future__ import annotations

from collections.abc import Mapping

from torchgauge.checkpoint import Entry, Index
from torchgauge.source.state_names import Shape, model_entries

_BLOCK = 32  # values with one scale in MXFP4


def logical_shapes(index: Index) -> dict[str, Shape]:
    """The model's tensors without those that only serve a packing, under the names they have unpacked."""
    entries = model_entries(index)
    held = {name: entry for name, entry in entries.items() if entry.logical_elements != 0}
    return dict(_unpacked(name, entry, entries) for name, entry in held.items())


def _unpacked(name: str, entry: Entry, entries: Mapping[str, Entry]) -> tuple[str, Shape]:
    shape, count = entry.spec.shape, entry.logical_elements
    if count is None:
        return name, shape
    layer = name.removesuffix("qweight")
    scales = entries.get(f"{layer}scales")
    if layer != name and scales is not None:
        # GPTQ and AWQ: the scales have a column for each output.
        outputs = scales.spec.shape[-1]
        return f"{layer}weight", (outputs, count // max(outputs, 1))
    if name.endswith(".weight_packed") and shape:
        return name.removesuffix("_packed"), (shape[0], count // max(shape[0], 1))
    if name.endswith("_blocks") and len(shape) == 4:
        # Experts by outputs by blocks of the inputs: models multiply from the other side.
        return name.removesuffix("_blocks"), (shape[0], shape[2] * _BLOCK, shape[1])
    return name, shape
