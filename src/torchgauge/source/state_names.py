"""The tensors of the model in a checkpoint, by names without containers and wrappers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchgauge.checkpoint import Entry, Index, Role
from torchgauge.checkpoint.tensor_names import CONTAINER_PREFIXES, WRAPPER_PREFIXES

Shape = tuple[int, ...]

DEEPEST = 40


def model_entries(index: Index) -> dict[str, Entry]:
    """The tensors of the model, without its optimizer, by their names in the model."""
    prefix = str(index.metadata.get("model_prefix", "")).rstrip(".")
    lead = f"{prefix}." if prefix else ""
    own = [x for x in index.entries if x.role is not Role.OPTIMIZER and x.name.startswith(lead)]
    # In a bare state dict, tensors that are neither parameters nor buffers are not the model's.
    entries = own if lead else [x for x in own if x.role is not Role.OTHER or x.logical_elements is not None]
    stripped = strip_all((entry.name[len(lead) :] for entry in entries), WRAPPER_PREFIXES)
    return dict(zip(map(shallow, stripped), entries, strict=True))


def shallow(name: str) -> str:
    """Limit the depth of a name: no model nests so deep, and a file must not create a tree of a million levels."""
    if name.count(".") < DEEPEST:
        return name
    *folders, last = name.split(".", DEEPEST)
    return ".".join([*folders, last.replace(".", "/")]) if len(folders) == DEEPEST else name


def model_shapes(index: Index) -> dict[str, Shape]:
    return {name: entry.spec.shape for name, entry in model_entries(index).items()}


def strip_all(names: Iterable[str], prefixes: tuple[str, ...]) -> list[str]:
    """The names without the prefixes that all of them share."""
    stripped = list(names)
    while True:
        common = next((p for p in prefixes if stripped and all(name.startswith(p) for name in stripped)), None)
        if common is None:
            return stripped
        stripped = [name.removeprefix(common) for name in stripped]


def variants(shapes: dict[str, Shape]) -> Iterator[dict[str, Shape]]:
    """The tensors under their names, then without one more container each time."""
    yield shapes
    while True:
        common = next((p for p in CONTAINER_PREFIXES if shapes and all(name.startswith(p) for name in shapes)), None)
        if common is None:
            return
        shapes = {name.removeprefix(common): shape for name, shape in shapes.items()}
        yield shapes
