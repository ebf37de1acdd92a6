"""Models that run in torch are analysed, statically or for real; calls that torch refuses are refused."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional as F
from torch.nn.functional import one_hot as hot
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import torchgauge as tg
from torchgauge.capture import FakeRun, ModulePaths, Recorder


def macs_and_mode(model: nn.Module, *inputs: Any) -> tuple[int, str | None]:
    found = tg.analyze(model, inputs=inputs)
    return found.totals.macs, found.capture.run.mode


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)


def test_packed_sequences_are_run_for_real() -> None:
    class Pads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(4, 4, batch_first=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]

    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(4, 4)

        def forward(self, x: PackedSequence) -> Tensor:
            return self.rnn(x)[0].data

    cell = 2 * 4 * 4 * 4  # four gates of two 4×4 matrices
    assert macs_and_mode(Pads(), torch.ones(3, 5, 4), torch.tensor([5, 3, 2])) == (10 * cell, "real")
    assert macs_and_mode(Takes(), pack_sequence([torch.ones(5, 4), torch.ones(3, 4)])) == (8 * cell, "real")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_tensor_of_tensors_needs_no_values(device: str) -> None:
    class Collects(Base):
        def forward(self, x: Tensor, ids: Tensor) -> Tensor:
            known = torch.tensor([ids.max(), ids.min()])
            scale = torch.tensor([[x.sum(), x.mean()], [x.amax(), 1.0]])
            assert (known.dtype, scale.dtype, scale.shape) == (torch.int64, torch.float32, (2, 2))
            return self.layer(x)[: int(known[0])] * torch.as_tensor([x.sum()]) * x.new_tensor([x.mean()])

    model = Collects().to(device)
    assert macs_and_mode(model, torch.ones(3, 4), torch.tensor([2, 1])) == (48, "fake")


def test_a_custom_op_without_a_fake_kernel_is_run_for_real() -> None:
    @torch.library.custom_op("torchgauge_tests::doubled", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        return x.clone() * 2

    class Calls(Base):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.torchgauge_tests.doubled(self.layer(x))

    found = tg.analyze(Calls(), inputs=torch.ones(3, 4))
    assert (found.totals.macs, found.capture.run.mode) == (48, "real")
    assert "no fake kernel (torchgauge_tests::doubled" in str(found.capture.run.reason)


class Applies(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_run_for_real_and_counted_by_their_rows(layout: torch.layout) -> None:
    x = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=layout)
    assert macs_and_mode(Applies(), x) == (5 * 16, "real")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_attention_over_rows_of_several_lengths_counts_each_row_by_its_own() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            heads = [part(x).unflatten(-1, [2, 4]).transpose(1, 2) for part in (self.query, self.key, self.value)]
            return nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2)

    x = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)], layout=torch.jagged)
    # Two products of two heads of width 4, of 2×2 and 3×3 pairs.
    assert macs_and_mode(Attends(), x) == (3 * 5 * 64 + 2 * 2 * 4 * (2 * 2 + 3 * 3), "real")


def test_loops_over_structures_keep_them() -> None:
    class Scans(Base):
        def forward(self, x: Tensor) -> Tensor:
            state, out = scan(
                lambda state, row: ({"h": torch.tanh(self.layer(row) + state["h"])}, {"row": row}),
                {"h": torch.zeros(4)},
                x,
            )
            _, again = while_loop(
                lambda i, y: i < 3,
                lambda i, y: (i + 1, {"y": self.layer(y["y"])}),
                (torch.tensor(0), {"y": state["h"]}),
            )
            function: Any = lambda row: {"a": self.layer(row)}  # noqa: E731
            return out["row"] + again["y"] + map_over(function, x)["a"]

    assert macs_and_mode(Scans(), torch.ones(3, 4)) == ((3 + 3 + 3) * 16, "fake")


def test_scan_is_followed_step_by_step() -> None:
    class Scans(Base):
        def forward(self, x: Tensor) -> Tensor:
            return scan(lambda state, row: (state + row, self.layer(state + row)), torch.zeros(4), x)[1]

    found = tg.analyze(Scans(), inputs=torch.ones(3, 4))
    assert (found.totals.macs, found.capture.run.mode) == (48, "fake")
    assert next(row for row in found.modules if row.path == "layer").calls == 3


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_a_sparse_adjacency_matrix_is_taken() -> None:
    class Spreads(Base):
        def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
            return adjacency @ self.layer(x)

    for adjacency in (torch.eye(3).to_sparse_csr(), torch.eye(3).to_sparse()):
        assert macs_and_mode(Spreads(), torch.ones(3, 4), adjacency) == (48 + 3 * 4, "fake")


def test_attributes_of_parameters_are_available() -> None:
    class Quantized(nn.Parameter):
        """Like bitsandbytes' `Int8Params`: a parameter with its own scales and methods."""

        scales: Tensor

        def restored(self) -> Tensor:
            return self.to(self.scales.dtype) * self.scales

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = torch.Tensor._make_subclass(Quantized, torch.ones(4, 4, dtype=torch.int8), False)
            weight.scales = torch.ones(4)
            self.weight = weight

        def forward(self, x: Tensor) -> Tensor:
            assert isinstance(self.weight, Quantized)
            assert isinstance(self.weight, nn.Parameter)
            return x @ self.weight.restored()

    assert macs_and_mode(Dense(), torch.ones(2, 4)) == (32, "fake")


