from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cost.calls import cost, judge, spec
from torchgauge.cost import REGISTRY, Call, Work, assess, find, formula
from torchgauge.facts import CATEGORIES, COUNTED, FREE, UNCOUNTED, Cost, TensorSpec


@pytest.fixture
def untouched_registry() -> Iterator[None]:
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def test_a_second_formula_for_an_op_is_refused() -> None:
    with pytest.raises(ValueError, match="formula for 'aten::mm' is already registered"):
        formula("aten::mm", category="matmul")(lambda call: Work())


def test_a_category_outside_the_contract_is_refused() -> None:
    with pytest.raises(ValueError, match="'gemm' is not a category"):
        formula("mine::op", category="gemm")


@pytest.mark.usefixtures("untouched_registry")
def test_a_user_adds_a_formula_with_a_decorator() -> None:
    @formula("mine::scan", category="other")
    def scan(call: Call) -> Work:
        return Work(macs=call["x"].numel)

    assert judge("mine::scan", spec(4), x=spec(4)) == ("other", COUNTED, Cost(4, 8, 16, 16))


@pytest.mark.usefixtures("untouched_registry")
@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (32, "it returned 32, not Work"),
        (None, "it returned None, not Work"),
        (Work(macs=-5), "macs is -5"),
        (Work(flops=float("nan")), "flops is nan"),  # type: ignore[arg-type]
        (Work(bytes_read=float("inf")), "bytes_read is inf"),  # type: ignore[arg-type]
        (Work(flops="many"), "TypeError"),  # type: ignore[arg-type]
    ],
)
def test_a_formula_that_returns_nonsense_leaves_its_op_uncounted(returned: Work, reason: str) -> None:
    formula("mine::scan", category="other")(lambda call: returned)
    with pytest.warns(UserWarning, match=f"of mine::scan is not used: .*{reason}"):
        assert judge("mine::scan", spec(4), x=spec(4)) == ("other", UNCOUNTED, Cost(0, 0, 16, 16))


@pytest.mark.usefixtures("untouched_registry")
def test_a_formula_that_raises_leaves_its_op_uncounted() -> None:
    formula("mine::scan", category="other")(lambda call: Work(call["no such argument"].numel))
    with pytest.warns(UserWarning, match="of mine::scan is not used: KeyError"):
        assert judge("mine::scan", spec(4), x=spec(4)).status == UNCOUNTED


@pytest.mark.usefixtures("untouched_registry")
def test_fractions_of_a_formula_are_rounded() -> None:
    formula("mine::scan", category="other")(lambda call: Work(flops=1.5 * 3))  # type: ignore[arg-type]
    assert cost("mine::scan", spec(4), x=spec(4)) == Cost(0, 4, 16, 16)


@pytest.mark.parametrize("name", ["scan", ""])
def test_a_name_without_a_namespace_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a name has a namespace, as in 'aten::addmm'"):
        formula(name, category="other")


def test_a_status_outside_the_contract_is_refused() -> None:
    with pytest.raises(ValueError, match="'ignored' is not a status"):
        formula("mine::scan", category="other", status="ignored")


def test_an_unknown_op_is_uncounted_and_its_bytes_are_known() -> None:
    assert judge("mine::unheard_of", spec(2), x=spec(3)) == ("other", UNCOUNTED, Cost(0, 0, 12, 8))


def test_an_in_place_op_uses_the_formula_of_the_op() -> None:
    assert find("aten::gelu_") is find("aten::gelu")
    assert cost("aten::silu_", spec(3), self=spec(3)) == cost("aten::silu", spec(3), self=spec(3))


def test_an_op_without_formula_is_generic_by_its_tag() -> None:
    arguments = {"x": spec(6)}
    pointwise = assess(Call("mine::map", arguments, (spec(6),), tags=frozenset({"pointwise"})))
    reduction = assess(Call("mine::fold", arguments, (spec(),), tags=frozenset({"reduction"})))
    view = assess(Call("mine::look", arguments, (spec(6),), tags=frozenset({"view"})))
    assert pointwise == ("elementwise", COUNTED, Cost(0, 6, 24, 24))
    assert reduction == ("reduction", COUNTED, Cost(0, 6, 24, 4))
    assert view == ("view", FREE, Cost())


def test_a_pointwise_op_that_returns_no_tensor_counts_its_input() -> None:
    call = Call("mine::same", {"x": spec(6)}, (), tags=frozenset({"pointwise"}))
    assert assess(call).cost == Cost(0, 6, 24, 0)


def test_an_expanded_dimension_is_read_once() -> None:
    row = TensorSpec((8, 4), stride=(0, 1))
    assert cost("aten::add", spec(8, 4), self=spec(8, 4), other=row) == Cost(0, 32, 128 + 16, 128)


def test_a_tensor_given_twice_is_read_once() -> None:
    x = spec(5)
    call = Call("aten::mul", {"self": x, "other": x}, (x,), inputs=(x,))
    assert assess(call).cost == Cost(0, 5, 20, 20)


@pytest.mark.parametrize("op", ["aten::add", "aten::relu", "aten::sum", "aten::sort", "aten::cumsum", "aten::gelu"])
def test_work_on_integers_is_not_flops(op: str) -> None:
    numbers = spec(8, dtype="int64")
    assert cost(op, numbers, self=numbers, other=numbers, dim=0).flops == 0


def test_every_entry_names_a_category_of_the_contract() -> None:
    used = {entry.category for entry in REGISTRY.values()}
    assert used == set(CATEGORIES)
