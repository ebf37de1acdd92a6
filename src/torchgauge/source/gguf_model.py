"""A model for a GGUF file, from its metadata and the names of its tensors, without other packages.

llama.cpp names tensors by their function (`blk.3.attn_q.weight`), whatever the family. Modules have the same names
here, so that weights and layers match by name. A file with an unknown tensor gets no model.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchgauge.checkpoint import Index
from torchgauge.source.config_limits import LARGEST_DEPTH, LARGEST_NUMBER

_LAYER = re.compile(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias)")
# Every nth layer has full attention, the others a sliding window, as in llama.cpp (`set_swa_pattern`); architectures
# that are not listed have a window in every layer, or in none.
_FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4, "llama4": 4}
_NORMS = frozenset(("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm",
                    "attn_post_norm", "ffn_post_norm", "attn_q_a_norm", "attn_kv_a_norm", "attn_norm_2"))  # fmt: skip
_MATRICES = frozenset(("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down",
                       "ffn_gate_inp", "attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b", "attn_k_b", "attn_v_b",
                       "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_shexp", "ffn_up_shexp",
                       "ffn_down_shexp", "ffn_gate_inp_shexp"))  # fmt: skip
_VECTORS = frozenset(("attn_sinks", "exp_probs_b"))
_OUTSIDE = frozenset(("token_embd.weight", "output.weight", "output_norm.weight", "output_norm.bias", "output.bias",
                      "position_embd.weight", "rope_freqs.weight", "rope_factors_long.weight",
                      "rope_factors_short.weight", "token_embd_norm.weight", "token_embd_norm.bias"))  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """The sizes of attention, from the metadata."""

    architecture: str
    heads: int
    kv_heads: int
    key: int
    value: int
    rotated: int
    latent: int
    experts_used: int
    window: int | None
    limit: int | None


class Config:
    """The attributes of a model's config that torchgauge reads."""

    def __init__(self, sizes: Sizes, vocabulary: int) -> None:
        self.model_type = sizes.architecture
        self.max_position_embeddings = sizes.limit
        self.vocab_size = vocabulary
        self.is_encoder_decoder = False


class LayerCache:
    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None


class Cache:
    """Keys and values by layer, as in llama.cpp; for latent attention, the latent and the rotated key."""

    def __init__(self, layers: int) -> None:
        self.layers = [LayerCache() for _ in range(layers)]
        self.seen = 0


def build_model(index: Index, shapes: Mapping[str, tuple[int, ...]]) -> tuple[nn.Module | None, str]:
    """The model on the meta device, or None and the reason. `shapes` are those of the unpacked tensors."""
    metadata = index.gguf
    layers: dict[int, dict[str, tuple[int, ...]]] = defaultdict(dict)
    unknown = []
    for name, shape in shapes.items():
        match = _LAYER.fullmatch(name)
        if match is not None and match[2] in _NORMS | _MATRICES | _VECTORS:
            layers[int(match[1])][f"{match[2]}.{match[3]}"] = shape
        elif match is None and name in _OUTSIDE:
            continue
        elif match is not None or not name.startswith("rope"):
            unknown.append(name)
    architecture = metadata.get("general.architecture")
    if unknown or not layers or "token_embd.weight" not in shapes or not isinstance(architecture, str):
        what = f"tensors such as '{unknown[0]}'" if unknown else "no layers of a decoder"
        return None, f"unknown architecture: the file has {what}"
    if sorted(layers) != list(range(len(layers))) or len(layers) > LARGEST_DEPTH:
        return None, "the layers are not numbered consecutively from 0"
    try:
        sizes = _sizes(metadata, architecture)
        with torch.device("meta"):
            model = Decoder(sizes, dict(shapes), [layers[place] for place in range(len(layers))])
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        return None, f"the metadata does not match the tensors: {error}"
    model.stored_bytes = {entry.name: entry.nbytes for entry in index.entries}
    return model.eval(), ""


def _sizes(metadata: Mapping[str, object], architecture: str) -> Sizes:
    def number(name: str, default: int | None = None) -> int:
        value = metadata.get(f"{architecture}.{name}", default)
        value = max(value, default=0) if isinstance(value, list) and all(type(v) is int for v in value) else value
        if type(value) is not int or not 0 <= value <= LARGEST_NUMBER:
            raise ValueError(f"{architecture}.{name} is {value!r}")
        return value

    heads = number("attention.head_count")
    head = number("embedding_length") // heads
    return Sizes(
        architecture,
        heads=heads,
        kv_heads=number("attention.head_count_kv", heads),
        key=number("attention.key_length_mla", 0) or number("attention.key_length", head),
        value=number("attention.value_length_mla", 0) or number("attention.value_length", head),
        rotated=number("rope.dimension_count", head),
        latent=number("attention.kv_lora_rank", 0),
        experts_used=number("expert_used_count", 0),
        window=number("attention.sliding_window", 0) or None,
        limit=number("context_length", 0) or None,
    )


