"""A model made ready to run for real, and what is left of that afterwards: nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchgauge.errors import InputError
from torchgauge.measure import ready, require_device
from torchgauge.source import RANDOM, Candidate, Source, load_real_model, resolve

CPU = torch.device("cpu")
X = torch.ones(2, 3)


def one(*args: Any) -> Candidate:
    return Candidate(args, {}, None)


def test_a_model_that_needs_no_change_is_run_directly() -> None:
    model = nn.Linear(3, 4)
    with ready(model, one(X), device=CPU) as subject:
        assert subject.model is model
        assert not subject.model.training
        assert not subject().requires_grad
    assert model.training


@pytest.mark.parametrize("asked", [{"dtype": torch.float64}, {"train": True}])
def test_a_model_that_must_change_is_copied(asked: dict[str, Any]) -> None:
    model = nn.Linear(3, 4)
    with ready(model, one(X), device=CPU, **asked) as subject:
        assert subject.model is not model
        assert subject().dtype == asked.get("dtype", torch.float32)
    assert model.weight.dtype == torch.float32


def test_a_model_made_for_this_is_changed_itself() -> None:
    model = nn.Linear(3, 4)
    with ready(model, one(X), device=CPU, dtype=torch.float64, is_owned=True) as subject:
        assert subject.model is model


class Careless(nn.Module):
    """Leaves something behind with every call, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> Any:
        self.seen.append(1)
        self.extra = x
        random.random()
        return self.norm(x + torch.rand(3))


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_of_a_run(fails: bool) -> None:
    model = Careless()
    before, states = model.norm.running_mean, (random.getstate(), torch.get_rng_state())
    assert before is not None
    content = before.clone()

    def use() -> None:
        with ready(model, one(X), device=CPU) as subject:
            subject.model.train()
            subject.run()
            assert model.norm.running_mean is not None
            assert not torch.equal(model.norm.running_mean, content)
            if fails:
                raise ValueError("no")

    if fails:
        with pytest.raises(ValueError, match="no"):
            use()
    else:
        use()
    assert model.norm.running_mean is before
    assert torch.equal(before, content)
    assert model.seen == []
    assert not hasattr(model, "extra")
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])


def test_a_lazy_model_takes_its_shapes_from_the_inputs_on_a_copy() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    with ready(model, one(X), device=CPU) as subject:
        assert subject().shape == (2, 4)
    assert isinstance(model[0], nn.LazyLinear)


def test_a_model_without_values_is_refused() -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 4)
    with pytest.raises(InputError, match="meta device"):
        load_real_model(resolve(model))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match="cuda:1"):
        require_device(torch.device("cuda", 1))


def test_a_device_that_nothing_is_measured_on_is_named() -> None:
    with pytest.raises(InputError, match="xpu"):
        require_device(torch.device("xpu"))


def test_a_type_whose_instructions_the_processor_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2).to(torch.bfloat16)
    lacking = "bfloat16 cannot run on this processor: SIGILL"
    monkeypatch.setattr("torchgauge.capture.supported._probe", {"bfloat16": lacking}.get)
    with pytest.raises(InputError, match="SIGILL"), ready(model, Candidate((torch.ones(1, 2),), {}, None), device=CPU):
        pass


def test_a_model_too_large_for_the_memory_is_refused_before_it_is_built() -> None:
    with torch.device("meta"):
        model = nn.Linear(1 << 22, 1 << 22)

    def build() -> nn.Module:
        raise AssertionError("it was built")

    live = resolve(model)
    with pytest.raises(InputError, match="are free"):
        load_real_model(Source(model, live.record, build))


def test_a_registry_model_has_random_weights_in_its_dtype() -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 4).double()
    made = load_real_model(Source(model, resolve(model).record, lambda: nn.Linear(3, 4)))
    assert made.notes == (RANDOM,)
    assert made.is_owned
    assert made.model.weight.dtype == torch.float64


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.tied = self.inner

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.inner(x))


def save_plain(path: Path, state: dict[str, Any]) -> None:
    torch.save(state, path)


def save_legacy(path: Path, state: dict[str, Any]) -> None:
    torch.save({"state_dict": {f"module.{name}": value for name, value in state.items()}}, path,
               _use_new_zipfile_serialization=False)  # fmt: skip


def save_safetensors(path: Path, state: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    save_file({name: value for name, value in state.items() if not name.startswith("tied")}, path)


@pytest.mark.parametrize("save", [save_plain, save_legacy, save_safetensors])
def test_the_values_of_a_file_are_given_to_the_code(tmp_path: Path, save: Callable[[Path, Any], None]) -> None:
    trained, code = Net().eval(), Net()
    with torch.no_grad():
        trained.inner.weight.copy_(torch.randn(3, 4).T)
        trained.norm.running_mean.add_(2)  # type: ignore[union-attr]
    initial = code.inner.weight.clone()
    save(tmp_path / "weights", trained.state_dict())
    made = load_real_model(resolve(str(tmp_path / "weights"), code=code))
    assert made.notes == ()
    assert torch.equal(made.model.eval()(X), trained(X))
    assert torch.equal(code.inner.weight, initial)


def test_tensors_that_the_file_lacks_are_reported(tmp_path: Path) -> None:
    state = {name: value for name, value in Net().state_dict().items() if name != "norm.bias"}
    torch.save(state, tmp_path / "weights.pt")
    (note,) = load_real_model(resolve(str(tmp_path / "weights.pt"), code=Net())).notes
    assert note.startswith("1 of ")
    assert "norm.bias" in note


class Cache:
    """Like the caches of transformers: one grows by new tensors, the other is written to in place."""

    def __init__(self) -> None:
        self.rows = torch.zeros(1, 4)
        self.table, self.length = torch.zeros(8, 4), torch.zeros((), dtype=torch.int64)


class Appends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[tuple[int, int]] = []

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        cache.rows = torch.cat([cache.rows, x])
        cache.table[cache.length] = x[0]
        cache.length += 1
        seen[len(cache.rows), int(cache.length)] += 1
        return cache.rows.sum(0) + cache.table.sum(0)


seen = Counter[tuple[int, int]]()  # a call puts back what it wrote to plain containers


def test_every_run_gets_unchanged_input_objects() -> None:
    cache, x = Cache(), torch.ones(1, 4)
    with ready(Appends(), Candidate((x, cache), {}, None), device=torch.device("cpu")) as subject:
        for _ in range(20):
            subject.run()
    assert set(seen) == {(2, 1)}
    assert (len(cache.rows), int(cache.length), float(cache.table.sum())) == (1, 0, 0.0)