def test_a_parameter_with_its_own_scales_and_functions() -> None:
    """Like bitsandbytes' `Params4bit`: packed bytes, a state with the scales, `__torch_function__`."""

    class State:
        def __init__(self, scales: Tensor, shape: tuple[int, int]) -> None:
            self.scales, self.shape, self.nested = scales, shape, {"offset": torch.zeros(1)}

    class Packed(nn.Parameter):
        state: State

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.Tensor._make_subclass(Packed, torch.ones(8, 1, dtype=torch.uint8), False)
            self.weight.state = State(torch.ones(4), (4, 4))
            self.bias = nn.Parameter(torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            state = self.weight.state
            self.bias.data = self.bias.data.to(x.dtype)
            halves = torch.cat([self.weight & 15, self.weight >> 4]).reshape(state.shape)
            weight = halves.to(x.dtype) * state.scales.to(x.dtype) + state.nested["offset"].to(x.dtype)
            return torch.nn.functional.linear(x, weight, self.bias)

    model = Dense()
    assert macs_and_mode(model, torch.ones(2, 4, dtype=torch.bfloat16)) == (32, "fake")
    assert model.bias.dtype == torch.float32
    assert type(model.weight.state.scales) is Tensor


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_a_real_run_leaves_attributes_of_parameters_unchanged(mode: Any) -> None:
    class Carrier(nn.Parameter):
        scales: Tensor | None

    class Takes(nn.Module):
        """Like `Linear8bitLt`, which takes the scales from its weight in its first forward."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = Carrier(torch.ones(4, 4))
            self.weight.scales = torch.ones(4)

        def forward(self, x: Tensor) -> Tensor:
            assert isinstance(self.weight, Carrier)
            assert self.weight.scales is not None
            scales, self.weight.scales = self.weight.scales, None
            return x @ self.weight * scales if x.sum() > 0 else x

    model = Takes()
    found = tg.analyze(model, inputs=torch.ones(2, 4), mode=mode)
    assert found.capture.run.mode == "real"
    assert model.weight.scales is not None
    assert torch.equal(model.weight, torch.ones(4, 4))


def test_a_parameter_that_is_replaced_in_the_forward_has_its_new_shape_and_type() -> None:
    class Grows(Base):
        def forward(self, x: Tensor) -> Tensor:
            self.layer.weight.data = torch.zeros(8, 4, dtype=torch.bfloat16)
            assert self.layer.weight.shape == (8, 4)
            return x.to(torch.bfloat16) @ self.layer.weight.T

    model = Grows()
    assert macs_and_mode(model, torch.ones(3, 4)) == (3 * 32, "fake")
    assert model.layer.weight.shape == (4, 4)


def test_a_weight_that_is_made_of_several_tensors_answers_itself() -> None:
    class Scaled(Tensor):
        """Like the quantized weights of torchao: integers and scales that look like one tensor of floats."""

        @staticmethod
        def __new__(cls, integers: Tensor, scales: Tensor) -> Scaled:
            made: Scaled = torch.Tensor._make_wrapper_subclass(cls, integers.shape, dtype=scales.dtype)
            return made

        def __init__(self, integers: Tensor, scales: Tensor) -> None:
            self.integers, self.scales = integers, scales

        def __tensor_flatten__(self) -> tuple[list[str], None]:
            return ["integers", "scales"], None

        @staticmethod
        def __tensor_unflatten__(inner: dict[str, Tensor], context: None, size: Any, stride: Any) -> Scaled:
            return Scaled(inner["integers"], inner["scales"])

        __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

        @classmethod
        def __torch_dispatch__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.detach.default:
                return Scaled(args[0].integers, args[0].scales)
            restored = [a.integers * a.scales if isinstance(a, Scaled) else a for a in args]
            return func(*restored, **(kwargs or {}))

    model = nn.Linear(4, 4, bias=False)
    model.weight = nn.Parameter(Scaled(torch.ones(4, 4, dtype=torch.int8), torch.ones(4, 1)), requires_grad=False)
    found = tg.analyze(model, inputs=torch.ones(2, 4))
    assert (found.totals.macs, found.totals.params, found.capture.run.mode) == (32, 16, "fake")
    assert [op.op for op in found.ops if op.flops] == ["aten::mul", "aten::mm"]
    assert isinstance(model.weight, Scaled)


def test_training_with_cudnn_has_a_buffer_of_weights_for_its_backward() -> None:
    """The op itself: a torch without CUDA cannot build the graph around it."""
    run = FakeRun(Recorder(ModulePaths(nn.Module())), torch.device("cpu"))
    x, hidden = run.admit(torch.ones(5, 3, 4)), run.admit(torch.ones(1, 3, 8))
    cell = run.admit(torch.ones(1, 3, 8))
    weights = [run.adopt(torch.ones(32, 4)), run.adopt(torch.ones(32, 8)), *(run.adopt(torch.ones(32)) for _ in "ab")]
    options: tuple[Any, ...] = (2, 8, 0, 1, False, 0.0, True, False, [], None)
    output, last, state, reserve, buffer = run.execute(
        torch.ops.aten._cudnn_rnn.default, x, weights, 4, None, hidden, cell, *options
    )
    assert (tuple(output.shape), tuple(last.shape), tuple(state.shape)) == ((5, 3, 8), (1, 3, 8), (1, 3, 8))
    gradients = run.execute(
        torch.ops.aten._cudnn_rnn_backward.default,
        *(x, weights, 4, buffer, hidden, cell, output, output, None, None),
        *(*options, reserve, [True, False, False, True]),
    )
    assert tuple(gradients[0].shape) == (5, 3, 4)
    assert [tuple(each.shape) for each in gradients[3]] == [(32, 4), (32, 8), (32,), (32,)]
    assert next(op.cost.macs for op in run.recorder.ops) == 5 * 3 * 32 * (4 + 8)


class Looks(nn.Module):
    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return x[index]


class Gathers(nn.Module):
    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return x.gather(0, index)


class Calls(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Tensor:
        return self.function(*args)


DOUBLE = torch.ones(2, 4, dtype=torch.float64)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (nn.ConvTranspose2d(3, 4, 3), (torch.ones(1, 5, 8, 8),)),
        (nn.ConvTranspose1d(4, 4, 3, groups=2), (torch.ones(1, 6, 8),)),
        (nn.Linear(4, 4), (DOUBLE,)),
        (nn.Linear(4, 4, bias=False), (DOUBLE,)),
        (nn.Linear(4, 4), (torch.ones(2, 4, dtype=torch.int64),)),
        (nn.LayerNorm(4), (DOUBLE,)),
        (nn.LayerNorm(4).bfloat16(), (torch.ones(2, 4),)),
        (nn.BatchNorm1d(4), (DOUBLE,)),
        (nn.GroupNorm(2, 4), (DOUBLE,)),
        (nn.Embedding(3, 4), (torch.tensor([5]),)),
        (nn.Embedding(3, 4), (torch.tensor([-1]),)),
        (Looks(), (torch.ones(3, 4), torch.tensor([5]))),
        (Gathers(), (torch.ones(3, 4), torch.tensor([[5, 0, 0, 0]]))),
        (nn.ConvTranspose2d(3, 4, 3), (torch.ones(1, 3, 8, 8, dtype=torch.float64),)),
        (nn.CrossEntropyLoss(), (torch.ones(2, 3), torch.tensor([1, 5]))),
        (nn.NLLLoss(), (torch.ones(2, 3, 4), torch.full((2, 4), 3))),
        (nn.EmbeddingBag(3, 4), (torch.tensor([[5]]),)),
        (Calls(lambda x, i: x.take(i)), (torch.ones(3, 4), torch.tensor([12]))),
        (Calls(lambda x, i: x.scatter_add(0, i, torch.ones(1, 4))), (torch.ones(3, 4), torch.full((1, 4), 3))),
        (Calls(lambda x, i: x.clone().index_add_(0, i, torch.ones(1, 4))), (torch.ones(3, 4), torch.tensor([7]))),
        (Calls(lambda i: F.one_hot(i, 3)), (torch.tensor([0, 3]),)),
        (Calls(lambda i: hot(i + 2, num_classes=3)), (torch.tensor([0, 1]),)),
        (Calls(lambda i: torch._C._nn.one_hot(i)), (torch.tensor([0, -1]),)),
        (nn.CrossEntropyLoss(), (torch.ones(2, 3), torch.tensor([1, -1]))),
        (nn.CrossEntropyLoss(), (torch.ones(2, 3), torch.tensor([1, 2], dtype=torch.int32))),
        (nn.MultiMarginLoss(), (torch.ones(2, 3), torch.tensor([0, 3]))),
        (nn.MultiLabelMarginLoss(), (torch.ones(1, 4), torch.tensor([[3, 4, -1, 1]]))),
        (nn.EmbeddingBag(4, 4, mode="sum"), (torch.tensor([1, 2]), torch.tensor([0, 7]))),
        (nn.EmbeddingBag(4, 4, mode="sum"), (torch.tensor([1, 2]), torch.tensor([1, 1]))),
        (nn.MaxUnpool2d(2), (torch.ones(1, 1, 2, 2), torch.full((1, 1, 2, 2), 99))),
        (Calls(lambda x, i: x.index_reduce(0, i, torch.ones(1, 4), "prod")), (torch.ones(3, 4), torch.tensor([3]))),
        (Calls(lambda x, mask: x.masked_scatter(mask, torch.ones(1))), (torch.ones(3), torch.ones(3) > 0)),
        (Calls(lambda x, mask: x[mask]), (torch.ones(3, 4), torch.ones(2) > 0)),
        (Calls(lambda x, n: torch.segment_reduce(x, "sum", lengths=n)), (torch.ones(4), torch.tensor([3, 3]))),
        (Calls(partial(pack_padded_sequence, batch_first=True)), (torch.ones(2, 4, 3), torch.tensor([2, 4]))),
        (Calls(partial(pack_padded_sequence, batch_first=True)), (torch.ones(2, 4, 3), torch.tensor([4, 0]))),
        (Calls(lambda x: x[:, torch.tensor([0, 4])]), (torch.ones(3, 4),)),
        (Calls(lambda x: torch.multinomial(x, 5)), (torch.ones(2, 3),)),
        (Calls(lambda x: x.roll((1, 2), (0,))), (torch.ones(3, 3),)),
        (Calls(lambda x: x & x), (torch.ones(2),)),
        (Calls(torch.relu), (torch.ones(2, dtype=torch.complex64),)),
        (Calls(lambda x: torch.where(x, x, x)), (torch.ones(2),)),
        (Calls(lambda x: torch.ones(2).add_(x)), (torch.ones(3, 2),)),
        (nn.BCELoss(), (torch.ones(2), torch.tensor([0, 1]))),
        (nn.ConvTranspose2d(3, 3, 3, output_padding=1), (torch.ones(1, 3, 4, 4),)),
        (Calls(lambda x: x.expand(3, 4).add_(1)), (torch.ones(1, 4),)),
        (
            Calls(partial(nn.functional.grid_sample, align_corners=False)),
            (torch.ones(1, 1, 3, 3), torch.ones(1, 2, 2, 2, dtype=torch.float64)),
        ),
    ],
)
def test_inputs_that_torch_refuses_are_refused(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        model.eval()(*inputs)
    with pytest.raises(tg.ForwardError):
        tg.analyze(model, inputs=inputs)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (nn.LayerNorm(4), (torch.ones(2, 4, dtype=torch.bfloat16),)),
        (nn.BatchNorm1d(4), (torch.ones(2, 4, dtype=torch.bfloat16),)),
        (Looks(), (torch.ones(3, 4), torch.tensor([-3, 2]))),
        (nn.ConvTranspose2d(3, 4, 3), (torch.ones(3, 8, 8),)),
        (nn.CrossEntropyLoss(), (torch.ones(2, 3), torch.tensor([1, -100]))),
        (nn.CrossEntropyLoss(ignore_index=-1), (torch.ones(2, 3, 4), torch.tensor([[0, 1, 2, -1]] * 2))),
        (Calls(lambda x, i: x.take(i)), (torch.ones(3, 4), torch.tensor([-12]))),
        (Calls(lambda x, i: x.index_fill(0, i, 1.0)), (torch.ones(3, 4), torch.tensor([-3]))),
        (Calls(lambda x: x.expand(3, 4).clone().add_(1)), (torch.ones(1, 4),)),
        (Calls(lambda i: F.one_hot(i, 3)), (torch.tensor([0, 2]),)),
        (Calls(lambda i: hot(i)), (torch.tensor([[0, 7]]),)),
        (nn.MultiLabelMarginLoss(), (torch.ones(1, 4), torch.tensor([[3, 0, -1, 1]]))),
        (nn.EmbeddingBag(4, 4, mode="sum"), (torch.tensor([1, 2]), torch.tensor([0, 2]))),
        (Calls(lambda x: torch.ones(3, 2).mul_(x)), (torch.ones(2),)),
        (Calls(lambda x: torch.where(x > 0, x, 0)), (torch.ones(2),)),
        (Calls(lambda x: x.half() * 2), (torch.ones(2),)),
        (Calls(lambda x: x.roll(1)), (torch.ones(3, 3),)),
        (nn.ConvTranspose2d(3, 3, 3, stride=2, output_padding=1), (torch.ones(1, 3, 4, 4),)),
    ],
)
def test_inputs_that_torch_accepts_are_accepted(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    model.eval()(*inputs)
    assert tg.analyze(model, inputs=inputs).capture.run.mode == "fake"


def test_checking_the_classes_of_one_hot_adds_no_ops_to_the_model() -> None:
    found = tg.analyze(Calls(lambda i: F.one_hot(i, 3)), inputs=torch.tensor([0, 2]))
    assert {op["op"] for op in found.ops}.isdisjoint({"aten::min", "aten::max", "aten::_local_scalar_dense"})


class Positions(nn.Module):
    """Like GPT-2: counted for any ids."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(10, 4), nn.Embedding(8, 4)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.words(input_ids) + self.positions(torch.arange(input_ids.shape[1]))


def test_of_an_input_that_is_made_up_only_what_follows_from_its_size_is_refused() -> None:
    assert tg.analyze(Positions(), input_size=(1, 8)).capture.run.mode == "fake"
    with pytest.raises(tg.ForwardError, match="index 8 is out of range for a dimension of size 8"):
        tg.analyze(Positions(), input_size=(1, 9))
    beyond = nn.Sequential(nn.Embedding(10, 4), Calls(lambda x: F.one_hot(x.argmax(-1) + 5, 3)))
    assert tg.analyze(beyond, input_size=(1, 8)).capture.run.mode == "fake"


@pytest.mark.parametrize("name", ["example_input_array", "example_inputs", "dummy_inputs"])
def test_a_models_own_example_is_the_first_input_to_try(name: str) -> None:
    model = Applies()
    setattr(model, name, {"x": torch.ones(7, 4)} if name == "dummy_inputs" else torch.ones(7, 4))
    found = tg.analyze(model)
    assert found.totals.macs == 7 * 16
    assert found.capture.inputs[0].inferred == f"the model's own {name}"
    assert tg.analyze(model, input_size=(2, 4)).totals.macs == 2 * 16


def test_an_example_may_come_from_a_method() -> None:
    class Offers(Applies):
        def example_inputs(self, batch: int = 3) -> Tensor:
            return torch.ones(batch, 4)

    class Fails(Applies):
        @property
        def dummy_inputs(self) -> Tensor:
            raise OSError("no network")

    assert tg.analyze(Offers()).totals.macs == 3 * 16
    assert tg.analyze(Fails()).totals.macs == 16


def test_failures_of_the_backward_pass_are_reported_like_those_of_the_forward() -> None:
    @torch.library.custom_op("torchgauge_test::no_gradient", mutates_args=())
    def no_gradient(x: Tensor) -> Tensor:
        return x * 2

    class Calls(Applies):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.torchgauge_test.no_gradient(super().forward(x))

    with pytest.raises(tg.ForwardError, match=r"^the backward step raised: Trying to backward through"):
        tg.analyze(Calls(), inputs=torch.ones(2, 4), mode="train")


def test_the_reason_for_a_real_run_is_one_sentence() -> None:
    class Softmax(nn.Module):
        def forward(self, x: Tensor, graph: Tensor) -> Tensor:
            return torch.sparse.softmax(graph, 1).to_dense() @ x

    run = tg.analyze(Softmax(), inputs=(torch.ones(4, 2), torch.eye(4).to_sparse())).capture.run
    assert run.mode == "real"
    assert run.reason is not None
    assert len(run.reason) < 200


OUTPUTS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "arange": lambda x, out: torch.arange(1, 6, out=out),
    "zeros": lambda x, out: torch.zeros(5, out=out),
    "linspace": lambda x, out: torch.linspace(0, 1, 5, out=out),
    "add": lambda x, out: torch.add(x[0, :, 0], 1, out=out),
    "cat": lambda x, out: torch.cat([x[0, :3, 0], x[0, :2, 0]], out=out),
    "sum": lambda x, out: torch.sum(x[0], 1, out=out),
    "product": lambda x, out: torch.mv(x[0], torch.ones(4), out=out),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_tensor_takes_the_shape_of_the_result(name: str) -> None:
    class Filled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            out = x.new()
            OUTPUTS[name](x, out)
            return self.layer(out.expand(3, 5))

    macs, mode = macs_and_mode(Filled().eval(), torch.randn(2, 5, 4))

    assert (macs, mode) == (3 * 5 * 2 + (5 * 4 if name == "product" else 0), "fake")


class InInferenceMode(nn.Module):
    steps: Tensor

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("steps", torch.arange(10.0))
        self.looks = looks

    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) + self.steps[2:6]
        with torch.inference_mode(False):
            assert torch.is_grad_enabled()
        assert not torch.is_grad_enabled()
        return x if self.looks and float(y.sum()) == 0 else y


