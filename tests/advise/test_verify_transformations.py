"""What each transformation makes of a model with the fault: the same outputs, and what was promised."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.advise.trying import CPU, bench, row
from torchgauge import analyze
from torchgauge.advise import Evidence, advise
from torchgauge.measure.absence import Absent
from torchgauge.measure.subject import Subject
from torchgauge.verify import TRANSFORMATIONS, NotApplicableError, load_transformations
from torchgauge.verify.code import optimised
from torchgauge.verify.judging import compared, judge
from torchgauge.verify.sides import Bench, Side
from torchgauge.verify.switches import Switches
from torchgauge.verify.transformations.compiling import positional
from torchgauge.verify.transformations.precision import require_bfloat16

pytestmark = pytest.mark.usefixtures("one_thread")
load_transformations()


def advised(model: nn.Module, rule: str, *args: Any, **settings: Any) -> dict[str, Any]:
    """The advice of a rule on this model."""
    found = analyze(model, inputs=args, progress=False, advice=False, **settings)
    return next(a.member() for a in advise(Evidence(found.capture, found)) if a.rule == rule)


def changed(place: Bench, advice: dict[str, Any]) -> Side:
    applied = TRANSFORMATIONS[advice["rule"]].apply(place.trial(advice))
    return place.changed([applied])


def apart(place: Bench, side: Side) -> float:
    error, _ = compared(place.original(), side, 0.0)
    assert error.relative is not None, error.reason
    return error.relative


def not_applicable(place: Bench, advice: dict[str, Any]) -> str:
    with pytest.raises(NotApplicableError) as caught:
        changed(place, advice)
    return str(caught.value)


def kinds(side: Side) -> list[str]:
    return [type(module).__name__ for module in side.subject.model.modules()]


def lively(model: nn.Module) -> nn.Module:
    """Running statistics and affine parameters that show whether they were used."""
    generator = torch.Generator().manual_seed(1)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point() and tensor.dim() == 1:
            tensor.data = torch.rand(tensor.shape, generator=generator) + 0.5
    return model.eval()


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_batch_norms_are_folded_into_plain_and_transposed_convolutions() -> None:
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 2, 3), nn.BatchNorm2d(2))
    model = lively(nn.Sequential(*layers))
    place = bench(model, x(2, 3, 8, 8))

    side = changed(place, advised(model, "conv-bn-fusion", x(2, 3, 8, 8)))

    assert kinds(side).count("Identity") == 2
    assert apart(place, side) < 1e-6


def test_a_batch_norm_is_folded_into_the_linear_layer_before_it() -> None:
    model = lively(nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2)))
    place = bench(model, x(16, 8))

    side = changed(place, advised(model, "linear-bn-fusion", x(16, 8)))

    assert kinds(side).count("BatchNorm1d") == 0
    assert apart(place, side) < 1e-6


def test_a_batch_norm_is_folded_into_the_layer_behind_it() -> None:
    model = lively(nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, bias=False), nn.ReLU()))
    place = bench(model, x(2, 3, 8, 8))

    side = changed(place, advised(model, "norm-linear-fusion", x(2, 3, 8, 8)))

    assert "BatchNorm2d" not in kinds(side)
    assert apart(place, side) < 1e-6


def test_a_norm_that_does_more_is_left_alone() -> None:
    class Odd(nn.BatchNorm2d):
        pass

    model = lively(nn.Sequential(nn.Conv2d(3, 4, 3), Odd(4)))
    place = bench(model, x(1, 3, 8, 8))

    assert "that do more" in not_applicable(place, advised(model, "conv-bn-fusion", x(1, 3, 8, 8)))


class Gelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))


class LayerNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        spread = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.gamma * ((x - mean) * torch.rsqrt(spread + 1e-3)) + self.beta


def test_a_module_that_is_a_gelu_is_replaced_by_one() -> None:
    model = nn.Sequential(nn.Linear(4, 256), Gelu(), nn.Linear(256, 4)).eval()
    place = bench(model, x(64, 4))

    side = changed(place, advised(model, "gelu-by-hand", x(64, 4)))

    assert kinds(side)[2] == "GELU"
    assert apart(place, side) < 1e-5


def test_a_gelu_amid_a_forward_cannot_be_replaced() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.gelu = nn.Linear(4, 256), Gelu()

        def forward(self, x: Tensor) -> Tensor:
            return Gelu.forward(self.gelu, self.linear(x))

    model = Block().eval()
    place = bench(model, x(64, 4))

    assert "only its author" in not_applicable(place, advised(model, "gelu-by-hand", x(64, 4)))


def test_a_module_that_is_a_layer_norm_uses_torchs() -> None:
    model = lively(nn.Sequential(nn.Linear(4, 64), LayerNorm(64)))
    place = bench(model, x(64, 4))

    side = changed(place, advised(model, "norm-by-hand", x(64, 4)))

    assert "layer_norm" in side.subject.model[1].forward.__code__.co_names  # type: ignore[index]
    assert apart(place, side) < 1e-5


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attention(x, x, x, need_weights=True)[0]
        return y


def test_attention_is_told_that_nobody_wants_its_weights() -> None:
    model = Attending().eval()
    place = bench(model, x(2, 8, 16))
    advice = row("attention-by-hand", module="attention")

    side = changed(place, advice)

    with torch.no_grad():
        assert side.subject.model.attention(*[x(2, 8, 16)] * 3)[1] is None  # type: ignore[operator]
    assert apart(place, side) < 1e-5


class Pretrained(nn.Module):
    """The two ways to attend that a model of transformers has."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(_attn_implementation="eager")

    def set_attn_implementation(self, name: str) -> None:
        self.config._attn_implementation = name

    def forward(self, x: Tensor) -> Tensor:
        if self.config._attn_implementation == "sdpa":
            return nn.functional.scaled_dot_product_attention(x, x, x)
        return torch.softmax(x @ x.mT / x.shape[-1] ** 0.5, -1) @ x


