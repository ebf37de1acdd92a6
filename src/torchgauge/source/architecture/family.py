"""The family of an architecture: the first rule that the evidence meets."""

from __future__ import annotations

from collections.abc import Callable

from torchgauge.source.architecture.evidence import Evidence
from torchgauge.source.architecture.layers import RECURRENT, Layer, of_kind

Rule = Callable[[Evidence], bool]

# In the order they are asked: what is rarer and more telling comes first.
RULES: dict[str, Rule] = {}

_TIME = ("time_embed", "time_embedding", "time_mlp", "time_emb_proj", "temb", "time_emb", "t_embedder")
_ENCODER_NAMES = r"token_type_embeddings|attention\.self\.query|\.q_lin\.|predictions\.|pooler\.|mlm_head"
# From this number on, convolutions are a network, not the stem of a transformer.
_BACKBONE_CONVOLUTIONS = 6


def family(evidence: Evidence) -> str | None:
    """None if neither names nor layers determine it."""
    return next((name for name, rule in RULES.items() if rule(evidence)), None)


def family_rule(name: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        if name in RULES:
            raise ValueError(f"the family '{name}' has a rule already")
        RULES[name] = rule
        return rule

    return register


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
    """Attention beside a convolutional backbone (DETR), or beside state spaces (Jamba)."""
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
    crossed = evidence.names_match(r"(?i)encoder_attn|encdecattention|cross_?att|multihead_attn|encoder_decoder")
    return evidence.has_attention and evidence.has("encoder") and evidence.has("decoder") and crossed


@family_rule("vision transformer")
def _is_vision_transformer(evidence: Evidence) -> bool:
    return evidence.has_attention and any(is_patch_embedding(layer) for layer in evidence.layers)


@family_rule("decoder")
def _is_decoder(evidence: Evidence) -> bool:
    if not evidence.has_attention or evidence.names_match(_ENCODER_NAMES):
        return evidence.has_attention and evidence.is_causal
    named = evidence.has("lm_head", "embed_out", "gate_proj", "c_attn", "decoder", "gate_up_proj", "output_head")
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
