"""Graphs of script modules, lowered to ops and calls of modules; and the modules that frozen graphs still show.

Functions and methods of plain script classes cannot be looked up from Python, so torch's own pass inlines them. Calls
of modules are hidden from that pass under a name it does not know, because they are the hierarchy. A frozen graph has
no calls left: the modules that its nodes were inlined from are recovered as far as possible. A node has the names of
its modules without the lists around them (`0.attention` for `blocks.0.attention`); constants that were parameters have
the whole name. Together they give the paths.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

CALL = "torchgauge::CallModule"
# Precedes the nodes that replaced a call of a function, with the source range of the call.
LINE = "torchgauge::Line"
_MAX_CALL_DEPTH = 64  # functions that call functions; TorchScript has no recursion

_SEGMENT = re.compile(r"([^.()]+)\(([^()]*)\)")
_NO_MODULE = ("SELF", "UNKNOWN_INSTANCE", "TOP")
ONEDNN_CONSTANT = "prim::ConstantMKLDNNTensor"
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")

# The paths of the modules that a node belongs to, outermost first.
Scope = tuple[str, ...]
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FrozenTensor:
    name: str
    tensor: torch.Tensor
    is_buffer: bool


def type_name(value: torch._C.Value) -> str:
    """The type in full, with the module of its class; the stubs of torch lack `str`."""
    return str(value.type().str())  # type: ignore[attr-defined]


def lower(graph: torch._C.Graph, module_types: frozenset[str]) -> torch._C.Graph:
    """A copy of the graph; `module_types` are the names of the classes whose methods are calls of modules."""
    lowered = graph.copy()
    for node in list(nodes_of(lowered)):
        if node.kind() == "prim::CallMethod" and type_name(next(node.inputs())) in module_types:
            call = lowered.create(CALL, list(node.inputs()), node.outputsSize())
            call.s_("name", node.s("name"))
            call.copyMetadata(node)
            call.insertBefore(node)
            for old, new in zip(node.outputs(), call.outputs(), strict=True):
                new.setType(old.type())
            node.replaceAllUsesWith(call)
            node.destroy()
    # One pass leaves the calls that a function of a loaded archive makes itself.
    for _ in range(_MAX_CALL_DEPTH):
        for node in [node for node in nodes_of(lowered) if node.kind() == "prim::CallFunction"]:
            mark = lowered.create(LINE, [], 0)
            mark.s_("range", str(node.sourceRange()))
            mark.insertBefore(node)
        torch._C._jit_pass_inline(lowered)
        if all(node.kind() != "prim::CallFunction" for node in nodes_of(lowered)):
            break
    return lowered


def module_types(script: Any) -> frozenset[str]:
    """The names of the classes of a script module and of everything inside it."""
    names = {script._type().str()}
    for name, _ in torch._C.ModuleDict(script).items():
        names |= module_types(script.getattr(name))
    return frozenset(names)


def nodes_of(block: torch._C.Block | torch._C.Graph, *, subgraphs: bool = False) -> Iterator[torch._C.Node]:
    """All nodes of a graph or block, those of inner blocks (and of `subgraphs`, which forks have) after their own node.
    Without a call for each level: blocks may be nested thousands deep."""
    waiting = [iter(block.nodes())]
    while waiting:
        node = next(waiting[-1], None)
        if node is None:
            waiting.pop()
            continue
        yield node
        inner: list[torch._C.Block | torch._C.Graph] = list(node.blocks())
        if subgraphs and node.hasAttribute("Subgraph"):
            inner.append(node.g("Subgraph"))
        waiting += [iter(each.nodes()) for each in reversed(inner)]


def is_flat(graph: torch._C.Graph) -> bool:
    """Whether modules were inlined into the graph."""
    return any(_names(node) for node in nodes_of(graph))


def is_frozen(module: torch.jit.ScriptModule) -> bool:
    """A frozen module has no training mode."""
    return not module._c.hasattr("training")


class Scopes:
    """The scope of every node of a flat graph."""

    def __init__(self, graph: torch._C.Graph) -> None:
        self.types: dict[str, str] = {}
        self._paths: dict[Names, list[tuple[int, str]]] = defaultdict(list)
        # The whole path of every module whose parameter a node reads, and where in the graph.
        for position, node in enumerate(nodes_of(graph)):
            names = _names(node)
            for value in node.inputs() if names else ():
                owner = _constant_name(value.node())[:-1]
                for depth, end in enumerate(_match(names, owner), 1):
                    self._paths[names[:depth]].append((position, ".".join(owner[:end])))
        self._found: dict[object, Scope] = {}
        for position, node in enumerate(nodes_of(graph)):
            segments = _segments(node)
            scope: list[str] = []
            for depth in range(1, len(segments) + 1):
                names = tuple(name for name, _ in segments[:depth])
                above = scope[-1] if scope else ""
                scope.append(self._resolve(names, position) or f"{above}.{names[-1]}".lstrip("."))
            self._found[_key(node)] = tuple(scope)
            for path, (_, kind) in zip(scope, segments, strict=True):
                self.types.setdefault(path, kind)

    def of(self, node: torch._C.Node) -> Scope:
        return self._found.get(_key(node), ())

    def _resolve(self, names: Names, position: int) -> str | None:
        """The path that the nearest node with a parameter gives to these names."""
        found = self._paths.get(names)
        if not found:
            return None
        after = bisect_left(found, (position, ""))
        return min(found[max(after - 1, 0) : after + 1], key=lambda known: abs(known[0] - position))[1]


def frozen_modules(graph: torch._C.Graph) -> dict[str, str]:
    """Types of the modules that were inlined into a graph, by path, parents before children."""
    types = dict(Scopes(graph).types)
    for path in list(types):
        parent = path.rpartition(".")[0]
        while parent and parent not in types:
            types[parent] = "ModuleList"
            parent = parent.rpartition(".")[0]
    return types


def frozen_tensors(graph: torch._C.Graph) -> Iterator[FrozenTensor]:
    """The constants of a graph that were parameters or buffers, or the tensors packed in them; named for the module
    that reads them first."""
    scopes = Scopes(graph)
    taken: set[str] = set()
    for node in nodes_of(graph):
        if not node.hasUses():
            continue
        held: list[tuple[str, torch.Tensor]] = []
        if node.kind() == "prim::Constant" and is_packed_type(node.output().type()):
            held = list(packed_tensors(node.output().toIValue()))
        elif (constant := _constant(node)) is not None and constant.is_floating_point():
            is_number = not constant.dim() and not _constant_name(node)  # a literal of the code
            held = [] if is_number else [("", constant)]
        for place, tensor in held:
            # `weight` of `self.layer1.0.conv1.weight`; a number at the end only makes the name unique in the graph.
            parts = [part for part in _constant_name(node) if not part.isdigit()]
            leaf = parts[-1].removesuffix("_mkldnn").removesuffix("_fused_bn") if parts else "constant"
            name = base = ".".join((*scopes.of(node.output().uses()[0].user)[-1:], *filter(None, (leaf, place))))
            while name in taken:
                name = f"{base}.{len(taken)}"
            taken.add(name)
            yield FrozenTensor(name, tensor, base.endswith(_BUFFERS))


def _match(names: Names, owner: Names) -> list[int]:
    """The end of each name in the whole path, matched from the back; empty if they do not fit."""
    ends: list[int] = []
    end = len(owner)
    for name in reversed(names):
        while end and owner[end - 1] != name:
            end -= 1
        if not end or (not ends and end != len(owner)):
            return []
        ends.append(end)
        end -= 1
    return ends[::-1]


_plain: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def onednn_constant(node: torch._C.Node) -> torch.Tensor:
    """A weight that `torch.jit.optimize_for_inference` has put into oneDNN's own layout, which has no strides: its
    shape and type, the same object every time."""
    value = node.t("value")
    if value not in _plain:
        _plain[value] = torch.empty(value.shape, dtype=value.dtype, device="meta")
    return _plain[value]


def _constant(node: torch._C.Node) -> torch.Tensor | None:
    if node.kind() == ONEDNN_CONSTANT:
        return onednn_constant(node)
    if node.kind() != "prim::Constant" or node.output().type().kind() not in ("TensorType", "OptionalType"):
        return None
    value = node.output().toIValue()
    return value if isinstance(value, torch.Tensor) else None  # a trace has numbers of this type


def _constant_name(node: torch._C.Node) -> Names:
    """`self.layer1.0.conv1.weight` without its first part; nothing for a value that is not a named constant."""
    if _constant(node) is None:
        return ()
    parts = tuple(node.output().debugName().split("."))
    return parts[1:] if parts[0] == "self" else ()


def _names(node: torch._C.Node) -> Names:
    return tuple(name for name, _ in _segments(node))


def _segments(node: torch._C.Node) -> list[tuple[str, str]]:
    if node.kind() == "prim::Constant":
        return []
    return [(name, kind) for name, kind in _SEGMENT.findall(node.getModuleHierarchy()) if name not in _NO_MODULE]


def _key(node: torch._C.Node) -> tuple[object, ...]:
    return (node.kind(), *(value.debugName() for value in (*node.inputs(), *node.outputs())))


_CLASSES = "__torch__.torch.classes."


def is_packed_type(kind: Any) -> bool:
    return str(kind.str()).startswith(_CLASSES)


def packed_attributes(script: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights in the packed attributes of a script module itself, named as its state dict has them."""
    if any(map(is_packed_type, script._type().containedTypes())):
        engine: Any = torch._C
        for name, value in engine._jit_debug_module_iterators(script)["named_attributes"]:
            for place, tensor in packed_tensors(value):
                yield f"{name}.{place}", tensor