def test_a_model_of_transformers_is_switched_to_fused_attention() -> None:
    model = nn.Sequential(Pretrained()).eval()
    place = bench(model, x(2, 32, 8))

    side = changed(place, advised(model, "attention-by-hand", x(2, 32, 8)))

    assert side.subject.model[0].config._attn_implementation == "sdpa"  # type: ignore[index]
    assert model[0].config._attn_implementation == "eager"  # type: ignore[union-attr]
    assert apart(place, side) < 1e-5


def test_models_of_timm_are_switched_to_fused_attention() -> None:
    class Attention(nn.Module):
        fused_attn = False

        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    model = nn.Sequential(Attention())
    side = changed(bench(model, x(2, 2)), row("attention-by-hand", module="0"))

    assert side.subject.model[0].fused_attn is True  # type: ignore[index]
    assert "only its author" in not_applicable(bench(nn.ReLU(), x(2, 2)), row("attention-by-hand"))


def test_channels_last_turns_the_weights_and_the_images() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    place = bench(model, x(1, 3, 8, 8))

    side = changed(place, row("channels-last"))
    with torch.no_grad():
        output = side.subject()

    assert side.subject.model[0].weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[index]
    assert output.is_contiguous(memory_format=torch.channels_last)
    assert apart(place, side) < 1e-6


def test_strided_access_is_mended_by_the_layout_where_the_advice_says_so() -> None:
    place = bench(nn.Conv2d(3, 4, 3), x(1, 3, 8, 8))

    side = changed(place, row("strided-access", code="model.to(memory_format=torch.channels_last)"))

    assert side.subject.model.weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[operator]
    assert "only its author" in not_applicable(place, row("strided-access"))


