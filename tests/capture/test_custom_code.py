"""Ops and kernels that torch knows nothing about: Triton kernels, custom ops, scans, kernels of other libraries."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan, associative_scan_op

import torchgauge as tg
from torchgauge.cost import KERNELS, REGISTRY, load_formulas


class Calls(nn.Module):
    """Its forward is a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(self.layer, *args)


def only(found: tg.Analysis, op: str) -> Any:
    rows = [row for row in found.ops if row.op == op]
    assert len(rows) == 1, [row.op for row in found.ops]
    return rows[0]


@pytest.fixture
def library(request: pytest.FixtureRequest) -> Iterator[torch.library.Library]:
    with torch.library._scoped_library(f"tg_{request.node.name[:40].strip('_').partition('[')[0]}", "DEF") as made:
        yield made


def ops_of(library: torch.library.Library) -> Any:
    return getattr(torch.ops, library.ns)


# Custom ops


def test_an_op_with_a_fake_kernel_is_named_and_has_the_bytes_of_its_arguments(library: Any) -> None:
    library.define("mix(Tensor x, Tensor w) -> Tensor")
    library.impl("mix", lambda x, w: x @ w, "CPU")
    library._register_fake("mix", lambda x, w: x.new_empty(x.shape[0], w.shape[1]))
    model = Calls(lambda layer, x: ops_of(library).mix(layer(x), layer.weight))
    found = tg.analyze(model, inputs=torch.ones(3, 4))
    op = only(found, f"{library.ns}::mix")
    assert (op.status, op.bytes_read, op.bytes_written, found.totals.uncounted_ops) == ("uncounted", 4 * 28, 48, 1)
    assert f"{library.ns}::mix ×1" in str(found)
    assert found.capture.run.mode == "fake"


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_an_op_that_only_writes_to_its_arguments_needs_no_kernel_at_all(library: Any, device: str) -> None:
    library.define("fill(Tensor x, Tensor(a!) out, Tensor(b!) state) -> ()")

    def run(layer: nn.Module, x: Tensor) -> Tensor:
        out, state = torch.empty_like(x), torch.empty(x.shape[0], device=x.device)
        ops_of(library).fill(layer(x), out, state)
        return out + 1

    found = tg.analyze(Calls(run).to(device), inputs=torch.ones(3, 4, device=device))
    op = only(found, f"{library.ns}::fill")
    # The old content of `out` is not read; that of another argument may be.
    assert (op.bytes_read, op.bytes_written, op.status) == (48 + 12, 48 + 12, "uncounted")
    assert found.capture.run.mode == "fake"
    adding = next(row for row in found.ops if row.op == "aten::add")
    assert adding.producers == [op.index]


def test_an_op_that_returns_what_it_writes_to_needs_no_kernel(library: Any) -> None:
    library.define("into(Tensor x, Tensor(a!) out) -> Tensor(a!)")
    model = Calls(lambda layer, x: ops_of(library).into(layer(x), torch.empty(2, 2)) + 1)
    found = tg.analyze(model, inputs=torch.ones(3, 4))
    op = only(found, f"{library.ns}::into")
    assert (op.bytes_read, op.bytes_written, op.output_shapes) == (48, 16, [[2, 2]])


