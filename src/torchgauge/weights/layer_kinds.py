"""The kind of layer that a tensor belongs to, from its name, shape and role."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torchgauge.checkpoint import Entry, Role

KINDS = (
    "attention", "mlp", "experts", "router", "convolution", "recurrent", "embedding", "norm", "head", "linear", "bias",
    "quantization", "other", "buffer", "optimizer", "not the model",
)  # fmt: skip

_NORM = re.compile(
    r"(.*_)?(norms?|ln|bn|gn|batch_?norm|layer_?norm|rms_?norm|group_?norm)(_.*|\d+[a-z]?)?", re.IGNORECASE
)
_ATTENTION = re.compile(
    r"(.*_)?(attn|attention|attend)(\d*|_.*)|self_?attn|.*attention|[qkvo]|qkv|[qkvo]_?proj|query|key|value|to_[qkv]|to_out|to_qkv|"
    r"w[qkvo]|wqkv|c_attn|query_key_value|qkv_proj|out_proj|in_proj|[qkvo]_lin|kv_[ab]_proj.*|q_[ab]_proj",
    re.IGNORECASE,
)
_MLP = re.compile(
    r"(.*_)?(mlp|ffn?|feed_?forward|densereludense|fc[12]|linear[12]|lin[12]|c_fc|w[io123](_\d)?|gate_proj|up_proj|down_proj|"
    r"gate_up_proj|intermediate|dense_h_to_4h|dense_4h_to_h)(_.*)?",
    re.IGNORECASE,
)
_EMBEDDING = re.compile(
    r".*(embed|embd|embedding).*|wte|wpe|shared|emb|.*_emb|cls_token|.*_token|.*pos_bias.*|relative_.*", re.IGNORECASE
)
_HEAD = re.compile(
    r"(lm_|.*_)?heads?(_.*)?|(pre_)?classifier\d*|embed_out|score|fc|last_linear|output|logits|predictions",
    re.IGNORECASE,
)
_EXPERTS = re.compile(r"(shared_)?experts?(_.*)?|moe", re.IGNORECASE)
_ROUTER = re.compile(r"gate|router|wg", re.IGNORECASE)
_RECURRENT = re.compile(r"(weight|bias)_(ih|hh|hr)(_l\d+)?(_reverse)?")
_BIAS = re.compile(r"(.*_)?bias|b")
_KIND_OF_ROLE = {Role.BUFFER: "buffer", Role.OPTIMIZER: "optimizer", Role.OTHER: "not the model"}


def tensor_kinds(entries: Sequence[Entry]) -> dict[str, str]:
    """Name -> kind. A norm is recognised by its name, or because its weight is a vector."""
    ranks = {entry.name: len(entry.spec.shape) for entry in entries}
    return {entry.name: _kind(entry, ranks) for entry in entries}


def _kind(entry: Entry, ranks: Mapping[str, int]) -> str:
    if entry.logical_elements == 0:
        return "quantization"
    if entry.role is not Role.PARAMETER:
        return _KIND_OF_ROLE[entry.role]
    module, _, own = entry.name.rpartition(".")
    path = module.split(".") if module else []
    if _RECURRENT.fullmatch(own):
        return "recurrent"
    if len(entry.spec.shape) > 1:
        return _matrix_kind(len(entry.spec.shape), own, path)
    is_norm = (path and _NORM.fullmatch(path[-1])) or ranks.get(f"{module}.weight" if module else "weight") == 1
    if is_norm or _NORM.fullmatch(own):
        return "norm"
    return "bias" if _BIAS.fullmatch(own) else "other"


def _matrix_kind(rank: int, own: str, path: list[str]) -> str:
    # The name of the layer, or of the tensor if it hangs directly in a block (`in_proj_weight`).
    names = [*path, own.removesuffix("_weight")]
    if any(_EXPERTS.fullmatch(part) for part in names):
        return "experts"
    if rank > 3 or (rank == 3 and own == "weight"):
        return "convolution"
    if path and _ROUTER.fullmatch(path[-1]):
        return "router"
    # A head is at the end of the model, not within its blocks, whose paths contain an index.
    if path and _HEAD.fullmatch(path[0] if path[0] != "model" else path[-1]):
        return "head"
    if any(_EMBEDDING.fullmatch(part) for part in names[-2:]):
        return "embedding"
    # The innermost telling name decides: `attention.output.dense` is attention, `output.dense` is not.
    for part in reversed(names):
        if _ATTENTION.fullmatch(part):
            return "attention"
        if _MLP.fullmatch(part):
            return "mlp"
    return "mlp" if "output" in names and "dense" in names else "linear"
