"""The layers that a state dict came from, by the names and shapes of their tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from torchgauge.facts.module import NUMBERED

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
    r"q|qkv|q_?proj|query|to_q|to_qkv|q_lin|wq|wqkv|c_attn|query_key_value|qkv_proj|query_proj|q_a_proj|in_proj_qkv|qkvg?_proj"
    r"|attn_q|attn_qkv|attn_q_a",  # llama.cpp
    re.IGNORECASE,
)
_EXPERTS = re.compile(r"(^|\.)(experts?|moe)(\.|$|_)", re.IGNORECASE)
_STACKED_EXPERTS = frozenset(("gate_up_proj", "down_proj", "gate_proj", "up_proj", "w1", "w2", "w3"))


class Layer(NamedTuple):
    """A module that directly holds tensors; `kind` is the torch class that it resembles, or "". `weight` is the shape
    of its main weight, or (). `is_query`: it computes the queries of an attention, possibly together with the keys and
    values. `name` is the last part of its path."""

    path: str
    tensors: Shapes
    name: str
    kind: str
    weight: Shape
    is_query: bool
    is_expert: bool

    @property
    def is_spatial(self) -> bool:
        """A convolution that looks beyond one position."""
        return self.kind in CONVOLUTIONS and max(self.weight[2:]) > 1


def layers_of(shapes: Shapes) -> list[Layer]:
    """In the order of the names."""
    owned: dict[str, dict[str, Shape]] = {}
    for name, shape in shapes.items():
        if ".parametrizations." in name:
            # The tensors of a parametrization belong to the layer that has it.
            path, _, tail = name.partition(".parametrizations.")
            own = f"parametrizations.{tail.replace('.0.original', '.original')}"
        else:
            path, _, own = name.rpartition(".")
        if path in owned:
            owned[path][own] = shape
        else:
            owned[path] = {own: shape}
    # Few models have experts: one look at all paths saves a search in each.
    text = "\n".join(owned).lower()
    may_have_experts = "expert" in text or "moe" in text
    layers = []
    for path, tensors in owned.items():
        is_among_experts = may_have_experts and _EXPERTS.search(path) is not None
        traits = _traits(path.rpartition(".")[2], is_among_experts, tuple(tensors.items()))
        layers.append(Layer(path, tensors, *traits))
    return layers


# Most layers of a large model are alike.
@lru_cache(maxsize=512)
def _traits(
    name: str, is_among_experts: bool, tensors: tuple[tuple[str, Shape], ...]
) -> tuple[str, str, Shape, bool, bool]:
    """The fields of a layer from `name` on: its name, its tensors and being among experts determine them."""
    held = dict(tensors)
    weight = next((held[each] for each in _WEIGHTS if each in held), ())
    kind = _kind(name, held, weight, is_among_experts)
    is_query = kind == "MultiheadAttention" or (len(weight) >= 2 and QUERY.fullmatch(name) is not None)
    return name, kind, weight, is_query, is_among_experts or kind == "Experts"


def _kind(name: str, tensors: dict[str, Shape], weight: Shape, is_among_experts: bool) -> str:
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
    if any(len(tensors[each]) == 3 for each in _STACKED_EXPERTS.intersection(tensors)):
        return "Experts"
    has_bias = "bias" in tensors
    if len(weight) == 1:
        return "LayerNorm" if has_bias else "RMSNorm"
    if len(weight) == 2:
        is_embedding = _EMBEDDING.search(name) and name not in _NO_EMBEDDING and not has_bias
        return "Embedding" if is_embedding else "Linear"
    if len(weight) == 3 and is_among_experts:
        return "Experts"
    return _CONV_OF_RANK.get(len(weight), "")


def layer_kinds(layers: list[Layer]) -> dict[str, int]:
    """How many there are of each kind, the most common first; tensors that resemble no layer are left out."""
    return dict(Counter(layer.kind for layer in layers if layer.kind).most_common())


def of_kind(layers: list[Layer], *kinds: str) -> Iterator[Layer]:
    return (layer for layer in layers if layer.kind in kinds)


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

    def has_layers(self, count: int) -> bool:
        """Whether at least so many modules in it hold tensors."""
        found: set[str] = set()
        for name in self.names:
            found.add(name.rpartition(".")[0])
            if len(found) >= count:
                return True
        return False


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
            match = NUMBERED.fullmatch(name)
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
    if not all(member.has_layers(2) for member in members.values()):
        return False
    if len(members) == 1:
        # A single block counts if its name is a plain index, as in a list, and it has enough layers.
        return "0" in members and members["0"].has_layers(4)
    from statistics import median

    # The likeness of each block to the next or, if that differs, to the one after it: two kinds may alternate.
    first, second, *others = members.values()
    near = [first.flat(shapes), second.flat(shapes)]
    likenesses = []
    for later in (*others, None):
        near += [later.flat(shapes)] if later is not None else []
        left, *near = near
        likeness = _likeness(left, near[0])
        if likeness < 1 and len(near) > 1:
            likeness = max(likeness, _likeness(left, near[1]))
        likenesses.append(likeness)
    return median(likenesses) >= _MIN_LIKENESS


def _likeness(left: dict[str, Shape], right: dict[str, Shape]) -> float:
    names = left.keys() | right.keys()
    # The first block of a stage has a different input width, but all end with the same layer.
    if len(left.keys() & right.keys()) >= _MIN_SHARED_NAMES * len(names) and _last(left) == _last(right):
        return 1.0
    return sum(right.get(name) == shape for name, shape in left.items()) / len(names)


def _last(tensors: dict[str, Shape]) -> tuple[str, Shape] | None:
    return next(((name, shape) for name, shape in reversed(tensors.items()) if shape), None)
