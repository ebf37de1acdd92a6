"""Models that are split over processes: FSDP2, tensor parallel, DTensor. No other process is there or asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

import torchgauge as tg

X = torch.ones(2, 8)
pytestmark = pytest.mark.filterwarnings("ignore")  # of torch about its own distributed code


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 16)
        self.b = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))


class Looks(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else x


MACS, TRAINING_MACS = 2 * (8 * 16 + 16 * 4), 2 * (2 * 8 * 16 + 3 * 16 * 4)


@pytest.fixture(params=[1, 4], ids=["alone", "of four"])
def mesh(request: pytest.FixtureRequest) -> Iterator[DeviceMesh]:
    world = request.param
    if world == 1:
        dist.init_process_group("gloo", rank=0, world_size=1, store=torch._C._distributed_c10d.HashStore())
    else:
        dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    yield init_device_mesh("cpu", (world,), mesh_dim_names=("all",))
    dist.destroy_process_group()


def parameters(model: nn.Module) -> dict[str, tuple[int, type]]:
    return {name: (id(tensor), type(tensor)) for name, tensor in model.named_parameters()}


def test_fully_shard_is_analysed_whole_and_left_alone(mesh: DeviceMesh) -> None:
    model = Net()
    fully_shard(model.a, mesh=mesh)
    fully_shard(model, mesh=mesh)
    before = parameters(model)
    found = tg.analyze(model, inputs=X)
    assert (found.totals.macs, found.totals.params, found.capture.run.mode) == (MACS, 212, "fake")
    assert tg.analyze(model, inputs=X, mode="train").totals.macs == TRAINING_MACS
    assert [row.type for row in found.modules] == ["Net", "Linear", "Linear"]
    assert any("fully_shard" in warning for warning in found.capture.run.warnings)
    assert parameters(model) == before
    model(X).sum().backward()  # FSDP's own state is unchanged: the first forward sets it up
    if mesh.size() == 1:
        assert model.a.weight.grad.full_tensor().shape == (16, 8)  # type: ignore[union-attr]
    assert tg.analyze(model, inputs=X).totals.macs == MACS  # the root's parameters may be whole now


def test_mixed_precision_of_fully_shard_is_followed(mesh: DeviceMesh) -> None:
    model = Net()
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, output_dtype=torch.float32))
    found = tg.analyze(model, inputs=X)
    assert {op.dtype for op in found.ops if op.macs} == {"bfloat16"}
    assert found.totals.param_bytes == 212 * 4
    assert found.capture.modules[0].outputs.dtype == "float32"


def test_a_sharded_model_that_reads_tensor_values_is_run_by_a_process_that_has_all(mesh: DeviceMesh) -> None:
    model = Looks()
    fully_shard(model, mesh=mesh)
    if mesh.size() == 1:
        found = tg.analyze(model, inputs=X, mode="train")
        assert (found.totals.macs, found.capture.run.mode) == (TRAINING_MACS, "real")
        assert model.a.weight.grad is None
    else:
        with pytest.raises(tg.ForwardError, match="split over several processes"):
            tg.analyze(model, inputs=X)


def test_tensor_parallel_modules_show_the_work_of_this_process(mesh: DeviceMesh) -> None:
    model = parallelize_module(Net(), mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})
    before = parameters(model)
    for _ in range(2):  # DTensor remembers how it split an op
        found = tg.analyze(model, inputs=X)
        assert (found.totals.macs, found.totals.params) == (MACS // mesh.size(), 212)
        assert found.totals.uncounted_ops == 0
    assert any(op.category == "communication" for op in found.ops) == (mesh.size() > 1)
    assert tg.analyze(model, inputs=X, mode="train").totals.macs == TRAINING_MACS // mesh.size()
    assert parameters(model) == before


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_dtensor_inputs_are_taken(mesh: DeviceMesh, mode: Any) -> None:
    model: Any = distribute_module(Net(), mesh)
    x = distribute_tensor(X, mesh, [Replicate()])
    assert isinstance(model.a.weight, DTensor)
    assert tg.analyze(model, inputs=x, mode=mode).totals.macs == {"inference": MACS, "train": TRAINING_MACS}[mode]
    assert isinstance(model(x), DTensor)
