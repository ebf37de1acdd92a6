from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.advise import zoo_memory, zoo_weights
from tests.advise.planted import gain_of, on_cuda, said, seen
from torchgauge.advise import RULES, Advice, Evidence
from torchgauge.advise.matrices import matrices
from torchgauge.advise.rules.batch import Load, knee
from torchgauge.advise.rules.quantize import KEPT_DB, Choice, plan
from torchgauge.hardware import Roof

SIDE = zoo_weights.SIDE
ABOUT_VALUES = {
    "quantize-weights", "mixed-precision-plan", "unstructured-pruning", "two-four-sparsity", "structured-pruning",
    "dead-rows", "low-rank", "tied-weights", "duplicate-tensors", "narrower-type", "stored-optimizer-state",
}  # fmt: skip


def only(evidence: Evidence, rule: str) -> Advice:
    (found,) = (advice for advice in said(evidence) if advice.rule == rule)
    return found


@pytest.mark.parametrize(
    "change", [zoo_weights.on_grid, zoo_weights.sparse, zoo_weights.dead_rows, zoo_weights.rounded]
)
def test_nothing_is_said_of_values_that_were_not_read(change: zoo_weights.Change) -> None:
    found = said(seen(zoo_weights.layers(change), 1, SIDE))

    assert {advice.rule for advice in found} & ABOUT_VALUES == set()


def test_random_weights_that_are_read_get_advice_on_bits_alone() -> None:
    found = said(zoo_weights.spectra())

    assert {advice.rule for advice in found} & ABOUT_VALUES == {"quantize-weights"}


def test_nothing_is_quantized_in_training() -> None:
    evidence = zoo_weights.read(zoo_weights.layers(), 1, SIDE, mode="train")

    assert "quantize-weights" not in {advice.rule for advice in said(evidence)}


def test_layers_of_one_format_are_one_piece_of_advice_with_their_places() -> None:
    found = [advice for advice in said(zoo_weights.few(zoo_weights.on_grid)) if advice.rule == "quantize-weights"]

    places = {advice.evidence["format"]: advice.evidence.get("count", 1) for advice in found}
    assert places == {"int4": 2, "int8": 1}


def test_what_four_bits_save_is_counted_with_their_scales() -> None:
    (advice,) = (a for a in said(zoo_weights.few(zoo_weights.on_grid)) if a.evidence.get("format") == "int4")

    scales = SIDE * SIDE // 128
    assert advice.evidence["bytes_after"] == SIDE * SIDE // 2 + 4 * scales
    assert gain_of(advice).high == pytest.approx(2 / 3 * (1 - advice.evidence["bytes_after"] / (4 * SIDE * SIDE)))


def test_the_plan_spends_its_budget_where_it_buys_most() -> None:
    matrix = next(matrices(zoo_weights.few()))
    fine = Choice(matrix, "int8", "per_channel", 0.0, 100)
    cheap, dear = (Choice(matrix, "int4", "group128", noise, 50) for noise in (0.0015, 0.0025))

    chosen = plan([(fine, dear), (fine, cheap)])

    assert chosen == [cheap, fine]
    assert sum(choice.noise for choice in chosen) / 2 <= 10 ** (-KEPT_DB / 10)


def test_two_of_four_says_whether_the_device_gains() -> None:
    evidence = zoo_weights.few(zoo_weights.two_of_four)

    assert "no time" in only(evidence, "two-four-sparsity").recommendation
    assert "twice as fast" in only(on_cuda(evidence), "two-four-sparsity").recommendation


def test_sparse_storage_has_to_pay_for_its_indices() -> None:
    evidence = zoo_weights.few(lambda weight: weight * (torch.rand_like(weight) < 0.5))

    assert "unstructured-pruning" not in {advice.rule for advice in said(evidence)}


