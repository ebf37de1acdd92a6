"""How `torch.compile` runs a model: the graphs Dynamo cuts, what cut them, and the kernels Inductor makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from torchgauge.facts.schema import Count, as_json, one_of

EAGER, COMPILED = EXECUTIONS = ("eager", "compiled")
# Kernels that Inductor generates, and calls of libraries (cuBLAS, oneDNN) or of ops it has no code for.
GENERATED, EXTERN = "generated", "extern"


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """One graph. `id` is Dynamo's: frame/version; `phase` "forward" or "backward"; `source` the first line of the
    function that it was cut from; `ops` the calls in the graph, before Inductor decomposes and fuses them; `calls` how
    often a run goes through it: equal modules may share one."""

    id: str
    phase: Annotated[str, one_of("forward", "backward")]
    function: str
    source: str | None
    ops: Count
    calls: Count = 1


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """Why Dynamo ended a graph, and where: `source` is the line of the model's code, `detail` what Dynamo says about
    it. `count` is how often: a break inside a called function also ends the graph of every caller."""

    reason: str
    source: str | None
    detail: str = ""
    count: Count = 1


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """One launch. `ops` are those fused into it, in order; `modules` whose work it does, with the share of each by the
    bytes of its ops. Bytes are of buffers that exist outside the kernel. `time_s` is None unless profiled."""

    name: str
    graph: Count
    kind: Annotated[str, one_of(GENERATED, EXTERN)]
    ops: tuple[str, ...]
    modules: Mapping[str, float]
    bytes_read: Count
    bytes_written: Count
    time_s: float | None = None


@dataclass(frozen=True, slots=True)
class Recompilation:
    """A function was compiled again, because of the guard that `reason` quotes. `point` is the value of the sweep at
    which it happened, "batch=8"; None outside of one."""

    reason: str
    source: str | None
    point: str | None = None


@dataclass(frozen=True, slots=True)
class Compiled:
    """`backend` is torch.compile's, `device` the type that kernels were made for. `is_run`: the code was compiled and
    run; otherwise its kernels follow from the scheduler's decisions. `profiled_s` is the device time of a profiled run,
    `joined_s` the part of it that belongs to `kernels`."""

    backend: str
    device: str
    is_run: bool
    graphs: tuple[CompiledGraph, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    kernels: tuple[CompiledKernel, ...] = ()
    recompilations: tuple[Recompilation, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    profiled_s: float | None = None
    joined_s: float | None = None

    @property
    def bytes_read(self) -> int:
        return sum(kernel.bytes_read for kernel in self.kernels)

    @property
    def bytes_written(self) -> int:
        return sum(kernel.bytes_written for kernel in self.kernels)


def compiled_member(compiled: Compiled | None, eager_read: int, eager_written: int) -> dict[str, object] | None:
    """The document's `compiled`; None for an eager run."""
    if compiled is None:
        return None
    totals = {
        "kernels": len(compiled.kernels),
        "bytes_read": compiled.bytes_read,
        "bytes_written": compiled.bytes_written,
        "eager_bytes_read": eager_read,
        "eager_bytes_written": eager_written,
    }
    return {**as_json(compiled), "totals": totals}
