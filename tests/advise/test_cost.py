"""What advice costs, in Python's calls: time would depend on the machine."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchgauge
from torchgauge.source.packages import import_optional

# Advice took 2 to 6 times the calls of the static analysis on seven whole models.
MOST_CALLS = 8


def gpt2() -> nn.Module:
    transformers = import_optional("transformers", "a model")
    config = transformers.GPT2Config(n_layer=4, n_embd=64, n_head=4, vocab_size=512, n_positions=128)
    return transformers.GPT2Model(config).eval()


def bert() -> nn.Module:
    transformers = import_optional("transformers", "a model")
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4, "vocab_size": 512}
    return transformers.BertModel(transformers.BertConfig(num_hidden_layers=4, **sizes)).eval()


def calls_of(run: Callable[[], object]) -> int:
    run()  # what is loaded at the first use, and the parsed code, do not count
    profile = cProfile.Profile()
    profile.runcall(run)
    calls: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return calls


@pytest.mark.parametrize("build", [gpt2, bert])
def test_advice_is_not_much_dearer_than_the_analysis(build: Callable[[], nn.Module]) -> None:
    model, inputs = build(), torch.zeros(1, 64, dtype=torch.int64)

    static = calls_of(lambda: torchgauge.analyze(model, inputs=inputs, advice=False, progress=False))
    with_advice = calls_of(lambda: torchgauge.analyze(model, inputs=inputs, progress=False).advice)

    assert with_advice < MOST_CALLS * static
