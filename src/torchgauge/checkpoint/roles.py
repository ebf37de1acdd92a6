"""Which tensors are the model's parameters, its buffers, the optimizer's, or none of these.

The model is the first container named like one; a copy of it (a moving average, a teacher) counts as OTHER beside it,
and as the model where it is all there is. Names cannot tell a frozen batch norm's weight, which is a buffer, from a
parameter: in a bare state dict it counts as one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from torchgauge.checkpoint.index import Role
from torchgauge.checkpoint.walking import Path
from torchgauge.checkpoint.wrappers import COPIES
from torchgauge.facts import TensorSpec

_MODEL_KEYS = (
    "state_dict", "model_state_dict", "model_state", "model", "module", "net", "network", "weights", "params",
    "backbone", "generator", "g", "teacher", "student",
)  # fmt: skip
_OPTIMIZER = re.compile(
    r"optim|^opt(_|$|imizer)|_opt$|lr_sched|scheduler|scaler|grad_scaler|^adam|momentum", re.IGNORECASE
)
_BUFFER_NAMES = re.compile(
    r"(running_(mean|var|max|min)|num_batches_tracked|position_ids|token_type_ids|(\w+_)?inv_freq|masked_bias"
    r"|relative_position_index|relative_coords_table|(attn|attention|causal|tril)_?mask|mask|tril|anchors?|anchor_grid"
    r"|freqs_cis|(cos|sin)_cached|pixel_(mean|std)|_float_tensor|eps_threshold|activation_post_process\w*"
    r"|rel_pos_(h|w)_index|strides?|_extra_state|k_scale|v_scale|betas|alphas_cumprod(_prev)?"
    r"|(sqrt_|log_|posterior_)\w*(alphas|variance|coef)\w*)"
)


def find_model_prefix(paths: Sequence[Path]) -> Path:
    """The containers above the model's own tensors: () for a bare state dict or for several models side by side."""
    holders = dict.fromkeys(path[0] for path in paths if len(path) > 1)
    named = next((key for key in (*_MODEL_KEYS, *COPIES) if key in holders), None)
    if named is not None and not any(_is_bare(path, named) for path in paths):
        return (named,)
    others = [key for key in holders if not _OPTIMIZER.search(key)]
    has_loose = any(len(path) == 1 for path in paths)
    return (others[0],) if len(others) == 1 and not has_loose else ()


def _is_bare(path: Path, model: str) -> bool:
    """A dotted name at the top: the file is itself a state dict, whatever else it nests."""
    return len(path) == 1 and "." in path[0] and path[0] != model


def classify(path: Path, spec: TensorSpec, prefix: Path, *, is_optimizer_file: bool = False) -> Role:
    if is_optimizer_file:
        return Role.OPTIMIZER
    if path[: len(prefix)] != prefix:
        return Role.OPTIMIZER if _OPTIMIZER.search(path[0]) else Role.OTHER
    own = path[len(prefix) :]
    if not prefix and len(own) > 1 and _OPTIMIZER.search(own[0]):
        return Role.OPTIMIZER
    if not prefix and len(own) > 1 and own[0] in COPIES:
        return Role.OTHER
    return Role.BUFFER if is_buffer(".".join(own), spec) else Role.PARAMETER


@lru_cache(maxsize=1024)
def _is_buffer_name(last: str) -> bool:
    return _BUFFER_NAMES.fullmatch(last) is not None


def is_buffer(name: str, spec: TensorSpec) -> bool:
    """A tensor that no optimizer would train: known by its name, or because its type has no gradients."""
    if _is_buffer_name(name.rpartition(".")[2]):
        return True
    if name.endswith("attn.bias") and len(spec.shape) == 4:
        return True  # GPT-2's causal mask
    return not (spec.is_arithmetic or spec.is_quantized)
