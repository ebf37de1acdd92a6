"""An integration without its package says what to install."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from torchgauge.errors import MissingDependencyError


@pytest.mark.parametrize(
    ("name", "packages", "extra"),
    [
        ("lightning", ("lightning", "lightning.pytorch", "pytorch_lightning"), "lightning"),
        ("huggingface", ("transformers",), "models"),
    ],
)
def test_a_callback_without_its_trainer(
    name: str, packages: tuple[str, ...], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    module = f"torchgauge.integrations.{name}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(MissingDependencyError, match=rf"pip install torchgauge\[{extra}\]"):
        import_module(module)


def test_wandb_is_asked_for_when_something_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.report.saved_runs import load_run
    from torchgauge.integrations.wandb import log_analysis

    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingDependencyError, match=r"pip install torchgauge\[wandb\]"):
        log_analysis(None, load_run("cnn"))