def test_settings_are_part_of_the_side_and_not_of_the_process() -> None:
    before = Switches.now()
    place = bench(nn.Linear(2, 2), x(2, 2))

    faster = changed(place, row("tf32-off"))
    single = changed(place, row("thread-oversubscription", code="torch.set_num_threads(1)"))

    assert faster.switches.matmul_precision == "high"
    assert single.switches.threads == 1
    assert Switches.now() == before
    assert "how many" in not_applicable(place, row("thread-count"))


class Casting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(x(64, 64).double())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.table.float()


def test_a_weight_is_kept_in_the_type_it_is_used_in() -> None:
    model = Casting().eval()
    place = bench(model, x(2, 64))

    side = changed(place, advised(model, "weight-cast", x(2, 64)))

    assert side.subject.model.table.dtype is torch.float32
    assert model.table.dtype is torch.float64
    assert apart(place, side) == 0


def test_equal_weights_are_shared_and_their_bytes_are_saved() -> None:
    a, b = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    b.weight.data.copy_(a.weight.data)
    wrapped = Summed(nn.ModuleDict({"a": a, "b": b}))
    place = bench(wrapped, x(2, 8))
    advice = row(
        "tied-weights", "param_bytes", module="parts.b", weight="parts.b.weight", same_values_as="parts.a.weight"
    )
    verdict = judge(place, [TRANSFORMATIONS["tied-weights"].apply(place.trial(advice))], "param_bytes", 1e-3)

    assert verdict.gain == 0.5
    assert verdict.is_kept
    assert verdict.error.relative == 0
    assert verdict.time is not None


class Summed(nn.Module):
    def __init__(self, parts: nn.ModuleDict) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = sum(part(x) for part in self.parts.values())
        return y


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.used(x)
        return y


def test_what_is_not_used_is_taken_out_and_its_bytes_are_saved() -> None:
    model = Half().eval()
    place = bench(model, x(2, 8))
    advice = advised(model, "unused-parameters", x(2, 8))
    verdict = judge(place, [TRANSFORMATIONS["unused-parameters"].apply(place.trial(advice))], "param_bytes", 1e-3)

    assert verdict.gain == 0.5
    assert (verdict.before, verdict.after) == (2 * 72 * 4, 72 * 4)
    assert verdict.is_kept


def test_a_parametrization_is_computed_once() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(64, 64))).eval()
    place = bench(model, x(1, 64))

    side = changed(place, advised(model, "recomputed-weight", x(1, 64)))

    assert [name for name, _ in side.subject.model.named_parameters()] == ["0.bias", "0.weight"]
    assert apart(place, side) < 1e-6


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(32, 32), (4, 32)),
        (nn.Conv2d(8, 32, 3, stride=2, padding=1), (1, 8, 9, 9)),
        (nn.Conv1d(32, 32, 1, bias=False), (1, 32, 5)),
    ],
)
def test_a_layer_of_low_rank_becomes_two(layer: Any, shape: tuple[int, ...]) -> None:
    flat = layer.weight.data.flatten(1)
    layer.weight.data = (x(flat.shape[0], 4) @ x(4, flat.shape[1])).view_as(layer.weight)
    model = nn.Sequential(layer).eval()
    place = bench(model, x(*shape))
    advice = row("low-rank", "param_bytes", module="0", weight="0.weight", rank=4)
    verdict = judge(place, [TRANSFORMATIONS["low-rank"].apply(place.trial(advice))], "param_bytes", 0.05)

    before, after = flat.numel(), 4 * sum(flat.shape)
    bias = 0 if layer.bias is None else 32
    assert verdict.gain == pytest.approx(1 - (after + bias) / (before + bias))
    assert verdict.error.relative is not None
    assert verdict.error.relative < 1e-4
    assert verdict.is_kept


