"""When a run is fake, when it is real, in which type and mode, and what a failure says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchgauge as tg
from tests import zoo
from torchgauge.capture import Request, trace
from torchgauge.source import Candidate


def test_a_branch_on_float_data_is_run_for_real_and_said_so() -> None:
    model = zoo.BranchesOnFloat()
    low, high = tg.analyze(model, inputs=-torch.ones(2, 8)), tg.analyze(model, inputs=torch.ones(2, 8))
    assert (low.totals.macs, high.totals.macs) == (2 * 8 * 32, 2 * 8 * 16)
    assert low.capture.run.mode == "real"
    assert "reads tensor values" in str(low.capture.run.reason)


def test_a_branch_on_float_data_on_meta_says_what_to_do() -> None:
    with pytest.raises(tg.ForwardError, match=r"meta device.*real parameters"):
        tg.analyze(zoo.BranchesOnFloat().to("meta"), input_size=(2, 8))


def test_a_registry_model_on_meta_that_reads_tensor_values_is_built_for_real() -> None:
    request = Request(torch.device("cpu"), build_real=zoo.BranchesOnFloat)
    traced = trace(zoo.BranchesOnFloat().to("meta"), [Candidate((-torch.ones(2, 8),), {}, None)], request)
    assert (traced.run.mode, sum(op.cost.macs for op in traced.ops)) == ("real", 2 * 8 * 32)


def test_a_real_run_puts_back_what_the_model_wrote() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.bias = nn.Parameter(torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.bias.add_(x.mean(0))
            return self.norm(x) + self.bias if bool(x.sum() != 0) else x

    # The fixture compares every parameter and buffer, bit for bit.
    assert tg.analyze(Writes(), inputs=torch.randn(8, 4), mode="train").capture.run.mode == "real"


def test_tensors_kept_by_the_forward_are_gone_afterwards() -> None:
    model = zoo.Remembers()
    tg.analyze(model, input_size=(2, 4))
    assert (model.cache, model.history, hasattr(model, "last")) == ({}, [], False)


def test_a_model_that_raises_half_way_is_unharmed() -> None:
    with pytest.raises(tg.ForwardError, match="half-way"):
        tg.analyze(zoo.Raises(), input_size=(2, 4))


def test_a_wrong_shape_names_the_module_and_what_it_saw() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(5, 5)))
    with pytest.raises(tg.ForwardError, match=r"'1\.1' \(Linear\) raised, given 2×4 float32") as caught:
        tg.analyze(model, input_size=(2, 4))
    assert caught.value.module == "1.1"


def test_a_wrong_type_names_the_module_and_what_it_saw() -> None:
    with pytest.raises(tg.ForwardError, match=r"'embed' \(Embedding\) raised, given 2×4 float32"):
        tg.analyze(zoo.Tied(), inputs=torch.ones(2, 4))


def test_figures_are_the_same_for_real_and_meta_parameters() -> None:
    for build, size in ((zoo.Residual, (2, 8)), (zoo.HandAttention, (2, 6, 32)), (zoo.Recurrent, (5, 2, 12))):
        model = build()
        real, meta = tg.analyze(model, input_size=size), tg.analyze(model.to("meta"), input_size=size)
        assert real.ops == meta.ops
        assert real.modules == meta.modules
        assert real.totals == meta.totals


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_autocast_is_seen(device: str) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        found = tg.analyze(zoo.Residual().to(device), input_size=(2, 8))
    assert {op.dtype for op in found.ops if op.op == "aten::addmm"} == {"bfloat16"}
    assert found.totals.macs == 6 * 2 * 64


def test_another_type_is_taken_on_without_touching_the_model() -> None:
    found = tg.analyze(zoo.Residual(), input_size=(2, 8), dtype="bf16")
    assert {op.dtype for op in found.ops} == {"bfloat16"}
    assert found.capture.inputs[0].spec.dtype == "bfloat16"


@pytest.mark.parametrize("model", [zoo.Residual, zoo.BranchesOnFloat], ids=["fake", "real"])
def test_parameters_have_the_type_that_their_ops_read(model: type[nn.Module]) -> None:
    found = tg.analyze(model(), input_size=(2, 8), dtype="bf16")
    assert {row["dtype"] for row in found.to_dict()["parameters"]} == {"bfloat16"}
    assert found.totals.param_bytes == found.modules[0].param_bytes == 2 * found.totals.params
    assert "bfloat16" in str(found)
    assert "float32" not in str(found)


def test_macs_do_not_depend_on_the_surrounding_mode() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
    counts = set()
    for context in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        for training in (True, False):
            encoder.train(training)
            with context():
                counts.add(tg.analyze(encoder, input_size=(2, 5, 32)).totals.macs)
    layer = 10 * (4 * 32 * 32 + 2 * 32 * 64) + 2 * 2 * 5 * 5 * 32
    assert counts == {2 * layer}


def test_padding_masks_do_not_change_the_count() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    bare = tg.analyze(encoder, input_size=(2, 5, 32)).totals.macs
    masked = tg.analyze(encoder, inputs=torch.ones(2, 5, 32), kwargs={"src_key_padding_mask": mask})
    assert masked.totals.macs == bare


def test_an_unknown_mode_or_device_is_refused() -> None:
    with pytest.raises(tg.UsageError, match="no mode 'fast'"):
        tg.analyze(zoo.Residual(), input_size=(2, 8), mode="fast")
    with pytest.raises(tg.InputError, match="no device 'gpu'"):
        tg.analyze(zoo.Residual(), input_size=(2, 8), device="gpu")


def test_a_device_that_torch_was_built_without_is_refused() -> None:
    if torch.version.cuda is not None:
        pytest.skip("this torch was built with CUDA")
    with pytest.raises(tg.InputError, match=r"CPU-only.*same on the CPU"):
        tg.analyze(zoo.Residual(), input_size=(2, 8), device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")
def test_tensors_pretend_to_be_on_the_device_asked_for() -> None:
    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.device.type == torch.arange(3, device=x.device).device.type == "cuda"
            return x + 1

    assert tg.analyze(Asks(), input_size=(2, 8), device="cuda").capture.run.device == "cuda:0"
