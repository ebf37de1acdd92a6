"""Collectives: the bytes this rank reads and writes. The sums of a reduction happen on the way and are not counted."""

from __future__ import annotations

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.facts import FREE

_FUNCTIONAL = (
    "all_reduce", "all_reduce_coalesced", "all_gather_into_tensor", "all_gather_into_tensor_coalesced",
    "all_gather_into_tensor_out", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_out", "all_to_all_single", "broadcast", "isend", "irecv", "batch_p2p_ops",
)  # fmt: skip
_AUTOGRAD = ("all_gather_into_tensor", "all_to_all_single", "reduce_scatter_tensor")
_PROCESS_GROUP = (
    "_allgather_base_", "_reduce_scatter_base_", "allgather_", "allgather_coalesced_",
    "allgather_into_tensor_coalesced_", "allreduce_", "allreduce_coalesced_", "alltoall_", "alltoall_base_",
    "broadcast_", "gather_", "recv_", "recv_any_source_", "reduce_", "reduce_scatter_",
    "reduce_scatter_tensor_coalesced_", "scatter_", "send",
)  # fmt: skip


@formula(
    *(f"_c10d_functional::{name}" for name in _FUNCTIONAL),
    *(f"_c10d_functional_autograd::{name}" for name in _AUTOGRAD),
    *(f"c10d::{name}" for name in _PROCESS_GROUP),
    category="communication",
)
def collective(call: Call) -> Work:
    return Work(flops=0)


@formula(
    "_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd", "c10d::barrier",
    "c10d::monitored_barrier_", category="communication", status=FREE,
)  # fmt: skip
def wait(call: Call) -> Work:
    return Work(flops=0, bytes_read=0, bytes_written=0)
