"""Objects that a forward keeps outside its model are freed after an analysis; inputs are unchanged."""

from __future__ import annotations

import contextvars
import functools
import gc
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg

CACHE: dict[Any, Any] = {}
FULL: dict[Any, Any] = {"before": 1}
NESTED: dict[str, Any] = {"inner": {"last": None}}
HISTORY: list[Any] = [1, 2]
RECENT: deque[Any] = deque(maxlen=3)
SEEN: set[Any] = set()
LAST: Any = None
MODELS: list[Any] = []
CONTEXT: contextvars.ContextVar[Any] = contextvars.ContextVar("context", default=None)
LOCAL = threading.local()
LOCAL.last = None


class Store:
    """A plain object that keeps a tensor, and a flag that says so."""

    table: Any = None

    def __init__(self) -> None:
        self.last: Any = None
        self.is_full = False

    @functools.cached_property
    def steps(self) -> Tensor:
        return torch.arange(4.0)

    def put(self, x: Any) -> None:
        self.last, self.is_full = x, True


class Slotted:
    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: Any = None


STORE, SLOTTED, REGISTRY = Store(), Slotted(), {"store": Store()}


@functools.lru_cache
def positions(size: int) -> Tensor:
    return torch.arange(float(size))


def remember(x: Any, cache: dict[Any, Any] = {}) -> dict[Any, Any]:  # noqa: B006 - that is what is tested
    cache[tuple(x.shape)] = x
    return cache


def keep_global(x: Any) -> None:
    global LAST
    LAST = x


def closing() -> tuple[Callable[[Any], None], Callable[[], Any]]:
    last: Any = None

    def put(x: Any) -> None:
        nonlocal last
        last = x

    return put, lambda: last


put_in_closure, get_from_closure = closing()

# How a tensor is kept, and what is there afterwards.
PLACES: dict[str, tuple[Callable[[Any], Any], Callable[[], Any], Any]] = {
    "an empty dict": (lambda x: CACHE.__setitem__("x", x), lambda: CACHE, {}),
    "a dict": (lambda x: FULL.__setitem__("x", {"deep": [x]}), lambda: FULL, {"before": 1}),
    "a dict's entry": (lambda x: FULL.__setitem__("before", x), lambda: FULL, {"before": 1}),
    "a dict in a dict": (lambda x: NESTED["inner"].__setitem__("other", x), lambda: NESTED, {"inner": {"last": None}}),
    "a list": (lambda x: HISTORY.append((x, x)), lambda: HISTORY, [1, 2]),
    "a deque": (lambda x: RECENT.append(x), lambda: list(RECENT), []),
    "a set": (lambda x: SEEN.add(x), lambda: SEEN, set()),
    "a global": (keep_global, lambda: LAST, None),
    "a class attribute": (lambda x: setattr(Store, "table", x), lambda: Store.table, None),
    "an object": (lambda x: STORE.put(x), lambda: (STORE.last, STORE.is_full), (None, False)),
    "an object in a dict": (lambda x: REGISTRY["store"].put(x), lambda: REGISTRY["store"].last, None),
    "a slot": (lambda x: setattr(SLOTTED, "last", x), lambda: SLOTTED.last, None),
    "a cached property": (lambda x: STORE.steps, lambda: "steps" in vars(STORE), False),
    "a functools cache": (lambda x: positions(x.shape[0]), lambda: positions.cache_info().currsize, 0),
    "a default argument": (remember, lambda: remember(torch.empty(0)), None),
    "a closure": (lambda x: put_in_closure(x), get_from_closure, None),
    "a function's attribute": (lambda x: setattr(keep_global, "last", x), lambda: vars(keep_global).get("last"), None),
    "a context variable": (lambda x: CONTEXT.set(x), CONTEXT.get, None),
    "a thread's own": (lambda x: setattr(LOCAL, "last", x), lambda: LOCAL.last, None),
    "an object of the run": (lambda x: CACHE.__setitem__("new", SimpleNamespace(x=x)), lambda: CACHE, {}),
}


