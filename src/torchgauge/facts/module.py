"""The parts of a model: modules, parameters, inputs; and its architecture."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from torchgauge.facts.schema import Count, Rule
from torchgauge.facts.tensor import TensorSpec

# The arguments or results of a module: `TensorSpec`s in dicts and lists of any depth, other values by their text.
Structure = Any

# More digits than any index has; Python refuses to convert thousands of them.
_LONGEST_INDEX = 18
# The name of one of several repeated modules: the stem that they share, and its number (`0`, `block3`).
NUMBERED = re.compile(r"(?s)(.*?)(\d{1,18})")


def index_of(part: str) -> int | None:
    """The index that a part of a path is; None where it is a name."""
    return int(part) if part.isdecimal() and len(part) <= _LONGEST_INDEX else None


def without_stars(part: str) -> str:
    """The part as it stands in a pattern, in which a bare star is an index."""
    return part.replace("\\", "\\\\").replace("*", "\\*")


def is_within(path: str, outer: str) -> bool:
    """Whether the path is that of the module `outer` or of something in it; everything is in the root."""
    return not outer or path == outer or path.startswith(f"{outer}.")


def enclosing_paths(path: str) -> list[str]:
    """The root (""), the modules that a module or tensor is in from the outermost on, and the path itself."""
    parts = path.split(".") if path else []
    return [".".join(parts[:end]) for end in range(len(parts) + 1)]


@dataclass(frozen=True, slots=True)
class ModuleRecord:
    """A module of the model, whether it was called or not; `path` is "" for the root.

    `inputs` and `outputs` keep the structure of the first call: dicts and lists hold `TensorSpec`s, other values are
    given by their text. `called_from` are the lines of the model's code that call it ("file.py:LINE"); files do not
    keep them.
    """

    path: str
    type: str
    aliases: tuple[str, ...] = ()
    calls: int = 0
    params: int = 0
    trainable_params: int = 0
    param_bytes: int = 0
    inputs: Structure = None
    outputs: Structure = None
    called_from: tuple[str, ...] = field(default=(), compare=False)

    @property
    def parent(self) -> str | None:
        return None if self.path == "" else self.path.rpartition(".")[0]

    @property
    def depth(self) -> int:
        return 0 if self.path == "" else self.path.count(".") + 1


@dataclass(frozen=True, slots=True)
class ParamRecord:
    """A parameter or buffer; tied tensors appear once, under their first name.

    `logical_elements` is None unless it holds quantized values: then how many there are, 0 for scales and zero points.
    `stored` are the tensors that it is made of, where those are others than itself (a quantized weight of torchao looks
    like a tensor of floats)."""

    name: str
    spec: TensorSpec
    trainable: bool
    is_buffer: bool = False
    aliases: tuple[str, ...] = ()
    logical_elements: int | None = None
    stored: tuple[TensorSpec, ...] = ()

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def holders(self) -> set[str]:
        """The paths of the modules that it is in, under all its names; "" is the model."""
        return {path for name in (self.name, *self.aliases) for path in enclosing_paths(name.rpartition(".")[0])}

    @property
    def held(self) -> tuple[TensorSpec, ...]:
        """The tensors in memory."""
        return self.stored or (self.spec,)

    @property
    def nbytes(self) -> int:
        return sum([spec.nbytes for spec in self.stored]) if self.stored else self.spec.nbytes

    @property
    def logical(self) -> int:
        return self.spec.numel if self.logical_elements is None else self.logical_elements

    @property
    def is_quantized(self) -> bool:
        """Whether it holds codes: integers, or floats of at most 8 bits."""
        codes = self.held[0]
        return bool(self.logical_elements) and not (codes.is_floating and codes.itemsize > 1)

    @property
    def is_weight(self) -> bool:
        """A parameter, or a buffer that holds a packed weight or serves one."""
        return not self.is_buffer or self.logical_elements is not None

    @property
    def code_bits(self) -> float | None:
        """Bits of one quantized value, without scales and zero points; None for what is not quantized."""
        return 8 * self.held[0].nbytes / self.logical if self.is_quantized else None


@dataclass(frozen=True, slots=True)
class InputRecord:
    """An input of the model; `inferred` says why it was chosen, None when the user gave it.

    `readers` are the ops that read it unchanged, also through views: the index of the op, and which of its inputs
    it is. One tensor given twice has the same readers twice. None in files of versions that did not record it."""

    name: str
    spec: TensorSpec
    inferred: str | None = None
    readers: tuple[tuple[int, int], ...] | None = None


_NAMES_ASSUMED = Rule(
    lambda values: (
        isinstance(values.get("assumed", []), list | tuple)
        and all(isinstance(name, str) for name in values.get("assumed", []))
    ),
    "hyperparameters in which `assumed` is a list of names",
)


@dataclass(frozen=True, slots=True)
class ArchitectureRecord:
    """The architecture of a model; `family` is None if neither names nor layers determine it."""

    family: str | None
    layer_counts: Mapping[str, Count] = field(default_factory=dict)
    hyperparameters: Annotated[Mapping[str, Any], _NAMES_ASSUMED] = field(default_factory=dict)
