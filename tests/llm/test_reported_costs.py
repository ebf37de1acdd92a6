"""The tables of the report add up, and no pass is faster than its device."""

from __future__ import annotations

from typing import Any

import pytest

import torchgauge as tg
from tests.llm.test_costs import attention
from tests.llm.zoo import MODELS, on_meta
from torchgauge.cli.main import main
from torchgauge.report.llm import LlmReport


@pytest.mark.parametrize("settings", [{}, {"weights_dtype": "int4"}, {"weights_dtype": "int4", "cache_dtype": "fp8"}])
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_the_modules_of_a_step_add_up_to_it_in_every_type(family: str, settings: dict[str, Any]) -> None:
    found = tg.llm(MODELS[family](), context=40, concurrent="1,3", **settings).to_dict()
    for step in (*found["prefill"], *found["decode"]):
        parts = sum(part["bytes_read"] for part in step["modules"])
        assert parts == pytest.approx(step["bytes_read"], rel=1e-3)
        assert all(part["bytes_read"] <= step["bytes_read"] for part in step["modules"])
        assert sum(part["weight_bytes"] for part in step["modules"]) == pytest.approx(step["weight_bytes"], rel=1e-3)


def test_the_columns_of_a_step_add_up_to_the_bytes_read() -> None:
    found = tg.llm(MODELS["llama"](), context=40, concurrent="1,3", prefix=8, weights_dtype="int4").to_dict()
    for step in (*found["prefill"], *found["decode"]):
        assert step["weight_bytes"] + step["cache_read_bytes"] + step["rest_bytes"] == step["bytes_read"]
        assert min(step["weight_bytes"], step["cache_read_bytes"], step["rest_bytes"]) >= 0
    assert "Rest" in str(LlmReport(found))


def test_utilisation_leaves_out_the_scores_that_a_causal_kernel_does_not_compute() -> None:
    model = on_meta("Llama", num_hidden_layers=2, dtype="bfloat16", max_position_embeddings=1 << 17)
    step = tg.llm(model).prefill(1 << 16, on="h200", last_logits=True)
    products = 2 * 2 * (1 << 16) * attention(model.config, 1 << 16)
    assert step.skipped_flops == pytest.approx(products / 2, rel=0.05)
    assert step.flops > 1.5 * (step.flops - step.skipped_flops)
    assert step.mfu is not None
    assert step.mfu <= 1
    assert tg.llm(model).decode(1 << 16).skipped_flops == 0


def test_a_device_that_the_model_does_not_fit_on_gets_no_times() -> None:
    model = on_meta("Llama", hidden_size=8192, intermediate_size=28672, num_hidden_layers=40, dtype="bfloat16")
    found = tg.llm(model, on=["h200", "rtx4090"], context=2048, concurrent="1").to_dict()
    for row in found["speed"]:
        fits = row["device"] == "h200"
        assert row["verdict"] == ("fits" if fits else "does not fit")
        assert (row["time_s"] is not None) is (row["tokens_per_s"] is not None) is (row["mfu"] is not None) is fits
    text = str(LlmReport(found))
    assert "does not fit" in text.partition("\nTime\n")[2].partition("\n\n")[0]


def test_the_execution_that_times_are_of_is_named_and_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    model = on_meta("Llama", num_hidden_layers=2, dtype="bfloat16")
    eager, graph = (tg.llm(model, on="h200", context=512, execution=name) for name in ("eager", "graph"))
    assert "op by op (eager)" in str(eager)
    assert "CUDA graph that is replayed" in str(graph)
    seconds = [found.to_dict()["speed"][1]["time_s"] for found in (eager, graph)]
    assert seconds[1] < seconds[0]  # type: ignore[operator]
    with pytest.raises(tg.errors.UsageError, match="no execution 'fast'"):
        tg.llm(model, execution="fast")
    with pytest.raises(SystemExit):
        main(["llm", "--help"])
    assert "--execution" in capsys.readouterr().out
