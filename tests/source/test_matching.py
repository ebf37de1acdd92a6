from __future__ import annotations

import pytest
from torch import nn

from torchgauge.checkpoint import Entry, Index, Role
from torchgauge.errors import TargetError
from torchgauge.facts import TensorSpec
from torchgauge.source import (
    LISTED_NAMES,
    Differences,
    best_fit,
    compare,
    judge,
    model_entries,
    state_shapes,
    strip_all,
    variants,
)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight


def test_a_models_own_state_dict_fits() -> None:
    assert not best_fit(Tied(), state_shapes(Tied()))


def test_a_tied_tensor_need_be_stored_only_once() -> None:
    shapes = state_shapes(Tied())
    del shapes["head.weight"]
    assert not best_fit(Tied(), shapes)
    del shapes["embedding.weight"]
    assert set(best_fit(Tied(), shapes).missing) == {"embedding.weight", "head.weight"}


def test_counters_and_masks_may_be_missing_or_left_over() -> None:
    shapes = state_shapes(Tied())
    del shapes["norm.num_batches_tracked"]
    assert not best_fit(Tied(), shapes | {"rotary_emb.inv_freq": (8,), "h.0.attn.bias": (1, 1, 8, 8)})


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "state_dict.", "model.module."])
def test_a_prefix_that_all_names_have_is_ignored(prefix: str) -> None:
    assert not best_fit(Tied(), {prefix + name: shape for name, shape in state_shapes(Tied()).items()})


def test_a_prefix_that_the_model_has_too_stays() -> None:
    model = nn.ModuleDict({"model": nn.Linear(3, 4)})
    assert not best_fit(model, state_shapes(model))


def test_variants_lose_one_container_at_a_time() -> None:
    assert [list(names) for names in variants({"model.module.a": (1,)})] == [["model.module.a"], ["module.a"], ["a"]]
    assert strip_all(["module.a", "b"], ("module.",)) == ["module.a", "b"]


def test_differences_are_counted_and_the_first_are_listed() -> None:
    expected = {f"layer{i}.weight": (2, 3) for i in range(LISTED_NAMES + 5)} | {"head.weight": (4, 2)}
    text = "\n".join(compare(expected, {"head.weight": (4, 3), "extra": (1,)}).described())
    assert text.splitlines()[0] == f"{LISTED_NAMES + 5} not in the file:"
    assert "  layer9.weight" in text
    assert "layer10.weight" not in text
    assert "… and 5 more" in text
    assert "1 not in the code:\n  extra" in text
    assert "1 with a different shape:\n  head.weight: 4×3 in the file, 4×2 in the code" in text


def remarks(stored: dict[str, tuple[int, ...]]) -> tuple[str, ...]:
    return judge(best_fit(Tied(), stored), len(stored), "a.py:Tied", "w.pt")


def test_code_that_fits_needs_no_remark() -> None:
    assert remarks(dict(state_shapes(Tied()))) == ()


def test_a_tensor_that_only_one_side_has_is_remarked() -> None:
    (remark,) = remarks(state_shapes(Tied()) | {"more": (1,)})
    assert remark == "'w.pt' and 'a.py:Tied' differ. 1 not in the code:\n  more"


@pytest.mark.parametrize("stored", [{"embedding.weight": (11, 4)}, {"a": (1,), "b": (2,)}])
def test_other_code_is_refused_with_the_differences(stored: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(TargetError, match=r"'w\.pt' does not fit 'a\.py:Tied':\n\d+ "):
        remarks(stored)


def test_no_differences_are_false() -> None:
    assert not Differences()
    assert Differences(unexpected=("a",))


def entry(name: str, role: Role = Role.PARAMETER) -> Entry:
    return Entry(name, TensorSpec((2, 3)), "f.pt", 0, 24, role)


def test_the_models_tensors_have_their_names_without_containers() -> None:
    entries = (
        entry("model.module.a.weight"),
        entry("model.module.a.running_mean", Role.BUFFER),
        entry("optimizer.state.0.exp_avg", Role.OPTIMIZER),
        entry("ema.a.weight", Role.OTHER),
    )
    index = Index("f.pt", "torch", ("f.pt",), entries, model_prefix="model.")
    assert {name: found.name for name, found in model_entries(index).items()} == {
        "a.weight": "model.module.a.weight",
        "a.running_mean": "model.module.a.running_mean",
    }


def test_other_tensors_in_a_bare_state_dict_are_ignored() -> None:
    index = Index("f.pt", "torch", ("f.pt",), (entry("a.weight"), entry("ema.a.weight", Role.OTHER)))
    assert list(model_entries(index)) == ["a.weight"]