def _linear(shapes: Mapping[str, tuple[int, ...]], name: str) -> nn.Module | None:
    shape = shapes.get(f"{name}.weight")
    if shape is None:
        return None
    if len(shape) == 3:
        return Experts(*shape)
    return nn.Linear(shape[1], shape[0], bias=f"{name}.bias" in shapes)


def _norm(shapes: Mapping[str, tuple[int, ...]], name: str) -> nn.Module | None:
    shape = shapes.get(f"{name}.weight")
    if shape is None:
        return None
    return nn.LayerNorm(shape) if f"{name}.bias" in shapes else nn.RMSNorm(shape)


class Experts(nn.Module):
    """Matrices of experts: rows are sorted by the expert that they go to."""

    def __init__(self, experts: int, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        return torch._grouped_mm(x, self.weight.transpose(1, 2), offs=offsets)


class Block(nn.Module):
    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, sizes: Sizes, shapes: Mapping[str, tuple[int, ...]], *, is_windowed: bool, index: int) -> None:
        super().__init__()
        self.sizes, self.index = sizes, index
        self.window = sizes.window if is_windowed else None
        for name in sorted({key.rpartition(".")[0] for key in shapes}):
            if name in _NORMS:
                setattr(self, name, _norm(shapes, name))
            elif name in _MATRICES:
                setattr(self, name, _linear(shapes, name))
            else:
                key = next(key for key in shapes if key.startswith(f"{name}."))
                setattr(self, name, nn.ParameterDict({key.rpartition(".")[2]: nn.Parameter(torch.empty(shapes[key]))}))

    def has(self, name: str) -> bool:
        return name in self._modules

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past_key_values: Cache) -> Tensor:
        h = self.attn_norm(x) if self.has("attn_norm") else x
        mixed = self.latent(h, cos, sin, past_key_values) if self.sizes.latent else self.attend(
            h, cos, sin, past_key_values
        )  # fmt: skip
        for name in ("post_attention_norm", "attn_post_norm"):
            mixed = getattr(self, name)(mixed) if self.has(name) and self.has("ffn_norm") else mixed
        parallel = not self.has("ffn_norm") and not self.has("post_attention_norm")
        x = x if parallel else x + mixed
        h = self.ffn_norm(x) if self.has("ffn_norm") else self.post_attention_norm(x) if not parallel else h
        out = self.routed(h) if self.has("ffn_gate_inp") else self.dense(h, "")
        for name in ("post_ffw_norm", "ffn_post_norm"):
            out = getattr(self, name)(out) if self.has(name) else out
        return x + mixed + out if parallel else x + out

    def attend(self, h: Tensor, cos: Tensor, sin: Tensor, cache: Cache) -> Tensor:
        sizes = self.sizes
        batch, length, _ = h.shape
        if self.has("attn_qkv"):
            split = [sizes.heads * sizes.key, sizes.kv_heads * sizes.key, sizes.kv_heads * sizes.value]
            q, k, v = self.attn_qkv(h).split(split, -1)
        else:
            q, k, v = self.attn_q(h), self.attn_k(h), self.attn_v(h)
        q = q.view(batch, length, -1, sizes.key).transpose(1, 2)
        k = k.view(batch, length, -1, sizes.key).transpose(1, 2)
        v = v.view(batch, length, -1, sizes.value).transpose(1, 2)
        if self.has("attn_q_norm"):
            q, k = self.attn_q_norm(q), self.attn_k_norm(k)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        k, v = self.extend(cache, k, v)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1, enable_gqa=q.shape[1] != k.shape[1])
        return self.attn_output(out.transpose(1, 2).reshape(batch, length, -1))

    def latent(self, h: Tensor, cos: Tensor, sin: Tensor, cache: Cache) -> Tensor:
        """The cache holds the latent of each token; queries are projected to it, as in llama.cpp."""
        sizes = self.sizes
        batch, length, _ = h.shape
        q = self.attn_q_b(self.attn_q_a_norm(self.attn_q_a(h))) if self.has("attn_q_a") else self.attn_q(h)
        q = q.view(batch, length, sizes.heads, -1).transpose(1, 2)
        plain = q.shape[-1] - sizes.rotated
        compressed = self.attn_kv_a_mqa(h)
        latent, k_rotated = compressed.split([sizes.latent, compressed.shape[-1] - sizes.latent], -1)
        latent = self.attn_kv_a_norm(latent).unsqueeze(1)
        k_rotated = _rotate(k_rotated.unsqueeze(1), cos, sin)
        latent, k_rotated = self.extend(cache, latent, k_rotated)
        q_rotated = _rotate(q[..., plain:], cos, sin)
        if self.has("attn_k_b"):
            k_up, v_up = self.attn_k_b.weight, self.attn_v_b.weight
        else:
            both = self.attn_kv_b.weight.view(sizes.heads, -1, sizes.latent)
            k_up, v_up = both[:, :plain].transpose(1, 2), both[:, plain:]
        q_latent = torch.matmul(q[..., :plain], k_up.transpose(-1, -2))
        scores = torch.matmul(torch.cat([q_latent, q_rotated], -1), torch.cat([latent, k_rotated], -1).transpose(2, 3))
        mixed = torch.matmul(torch.softmax(scores, -1), latent)
        out = torch.matmul(mixed, v_up.transpose(-1, -2))
        return self.attn_output(out.transpose(1, 2).reshape(batch, length, -1))

    def extend(self, cache: Cache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        own = cache.layers[self.index]
        if own.keys is not None and own.values is not None:
            k, v = torch.cat([own.keys, k], 2), torch.cat([own.values, v], 2)
        own.keys, own.values = k, v
        if self.window is not None:
            own.keys, own.values = k[:, :, -self.window + 1 :], v[:, :, -self.window + 1 :]
        return k, v

    def dense(self, h: Tensor, suffix: str) -> Tensor:
        up = getattr(self, f"ffn_up{suffix}")(h)
        if self.has(f"ffn_gate{suffix}"):
            up = F.silu(getattr(self, f"ffn_gate{suffix}")(h)) * up
        elif not suffix and up.shape[-1] == 2 * self.ffn_down.in_features:  # gate and up in one matrix (Phi 3)
            gate, up = up.chunk(2, -1)
            up = F.silu(gate) * up
        else:
            up = F.gelu(up)
        return getattr(self, f"ffn_down{suffix}")(up)

    def routed(self, h: Tensor) -> Tensor:
        rows = h.reshape(-1, h.shape[-1])
        weights, chosen = torch.topk(torch.softmax(self.ffn_gate_inp(rows), -1), max(self.sizes.experts_used, 1), -1)
        used = chosen.shape[-1]
        order = chosen.reshape(-1).argsort()
        counts = torch.bincount(chosen.reshape(-1), minlength=self.ffn_gate_inp.out_features)
        offsets = counts.cumsum(0).to(torch.int32)
        picked = rows[order // used]
        inner = F.silu(self.ffn_gate_exps(picked, offsets)) * self.ffn_up_exps(picked, offsets)
        out = self.ffn_down_exps(inner, offsets) * weights.reshape(-1)[order].unsqueeze(-1)
        total = torch.zeros_like(rows).index_add_(0, order // used, out)
        if self.has("ffn_up_shexp"):
            total = total + self.dense(rows, "_shexp")
        return total.view_as(h)


class Decoder(nn.Module):
    main_input_name = "input_ids"
    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(
        self, sizes: Sizes, shapes: Mapping[str, tuple[int, ...]], layers: list[dict[str, tuple[int, ...]]]
    ) -> None:
        super().__init__()
        vocabulary, width = shapes["token_embd.weight"]
        self.config, self.sizes = Config(sizes, vocabulary), sizes
        self.stored_bytes: dict[str, int] = {}
        self.token_embd = nn.Embedding(vocabulary, width)
        if "position_embd.weight" in shapes:
            self.position_embd = nn.Embedding(shapes["position_embd.weight"][0], width)
        every = _FULL_EVERY.get(sizes.architecture)
        self.blk = nn.ModuleList(
            Block(sizes, layer, is_windowed=every is None or place % every < every - 1, index=place)
            for place, layer in enumerate(layers)
        )
        self.output_norm = _norm(shapes, "output_norm")
        self.output = _linear(shapes, "output")
        self.register_buffer("inv_freq", torch.empty(max(sizes.rotated // 2, 1)), persistent=False)

    def forward(
        self, input_ids: Tensor, past_key_values: Cache | None = None, use_cache: bool = True, logits_to_keep: int = 0
    ) -> dict[str, Any]:
        cache = Cache(len(self.blk)) if past_key_values is None else past_key_values
        x = self.token_embd(input_ids)
        length = input_ids.shape[1]
        positions = torch.arange(cache.seen, cache.seen + length)
        if hasattr(self, "position_embd"):
            x = x + self.position_embd(positions)
        angles = positions.to(x.dtype)[:, None] * self.inv_freq[None]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blk:
            x = block(x, cos, sin, past_key_values=cache)
        cache.seen += length
        x = x if self.output_norm is None else self.output_norm(x)
        x = x[:, -logits_to_keep:] if logits_to_keep else x
        logits = F.linear(x, self.token_embd.weight) if self.output is None else self.output(x)
        return {"logits": logits, "past_key_values": cache if use_cache else None}


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first `2 * cos.shape[-1]` values of each head in pairs; the rest is unchanged."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)
