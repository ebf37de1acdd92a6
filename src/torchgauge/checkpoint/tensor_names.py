"""What trainers, compilers and parallel wrappers put into the names of a model's tensors, and names without it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from torchgauge.checkpoint.index import Role
from torchgauge.checkpoint.pickle.walk import Path
from torchgauge.facts import TensorSpec

Shape = tuple[int, ...]

# What trainers call a copy of the model: a moving average of its weights.
COPIES = (
    "ema", "model_ema", "ema_model", "ema_module", "module_ema", "ema_state_dict", "model_ema_state_dict",
    "state_dict_ema", "params_ema", "g_ema", "ema_params", "shadow_params", "averaged_model", "average_model",
    "swa_model",
)  # fmt: skip
# Wrappers whose attribute is no name a model would have: they say nothing wherever they stand.
_TRANSPARENT = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
# First parts that are the trainer's at least as often as the model's own.
_LEADS = frozenset({"module", "model", "state_dict", "net", "network", "student", "teacher", *COPIES})
_DEEPEST = 6

# Names as they are compared -> names as they are stored.
Spelling = dict[str, str]


def common_names(ours: Mapping[str, Shape], theirs: Mapping[str, Shape]) -> tuple[Spelling, Spelling]:
    """The two sets of names spelled so that most are the same: with or without the wrappers around each.

    A first part that is no known wrapper (`encoder`) is left out on one side at most: without theirs, `encoder.0` and
    `decoder.0` would be the same.
    """
    mine, other = list(_spellings(ours)), list(_spellings(theirs))
    candidates = [(a, b) for a, a_known in mine for b, b_known in other if a_known or b_known]
    shapes = dict(ours), dict(theirs)

    def agreement(pair: tuple[Spelling, Spelling]) -> tuple[int, int]:
        both = pair[0].keys() & pair[1].keys()
        return sum(shapes[0][pair[0][name]] == shapes[1][pair[1][name]] for name in both), len(both)

    return max(candidates, key=agreement)


def _spellings(names: Mapping[str, Shape]) -> Iterator[tuple[Spelling, bool]]:
    """The names, then without one more part that most of them begin with; whether all that is left out is a wrapper."""
    spelling = {name: name for name in names}
    yield spelling, True
    plain = {_without_transparent(name): name for name in names}
    if len(plain) == len(names) and plain.keys() != spelling.keys():
        spelling = plain
        yield spelling, True
    is_known = True
    for _ in range(_DEEPEST):
        leads = Counter(name.partition(".")[0] for name in spelling if "." in name)
        lead, count = leads.most_common(1)[0] if leads else ("", 0)
        # A count of steps or a head may stand beside what is wrapped.
        if 2 * count <= len(spelling):
            return
        shorter = {name.removeprefix(f"{lead}."): stored for name, stored in spelling.items()}
        if len(shorter) < len(spelling):
            return
        spelling, is_known = shorter, is_known and lead in _LEADS
        yield spelling, is_known


def _without_transparent(name: str) -> str:
    if not any(part in name for part in _TRANSPARENT):
        return name
    return ".".join(part for part in name.split(".") if part not in _TRANSPARENT)


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
