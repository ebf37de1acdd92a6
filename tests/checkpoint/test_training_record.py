"""What a checkpoint is of, from files as trainers write them; no pickle is run."""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import torchgauge as tg
from tests.checkpoint.test_trainer_folders import write_deepspeed
from torchgauge.analysis import load
from torchgauge.checkpoint import open_checkpoint
from torchgauge.facts import TrainingRecord
from torchgauge.source import torchvision_importable

STATE_BYTES = 2 * 15 * 4 + 2 * 4  # two moments of 15 values, and two step counts, of 4 bytes each


@dataclass
class Recipe:
    lr: float = 0.1
    layers: tuple[int, ...] = (2, 3)


def trained(kind: Any = torch.optim.AdamW, **settings: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(4, 3)
    optimizer = kind(model.parameters(), **settings)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def importable() -> Iterator[None]:
    """Trainers import torchvision, whose compiled part may not load here."""
    with torchvision_importable():
        yield


def training_of(path: Path) -> TrainingRecord:
    found = open_checkpoint(path).training
    assert found is not None
    return found


def saved(folder: Path, value: Any, **options: Any) -> TrainingRecord:
    torch.save(value, folder / "checkpoint.pt", **options)
    return training_of(folder / "checkpoint.pt")


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_the_checkpoint_of_the_pytorch_tutorial(tmp_path: Path, options: dict[str, Any]) -> None:
    model, optimizer = trained(lr=0.01, weight_decay=0.1)
    checkpoint = {
        "epoch": 5,
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "loss": torch.tensor(0.25),
    }
    found = saved(tmp_path, checkpoint, **options)
    assert (found.epoch, found.metrics) == (5, {"loss": 0.25})
    (one,) = found.optimizers
    assert (one["type"], one["state_bytes"], one["groups"], one["state_tensors"]) == ("AdamW", STATE_BYTES, 1, 6)
    assert (one["settings"]["lr"], one["settings"]["weight_decay"]) == (0.01, 0.1)
    assert one["settings"]["betas"] == [0.9, 0.999]
    assert "params" not in one["settings"]


def test_the_checkpoint_of_the_imagenet_example(tmp_path: Path) -> None:
    model, optimizer = trained(torch.optim.SGD, lr=0.1, momentum=0.9)
    scheduler = lr_scheduler.StepLR(optimizer, 30)
    checkpoint = {
        "epoch": 12,
        "arch": "resnet18",
        "state_dict": {f"module.{k}": v for k, v in model.state_dict().items()},
        "best_acc1": torch.tensor(71.5),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
    }
    found = saved(tmp_path, checkpoint)
    assert (found.epoch, found.model, found.best_metric) == (12, "resnet18", {"name": "best_acc1", "value": 71.5})
    assert (found.optimizers[0]["type"], found.optimizers[0]["settings"]["momentum"]) == ("SGD", 0.9)
    assert found.optimizers[0]["state_bytes"] == 60
    (one,) = found.schedulers
    assert (one["type"], one["settings"]["step_size"], one["settings"]["last_lr"]) == ("StepLR", 30, [0.1])


OPTIMIZERS = [
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.ASGD,
    torch.optim.Rprop,
    torch.optim.Adafactor,
]


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_the_type_of_an_optimizer_follows_from_its_settings(kind: Any, tmp_path: Path) -> None:
    model, optimizer = trained(kind)
    found = saved(tmp_path, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    assert found.optimizers[0]["type"] == kind.__name__


def test_an_adam_of_before_torch_2_7_is_named_by_the_arguments_or_not_at_all(tmp_path: Path) -> None:
    model, optimizer = trained(torch.optim.Adam)
    state = optimizer.state_dict()
    state["param_groups"][0].pop("decoupled_weight_decay", None)
    checkpoint = {"model": model.state_dict(), "optimizer": state}
    assert saved(tmp_path, checkpoint).optimizers[0]["type"] == "Adam or AdamW"
    assert saved(tmp_path, checkpoint | {"args": {"opt": "adamw"}}).optimizers[0]["type"] == "AdamW"


SCHEDULERS: list[Any] = [
    lambda o: lr_scheduler.StepLR(o, 3),
    lambda o: lr_scheduler.MultiStepLR(o, [1, 2]),
    lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
    lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
    lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1.0),
    lambda o: lr_scheduler.LinearLR(o),
    lambda o: lr_scheduler.ConstantLR(o),
    lambda o: lr_scheduler.PolynomialLR(o),
    lambda o: lr_scheduler.ReduceLROnPlateau(o),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", SCHEDULERS)
def test_the_type_of_a_scheduler_follows_from_its_state(make: Any, tmp_path: Path) -> None:
    model, optimizer = trained(torch.optim.SGD)
    scheduler = make(optimizer)
    found = saved(tmp_path, {"model": model.state_dict(), "lr_scheduler": scheduler.state_dict()})
    assert [one["type"] for one in found.schedulers] == [type(scheduler).__name__]


def test_copies_generators_scaler_and_arguments(tmp_path: Path) -> None:
    model, optimizer = trained()
    copy = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    checkpoint = {
        "model": model.state_dict(),
        "ema": copy,
        "updates": 120,
        "optimizer": optimizer.state_dict(),
        "scaler": {"scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000},
        "rng": {"torch": torch.get_rng_state(), "numpy": ("MT19937", [1, 2]), "python": (3, (1, 2), None)},
        "args": argparse.Namespace(lr=0.1, data=Path("/data/imagenet"), aug=["flip", "crop"], seed=np.int64(7)),
        "iteration": 4000,
        "best_score": np.float64(0.75),
    }
    found = saved(tmp_path, checkpoint)
    assert found.ema == {"name": "ema", "elements": 15, "bytes": 60, "decay": None, "updates": 120}
    assert found.rng is not None
    assert set(found.rng["generators"]) == {"python", "numpy", "torch"}
    assert found.rng["bytes"] == torch.get_rng_state().numel()
    assert found.scaler is not None
    assert found.scaler["scale"] == 65536.0
    assert found.arguments == {"lr": 0.1, "data": "/data/imagenet", "aug": ["flip", "crop"], "seed": 7}
    assert (found.step, found.best_metric) == (4000, {"name": "best_score", "value": 0.75})


def test_objects_are_their_attributes_and_unknown_ones_their_names(tmp_path: Path) -> None:
    config = {
        "recipe": Recipe(),
        "dtype": torch.float16,
        "device": torch.device("cpu"),
        "layer": nn.Linear,
        "big": 10**30,
    }
    found = saved(tmp_path, {"model": nn.Linear(2, 2).state_dict(), "config": config}).arguments
    assert found["recipe"] == {"lr": 0.1, "layers": [2, 3]}
    assert (found["dtype"], found["device"]) == ("torch.float16", "cpu")
    assert (found["layer"], found["big"]) == ("torch.nn.modules.linear.Linear", hex(10**30))


def test_weights_alone_are_of_no_training(tmp_path: Path) -> None:
    for value in (nn.BatchNorm1d(4).state_dict(), nn.Linear(4, 3), {"state_dict": nn.Linear(4, 3).state_dict()}):
        torch.save(value, tmp_path / "model.pt")
        assert open_checkpoint(tmp_path / "model.pt").training is None


def test_a_value_that_contains_itself_and_a_deep_one_end(tmp_path: Path) -> None:
    loop: dict[str, Any] = {"lr": 0.1}
    loop["self"] = loop
    deep: Any = 1
    for _ in range(50):
        deep = [deep]
    found = saved(tmp_path, {"model": nn.Linear(2, 2).state_dict(), "args": {"loop": loop, "deep": deep, "n": 3}})
    assert found.arguments["n"] == 3
    json.dumps(found.arguments)


@pytest.mark.filterwarnings("ignore")
def test_a_lightning_checkpoint(tmp_path: Path, importable: None) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, width: int = 3, lr: float = 0.02) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.fc = nn.Linear(4, width)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = self.fc(batch).square().mean()
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])
            return [optimizer], [lr_scheduler.CosineAnnealingLR(optimizer, 10)]

    saving = ModelCheckpoint(dirpath=tmp_path, filename="last", monitor="train_loss")
    trainer = lightning.Trainer(
        max_epochs=2,
        callbacks=[saving],
        logger=False,
        enable_progress_bar=False,
        accelerator="cpu",
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    rows: Any = torch.ones(6, 4)
    trainer.fit(Module(), torch.utils.data.DataLoader(rows, batch_size=2))
    path = next(tmp_path.glob("*.ckpt"))
    found, written = training_of(path), torch.load(path, weights_only=False)
    assert (found.made_by or "").startswith("Lightning 2.")
    assert (found.epoch, found.step) == (written["epoch"], written["global_step"])
    assert found.step
    assert found.best_metric is not None
    assert (found.best_metric["name"], found.best_metric["value"]) == ("train_loss", float(saving.best_model_score))
    assert (found.arguments["width"], found.arguments["lr"]) == (3, 0.02)
    assert [one["type"] for one in found.optimizers] == ["Adam"]
    assert [one["type"] for one in found.schedulers] == ["CosineAnnealingLR"]


def test_a_timm_checkpoint(tmp_path: Path, importable: None) -> None:
    pytest.importorskip("timm")
    from timm.scheduler import CosineLRScheduler
    from timm.utils import CheckpointSaver, ModelEmaV3

    model, optimizer = trained()
    args = argparse.Namespace(model="resnet50", opt="adamw", lr=5e-4, epochs=300, sched="cosine")
    saver = CheckpointSaver(model, optimizer, args, model_ema=ModelEmaV3(model), checkpoint_dir=str(tmp_path))
    saver.save_checkpoint(4, metric=81.25)
    found = training_of(tmp_path / "last.pth.tar")
    assert (found.made_by, found.epoch, found.best_metric) == ("timm", 4, {"name": "metric", "value": 81.25})
    assert (found.arguments["model"], found.arguments["epochs"]) == ("resnet50", 300)
    assert (found.optimizers[0]["type"], found.optimizers[0]["state_bytes"]) == ("AdamW", STATE_BYTES)
    assert found.ema is not None
    assert found.ema["elements"] == 15
    state = CosineLRScheduler(optimizer, t_initial=10).state_dict()
    assert saved(tmp_path, {"lr_scheduler": state}).schedulers[0]["type"] == "timm CosineLRScheduler"


@pytest.mark.filterwarnings("ignore")
def test_the_folder_of_a_transformers_trainer(tmp_path: Path, importable: None) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(4)]
    options = {
        "learning_rate": 1e-3,
        "max_steps": 2,
        "save_steps": 2,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "per_device_train_batch_size": 2,
        "disable_tqdm": True,
    }
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), **options)
    transformers.Trainer(model=model, args=arguments, train_dataset=rows).train()
    found = training_of(tmp_path / "checkpoint-2")
    assert (found.made_by, found.step) == ("transformers Trainer", 2)
    assert found.epoch == 1
    assert found.arguments["learning_rate"] == 1e-3
    assert "loss" in found.metrics
    assert [one["type"] for one in found.optimizers] == ["AdamW"]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert found.optimizers[0]["state_bytes"] >= 2 * 4 * parameters
    assert [one["type"] for one in found.schedulers] == ["LambdaLR"]
    assert found.rng is not None
    assert {"python", "numpy", "torch"} <= set(found.rng["generators"])
    text = str(tg.analyze(tmp_path / "checkpoint-2", advice=False))
    assert "saved by transformers Trainer" in text
    assert "learning rate 0.001" in text