def test_a_table_of_positions_is_not_pruned() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pos_embed = nn.Parameter(zoo_weights.faint_rows(torch.randn(SIDE, SIDE)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.pos_embed

    found = said(zoo_weights.read(Positions(), SIDE, SIDE))

    assert "structured-pruning" not in {advice.rule for advice in found}


def test_tying_saves_the_bytes_of_the_copy() -> None:
    advice = only(zoo_weights.words("copied"), "tied-weights")

    assert advice.evidence == {"same_values_as": "table.weight", "bytes": 200 * 64 * 4}
    assert gain_of(advice).low == gain_of(advice).high == 0.5


def test_the_cache_holds_keys_and_values_of_every_layer_head_and_token() -> None:
    evidence = only(zoo_memory.decoded(2048, 8), "kv-cache").evidence

    assert evidence["bytes_per_token"] == 2 * 3 * 64 * 4
    assert evidence["cache_bytes"] == 8 * 2048 * evidence["bytes_per_token"]


def test_a_decoder_that_is_never_run_token_by_token_has_no_cache() -> None:
    """As a decision transformer or a forecaster: nothing in it generates or keeps keys."""

    class Recomputes(zoo_memory.Decoder):
        def generate(self, tokens: torch.Tensor) -> torch.Tensor:
            return torch.cat([tokens, self(tokens)[:, -1:].argmax(-1)], 1)

    class Generates(zoo_memory.Decoder):
        generation_config = None

    class Rotary(zoo_memory.Decoder):
        def __init__(self) -> None:
            super().__init__(2048, has_cache=False)
            self.cos_cached = nn.Buffer(torch.ones(2048, 16))

    def found(model: nn.Module) -> bool:
        rows = said(seen(model, inputs=torch.zeros(8, 16, dtype=torch.int64)))
        return "kv-cache" in {advice.rule for advice in rows}

    assert found(Generates(2048, has_cache=False))
    assert not found(Recomputes(2048, has_cache=False))
    assert not found(zoo_memory.Decoder(2048, has_cache=False))
    assert not found(Rotary())


def test_heads_that_share_keys_get_no_advice_on_the_cache() -> None:
    evidence = zoo_memory.decoded(2048, 8)
    row = evidence.view.architecture
    assert evidence.view.capture.architecture is not None
    grouped = replace(evidence.view.capture.architecture, hyperparameters={**row.hyperparameters, "kv_heads": 1})

    found = said(Evidence(replace(evidence.view.capture, architecture=grouped)))

    assert "kv-cache" not in {advice.rule for advice in found}


def test_all_experts_for_every_token_are_counted() -> None:
    evidence = only(zoo_memory.routed(), "dense-experts").evidence

    assert evidence["products_computed"] == 4096 * 8
    assert evidence["products_needed"] == 4096


def test_checkpointing_gains_no_more_than_blocks_hold_beyond_their_outputs() -> None:
    advice = only(zoo_memory.long(), "activation-checkpointing")

    outputs = 6 * 4096 * 64 * 4
    assert advice.evidence["output_bytes"] == outputs
    assert gain_of(advice).high <= (advice.evidence["held_bytes"] - outputs) / advice.evidence["peak_bytes"]


def test_adam_keeps_two_numbers_per_parameter() -> None:
    evidence = zoo_memory.large()

    assert only(evidence, "optimizer-state").evidence["state_bytes"] == 2 * evidence.totals.param_bytes


def test_the_knee_is_where_weights_are_read_for_enough_samples() -> None:
    """One product of intensity b per sample against a ridge of 64, and nothing else to move."""
    load = Load(Roof(64.0, 1.0), flops=1, fixed=1, growing=0)

    assert knee([load]) == 64


def test_work_without_weights_has_no_knee() -> None:
    assert knee([Load(Roof(64.0, 1.0), flops=1, fixed=0, growing=8)]) == 1


def test_bfloat16_gains_less_where_tf32_is_on() -> None:
    machine = zoo_memory.DEVICE
    evidence = zoo_memory.precise(torch.float32)
    on, off = (Evidence(evidence.capture, machine=replace(machine, matmul_tf32=known)) for known in (True, False))

    assert advise_high(on) < advise_high(off)


def advise_high(evidence: Evidence) -> float:
    return gain_of(only(evidence, "autocast-bf16")).high


def test_every_rule_on_values_has_a_planted_fault() -> None:
    planted = {case.rule for case in (*zoo_weights.CASES, *zoo_memory.CASES)}

    assert ABOUT_VALUES <= planted <= set(RULES)
