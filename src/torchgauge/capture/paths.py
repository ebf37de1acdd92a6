"""Names of modules and parameters: the first path wins, the others are aliases, wrappers leave no segment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass(slots=True)
class Owned:
    """A tensor registered with a module, under its first name."""

    tensor: torch.Tensor
    name: str
    is_buffer: bool
    aliases: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Member:
    module: nn.Module
    path: str
    aliases: list[str] = field(default_factory=list)


def unwrap(module: nn.Module) -> nn.Module:
    """The model inside `torch.compile` and data-parallel wrappers."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = module.module
        if inner is None:
            return module
        module = inner


class ModulePaths:
    """All modules, parameters and buffers of a model, each once."""

    def __init__(self, model: nn.Module) -> None:
        self.root = unwrap(model)
        self._members: dict[int, Member] = {}
        self._owned: dict[int, Owned] = {}
        self._first_path: dict[str, str] = {}
        for path, module in _walk(self.root, "", ()):
            self._add(path, module)

    @property
    def members(self) -> list[Member]:
        return list(self._members.values())

    @property
    def owned(self) -> list[Owned]:
        return list(self._owned.values())

    def path_of(self, module: nn.Module) -> str | None:
        """The path of a module of this model; None for a stranger, which belongs to whoever called it."""
        member = self._members.get(id(module))
        return None if member is None else member.path

    def _add(self, path: str, module: nn.Module) -> None:
        member = self._members.get(id(module))
        if member is None:
            self._members[id(module)] = Member(module, path)
        else:
            member.aliases.append(path)
            self._first_path[path] = member.path
        for registry, is_buffer in ((module._parameters, False), (module._buffers, True)):
            for name, tensor in registry.items():
                if tensor is not None:
                    self._own(_join(path, name), tensor, is_buffer=is_buffer)

    def _own(self, name: str, tensor: torch.Tensor, *, is_buffer: bool) -> None:
        owned = self._owned.get(id(tensor))
        if owned is None:
            self._owned[id(tensor)] = Owned(tensor, name, is_buffer)
        else:
            owned.aliases.append(name)

    def owners(self, owned: Owned) -> set[str]:
        """The paths of every module that has the tensor in its subtree."""
        found = set()
        for name in (owned.name, *owned.aliases):
            path = name.rpartition(".")[0]
            while True:
                found.add(self._first_path.get(path, path))
                if not path:
                    break
                path = path.rpartition(".")[0]
        return found


def _walk(module: nn.Module, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in above:  # a module that holds itself
        return
    yield path, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(unwrap(child), _join(path, name), (*above, id(module)))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
