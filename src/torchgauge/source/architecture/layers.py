"""The layers that a state dict came from, by the names and shapes of their tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]

CONVOLUTIONS = frozenset({"Conv1d", "Conv2d", "Conv3d"})
RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_CONV_OF_RANK = {3: "Conv1d", 4: "Conv2d", 5: "Conv3d"}
# Rows of the input weights per hidden unit.
_GATES = {4: "LSTM", 3: "GRU", 1: "RNN"}
# A weight that was reparametrized or packed keeps its layer.
_WEIGHTS = ("weight", "weight_v", "weight_orig", "parametrizations.weight.original", "qweight", "weight_packed")
_EMBEDDING = re.compile(r"embed|^wte$|^wpe$|^shared$|^emb$|_emb$|lookup|relative_attention_bias", re.IGNORECASE)
_NO_EMBEDDING = ("embed_out", "patch_embed", "unembed")
QUERY = re.compile(
    r"q|qkv|q_?proj|query|to_q|to_qkv|q_lin|wq|wqkv|c_attn|query_key_value|qkv_proj|query_proj|q_a_proj|in_proj_qkv|qkvg?_proj",
    re.IGNORECASE,
)
_EXPERTS = re.compile(r"(^|\.)(experts?|moe)(\.|$|_)", re.IGNORECASE)
_STACKED_EXPERTS = frozenset(("gate_up_proj", "down_proj", "gate_proj", "up_proj", "w1", "w2", "w3"))


@dataclass(frozen=True, slots=True)
class Layer:
    """A module that directly holds tensors; `kind` is the torch class that it resembles, or ""."""

    path: str
    kind: str
    tensors: Shapes

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def weight(self) -> Shape:
        """The shape of the main weight, or ()."""
        for name in _WEIGHTS:
            if name in self.tensors:
                return self.tensors[name]
        return ()

    @property
    def is_query(self) -> bool:
        """Whether it computes the queries of an attention, possibly together with the keys and values."""
        return self.kind == "MultiheadAttention" or (len(self.weight) >= 2 and QUERY.fullmatch(self.name) is not None)

    @property
    def is_expert(self) -> bool:
        return _EXPERTS.search(self.path) is not None or self.kind == "Experts"

    @property
    def is_spatial(self) -> bool:
        """A convolution that looks beyond one position."""
        return self.kind in CONVOLUTIONS and max(self.weight[2:]) > 1


def layers_of(shapes: Shapes) -> list[Layer]:
    """In the order of the names."""
    owned: dict[str, dict[str, Shape]] = {}
    for name, shape in shapes.items():
        # The tensors of a parametrization belong to the layer that has it.
        path, mark, tail = name.partition(".parametrizations.")
        if mark:
            own = f"parametrizations.{tail.replace('.0.original', '.original')}"
        else:
            path, _, own = name.rpartition(".")
        owned.setdefault(path, {})[own] = shape
    # Most layers of a large model are alike: their own name, their tensors and being an expert determine their kind.
    kinds: dict[object, str] = {}
    layers = []
    for path, tensors in owned.items():
        key = (path.rpartition(".")[2], _EXPERTS.search(path) is None, *tensors.items())
        if key not in kinds:
            kinds[key] = _kind(path, tensors)
        layers.append(Layer(path, kinds[key], tensors))
    return layers


def _kind(path: str, tensors: dict[str, Shape]) -> str:
    if "running_mean" in tensors:
        return "BatchNorm"
    if tensors.get("A_log"):
        return "StateSpace"
    if "in_proj_weight" in tensors or "q_proj_weight" in tensors:
        return "MultiheadAttention"
    for input_name, hidden_name in (("weight_ih_l0", "weight_hh_l0"), ("weight_ih", "weight_hh")):
        if input_name not in tensors or hidden_name not in tensors:
            continue
        inputs, hidden = tensors[input_name], tensors[hidden_name]
        if len(inputs) == len(hidden) == 2 and hidden[1]:
            # By the rows of the input weights per hidden unit. With a projection the recurrent weight is narrower than
            # the hidden state, and only an LSTM has one.
            return _GATES.get(inputs[0] // hidden[1], "LSTM")
    if any(len(tensors[name]) == 3 for name in _STACKED_EXPERTS.intersection(tensors)):
        return "Experts"
    weight = next((tensors[name] for name in _WEIGHTS if name in tensors), ())
    has_bias = "bias" in tensors
    name = path.rpartition(".")[2]
    if len(weight) == 1:
        return "LayerNorm" if has_bias else "RMSNorm"
    if len(weight) == 2:
        is_embedding = _EMBEDDING.search(name) and name not in _NO_EMBEDDING and not has_bias
        return "Embedding" if is_embedding else "Linear"
    if len(weight) == 3 and _EXPERTS.search(path):
        return "Experts"
    return _CONV_OF_RANK.get(len(weight), "")


def layer_kinds(layers: list[Layer]) -> dict[str, int]:
    """How many there are of each kind, the most common first; tensors that resemble no layer are left out."""
    counts: dict[str, int] = {}
    for layer in layers:
        if layer.kind:
            counts[layer.kind] = counts.get(layer.kind, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def of_kind(layers: list[Layer], *kinds: str) -> Iterator[Layer]:
    return (layer for layer in layers if layer.kind in kinds)


_NUMBERED = re.compile(r"(.*?)(\d+)")
# Below this share of equal tensors two neighbours are stages of different width, not repetitions of one block.
_MIN_LIKENESS = 0.5
_MIN_SHARED_NAMES = 0.8


@dataclass(frozen=True, slots=True)
class Blocks:
    """Repeated blocks: modules named by consecutive numbers with mostly the same tensors. `tensors` are those of the
    last block, because the first often has more (a projection, a shared table)."""

    path: str
    count: int
    tensors: Shapes


@dataclass(frozen=True, slots=True)
class _Branch:
    """The tensors under one path, which is the first `depth` characters of their names. Only a list of names, because a
    file may have hundreds of thousands."""

    names: list[str]
    depth: int

    def children(self) -> dict[str, _Branch]:
        """Without the tensors that the path holds itself."""
        found: dict[str, _Branch] = {}
        for name in self.names:
            end = name.find(".", self.depth)
            if end < 0:
                continue
            part = name[self.depth : end]
            if part not in found:
                found[part] = _Branch([], end + 1)
            found[part].names.append(name)
        return found

    def flat(self, shapes: Shapes) -> dict[str, Shape]:
        return {name[self.depth :]: shapes[name] for name in self.names}

    @property
    def layers(self) -> int:
        return len({name.rpartition(".")[0] for name in self.names})


def find_blocks(shapes: Shapes) -> list[Blocks]:
    """The topmost repetitions: the experts within a repeated layer are part of it."""
    found: list[Blocks] = []
    waiting: list[Blocks | tuple[_Branch, str]] = [(_Branch(list(shapes), 0), "")]
    while waiting:
        next_one = waiting.pop()
        if isinstance(next_one, Blocks):
            found.append(next_one)
            continue
        # The repeated blocks directly in a branch, and the other branches below it with their prefixes.
        branch, prefix = next_one
        children = branch.children()
        series: dict[str, list[str]] = {}
        for name in children:
            match = _NUMBERED.fullmatch(name)
            series.setdefault(match[1] if match else f"{name}.", []).append(name)
        inside: list[Blocks | tuple[_Branch, str]] = []
        for stem, names in series.items():
            if not stem.endswith(".") and _are_repetitions({name: children[name] for name in names}, shapes):
                inside.append(Blocks((prefix + stem).rstrip("."), len(names), children[names[-1]].flat(shapes)))
            else:
                inside += [(children[name], f"{prefix}{name}.") for name in names]
        waiting += reversed(inside)
    return found


def _are_repetitions(members: dict[str, _Branch], shapes: Shapes) -> bool:
    if any(member.layers < 2 for member in members.values()):
        return False
    if len(members) == 1:
        # A single block counts if its name is a plain index, as in a list, and it has enough layers.
        return "0" in members and members["0"].layers >= 4
    from statistics import median

    # The likeness of each block to the next or the one after it: blocks of two kinds may alternate.
    first, second, *others = members.values()
    near = [first.flat(shapes), second.flat(shapes)]
    likenesses = []
    for later in (*others, None):
        near += [later.flat(shapes)] if later is not None else []
        left, *rights = near
        likenesses.append(max(_likeness(left, right) for right in rights))
        near = rights
    return median(likenesses) >= _MIN_LIKENESS


def _likeness(left: dict[str, Shape], right: dict[str, Shape]) -> float:
    names = left.keys() | right.keys()
    # The first block of a stage has a different input width, but all end with the same layer.
    if len(left.keys() & right.keys()) >= _MIN_SHARED_NAMES * len(names) and _last(left) == _last(right):
        return 1.0
    return sum(right.get(name) == shape for name, shape in left.items()) / len(names)


def _last(tensors: dict[str, Shape]) -> tuple[str, Shape] | None:
    return next(((name, shape) for name, shape in reversed(tensors.items()) if shape), None)
