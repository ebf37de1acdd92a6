"""The layers of quantization libraries, each where it is installed: parameters and MACs of the original.

None is part of the development environment: they bring gigabytes or compiled code along. `test_quantized.py` has layers
that are stored as theirs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.source.packages import import_optional

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
