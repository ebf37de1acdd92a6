"""The counters of fvcore: equal to the original where it is right, right where it is not."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.jit._trace import TracerWarning
from torch.nn import functional as F

from torchgauge.compat.fvcore import ActivationCountAnalysis, FlopCountAnalysis
from torchgauge.compat.fvcore.nn import activation_count, flop_count


class Documented(nn.Module):
    """The example of fvcore's own documentation."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(in_features=1000, out_features=10)
        self.conv = nn.Conv2d(in_channels=3, out_channels=10, kernel_size=1)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.act(self.conv(x)).flatten(1))


class Function(nn.Module):
    """A function of its inputs, as a model."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        inner = nn.Linear(10, 10)
        self.first, self.second = nn.Sequential(inner), nn.Sequential(inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + self.second(x)


class Unusual(nn.Module):
    """A module that is called through another method, and one that is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.box = nn.ModuleDict({"fc": nn.Linear(10, 2)})
        self.unused = nn.Linear(3, 3)
        self.identity = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.box["fc"](self.identity(x))


class Looking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 2 if self.fc(x).item() < 1e6 else x


def flops_of(function: Any, *inputs: torch.Tensor) -> dict[str, float]:
    return dict(FlopCountAnalysis(Function(function), inputs).by_operator())


def test_the_documented_example_gives_the_documented_counts() -> None:
    flops = FlopCountAnalysis(Documented(), (torch.randn(1, 3, 10, 10),))
    assert flops.total() == 13000
    assert flops.total("fc") == 10000
    assert flops.by_operator() == Counter({"linear": 10000, "conv": 3000})
    assert flops.by_module() == Counter({"": 13000, "fc": 10000, "conv": 3000, "act": 0})
    assert flops.by_module_and_operator() == {
        "": Counter({"linear": 10000, "conv": 3000}),
        "fc": Counter({"linear": 10000}),
        "conv": Counter({"conv": 3000}),
        "act": Counter(),
    }
    activations = ActivationCountAnalysis(Documented(), (torch.randn(1, 3, 10, 10),))
    assert activations.by_module() == Counter({"": 1010, "fc": 10, "conv": 1000, "act": 0})


def test_one_multiply_add_is_one_flop() -> None:
    x, y = torch.randn(2, 20, 10), torch.randn(10, 7)
    assert flops_of(torch.matmul, x, y) == {"matmul": 2 * 20 * 10 * 7}
    assert flops_of(torch.mm, x[0], y) == {"mm": 20 * 10 * 7}
    assert flops_of(torch.bmm, x, x.transpose(1, 2)) == {"bmm": 2 * 20 * 10 * 20}
    assert flops_of(lambda a, b: torch.einsum("nct,ncp->ntp", a, b), x, x) == {"einsum": 2 * 20 * 10 * 10}
    summed_first = flops_of(
        lambda a, b: torch.einsum("nctw,ntg->ncg", a, b), torch.ones(2, 3, 4, 5), torch.ones(2, 4, 6)
    )
    assert summed_first == {"einsum": 2 * 3 * 4 * 6}
    assert flops_of(lambda a, b: F.conv_transpose1d(a, b), torch.randn(2, 3, 5), torch.randn(3, 4, 2)) == {
        "conv": 2 * 5 * 3 * 4 * 2
    }


@pytest.mark.parametrize(("train", "affine", "rate"), [(False, True, 2), (False, False, 1), (True, True, 5)])
def test_batch_norm_counts_by_the_mode_the_model_is_in(train: bool, affine: bool, rate: int) -> None:
    model = nn.BatchNorm2d(3, affine=affine).train(train)
    assert FlopCountAnalysis(model, torch.randn(2, 3, 4, 4)).total() == rate * 96
    assert model.training is train


def test_other_norms_and_elementwise_ops_count_by_element() -> None:
    x = torch.randn(2, 4, 6, 6)
    assert FlopCountAnalysis(nn.GroupNorm(2, 4), x).total() == 5 * x.numel()
    assert FlopCountAnalysis(nn.InstanceNorm2d(4), x).total() == 4 * x.numel()
    assert FlopCountAnalysis(nn.LayerNorm(6, elementwise_affine=False), x).total() == 4 * x.numel()
    assert FlopCountAnalysis(nn.AdaptiveAvgPool2d(1), x).by_operator() == {"adaptive_avg_pool2d": x.numel()}
    assert FlopCountAnalysis(nn.Upsample(scale_factor=2, mode="bilinear"), x).total() == 4 * 4 * x.numel()
    assert FlopCountAnalysis(nn.Upsample(scale_factor=2), x).total() == 4 * x.numel()