def test_the_folder_of_accelerate(tmp_path: Path, importable: None) -> None:
    accelerate = pytest.importorskip("accelerate")
    model, optimizer = trained()
    accelerator = accelerate.Accelerator(cpu=True)
    prepared = accelerator.prepare(model, optimizer, lr_scheduler.StepLR(optimizer, 3))
    assert prepared
    accelerator.save_state(str(tmp_path / "state"))
    found = training_of(tmp_path / "state")
    assert [one["type"] for one in found.optimizers] == ["AdamW"]
    assert found.optimizers[0]["state_bytes"] == STATE_BYTES
    assert [one["type"] for one in found.schedulers] == ["StepLR"]
    assert found.rng is not None
    assert {"python", "numpy", "torch"} <= set(found.rng["generators"])


def test_a_checkpoint_like_those_of_ultralytics(tmp_path: Path) -> None:
    model, optimizer = trained(torch.optim.SGD, lr=0.01, momentum=0.9)
    checkpoint = {
        "epoch": 7,
        "best_fitness": np.float64(0.5),
        "model": None,
        "ema": model,
        "updates": 900,
        "version": "8.3.0",
        "optimizer": optimizer.state_dict(),
        "train_args": {"imgsz": 640, "batch": 16, "data": "coco8.yaml"},
        "train_metrics": {"metrics/mAP50(B)": 0.6},
        "date": "2025-01-01",
    }
    found = saved(tmp_path, checkpoint)
    assert (found.made_by, found.epoch) == ("Ultralytics 8.3.0", 7)
    assert found.best_metric == {"name": "best_fitness", "value": 0.5}
    assert found.arguments["imgsz"] == 640
    assert found.ema is not None
    assert (found.ema["updates"], found.ema["elements"]) == (900, 15)


