"""Time of a tool over the time of a bare forward, the two run in turns so that a busy machine slows both."""

from __future__ import annotations

import copy
import gc
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from time import perf_counter

import torch
from peers import Count
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import torchgauge as tg

FEWEST_TURNS = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """Fastest of several turns; `first_s` is the tool's first call, in which it imports and fills its caches."""

    bare_s: float
    tool_s: float
    first_s: float
    macs: int

    @property
    def ratio(self) -> float:
        return self.tool_s / self.bare_s


@contextmanager
def quiet() -> Iterator[None]:
    """Tools print, log and warn as they count."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def time_in_turns(
    model: nn.Module, args: tuple[Tensor, ...], count: Callable[[], int], *, turns: int, budget_s: float
) -> Timing:
    """Bare forward and tool in turns, at most `turns` times and no more than the budget allows."""
    first_s, macs = _seconds(count)
    _seconds(lambda: bare_forward(model, args))
    gc.collect()
    bare: list[float] = []
    tool: list[float] = []
    start = perf_counter()
    while len(bare) < turns and (len(bare) < FEWEST_TURNS or perf_counter() - start < budget_s):
        bare.append(_seconds(lambda: bare_forward(model, args))[0])
        tool.append(_seconds(count)[0])
    return Timing(min(bare), min(tool), first_s, macs)


def bare_forward(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    with torch.no_grad():
        model(*args)
    return 0


def analyse(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    """The tool of this project, static part: peers give no advice. Reading a total sums up the module tree."""
    return int(tg.analyze(model, inputs=args, advice=False, progress=False).totals.macs)


def private_copy(
    model: nn.Module, args: tuple[Tensor, ...], *, on_meta: bool = False
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A model of the tool's own: some leave hooks and buffers behind."""
    model = copy.deepcopy(model)
    return (model.to("meta"), tuple(tensor.to("meta") for tensor in args)) if on_meta else (model, args)


def true_macs(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    """What the dispatcher sees with attention in its mathematical form; with grad, so that no fused path hides it."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.enable_grad():
        model(*args)
    return counter.get_total_flops() // 2


def bound(count: Count, model: nn.Module, args: tuple[Tensor, ...]) -> Callable[[], int]:
    def call() -> int:
        with quiet():
            return count(model, args)

    return call


def _seconds(call: Callable[[], int]) -> tuple[float, int]:
    start = perf_counter()
    result = call()
    return perf_counter() - start, result
