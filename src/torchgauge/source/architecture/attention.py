"""The shape of attention: heads, their size, and those of keys and values."""

from __future__ import annotations

import re
from typing import Any

from torchgauge.source.architecture.evidence import Evidence
from torchgauge.source.architecture.layers import Layer

_KEY = re.compile(r"k|k_?proj|key|to_k|k_lin|wk|key_proj", re.IGNORECASE)
_SEPARATE_QUERY = re.compile(r"q|q_?proj|query|to_q|q_lin|wq|query_proj", re.IGNORECASE)
_HEAD_NORM = re.compile(r"(q|k|query|key)_(layer)?norm|norm_(q|k)", re.IGNORECASE)
# Tables with one column per head, and lists with one number per head.
_BIAS_TABLES = ("relative_position_bias_table", "relative_attention_bias.weight")
_PER_HEAD = ("attn.sinks", "self.logit_scale")
# Nearly all models up to about 2,000 wide have heads of 64, the larger ones of 128.
_USUAL, _USUAL_WIDE, _WIDE = 64, 128, 2048
# torch.nn.Transformer has eight heads unless told otherwise, and detectors built of its layers (DETR) keep them.
_TORCH_DECODER, _TORCH_HEADS = "multihead_attn", 8
_PADDING = 8  # flash kernels take heads whose size is a multiple of it


def attention_shape(evidence: Evidence, layers: list[Layer], width: int) -> dict[str, Any]:
    """Heads and their size, those of keys where they are narrower; `assumed` names what the shapes leave open."""
    latent = _latent_attention(layers)
    if latent is not None:
        return latent
    queries = _rows(layers, _SEPARATE_QUERY) or width
    keys = _rows(layers, _KEY) or queries
    stated = _stated(evidence, queries)
    if stated is None and (observed := _observed(evidence, queries, keys)):
        return observed
    known = stated or _from_norms(layers, queries) or _from_tables(evidence, layers, queries)
    is_torch_decoder = any(layer.name == _TORCH_DECODER for layer in layers) and queries % _TORCH_HEADS == 0
    size = known or (queries // _TORCH_HEADS if is_torch_decoder else _usual(queries, keys, width))
    if size is None:
        return {}
    found: dict[str, Any] = {"heads": queries // size, "head_size": size}
    if keys != queries:
        found["kv_heads"] = keys // size
    return found if known else found | {"assumed": list(found)}


def _observed(evidence: Evidence, queries: int, keys: int) -> dict[str, Any] | None:
    """From the last attention that was run with as many query channels as the described block has; else from the last
    fused one, whose shapes say all."""
    for heads in reversed(evidence.heads):
        count = heads.count or queries // heads.size
        # A CUDA kernel may have been given padded heads: their number still holds.
        if count and queries % count == 0 and 0 <= heads.size - queries // count < _PADDING:
            size = queries // count
            kv_count = keys // size if keys != queries else heads.kv_count or count
            return {"heads": count, "head_size": size} | ({"kv_heads": kv_count} if kv_count != count else {})
    fused = next((heads for heads in reversed(evidence.heads) if heads.count), None)
    if fused is None:
        return None
    shared = {"kv_heads": fused.kv_count} if fused.kv_count not in (None, fused.count) else {}
    return {"heads": fused.count, "head_size": fused.size} | shared


def _rows(layers: list[Layer], name: re.Pattern[str]) -> int | None:
    """The size of what a projection of its own makes; None where queries, keys and values come from one."""
    return next((x.weight[0] for x in layers if len(x.weight) >= 2 and name.fullmatch(x.name)), None)


def _stated(evidence: Evidence, queries: int) -> int | None:
    size, heads = evidence.stated.get("head_size"), evidence.stated.get("heads")
    if size:
        return int(size)
    return queries // heads if isinstance(heads, int) and heads and queries % heads == 0 else None


def _from_norms(layers: list[Layer], queries: int) -> int | None:
    """A norm of each head; one of all heads together has the rows of queries, and then of keys, which may be fewer."""
    sizes = {x.weight[-1] for x in layers if len(x.weight) in (1, 2) and _HEAD_NORM.fullmatch(x.name)}
    size = sizes.pop() if len(sizes) == 1 else 0
    return size if 0 < size < queries and queries % size == 0 else None


def _from_tables(evidence: Evidence, layers: list[Layer], queries: int) -> int | None:
    for name, shape in evidence.shapes.items():
        if name.endswith("rotary_emb.inv_freq") and len(shape) == 1:
            return 2 * shape[0]
    own = {f"{layer.path}.{name}": shape for layer in layers for name, shape in layer.tensors.items()}
    for name, shape in (own | dict(evidence.shapes)).items():
        heads = shape[1] if name.endswith(_BIAS_TABLES) and len(shape) == 2 else 0
        heads = shape[0] if name.endswith(_PER_HEAD) and shape else heads
        if heads and queries % heads == 0:
            return queries // heads
    return None


def _latent_attention(layers: list[Layer]) -> dict[str, Any] | None:
    """Keys and values from a narrow common part (DeepSeek): four sizes of heads make up the rows of four matrices, so
    that nothing is left open. None where there is no such attention."""
    shapes = {x.name: x.weight for x in layers if len(x.weight) == 2}
    try:
        down, up, out = shapes["kv_a_proj_with_mqa"], shapes["kv_b_proj"], shapes["o_proj"]
        query = shapes.get("q_b_proj") or shapes["q_proj"]
    except KeyError:
        return None
    rank, rope = up[1], down[0] - up[1]
    heads, rest = divmod(query[0] - up[0] + out[1], rope) if rope > 0 else (0, 0)
    if heads <= 0 or rest or any(rows % heads for rows in (query[0], up[0], out[1])):
        return None
    size, value = query[0] // heads, out[1] // heads
    found = {"heads": heads, "head_size": size, "rope_size": rope, "nope_size": size - rope, "value_head_size": value}
    return found | {"kv_rank": rank} | ({"query_rank": query[1]} if "q_b_proj" in shapes else {})


def _usual(queries: int, keys: int, width: int) -> int | None:
    first = _USUAL_WIDE if width >= _WIDE else _USUAL
    sizes = (first, _USUAL, 128, 80, 96, 32, 16, 8)
    return next((size for size in sizes if size < queries and queries % size == 0 and keys % size == 0), None)
