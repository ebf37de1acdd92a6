"""Quantized layers of torch itself, and layers stored as GPTQ, AWQ, HQQ and others store theirs.

Libraries that are installed are asked in `test_quantization_libraries.py`.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.ao.quantization as ao
from torch import Tensor, nn

import torchgauge as tg
from torchgauge.source import import_optional
from torchgauge.units import format_seconds

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.ao is deprecated, and says so at each call
engine = pytest.mark.skipif("x86" not in torch.backends.quantized.supported_engines, reason="no engine for torch.ao")

X = torch.ones(4, 128)


def original() -> nn.Sequential:
    return nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64)).eval()


def check(model: nn.Module, base: nn.Module, *inputs: Tensor) -> tg.Analysis:
    """Logical parameters and MACs of the original, and figures that agree with each other; saved and loaded again."""
    before = tg.analyze(base, inputs=inputs)
    found = tg.analyze(model, inputs=inputs)
    assert found.totals.logical_params == before.totals.params
    assert found.totals.macs == before.totals.macs
    assert found.totals.uncounted_ops == 0
    assert found.totals.params == sum(p.numel() for p in model.parameters())
    root = found.modules[0]
    assert (root.logical_params, root.bits_per_weight) == (found.totals.logical_params, found.totals.bits_per_weight)
    assert sum(quantization(found).macs_by_operands.values()) == found.totals.macs
    assert "bits per weight" in str(found)
    return found


def quantization(found: tg.Analysis) -> Any:
    assert found.quantization is not None
    return found.quantization


def linear_only(found: tg.Analysis) -> tuple[float, int]:
    return quantization(found).bits_per_weight, quantization(found).logical_params


def test_the_original_is_not_quantized() -> None:
    found = tg.analyze(original(), inputs=X)
    assert found.quantization is None
    totals = found.totals
    assert (totals.logical_params, totals.stored_elements, totals.bits_per_weight) == (totals.params, totals.params, 32)


# torch.ao


@engine
def test_dynamic_layers_of_torch_ao() -> None:
    model = ao.quantize_dynamic(original(), {nn.Linear}, dtype=torch.qint8)
    found = check(model, original(), X)
    assert quantization(found).macs_by_operands == {"quint8 × qint8": 4 * (128 * 256 + 256 * 64)}
    # A scale of 8 bytes and a zero point of 8 for each of two weights.
    assert linear_only(found) == (8 * (49152 + 32) / 49152, 49152)
    assert found.totals.params == 0


@engine
def test_packed_weights_of_many_layers_are_not_mistaken_for_each_other() -> None:
    """Each call hands out a new Python object for a packed weight, and Python uses the place of an old one again."""
    widths = [64, 32, 16, 48, 8, 64, 24, 32, 56, 16] * 3
    layers = [nn.Linear(given, made) for given, made in pairwise(widths)]
    check(ao.quantize_dynamic(nn.Sequential(*layers), {nn.Linear}), nn.Sequential(*layers), torch.ones(2, 64))


@engine
def test_dynamic_layers_in_half_precision() -> None:
    model = ao.quantize_dynamic(original(), {nn.Linear}, dtype=torch.float16)
    found, base = tg.analyze(model, inputs=X), tg.analyze(original(), inputs=X)
    assert (found.totals.logical_params, found.totals.macs) == (base.totals.params, base.totals.macs)
    assert found.totals.bits_per_weight == pytest.approx(8 * (2 * 49152 + 4 * 320) / 49472)


@engine
def test_static_layers_of_torch_ao() -> None:
    model = nn.Sequential(ao.QuantStub(), *original(), ao.DeQuantStub()).eval()
    model.qconfig = ao.get_default_qconfig("x86")
    ao.prepare(model, inplace=True)
    model(X)
    ao.convert(model, inplace=True)
    # A scale and a zero point for each channel.
    assert linear_only(check(model, original(), X)) == (8 * (49152 + 16 * 320) / 49152, 49152)


@engine
def test_convolutions_of_torch_ao() -> None:
    base = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    image = torch.ones(1, 3, 16, 16)
    model = nn.Sequential(ao.QuantStub(), *ao.fuse_modules(copy.deepcopy(base), [["0", "1", "2"]]), ao.DeQuantStub())
    model.eval().qconfig = ao.get_default_qconfig("x86")
    ao.prepare(model, inplace=True)
    model(image)
    ao.convert(model, inplace=True)
    folded = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    check(model, folded, image)


@engine
def test_recurrent_layers_of_torch_ao() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.gru = nn.LSTM(16, 32, batch_first=True, bidirectional=True), nn.GRU(64, 8)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.gru(self.lstm(x)[0])[0]
            return out

    model = ao.quantize_dynamic(Recurrent().eval(), {nn.LSTM, nn.GRU}, dtype=torch.qint8)
    check(model, Recurrent(), torch.ones(2, 5, 16))


@engine
def test_embeddings_of_torch_ao() -> None:
    base = nn.Sequential(nn.EmbeddingBag(100, 16, mode="sum"), nn.Linear(16, 4)).eval()
    kinds = {nn.EmbeddingBag: ao.float_qparams_weight_only_qconfig, nn.Linear: ao.default_dynamic_qconfig}
    check(ao.quantize_dynamic(copy.deepcopy(base), kinds), base, torch.zeros(2, 3, dtype=torch.int64))


# Layers by how they are stored


class Packed(nn.Module):
    """A layer of 4-bit weights in words of 32 bits: along the inputs (GPTQ) or the outputs (AWQ)."""

    def __init__(self, layer: nn.Linear, *, bits: int = 4, group: int = 32, by_outputs: bool = False) -> None:
        super().__init__()
        inputs, outputs, per_word = layer.in_features, layer.out_features, 32 // bits
        self.bits, self.by_outputs, self.group = bits, by_outputs, group
        shape = (inputs, outputs // per_word) if by_outputs else (inputs // per_word, outputs)
        self.register_buffer("qweight", torch.zeros(shape, dtype=torch.int32))
        self.register_buffer("qzeros", torch.zeros(inputs // group, outputs // per_word, dtype=torch.int32))
        self.register_buffer("scales", torch.ones(inputs // group, outputs, dtype=torch.float16))
        if not by_outputs:
            self.register_buffer("g_idx", torch.arange(inputs, dtype=torch.int32) // group)
        self.register_buffer("bias", torch.zeros(outputs, dtype=torch.float16))

    def forward(self, x: Tensor) -> Tensor:
        shifts = torch.arange(0, 32, self.bits, dtype=torch.int32)
        mask = 2**self.bits - 1
        if self.by_outputs:
            codes = ((self.qweight.unsqueeze(2) >> shifts) & mask).flatten(1)  # type: ignore[operator]
        else:
            codes = ((self.qweight.unsqueeze(1) >> shifts.unsqueeze(-1)) & mask).flatten(0, 1)  # type: ignore[operator]
        zeros = ((self.qzeros.unsqueeze(2) >> shifts) & mask).flatten(1)  # type: ignore[operator]
        scales = self.scales.repeat_interleave(self.group, 0)  # type: ignore[operator]
        weight = (codes - zeros.repeat_interleave(self.group, 0)) * scales
        return x @ weight.to(x.dtype) + self.bias.to(x.dtype)


def replaced(make: Callable[[nn.Linear], nn.Module]) -> nn.Sequential:
    return nn.Sequential(*(make(layer) if isinstance(layer, nn.Linear) else layer for layer in original()))


@pytest.mark.parametrize("by_outputs", [False, True])
@pytest.mark.parametrize("bits", [4, 8, 2])
def test_layers_packed_in_words(bits: int, by_outputs: bool) -> None:
    model = replaced(lambda layer: Packed(layer, bits=bits, by_outputs=by_outputs))
    before, found = tg.analyze(original(), inputs=X), tg.analyze(model, inputs=X)
    # Nothing is a parameter to torch, the bias included.
    assert (found.totals.logical_params, found.totals.params) == (before.totals.params, 0)
    assert found.totals.macs == before.totals.macs
    scales = 2 * 49152 // 32 + bits * 49152 // 32 // 8 + (0 if by_outputs else 4 * (128 + 256))
    assert quantization(found).bits_per_weight == 8 * (bits * 49152 // 8 + scales) / 49152
    assert quantization(found).layers == 2


class Repacked(nn.Module):
    """Like GPTQ after its library has repacked the weight for a kernel: rows of outputs, two codes in a byte, under
    the old names. `counts` adds integers that are not codes."""

    def __init__(self, layer: nn.Linear, *, counts: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.register_buffer("qweight", torch.zeros(layer.out_features, layer.in_features // 2, dtype=torch.uint8))
        self.register_buffer("scales", torch.ones(layer.in_features // 32, layer.out_features))
        self.register_buffer("bias", torch.zeros(layer.out_features))
        if counts:
            self.register_buffer("calls", torch.zeros((), dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        codes = torch.stack((self.qweight & 15, self.qweight >> 4), 2).flatten(1)  # type: ignore[arg-type,operator]
        weight = codes * self.scales.repeat_interleave(32, 0).T  # type: ignore[operator]
        return nn.functional.linear(x, weight, self.bias)  # type: ignore[arg-type]


@pytest.mark.parametrize("counts", [False, True])
def test_a_layer_that_says_its_sizes_may_pack_its_weight_in_any_form(counts: bool) -> None:
    found = check(replaced(lambda layer: Repacked(layer, counts=counts)), original(), X)
    assert linear_only(found) == (4 + 32 / 32 + (8 * 8 / 49152 if counts else 0), 49152)


def test_integers_next_to_a_float_weight_are_not_its_codes() -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(128, 8)
            self.register_buffer("used", torch.zeros(128 * 8, dtype=torch.uint8))

    found = tg.analyze(Counting(), inputs=X)
    assert (found.quantization, found.totals.logical_params) == (None, 128 * 8 + 8)


def test_a_kernel_for_int4_tiles_runs_without_a_gpu() -> None:
    """Like torchao's packed weights for CUDA; torch's meta kernel asks for the device of a fake tensor."""

    class Tiled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.in_features, self.out_features = 1024, 64
            self.register_buffer("weight", torch.zeros(64 // 8, 1024 // 128, 32, 4, dtype=torch.int32))
            self.register_buffer("scale_and_zero", torch.zeros(1024 // 32, 64, 2, dtype=torch.bfloat16))

        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.aten._weight_int4pack_mm(x, self.weight, 32, self.scale_and_zero)

    found = tg.analyze(Tiled(), inputs=torch.ones(4, 1024, dtype=torch.bfloat16))
    assert quantization(found).macs_by_operands == {"bfloat16 × 4-bit": 4 * 1024 * 64}
    assert linear_only(found) == (4 + 2 * 16 / 32, 1024 * 64)


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_scaled_mm_v2"), reason="this torch has no _scaled_mm_v2")
def test_products_of_pairs_of_four_bit_floats_count_both_of_each_pair() -> None:
    """MXFP4: a scale for 32 numbers, in tiles of 128 × 4."""

    class Scaled4(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            scales = [torch.zeros(128 * 8, dtype=torch.float8_e8m0fnu)], [3], [1]  # blocks of 1 × 32, swizzled
            product = torch.ops.aten._scaled_mm_v2
            return product(x, weight.t(), *scales, *scales, None, torch.bfloat16)

    pairs = torch.zeros(4, 128, dtype=torch.uint8), torch.zeros(64, 128, dtype=torch.uint8)
    found = tg.analyze(Scaled4(), inputs=tuple(each.view(torch.float4_e2m1fn_x2) for each in pairs))
    assert (found.totals.macs, found.modules[0].output_shapes) == (4 * 256 * 64, [[4, 64]])


def test_ops_that_only_dequantize_weights_are_distinguished() -> None:
    found = tg.analyze(replaced(Packed), inputs=X)
    restoring = quantization(found).dequantize
    # All that is before the product in each layer, but the constants that it starts from; the bias is not quantized.
    products = [op.index for op in found.ops if op.op == "aten::mm"]
    made = {"aten::arange", "aten::mm", "aten::add", "aten::relu"}
    before = [op for op in found.ops if op.index < products[1] and op.status != "free" and op.op not in made]
    casts_of_biases = sum(op.output_shapes == [[256]] for op in before)
    assert restoring["ops"] == len(before) - casts_of_biases
    assert restoring["bytes_written"] == sum(op.bytes_written for op in before if op.output_shapes != [[256]])
    assert restoring["largest_bytes"] == 128 * 256 * 4
    assert restoring["time_s"] is None
    assert "Dequantizing" in str(found)


def test_a_profile_has_the_time_of_restoring_weights() -> None:
    found = tg.analyze(replaced(Packed), inputs=X, profile=True, budget_s=0.02, advice=False)
    restoring = quantization(found).dequantize
    products = [op["time_s"] for op in found.ops if op.op == "aten::mm"]
    timed = sum(op.time_s or 0 for op in found.ops)
    assert all(products)
    assert 0 < restoring["time_s"] <= timed - sum(products)
    assert f"has 128 KiB; {format_seconds(restoring['time_s'])}" in " ".join(str(found).split())


def test_quantization_is_kept_after_saving(tmp_path: Path) -> None:
    found = tg.analyze(replaced(Packed), inputs=X)
    found.save(tmp_path / "run.json")
    loaded = tg.load(tmp_path / "run.json")
    assert loaded.quantization == found.quantization
    assert loaded.totals == found.totals


def test_a_dictionary_next_to_the_codes_gives_their_shape() -> None:
    class Half(nn.Module):
        """Like HQQ: codes, and a dictionary with what restores them."""

        def __init__(self, layer: nn.Linear) -> None:
            super().__init__()
            shape = tuple(layer.weight.shape)
            self.W_q = nn.Parameter(torch.zeros(layer.weight.numel() // 2, dtype=torch.uint8), requires_grad=False)
            self.meta: dict[str, Any] = {
                "shape": shape,
                "scale": torch.ones(shape[0], 1),
                "zero": torch.zeros(shape[0], 1),
                "nbits": 4,
            }
            self.bias = torch.zeros(shape[0])

        def forward(self, x: Tensor) -> Tensor:
            codes = torch.stack((self.W_q & 15, self.W_q >> 4)).reshape(self.meta["shape"])
            return nn.functional.linear(x, (codes - self.meta["zero"]) * self.meta["scale"], self.bias)

    found = check(replaced(Half), original(), X)
    assert linear_only(found) == (8 * (49152 // 2 + 8 * 320) / 49152, 49152)


def test_scaled_floats_of_eight_bits() -> None:
    class Scaled(nn.Module):
        """Like the layers of transformers for FP8 with a scale for each block."""

        def __init__(self, layer: nn.Linear) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(layer.weight.shape, dtype=torch.float8_e4m3fn), requires_grad=False)
            self.weight_scale_inv = nn.Parameter(torch.ones(layer.weight.shape[0] // 64, 1), requires_grad=False)
            self.bias = nn.Parameter(torch.zeros(layer.out_features))

        def forward(self, x: Tensor) -> Tensor:
            scale = self.weight_scale_inv.repeat_interleave(64, 0)
            return nn.functional.linear(x, self.weight.float() * scale, self.bias)

    found = check(replaced(Scaled), original(), X)
    assert linear_only(found) == (8 * (49152 + 4 * 5) / 49152, 49152)


def test_a_scale_next_to_a_float_weight_is_a_parameter() -> None:
    class Rescaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(128, 8)
            self.weight_scale = nn.Parameter(torch.ones(8))
            self.register_buffer("steps", torch.zeros(3, dtype=torch.int32))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.weight_scale

    found = tg.analyze(Rescaled(), inputs=X)
    assert (found.quantization, found.totals.logical_params) == (None, 128 * 8 + 8 + 8)


class Scaled(Tensor):
    """Like the weights of torchao: integers and scales that look like one tensor of floats."""

    @staticmethod
    def __new__(cls, integers: Tensor, scales: Tensor) -> Scaled:
        made: Scaled = torch.Tensor._make_wrapper_subclass(cls, integers.shape, dtype=scales.dtype)
        return made

    def __init__(self, integers: Tensor, scales: Tensor) -> None:
        self.integers, self.scales = integers, scales

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["scales", "integers"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: None, size: Any, stride: Any) -> Scaled:
        return Scaled(inner["integers"], inner["scales"])

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.detach.default:
            return Scaled(args[0].integers, args[0].scales)
        restored = [a.integers * a.scales if isinstance(a, Scaled) else a for a in args]
        return func(*restored, **(kwargs or {}))


def test_a_weight_made_of_several_tensors_has_their_bytes() -> None:
    model = original()
    for layer in model:
        if not isinstance(layer, nn.Linear):
            continue
        shape = layer.weight.shape
        weight = Scaled(torch.ones(shape, dtype=torch.int8), torch.ones(shape[0], 1))
        layer.weight = nn.Parameter(weight, requires_grad=False)
    found = check(model, original(), X)
    assert found.totals.param_bytes == 49152 + 4 * 320 + 4 * 320
    assert found.totals.stored_elements == 49152 + 320 + 320
    assert quantization(found).dequantize["ops"] == 2
    assert quantization(found).macs_by_operands == {"float32 × float32": found.totals.macs}


class Nibbles(Scaled):
    """Like the weights of torchao in NVFP4: its transpose is such a tensor too, so the product gets it next to the
    bias, and ops that its handler calls are not decomposed before a mode sees them."""

    @staticmethod
    def __new__(cls, integers: Tensor, scales: Tensor) -> Nibbles:
        shape = (integers.shape[0], 2 * integers.shape[1])
        made: Nibbles = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=scales.dtype)
        return made

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: None, size: Any, stride: Any) -> Nibbles:
        return Nibbles(inner["integers"], inner["scales"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func in (torch.ops.aten.detach.default, torch.ops.aten.t.default):
            return Nibbles(args[0].integers, args[0].scales)
        assert func is torch.ops.aten.addmm.default
        bias, x, weight = args
        codes = torch.stack((weight.integers & 15, weight.integers >> 4), 2).reshape(weight.shape)
        return torch.nn.functional.linear(x, codes.to(x.dtype) * weight.scales, bias)


def test_ops_of_a_weight_that_answers_them_itself_are_those_of_other_models() -> None:
    model = original()
    for layer in model:
        if isinstance(layer, nn.Linear):
            rows, columns = layer.weight.shape
            weight = Nibbles(torch.ones(rows, columns // 2, dtype=torch.uint8), torch.ones(rows, 1))
            layer.weight = nn.Parameter(weight, requires_grad=False)
    found = check(model, original(), X)
    assert linear_only(found) == (4 + 8 * 4 * 320 / 49152, 49152)
    assert {"aten::bitwise_and", "aten::addmm"} <= {op.op for op in found.ops}
    assert not {"aten::__and__", "aten::linear", "aten::reshape", "aten::to"} & {op.op for op in found.ops}


@pytest.mark.parametrize("by_outputs", [False, True])
def test_a_layer_that_is_the_whole_model(by_outputs: bool) -> None:
    found = tg.analyze(Packed(nn.Linear(128, 256), by_outputs=by_outputs), inputs=X)
    assert (found.totals.logical_params, quantization(found).layers) == (128 * 256 + 256, 1)


# Layers of transformers that load their kernel from the hub


def fp8_layer(block: tuple[int, int] | None, scheme: str) -> Callable[[nn.Linear], nn.Module]:
    import_optional("transformers", "its FP8 layers")
    library: Any = importlib.import_module("transformers.integrations.finegrained_fp8")

    def make(layer: nn.Linear) -> nn.Module:
        sizes = layer.in_features, layer.out_features
        made: nn.Module = library.FP8Linear(*sizes, block_size=block, activation_scheme=scheme, has_bias=True)
        return made

    return make


@pytest.mark.parametrize(
    ("block", "scheme", "scales"), [((64, 64), "dynamic", 8 + 4), ((128, 128), "static", 2 + 2), (None, "dynamic", 2)]
)
def test_fp8_layers_of_transformers_need_no_download(block: tuple[int, int] | None, scheme: str, scales: int) -> None:
    model = replaced(fp8_layer(block, scheme)).to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        if name.endswith(".weight"):
            parameter.data = parameter.data.to(torch.float8_e4m3fn)
    hub: Any = importlib.import_module("huggingface_hub.constants")
    library: Any = importlib.import_module("transformers.integrations.finegrained_fp8")
    before = library.load_finegrained_fp8_kernel, hub.HF_HUB_OFFLINE
    found = check(model, original().to(torch.bfloat16), X.to(torch.bfloat16))
    assert (library.load_finegrained_fp8_kernel, hub.HF_HUB_OFFLINE) == before
    assert quantization(found).macs_by_operands == {"float8_e4m3fn × float8_e4m3fn": 4 * 49152}
    activation_scales = 2 if scheme == "static" else 0
    assert linear_only(found) == (8 * (49152 + 2 * (scales + activation_scales)) / 49152, 49152)
    assert {op.op for op in found.ops if op.macs} == {"finegrained_fp8::matmul_2d"}


def test_fp8_experts_of_transformers() -> None:
    transformers: Any = import_optional("transformers", "its FP8 layers")
    library: Any = importlib.import_module("transformers.integrations.finegrained_fp8")
    config = transformers.Qwen3MoeConfig(
        hidden_size=64, moe_intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        head_dim=32, vocab_size=64, num_experts=8, num_experts_per_tok=2, decoder_sparse_step=1,
    )  # fmt: skip
    base = transformers.Qwen3MoeForCausalLM(config).to(torch.bfloat16)
    model = copy.deepcopy(base)
    settings = transformers.FineGrainedFP8Config(weight_block_size=(32, 32))
    library.replace_with_fp8_linear(
        model, modules_to_not_convert=["lm_head"], quantization_config=settings, pre_quantized=True
    )
    found = check(model, base, torch.zeros(1, 16, dtype=torch.int64))
    experts = 2 * 16 * 3 * 64 * 32
    attention = 16 * 64 * (2 * 64 + 2 * 32)
    assert quantization(found).macs_by_operands["float8_e4m3fn × float8_e4m3fn"] == experts + attention


class NumpyLinear(nn.Module):
    """Codes that numpy multiplies by, as AQLM's kernel for 8-bit codes on the CPU does with numba."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.codes = nn.Parameter(torch.ones(out_features, in_features, dtype=torch.int8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy() @ self.codes.numpy().T.astype("float32"))


def test_a_product_outside_torch_is_named() -> None:
    found = tg.analyze(
        nn.Sequential(NumpyLinear(128, 32), nn.Linear(32, 8), *map(NumpyLinear, [8] * 3, [8] * 3)), inputs=X
    )
    (warning,) = found.capture.run.warnings
    assert found.totals.macs == 4 * 32 * 8
    assert warning == (
        "computed outside torch (numpy), so their MACs are not counted: "
        "'0' (NumpyLinear), '2' (NumpyLinear), '3' (NumpyLinear) and 1 more"
    )
    assert warning in " ".join(str(found).split())


def test_a_linear_layer_that_only_looks_at_numbers_is_counted() -> None:
    class Looking(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.numpy().any() else x

    found = tg.analyze(Looking(128, 8), inputs=X)
    assert (found.totals.macs, found.capture.run.warnings) == (4 * 128 * 8, ())
