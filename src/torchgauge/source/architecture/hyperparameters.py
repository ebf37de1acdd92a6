"""Likely hyperparameters from names and shapes. Those that shapes do not determine are listed as assumed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from torchgauge.checkpoint.tensor_names import KEY_NAMES, QUERY_NAMES
from torchgauge.source.architecture.evidence import Evidence, Hyperparameters, is_patch_embedding
from torchgauge.source.architecture.layers import CONVOLUTIONS, RECURRENT, Layer, layers_of, of_kind

_POSITION = re.compile(r"pos|wpe", re.IGNORECASE)
_NO_VOCABULARY = re.compile(r"pos|wpe|type|bias|query|time|label|class_embed", re.IGNORECASE)
_HEAD = re.compile(r"(^|\.)(fc|head|classifier|score|linear_head|heads\.head|out|output)(\.\d+)?$")


def hyperparameters(evidence: Evidence) -> Hyperparameters:
    """The hyperparameters that apply to the model, by name."""
    found: Hyperparameters = {}
    assumed: list[str] = []
    for part in (_blocks, _transformer, _inputs, _mixture, _recurrent, _state_space, _output):
        found |= part(evidence)
        assumed += found.pop("assumed", ())
    found |= {name: value for name, value in evidence.stated.items() if value is not None}
    assumed = [name for name in assumed if name not in evidence.stated]
    return found | ({"assumed": assumed} if assumed else {})


def _blocks(evidence: Evidence) -> Hyperparameters:
    blocks = evidence.main_blocks
    if not blocks:
        return {}
    found: Hyperparameters = {"depth": sum(block.count for block in blocks)}
    for side in ("encoder", "decoder"):
        counts = [block.count for block in blocks if side in block.path.split(".")]
        if counts and len(counts) < len(blocks):
            found[f"{side}_layers"] = sum(counts)
    return found if len(blocks) == 1 else found | {"stages": [block.count for block in blocks]}


def _transformer(evidence: Evidence) -> Hyperparameters:
    blocks = evidence.main_blocks
    layers = layers_of(blocks[-1].tensors) if blocks else evidence.layers
    width = _width(evidence, layers)
    if width is None:
        return {}
    found: Hyperparameters = {"width": width}
    if evidence.has_attention:
        # The last of the blocks may be one without attention.
        found |= attention_shape(evidence, layers if any(x.is_query for x in layers) else evidence.layers, width)
        # The other side of the matrices of a block that have the width on one side; fused gates are twice as tall.
        # Without blocks, the stem and the head are among them: an MLP has two matrices of its inner size.
        is_block = bool(blocks)
        mixing = re.compile(r"att|router|gate$|\.q|\.k|\.v")
        matrices = [x for x in layers if x.kind in ("Linear", "Conv2d", "Conv1d") and not mixing.search(x.path)]
        larger = [size for layer in matrices for size in _partner(layer, width) if size > width]
        # A convolution over several positions from fewer channels is a stem, or depthwise.
        smaller = [size for layer in matrices if not layer.is_spatial for size in _partner(layer, width)]
        sizes = larger or smaller if is_block else [size for size in larger if larger.count(size) > 1]
        if not sizes:
            experts = of_kind(layers, "Experts")
            stacked = [shape[-2:] for x in experts for shape in x.tensors.values() if len(shape) == 3]
            sizes = [max(shape) if min(shape) == width else min(shape) for shape in stacked if width in shape]
        intermediate = min(sizes, default=None)
        found |= {"intermediate_size": intermediate} if intermediate else {}
    return found


def _width(evidence: Evidence, layers: list[Layer]) -> int | None:
    """The size of most norms of a block; in a convolutional network, the largest number of channels."""
    inner = tuple(f"{layer.path}." for layer in of_kind(layers, "StateSpace"))
    outer = [layer for layer in of_kind(layers, "LayerNorm", "RMSNorm") if not layer.path.startswith(inner)]
    norms = Counter(layer.weight[0] for layer in outer if "_norm" not in layer.name)
    norms = norms or Counter(layer.weight[0] for layer in outer)
    is_residual = evidence.has_attention or any(of_kind(evidence.layers, "StateSpace"))
    if norms and (is_residual or not any(layer.is_spatial for layer in evidence.layers)):
        return max(norms, key=lambda size: (norms[size], size))
    if evidence.has_attention:
        return next((layer.weight[-1] for layer in layers if layer.is_query and layer.weight), None)
    channels = [layer.weight[0] for layer in of_kind(evidence.layers, *CONVOLUTIONS)]
    sizes = channels or [layer.weight[0] for layer in of_kind(evidence.layers, "Linear")]
    return max(sizes, default=None)


def _partner(layer: Layer, width: int) -> Iterator[int]:
    rows, columns = layer.weight[:2]
    if (rows == width) != (columns == width):
        yield columns if rows == width else rows


_COLOURS = 3


def _inputs(evidence: Evidence) -> Hyperparameters:
    """The words and positions of a text, and the channels of an image with the layer that reads it."""
    tables = list(of_kind(evidence.layers, "Embedding"))
    words = [layer.weight[0] for layer in tables if not _NO_VOCABULARY.search(layer.name)]
    places = [x.weight[0] for x in tables if _POSITION.search(x.name) and "query" not in x.name]
    found = {"vocabulary": max(words)} if words else {}
    found |= {"positions": max(places)} if places else {}
    few = [layer for layer in of_kind(evidence.layers, "Conv2d", "Conv3d") if layer.weight[1] <= 16]
    if not few:
        return found
    # Files may be sorted by name, so the first layer need not come first; a depthwise convolution has one channel.
    first = next((layer for layer in few if layer.weight[1] == _COLOURS), few[0])
    if is_patch_embedding(first) and evidence.has_attention:
        return found | {"patch_size": first.weight[-1], "image_channels": first.weight[1]}
    return found | {"image_channels": first.weight[1], "stem_kernel": first.weight[-1], "stem_width": first.weight[0]}


def _mixture(evidence: Evidence) -> Hyperparameters:
    layers = [layer for layer in evidence.layers if layer.is_expert]
    stacked = [shape[0] for layer in layers for shape in layer.tensors.values() if len(shape) == 3]
    if stacked:
        return {"experts": max(stacked)}
    numbers = [
        int(match[1]) for layer in layers if (match := re.search(r"experts?\.(?:expert_)?(\d{1,18})", layer.path))
    ]
    return {"experts": max(numbers) + 1} if numbers else {}


def _recurrent(evidence: Evidence) -> Hyperparameters:
    layer = next(of_kind(evidence.layers, *RECURRENT), None)
    if layer is None:
        return {}
    names = [name for name in layer.tensors if name.startswith("weight_hh")]
    suffix = "_l0" if "weight_hh_l0" in names else ""
    is_bidirectional = any(name.endswith("_reverse") for name in names)
    return {
        "depth": max(len(names) // (1 + is_bidirectional), 1),
        "width": layer.tensors[f"weight_hh{suffix}"][1],
        "input_size": layer.tensors[f"weight_ih{suffix}"][1],
        "bidirectional": is_bidirectional,
    }


def _state_space(evidence: Evidence) -> Hyperparameters:
    layer = next(of_kind(evidence.layers, "StateSpace"), None)
    if layer is None:
        return {}
    decay = layer.tensors["A_log"]
    if len(decay) == 2:
        return {"inner_size": decay[0], "state_size": decay[1]}
    weights = {other.path: other.weight for other in evidence.layers}
    out, convolved = (weights.get(f"{layer.path}.{name}", ()) for name in ("out_proj", "conv1d"))
    heads = decay[0]
    found: Hyperparameters = {"state_heads": heads}
    if out and convolved:
        # The convolution of Mamba 2 covers the inner channels and two sets of states per group: its size gives the
        # number of states of all groups, but not the number of groups.
        inner = out[1]
        states = (convolved[0] - inner) // 2
        if states > 0 and heads > 0:
            size = next((size for size in _USUAL_STATES if states % size == 0), states)
            found |= {"inner_size": inner, "state_head_size": inner // heads}
            found |= {"state_size": size, "state_groups": states // size, "assumed": ["state_size", "state_groups"]}
    return found


_USUAL_STATES = (128, 64)


def _output(evidence: Evidence) -> Hyperparameters:
    heads = [layer for layer in of_kind(evidence.layers, "Linear") if _HEAD.search(layer.path)]
    words = {layer.weight[0] for layer in of_kind(evidence.layers, "Embedding")}
    # With as many outputs as words, the head generates text.
    return {"classes": heads[-1].weight[0]} if heads and heads[-1].weight[0] not in words else {}


_HEAD_NORM = re.compile(r"(q|k|query|key)_(layer)?norm|norm_(q|k)", re.IGNORECASE)
# Tables with one column per head, and lists with one number per head.
_BIAS_TABLES = ("relative_position_bias_table", "relative_attention_bias.weight")
_PER_HEAD = ("attn.sinks", "self.logit_scale")
# Nearly all models up to about 2,000 wide have heads of 64, the larger ones of 128.
_USUAL, _USUAL_WIDE, _WIDE = 64, 128, 2048
# torch.nn.Transformer has eight heads by default, and detectors built of its layers (DETR) keep them.
_TORCH_DECODER, _TORCH_HEADS = "multihead_attn", 8
_PADDING = 8  # flash kernels pad the size of a head to a multiple of this


def attention_shape(evidence: Evidence, layers: list[Layer], width: int) -> Hyperparameters:
    """Heads and their size, and those of the keys if there are fewer; `assumed` lists what shapes do not determine."""
    latent = _latent_attention(layers)
    if latent is not None:
        return latent
    queries = _rows(layers, QUERY_NAMES) or width
    keys = _rows(layers, KEY_NAMES) or queries
    stated: int | None = None  # the size of a head
    size_of_head, heads = evidence.stated.get("head_size"), evidence.stated.get("heads")
    if isinstance(size_of_head, int | float) and size_of_head:
        stated = int(size_of_head)
    elif isinstance(heads, int) and heads and queries % heads == 0:
        stated = queries // heads
    if stated is None and (observed := _observed(evidence, queries, keys)):
        return observed
    # Norms of single heads have their size; a norm of all heads together has that of the queries or the keys.
    norms = {x.weight[-1] for x in layers if len(x.weight) in (1, 2) and _HEAD_NORM.fullmatch(x.name)}
    normed = norms.pop() if len(norms) == 1 else 0
    normed = normed if 0 < normed < queries and queries % normed == 0 else 0
    size = known = stated or normed or _from_tables(evidence, layers, queries)
    if not size and any(layer.name == _TORCH_DECODER for layer in layers) and queries % _TORCH_HEADS == 0:
        size = queries // _TORCH_HEADS
    elif not size:
        usual = (_USUAL_WIDE if width >= _WIDE else _USUAL, _USUAL, 128, 80, 96, 32, 16, 8)
        size = next((each for each in usual if each < queries and queries % each == 0 and keys % each == 0), None)
    if size is None:
        return {}
    found: Hyperparameters = {"heads": queries // size, "head_size": size}
    if keys != queries:
        found["kv_heads"] = keys // size
    return found if known else found | {"assumed": list(found)}


def _observed(evidence: Evidence, queries: int, keys: int) -> Hyperparameters | None:
    """From the last attention that was run with as many query channels as the described block has; otherwise from the
    last fused one, whose shapes contain everything."""
    for heads in reversed(evidence.heads):
        count = heads.count or queries // heads.size
        # Heads may be padded for a CUDA kernel; their number is right.
        if count and queries % count == 0 and 0 <= heads.size - queries // count < _PADDING:
            size = queries // count
            kv_count = keys // size if keys != queries else heads.kv_count or count
            return {"heads": count, "head_size": size} | ({"kv_heads": kv_count} if kv_count != count else {})
    fused = next((heads for heads in reversed(evidence.heads) if heads.count), None)
    if fused is None:
        return None
    shared = {"kv_heads": fused.kv_count} if fused.kv_count not in (None, fused.count) else {}
    return {"heads": fused.count, "head_size": fused.size} | shared


def _rows(layers: list[Layer], names: frozenset[str]) -> int | None:
    """The output size of a separate projection; None if queries, keys and values share one."""
    return next((x.weight[0] for x in layers if len(x.weight) >= 2 and x.name.lower() in names), None)


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


def _latent_attention(layers: list[Layer]) -> Hyperparameters | None:
    """Multi-head latent attention (DeepSeek), keys and values from a narrow common projection: the rows of four
    matrices determine all four head sizes. None for other attention."""
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