@pytest.fixture(autouse=True)
def fresh_places() -> None:
    global LAST
    for holder in (CACHE, SEEN, RECENT, FULL, HISTORY, MODELS):
        holder.clear()
    FULL["before"], NESTED["inner"], LAST, LOCAL.last, SLOTTED.last, Store.table = (
        1,
        {"last": None},
        None,
        None,
        None,
        None,
    )
    HISTORY.extend((1, 2))
    vars(STORE).clear()
    vars(STORE).update(vars(Store()))
    vars(keep_global).clear()
    REGISTRY["store"].last = None
    put_in_closure(None)
    positions.cache_clear()
    CONTEXT.set(None)


def keeping(keep: Callable[[Any], Any], *, raises: bool) -> nn.Module:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.raises = raises

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x)
            keep(y)
            if self.raises:
                raise ValueError("too late")
            return y

    return Keeps()


@pytest.mark.parametrize(
    ("place", "raises"), [*((place, False) for place in PLACES), ("a dict", True), ("an object", True)]
)
def test_objects_that_a_forward_keeps_outside_its_model_are_freed(place: str, raises: bool) -> None:
    keep, look, expected = PLACES[place]
    model = keeping(keep, raises=raises)
    if raises:
        with pytest.raises(tg.ForwardError, match="too late"):
            tg.analyze(model, input_size=(3, 4))
    else:
        assert tg.analyze(model, input_size=(3, 4)).totals.macs == 48
    if place == "a default argument":
        assert all(type(value) is Tensor for value in look().values())
    else:
        assert look() == expected
    model.raises = False  # type: ignore[assignment]
    assert type(model(torch.ones(3, 4))) is Tensor


def test_the_model_itself_kept_elsewhere_is_gone() -> None:
    class Registers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            MODELS.append(self)
            return self.layer(x)

    tg.analyze(Registers(), input_size=(3, 4))
    assert MODELS == []


def test_a_model_that_its_own_function_refers_to_keeps_nothing() -> None:
    class Decodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.decode: Callable[[Tensor], Tensor] = lambda h: h if self.training else h * 2

        def forward(self, x: Tensor) -> Tensor:
            gc.collect()  # the copy that is analysed is then as old as the model
            return self.decode(self.layer(x))

    found = tg.analyze(Decodes(), input_size=(3, 4))

    assert found.capture.run.warnings == ()


def test_a_hook_of_the_user_gets_nothing_fake() -> None:
    features: list[Any] = []
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_hook(lambda module, args, output: features.append(output))
    tg.analyze(model, input_size=(3, 4))
    assert features == []
    model(torch.ones(3, 4))
    assert [type(feature) for feature in features] == [Tensor]


def test_an_unexpected_place_is_named_in_the_warnings() -> None:
    hidden: list[Any] = [SimpleNamespace(values=[{"last": ["before"]}])]

    def find() -> Any:  # by no name that the forward uses
        return sys._current_frames()[threading.get_ident()]

    class Sneaks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            frame: Any = find()
            while "hidden" not in frame.f_locals or frame.f_code.co_name != test.__code__.co_name:
                frame = frame.f_back
            frame.f_locals["hidden"][0].values[0]["last"] = x + 1
            return x

    test = test_an_unexpected_place_is_named_in_the_warnings
    found = tg.analyze(Sneaks(), input_size=(3, 4))
    assert hidden[0].values == [{}]
    assert any("previous values are lost" in warning and "'last'" in warning for warning in found.capture.run.warnings)


class Layer:
    def __init__(self) -> None:
        self.keys = torch.ones(1, 2, 4)


@dataclass
class Cache:
    """Like `transformers.DynamicCache`: an object of objects that a forward appends to."""

    layers: list[Layer] = field(default_factory=lambda: [Layer()])
    extra: OrderedDict[str, Any] = field(default_factory=OrderedDict)
    seen: int = 0


class Appends(nn.Module):
    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        layer = cache.layers[0]
        layer.keys = torch.cat([layer.keys, x], 1)
        cache.layers.append(Layer())
        cache.extra["x"] = x
        cache.seen += 1
        return layer.keys if bool(x.sum() == 0) or cache.seen else x


