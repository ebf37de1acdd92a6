"""Parameters that are stored twice, unused, recomputed at each call, or in a wider type than their values need."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrize

from torchgauge.advise.matrices import model_name
from torchgauge.facts import View
from torchgauge.verify.code import literal
from torchgauge.verify.registry import Applied, NotApplicableError, Trial, transformation


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


@transformation("narrower-type", stage="weights")
def narrower(trial: Trial) -> Applied:
    """There and back again: what is stored is narrow, what is loaded and computed with is as before."""
    rows = [row for row in View(trial.capture).weights if row.get("fits") and row.shared_with is None]
    state = trial.model.state_dict()
    kinds = {model_name(row): str(row.fits) for row in rows if model_name(row) in state}
    if not kinds:
        raise NotApplicableError("the model that runs has no parameters of these names")
    code = (
        f"fits = {literal(kinds)}\n"
        "state = {name: t.to(getattr(torch, fits[name])) if name in fits else t for name, t in "
        "model.state_dict().items()}\n"
        "model.load_state_dict(state)\n"
    )

    def stored_bytes(model: nn.Module) -> int:
        state = model.state_dict().items()
        return sum((t.to(getattr(torch, kinds[name])) if name in kinds else t).nbytes for name, t in state)

    return Applied(code, held_bytes=stored_bytes, in_plan=False)