@pytest.mark.parametrize(("name", "limit"), [("int8", 0.01), ("fp8_e4m3", 0.05)])
def test_linear_layers_are_kept_in_eight_bits(name: str, limit: float) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval()
    place = bench(model, x(4, 64))
    advice = row("quantize-weights", "param_bytes", module="0", weight="0.weight", format=name)
    verdict = judge(place, [TRANSFORMATIONS["quantize-weights"].apply(place.trial(advice))], "param_bytes", 0.05)

    # Codes of one byte, a scale of four for each row, and the bias as it was.
    assert verdict.after == 64 * 64 + 2 * 64 * 4
    assert verdict.error.relative is not None
    assert 0 < verdict.error.relative < limit
    assert "8 bits" in not_applicable(place, row("quantize-weights", module="0", format="nf4"))


def test_the_smallest_weights_are_removed_and_the_rest_is_stored_in_compressed_rows() -> None:
    linear = nn.Linear(64, 16, bias=False)
    linear.weight.data.copy_(torch.where(x(16, 64) > 1.5, x(16, 64), 1e-6 * x(16, 64)))
    model = nn.Sequential(linear).eval()
    kept = int((linear.weight.abs() > 1e-3).sum())
    share = round(1 - kept / 1024, 3)
    place = bench(model, x(4, 64))
    advice = row("unstructured-pruning", "param_bytes", module="0", weight="0.weight", removable_share=share)
    applied = TRANSFORMATIONS["unstructured-pruning"].apply(place.trial(advice))
    verdict = judge(place, [applied], "param_bytes", 0.05)

    left = 1024 - round(share * 1024)
    assert verdict.after == 8 * left + 8 * 17
    assert verdict.is_kept
    assert not applied.in_plan


def test_only_sparse_tensor_cores_compute_two_of_four() -> None:
    place = bench(nn.Linear(16, 16), x(4, 16))

    assert "Ampere" in not_applicable(place, row("two-four-sparsity", weight="weight"))


def test_odd_sizes_are_padded_and_cut_off_again() -> None:
    model = nn.Sequential(nn.Linear(100, 70), nn.ReLU(), nn.Linear(70, 128, bias=False)).eval()
    place = bench(model, x(4, 100))
    places: list[dict[str, Any]] = [{"module": path, "ops": [], "weight": None, "evidence": {}} for path in ("0", "2")]

    side = changed(place, row("odd-dimensions", module="0", places=places))

    shapes = [tuple(weight.shape) for name, weight in side.subject.model.named_parameters() if "weight" in name]
    assert shapes == [(128, 128), (128, 128)]
    assert apart(place, side) < 1e-6


def test_values_that_fit_a_narrower_type_are_stored_in_it_without_loss() -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False)).eval()
    model[0].weight.data = model[0].weight.data.bfloat16().float()
    found = analyze(model, inputs=(x(2, 64),), weights=True, advice=False, progress=False)
    advice = next(a.member() for a in advise(Evidence(found.capture, found)) if a.rule == "narrower-type")
    place = bench(model, x(2, 64))
    place = Bench(place.subject, found.capture, False, 0.02)
    applied = TRANSFORMATIONS["narrower-type"].apply(place.trial(advice))
    verdict = judge(place, [applied], "param_bytes", 0.0)

    assert verdict.gain == 0.5
    assert verdict.error.relative == 0
    assert verdict.is_kept


