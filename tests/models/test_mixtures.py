"""Active parameters of published mixtures of experts, whole and with a few layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

import torchgauge as tg
from tests.models.published_mixtures import MIXTURES
from torchgauge.facts import find_mixtures

IDS = torch.arange(48).reshape(1, 48)


def build(name: str, **changed: Any) -> Any:
    family = MIXTURES[name].family
    config_class = getattr(transformers, f"{family}{'Text' if family == 'Llama4' else ''}Config")
    config = config_class(**{**MIXTURES[name].config, **changed})
    with torch.device("meta"):
        return getattr(transformers, f"{family}ForCausalLM")(config).to(torch.bfloat16).eval()


def embeddings(model: Any) -> list[nn.Parameter]:
    return list(dict.fromkeys((model.get_input_embeddings().weight, model.get_output_embeddings().weight)))


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXTURES)
def test_active_parameters_are_as_published(name: str) -> None:
    model, published = build(name), MIXTURES[name]
    left_out = sum(weight.numel() for weight in embeddings(model)[: published.left_out])
    found = tg.analyze(model, inputs={"input_ids": IDS}, advice=False)
    assert found.totals.active_params == pytest.approx(published.active_billions * 1e9 + left_out, rel=0.03)


# Every family of the table, and those without a published figure.
FEW: dict[str, dict[str, Any]] = {
    "Mixtral-8x7B": {}, "Qwen1.5-MoE-A2.7B": {}, "DeepSeek-V2": {}, "Kimi-K2": {}, "GLM-4.5-Air": {}, "dots.llm1": {},
    "Phi-3.5-MoE": {}, "DBRX": {"n_layers": 3}, "gpt-oss-120b": {"layer_types": None}, "Llama-4-Scout": {},
    "OLMoE-1B-7B": {}, "JetMoE-8B": {}, "MiniMax-M2": {}, "ERNIE-4.5-21B-A3B": {},
}  # fmt: skip
CHOSEN = {
    "Mixtral-8x7B": (2, 8), "Qwen1.5-MoE-A2.7B": (4, 60), "DeepSeek-V2": (6, 160), "Kimi-K2": (8, 384),
    "GLM-4.5-Air": (8, 128), "dots.llm1": (6, 128), "Phi-3.5-MoE": (2, 16), "DBRX": (4, 16), "gpt-oss-120b": (4, 128),
    "Llama-4-Scout": (1, 16), "OLMoE-1B-7B": (8, 64), "JetMoE-8B": (2, 8), "MiniMax-M2": (8, 256),
    "ERNIE-4.5-21B-A3B": (6, 64),
}  # fmt: skip


@pytest.mark.parametrize("name", FEW)
def test_a_token_reaches_the_chosen_of_the_routed_experts(name: str) -> None:
    model = build(name, **{"num_hidden_layers": 3, **FEW[name]})
    experts = [
        weight.numel()
        for path, weight in model.named_parameters()
        if weight.dim() == 3 or (".experts." in path and name != "JetMoE-8B")  # whose router is among its experts
    ]
    chosen, alternatives = CHOSEN[name]
    found = tg.analyze(model, inputs={"input_ids": IDS}, advice=False)
    assert found.totals.active_params == found.totals.params - sum(experts) * (alternatives - chosen) // alternatives
    dense = any("experts are computed" in text for text in found.capture.run.warnings)
    assert dense is (name == "Llama-4-Scout")


def test_experts_that_tokens_choose_by_argmax() -> None:
    config = transformers.SwitchTransformersConfig(
        vocab_size=100, d_model=32, d_ff=64, num_layers=4, num_decoder_layers=4, num_heads=2, d_kv=16, num_experts=8
    )
    with torch.device("meta"):
        model = transformers.SwitchTransformersForConditionalGeneration(config).eval()
    experts = sum(weight.numel() for path, weight in model.named_parameters() if ".experts." in path)
    found = tg.analyze(model, inputs={"input_ids": IDS, "decoder_input_ids": IDS}, advice=False)
    assert experts > 0
    assert found.totals.active_params == found.totals.params - experts * 7 // 8


def test_a_table_of_expert_numbers_routes_as_well() -> None:
    config = transformers.DeepseekV4Config(num_hidden_layers=4)
    with torch.device("meta"):
        model = transformers.DeepseekV4ForCausalLM(config).to(torch.bfloat16).eval()
    experts = sum(weight.numel() for path, weight in model.named_parameters() if ".mlp.experts." in path)
    found = tg.analyze(model, inputs={"input_ids": IDS}, advice=False)
    share = config.num_experts_per_tok / config.n_routed_experts
    assert len(find_mixtures(found.capture)) == 4
    assert found.totals.active_params == pytest.approx(found.totals.params - experts * (1 - share))
