"""Copies everything that a run may write to: the modules of a model, their containers and plain objects, inputs.

Analyses run on such a replica, never on the user's objects: what the forward stores is gone with the replica, another
thread may use the model at the same time, and modes are set on the replica only. Tensors are shared, or replaced by
`tensor`. None of the user's code runs to make it: no `__init__`, `__copy__`, `__reduce__` or `__setattr__`.
"""

from __future__ import annotations

import enum
import functools
import inspect
import operator
import sys
import threading
import types
import weakref
from argparse import Namespace
from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from torchgauge.capture.structure import is_subclass, storage_key, storage_of
from torchgauge.nested import Nested
from torchgauge.source.allowed_ops import holds_foreign, is_foreign, mark_foreign
from torchgauge.source.modules import all_modules

# A model may hold a trainer, which holds a data set: beyond these limits objects are shared, not copied.
MAX_OBJECTS = 20_000
LONGEST_CONTAINER = 10_000
LARGEST_ARRAY_BYTES = 1 << 20

# Shared, not copied: most attributes of most modules.
ATOMS: frozenset[type] = frozenset(
    (
        *(bool, int, float, complex, str, bytes, type(None), type, range, types.ModuleType, types.BuiltinFunctionType),
        *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, torch.Generator),
    )
)
# In the registries of most modules.
_TENSORS: frozenset[type] = frozenset((torch.Tensor, nn.Parameter, nn.Buffer, type(None)))
# Hooks that a forward does not call; every module has these containers, nearly always empty.
_UNUSED = frozenset(
    ("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
)
# Dictionaries that every module has, keyed by strings.
_REGISTRIES = frozenset(("_parameters", "_buffers", "_modules"))
# The only classes of the standard library that are copied, because they hold user data: copying a logger would copy all
# loggers.
_RECORDS = (types.SimpleNamespace, Namespace, UserDict, UserList)
_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, set, deque, frozenset)
_BASES: tuple[Any, ...] = (OrderedDict, defaultdict, dict, list, set, deque, types.SimpleNamespace, object)

# A forward does not change their objects.
_LIBRARIES = frozenset((*sys.stdlib_module_names, "torch", "torchgauge", "numpy", "scipy")) - {"__main__"}

Code = type | types.FunctionType


