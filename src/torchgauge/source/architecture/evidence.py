"""The family of an architecture, and the evidence for it: names, shapes, the attention heads of a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torchgauge.facts import OpRecord
from torchgauge.registry import Registry
from torchgauge.source.architecture.layers import RECURRENT, Blocks, Layer, Shapes, find_blocks, layers_of, of_kind

_DIGITS_AS_0 = str.maketrans("123456789", "0" * 9)

# By name; `assumed` lists the names of those that follow a convention instead of a shape.
Hyperparameters = dict[str, Any]


@dataclass(frozen=True)
class Evidence:
    """The names and shapes of the tensors; for a model that was run, also the categories of its ops and the heads of
    its attention. `stated` are hyperparameters from the model's config or from attributes of its layers.
    """

    shapes: Shapes
    categories: frozenset[str] = frozenset()
    is_causal: bool = False
    heads: tuple[Heads, ...] = ()
    stated: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def layers(self) -> list[Layer]:
        return layers_of(self.shapes)

    @cached_property
    def blocks(self) -> list[Blocks]:
        return find_blocks(self.shapes)

    @cached_property
    def main_blocks(self) -> list[Blocks]:
        """The blocks with attention or a state space; all blocks if there are none."""
        mixing = [b for b in self.blocks if any(x.is_query or x.kind == "StateSpace" for x in layers_of(b.tensors))]
        return mixing or self.blocks

    @cached_property
    def segments(self) -> frozenset[str]:
        """The parts of all names, without a number at their end, in lower case."""
        parts = {part for name in self.outlines for part in name.split(".")}
        return frozenset(part.rstrip("0123456789").lower() for part in parts) - {""}

    def has(self, *words: str) -> bool:
        """Whether a part of a name is one of the words."""
        return not self.segments.isdisjoint(words)

    def names_match(self, pattern: str) -> bool:
        compiled = re.compile(pattern)
        return any(compiled.search(name) for name in self.outlines)

    @cached_property
    def outlines(self) -> frozenset[str]:
        """The names with each digit replaced by 0: a few hundred, whatever the number of layers."""
        return frozenset("\n".join(self.shapes).translate(_DIGITS_AS_0).split("\n"))

    @cached_property
    def has_attention(self) -> bool:
        # The first layer of each kind and name represents all.
        distinct = {(layer.kind, layer.name): layer for layer in reversed(self.layers)}
        return "attention" in self.categories or any(layer.is_query for layer in distinct.values())


# (batch, length, heads, size), or (tokens, heads, size); all others have (batch, heads, length, size).
_TOKENS_FIRST = ("_flash_attention_forward", "_efficient_attention_forward", "varlen_attn", "_flash_attn_")
_COUNTS = ("num_head", "num_heads")  # attributes of ops that include the projections
# Between a product and its softmax, or a softmax and its product: scale, mask, bias, cast, dropout.
_BETWEEN = ("elementwise", "copy", "activation", "indexing", "other")
_MAX_OPS_BETWEEN = 6


@dataclass(frozen=True, slots=True)
class Heads:
    """`count` is None if attention is computed by matmul and softmax: then heads look like samples of a batch."""

    size: int
    count: int | None = None
    kv_count: int | None = None


def observed_heads(ops: Iterable[OpRecord]) -> tuple[Heads, ...]:
    """The heads of each attention in the forward pass, in order."""
    forward: dict[int, OpRecord] = {}
    candidates = []
    for op in ops:
        if op.phase == "forward":
            forward[op.index] = op
            category = op.signature.category
            if category == "attention" or (category == "matmul" and not op.weights):
                candidates.append(op)
    found: list[Heads] = []
    for op in candidates:
        inputs, attributes, category = op.signature.inputs, op.signature.attributes, op.signature.category
        if category == "attention" and inputs and inputs[0].shape:
            query = inputs[0].shape
            count = next((attributes[name] for name in _COUNTS if name in attributes), None)
            if isinstance(count, int) and count:
                found.append(Heads(query[-1] // count, count))
            elif len(inputs) >= 3 and len(query) >= 3:
                key, place = inputs[1].shape, -2 if any(name in op.op for name in _TOKENS_FIRST) else -3
                found.append(Heads(query[-1], query[place], key[place] if len(key) == len(query) else None))
        elif category == "matmul":
            # It may multiply values by a softmax of a product of two activations, the query and the key.
            softmaxes = (_source(producer, "softmax", forward) for producer in op.producers)
            scored = (_source(each.producers[0], "matmul", forward) for each in softmaxes if each and each.producers)
            scores = next((each for each in scored if each is not None and not each.weights), None)
            query = scores.signature.inputs[-2:][0].shape if scores else ()  # `baddbmm` has its bias first
            found += [Heads(query[-1])] if query else []
    return tuple(found)


def _source(index: int | None, category: str, ops: Mapping[int, OpRecord]) -> OpRecord | None:
    """The op of that category that a value comes from, through the ops that may be between."""
    for _ in range(_MAX_OPS_BETWEEN):
        op = None if index is None else ops.get(index)
        if op is None or op.category == category:
            return op
        if op.category not in _BETWEEN or not op.producers:
            return None
        index = op.producers[0]
    return None


Rule = Callable[[Evidence], bool]

# In the order in which they are tried: the rarer and more specific families first.
RULES: Registry[str, Rule] = Registry("rule for the family")
family_rule = RULES.register

_TIME = ("time_embed", "time_embedding", "time_mlp", "time_emb_proj", "temb", "time_emb", "t_embedder")
_ENCODER_NAMES = r"token_type_embeddings|token_types\.|attention\.self\.query|\.q_lin\.|predictions\.|pooler\.|mlm_head"
# From this number on, convolutions are a network, not the stem of a transformer.
_BACKBONE_CONVOLUTIONS = 6


def family(evidence: Evidence) -> str | None:
    """None if neither names nor layers determine it."""
    return next((name for name, rule in RULES.items() if rule(evidence)), None)


def spatial_convolutions(evidence: Evidence) -> list[Layer]:
    """Convolutions that look beyond one position, patch embeddings left out."""
    return [layer for layer in evidence.layers if layer.is_spatial and not is_patch_embedding(layer)]


def is_patch_embedding(layer: Layer) -> bool:
    """A convolution of few channels that cuts an image into patches: its kernel is even, or large, or named so."""
    if layer.kind not in ("Conv2d", "Conv3d") or layer.weight[1] > 16 or layer.weight[0] <= 2 * layer.weight[1]:
        return False
    kernel = min(layer.weight[-2:])
    return kernel > 11 or (kernel >= 4 and kernel % 2 == 0) or (kernel > 1 and "patch" in layer.path)


@family_rule("diffusion U-Net")
def _is_unet(evidence: Evidence) -> bool:
    has_levels = evidence.has("down_blocks", "downs", "input_blocks", "down") and evidence.has(
        "up_blocks", "ups", "output_blocks", "up"
    )
    return has_levels and evidence.has(*_TIME) and bool(spatial_convolutions(evidence))


@family_rule("diffusion transformer")
def _is_diffusion_transformer(evidence: Evidence) -> bool:
    return evidence.has_attention and evidence.has("t_embedder", "timestep_embedder", "time_text_embed")


@family_rule("hybrid")
def _is_hybrid(evidence: Evidence) -> bool:
    """Attention with a convolutional backbone (DETR) or with state spaces (Jamba)."""
    if not evidence.has_attention:
        return False
    backbone = [layer for layer in spatial_convolutions(evidence) if layer.kind == "Conv2d"]
    return len(backbone) >= _BACKBONE_CONVOLUTIONS or any(of_kind(evidence.layers, "StateSpace"))


@family_rule("state-space")
def _is_state_space(evidence: Evidence) -> bool:
    return any(of_kind(evidence.layers, "StateSpace"))


@family_rule("MoE")
def _is_mixture(evidence: Evidence) -> bool:
    return any(layer.is_expert for layer in evidence.layers)


@family_rule("RNN")
def _is_recurrent(evidence: Evidence) -> bool:
    if evidence.names_match("time_decay|time_mix"):  # RWKV
        return True
    return any(of_kind(evidence.layers, *RECURRENT)) and not evidence.has_attention


@family_rule("dual encoder")
def _is_dual_encoder(evidence: Evidence) -> bool:
    pairs = (("text_model", "vision_model"), ("text", "visual"), ("transformer", "visual"))
    return (
        evidence.has_attention
        and evidence.has("logit_scale")
        and any(evidence.has(text) and evidence.has(image) for text, image in pairs)
    )


@family_rule("encoder-decoder")
def _is_encoder_decoder(evidence: Evidence) -> bool:
    if not (evidence.has_attention and evidence.has("encoder") and evidence.has("decoder")):
        return False
    return evidence.names_match(r"(?i)encoder_attn|encdecattention|cross_?att|multihead_attn|encoder_decoder")


@family_rule("vision transformer")
def _is_vision_transformer(evidence: Evidence) -> bool:
    return evidence.has_attention and any(is_patch_embedding(layer) for layer in evidence.layers)


@family_rule("decoder")
def _is_decoder(evidence: Evidence) -> bool:
    if not evidence.has_attention or evidence.names_match(_ENCODER_NAMES):
        return evidence.has_attention and evidence.is_causal
    named = evidence.has("lm_head", "embed_out", "gate_proj", "c_attn", "decoder", "gate_up_proj", "output_head", "blk")
    return evidence.is_causal or named


@family_rule("encoder")
def _is_encoder(evidence: Evidence) -> bool:
    return evidence.has_attention


@family_rule("CNN")
def _is_convolutional(evidence: Evidence) -> bool:
    return bool(spatial_convolutions(evidence)) or (
        "convolution" in evidence.categories and not any(of_kind(evidence.layers, "Linear"))
    )


@family_rule("MLP")
def _is_perceptron(evidence: Evidence) -> bool:
    return any(of_kind(evidence.layers, "Linear")) or "matmul" in evidence.categories
