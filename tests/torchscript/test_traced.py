from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import torchgauge as tg
from tests.torchscript.models import Hybrid, Listed, Shared, figures, macs, small_resnet

pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")


class Logits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=128, use_cache=False,
                            bos_token_id=0, eos_token_id=0)  # fmt: skip
        self.model = GPT2LMHeadModel(config)

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids).logits


def trace(model: nn.Module, *inputs: Tensor) -> Any:
    return torch.jit.trace(model.eval(), inputs, check_trace=False, strict=False)


@pytest.mark.parametrize(
    ("build", "size"),
    [
        (small_resnet, (2, 3, 32, 32)),
        (Listed, (2, 8)),
        (Shared, (3, 4)),
    ],
    ids=["resnet", "lists", "shared"],
)
def test_a_traced_model_has_the_figures_of_the_eager_one(build: Any, size: tuple[int, ...]) -> None:
    model = build()
    traced = tg.analyze(trace(model, torch.zeros(size)), input_size=size)
    assert figures(traced) == figures(tg.analyze(model, input_size=size))


def test_a_traced_hybrid_has_the_macs_and_paths_of_the_eager_one() -> None:
    model = Hybrid().eval()
    size = (2, 3, 32, 32)
    traced = tg.analyze(trace(model, torch.zeros(size)), input_size=size)
    # A trace does not take the fused path of the encoder, which has no inner modules: the encoder is compared whole.
    eager = macs(tg.analyze(model, input_size=size))
    inner = "transformer.encoder.layers.0."
    assert macs(traced).keys() == eager.keys()
    assert {p: n for p, n in macs(traced).items() if not p.startswith(inner)} == {
        p: n for p, n in eager.items() if not p.startswith(inner)
    }


def test_a_traced_gpt2_has_the_macs_and_paths_of_the_eager_one() -> None:
    model, ids = Logits().eval(), torch.ones(1, 8, dtype=torch.int64)
    traced = tg.analyze(trace(model, ids), inputs=(ids,))
    eager = tg.analyze(model, inputs=(ids,))
    assert macs(traced) == macs(eager)
    assert traced.totals.params == eager.totals.params
    width, length, vocabulary, layers = 16, 8, 50, 2
    block = 12 * length * width**2 + 2 * length**2 * width
    assert traced.totals.macs == layers * block + length * width * vocabulary


def test_sizes_that_a_trace_computes_are_known() -> None:
    class Folds(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(x.shape[0] * x.shape[1] // 2, -1)

    found = tg.analyze(trace(Folds(), torch.zeros(4, 6, 5)), input_size=(2, 4, 3))
    assert found.capture.modules[0].outputs.shape == (4, 6)


def test_a_loaded_trace_that_starts_with_an_embedding_is_given_token_ids(tmp_path: Path) -> None:
    class Embeds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 8)
            self.head = nn.Linear(8, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(ids).view(1, 16, 8))  # the length is fixed, as in many traces

    torch.jit.trace(Embeds(), torch.ones(1, 16, dtype=torch.int64)).save(str(tmp_path / "model.pt"))
    found = tg.analyze(str(tmp_path / "model.pt"))
    assert (found.totals.macs, found.capture.inputs[0].spec.shape) == (16 * 8 * 4, (1, 16))
    assert "looks up 20 ids" in str(found.capture.inputs[0].inferred)
