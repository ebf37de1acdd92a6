"""Models of transformers by a plain call, parameters on the meta device: MACs equal the closed form of the config."""

from __future__ import annotations

import pytest
import torch

import torchgauge as tg
from tests.models.architectures.case import Case
from tests.models.architectures.decoders import DECODERS
from tests.models.architectures.encoder_decoders import ENCODER_DECODERS
from tests.models.architectures.encoders import ENCODERS
from tests.models.checked import analyze_checked, assert_same_figures, on_meta

CASES = DECODERS | ENCODERS | ENCODER_DECODERS

cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@cases
def test_macs_equal_the_closed_form(case: Case) -> None:
    assert analyze_checked(on_meta(case.build), **case.options).totals.macs == case.macs


@cases
def test_real_and_meta_parameters_give_the_same_figures(case: Case) -> None:
    assert_same_figures(
        analyze_checked(case.build(), **case.options), analyze_checked(on_meta(case.build), **case.options)
    )


@pytest.mark.parametrize("name", [name for name in CASES if "attention_mask" not in CASES[name].inputs])
def test_inputs_may_be_on_the_meta_device_too(name: str) -> None:
    case = CASES[name]
    inputs = {key: tensor.to("meta") for key, tensor in case.inputs.items()}
    analysis = analyze_checked(on_meta(case.build), inputs=inputs, dtype=case.dtype)
    assert analysis.totals.macs == case.macs


@cases
def test_a_model_left_in_training_mode_with_grad_on_is_analysed_as_in_inference(case: Case) -> None:
    model = on_meta(case.build)
    with torch.no_grad():
        quiet = analyze_checked(model.eval(), **case.options)
    with torch.enable_grad():
        assert_same_figures(quiet, analyze_checked(model.train(), **case.options))
    assert model.training


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped", "bert", "t5", "whisper", "clip", "detr"])
def test_attention_written_out_counts_like_the_fused_one(name: str) -> None:
    case = CASES[name]
    model = on_meta(case.build)
    model.set_attn_implementation("eager")  # type: ignore[operator]
    analysis = analyze_checked(model, **case.options)
    assert not any("scaled_dot_product" in row.op for row in analysis.ops)
    assert analysis.totals.macs == case.macs


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped", "bert", "t5"])
def test_the_forward_of_a_training_step_costs_the_same(name: str) -> None:
    case = CASES[name]
    training = tg.analyze(on_meta(case.build), mode="train", **case.options)
    assert sum(row.macs for row in training.ops if row.phase == "forward") == case.macs


@pytest.mark.parametrize("name", ["mixtral-bf16", "mixtral-bf16-eager", "mixtral-f32"])
def test_a_token_of_mixtral_uses_two_of_eight_experts(name: str) -> None:
    model = on_meta(CASES[name].build)
    experts = sum(parameter.numel() for path, parameter in model.named_parameters() if ".experts." in path)
    totals = analyze_checked(model, **CASES[name].options).totals
    assert totals.active_params == totals.params - experts * 6 // 8


def test_equal_layers_of_a_model_cost_the_same() -> None:
    rows = analyze_checked(on_meta(CASES["gpt2"].build), **CASES["gpt2"].options).modules
    blocks = [row for row in rows if row.type.endswith("GPT2Block")]
    assert len(blocks) == 3
    for name in ("macs", "flops", "bytes_read", "bytes_written", "activation_bytes", "ops", "params"):
        assert len({row[name] for row in blocks}) == 1
