"""Mixture of experts: which share of the parameters one token uses.

A router shows as a `topk` over the experts. Its experts are the parameters, in the router's module or beside it, that
have one slice per expert (a 3-D weight), or the children of a list with one module per expert.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchgauge.records import Capture, OpRecord, ParamRecord


class Routing(NamedTuple):
    module: str
    chosen: int
    experts: int


def active_params(capture: Capture) -> int:
    """Parameters that one token uses, routing balanced; all of them where nothing is routed."""
    total = sum(param.spec.numel for param in capture.params if not param.is_buffer)
    idle = 0
    claimed: set[str] = set()
    for routing in routings(capture):
        for param in expert_params(capture, routing):
            if param.name not in claimed:
                claimed.add(param.name)
                idle += param.spec.numel * (routing.experts - routing.chosen) // routing.experts
    return total - idle


def routings(capture: Capture) -> Iterator[Routing]:
    seen: set[Routing] = set()
    for op in capture.ops:
        if op.signature.op == "aten::topk" and op.signature.inputs[0].is_floating:
            routing = _routing(op)
            if routing not in seen and 0 < routing.chosen < routing.experts:
                seen.add(routing)
                yield routing


def _routing(op: OpRecord) -> Routing:
    return Routing(op.module, int(op.signature.attributes.get("k", 0)), op.signature.inputs[0].shape[-1])


def expert_params(capture: Capture, routing: Routing) -> Iterator[ParamRecord]:
    block = routing.module.rpartition(".")[0] if routing.module else ""
    lists = _expert_lists(capture, block, routing.experts) | _expert_lists(capture, routing.module, routing.experts)
    for param in capture.params:
        if param.is_buffer or not _inside(param.name, block):
            continue
        stacked = len(param.spec.shape) == 3 and param.spec.shape[0] == routing.experts
        if stacked or any(_inside(param.name, path) for path in lists):
            yield param


def _expert_lists(capture: Capture, block: str, experts: int) -> set[str]:
    """Module lists directly below `block` with one child per expert."""
    prefix = f"{block}." if block else ""
    sizes: dict[str, int] = {}
    for record in capture.modules:
        parent = record.parent
        if parent and parent.startswith(prefix) and "." not in parent[len(prefix) :]:
            sizes[parent] = sizes.get(parent, 0) + 1
    lists = {record.path for record in capture.modules if record.type.endswith("ModuleList")}
    return {path for path, count in sizes.items() if count == experts and path in lists}


def _inside(name: str, path: str) -> bool:
    return not path or name.startswith(f"{path}.")