def test_a_deepspeed_folder(tmp_path: Path) -> None:
    write_deepspeed(tmp_path)
    found = training_of(tmp_path)
    assert found.step == 10
    assert (found.made_by or "").startswith("DeepSpeed")
    assert found.schedulers[0]["settings"] == {"last_batch_iteration": 10}
    (one,) = found.optimizers
    index = open_checkpoint(tmp_path)
    assert one["state_bytes"] == 4 * index.optimizer_elements  # master weights and moments of both ranks


def test_the_optimizer_of_a_deepspeed_folder_is_that_of_its_config(tmp_path: Path) -> None:
    torch.save({"module": nn.Linear(4, 3).state_dict(), "global_steps": 2}, tmp_path / "mp_rank_00_model_states.pt")
    state = {"base_optimizer_state": [{"exp_avg": torch.zeros(15)}], "zero_stage": 1}
    config = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "zero_optimization": {"stage": 1}}
    for rank in range(2):
        checkpoint = {"optimizer_state_dict": state, "ds_config": config, "ds_version": "0.16.2"}
        torch.save(checkpoint, tmp_path / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    found = training_of(tmp_path)
    assert (found.made_by, found.step) == ("DeepSpeed 0.16.2", 2)
    (one,) = found.optimizers
    assert (one["type"], one["settings"], one["state_bytes"]) == ("AdamW", {"lr": 1e-4}, 2 * 60)
    assert tg.load(_saved(tg.scan_weights(tmp_path), tmp_path)).capture.training == found


def _saved(found: tg.WeightScan, folder: Path) -> Path:
    found.save(folder / "scan.json")
    return folder / "scan.json"


def test_a_broken_file_beside_the_weights_is_named_and_a_dangerous_one_reported(tmp_path: Path) -> None:
    model, _ = trained()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "trainer_state.json").write_text("{")
    (tmp_path / "optimizer.pt").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    (tmp_path / "scheduler.pt").write_bytes(pickle.dumps({"last_epoch": 1, "base_lrs": [0.1]}))
    index = open_checkpoint(tmp_path)
    assert [warning.partition(" ")[0] for warning in index.warnings] == [
        "trainer_state.json",
        "optimizer.pt",
        "scheduler.pt",
    ]
    assert "os.system" in {found.name for found in index.imports}