def test_without_a_fake_kernel_the_model_is_run_for_real(library: Any) -> None:
    library.define("halve(Tensor x) -> Tensor")
    library.impl("halve", lambda x: x[: x.shape[0] // 2].clone(), "CPU")
    model = Calls(lambda layer, x: layer(ops_of(library).halve(x)))
    found = tg.analyze(model, inputs=torch.ones(6, 4))
    assert (found.capture.run.mode, found.totals.macs) == ("real", 3 * 16)


def test_without_a_fake_kernel_and_without_weights_the_op_alone_is_run_on_zeros(library: Any) -> None:
    library.define("halve(Tensor x) -> Tensor")
    library.impl("halve", lambda x: x[: x.shape[0] // 2].clone(), "CPU")
    model = Calls(lambda layer, x: layer(ops_of(library).halve(x))).to("meta")
    found = tg.analyze(model, inputs=torch.ones(6, 4, device="meta"))
    assert (found.capture.run.mode, found.totals.macs) == ("fake", 3 * 16)
    assert any(f"{library.ns}::halve has no fake kernel" in warning for warning in found.capture.run.warnings)


def test_an_op_that_can_run_nowhere_is_named_with_what_to_do(library: Any) -> None:
    library.define("halve(Tensor x) -> Tensor")
    model = Calls(lambda layer, x: ops_of(library).halve(layer(x))).to("meta")
    with pytest.raises(tg.ForwardError, match=r"no fake kernel.*halve"):
        tg.analyze(model, inputs=torch.ones(6, 4, device="meta"))


def test_a_formula_is_one_function(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.cost.registry.REGISTRY", copy(REGISTRY))
    library.define("mix(Tensor x, Tensor(a!) out) -> ()")

    @tg.formula(f"{library.ns}::mix", category="matmul")
    def mix(call: tg.Call) -> tg.Work:
        return tg.Work(macs=call["x"].numel * 7)

    def run(layer: nn.Module, x: Tensor) -> None:
        for row in x:  # rules of advice look at ops that repeat
            ops_of(library).mix(row, layer(row))

    found = tg.analyze(Calls(run), inputs=torch.ones(3, 4), all_advice=True)
    op = next(row for row in found.ops if row.op == f"{library.ns}::mix")
    assert (op.macs, op.flops, op.bytes_read, op.bytes_written, op.status) == (28, 56, 16, 16, "counted")


def test_formulas_travel_with_an_installed_package(
    library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchgauge.cost.registry.REGISTRY", copy(REGISTRY))
    (tmp_path / "carried_formulas.py").write_text(
        "from torchgauge import Call, Work, formula\n\n\n"
        f"@formula('{library.ns}::mix', category='matmul')\n"
        "def mix(call: Call) -> Work:\n    return Work(macs=11)\n"
    )
    info = tmp_path / "carried-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[torchgauge.formulas]\ncarried = carried_formulas\nbroken = no_such_module_of_formulas\n"
        "raising = raising_formulas\n"
    )
    (tmp_path / "raising_formulas.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    load_formulas.cache_clear()
    library.define("mix(Tensor x, Tensor(a!) out) -> ()")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = tg.analyze(Calls(lambda layer, x: ops_of(library).mix(x, layer(x))), inputs=torch.ones(3, 4))
    load_formulas.cache_clear()
    sys.modules.pop("carried_formulas", None)
    assert only(found, f"{library.ns}::mix").macs == 11
    messages = [str(one.message) for one in caught if "formulas" in str(one.message)]
    assert sorted(message.split("'")[1] for message in messages) == ["broken", "raising"]


# Scans


def test_an_associative_scan_is_followed() -> None:
    def run(layer: nn.Module, x: Tensor) -> Any:
        return associative_scan(lambda a, b: a * b, layer(x), dim=0, combine_mode="generic")

    found = tg.analyze(Calls(run), inputs=torch.ones(8, 4))
    # 4 + 2 + 1 products of pairs, then 0 + 1 + 3 between them, of rows of 4.
    assert sum(op.flops for op in found.ops if op.op == "aten::mul") == (7 + 4) * 4
    assert found.capture.run.mode == "fake"


def test_the_op_of_an_associative_scan_is_followed_too() -> None:
    """Which is what torch calls on a GPU, where the combination is elementwise."""

    def run(layer: nn.Module, x: Tensor) -> Any:
        shift = layer.bias
        return associative_scan_op(lambda a, b, bias: (a + b + bias,), (layer(x),), (shift,))

    found = tg.analyze(Calls(run), inputs=torch.ones(8, 4))
    assert sum(op.flops for op in found.ops if op.op == "aten::add") == 2 * (7 + 4) * 4
    assert found.totals.uncounted_ops == 0


# Triton


class Kernel:
    """Like Triton's `JITFunction`: a function of Python that is compiled, and the names of its arguments."""

    def __init__(self, fn: Any) -> None:
        self.fn, self.arg_names = fn, list(fn.__code__.co_varnames[: fn.__code__.co_argcount])

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        raise AssertionError("there is no device to run it on")

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)


tl: Any = None  # in kernels that are never run


@Kernel
def scaled_sum(a_ptr, b_ptr, index_ptr, out_ptr, total_ptr, n, BLOCK):  # type: ignore[no-untyped-def]  # noqa: N803
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(index_ptr + place, mask=place < n)
    pointers = out_ptr + row
    value = tl.load(a_ptr + place) + tl.load(b_ptr + row)
    tl.store(pointers, value)
    tl.atomic_add(total_ptr, value)


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton as far as an analysis looks at it."""
    stand_in: Any = type(sys)("triton.runtime.jit")
    stand_in.JITFunction = Kernel
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", stand_in)


def launched(found: tg.Analysis) -> Any:
    op = only(found, "triton::scaled_sum")
    # Read: a, b, the indices and the old total. Written: out and total.
    assert (op.bytes_read, op.bytes_written) == (48 + 48 + 96 + 4, 48 + 4)
    assert (op.status, op.output_shapes, found.capture.run.mode) == ("uncounted", [[12], [1]], "fake")
    assert op.attributes == {"n": 12, "BLOCK": 128}
    return op


def test_a_kernel_that_is_launched_directly_is_an_op(triton: None) -> None:
    def run(layer: nn.Module, x: Tensor) -> Tensor:
        a, out, total = layer(x), torch.empty(12), torch.zeros(1)
        scaled_sum[(1,)](a, x, torch.zeros(12, dtype=torch.int64), out, total, 12, BLOCK=128)
        return out + total

    found = tg.analyze(Calls(run), inputs=torch.ones(3, 4))
    op = launched(found)
    assert found.ops[-1].producers == [op.index, op.index]
    assert op.module == ""
    assert "triton::scaled_sum ×1" in str(found)


@pytest.mark.parametrize("functional", [False, True])
def test_a_kernel_that_is_launched_through_torch_is_an_op(functional: bool) -> None:
    from torch._higher_order_ops.triton_kernel_wrap import (
        kernel_side_table,
        triton_kernel_wrapper_functional,
        triton_kernel_wrapper_mutation,
    )

    def run(layer: nn.Module, x: Tensor) -> Tensor:
        given = {
            "a_ptr": layer(x), "b_ptr": x, "index_ptr": torch.zeros(12, dtype=torch.int64), "out_ptr": torch.empty(12),
            "total_ptr": torch.zeros(1),
        }  # fmt: skip
        index, constants = kernel_side_table.add_kernel(scaled_sum), {"n": 12, "BLOCK": 128}
        options: Any = {
            "kernel_idx": index, "constant_args_idx": kernel_side_table.add_constant_args(constants), "grid": [(1,)],
            "tma_descriptor_metadata": {}, "kwargs": given,
        }  # fmt: skip
        if not functional:
            triton_kernel_wrapper_mutation(**options)
            return given["out_ptr"] + 1
        return triton_kernel_wrapper_functional(**options, tensors_to_clone=["out_ptr", "total_ptr"])["out_ptr"] + 1

    try:
        found = tg.analyze(Calls(run), inputs=torch.ones(3, 4))
    finally:
        kernel_side_table.reset_table()
    op = launched(found)
    assert found.ops[-1].producers == [op.index]
    assert sum(row.op == "aten::clone" for row in found.ops) == 2 * functional


def test_a_kernel_can_have_a_formula(triton: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.cost.registry.REGISTRY", copy(REGISTRY))

    @tg.formula("triton::scaled_sum", category="reduction")
    def cost(call: tg.Call) -> tg.Work:
        return tg.Work(flops=2 * call["a_ptr"].numel + call["n"])

    def run(layer: nn.Module, x: Tensor) -> Tensor:
        scaled_sum[(1,)](layer(x), x, x, torch.empty(12), torch.zeros(1), n=12, BLOCK=128)
        return x

    op = only(tg.analyze(Calls(run), inputs=torch.ones(3, 4)), "triton::scaled_sum")
    assert (op.flops, op.category, op.status) == (36, "reduction", "counted")


def test_after_an_analysis_kernels_are_launched_as_before(triton: None) -> None:
    before = Kernel.run
    tg.analyze(Calls(lambda layer, x: layer(x)), inputs=torch.ones(3, 4))
    assert Kernel.run is before


# Kernels of other libraries


HASHED = "_activation_{:07x}"


def hub(namespace: str, *schemas: str) -> Any:
    """A library with ops that have a schema and nothing else."""
    made = torch.library.Library(namespace, "DEF")
    for schema in schemas:
        made.define(schema)
    return made


@pytest.mark.parametrize("namespace", ["_activation_3a1c9f2", "_C_stand_in", "my_kernels"])
def test_a_hub_kernel_is_known_by_its_schema_whatever_its_namespace(namespace: str) -> None:
    made = hub(namespace, "silu_and_mul(Tensor! out, Tensor input) -> ()")

    def run(layer: nn.Module, x: Tensor) -> Tensor:
        out = torch.empty(3, 2)
        getattr(torch.ops, namespace).silu_and_mul(out, layer(x))
        return out

    found = tg.analyze(Calls(run), inputs=torch.ones(3, 4))
    op = only(found, f"{namespace}::silu_and_mul")
    assert (op.category, op.flops, op.bytes_read, op.bytes_written) == ("activation", 6 * 6, 48, 24)
    assert found.totals.uncounted_ops == 0
    made._destroy()


def test_an_op_of_that_name_with_other_arguments_is_not_taken_for_it(library: Any) -> None:
    library.define("silu_and_mul(Tensor(a!) x, float y) -> ()")
    model = Calls(lambda layer, x: ops_of(library).silu_and_mul(layer(x), 1.0))
    assert tg.analyze(model, inputs=torch.ones(3, 4)).totals.uncounted_ops == 1


def test_flash_attention_from_the_hub_runs_on_fake_tensors() -> None:
    made = hub(
        "_flash_attn2_9e27194",
        "varlen_fwd(Tensor! q, Tensor k, Tensor v, Tensor? out_, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
        "Tensor? seqused_k_, Tensor? leftpad_k_, Tensor? block_table_, Tensor? alibi_slopes_, int max_seqlen_q, "
        "int max_seqlen_k, float p_dropout, float softmax_scale, bool zero_tensors, bool is_causal, "
        "int window_size_left, int window_size_right, float softcap, bool return_softmax, Generator? gen_) -> Tensor[]",
    )

    class Attends(nn.Module):
        def forward(self, q: Tensor, lengths: Tensor) -> Tensor:
            rest: tuple[Any, ...] = (None, None, None, None, 8, 8, 0.0, 0.25, False, True, -1, -1, 0.0, False, None)
            out = torch.ops._flash_attn2_9e27194.varlen_fwd(q, q, q, None, lengths, lengths, *rest)
            return out[0] * 2

    # Two sequences of 8 tokens, 2 heads of 16.
    found = tg.analyze(Attends(), inputs=(torch.ones(16, 2, 16), torch.tensor([0, 8, 16])))
    op = only(found, "_flash_attn2_9e27194::varlen_fwd")
    assert op.macs == 2 * 2 * 8 * 8 * (16 + 16)
    assert op.output_shapes[:2] == [[16, 2, 16], [2, 16]]
    assert found.capture.run.mode == "fake"
    made._destroy()


def test_every_kernel_is_registered_with_the_arguments_it_looks_at() -> None:
    assert {"silu_and_mul", "apply_rms_norm", "varlen_fwd", "selective_scan_fwd", "causal_conv1d_fwd"} <= set(KERNELS)
    for kernels in KERNELS.values():
        assert len({known.arguments for known in kernels}) == len(kernels)


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


# Schema, arguments, shapes of what it returns, MACs, flops; written after the formulas were.
UNSEEN: list[tuple[str, Any, list[list[int]], int, int]] = [
    (
        "apply_rms_norm(Tensor hidden_states, Tensor weight, float variance_epsilon) -> Tensor[]",
        lambda: (zeros(2, 3, 8), zeros(8), 1e-6), [[2, 3, 8], [2, 3]], 0, 4 * 48 + 3 * 6,
    ),
    (
        "causal_conv1d_fwd(Tensor x, Tensor weight, Tensor? bias, Tensor? seq_idx, Tensor? initial_states, "
        "Tensor! out, Tensor!? final_states_out, bool silu_activation) -> ()",
        lambda: (zeros(2, 6, 10), zeros(6, 4), zeros(6), None, None, zeros(2, 6, 10), None, True),
        [[2, 6, 10]], 120 * 4, 2 * 120 * 4 + 6 * 120,
    ),
    (
        "selective_scan_fwd(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D_, Tensor? z_, "
        "Tensor? delta_bias_, bool delta_softplus) -> Tensor[]",
        lambda: (zeros(2, 6, 10), zeros(2, 6, 10), zeros(6, 4), zeros(2, 1, 4, 10), zeros(2, 1, 4, 10),
                 None, None, None, False),
        [[2, 6, 10], [2, 6, 1, 8]], 120 * 4, 2 * 120 * 4 + 24 * 120,
    ),
    (
        "w8_a16_gemm(Tensor input, Tensor weight, Tensor scale) -> Tensor",
        lambda: (zeros(5, 16), zeros(16, 8, dtype=torch.int8), zeros(8)), [[5, 8]], 5 * 16 * 8, 2 * 640 + 2 * 128,
    ),
    (
        "gmm(Tensor (a!) a, Tensor (b!) b, Tensor(c!) c, Tensor batch_sizes, bool trans_a, bool trans_b) -> Tensor(c!)",
        lambda: (zeros(12, 16), zeros(3, 8, 16), zeros(12, 8), zeros(3, dtype=torch.int64), False, True),
        [[12, 8]], 12 * 16 * 8, 2 * 12 * 16 * 8,
    ),
    (
        "fwd_kvcache(Tensor! q, Tensor! kcache, Tensor! vcache, Tensor? block_table_, float softmax_scale) -> Tensor[]",
        lambda: (zeros(2, 1, 4, 16), zeros(2, 64, 2, 16), zeros(2, 64, 2, 16), None, 0.25),
        [[2, 1, 4, 16], [2, 4, 1]], 2 * 4 * 64 * 32, 2 * 2 * 4 * 64 * 32 + 6 * 2 * 4 * 64,
    ),
    (
        "bf16i4bf16_rowwise(Tensor X, Tensor W, Tensor w_scale_group, Tensor w_zero_group) -> Tensor",
        lambda: (zeros(5, 64), zeros(8, 32, dtype=torch.int8), zeros(2, 8), zeros(2, 8)),
        [[5, 8]], 5 * 64 * 8, 2 * 5 * 64 * 8 + 2 * 64 * 8,
    ),
    (
        "bf16i4bf16_rowwise_batched(Tensor X, Tensor WQ, Tensor w_scale, Tensor w_zp) -> Tensor",
        lambda: (zeros(3, 5, 64), zeros(3, 8, 32, dtype=torch.int8), zeros(3, 2, 8), zeros(3, 2, 8)),
        [[3, 5, 8]], 3 * 5 * 64 * 8, 2 * 3 * 5 * 64 * 8 + 2 * 3 * 64 * 8,
    ),
    (
        "f8f8bf16_rowwise(Tensor XQ, Tensor WQ, Tensor x_scale, Tensor w_scale, Tensor? bias=None, "
        "bool use_fast_accum=True) -> Tensor",
        lambda: (zeros(5, 64).to(torch.float8_e4m3fn), zeros(8, 64).to(torch.float8_e4m3fn), zeros(5), zeros(8)),
        [[5, 8]], 5 * 64 * 8, 2 * 5 * 64 * 8 + 2 * 5 * 8,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "given", "shapes", "macs", "flops"), UNSEEN, ids=lambda value: str(value)[:18])
def test_kernels_whose_cases_were_written_last(
    library: Any, schema: str, given: Any, shapes: list[list[int]], macs: int, flops: int
) -> None:
    library.define(schema)
    name = schema.partition("(")[0]

    class Runs(nn.Module):
        def forward(self, *args: Any) -> Any:
            return getattr(ops_of(library), name)(*args)

    found = tg.analyze(Runs(), inputs=given())
    op = only(found, f"{library.ns}::{name}")
    assert (op.output_shapes, op.macs, op.flops, op.status) == (shapes, macs, flops, "counted")
    assert found.capture.run.mode == "fake"
