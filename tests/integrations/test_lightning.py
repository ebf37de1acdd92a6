"""The callback in a real fit, with both packages."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from torchgauge.source import torchvision_importable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed"),
    # Its own deprecations, and its advice on workers, are not ours.
    pytest.mark.filterwarnings("ignore"),
]
PACKAGES = ["lightning.pytorch", "pytorch_lightning"]
PARAMS, MACS_PER_SAMPLE = 8 * 16 + 16 + 16 * 2 + 2, 8 * 16 + 16 * 2


def import_lightning(name: str) -> Any:
    if find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{name} is not installed")
    with torchvision_importable():
        return import_module(name)


@pytest.fixture(params=PACKAGES)
def lightning(request: pytest.FixtureRequest) -> Any:
    return import_lightning(request.param)


def net_of(lightning: Any, example: bool = False) -> Any:
    class Net(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
            if example:
                self.example_input_array = torch.zeros(3, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Net()


def fit(lightning: Any, model: Any, folder: Path, **options: Any) -> Any:
    """The callback after one step."""
    # The module has the callbacks of both packages as its bases: both are imported by now.
    for name in PACKAGES:
        import_lightning(name)
    from torchgauge.integrations.lightning import GaugeSummary

    callback = GaugeSummary(**options)
    run(lightning, model, folder, [callback])
    return callback


def run(lightning: Any, model: Any, folder: Path, callbacks: list[Any]) -> None:
    data: Any = [(torch.ones(8), torch.tensor(1)) for _ in range(8)]
    trainer = lightning.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, callbacks=callbacks,
    )  # fmt: skip
    trainer.fit(model, DataLoader(data, batch_size=4))


def test_without_an_example_the_first_batch_is_taken(
    lightning: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = fit(lightning, net_of(lightning), tmp_path, save=[tmp_path / "net.json"]).analysis
    assert (found.totals.params, found.totals.macs) == (PARAMS, 4 * MACS_PER_SAMPLE)
    assert (tmp_path / "net.json").exists()
    assert "Modules\nModule" in capsys.readouterr().out


def test_an_example_of_the_inputs_goes_before_the_data(
    lightning: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = fit(lightning, net_of(lightning, example=True), tmp_path, show=False).analysis
    assert found.totals.macs == 3 * MACS_PER_SAMPLE
    assert "Modules" not in capsys.readouterr().out


def test_training_is_what_it_would_be_without(lightning: Any, tmp_path: Path) -> None:
    states = []
    for train in (lambda model: fit(lightning, model, tmp_path), lambda model: run(lightning, model, tmp_path, [])):
        torch.manual_seed(0)
        model = net_of(lightning)
        train(model)
        states.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
    assert torch.equal(*states)


def test_a_summary_that_fails_is_a_warning_and_no_end_of_training(lightning: Any, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="torchgauge has no summary"):
        callback = fit(lightning, net_of(lightning, example=True), tmp_path, dtype="no such type")
    assert callback.analysis is None


def test_other_processes_say_nothing(lightning: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from types import SimpleNamespace

    from torchgauge.integrations.lightning import GaugeSummary

    callback = GaugeSummary()
    trainer = SimpleNamespace(is_global_zero=False, loggers=[], global_step=0)
    model = net_of(lightning, example=True)
    callback.on_fit_start(trainer, model)
    callback.on_train_batch_start(trainer, model, torch.ones(4, 8), 0)
    assert callback.analysis is None
    assert capsys.readouterr().out == ""


def test_the_totals_go_to_the_trainers_loggers(lightning: Any, tmp_path: Path) -> None:
    from types import SimpleNamespace

    from torchgauge.integrations.lightning import GaugeSummary

    logged: list[tuple[dict[str, float], int]] = []
    logger = SimpleNamespace(log_metrics=lambda metrics, step: logged.append((metrics, step)))
    trainer = SimpleNamespace(is_global_zero=True, loggers=[logger], global_step=7)
    GaugeSummary(log=True, show=False).on_fit_start(trainer, net_of(lightning, example=True))
    ((metrics, step),) = logged
    assert (metrics["torchgauge/params"], step) == (PARAMS, 7)
