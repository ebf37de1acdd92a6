from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import nn

from tests.advise.trying import applied, bench, changed, row, rule_with, timed_bench, verify
from torchgauge.verify import ROUNDS, function_text

pytestmark = pytest.mark.usefixtures("one_thread")


def planned(codes: dict[str, str], **stages: str) -> dict[str, Any]:
    with ExitStack() as stack:
        for name, code in codes.items():
            stack.enter_context(rule_with(name, code, stage=stages.get(name, "structure")))
        _, plan = verify(timed_bench(), [row(name) for name in codes])
    assert plan is not None
    return dict(plan)


def test_what_gains_further_is_added_and_the_total_is_measured() -> None:
    plan = planned({"small": "model.cost *= 0.75", "large": "model.cost *= 0.5", "none": "pass"})

    assert plan["rules"] == ["large", "small"]
    assert plan["gain"] == pytest.approx(1 - 0.375)
    assert plan["ci95"] == pytest.approx([0.625, 0.625])
    assert plan["output_error"]["relative"] == 0
    assert [(tried["rules"], tried["kept"]) for tried in plan["tried"]] == [(["large", "small"], True)]
    assert plan["tried"][0]["gain"] == pytest.approx(0.25)


def test_what_was_luck_does_not_hold_twice_and_leaves_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "lucky_times", 3, raising=False)  # alone, in the plan's combination, in its total
    lucky = "torch.lucky_times -= 1; model.cost *= 0.5 if torch.lucky_times >= 0 else 1.0"
    with rule_with("lucky", lucky), rule_with("sound", "model.cost *= 0.75"):
        rows, plan = verify(timed_bench(), [row("lucky"), row("sound")])

    verdicts = {found["rule"]: found["verified"] for found in rows}
    assert verdicts["lucky"]["kept"] is False
    assert verdicts["lucky"]["ci95"] == pytest.approx([0.0, 0.5])
    assert verdicts["lucky"]["reason"] == "no time gain above the noise"
    assert verdicts["sound"]["kept"] is True
    assert verdicts["sound"]["time"]["rounds"] == 4
    assert plan is not None
    assert plan["rules"] == ["sound"]
    assert plan["gain"] == pytest.approx(0.25)


def test_an_interval_spans_four_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "costs", iter([0.5, 0.8, 0.6, 0.7]), raising=False)
    with rule_with("changing", "model.cost = next(torch.costs)"):
        rows, _ = verify(timed_bench(), [row("changing")])

    found = rows[0]["verified"]
    assert found["ci95"] == pytest.approx([0.2, 0.5])
    assert found["gain"] == pytest.approx(1 - (0.6 * 0.7) ** 0.5)
    assert found["time"]["rounds"] == 4


def test_the_interval_of_a_combination_spans_four_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    # Together: when it is added, then in the rounds of the total.
    monkeypatch.setattr(torch, "costs", iter([0.3, 0.25, 0.4, 0.3, 0.35]), raising=False)
    half, more = "model.cost *= 0.5", "model.cost = next(torch.costs) if model.cost == 0.5 else 0.75"
    plan = planned({"half": half, "more": more}, more="graph")

    assert plan["rules"] == ["half", "more"]
    assert plan["ci95"] == pytest.approx([0.6, 0.75])
    assert plan["gain"] == pytest.approx(1 - (0.3 * 0.35) ** 0.5)


def test_a_plan_of_one_is_what_was_measured_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "costs", iter([0.5] * ROUNDS), raising=False)  # no run more than those of the advice
    with rule_with("alone", "model.cost = next(torch.costs)"):
        rows, plan = verify(timed_bench(), [row("alone")])

    assert plan is not None
    assert plan["rules"] == ["alone"]
    assert {name: plan[name] for name in ("gain", "ci95", "output_error", "code")} == {
        name: rows[0]["verified"][name] for name in ("gain", "ci95", "output_error", "code")
    }


def test_a_combination_that_does_not_hold_again_leaves_the_best_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Together they gain when they are added and in the first total, never again.
    monkeypatch.setattr(torch, "together", 2, raising=False)
    large = "model.cost *= 0.5"
    small = (
        "if model.cost == 0.5:\n    torch.together -= 1\n    model.cost = 0.3 if torch.together >= 0 else 1.1\n"
        "else:\n    model.cost *= 0.75"
    )
    plan = planned({"large": large, "small": small}, small="graph")

    assert plan["rules"] == ["large"]
    assert plan["gain"] == pytest.approx(0.5)
    assert [(tried["rules"], tried["kept"]) for tried in plan["tried"]] == [
        (["large", "small"], True),
        (["large", "small"], False),
    ]


def test_what_gains_nothing_more_is_left_out() -> None:
    same = "model.cost = 0.5"
    plan = planned({"one": same, "two": same + "  # the same by another way"})

    assert plan["rules"] == ["one"]
    assert plan["gain"] == pytest.approx(0.5)
    assert plan["tried"][0]["kept"] is False
    assert plan["tried"][0]["reason"] == "no time gain above the noise"