def test_an_unbatched_convolution_is_not_multiplied_by_its_channels() -> None:
    model = nn.Conv2d(3, 8, 3)
    assert FlopCountAnalysis(model, torch.randn(3, 8, 8)).total() == 8 * 36 * 27


def test_a_matrix_product_counts_the_batch_of_its_second_operand() -> None:
    assert flops_of(torch.matmul, torch.randn(3, 4), torch.randn(5, 4, 2)) == {"matmul": 5 * 3 * 4 * 2}
    assert flops_of(torch.matmul, torch.randn(4), torch.randn(4)) == {"matmul": 4}


def test_attention_rnns_and_padded_convolutions_are_not_zero() -> None:
    q = torch.randn(1, 2, 5, 4)
    assert flops_of(F.scaled_dot_product_attention, q, q, q) == {"scaled_dot_product_attention": 2 * 2 * 5 * 5 * 4}
    lstm = FlopCountAnalysis(nn.LSTM(3, 4), torch.randn(6, 1, 3))
    assert lstm.by_operator() == {"lstm": 6 * 16 * (3 + 4)}
    same = FlopCountAnalysis(nn.Conv2d(3, 8, 3, padding="same"), torch.randn(1, 3, 8, 8))
    assert same.by_operator() == {"conv": 64 * 8 * 27}
    assert flops_of(torch.baddbmm, torch.randn(2, 3, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5)) == {
        "baddbmm": 2 * 3 * 4 * 5
    }


def test_flop_count_gives_giga_flops_and_what_was_skipped() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Sigmoid())
    found, skipped = flop_count(model, (torch.rand(10, 5),))
    assert found == {"linear": 200 / 1e9}
    assert skipped == {"aten::sigmoid": 1}
    custom, skipped = flop_count(model, (torch.rand(10, 5),), {"aten::sigmoid": lambda i, o: Counter(sigmoid=10)})
    assert custom["sigmoid"] == 10 / 1e9
    assert not skipped
    activations, _ = activation_count(model, (torch.rand(10, 5),))
    assert activations == {"linear": 40 / 1e6}


def test_a_shared_module_counts_for_its_first_name_or_for_its_callers() -> None:
    model, x = Shared(), torch.randn(1, 10)
    owner = FlopCountAnalysis(model, x)
    assert owner.by_module() == {"": 200, "first": 200, "first.0": 200, "second": 0}
    assert owner.total("second.0") == 200
    assert owner.canonical_module_name("second.0") == "first.0"
    caller = owner.copy().ancestor_mode("caller")
    assert caller.by_module() == {"": 200, "first": 100, "first.0": 200, "second": 100}


def test_uncalled_modules_are_those_that_did_not_run() -> None:
    model, x = Unusual(), torch.randn(1, 10)
    assert FlopCountAnalysis(model, x).uncalled_modules() == {"unused"}
    assert FlopCountAnalysis(model, x).ancestor_mode("caller").uncalled_modules() == {"unused", "box"}


def test_work_whose_result_does_not_reach_the_output_is_counted() -> None:
    analysis = FlopCountAnalysis(Looking(), torch.randn(1, 10)).unsupported_ops_warnings(False)
    assert analysis.by_module() == {"": 10, "fc": 10}
    assert not analysis.uncalled_modules()


def test_data_parallel_keeps_its_names() -> None:
    flops = FlopCountAnalysis(nn.DataParallel(Documented()).cpu(), torch.randn(1, 3, 10, 10))
    assert flops.total() == flops.total("module") == 13000
    assert flops.total("module.fc") == 10000
    assert not [op for op in flops.unsupported_ops() if op.startswith("profiler::")]


