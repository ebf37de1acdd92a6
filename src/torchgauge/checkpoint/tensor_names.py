"""The vocabulary of tensor names: prefixes, wrappers, averaged copies, buffers, attention; and the role of a tensor.

The model is the first container with the name of one; a copy of it (moving average, teacher) has the role OTHER, unless
it is all there is. Names cannot distinguish the weight of a frozen batch norm, which is a buffer, from a parameter: in
a bare state dict it counts as a parameter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from torchgauge.checkpoint.index import Role
from torchgauge.facts import TensorSpec

if TYPE_CHECKING:
    from torchgauge.checkpoint.pickle.walk import Path

Shape = tuple[int, ...]

# Names of averaged copies of the model (EMA, SWA).
COPIES = (
    "ema", "model_ema", "ema_model", "ema_module", "module_ema", "ema_state_dict", "model_ema_state_dict",
    "state_dict_ema", "params_ema", "g_ema", "ema_params", "shadow_params", "averaged_model", "average_model",
    "swa_model",
)  # fmt: skip
# Attributes of wrappers that no model uses: they can be removed anywhere.
_WRAPPER_ATTRIBUTES = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
# Prefixes that trainers and torch.compile put before all names of a model.
WRAPPER_PREFIXES = ("module.", "_orig_mod.")
# These may also be the first attribute of the model itself.
CONTAINER_PREFIXES = (*WRAPPER_PREFIXES, "model.", "state_dict.")
# First parts that belong to the trainer at least as often as to the model.
_TRAINER_PREFIXES = frozenset({"module", "model", "state_dict", "net", "network", "student", "teacher", *COPIES})
_MAX_REMOVED_PREFIXES = 6

# Compared names -> stored names.
Spelling = dict[str, str]


def common_names(ours: Mapping[str, Shape], theirs: Mapping[str, Shape]) -> tuple[Spelling, Spelling]:
    """Both sets of names, with or without their wrappers, so that as many as possible agree.

    A first part that is not a known wrapper (`encoder`) is removed on one side at most: otherwise `encoder.0` and
    `decoder.0` would match.
    """
    mine, other = list(_spellings(ours)), list(_spellings(theirs))
    candidates = [(a, b) for a, a_known in mine for b, b_known in other if a_known or b_known]
    shapes = dict(ours), dict(theirs)

    def agreement(pair: tuple[Spelling, Spelling]) -> tuple[int, int]:
        both = pair[0].keys() & pair[1].keys()
        return sum(shapes[0][pair[0][name]] == shapes[1][pair[1][name]] for name in both), len(both)

    return max(candidates, key=agreement)


def _spellings(names: Mapping[str, Shape]) -> Iterator[tuple[Spelling, bool]]:
    """The names, then each time without one more common prefix; and whether everything removed is a known wrapper."""
    spelling = {name: name for name in names}
    yield spelling, True
    plain = {".".join(part for part in name.split(".") if part not in _WRAPPER_ATTRIBUTES): name for name in names}
    if len(plain) == len(names) and plain.keys() != spelling.keys():
        spelling = plain
        yield spelling, True
    is_known = True
    for _ in range(_MAX_REMOVED_PREFIXES):
        leads = Counter(name.partition(".")[0] for name in spelling if "." in name)
        lead, count = leads.most_common(1)[0] if leads else ("", 0)
        # A step counter or a head may be outside the wrapper.
        if 2 * count <= len(spelling):
            return
        shorter = {name.removeprefix(f"{lead}."): stored for name, stored in spelling.items()}
        if len(shorter) < len(spelling):
            return
        spelling, is_known = shorter, is_known and lead in _TRAINER_PREFIXES
        yield spelling, is_known


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


# Buffers that some versions of a model store and others do not; their absence does not matter.
_OPTIONAL_BUFFERS = re.compile(
    r"(.*\.)?(num_batches_tracked|position_ids|inv_freq|(attn|attention)\.(masked_)?bias|relative_position_index"
    r"|attn_mask|relative_coords_table|_extra_state)"
)
# Names of the projections of attention, in lower case; queries, keys and values may also share one matrix.
QUERY_NAMES, KEY_NAMES, VALUE_NAMES = (
    frozenset((letter, f"{letter}_proj", f"{letter}proj", word, f"to_{letter}", f"{letter}_lin", f"w{letter}",
               f"{word}_proj"))
    for letter, word in (("q", "query"), ("k", "key"), ("v", "value"))
)  # fmt: skip
FUSED_PROJECTION_NAMES = frozenset(("in_proj", "in_proj_weight", "qkv", "qkv_proj", "to_qkv", "wqkv"))
OUTPUT_PROJECTION_NAMES = frozenset(("o_proj", "out_proj", "o", "to_out", "wo", "out_lin"))


def is_optional(name: str) -> bool:
    """Whether a checkpoint may lack the tensor."""
    return _OPTIONAL_BUFFERS.fullmatch(name) is not None


def find_model_prefix(paths: Sequence[Path]) -> Path:
    """The containers around the model's tensors; () for a bare state dict or several models."""
    holders = dict.fromkeys(path[0] for path in paths if len(path) > 1)
    named = next((key for key in (*_MODEL_KEYS, *COPIES) if key in holders), None)
    # Whether the file is itself a state dict, because it has a dotted name at the top.
    if named is not None and not any(len(path) == 1 and "." in path[0] and path[0] != named for path in paths):
        return (named,)
    others = [key for key in holders if not _OPTIMIZER.search(key)]
    has_loose = any(len(path) == 1 for path in paths)
    return (others[0],) if len(others) == 1 and not has_loose else ()


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
    """Whether a tensor is not trained, by its name or because its type has no gradients."""
    if _is_buffer_name(name.rpartition(".")[2]):
        return True
    if name.endswith("attn.bias") and len(spec.shape) == 4:
        return True  # GPT-2's causal mask
    return not (spec.is_arithmetic or spec.is_quantized)
