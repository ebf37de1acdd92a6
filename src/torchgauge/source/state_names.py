"""The tensors of the model in a checkpoint, by names without containers and wrappers; comparison with a model's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from torchgauge.checkpoint import Entry, Index, Role
from torchgauge.checkpoint.tensor_names import CONTAINER_PREFIXES, WRAPPER_PREFIXES, is_optional
from torchgauge.registry import grouped
from torchgauge.units import format_shape

if TYPE_CHECKING:
    from torch import nn

Shape = tuple[int, ...]

MAX_NAME_DEPTH = 40
_BLOCK = 32  # values with one scale in MXFP4


def model_entries(index: Index) -> dict[str, Entry]:
    """The tensors of the model, without its optimizer, by their names in the model."""
    prefix = index.model_prefix.rstrip(".")
    lead = f"{prefix}." if prefix else ""
    own = [x for x in index.entries if x.role is not Role.OPTIMIZER and x.name.startswith(lead)]
    # In a bare state dict, tensors that are neither parameters nor buffers do not belong to the model.
    entries = own if lead else [x for x in own if x.role is not Role.OTHER or x.logical_elements is not None]
    stripped = strip_all((entry.name[len(lead) :] for entry in entries), WRAPPER_PREFIXES)
    return dict(zip(map(shallow, stripped), entries, strict=True))


def shallow(name: str) -> str:
    """Limit the depth of a name: a hostile file must not create a tree of a million levels."""
    if name.count(".") < MAX_NAME_DEPTH:
        return name
    *folders, last = name.split(".", MAX_NAME_DEPTH)
    return ".".join([*folders, last.replace(".", "/")]) if len(folders) == MAX_NAME_DEPTH else name


def model_shapes(index: Index) -> dict[str, Shape]:
    return {name: entry.spec.shape for name, entry in model_entries(index).items()}


def logical_shapes(index: Index) -> dict[str, Shape]:
    """The names and shapes that the model's tensors have unpacked, without scales and other auxiliary tensors."""
    entries = model_entries(index)
    shapes: dict[str, Shape] = {}
    for name, entry in entries.items():
        shape, count = entry.spec.shape, entry.logical_elements
        layer = name.removesuffix("qweight")
        scales = entries.get(f"{layer}scales")
        if count == 0:
            continue
        if count is None:
            shapes[name] = shape
        elif entry.encoding is not None:
            shapes[name] = block_shape(entry)
        elif layer != name and scales is not None:
            # GPTQ and AWQ: the scales have a column for each output.
            outputs = scales.spec.shape[-1]
            shapes[f"{layer}weight"] = (outputs, count // max(outputs, 1))
        elif name.endswith(".weight_packed") and shape:
            shapes[name.removesuffix("_packed")] = (shape[0], count // max(shape[0], 1))
        elif name.endswith("_blocks") and len(shape) == 4:
            # MXFP4: experts × outputs × blocks of the inputs; models have the transpose.
            shapes[name.removesuffix("_blocks")] = (shape[0], shape[2] * _BLOCK, shape[1])
        else:
            shapes[name] = shape
    return shapes


def block_shape(entry: Entry) -> Shape:
    """The shape of the values in a tensor of blocks (GGUF), of which each row has its own."""
    rows = entry.spec.shape[:-1]
    return (*rows, (entry.logical_elements or 0) // max(prod(rows), 1))


def strip_all(names: Iterable[str], prefixes: tuple[str, ...]) -> list[str]:
    """The names without the prefixes that all of them share."""
    stripped = list(names)
    while True:
        common = next((p for p in prefixes if stripped and all(name.startswith(p) for name in stripped)), None)
        if common is None:
            return stripped
        stripped = [name.removeprefix(common) for name in stripped]


def variants(shapes: dict[str, Shape]) -> Iterator[dict[str, Shape]]:
    """The tensors by name, then without the outermost container, again and again."""
    yield shapes
    while True:
        common = next((p for p in CONTAINER_PREFIXES if shapes and all(name.startswith(p) for name in shapes)), None)
        if common is None:
            return
        shapes = {name.removeprefix(common): shape for name, shape in shapes.items()}
        yield shapes


LISTED_NAMES = 10


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences between a checkpoint and a model; falsy if they match."""

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[tuple[str, Shape, Shape], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.mismatched)

    def __len__(self) -> int:
        return len(self.missing) + len(self.unexpected) + len(self.mismatched)

    def described(self) -> list[str]:
        """Lines for each kind of difference: the count and the first names."""
        shapes = [f"{name}: {format_shape(has)} in the file, {format_shape(wants)} in the code"
                  for name, wants, has in self.mismatched]  # fmt: skip
        kinds = (
            ("not in the file", self.missing),
            ("not in the code", self.unexpected),
            ("with a different shape", shapes),
        )
        lines = []
        for what, names in kinds:
            if names:
                more = [f"… and {len(names) - LISTED_NAMES:,} more"] if len(names) > LISTED_NAMES else []
                lines += [f"{len(names):,} {what}:", *(f"  {name}" for name in (*names[:LISTED_NAMES], *more))]
        return lines


def state_shapes(model: nn.Module) -> dict[str, Shape]:
    import torch

    return {name: tuple(value.shape) for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}


@dataclass(frozen=True, slots=True)
class Fit:
    """`lead` is the prefix of the model's names in the file."""

    differences: Differences
    lead: str


def find_fit(model: nn.Module, stored: Mapping[str, Shape]) -> Fit:
    """The best fit of the file over all variants of its names, with and without containers."""
    expected, first = state_shapes(model), next(iter(stored), "")
    twins = tied_twins(model.named_parameters(remove_duplicate=False))
    fits = (
        Fit(compare(expected, found, twins), first.removesuffix(next(iter(found), "")))
        for found in variants(dict(stored))
    )
    return min(fits, key=lambda fit: len(fit.differences))


def tied_twins(tensors: Iterable[tuple[str, object]]) -> dict[str, frozenset[str]]:
    """The other names of each tensor that has several."""
    names = grouped((id(tensor), name) for name, tensor in tensors)
    groups = [frozenset(group) for group in names.values() if len(group) > 1]
    return {name: group - {name} for group in groups for name in group}


def best_fit(model: nn.Module, stored: Mapping[str, Shape]) -> Differences:
    return find_fit(model, stored).differences


def compare(
    expected: Mapping[str, Shape], found: Mapping[str, Shape], twins: Mapping[str, frozenset[str]] | None = None
) -> Differences:
    """`twins` are the other names of tied tensors, of which the file needs only one."""
    twins = twins or {}
    missing = [
        name
        for name in expected
        if name not in found and not is_optional(name) and twins.get(name, frozenset()).isdisjoint(found)
    ]
    unexpected = [name for name in found if name not in expected and not is_optional(name)]
    mismatched = [(name, shape, found[name]) for name, shape in expected.items() if found.get(name, shape) != shape]
    return Differences(tuple(missing), tuple(unexpected), tuple(mismatched))