def test_objects_given_as_inputs_are_unchanged() -> None:
    cache = Cache()
    keys = cache.layers[0].keys
    found = tg.analyze(Appends(), inputs=(torch.ones(1, 1, 4), cache))
    assert (cache.layers[0].keys is keys, len(cache.layers), cache.extra, cache.seen) == (True, 1, {}, 0)
    assert [spec.name for spec in found.capture.inputs] == ["x", "cache.layers[0].keys"]


class TrainsAtOnce(nn.Module):
    """Like ultralytics' `YOLO`: a module around the model whose `train` starts a training run."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 4)

    def train(self, mode: bool = True) -> TrainsAtOnce:
        raise AssertionError("a training run was started")

    def __call__(self, source: Any = None) -> Any:
        raise AssertionError("prediction was started")


class Pipeline:
    def __init__(self, **parts: nn.Module) -> None:
        vars(self).update(parts)
        self.name = "p"


def test_modes_are_set_without_the_models_own_train() -> None:
    class Overrides(nn.Linear):
        def train(self, mode: bool = True) -> Overrides:
            raise AssertionError

    model = Overrides(4, 4)
    assert tg.analyze(model, input_size=(3, 4)).totals.macs == 48
    assert tg.analyze(model, input_size=(3, 4), mode="train").totals.macs == 2 * 48
    assert model.training


def test_an_exported_module_is_analysed() -> None:
    program = torch.export.export(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(3, 4),))
    assert tg.analyze(program.module(), input_size=(3, 4)).totals.macs == 48


@pytest.mark.parametrize(
    ("target", "taken"),
    [
        (TrainsAtOnce(), "model"),
        (Pipeline(net=nn.Linear(4, 4)), "net"),
        (Pipeline(small=nn.Linear(2, 2), large=nn.Linear(4, 4)), "large"),
        (Pipeline(inner=TrainsAtOnce()), "inner.model"),
    ],
)
def test_the_model_inside_an_object_is_taken_and_named(target: Any, taken: str) -> None:
    found = tg.analyze(target, input_size=(3, 4))
    assert found.totals.macs == 48
    assert any(f"'{taken}'" in warning for warning in found.capture.run.warnings)


def test_an_object_without_a_model_is_refused() -> None:
    with pytest.raises(tg.UsageError, match="a target is a model or a text"):
        tg.analyze(Pipeline())  # type: ignore[arg-type]


SCRIPT = """
import functools
import torch
from torch import nn

@functools.lru_cache(None)
def positions(length, device):
    return torch.arange(length, device=device).float()

class Encodes(nn.Module):
    def forward(self, x):
        return x + positions(4, "cpu")
"""


def test_a_cache_that_was_made_just_before_is_emptied_and_kept() -> None:
    """Like in a script: the function is as young as the objects of the run."""
    module = ModuleType("script")
    exec(SCRIPT, vars(module))
    found = tg.analyze(module.Encodes(), inputs=torch.ones(2, 4))
    assert found.capture.run.warnings == ()
    assert type(module.positions(4, "cpu")) is Tensor


WRITTEN_JUST_NOW = """
import torch
from torch import nn

class Slotted:
    __slots__ = ("state",)

class Holder:
    pass

def table(x):
    if not hasattr(table, "made"):  # the idiom of a function that remembers
        table.made = torch.arange(x.shape[-1])
    return table.made

class Remembers(nn.Module):
    def forward(self, x):
        if not hasattr(Remembers, "steps"):
            Remembers.steps = torch.ones(x.shape[-1])
        if "LATE" not in globals():
            globals()["LATE"] = torch.ones(1)
        SLOTTED.state = SLOTTED.state + x.sum()
        HOLDER.last = x
        return x * Remembers.steps + table(x) + LATE

