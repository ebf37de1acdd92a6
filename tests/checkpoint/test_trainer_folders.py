"""Folders as trainers write them, with a file for each process; made here of real torch files in their layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

import torchgauge as tg
from tests.checkpoint.malicious import call, text, torch_archive
from tests.checkpoint.reading import raw_items, torch_bytes
from torchgauge.checkpoint import Role, Verdict, open_checkpoint, sniff

PARAMS = 6 * 5 + 5 + 5 + 5
STATISTICS = 5 + 5 + 1


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))


def flat_partition(rank: int, numel: int) -> dict[str, Any]:
    """What a ZeRO-2 rank keeps: a slice of the flat master weights and its two moments."""
    base = {"state": {0: {"step": 3, "exp_avg": torch.zeros(numel), "exp_avg_sq": torch.zeros(numel)}}}
    state = {"zero_stage": 2, "single_partition_of_fp32_groups": [torch.full((numel,), float(rank))],
             "base_optimizer_state": base, "partition_count": [2], "loss_scaler": None}  # fmt: skip
    return {"optimizer_state_dict": state, "ds_config": {"zero_optimization": {"stage": 2}}, "ds_version": "0.14.0"}


def write_deepspeed(folder: Path, *, ranks: int = 2, model_ranks: int = 1) -> nn.Module:
    net = model()
    step = folder / "global_step10"
    step.mkdir()
    (folder / "latest").write_text("global_step10")
    (folder / "zero_to_fp32.py").write_text("raise SystemExit('ran')")
    shapes = [{name: parameter.shape for name, parameter in net.named_parameters()}]
    for rank in range(model_ranks):
        state = {"module": net.state_dict(), "buffer_names": [], "optimizer": None, "param_shapes": shapes,
                 "lr_scheduler": {"last_batch_iteration": 10}, "global_steps": 10, "dp_world_size": ranks}  # fmt: skip
        torch.save(state, step / f"mp_rank_{rank:02}_model_states.pt")
    for rank in range(ranks):
        path = step / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save(flat_partition(rank, PARAMS // ranks + 1), path)
    return net


@pytest.mark.parametrize("inner", ["", "global_step10"])
def test_a_deepspeed_folder_keeps_model_and_optimizer_apart(tmp_path: Path, inner: str) -> None:
    net = write_deepspeed(tmp_path)
    index = open_checkpoint(tmp_path / inner)
    assert (index.format, sniff(tmp_path / inner)) == ("deepspeed", "ranked")
    assert (index.logical_params, index.model_prefix) == (PARAMS, "module.")
    assert index.optimizer_elements == 2 * 3 * (PARAMS // 2 + 1)
    assert index.stored_elements == PARAMS + STATISTICS + index.optimizer_elements
    entries = {entry.name: entry for entry in index.entries}
    assert raw_items(entries["module.0.weight"]) == torch_bytes(net.state_dict()["0.weight"])
    slices = [name for name in entries if "single_partition_of_fp32_groups" in name]
    assert [name.partition(".")[0] for name in slices] == [
        "zero_pp_rank_0_mp_rank_00_optim_states",
        "zero_pp_rank_1_mp_rank_00_optim_states",
    ]
    assert index.warnings == ()


def test_code_is_joined_with_a_deepspeed_folder(tmp_path: Path) -> None:
    write_deepspeed(tmp_path)
    a = tg.analyze(tmp_path, code=model(), input_size=(2, 6))
    assert (a.totals.macs, a.totals.params) == (2 * 6 * 5, PARAMS)
    assert a.totals.optimizer_elements == 6 * (PARAMS // 2 + 1)


def test_model_parallel_ranks_are_listed_and_not_joined(tmp_path: Path) -> None:
    write_deepspeed(tmp_path, model_ranks=2)
    index = open_checkpoint(tmp_path)
    assert index.logical_params == 2 * PARAMS
    assert {entry.name.partition(".")[0] for entry in index.entries if entry.role is Role.PARAMETER} == {
        "mp_rank_00",
        "mp_rank_01",
    }
    (warning,) = index.warnings
    assert warning.startswith("the model is split over 2 ranks")


def test_the_third_stage_of_zero_is_told(tmp_path: Path) -> None:
    state = {"module": {"w": torch.empty(0), "b": torch.empty(0)}, "param_shapes": [{"w": torch.Size([4, 4])}]}
    torch.save(state, tmp_path / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    torch.save(flat_partition(0, 20), tmp_path / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    (warning,) = open_checkpoint(tmp_path).warnings
    assert "zero_to_fp32.py" in warning


@pytest.mark.parametrize("pointer", ["../outside", "/etc", "missing", "a\0b", "{0.__class__}", ""])
def test_a_pointer_cannot_lead_out_of_its_folder(tmp_path: Path, pointer: str) -> None:
    (tmp_path / "outside").mkdir()
    torch.save({"module": {"w": torch.ones(2)}}, tmp_path / "outside" / "mp_rank_00_model_states.pt")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "latest").write_text(pointer)
    assert sniff(folder) is None


def write_megatron(folder: Path) -> None:
    (folder / "latest_checkpointed_iteration.txt").write_text("1000\n")
    for rank in range(2):
        place = folder / "iter_0001000" / f"mp_rank_{rank:02}"
        place.mkdir(parents=True)
        layers = {"layers.0.mlp.weight": torch.ones(4, 8), "final_norm.weight": torch.ones(8)}
        state = {"args": None, "iteration": 1000, "model": {"language_model": {"encoder": layers}},
                 "optimizer": {"optimizer": {"state": {0: {"exp_avg": torch.ones(4, 8)}}}}}  # fmt: skip
        torch.save(state, place / "model_optim_rng.pt")


def test_megatron_ranks_are_listed_side_by_side(tmp_path: Path) -> None:
    write_megatron(tmp_path)
    index = open_checkpoint(tmp_path)
    assert index.format == "megatron"
    assert (index.logical_params, index.optimizer_elements) == (2 * (4 * 8 + 8), 2 * 4 * 8)
    assert index.entries[0].name == "mp_rank_00.model.language_model.encoder.layers.0.mlp.weight"
    assert "2 ranks" in index.warnings[0]


def test_consolidated_parts_of_a_tensor_parallel_model_are_opened_together(tmp_path: Path) -> None:
    for rank in range(2):
        torch.save({"layers.0.wq.weight": torch.ones(4, 8)}, tmp_path / f"consolidated.{rank:02}.pth")
    index = open_checkpoint(tmp_path)
    assert (index.format, index.logical_params) == ("tensor-parallel", 64)
    assert [entry.name for entry in index.entries] == [f"consolidated.0{n}.layers.0.wq.weight" for n in range(2)]


def test_a_danger_in_the_file_of_one_rank_is_reported(tmp_path: Path) -> None:
    write_megatron(tmp_path)
    hostile = tmp_path / "iter_0001000" / "mp_rank_01" / "distrib_optim.pt"
    hostile.write_bytes(torch_archive(call("os", "system", text("true"))))
    dangerous = [found for found in open_checkpoint(tmp_path).imports if found.verdict is Verdict.DANGEROUS]
    assert [found.name for found in dangerous] == ["os.system"]


@pytest.mark.filterwarnings("ignore")
def test_an_fsdp_folder_holds_a_distributed_checkpoint_for_each_part(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(3, 6)).sum().backward()
    optimizer.step()
    save_distributed({"model": net.state_dict()}, checkpoint_id=tmp_path / "pytorch_model_fsdp_0")
    save_distributed({"optimizer": optimizer.state_dict()}, checkpoint_id=tmp_path / "optimizer_0")
    torch.save({}, tmp_path / "scheduler.pt")
    torch.save({}, tmp_path / "rng_state_0.pth")
    index = open_checkpoint(tmp_path)
    assert (index.format, index.model_prefix) == ("distributed", "pytorch_model_fsdp_0.model.")
    assert index.logical_params == PARAMS
    assert index.optimizer_elements == 2 * PARAMS + 4
    a = tg.analyze(tmp_path, code=model(), input_size=(2, 6))
    assert (a.totals.macs, a.totals.stored_elements) == (60, PARAMS + STATISTICS + index.optimizer_elements)


@pytest.mark.parametrize("write", [write_deepspeed, write_megatron])
def test_the_files_are_told_as_they_are_opened(tmp_path: Path, write: Callable[[Path], object]) -> None:
    write(tmp_path)
    seen: list[tuple[int, int, str]] = []
    index = open_checkpoint(tmp_path, progress=lambda *step: seen.append(step))
    assert [step[0] for step in seen] == list(range(len(index.files) + 1))
    assert {step[1] for step in seen} == {len(index.files)}