def packed_tensors(value: object) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights and biases in the state of a packed object, by their places in it: on the meta device, because the
    state is a copy. Numbers that describe a layer are integers and left out."""
    seen: set[tuple[object, ...]] = set()
    waiting: list[tuple[str, object]] = [("", value)]
    while waiting:
        place, item = waiting.pop()
        if isinstance(item, torch._C.ScriptObject) and is_packed_type(item._type()):
            waiting.append((place, item._get_method("__getstate__")()))
        elif isinstance(item, list | tuple):
            named = [(f"{place}.{number}".lstrip("."), inner) for number, inner in enumerate(item)]
            waiting += reversed(named)
        elif isinstance(item, torch.Tensor) and item.dim() and (item.is_quantized or item.is_floating_point()):
            # The cell of an RNN refers to the biases of its layers again.
            key = (item.untyped_storage()._cdata, item.storage_offset(), item.shape)
            if key not in seen:
                seen.add(key)
                made = torch.empty(item.shape, dtype=torch.int8 if item.is_quantized else item.dtype, device="meta")
                if item.is_quantized:  # a scale and a zero point for the tensor, or for each of its channels
                    channels = item.size(item.q_per_channel_axis()) if "channel" in str(item.qscheme()) else 1
                    kept = (torch.empty(channels, dtype=kind, device="meta") for kind in (torch.float64, torch.int64))
                    vars(made)["quantizer"] = list(kept)
                yield place, made


_SOURCE = re.compile(r'File "(.*)", line (\d+)')


def source_line(node: torch._C.Node) -> str | None:
    """`file:line` of the code that a node was compiled from."""
    found = _SOURCE.search(str(node.s("range") if node.kind() == LINE else node.sourceRange()))
    return f"{found[1]}:{found[2]}" if found else None