def test_a_larger_batch_gives_the_same_samples() -> None:
    model = nn.Sequential(nn.Linear(8, 4)).eval()
    place = bench(model, x(2, 8))
    figures: dict[str, Any] = {"batch": 2, "knee_batch": 8, "peak_activation_bytes_there": 1024}

    side = changed(place, row("batch-at-knee", **figures))

    assert side.samples == 4
    assert side.subject.args[0].shape == (8, 8)
    assert apart(place, side) < 1e-6
    too_much = row("batch-at-knee", **(figures | {"peak_activation_bytes_there": 1 << 60}))
    assert "are free" in not_applicable(place, too_much)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 32)) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def test_checkpointed_blocks_keep_less_for_the_backward_pass() -> None:
    model = Deep()
    place = bench(model, x(512, 32), train=True)
    advice = advised(model, "activation-checkpointing", x(512, 32), mode="train")
    applied = TRANSFORMATIONS["activation-checkpointing"].apply(place.trial(advice))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    verdict = judge(place, [applied], "peak_activation_bytes", 1e-3)

    assert verdict.error.relative == 0
    assert verdict.before is not None
    assert verdict.after is not None
    assert verdict.after < 0.7 * verdict.before
    assert verdict.is_kept
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_graph_takes_keywords_in_the_order_of_the_forward() -> None:
    class Two(nn.Module):
        def forward(self, a: Tensor, b: Tensor | None = None, scale: float = 1.0) -> Tensor:
            return a * scale if b is None else a + b

    ones = torch.ones(2)
    in_order = positional(bench(Two(), b=ones, a=ones).trial(row("launch-bound")))

    assert [tuple(value.shape) for value in in_order[0]] == [(2,), (2,)]
    assert in_order[1] == {}
    with pytest.raises(NotApplicableError, match="more than that"):
        positional(bench(Two(), ones, scale=2.0).trial(row("launch-bound")))
    assert "no CUDA graphs" in not_applicable(bench(Two(), ones), row("launch-bound"))


def test_a_compiler_that_is_not_there_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)

    assert "C++ compiler" in not_applicable(bench(nn.Linear(2, 2), x(2, 2)), row("dispatch-bound"))


def test_a_cpu_without_bfloat16_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.measure.supported._probe", lambda name: Absent(f"{name} cannot run"))

    with pytest.raises(NotApplicableError, match="bfloat16 cannot run"):
        require_bfloat16(torch.device("cpu"))
    require_bfloat16(torch.device("cuda"))


@pytest.mark.parametrize("rule", ["autocast-bf16", "memory-bound-layers"])
def test_narrow_arithmetic_is_what_the_code_asks_for(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a sum alone: it needs no instruction that a CPU may lack."""
    monkeypatch.setattr("torchgauge.measure.supported._probe", lambda name: None)

    class Sum(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, bool]:
            return x + x, torch.is_autocast_enabled("cpu")

    place = bench(Sum(), torch.ones(4))
    output, is_autocast = changed(place, row(rule)).subject()

    assert is_autocast is (rule == "autocast-bf16")
    assert output.dtype is (torch.bfloat16 if rule == "memory-bound-layers" else torch.float32)


@pytest.mark.parametrize("rule", ["linear-activation", "dispatch-bound", "pointwise-chain", "conv-bn-activation"])
def test_what_is_compiled_is_what_the_advice_says(rule: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval()
    place = bench(model, x(2, 2))
    module = "1" if rule == "pointwise-chain" else ""

    code = TRANSFORMATIONS[rule].apply(place.trial(row(rule, module=module))).code

    assert ("get_submodule(path).compile()" in code) is (rule == "pointwise-chain")
    assert ("freezing" in code) is (rule == "conv-bn-activation")
    assert isinstance(optimised(place.copied(), [code], ()), nn.Module)


@pytest.mark.slow
def test_a_compiled_model_is_compared_and_its_state_is_let_go() -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).eval()
    place = bench(model, x(8, 16))
    applied = TRANSFORMATIONS["dispatch-bound"].apply(place.trial(row("dispatch-bound")))

    verdict = judge(place, [applied], "time_s", 1e-3)

    assert verdict.error.relative is not None
    assert verdict.error.relative < 1e-5
    assert verdict.time is not None
    assert verdict.time.logs


def test_a_script_cannot_be_changed_but_its_surroundings_can() -> None:
    model = lively(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    place = bench(model, x(1, 3, 8, 8))
    script = torch.jit.trace(model, x(1, 3, 8, 8))
    scripted = Bench(Subject(script, (x(1, 3, 8, 8),), {}, CPU), place.capture, False, 0.02)

    assert "a script cannot be changed" in not_applicable(scripted, advised(model, "conv-bn-fusion", x(1, 3, 8, 8)))
    side = changed(scripted, row("thread-count", code="torch.set_num_threads(1)"))
    assert apart(scripted, side) == 0
