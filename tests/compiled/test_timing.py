"""Kernels of a profiled run joined to those that were compiled, by order and name."""

from __future__ import annotations

from torchgauge.facts import Compiled, CompiledGraph, CompiledKernel
from torchgauge.measure import RUN, DeviceKernel, HostEvent, Profiled
from torchgauge.measure.compiled import with_times

MS = 1_000_000


def kernel_row(name: str, kind: str, module: str) -> CompiledKernel:
    return CompiledKernel(name, 0, kind, (), {module: 1.0}, 0, 0)


ROWS = (
    kernel_row("aten::addmm", "extern", "a"),
    kernel_row("triton_poi_fused_relu_0", "generated", ""),
    kernel_row("extern_kernels.bias_addmm", "extern", "b"),
    kernel_row("triton_poi_fused_relu_0", "generated", "b"),
    kernel_row("aten::_scaled_dot_product_flash_attention", "extern", "c"),
)


def profiled(*calls: tuple[str | None, tuple[str, ...]], inner: str = "aten::empty") -> Profiled:
    """One run: each call (None: launched by no op) with the kernels it launches, 1 ms each."""
    events, kernels, at = [], [], 0
    for name, launched in calls:
        made = [DeviceKernel(one, (at + 1 + k) * 10 * MS, MS) for k, one in enumerate(launched)]
        kernels += made
        if name is not None:
            events.append(HostEvent(name, at * 10 * MS, at * 10 * MS + 9 * MS, 1, kernels=made[:1]))
            # What an op calls itself launches the rest.
            events.append(HostEvent(inner, at * 10 * MS + MS, at * 10 * MS + 2 * MS, 1, kernels=made[1:]))
        at += len(launched) + 1
    return Profiled(0, at * 10 * MS, (HostEvent("Torch-Compiled Region: 0/0", 0, 1, 1), *events), tuple(kernels))


def compiled() -> Compiled:
    return Compiled("inductor", "cuda", True, (CompiledGraph("0/0", "forward", "forward", None, 5),), (), ROWS)


def test_each_kernel_gets_the_time_of_its_launch() -> None:
    run = profiled(
        ("aten::addmm", ("sm90_gemm", "splitk_reduce")),
        ("triton_poi_fused_relu_0", ("triton_poi_fused_relu_0",)),
        ("aten::addmm", ("sm90_gemm",)),
        (None, ("triton_poi_fused_relu_0",)),
        ("aten::_scaled_dot_product_flash_attention", ("flash_fwd",)),
    )
    found = with_times(compiled(), [run, run])
    assert [round((row.time_s or 0) * 1e3) for row in found.kernels] == [2, 1, 1, 1, 1]
    assert found.joined_s == found.profiled_s == 6e-3


def test_ops_between_the_graphs_are_not_kernels() -> None:
    run = profiled(
        ("aten::addmm", ("sm90_gemm",)),
        ("triton_poi_fused_relu_0", ("triton_poi_fused_relu_0",)),
        ("aten::sin", ("eager_sin",)),
        ("aten::addmm", ("sm90_gemm",)),
        ("triton_poi_fused_relu_0", ("triton_poi_fused_relu_0",)),
        ("aten::_scaled_dot_product_flash_attention", ("flash_fwd",)),
    )
    found = with_times(compiled(), [run])
    assert all(row.time_s == 1e-3 for row in found.kernels)
    assert (found.profiled_s, found.joined_s) == (6e-3, 5e-3)


def test_a_library_call_of_another_name_is_found_between_its_neighbours() -> None:
    run = profiled(
        ("aten::addmm", ("sm90_gemm",)),
        ("triton_poi_fused_relu_0", ("triton_poi_fused_relu_0",)),
        ("aten::_addmm_activation", ("sm90_gemm_relu",)),
        ("triton_poi_fused_relu_0", ("triton_poi_fused_relu_0",)),
        ("aten::_scaled_dot_product_flash_attention", ("flash_fwd",)),
    )
    assert all(row.time_s == 1e-3 for row in with_times(compiled(), [run]).kernels)


def test_a_kernel_that_was_not_seen_has_no_time() -> None:
    run = profiled(("aten::addmm", ("sm90_gemm",)), ("triton_poi_fused_relu_0", ("triton_poi_fused_relu_0",)))
    found = with_times(compiled(), [run])
    assert [row.time_s is None for row in found.kernels] == [False, False, True, True, True]
    assert RUN.startswith("torchgauge::")
