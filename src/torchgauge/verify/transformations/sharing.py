"""Parameters that are there twice, or for nothing; what is computed from them alone."""

from __future__ import annotations

from torch.nn.utils import parametrize

from torchgauge.verify.code import literal
from torchgauge.verify.registry import transformation
from torchgauge.verify.trial import Applied, NotApplicableError, Trial


@transformation("tied-weights", stage="weights")
def tie(trial: Trial) -> Applied:
    pairs = [(str(place["weight"]), str(place["evidence"]["same_values_as"])) for place in trial.places]
    known = dict(trial.model.named_parameters(remove_duplicate=False))
    lines = []
    for copy, original in pairs:
        if copy in known and original in known:
            module, _, name = copy.rpartition(".")
            lines.append(f"setattr(model.get_submodule({module!r}), {name!r}, model.get_parameter({original!r}))\n")
    if not lines:
        raise NotApplicableError("the model that runs has no parameters of these names")
    return Applied("".join(lines), places=len(lines))


@transformation("unused-parameters")
def take_out(trial: Trial) -> Applied:
    modules = [str(place["module"]) for place in trial.places if place["module"] and place["weight"] is None]
    known = [path for path in modules if trial.module(path) is not None]
    if not known:
        raise NotApplicableError("a single parameter is taken out where the model makes it: its code may ask for it")
    code = f"for path in {literal(known)}:\n    model.set_submodule(path, torch.nn.Identity())\n"
    return Applied(code, places=len(known))


@transformation("recomputed-weight", stage="weights")
def compute_once(trial: Trial) -> Applied:
    """Parametrizations can be made plain parameters; what a forward computes itself only its author can move."""
    found = []
    for place in trial.places:
        owner, marked, rest = str(place["module"] or "").partition("parametrizations.")
        owner, name = owner.rstrip("."), rest.partition(".")[0]
        module = trial.module(owner) if marked else None
        if module is not None and parametrize.is_parametrized(module, name):
            found.append((owner, name))
    if not found:
        raise NotApplicableError("it is computed in a forward: edit its source")
    return Applied(
        f"for path, name in {literal(list(dict.fromkeys(found)))}:\n"
        "    torch.nn.utils.parametrize.remove_parametrizations(model.get_submodule(path), name)\n",
        places=len(found),
    )
