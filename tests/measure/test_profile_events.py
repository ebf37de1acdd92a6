"""Events that the profiler lists in addition to the ops, replayed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchgauge.measure import RUN, split_runs

CPU, CUDA = torch._C._autograd.DeviceType.CPU, torch._C._autograd.DeviceType.CUDA


@dataclass(frozen=True)
class Replayed:
    """An event of Kineto, as read on an H200."""

    label: str
    begin: int
    length: int
    correlation: int
    linked: int = 0
    where: object = CPU
    resource: int = 7

    def name(self) -> str:
        return self.label

    def start_ns(self) -> int:
        return self.begin

    def duration_ns(self) -> int:
        return self.length

    def correlation_id(self) -> int:
        return self.correlation

    def linked_correlation_id(self) -> int:
        return self.linked

    def device_type(self) -> object:
        return self.where

    def start_thread_id(self) -> int:
        return 1

    def device_resource_id(self) -> int:
        return self.resource


def test_the_profilers_own_work_does_not_take_the_place_of_the_op_it_interrupts() -> None:
    (run,) = split_runs(
        [
            Replayed(RUN, 0, 100, 1),
            Replayed("Lazy Function Loading", 20, 5, 2),
            Replayed("aten::addmm", 10, 30, 2),
            Replayed("Activity Buffer Request", 12, 5, 2),
            Replayed("cudaLaunchKernel", 30, 2, 99, linked=2),
            Replayed("gemm", 35, 20, 99, linked=2, where=CUDA, resource=13),
        ]
    )
    assert [event.name for event in run.events] == ["aten::addmm"]
    assert [(kernel.name, kernel.stream) for kernel in run.events[0].kernels] == [("gemm", 13)]


def test_a_runtime_call_outside_any_op_is_not_an_op() -> None:
    (run,) = split_runs(
        [
            Replayed(RUN, 0, 100, 1),
            Replayed("cudaDeviceSynchronize", 50, 40, 2),
            Replayed("aten::cumsum", 60, 5, 2),
            Replayed("cuLaunchKernelEx", 70, 5, 3),
            Replayed("custom::op", 80, 5, 4),
        ]
    )
    assert [event.name for event in run.events] == ["aten::cumsum", "custom::op"]
