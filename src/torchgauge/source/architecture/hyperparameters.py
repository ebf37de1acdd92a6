"""Likely hyperparameters from names and shapes. What the shapes leave open is assumed, and named as such."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torchgauge.source.architecture.attention import attention_shape
from torchgauge.source.architecture.blocks import Blocks
from torchgauge.source.architecture.evidence import Evidence
from torchgauge.source.architecture.family import is_patch_embedding
from torchgauge.source.architecture.layers import CONVOLUTIONS, RECURRENT, Layer, layers_of, of_kind

_POSITION = re.compile(r"pos|wpe", re.IGNORECASE)
_NO_VOCABULARY = re.compile(r"pos|wpe|type|bias|query|time|label|class_embed", re.IGNORECASE)
_HEAD = re.compile(r"(^|\.)(fc|head|classifier|score|linear_head|heads\.head|out|output)(\.\d+)?$")


def hyperparameters(evidence: Evidence) -> dict[str, Any]:
    """By name, without those that do not apply; `assumed` lists the names of those that are a convention, no fact."""
    found: dict[str, Any] = {}
    assumed: list[str] = []
    for part in (_blocks, _transformer, _tokens, _images, _mixture, _recurrent, _state_space, _output):
        found |= part(evidence)
        assumed += found.pop("assumed", ())
    found |= {name: value for name, value in evidence.stated.items() if value is not None}
    assumed = [name for name in assumed if name not in evidence.stated]
    return found | ({"assumed": assumed} if assumed else {})


def main_blocks(evidence: Evidence) -> list[Blocks]:
    """Those with attention or a state space, where there are any."""
    mixing = [b for b in evidence.blocks if any(x.is_query or x.kind == "StateSpace" for x in layers_of(b.tensors))]
    return mixing or evidence.blocks


def _blocks(evidence: Evidence) -> dict[str, Any]:
    blocks = main_blocks(evidence)
    if not blocks:
        return {}
    found: dict[str, Any] = {"depth": sum(block.count for block in blocks)}
    for side in ("encoder", "decoder"):
        counts = [block.count for block in blocks if side in block.path.split(".")]
        if counts and len(counts) < len(blocks):
            found[f"{side}_layers"] = sum(counts)
    return found if len(blocks) == 1 else found | {"stages": [block.count for block in blocks]}


def _transformer(evidence: Evidence) -> dict[str, Any]:
    blocks = main_blocks(evidence)
    layers = layers_of(blocks[-1].tensors) if blocks else evidence.layers
    width = _width(evidence, layers)
    if width is None:
        return {}
    found: dict[str, Any] = {"width": width}
    if evidence.has_attention:
        # The last of the blocks may be one without attention.
        found |= attention_shape(evidence, layers if any(x.is_query for x in layers) else evidence.layers, width)
        # The other side of the matrices of a block that have the width on one; fused gates are twice as tall. Without
        # blocks the stem and the head are among them: what an MLP widens to, it comes back from.
        is_block = bool(blocks)
        mixing = re.compile(r"att|router|gate$|\.q|\.k|\.v")
        matrices = [x for x in layers if x.kind in ("Linear", "Conv2d", "Conv1d") and not mixing.search(x.path)]
        larger = [size for layer in matrices for size in _partner(layer, width) if size > width]
        # A convolution over several positions from fewer channels is a stem, or depthwise.
        smaller = [size for layer in matrices if not layer.is_spatial for size in _partner(layer, width)]
        sizes = larger or smaller if is_block else [size for size in larger if larger.count(size) > 1]
        intermediate = min(sizes or _expert_sizes(layers, width), default=None)
        found |= {"intermediate_size": intermediate} if intermediate else {}
    return found


def _width(evidence: Evidence, layers: list[Layer]) -> int | None:
    """The size of most norms of a block; of a convolutional network the most channels."""
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


def _expert_sizes(layers: list[Layer], width: int) -> list[int]:
    shapes = [shape[-2:] for layer in of_kind(layers, "Experts") for shape in layer.tensors.values() if len(shape) == 3]
    return [max(shape) if min(shape) == width else min(shape) for shape in shapes if width in shape]


def _partner(layer: Layer, width: int) -> Iterator[int]:
    rows, columns = layer.weight[:2]
    if (rows == width) != (columns == width):
        yield columns if rows == width else rows


def _tokens(evidence: Evidence) -> dict[str, Any]:
    tables = list(of_kind(evidence.layers, "Embedding"))
    words = [layer.weight[0] for layer in tables if not _NO_VOCABULARY.search(layer.name)]
    places = [x.weight[0] for x in tables if _POSITION.search(x.name) and "query" not in x.name]
    found = {"vocabulary": max(words)} if words else {}
    return found | ({"positions": max(places)} if places else {})


_COLOURS = 3


def _images(evidence: Evidence) -> dict[str, Any]:
    few = [layer for layer in of_kind(evidence.layers, "Conv2d", "Conv3d") if layer.weight[1] <= 16]
    if not few:
        return {}
    # A file may sort its names, so the first layer need not come first; and a depthwise convolution has one channel.
    first = next((layer for layer in few if layer.weight[1] == _COLOURS), few[0])
    if is_patch_embedding(first) and evidence.has_attention:
        return {"patch_size": first.weight[-1], "image_channels": first.weight[1]}
    return {"image_channels": first.weight[1], "stem_kernel": first.weight[-1], "stem_width": first.weight[0]}


def _mixture(evidence: Evidence) -> dict[str, Any]:
    layers = [layer for layer in evidence.layers if layer.is_expert]
    stacked = [shape[0] for layer in layers for shape in layer.tensors.values() if len(shape) == 3]
    if stacked:
        return {"experts": max(stacked)}
    numbers = [int(match[1]) for layer in layers if (match := re.search(r"experts?\.(?:expert_)?(\d+)", layer.path))]
    return {"experts": max(numbers) + 1} if numbers else {}


def _recurrent(evidence: Evidence) -> dict[str, Any]:
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


def _state_space(evidence: Evidence) -> dict[str, Any]:
    layer = next(of_kind(evidence.layers, "StateSpace"), None)
    if layer is None:
        return {}
    decay = layer.tensors["A_log"]
    if len(decay) == 2:
        return {"inner_size": decay[0], "state_size": decay[1]}
    weights = {other.path: other.weight for other in evidence.layers}
    out, convolved = (weights.get(f"{layer.path}.{name}", ()) for name in ("out_proj", "conv1d"))
    return {"state_heads": decay[0]} | (_grouped_states(decay[0], out[1], convolved[0]) if out and convolved else {})


_USUAL_STATES = (128, 64)


def _grouped_states(heads: int, inner: int, convolved: int) -> dict[str, Any]:
    """A convolution goes over the inner channels and two sets of states per group (Mamba 2): it shows how many states
    all groups have, and not how many groups there are."""
    states = (convolved - inner) // 2
    if states <= 0 or heads <= 0:
        return {}
    size = next((size for size in _USUAL_STATES if states % size == 0), states)
    found = {"inner_size": inner, "state_head_size": inner // heads, "state_size": size, "state_groups": states // size}
    return found | {"assumed": ["state_size", "state_groups"]}


def _output(evidence: Evidence) -> dict[str, Any]:
    heads = [layer for layer in of_kind(evidence.layers, "Linear") if _HEAD.search(layer.path)]
    words = {layer.weight[0] for layer in of_kind(evidence.layers, "Embedding")}
    # As many as there are words: it makes text.
    return {"classes": heads[-1].weight[0]} if heads and heads[-1].weight[0] not in words else {}
