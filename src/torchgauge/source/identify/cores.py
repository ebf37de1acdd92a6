"""The model's own tensors in a state dict: without copies of the model and without what stands before all names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchgauge.checkpoint.tensor_names import COPIES
from torchgauge.source.state_names import Shape

# A moving average of the weights, and the number of its steps.
_COPIES = frozenset({*COPIES, "n_averaged"})
_DEEPEST = 6


def cores(shapes: Mapping[str, Shape]) -> Iterator[dict[str, Shape]]:
    """The tensors under their names, then with one common part less each time."""
    current = _without_copies(shapes)
    for _ in range(_DEEPEST):
        yield current
        first = next(iter(current), "").partition(".")
        lead = first[0] + first[1]
        if not first[1] or not all(name.startswith(lead) for name in current):
            return
        current = _without_copies({name[len(lead) :]: shape for name, shape in current.items()})


def _without_copies(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Without the copy where the model itself is there too."""
    own = {name: shape for name, shape in shapes.items() if name.partition(".")[0] not in _COPIES}
    return own or dict(shapes)
