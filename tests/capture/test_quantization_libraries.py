"""The layers of quantization libraries, each where it is installed: parameters and MACs of the original.

None is part of the development environment: transformers loads those that it finds (torchao alone adds a second to each
process that imports it), and their kernels are built for one version of torch. `test_quantized.py` has layers that are
stored as theirs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.source import import_optional

pytestmark = pytest.mark.filterwarnings("ignore")  # what libraries warn of when they are imported

WEIGHTS = 128 * 256 + 256 * 64
PARAMS = WEIGHTS + 256 + 64
MACS = 4 * WEIGHTS


def original(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64)).to(dtype).eval()


def check(model: nn.Module, *, dtype: torch.dtype = torch.float32, bits: tuple[float, float]) -> Any:
    """`bits` are the least and the most per quantized weight, scales included."""
    found = tg.analyze(model, inputs=torch.ones(4, 128, dtype=dtype))
    assert (found.totals.logical_params, found.totals.macs) == (PARAMS, MACS)
    assert (found.totals.uncounted_ops, found.capture.run.mode) == (0, "fake")
    quantization = found.quantization
    assert quantization is not None
    assert quantization.logical_params == WEIGHTS
    assert bits[0] <= quantization.bits_per_weight <= bits[1]
    real = sum(tensor.nbytes for tensor in leaves(model))
    assert found.totals.param_bytes + found.totals.buffer_bytes >= real
    return quantization


def leaves(model: nn.Module) -> list[torch.Tensor]:
    """The plain tensors that are registered with the model."""
    waiting: list[Any] = [*model.parameters(), *model.buffers()]
    found = []
    while waiting:
        tensor = waiting.pop()
        if hasattr(tensor, "__tensor_flatten__"):
            waiting += [part for name in tensor.__tensor_flatten__()[0]
                        if isinstance(part := getattr(tensor, name), torch.Tensor)]  # fmt: skip
        else:
            found.append(tensor)
    return found


TORCHAO = {
    "Int8WeightOnlyConfig": ((8, 9), "bfloat16 × bfloat16"),
    "Int8DynamicActivationInt8WeightConfig": ((8, 9), "int8 × int8"),
    "Float8WeightOnlyConfig": ((8, 9), "bfloat16 × bfloat16"),
    "IntxWeightOnlyConfig": ((8, 9), "bfloat16 × bfloat16"),
    "Int8DynamicActivationIntxWeightConfig": ((8, 9), "bfloat16 × bfloat16"),
}


@pytest.mark.parametrize("config", TORCHAO)
def test_weights_of_torchao(config: str) -> None:
    library = pytest.importorskip("torchao.quantization")
    if not hasattr(library, config):
        pytest.skip("this version has another name for it")
    model = original(torch.bfloat16)
    library.quantize_(model, getattr(library, config)())
    bits, operands = TORCHAO[config]
    assert check(model, dtype=torch.bfloat16, bits=bits).macs_by_operands == {operands: MACS}


def each_weight(make: Callable[[nn.Linear], torch.Tensor]) -> nn.Sequential:
    model = original(torch.bfloat16)
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(make(layer), requires_grad=False)
    return model


@pytest.fixture
def mslk() -> Iterator[None]:
    """The schema of the kernel that torchao calls for int4; its package has no build for the processor."""
    library = torch.library.Library("mslk", "FRAGMENT")
    library.define("bf16i4bf16_rowwise(Tensor X, Tensor W, Tensor w_scale_group, Tensor w_zero_group) -> Tensor")
    yield
    library._destroy()


@pytest.mark.usefixtures("mslk")
def test_int4_weights_of_torchao() -> None:
    """Two codes in a byte, a scale and a zero point for 32 weights."""
    library: Any = pytest.importorskip("torchao.quantization.quantize_.workflows.int4.int4_tensor")

    def make(layer: nn.Linear) -> torch.Tensor:
        rows, columns = layer.weight.shape
        scales = [torch.ones(columns // 32, rows, dtype=torch.bfloat16) for _ in range(2)]
        codes = torch.zeros(rows, columns // 2, dtype=torch.int8)
        weight: torch.Tensor = library.Int4Tensor(codes, *scales, [1, 32], layer.weight.shape)
        return weight

    found = check(each_weight(make), dtype=torch.bfloat16, bits=(5, 5))
    assert (found.macs_by_operands, found.dequantize["ops"]) == ({"bfloat16 × 4-bit": MACS}, 0)


@pytest.mark.parametrize(("granularity", "bits"), [("PerRow", 8.3), ("PerTensor", 8.01)])
def test_dynamic_fp8_of_torchao(granularity: str, bits: float, monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = pytest.importorskip("torchao.quantization")
    # It asks whether the GPU has FP8; the weights themselves are made on the processor.
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr("torchao.quantization.quant_api._check_hardware_support", lambda *_: None, raising=False)
    monkeypatch.setattr("torchao.quantization.quant_api.is_sm_at_least_89", lambda: True, raising=False)
    model = original(torch.bfloat16)
    config = library.Float8DynamicActivationFloat8WeightConfig(granularity=getattr(library, granularity)())
    library.quantize_(model, config)
    found = check(model, dtype=torch.bfloat16, bits=(8, bits))
    assert found.macs_by_operands == {"float8_e4m3fn × float8_e4m3fn": MACS}


@pytest.mark.parametrize(
    ("config", "options", "bits", "operands"),
    [
        ("MXDynamicActivationMXWeightConfig", {}, (8.25, 8.5), "float8_e4m3fn × float8_e4m3fn"),
        (
            "MXDynamicActivationMXWeightConfig",
            {"activation_dtype": "float4_e2m1fn_x2", "weight_dtype": "float4_e2m1fn_x2"},
            (4.25, 4.5),
            "float4_e2m1fn_x2 × float4_e2m1fn_x2",
        ),
        ("NVFP4WeightOnlyConfig", {}, (4.5, 4.7), "bfloat16 × bfloat16"),
        (
            "NVFP4DynamicActivationNVFP4WeightConfig",
            {"use_triton_kernel": False},
            (4.5, 4.7),
            "float4_e2m1fn_x2 × float4_e2m1fn_x2",
        ),
    ],
)
def test_microscaled_formats_of_torchao(
    config: str, options: dict[str, Any], bits: tuple[float, float], operands: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    formats: Any = pytest.importorskip("torchao.prototype.mx_formats")
    monkeypatch.setattr("torchao.prototype.mx_formats.inference_workflow.is_sm_at_least_100", lambda: True)
    types = {name: getattr(torch, value) if isinstance(value, str) else value for name, value in options.items()}
    model = original(torch.bfloat16)
    importlib.import_module("torchao.quantization").quantize_(model, getattr(formats, config)(**types))
    assert check(model, dtype=torch.bfloat16, bits=bits).macs_by_operands == {operands: MACS}


GPTQMODEL = [
    ("torch", "TorchLinear", 2, "float16 × float16"),
    ("torch", "TorchLinear", 3, "float16 × float16"),
    ("torch", "TorchLinear", 4, "float16 × float16"),
    ("torch", "TorchLinear", 8, "float16 × float16"),
    ("torch_awq", "AwqTorchLinear", 4, "float16 × float16"),
    ("torch_fused", "TorchFusedLinear", 4, "float16 × 4-bit"),
    ("torch_fused_awq", "TorchFusedAwqLinear", 4, "float16 × 4-bit"),
    ("gguf", "GGUFTorchLinear", 4, "float32 × float32"),
]


@pytest.mark.parametrize(("module", "kind", "bits", "operands"), GPTQMODEL)
def test_gptq_and_awq_layers_that_transformers_uses(module: str, kind: str, bits: int, operands: str) -> None:
    import_optional("transformers", "gptqmodel")
    pytest.importorskip("gptqmodel", exc_type=ImportError)
    make = getattr(importlib.import_module(f"gptqmodel.nn_modules.qlinear.{module}"), kind)
    model = original()
    for index in (0, 2):
        sizes = {"in_features": model[index].in_features, "out_features": model[index].out_features}
        options = {"bits": bits, "group_size": 32, "sym": True, "desc_act": False, "register_buffers": True}
        layer: Any = make(**options, bias=True, **sizes).eval()
        layer.post_init()
        model[index] = layer
    x = torch.ones(4, 128, dtype=torch.float16)
    if "fused" in module:
        model(x)  # packs its weights again
    found = tg.analyze(model, inputs=x)
    assert (found.totals.logical_params, found.totals.macs, found.totals.uncounted_ops) == (PARAMS, MACS, 0)
    assert found.quantization is not None
    assert bits <= found.quantization.bits_per_weight <= bits + 1.5
    assert found.quantization.macs_by_operands == {operands: MACS}


@pytest.mark.parametrize(
    ("form", "weights", "bits"),
    [
        ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}, 4.51),
        ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}, 8.11),
        ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}, 8.11),
        ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, 4.51),
    ],
)
def test_models_of_compressed_tensors(form: str, weights: dict[str, Any], bits: float) -> None:
    """Weights are restored in a hook of the first forward, which then goes away: not by an analysis."""
    quantization: Any = pytest.importorskip("compressed_tensors.quantization")
    compressors: Any = importlib.import_module("compressed_tensors.compressors")
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=quantization.QuantizationArgs(**weights))
    config = quantization.QuantizationConfig(config_groups={"all": scheme}, quantization_status="frozen", format=form)
    model = original(torch.bfloat16)
    quantization.apply_quantization_config(model, config)
    for name, parameter in model.named_parameters():
        if "scale" in name:
            parameter.data.fill_(0.01)
    compressors.ModelCompressor(quantization_config=config).compress_model(model)
    x = torch.ones(4, 128, dtype=torch.bfloat16)
    found = tg.analyze(model, inputs=x)
    assert (found.totals.logical_params, found.totals.macs, found.totals.uncounted_ops) == (PARAMS, MACS, 0)
    assert found.quantization is not None
    assert found.quantization.bits_per_weight == pytest.approx(bits, abs=0.01)
    assert found.quantization.dequantize["ops"] > 0
    assert model(x).shape == (4, 64)


@pytest.mark.parametrize(("name", "bits"), [("qint8", 8), ("qint4", 4), ("qint2", 2), ("qfloat8", 8)])
def test_weights_of_quanto(name: str, bits: int) -> None:
    import_optional("transformers", "quanto")
    library: Any = pytest.importorskip("optimum.quanto")
    model = original()
    library.quantize(model, weights=getattr(library, name))
    library.freeze(model)
    assert check(model, bits=(bits, bits + 1)).dequantize["ops"] == (0 if bits == 8 else 6)


@pytest.mark.parametrize(("bits", "group"), [(8, 64), (4, 64), (3, 64), (2, 64), (1, 64)])
def test_layers_of_hqq(bits: int, group: int) -> None:
    core = pytest.importorskip("hqq.core.quantize")
    model = original()
    for index in (0, 2):
        config = core.BaseQuantizeConfig(nbits=bits, group_size=group)
        model[index] = core.HQQLinear(model[index], config, compute_dtype=torch.float32, device="cpu")
    quantization = check(model, bits=(bits, bits + 2))
    assert quantization.dequantize["ops"] > 0
    assert quantization.macs_by_operands == {"float32 × float32": MACS}


@pytest.mark.parametrize(
    ("kind", "options", "bits", "operands"),
    [
        ("Linear8bitLt", {"has_fp16_weights": False}, (8, 8.5), "int8 × int8"),
        ("Linear4bit", {"quant_type": "nf4"}, (4, 4.6), "float32 × 4-bit"),
        ("Linear4bit", {"quant_type": "fp4", "compress_statistics": False}, (4.5, 4.6), "float32 × 4-bit"),
        ("LinearNF4", {"compute_dtype": torch.bfloat16}, (4, 4.6), "bfloat16 × 4-bit"),
    ],
)
def test_layers_of_bitsandbytes(kind: str, options: Any, bits: tuple[float, float], operands: str) -> None:
    library = pytest.importorskip("bitsandbytes")
    make = getattr(library.nn, kind)
    layers = [
        make(layer.in_features, layer.out_features, **options) if isinstance(layer, nn.Linear) else layer
        for layer in original()
    ]
    model = nn.Sequential(*layers)
    model.load_state_dict(original().state_dict(), strict=False)
    assert check(model.to("cpu").eval(), bits=bits).macs_by_operands == {operands: MACS}
