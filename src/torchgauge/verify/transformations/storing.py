"""Values stored in a narrower type that holds them all."""

from __future__ import annotations

import torch
from torch import nn

from torchgauge.advise.matrices import model_name
from torchgauge.facts import View
from torchgauge.verify.code import literal
from torchgauge.verify.registry import transformation
from torchgauge.verify.trial import Applied, NotApplicableError, Trial


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
