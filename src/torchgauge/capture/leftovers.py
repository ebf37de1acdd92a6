"""Removes fake tensors that outlive their run: a forward may keep tensors in a global, a class or a cache.

The model and its inputs are copies (`copier.py`) that are freed with the run. The values of the other variables that
the model's code names are saved beforehand. If fake tensors are alive after the run, their holders are searched for,
and each gets back its earlier value. Where that is unknown, the fake tensor is removed, and the report says so.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import inspect
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from torchgauge.capture.copier import ATOMS, Code, is_plain, slots
from torchgauge.capture.fake_run import FakeRun
from torchgauge.capture.fake_tensor import FakeTensor
from torchgauge.capture.snapshot import CONTAINERS, EMPTY, LONGEST_CONTAINER, PLAIN_CONTAINERS, Snapshot, cell_content

_INERT = frozenset(
    (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, str, int, float, bool, type(None), tuple)
)
# Their variables are not a model's to write to.
_LIBRARIES = frozenset((*sys.stdlib_module_names, "torch", "torchgauge", "numpy", "scipy"))
_COLLECTING_ROUNDS = 4
_MAX_YOUNG_OBJECTS = 100_000  # more are there where the collector is switched off: looking at them takes about 10 ms

Poisoned = dict[int, object]  # by id: what must not stay


class Variables:
    """The values of the variables that a model's code names: globals, attributes of classes, functions and
    Python modules, closures; of the containers and plain objects in them, what those hold."""

    def __init__(self, starts: Iterable[Code], shared: Iterable[object] = ()) -> None:
        """`shared`: objects of the model itself that its copy shares with it."""
        self._snapshot = Snapshot()
        for each in shared:
            self.note_attributes(each)
        # By the id of a class's namespace.
        self._classes: dict[int, type] = {}
        # By the id of a holder: the holder, kept so that no other object gets its id, and a copy of what it holds.
        self._before: dict[int, tuple[Any, Any]] = {}
        self._slotted: set[int] = set()
        # For namespaces: the values of the names that the code uses, and all existing names.
        self._namespaces: dict[int, tuple[dict[str, object], set[str]]] = {}
        for start in starts:
            reach = _reach_of.get(start)
            if reach is None:
                reach = _reach_of[start] = Reach(start)
            self._classes |= reach.classes
            for namespace, names in reach.names:
                if id(namespace) not in self._namespaces:
                    self._namespaces[id(namespace)] = ({}, set(namespace))
                before, _ = self._namespaces[id(namespace)]
                for name in names:
                    before[name] = value = namespace.get(name, EMPTY)
                    if type(value) not in _INERT:
                        self._note(value)
                        self._snapshot.note(value)
                self._before[id(namespace)] = (namespace, before)
            for function in reach.functions:
                attributes = function.__dict__
                self._before[id(attributes)] = (attributes, dict(attributes))
                self._snapshot.note(attributes)
                self._snapshot.note(function.__defaults__)
                self._snapshot.note(function.__kwdefaults__)
            for cell in reach.cells:
                self._snapshot.note(cell)
                self._before[id(cell)] = (cell, cell_content(cell))
                self._note(cell_content(cell))

    def _note(self, value: object) -> None:
        kind = type(value)
        if id(value) in self._before:
            return
        if kind in PLAIN_CONTAINERS and isinstance(value, CONTAINERS):
            if len(value) <= LONGEST_CONTAINER:
                self._before[id(value)] = (value, dict(value) if isinstance(value, dict) else list(value))
        elif is_plain(kind) or kind is threading.local:
            attributes = getattr(value, "__dict__", None)
            if attributes is not None:
                self._before[id(value)] = self._before[id(attributes)] = (attributes, dict(attributes))
            if own_slots := slots(kind):
                self._slotted.add(id(value))
                self._before[id(value)] = (
                    value,
                    {each: each.__get__(value) for each in own_slots if _is_set(each, value)},
                )

    def note_attributes(self, holder: object) -> None:
        """Note the attributes of an object and what they hold."""
        for value in self._snapshot.note_attributes(holder):
            self._snapshot.note(value)

    def put_back(self) -> None:
        """Put back what the run changed: contents, and names whose values are data. What the run imported or defined
        stays, and so does a flag, which may say that it did (a library is loaded), unless it says so of data."""
        self._snapshot.restore()
        for key, (before, existing) in self._namespaces.items():
            namespace: Any = self._before[key][0]
            new = [name for name in namespace.keys() - existing if not name.startswith("__")]
            changed = [name for name, value in before.items() if namespace.get(name, EMPTY) is not value]
            names = [name for name in (*new, *changed) if _is_data(namespace.get(name))]
            if any(type(namespace.get(name)) is not bool for name in names):
                for name in names:
                    self._rebind(namespace, name, before.get(name, EMPTY))

    def _rebind(self, namespace: dict[str, object], name: str, value: object) -> None:
        # Attributes of a class are set through the class, which caches where they are found.
        owner = self._classes.get(id(namespace))
        if owner is not None:
            type.__delattr__(owner, name) if value is EMPTY else type.__setattr__(owner, name, value)
        elif value is EMPTY:
            namespace.pop(name, None)
        else:
            namespace[name] = value

    def knows(self, holder: object) -> bool:
        return id(holder) in self._before

    def restore(self, known: object, poisoned: Poisoned) -> list[str]:
        """Restore the content of a known holder. Earlier values that are poisoned now are cleaned."""
        holder, before = self._before[id(known)]
        held = [before] if type(holder) is types.CellType else before.values() if isinstance(before, dict) else before
        remarks = [text for value in held if id(value) in poisoned for text in take_out(value, poisoned)]
        if type(holder) is types.CellType:
            if before is EMPTY:
                del holder.cell_contents
            else:
                holder.cell_contents = before
        elif id(holder) in self._slotted:
            for slot in slots(type(holder)):
                if slot in before:
                    slot.__set__(holder, before[slot])
                elif _is_set(slot, holder):
                    slot.__delete__(holder)
            remarks += take_out(holder, poisoned)  # it may have a __dict__ too
        elif id(holder) in self._namespaces:
            # Only what is poisoned: a flag set in the run may record what cannot be undone (a library is loaded).
            existing = self._namespaces[id(holder)][1]
            for name in [name for name, value in holder.items() if id(value) in poisoned]:
                if name in existing and name not in before:
                    continue
                self._rebind(holder, name, before.get(name, EMPTY))
            remarks += take_out(holder, poisoned)  # names that the code computes
        else:
            holder.clear()
            holder.update(before) if isinstance(holder, dict | set) else holder.extend(before)
        return remarks


class Reach:
    """The variables that the forward of a class, or a function, can name: itself or in what it calls by name."""

    def __init__(self, start: Code) -> None:
        self._names: dict[int, tuple[dict[str, object], dict[str, None]]] = {}
        self._cells: dict[int, types.CellType] = {}
        self.functions: list[types.FunctionType] = []
        self.classes: dict[int, type] = {}  # by the ids of their namespaces
        seen: set[int] = set()
        bases = [base for base in getattr(start, "__mro__", ()) if not _is_library(base.__module__)]
        # The model may call any method of an object that it holds, but of a module only these.
        entered = ("forward", "__call__") if bases and issubclass(bases[0], nn.Module) else None
        waiting: list[object] = [start, *(vars(base).get(name) for base in bases for name in entered or vars(base))]
        while waiting and len(seen) < _MAX_FUNCTIONS:
            function = waiting.pop()
            for name in ("__func__", "fget", "__wrapped__"):  # of a method, property or cache
                # Asked without running code: a `__getattr__` of the user's may raise anything.
                is_there = inspect.getattr_static(function, name, None) is not None
                if is_there and type(function) is not types.FunctionType:
                    function = getattr(function, name)
            if type(function) is not types.FunctionType or id(function) in seen:
                continue
            if _is_library(function.__module__ or ""):
                continue
            seen.add(id(function))
            self.functions.append(function)
            named = _code_names(function.__code__)
            places = [function.__globals__, *map(self._namespace, bases)]
            for name in named:
                value = function.__globals__.get(name)
                if isinstance(value, types.ModuleType) and not _is_library(value.__name__):
                    places.append(vars(value))
                elif isinstance(value, type) and not _is_library(value.__module__):
                    places += [self._namespace(base) for base in value.__mro__ if not _is_library(base.__module__)]
            for place in places:
                self._names.setdefault(id(place), (place, {}))
                for name in named & place.keys():
                    value = place[name]
                    waiting.append(value)
                    if type(value) not in _FIXED:
                        self._names[id(place)][1][name] = None
            for cell in function.__closure__ or ():
                self._cells[id(cell)] = cell
                waiting.append(cell_content(cell))
        self.names = [(place, tuple(names)) for place, names in self._names.values()]
        self.cells = list(self._cells.values())

    def _namespace(self, kind: type) -> dict[str, object]:
        namespace = _namespace(kind)
        self.classes[id(namespace)] = kind
        return namespace


# Names with one of these values keep it.
_FIXED = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    property,
    classmethod,
    staticmethod,
    str,
)
_MAX_FUNCTIONS = 2_000
_reach_of: weakref.WeakKeyDictionary[Code, Reach] = weakref.WeakKeyDictionary()


def _is_data(value: object) -> bool:
    """Whether a variable's value is neither code nor an object of a library."""
    kind = type(value)
    is_code = kind in ATOMS and kind not in _VALUES
    return not is_code and (kind in _VALUES or isinstance(value, (torch.Tensor, tuple, *CONTAINERS)) or is_plain(kind))