SLOTTED, HOLDER = Slotted(), Holder()
SLOTTED.state = torch.zeros(())
"""


def test_objects_that_a_script_has_just_defined_are_unchanged() -> None:
    namespace: dict[str, Any] = {"__name__": "just_now"}
    exec(WRITTEN_JUST_NOW, namespace)
    model = namespace["Remembers"]()
    found = tg.analyze(model, inputs=torch.ones(2, 3), advice=False)
    assert found.capture.run.warnings == ()
    assert not hasattr(namespace["table"], "made")
    assert not hasattr(namespace["Remembers"], "steps")
    assert "LATE" not in namespace
    assert vars(namespace["HOLDER"]) == {}
    assert type(namespace["SLOTTED"].state) is Tensor
    assert namespace["SLOTTED"].state == 0
    assert model(torch.ones(2, 3)).tolist() == [[2, 3, 4]] * 2


class Sets(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        CONTEXT.set(x)
        return x + 1


def test_a_context_variable_is_nothing_to_warn_of() -> None:
    assert tg.analyze(Sets(), inputs=torch.ones(2), advice=False).capture.run.warnings == ()
    assert CONTEXT.get() is None


class Settings(dict[str, int]):
    """Asked for an attribute that it does not have, it raises KeyError."""

    __getattr__ = dict.__getitem__


SETTINGS: Any = Settings(times=2)


def test_settings_that_raise_for_any_other_name_are_left_alone() -> None:
    class Scaled(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            scaled: Tensor = h * SETTINGS.times
            return scaled

    assert tg.analyze(Scaled(), inputs=(torch.ones(2, 3),), progress=False).totals["flops"] == 6


class Box:
    """Empty when the model is made: its forward decides by what it holds."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


class Closing(Box):
    def __del__(self) -> None:
        pass


class RaisedError(Exception):
    pass


class Slots:
    __slots__ = ("table",)


class Counting(Box):
    calls: list[Any] = []  # noqa: RUF012 - what instances share is tested

    def table_of(self, x: Tensor) -> Tensor:
        if not hasattr(type(self), "shared"):
            type(self).shared = x.sum()  # type: ignore[attr-defined]
        self.calls.append(x)
        return type(self).shared  # type: ignore[attr-defined]


class Boxed(nn.Module):
    def __init__(self, box: Any, looks: bool) -> None:
        super().__init__()
        self.box = box
        self.looks = looks

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self.box, "table"):
            self.box.table = x.sum() + 1
        if self.looks and float(self.box.table) == 0:
            return x
        return x * self.box.table


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize(
    "kind", [Box, Closing, RaisedError, Slots, SimpleNamespace, threading.local, functools.partial]
)
def test_an_attribute_that_the_forward_makes_is_absent_afterwards(kind: Any, looks: bool, inference: bool) -> None:
    box = kind(print) if kind is functools.partial else kind()
    model = Boxed(box, looks)
    tg.analyze(model, inputs=torch.ones(2, 3), advice=False, inference=inference)
    assert not hasattr(box, "table")
    assert type(model(torch.ones(2, 3))) is Tensor


@pytest.mark.parametrize("looks", [False, True])
def test_what_the_class_of_a_held_object_keeps_is_gone(looks: bool) -> None:
    class Uses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.box = Counting(kept=1)

        def forward(self, x: Tensor) -> Tensor:
            y = x * self.box.table_of(x)
            return x if looks and float(y.sum()) == 0 else y

    found = tg.analyze(Uses(), inputs=torch.ones(2, 3), advice=False)
    assert found.capture.run.warnings == ()
    assert (hasattr(Counting, "shared"), Counting.calls) == (False, [])


DEEP: dict[str, Any] = {"boxes": [Box(inner=Box())]}
COUNT = 0
IS_READY = False
TABLE: Any = None


class Counts(nn.Module):
    """Keeps no tensor that a search could find, but numbers."""

    def forward(self, x: Tensor) -> Tensor:
        global COUNT, IS_READY, TABLE
        COUNT += 1
        HISTORY.append(tuple(x.shape))
        DEEP["boxes"][0].inner.size = x.shape[0]
        Store.calls = 1  # type: ignore[attr-defined]
        if not IS_READY:
            TABLE, IS_READY = torch.ones(3), True
        return x + TABLE


def test_numbers_texts_and_flags_are_put_back_too() -> None:
    model = Counts()
    tg.analyze(model, inputs=torch.ones(2, 3), advice=False, inference=True)
    assert (COUNT, HISTORY, vars(DEEP["boxes"][0].inner), hasattr(Store, "calls")) == (0, [1, 2], {}, False)
    assert (IS_READY, TABLE) == (False, None)
    assert model(torch.ones(2, 3)).tolist() == [[2, 2, 2]] * 2
