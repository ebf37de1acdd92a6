"""What trainers, compilers and parallel wrappers put into the names of a model's tensors, and names without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

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