_VALUES = frozenset((bool, int, float, complex, str, bytes, type(None)))


def _code_names(code: types.CodeType) -> set[str]:
    """Names of globals and attributes, also those of functions inside."""
    inner = [_code_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*inner)


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


def _namespace(kind: type) -> dict[str, object]:
    """The dict of a class itself; `vars` gives a view of it."""
    namespace: dict[str, object] = gc.get_referents(vars(kind))[0]
    return namespace


def _owners(attributes: list[dict[Any, object]]) -> dict[int, object]:
    """The module, class or object whose attributes a dict holds, by the id of the dict; None for other dicts.

    One search for all of them: each goes over the whole process, which takes about 50 ms with transformers loaded.
    """
    owners: dict[int, object] = dict.fromkeys(map(id, attributes))
    for each in gc.get_referrers(*attributes) if attributes else ():
        if isinstance(each, type):
            held: object = _namespace(each)
        else:
            held = None if isinstance(each, CONTAINERS) else getattr(each, "__dict__", None)
        if id(held) in owners:
            owners[id(held)] = each
    return owners


class Leftovers:
    """Finds and removes objects that a run on fake tensors leaves behind. Created before the run, so that every object
    that the collector calls young afterwards was made in it."""

    def __init__(self) -> None:
        self._run: FakeRun | None = None
        if gc.get_count()[0] < _MAX_YOUNG_OBJECTS:
            gc.collect(0)

    def watch(self, run: FakeRun, variables: Variables) -> None:
        """`variables` of the model's code; call before any of it runs."""
        self._run, self._variables = run, variables

    def release(self) -> list[str]:
        """Call when torchgauge itself holds no fake tensor; returns the places that could not be restored with
        certainty."""
        if self._run is None:
            return []
        self._variables.put_back()
        census = self._run.dismiss()
        self._run = None
        if not census.alive:
            return []
        # Made in the run, as the collector is paused; or a container that was empty until then.
        young = set(map(id, gc.get_objects(generation=0)))
        gc.collect(0)  # cycles of the run itself
        if census.alive:  # a collection in the run has made them old
            gc.collect()
        remarks: dict[str, None] = {}
        for _ in range(_COLLECTING_ROUNDS):
            if not census.alive:
                break
            fakes = [each for each in gc.get_objects() if type(each) is FakeTensor and census.counts(each)]
            found = self._take_out(fakes, young)
            if found is None:  # held by nothing but the frames of an error
                break
            remarks |= dict.fromkeys(found)
            del fakes
            if census.alive:
                gc.collect()
        # A context variable that the forward set is set in a copy of the context, which ends with the analysis.
        in_context = any(type(value) is FakeTensor for value in contextvars.copy_context().values())
        if census.alive and not in_context:
            remarks["tensors of the analysis are still held somewhere: forward() may have started a thread"] = None
        return list(remarks)

    def _take_out(self, fakes: list[FakeTensor], young: set[int]) -> list[str] | None:
        """Follow references from the fake tensors through objects of the run to objects that existed before, and remove
        them there; None if nothing can be removed."""
        poisoned: Poisoned = {id(fake): fake for fake in fakes}
        own = {id(fakes), id(poisoned)}
        frontier, holders = list[object](fakes), list[object]()
        own.add(id(frontier))
        while frontier:
            above: list[object] = []
            for holder in gc.get_referrers(*frontier):
                if id(holder) in own or id(holder) in poisoned or type(holder) is types.FrameType:
                    continue
                if type(holder).__module__.startswith("torchgauge."):  # torchgauge itself observes the run
                    continue
                # A cached function may be as young as the run, where a script has just defined it.
                is_kept = self._variables.knows(holder) or isinstance(holder, functools._lru_cache_wrapper)
                is_new = id(holder) in young and not is_kept
                (above if is_new else holders).append(holder)
            poisoned |= {id(holder): holder for holder in above}
            own |= {id(above), id(holders)}
            frontier = above
        if not holders:  # only the frames of a caller know what holds them: it stays, without them
            holders = [each for each in poisoned.values() if isinstance(each, CONTAINERS)]
            poisoned = {id(fake): fake for fake in fakes}
            if not holders:
                return None
        remarks: list[str] = []
        unknown = [each for each in holders if isinstance(each, dict) and not self._variables.knows(each)]
        owners = _owners([each for each in unknown if _poisoned_keys(each, poisoned)])
        for holder in holders:
            known = self._variables.knows(holder)
            remarks += self._variables.restore(holder, poisoned) if known else take_out(holder, poisoned, owners)
        return remarks