HOSTILE = "\x1b[31m<b>x"


def test_it_is_in_every_report_and_comes_back_from_json(tmp_path: Path) -> None:
    model, optimizer = trained(lr=0.01)
    args = {"run": HOSTILE, HOSTILE: 1}
    torch.save(
        {"epoch": 5, "net": model.state_dict(), "optimizer": optimizer.state_dict(), "args": args}, tmp_path / "c.pt"
    )
    for found in (tg.analyze(tmp_path / "c.pt", advice=False), tg.scan_weights(tmp_path / "c.pt")):
        document = found.to_dict()["training"]
        assert (document["epoch"], document["optimizer"]["type"]) == (5, "AdamW")
        assert document["arguments"] == args
        assert document["optimizers"] == [document["optimizer"]]
        for suffix in (".txt", ".md", ".html", ".json"):
            found.save(tmp_path / f"report{suffix}")
        read = load(tmp_path / "report.json")
        assert read.capture.training == found.capture.training
        assert str(read) == str(found)
        for suffix in (".txt", ".md", ".html"):
            text = (tmp_path / f"report{suffix}").read_text(encoding="utf-8")
            assert "AdamW" in text
            assert "\x1b" not in text
            assert "<b>x" not in text or suffix == ".txt"


@pytest.mark.parametrize("name", ["ema_state", "model_ema_state_dict", "swa_weights"])
def test_copies_and_generators_under_names_of_a_loop_of_ones_own(name: str, tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    record = saved(
        tmp_path, {"net": model.state_dict(), name: model.state_dict(), "rng": torch.get_rng_state(), "epoch": 3}
    )
    assert record.ema is not None
    assert (record.ema["name"], record.ema["elements"]) == (name, 8)
    assert record.rng is not None
    assert record.rng["generators"] == ["torch"]
