"""How a model is run: threads, batches, what training keeps."""

from __future__ import annotations

import re

import psutil
import torch

from torchgauge.advise.code import Patch
from torchgauge.advise.rules.checkpointing import CHECKPOINT, CHECKPOINT_IMPORTS
from torchgauge.capture.structure import map_tensors
from torchgauge.errors import InputError
from torchgauge.measure.sweep import batch_size
from torchgauge.source import Candidate
from torchgauge.units import format_bytes
from torchgauge.verify.registry import Applied, NotApplicableError, Trial, transformation

_THREADS = re.compile(r"torch\.set_num_threads\(\d+\)")
# Of the free memory that the activations of a larger batch may take.
_ROOM = 0.5


@transformation("idle-cores", stage="switches")
@transformation("thread-oversubscription", stage="switches")
@transformation("thread-count", stage="switches")
def set_threads(trial: Trial) -> Applied:
    advised = _THREADS.search(trial.row["code"] or "")
    if advised is None:
        raise NotApplicableError("it does not say how many threads")
    return Applied(f"{advised[0]}\n")


@transformation("batch-at-knee")
def larger_batch(trial: Trial) -> Applied:
    """The same samples again and again: the gain is by sample. What calls the model makes its batches, so no code."""
    evidence = trial.row["evidence"]
    factor = evidence["knee_batch"] // max(evidence["batch"], 1)
    needed, is_cuda = evidence["peak_activation_bytes_there"], trial.device.type == "cuda"
    free = torch.cuda.mem_get_info(trial.device)[0] if is_cuda else psutil.virtual_memory().available
    if needed > _ROOM * free:
        raise NotApplicableError(f"such a batch needs {format_bytes(needed)}, and {format_bytes(free)} are free")
    try:
        size = batch_size(Candidate(trial.args, dict(trial.kwargs), None))
    except InputError as error:
        raise NotApplicableError(str(error)) from error
    args, kwargs = map_tensors(
        (trial.args, dict(trial.kwargs)),
        lambda tensor: torch.cat([tensor] * factor) if tensor.dim() and tensor.shape[0] == size else tensor,
    )
    return Applied("", inputs=(args, kwargs), samples=factor, in_plan=False)


@transformation("activation-checkpointing")
def checkpointed(trial: Trial) -> Applied:
    """The forward of each block through `checkpoint`: the same as around its call."""
    parent, kind = str(trial.row["where"]["module"] or ""), trial.row["evidence"]["type"]
    holder = trial.module(parent)
    names = [] if holder is None else [name for name, child in holder.named_children() if type(child).__name__ == kind]
    if not names:
        raise NotApplicableError("the model that runs has no blocks of this name")
    paths = [f"{parent}.{name}".lstrip(".") for name in names]
    code = Patch(CHECKPOINT, ("path",), tuple((path,) for path in paths), CHECKPOINT_IMPORTS)
    return Applied(code.text() + "\n", in_plan=False)