def _poisoned_keys(holder: dict[Any, object], poisoned: Poisoned) -> list[Any]:
    return [key for key, value in holder.items() if id(value) in poisoned or id(key) in poisoned]


def take_out(holder: object, poisoned: Poisoned, owners: Mapping[int, object] | None = None) -> list[str]:
    """Remove poisoned values from a holder whose earlier content is unknown. Returns the places.

    `owners`: those of dicts that were searched for before.
    """
    if isinstance(holder, functools._lru_cache_wrapper):
        holder.cache_clear()
        return []
    if isinstance(holder, list | set | deque):
        kept = [item for item in holder if id(item) not in poisoned]
        if len(kept) == len(holder):
            return []
        holder.clear()
        holder.update(kept) if isinstance(holder, set) else holder.extend(kept)
        return [_removed(f"a {type(holder).__name__}")]
    if type(holder) is types.CellType:
        holder.cell_contents = None
        return [_removed("a closure")]
    owner = holder
    if isinstance(holder, dict):
        keys = _poisoned_keys(holder, poisoned)
        if not keys:
            return []
        owner = owners[id(holder)] if owners and id(holder) in owners else _owners([holder])[id(holder)]
        if owner is None:
            for key in keys:
                del holder[key]
            return [_removed(f"a {type(holder).__name__} ({', '.join(map(repr, keys))[:80]})")]
    remarks = []
    if isinstance(holder, dict):
        attributes = holder
    else:
        set_slots = {slot.__name__: slot.__get__(holder) for slot in slots(type(holder)) if _is_set(slot, holder)}
        attributes = getattr(holder, "__dict__", {}) | set_slots
    for name, value in list(attributes.items()):
        if id(value) not in poisoned:
            continue
        if isinstance(value, CONTAINERS):  # it may have been there, empty
            remarks += take_out(value, poisoned)
        else:
            # An attribute that every object of the class has becomes None, the usual initial value of a cache; another
            # one was absent.
            if isinstance(owner, type):
                type.__setattr__(owner, name, None)
            elif _is_initialised(type(owner), name):
                object.__setattr__(owner, name, None)
            elif isinstance(owner, types.ModuleType):
                vars(owner)[name] = None
            else:
                object.__delattr__(owner, name)
            kind = owner if isinstance(owner, type | types.ModuleType) else type(owner)
            remarks.append(_removed(f"{kind.__name__}.{name}"))
    if not remarks:  # it cannot be changed, so what it holds was there before (the default of an argument)
        for value in gc.get_referents(holder):
            if id(value) in poisoned and isinstance(value, CONTAINERS):
                remarks += take_out(value, {key: each for key, each in poisoned.items() if each is not value})
    return remarks


def _is_initialised(kind: type, name: str) -> bool:
    """Whether `__init__` sets this attribute."""
    makers = [vars(base).get("__init__") for base in kind.__mro__]
    return any(isinstance(maker, types.FunctionType) and name in _code_names(maker.__code__) for maker in makers)


def _is_set(slot: types.MemberDescriptorType, value: object) -> bool:
    return hasattr(value, slot.__name__)


def _removed(place: str) -> str:
    return f"forward() kept tensors of the analysis in {place}: they were removed; the previous values are lost"
