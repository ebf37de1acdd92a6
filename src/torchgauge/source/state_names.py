"""The model's own tensors in a checkpoint: names without the containers and wrappers around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchgauge.checkpoint.index import Entry, Index, Role

Shape = tuple[int, ...]

DEEPEST = 40

# What trainers and torch.compile put before the names of a model.
WRAPPERS = ("module.", "_orig_mod.")
# These may also be the first attribute of the model itself.
CONTAINERS = (*WRAPPERS, "model.", "state_dict.")


def model_entries(index: Index) -> dict[str, Entry]:
    """The tensors of the model, without its optimizer, by their names in the model."""
    prefix = str(index.metadata.get("model_prefix", "")).rstrip(".")
    lead = f"{prefix}." if prefix else ""
    own = [x for x in index.entries if x.role is not Role.OPTIMIZER and x.name.startswith(lead)]
    # Beside a bare state dict, what is neither parameter nor buffer belongs to someone else.
    entries = own if lead else [x for x in own if x.role is not Role.OTHER or x.logical_elements is not None]
    stripped = strip_all((entry.name[len(lead) :] for entry in entries), WRAPPERS)
    return dict(zip(map(shallow, stripped), entries, strict=True))


def shallow(name: str) -> str:
    """No model nests this deep; a file that does must not make a tree of a million levels."""
    if name.count(".") < DEEPEST:
        return name
    *folders, last = name.split(".", DEEPEST)
    return ".".join([*folders, last.replace(".", "/")]) if len(folders) == DEEPEST else name


def model_shapes(index: Index) -> dict[str, Shape]:
    return {name: entry.spec.shape for name, entry in model_entries(index).items()}


def strip_all(names: Iterable[str], prefixes: tuple[str, ...]) -> list[str]:
    """The names without the prefixes that all of them have."""
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
        common = next((p for p in CONTAINERS if shapes and all(name.startswith(p) for name in shapes)), None)
        if common is None:
            return
        shapes = {name.removeprefix(common): shape for name, shape in shapes.items()}
        yield shapes
