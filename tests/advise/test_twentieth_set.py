"""What the judges of the twentieth set found wrong or hard to use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.advise.fault_classes import Does
from tests.advise.test_near_misses import shown
from torchgauge.source.packages import import_optional

# --- tensors that a package holds because it was asked for them


def last_of_all(self: Any, ids: Tensor) -> Tensor:
    states = self.encoder(
        ids,
        output_hidden_states=True,
    )
    return states.last_hidden_state.mean(1)


def all_by_the_config(self: Any, ids: Tensor) -> Tensor:
    states = self.encoder(ids)
    return states.last_hidden_state.mean(1)


@pytest.mark.filterwarnings("ignore:torchvision's compiled operators")
@pytest.mark.parametrize("forward", [last_of_all, all_by_the_config])
def test_states_that_a_package_holds_are_those_of_the_call_that_asks_for_them(forward: Any) -> None:
    transformers = import_optional("transformers", "a model")
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "vocab_size": 64}
    config = transformers.BertConfig(
        num_hidden_layers=16, output_hidden_states=forward is all_by_the_config, max_position_embeddings=256, **sizes
    )
    model = Does(forward, encoder=transformers.BertModel(config))

    (found,) = [
        row for row in shown(model, torch.zeros(2, 256, dtype=torch.int64)) if row["rule"] == "held-activations"
    ]

    assert found["where"]["module"] == "encoder"
    assert found["where"]["line"].startswith("states = self.encoder(")
    assert ("output_hidden_states=True" in found["recommendation"]) is (forward is last_of_all)
