"""Names of modules and parameters: the first path wins, the others are aliases, wrappers leave no segment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from torchgauge.source.attributes import attribute_of
from torchgauge.source.torchscript.graphs import (
    frozen_modules,
    frozen_tensors,
    is_flat,
    is_frozen,
    packed_attributes,
    packed_tensors,
)


@dataclass(slots=True)
class Owned:
    """A tensor registered with a module, under its first name; `is_packed`: in an object of C++ that it holds."""

    tensor: torch.Tensor
    name: str
    is_buffer: bool
    aliases: list[str] = field(default_factory=list)
    is_packed: bool = False


@dataclass(frozen=True, slots=True)
class Inlined:
    """A module of which only its place in a frozen graph is left."""

    original_name: str


@dataclass(slots=True)
class Member:
    module: nn.Module | Inlined
    path: str
    aliases: list[str] = field(default_factory=list)


# A Python module, torch's inner object of a script module, or a place in a frozen graph.
AnyModule = nn.Module | torch._C.ScriptModule | Inlined
# Identifies a module: its id, the inner object of a script module, or the path and name of an inlined one.
Key = int | torch._C.ScriptModule | tuple[str, str]

# Types that packed weights have.
CODES = frozenset((torch.int8, torch.uint8, torch.int16, torch.int32))
_DATA_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def unwrap(module: nn.Module) -> nn.Module:
    """The model inside `torch.compile` and data-parallel wrappers."""
    while True:
        # Not by `getattr`, which is slow for an attribute that a module lacks.
        is_child = "_orig_mod" in module._modules
        inner = module._modules["_orig_mod"] if is_child else module.__dict__.get("_orig_mod")
        if inner is None and isinstance(module, _DATA_PARALLEL):
            inner = module.module
        if inner is None:
            return module
        module = inner


class ModulePaths:
    """All modules, parameters and buffers of a model, each once."""

    def __init__(self, model: nn.Module) -> None:
        self.root = unwrap(model)
        self._members: dict[Key, Member] = {}
        # Scripting and tracing copy a module that has two names; the copies still share their tensors. By key, and by
        # type and tensors: the key of the first copy.
        self._copies: dict[object, Key] = {}
        self._owned: dict[int, Owned] = {}
        self._scripted: set[str] = set()
        self._first_path: dict[str, str] = {}
        self._callable: dict[str, nn.Module] = {}
        self._above: dict[str, tuple[str, ...]] = {}
        # All modules with their paths, preorder, one entry per path.
        waiting: list[tuple[str, nn.Module, tuple[int, ...]]] = [("", self.root, ())]
        while waiting:
            path, module, above = waiting.pop()
            if id(module) in above:  # a module that holds itself
                continue
            self._add(path, module)
            inside = (*above, id(module))
            children = [(join(path, n), unwrap(c), inside) for n, c in module._modules.items() if c is not None]
            waiting.extend(reversed(children))

    @property
    def members(self) -> list[Member]:
        return list(self._members.values())

    def modules(self) -> Iterator[tuple[nn.Module, str]]:
        """The modules with their paths; script modules within script modules left out."""
        for path, module in self._callable.items():
            yield module, self._first_path.get(path, path)

    @property
    def owned(self) -> list[Owned]:
        return list(self._owned.values())

    @cached_property
    def packages(self) -> frozenset[str]:
        """The packages of the model's class and of those of its modules that hold weights, also in their children."""
        names = (owned.name.split(".") for owned in self.owned)
        holders = {"", *(path for parts in names for path in accumulate(parts, join))}
        classes = {type(member.module) for member in self.members if member.path in holders}
        return frozenset(each.__module__.partition(".")[0] for each in classes)

    def path_of(self, module: AnyModule) -> str | None:
        """The path of a module of this model, which may be given as torch's inner object of a script module; None for
        a module of another model, whose ops belong to its caller."""
        if isinstance(module, torch._C.ScriptModule):
            key: Key = module
        else:
            key = module._c if isinstance(module, torch.jit.ScriptModule) else id(module)
        member = self._members.get(self._copies.get(key, key))
        return None if member is None else member.path

    def module_at(self, path: str) -> nn.Module | Inlined | None:
        return next((member.module for member in self.members if member.path == path), None)

    def type_at(self, path: str) -> str:
        return next((type_name(member.module) for member in self.members if member.path == path), "")

    def _add(self, path: str, module: nn.Module) -> None:
        key: Key = id(module)
        script = module if isinstance(module, torch.jit.ScriptModule) else None
        if script is not None:
            # Identified by the key of the first one with its name and tensors.
            held = (*module.named_parameters(), *module.named_buffers())
            tensors = tuple((name, id(tensor)) for name, tensor in held)
            own: Key = script._c
            key = self._copies.setdefault((type_name(module), tensors), own) if tensors else own
            self._copies[own] = key
        member = self._members.get(key)
        if member is None:
            self._members[key] = Member(module, path)
        else:
            member.aliases.append(path)
            self._first_path[path] = member.path
        is_outermost = not path or path.rpartition(".")[0] not in self._scripted
        if is_outermost:
            self._callable[path] = module
        if script is not None:
            self._scripted.add(path)
            for name, packed in packed_attributes(script._c) if member is None else ():
                self._own(join(path, name), packed, is_buffer=False)
            # Freezing leaves one module; constants in a part of a larger one are not weights.
            if is_outermost:
                self._add_inlined(path, script)
        elif member is None:
            self._add_unregistered(path, module)
        for registry, is_buffer in ((module._parameters, False), (module._buffers, True)):
            for name, tensor in registry.items():
                if tensor is not None:
                    self._own(join(path, name), tensor, is_buffer=is_buffer)

    def _add_unregistered(self, path: str, module: nn.Module) -> None:
        """Weights that are not parameters: those of the layers of `torch.ao`, in an object of C++, and the bias that a
        layer with packed weights keeps as a plain tensor."""
        packed = torch._C.ScriptObject
        for name, value in module.__dict__.items():
            if type(value) is packed:
                for place, tensor in packed_tensors(value):
                    # In half precision it returns its weight in single precision.
                    is_half = attribute_of(module, "dtype") is torch.float16 and tensor.dim() > 1
                    kept = tensor.half() if is_half else tensor
                    self._owned[id(kept)] = Owned(kept, join(path, f"{name}.{place}"), True, is_packed=True)
        bias = module.__dict__.get("bias")
        if not isinstance(bias, torch.Tensor):
            return
        held = (*module._parameters.values(), *module._buffers.values())
        if any(t is not None and t.dtype in CODES for t in held):
            self._owned.setdefault(id(bias), Owned(bias, join(path, "bias"), True, is_packed=True))

    def _add_inlined(self, path: str, module: torch.jit.ScriptModule) -> None:
        if not module._c._has_method("forward"):
            return
        graph = module._c._get_method("forward").graph
        # A frozen module that was saved has lost its hierarchy, but still has its tensors in its graph: all of them,
        # or those that no attribute kept.
        if not is_flat(graph) and not is_frozen(module):
            return
        for inner, kind in frozen_modules(graph).items():
            self._members[path, inner] = Member(Inlined(kind), join(path, inner))
        for frozen in frozen_tensors(graph):
            self._own(join(path, frozen.name), frozen.tensor, is_buffer=frozen.is_buffer)
        if not module._modules:
            for name, tensor, is_buffer in _kept_tensors(module._c):
                self._own(join(path, name), tensor, is_buffer=is_buffer)

    def _own(self, name: str, tensor: torch.Tensor, *, is_buffer: bool) -> None:
        owned = self._owned.get(id(tensor))
        if owned is None:
            self._owned[id(tensor)] = Owned(tensor, name, is_buffer)
        else:
            owned.aliases.append(name)

    def owners(self, owned: Owned) -> set[str]:
        """The paths of every module that has the tensor in its subtree, each by its first path."""
        found: set[str] = set()
        for name in (owned.name, *owned.aliases):
            path = rest = name.rpartition(".")[0]
            if path not in self._above:
                above = []
                while rest:
                    above.append(self._first_path.get(rest, rest))
                    rest = rest.rpartition(".")[0]
                self._above[path] = (*above, "")
            found.update(self._above[path])
        return found


def _kept_tensors(script: torch._C.ScriptModule, path: str = "") -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Tensors that freezing could not turn into constants stay in modules that Python does not show."""
    tables: Any = ((torch._C.ParameterDict, False), (torch._C.BufferDict, True))
    for name, inner in torch._C.ModuleDict(script).items():
        for kept, is_buffer in ((table(inner), is_buffer) for table, is_buffer in tables):
            yield from ((join(join(path, name), leaf), tensor, is_buffer) for leaf, tensor in kept.items())
        yield from _kept_tensors(inner, join(path, name))


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def type_name(module: AnyModule) -> str:
    """The class of a module; a scripted one is known by the class it was made from."""
    if isinstance(module, torch._C.ScriptModule):
        kind: Any = module._type()  # torch's stubs lack its name
        return str(kind.name())
    if isinstance(module, torch.jit.ScriptModule | Inlined):
        return str(module.original_name or type(module).__name__)
    return str(module.__dict__.get("original_name") or type(module).__name__)