def test_warnings_go_to_the_log_and_can_be_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    analysis = FlopCountAnalysis(Unusual(), torch.randn(1, 10))
    with caplog.at_level(logging.WARNING):
        analysis.total()
        FlopCountAnalysis(nn.Sigmoid(), torch.randn(1)).total()
    assert "never called" in caplog.text
    assert "unused" in caplog.text
    assert "Unsupported operator aten::sigmoid encountered 1 time(s)" in caplog.text
    caplog.clear()
    quiet = analysis.copy().uncalled_modules_warnings(False).unsupported_ops_warnings(False)
    assert quiet.total() == 20
    assert not caplog.text


def test_a_model_that_reads_tensor_values_warns_as_a_trace_does() -> None:
    analysis = FlopCountAnalysis(Looking(), torch.randn(1, 10)).unsupported_ops_warnings(False)
    with pytest.warns(TracerWarning, match="reads tensor values"):
        analysis.tracer_warnings("all").total()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert analysis.copy().tracer_warnings("no_tracer_warning").total() == 10
    assert not caught


def test_wrong_use_raises_what_fvcore_raises() -> None:
    analysis = FlopCountAnalysis(nn.Linear(3, 4), torch.randn(2, 3))
    with pytest.raises(RuntimeError, match="call total"):
        analysis.unsupported_ops()
    with pytest.raises(KeyError, match="nothing"):
        analysis.total("nothing")
    with pytest.raises(AssertionError, match="by its name"):
        analysis.total(nn.ReLU())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pairs"):
        analysis.set_op_handle("aten::linear")
    with pytest.raises(ValueError, match="owner, caller"):
        analysis.ancestor_mode("sibling")
    with pytest.raises(ValueError, match="no_tracer_warning"):
        analysis.tracer_warnings("some")
    with pytest.raises(ValueError, match="narrow"):
        analysis.set_op_handle("aten::linear", lambda i, o: Counter({"linear": torch.ones(1)})).total()
    with pytest.raises(AttributeError, match=r"torch\.nn\.Module instance, got type"):
        FlopCountAnalysis(nn.Linear, torch.randn(2, 3))  # type: ignore[arg-type]


def test_a_model_that_fails_raises_its_own_error_and_keeps_nothing() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 6))
    with pytest.raises(RuntimeError) as failure:
        FlopCountAnalysis(model, torch.randn(2, 3)).total()
    assert "forward() of '1' (Linear) raised" in failure.value.__notes__[0]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_names_that_scripts_import_from_the_module_of_the_analysis() -> None:
    from torchgauge.compat.fvcore.nn.jit_analysis import _IGNORED_OPS, _named_modules_with_dup

    assert {"aten::relu", "aten::view"} <= _IGNORED_OPS
    assert isinstance(_IGNORED_OPS, set)
    layer = nn.Linear(2, 2)
    assert [name for name, _ in _named_modules_with_dup(nn.Sequential(layer, layer))] == ["", "0", "1"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("package", ["torchgauge.compat.fvcore", "fvcore"])
def test_a_scoped_graph_has_the_ops_under_the_names_of_their_modules(package: str) -> None:
    pytest.importorskip(package)
    tool: Any = importlib.import_module(f"{package}.nn.jit_analysis")
    layer = nn.Linear(3, 3)
    model = nn.Sequential(nn.Sequential(layer, nn.ReLU()), layer)
    aliases = {module: name for name, module in model.named_modules()} | {layer: "shared"}
    graph = tool._get_scoped_trace_graph(model, (torch.randn(2, 3),), aliases)
    ops = [node for node in graph.nodes() if node.kind().startswith("aten::")]
    assert [(node.kind(), node.scopeName()) for node in ops] == [
        ("aten::linear", "/0/shared"),
        ("aten::relu", "/0/0.1"),
        ("aten::linear", "/shared"),
    ]
    assert [value.type().sizes() for value in ops[0].outputs()] == [[2, 3]]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("package", ["torchgauge.compat.fvcore", "fvcore"])
def test_an_analysis_knows_the_name_of_every_module(package: str) -> None:
    pytest.importorskip(package)
    tool: Any = importlib.import_module(f"{package}.nn.jit_analysis")
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, layer)
    aliases = tool.JitModelAnalysis(model, (torch.randn(2, 3),))._aliases
    assert aliases == {"": "", model: "", "0": "0", layer: "0", "1": "0"}
