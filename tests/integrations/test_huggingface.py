"""The callback in a real training of one step."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from torchgauge.source import torchvision_importable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("accelerate") is None, reason="the Trainer needs accelerate, which is not installed"),
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),
]


def train(folder: Path, callbacks: list[Any]) -> Any:
    with torchvision_importable():
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=32, n_positions=16))
    tokens = torch.arange(8)
    data = [{"input_ids": tokens, "labels": tokens} for _ in range(4)]
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model, args, train_dataset=data, callbacks=callbacks).train()
    return model


def test_the_model_is_summed_up_and_trained_as_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from torchgauge.integrations.huggingface import GaugeCallback

    callback = GaugeCallback(seq=8, depth=1)
    model, plain = train(tmp_path, [callback]), train(tmp_path, [])
    assert callback.analysis is not None
    assert callback.analysis.totals.params == sum(parameter.numel() for parameter in model.parameters())
    assert callback.analysis.capture.inputs[0].spec.shape == (2, 8)
    assert "Modules\nModule" in capsys.readouterr().out
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_other_processes_say_nothing(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from torchgauge.integrations.huggingface import GaugeCallback

    callback = GaugeCallback()
    state = SimpleNamespace(is_world_process_zero=False)
    callback.on_train_begin(SimpleNamespace(), state, None, model=torch.nn.Linear(2, 2))
    assert callback.analysis is None