def test_a_combination_that_fails_is_told_and_left_out() -> None:
    fragile = "if model.cost != 1.0: raise RuntimeError('only alone')\nmodel.cost = 0.5"
    plan = planned({"fragile": fragile, "first": "model.cost *= 0.9"}, fragile="graph")

    assert plan["rules"] == ["fragile"]
    assert plan["tried"][0]["reason"] == "the changed model fails: RuntimeError: only alone"
    assert plan["tried"][0]["gain"] is None


def test_errors_that_add_up_beyond_the_tolerance_keep_a_combination_out() -> None:
    a_little_off = "model.cost *= 0.5; model.factor.data *= 1.0007"
    plan = planned({"one": a_little_off, "two": a_little_off + "  # again"})

    assert plan["rules"] == ["one"]
    assert "the outputs differ by" in plan["tried"][0]["reason"]


def test_steps_are_applied_in_the_order_of_their_stages() -> None:
    plan = planned({"last": "model.cost *= 0.5", "early": "model.cost *= 0.9"}, last="graph", early="structure")

    assert plan["rules"] == ["early", "last"]
    assert plan["code"].index("0.9") < plan["code"].index("0.5")


def test_what_costs_time_by_itself_is_tried_beside_a_graph() -> None:
    """Casts are more launches, which cost nothing in a graph."""
    casts = "model.casts = True; model.cost *= 1.2"
    graph = "model.cost *= 0.5 if not hasattr(model, 'casts') else 0.25"
    plan = planned({"casts": casts, "graph": graph, "slow": "model.cost *= 1.1"}, casts="precision", graph="graph")

    assert plan["rules"] == ["casts", "graph"]
    assert plan["gain"] == pytest.approx(1 - 1.2 * 0.25)
    assert [(tried["rules"], tried["kept"]) for tried in plan["tried"]] == [
        (["slow", "graph"], False),
        (["casts", "graph"], True),
    ]


def test_a_graph_that_gains_nothing_by_itself_is_tried_beside_shorter_kernels() -> None:
    short = "model.cost *= 0.8; model.is_short = True"
    graph = "model.cost *= 0.4 if hasattr(model, 'is_short') else 1.05"
    plan = planned({"slow": "model.cost *= 1.5", "graph": graph, "short": short}, graph="graph")

    assert plan["rules"] == ["short", "graph"]
    assert plan["gain"] == pytest.approx(1 - 0.8 * 0.4)
    assert [tried["kept"] for tried in plan["tried"]] == [True, False]


def test_what_costs_time_by_itself_is_not_tried_without_a_graph() -> None:
    plan = planned({"slow": "model.cost *= 1.1", "fast": "model.cost *= 0.5"})

    assert (plan["rules"], plan["tried"]) == (["fast"], [])


def test_a_model_is_not_compiled_twice() -> None:
    plan = planned({"one": "model.cost *= 0.5", "two": "model.cost *= 0.6"}, one="compile", two="compile")

    assert plan["rules"] == ["one"]
    assert plan["tried"] == []


def test_the_code_of_a_plan_is_what_was_measured() -> None:
    plan = planned({"small": "model.cost *= 0.75", "large": "model.cost *= 0.5"})
    scope: dict[str, Any] = {}
    exec(plan["code"], scope)
    model = timed_bench().subject.model

    assert scope["optimise"](model) is model
    assert model.cost == pytest.approx(0.375)


def test_without_anything_that_holds_there_is_no_plan() -> None:
    with rule_with("slower", "model.cost = 2.0"):
        _, plan = verify(timed_bench(), [row("slower"), row("needless-copy")])

    assert plan is None


def test_the_function_takes_inputs_only_where_a_step_wants_them() -> None:
    assert "def optimise(model):" in function_text(["model.relu = None"])
    assert "def optimise(model, *inputs):" in function_text(["model = graphed(model, inputs)"])


def test_what_is_not_to_be_trained_is_put_in_evaluation_first() -> None:
    assert "    model.eval()\n    model.cost = 1\n" in function_text(["model.cost = 1"])
    assert "eval" not in function_text(["model.cost = 1"], train=True)


def test_names_of_modules_are_literals_in_the_code() -> None:
    evil = "a'; raise SystemExit #"
    model = nn.ModuleDict({evil: nn.Linear(2, 2)})
    place = bench(Only(model), torch.ones(1, 2))
    advice = row("unused-parameters", module=f"inner.{evil}")

    code = applied(place, advice).code
    side = changed(place, advice)

    assert repr(f"inner.{evil}") in code
    assert isinstance(side.subject.model.inner[evil], nn.Identity)  # type: ignore[index]


class Only(nn.Module):
    def __init__(self, inner: nn.ModuleDict) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_a_real_plan_gives_the_same_outputs_when_it_is_pasted() -> None:
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)]
    model = nn.Sequential(*layers).eval()
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    place = bench(model, x)
    places: list[dict[str, Any]] = [
        {"module": norm, "ops": [], "weight": None, "evidence": {"convolution": layer}}
        for layer, norm in (("0", "1"), ("3", "4"))
    ]
    advice: dict[str, Any] = row("conv-bn-fusion", module="1", places=places)
    text = function_text([applied(place, advice).code])
    with torch.no_grad():
        before = model(x)
        scope: dict[str, Any] = {}
        exec(text, scope)
        after = scope["optimise"](model.train())(x)

    assert sum(isinstance(module, nn.Identity) for module in model.modules()) == 2
    torch.testing.assert_close(after, before)
