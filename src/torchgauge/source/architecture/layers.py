"""Layers from the names and shapes of their tensors: the modules that a state dict came from."""

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
_STACKED_EXPERTS = ("gate_up_proj", "down_proj", "gate_proj", "up_proj", "w1", "w2", "w3")


@dataclass(frozen=True, slots=True)
class Layer:
    """A module that has tensors itself; `kind` is the name of the torch class it resembles, "" where none does."""

    path: str
    kind: str
    tensors: Shapes

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def weight(self) -> Shape:
        """The shape of the main weight; empty where there is none."""
        return next((self.tensors[name] for name in _WEIGHTS if name in self.tensors), ())

    @property
    def is_query(self) -> bool:
        """Whether it makes the queries of an attention, maybe with the keys and values."""
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
        path, own = _split(name)
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


def distinct_layers(layers: list[Layer]) -> list[Layer]:
    """The first of the layers of each kind and name."""
    return list({(layer.kind, layer.name): layer for layer in reversed(layers)}.values())


def _split(name: str) -> tuple[str, str]:
    # The tensors of a parametrization belong to the layer that has it.
    head, mark, tail = name.partition(".parametrizations.")
    if mark:
        return head, f"parametrizations.{tail.replace('.0.original', '.original')}"
    path, _, own = name.rpartition(".")
    return path, own


def _kind(path: str, tensors: dict[str, Shape]) -> str:
    if "running_mean" in tensors:
        return "BatchNorm"
    if tensors.get("A_log"):
        return "StateSpace"
    if "in_proj_weight" in tensors or "q_proj_weight" in tensors:
        return "MultiheadAttention"
    gates = _gates(tensors)
    if gates is not None:
        # With a projection the recurrent weight is narrower than the hidden state, and only an LSTM has one.
        return _GATES.get(gates, "LSTM")
    if any(len(shape) == 3 and name in _STACKED_EXPERTS for name, shape in tensors.items()):
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


def _gates(tensors: dict[str, Shape]) -> int | None:
    """Rows of the input weights per hidden unit; None where the tensors are not those of a recurrent layer."""
    for suffix in ("_l0", ""):
        inputs, hidden = tensors.get(f"weight_ih{suffix}", ()), tensors.get(f"weight_hh{suffix}", ())
        if len(inputs) == len(hidden) == 2 and hidden[1]:
            return inputs[0] // hidden[1]
    return None


def layer_kinds(layers: list[Layer]) -> dict[str, int]:
    """How many there are of each kind, the most common first; tensors that resemble no layer are left out."""
    counts: dict[str, int] = {}
    for layer in layers:
        if layer.kind:
            counts[layer.kind] = counts.get(layer.kind, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def of_kind(layers: list[Layer], *kinds: str) -> Iterator[Layer]:
    return (layer for layer in layers if layer.kind in kinds)
