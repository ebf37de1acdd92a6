"""The largest numbers of a config: those of models pass, those that would take minutes or gigabytes do not."""

from __future__ import annotations

from typing import Any

import pytest

from torchgauge.errors import TargetError
from torchgauge.source.config_limits import require_possible_numbers


@pytest.mark.parametrize(
    "settings",
    [
        {"num_hidden_layers": 1000, "hidden_size": 1 << 16, "vocab_size": 1 << 20},
        {"num_labels": 21_843, "num_local_experts": 2048, "num_attention_heads": 512},
        {"n_routed_experts": 16_384, "max_position_embeddings": 10**7, "pad_token_id": 10**8},
        {"stage_block_size": 4096, "patch_size": 16},
    ],
)
def test_the_numbers_of_models_pass(settings: dict[str, Any]) -> None:
    require_possible_numbers(settings, "a config")


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_labels", 16_000_000), ("num_classes", 1 << 20), ("num_hidden_layers", 16_384), ("depths", [2, 4096]),
     ("num_stages", 10_000), ("num_experts", 1 << 15), ("hidden_size", 1 << 25)],
)  # fmt: skip
def test_a_number_that_takes_too_long_to_build_is_named(name: str, value: object) -> None:
    with pytest.raises(TargetError, match=f"a config sets {name} = .*, more than any model has"):
        require_possible_numbers({"text_config": {name: value}}, "a config")