@pytest.mark.parametrize("looks", [False, True])
def test_a_forward_in_inference_mode_may_take_views_of_a_buffer(looks: bool) -> None:
    assert tg.analyze(InInferenceMode(looks), inputs=torch.ones(2, 4), advice=False).totals.macs == 32
    assert InInferenceMode(looks)(torch.ones(2, 4)).is_inference()


def raising(name: str, error: type[Exception]) -> type[nn.Module]:
    def asked(self: nn.Module) -> Any:
        raise error(f"no {name}")

    return type("Raises", (nn.Sequential,), {name: property(asked)})


class AsksItself(nn.Sequential):
    """Its `__getattr__` raises what no caller of getattr expects."""

    def __init__(self, *layers: nn.Module, error: type[Exception] = KeyError) -> None:
        super().__init__(*layers)
        self.error = error

    def __getattr__(self, name: str) -> Any:
        if name in ("main_input_name", "config", "original_name", "pretrained_cfg", "default_cfg", "dtype"):
            raise self.error(name)
        return super().__getattr__(name)


@pytest.mark.parametrize("error", [RuntimeError, KeyError, NotImplementedError, RecursionError])
@pytest.mark.parametrize("name", ["config", "device", "dtype", "main_input_name", "pretrained_cfg"])
def test_a_property_that_raises_is_as_good_as_absent(name: str, error: type[Exception]) -> None:
    assert tg.analyze(raising(name, error)(nn.Linear(4, 4)), input_size=(2, 4)).totals.macs == 32