class Copier:
    """Copies structures. An object that occurs twice, also in two calls, is copied once."""

    def __init__(self, tensor: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        self._tensor = tensor
        self._copies: dict[int, Any] = {}
        self._originals: dict[int, Any] = {}  # by the id of the copy; kept, so that no other object gets the id
        self.objects = 0
        self.remarks: list[str] = []  # what is different about the copy of a model
        self.code: set[Code] = set()  # classes of modules and plain objects, and functions that they hold
        self.shared: list[object] = []  # objects that are not copied, though a forward may give them attributes

    def original_of(self, duplicate: Nested) -> Nested:
        original: Nested = self._originals.get(id(duplicate), duplicate)
        return original

    def copy(self, original: Nested) -> Nested:
        value: Any = original
        kind = type(value)
        if kind in ATOMS:
            return original
        found = self._copies.get(id(value))
        if found is None:
            found = self._copy_of(value, kind)
        return found

    def _copy_of(self, value: Any, kind: type) -> Any:
        if isinstance(value, torch.Tensor):
            if self._tensor is None:
                return value
            duplicate = self._note(value, self._tensor(value))
            if duplicate is not value and vars(value):  # a quantized weight carries its scales
                own = vars(duplicate)
                own.update({name: self.copy(item) for name, item in vars(value).items() if name not in own})
            return duplicate
        if isinstance(value, nn.Module):
            return self._modules(value)
        if isinstance(value, _CONTAINERS):
            if kind is tuple and ATOMS.issuperset(map(type, value)):  # the sizes of a convolution
                return value
            return self._container(value)
        if kind is functools.partial:
            function, args, keywords = self.copy(value.func), self.copy(value.args), self.copy(value.keywords)
            copied = self._note(value, functools.partial(function, *args, **keywords))
            copied.__dict__.update({name: self.copy(item) for name, item in vars(value).items()})
            return copied
        if kind is types.MethodType:
            owner, function = self.copy(value.__self__), self.copy(value.__func__)
            same = owner is value.__self__ and function is value.__func__
            return value if same else types.MethodType(function, owner)
        if kind is types.FunctionType:
            self.code.add(value)
            return self._function(value)
        if kind is RemovableHandle:
            return self._handle(value)
        if kind is weakref.ref:
            target = value()
            replica = None if target is None else self._copies.get(id(target))
            return value if replica is None else weakref.ref(replica)
        numpy = sys.modules.get("numpy")
        is_small_array = numpy is not None and type(value) is numpy.ndarray and value.nbytes <= LARGEST_ARRAY_BYTES
        if is_small_array:
            return self._note(value, value.copy())
        if is_plain(kind):
            return self._object(value)
        if takes_attributes(value):
            self.shared.append(self._note(value, value))
        return value

    def _note(self, original: object, duplicate: Nested) -> Nested:
        self._copies[id(original)] = duplicate
        self._originals[id(duplicate)] = original
        return duplicate

    def _modules(self, root: nn.Module) -> nn.Module:
        """A module and those below it: first all of them, then what they hold, because models may be nested deeper
        than Python may call itself."""
        waiting, made = [root], []
        kinds: dict[type, tuple[Any, type]] = {}
        while waiting:
            module = waiting.pop()
            if id(module) not in self._copies:
                kind = type(module)
                if kind not in kinds:
                    self.code.add(kind)
                    # A replica that is freed must not close resources that the original still uses.
                    harmless = {"__del__": lambda self: None}
                    copied = type(kind.__name__, (kind,), harmless) if hasattr(kind, "__del__") else kind
                    kinds[kind] = _base_of(kind), copied
                base, copied = kinds[kind]
                made.append((module, self._note(module, base.__new__(copied))))
                if not isinstance(module, torch.jit.ScriptModule):
                    waiting += [child for child in module._modules.values() if child is not None]
        for module, replica in made:
            self._fill(replica, module)
        if holds_foreign(root):
            for module, replica in made:
                if is_foreign(module):
                    mark_foreign(replica)
        replica = self._copies[id(root)]
        assert isinstance(replica, nn.Module)
        return replica

    def _fill(self, duplicate: Any, original: object) -> None:
        """Attributes and, of a container, its items."""
        attributes = getattr(original, "__dict__", None)
        if attributes:
            target = duplicate.__dict__
            target.update(attributes)
            for name, value in attributes.items():
                kind = type(value)
                if kind in ATOMS or name in _UNUSED:
                    continue
                if kind is OrderedDict and not value:
                    target[name] = OrderedDict()
                elif kind is dict and name in _REGISTRIES:
                    # Most objects: if tensors are shared, parameters and buffers are not copied.
                    is_shared = self._tensor is None and _TENSORS.issuperset(map(type, value.values()))
                    target[name] = dict(value) if is_shared else {key: self.copy(e) for key, e in value.items()}
                elif kind is set and name == "_non_persistent_buffers_set":  # names
                    target[name] = set(value)
                else:
                    target[name] = self.copy(value)
        for slot in slots(type(original)):
            try:
                slot.__set__(duplicate, self.copy(slot.__get__(original)))
            except AttributeError:  # never set
                continue
        if isinstance(original, dict):
            # By the methods of the base: those of the class itself may load models, or set attributes.
            base: Any = OrderedDict if isinstance(original, OrderedDict) else dict
            for key, value in base.items(original):
                base.__setitem__(duplicate, self.copy(key), self.copy(value))
            if isinstance(original, defaultdict):
                duplicate.default_factory = self.copy(original.default_factory)
        elif isinstance(original, list):
            list.extend(duplicate, [self.copy(item) for item in list.__iter__(original)])
        elif isinstance(original, set):
            set.update(duplicate, [self.copy(item) for item in set.__iter__(original)])
        elif isinstance(original, deque):
            deque.__init__(duplicate, [self.copy(item) for item in deque.__iter__(original)], original.maxlen)

    def _container(self, value: Any) -> object:
        kind = type(value)
        base = next(base for base in _CONTAINERS if isinstance(value, base))
        if base.__len__(value) > LONGEST_CONTAINER:
            return value
        if isinstance(value, tuple | frozenset):
            old = list(base.__iter__(value))
            items = [self.copy(item) for item in old]
            if all(map(operator.is_, items, old)):
                return value
            if isinstance(value, frozenset):
                duplicate = frozenset.__new__(kind, items)
            else:
                try:
                    duplicate = tuple.__new__(kind, items)  # a named tuple may want other things of its `__new__`
                except TypeError:
                    duplicate = kind(items)  # the tuples with names that C code returns
            if hasattr(value, "__dict__"):
                vars(duplicate).update({name: self.copy(item) for name, item in vars(value).items()})
            return self._note(value, duplicate)
        if kind is dict:  # the same as below, for the most common one
            duplicate = self._note(value, dict[Any, Any]())
            for key, item in value.items():
                duplicate[key if type(key) is str else self.copy(key)] = (
                    item if type(item) in ATOMS else self.copy(item)
                )
            return duplicate
        try:
            duplicate = self._note(value, _blank(kind))
        except TypeError:  # written in C
            return value
        self._fill(duplicate, value)
        return duplicate

    def _object(self, value: Nested) -> Nested:
        # An object without state is a sentinel, known by its identity.
        has_state = bool(getattr(value, "__dict__", None)) or bool(slots(type(value)))
        self.objects += 1
        self.code.add(type(value))
        if not has_state or self.objects > MAX_OBJECTS:
            self.shared.append(value)
            return value
        duplicate = self._note(value, _blank(type(value)))
        self._fill(duplicate, value)
        return duplicate

    def _handle(self, value: RemovableHandle) -> RemovableHandle:
        """A hook that removes itself (compressed-tensors restores weights in one) is removed from the replica."""

        def moved(item: object) -> object:
            if isinstance(item, tuple):
                return tuple(map(moved, item))
            # The reference to a freed module is dead and stays dead.
            hooks = item() if type(item) is weakref.ref else None
            return item if hooks is None else weakref.ref(self.copy(hooks))

        duplicate = self._note(value, _blank(RemovableHandle))
        vars(duplicate).update((name, moved(item)) for name, item in vars(value).items())
        return duplicate

    def _function(self, value: types.FunctionType) -> types.FunctionType:
        """A function that an object holds, over copies of its closure; the function itself if that makes no difference,
        because models compare functions by identity (`self.activation is F.relu`)."""
        if value.__closure__ is None and value.__defaults__ is None and value.__kwdefaults__ is None:
            return value
        self._copies[id(value)] = value  # where it closes over itself
        cells = value.__closure__ or ()
        old = [cell.cell_contents for cell in cells if cell != _EMPTY_CELL]
        new = [self.copy(item) for item in old]
        defaults = self.copy(value.__defaults__)
        old_keywords = value.__kwdefaults__ or {}
        keywords = {name: self.copy(item) for name, item in old_keywords.items()}
        same_keywords = all(item is old_keywords[name] for name, item in keywords.items())
        if all(map(operator.is_, new, old)) and defaults is value.__defaults__ and same_keywords:
            return value
        contents = iter(new)
        closure = tuple(_EMPTY_CELL if cell == _EMPTY_CELL else types.CellType(next(contents)) for cell in cells)
        duplicate = types.FunctionType(value.__code__, value.__globals__, value.__name__, defaults, closure or None)
        duplicate.__kwdefaults__ = keywords or None
        duplicate.__dict__.update(value.__dict__)
        return self._note(value, duplicate)


class TensorCopies:
    """Tensors with their own memory; what shares memory still does."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided or is_subclass(tensor):
            with torch.no_grad():
                duplicate = tensor.clone()
        else:
            key = storage_key(tensor)
            if key not in self._storages:
                self._storages[key] = storage_of(tensor).clone()
            with torch.no_grad():
                duplicate = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                duplicate.set_(self._storages[key], tensor.storage_offset(), tensor.shape, tensor.stride())
        return _of_same_class(duplicate, tensor)


def sharing_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor over the same memory: a forward may give it attributes, or other memory."""
    if is_subclass(tensor) or tensor.layout is not torch.strided:
        return tensor
    return _of_same_class(tensor.detach(), tensor)


def _of_same_class(duplicate: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if is_subclass(tensor):
        is_parameter = isinstance(tensor, nn.Parameter)
        return nn.Parameter(duplicate, tensor.requires_grad) if is_parameter else duplicate
    return torch.Tensor._make_subclass(type(tensor), duplicate.detach(), tensor.requires_grad)


_EMPTY_CELL = types.CellType()


def _blank(kind: type[Nested]) -> Nested:
    """An instance that was not initialised; TypeError where its state is not that of a Python class."""
    made: Nested = _base_of(kind).__new__(kind)
    return made


def _base_of(kind: type) -> Any:
    return next(base for base in _BASES if issubclass(kind, base))


def slots(kind: type) -> list[types.MemberDescriptorType]:
    found = _slots_of.get(kind)
    if found is None:
        found = [d for base in kind.__mro__ for d in vars(base).values() if type(d) is types.MemberDescriptorType]
        _slots_of[kind] = found
    return found


def takes_attributes(value: object) -> bool:
    """Whether a forward may give attributes to an object, whatever its class is written in."""
    kind = type(value)
    if kind in (threading.local, functools.partial):
        return True
    is_library = kind.__module__.partition(".")[0] in _LIBRARIES
    return not is_library and not isinstance(value, type | enum.Enum | nn.Module | torch.Tensor)


def is_plain(kind: type) -> bool:
    """Whether the attributes of an instance are its whole state, so that it can be copied."""
    found = _plain.get(kind)
    if found is not None:
        return found
    package = kind.__module__.partition(".")[0]
    # A class that is made at run time has the module of its metaclass, as torch_geometric's batches have abc.
    module = sys.modules.get(kind.__module__)
    is_in_module = module is not None and kind.__qualname__.partition(".")[0] in vars(module)
    if package in sys.stdlib_module_names and package != "__main__" and is_in_module:
        found = issubclass(kind, _RECORDS)
    elif package in ("torch", "torchgauge"):  # a forward does not change torch's own objects
        # Where its module is not loaded, no object is one.
        found = kind is getattr(sys.modules.get("torchgauge.source.exported.model"), "Engine", None)
    elif issubclass(kind, enum.Enum | type | BaseException) or hasattr(kind, "__del__"):
        found = False
    else:
        try:
            found = object.__new__(kind) is not None
        except TypeError:  # written in C
            found = False
    _plain[kind] = found
    return found


_slots_of: weakref.WeakKeyDictionary[type, list[types.MemberDescriptorType]] = weakref.WeakKeyDictionary()
_plain: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def set_mode(model: nn.Module, *, train: bool) -> list[Callable[[], object]]:
    """Put the modules in the modes that `model.train()` or `model.eval()` leaves them in; returns functions that undo
    it. A model's own `train` may do anything, so it is called on a copy without data, and only the modes are used."""
    undo: list[Callable[[], object]] = []
    own_modes: dict[int, bool] = {}  # by the id of a module
    modules = all_modules(model)
    # Modules start in training mode: where all are in the other one, the model's own `eval()` has put them there.
    if not train and not any(vars(module).get("training", True) for module in modules):
        return undo
    if any(map(_sets_own_mode, modules)):
        copier = Copier(lambda tensor: _of_same_class(torch.empty_like(tensor, device="meta"), tensor))
        with suppress(Exception), torch.no_grad():  # anything that user code raises
            duplicate = copier.copy(model)
            duplicate.train() if train else duplicate.eval()
            own_modes = {id(copier.original_of(module)): module.training for module in all_modules(duplicate)}
    for module in modules:
        if isinstance(module, torch.jit.ScriptModule):
            script = module._c
            if script.hasattr("training") and script.getattr("training") != train:
                script.setattr("training", train)
                undo.append(functools.partial(script.setattr, "training", not train))
        elif module.training != (mode := own_modes.get(id(module), train)):
            undo.append(functools.partial(module.__dict__.__setitem__, "training", module.training))
            module.__dict__["training"] = mode
    return undo


def _sets_own_mode(module: nn.Module) -> bool:
    """Whether it overrides `train(mode)` or `eval()`, for example to keep batch norms frozen. A `train` with other
    arguments is a training run."""
    kind = type(module)
    if isinstance(module, torch.jit.ScriptModule):
        return False
    if "train" in vars(module) or "eval" in vars(module) or kind.eval is not nn.Module.eval:
        return True
    if kind.train is nn.Module.train:
        return False
    taken = list(inspect.signature(kind.train).parameters.values())
    return len(taken) == 2 and taken[1].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD


@contextmanager
def in_mode(model: nn.Module, *, train: bool) -> Iterator[None]:
    undo = set_mode(model, train=train)
    try:
        yield
    finally:
        for put_back in undo:
            put_back()