@pytest.mark.parametrize("error", [RuntimeError, KeyError])
def test_getattr_may_raise_any_error(error: type[Exception]) -> None:
    assert tg.analyze(AsksItself(nn.Linear(4, 4), error=error)).totals.macs == 16


def in_threads(layers: nn.ModuleList, x: Tensor) -> list[Tensor]:
    results: dict[int, Tensor] = {}

    def run(place: int) -> None:
        results[place] = layers[place](x)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(layers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[place] for place in range(len(layers))]


def in_a_new_pool(layers: nn.ModuleList, x: Tensor) -> list[Tensor]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda layer: layer(x), layers))


POOL = ThreadPoolExecutor(2)


def in_a_pool_with_threads(layers: nn.ModuleList, x: Tensor) -> list[Tensor]:
    return [future.result() for future in [POOL.submit(layer, x) for layer in layers]]


def beside_a_daemon(layers: nn.ModuleList, x: Tensor) -> list[Tensor]:
    ended = threading.Event()
    monitor = threading.Thread(target=ended.wait, daemon=True)
    monitor.start()
    results = [layer(x) for layer in layers]
    ended.set()
    monitor.join()
    return results


class InThreads(nn.Module):
    def __init__(self, run: Any, looks: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.run, self.looks = run, looks

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.run(self.layers, x)
        return x if self.looks and float(first.sum()) == 0 else first + second


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("run", [in_threads, in_a_new_pool, in_a_pool_with_threads, beside_a_daemon])
def test_work_in_threads_is_counted_with_its_modules(run: Any, looks: bool) -> None:
    POOL.submit(int).result()
    found = tg.analyze(InThreads(run, looks), inputs=torch.ones(2, 4), advice=False)
    assert {row["path"]: row["macs"] for row in found.modules if row["path"].startswith("layers.")} == {
        "layers.0": 32,
        "layers.1": 32,
    }


def test_an_error_in_a_pool_is_that_of_the_forward() -> None:
    def fails(layers: nn.ModuleList, x: Tensor) -> list[Tensor]:
        return in_a_new_pool(layers, x[:, :2])

    with pytest.raises(tg.ForwardError, match="takes 4 features and got 2"):
        tg.analyze(InThreads(fails, looks=False), inputs=torch.ones(2, 4))


def test_threads_that_wait_for_each_other_are_an_error_and_no_standstill() -> None:
    def waits(layers: nn.ModuleList, x: Tensor) -> list[Tensor]:
        given: queue.Queue[Tensor] = queue.Queue()
        taker = threading.Thread(target=given.get)
        taker.start()
        given.put(x)
        return [layer(x) for layer in layers]

    with pytest.raises(tg.ForwardError, match="wait for each other"):
        tg.analyze(InThreads(waits, looks=False), inputs=torch.ones(2, 4))


def test_weights_that_accelerate_offloads_are_loaded_by_its_hooks() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)).eval()
    accelerate.cpu_offload(model, execution_device="cpu")
    assert tg.analyze(model, inputs=torch.ones(2, 4), advice=False).totals.macs == 2 * 64
    assert all(parameter.is_meta for parameter in model.parameters())
