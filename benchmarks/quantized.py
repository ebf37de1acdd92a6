"""Parameters and MACs of quantized models against those of their originals, on the processor.

Needs timm, torchvision and transformers, and torchao, optimum-quanto, hqq, bitsandbytes, gptqmodel and
compressed-tensors for the rows of each.
Weights are random. Prints the table of docs/quantized.md.

    python benchmarks/quantized.py
"""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import torchgauge as tg
from torchgauge.source.packages import import_optional

Make = Callable[[nn.Module], nn.Module]


def main() -> None:
    warnings.simplefilter("ignore")
    print("| model | quantized by | parameters | MACs | bits per weight | multiplied | dequantizing |")
    print("|---|---|---|---|---|---|---|")
    for title, how, base, inputs, make in cases():
        try:
            model = make(copy.deepcopy(base))
        except ImportError as error:
            print(f"| {title} | {how}: not installed ({error.name}) |")
            continue
        before = tg.analyze(base, inputs=inputs, advice=False, progress=False)
        found = tg.analyze(model, inputs=inputs, advice=False, progress=False)
        print(row(title, how, before, found), flush=True)


def row(title: str, how: str, before: tg.Analysis, found: tg.Analysis) -> str:
    quantization = found.quantization
    assert quantization is not None
    moved = quantization.dequantize["bytes_read"] + quantization.dequantize["bytes_written"]
    share = moved / (found.totals.bytes_read + found.totals.bytes_written)
    kinds = ", ".join(f"{kind} {macs / found.totals.macs:.0%}" for kind, macs in quantization.macs_by_operands.items())
    return " | ".join(
        (
            f"| {title}",
            how,
            compared(found.totals.logical_params, before.totals.params),
            compared(found.totals.macs, before.totals.macs),
            f"{quantization.bits_per_weight:.2f}",
            kinds,
            f"{share:.0%} of the bytes |" if moved else "none |",
        )
    )


def compared(found: int, expected: int) -> str:
    return f"{found:,}, equal" if found == expected else f"{found:,} ({found - expected:+,})"


def cases() -> Iterator[tuple[str, str, nn.Module, Any, Make]]:
    timm, transformers = import_optional("timm", "this"), import_optional("transformers", "this")
    vision: Any = importlib.import_module("torchvision.models")
    quantized: Any = importlib.import_module("torchvision.models.quantization")
    image = torch.zeros(1, 3, 224, 224)
    for name in ("resnet18", "mobilenet_v2", "shufflenet_v2_x1_0"):
        folded = folded_norms(getattr(vision, name)(weights=None).eval())
        yield (
            name,
            "torch.ao static",
            folded,
            image,
            lambda base, name=name: getattr(quantized, name)(weights=None, quantize=True),
        )
    vit = timm.create_model("vit_tiny_patch16_224").eval()
    yield "vit_tiny", "torch.ao dynamic", vit, image, dynamic
    yield "vit_tiny", "torchao int8 weights", vit.to(torch.bfloat16), image.bfloat16(), torchao("Int8WeightOnlyConfig")
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=1024, num_key_value_heads=2))
    ids = torch.zeros(1, 64, dtype=torch.int64)
    llama = llama.eval()
    half = copy.deepcopy(llama).to(torch.bfloat16)
    yield "Llama, 4 layers", "torchao int8 × int8", half, ids, torchao("Int8DynamicActivationInt8WeightConfig")
    yield "Llama, 4 layers", "torchao fp8 weights", half, ids, torchao("Float8WeightOnlyConfig")
    yield "Llama, 4 layers", "torchao fp8 × fp8", half, ids, torchao_fp8
    yield "Llama, 4 layers", "torchao NVFP4 weights", half, ids, torchao_nvfp4
    yield "Llama, 4 layers", "transformers FP8", half, ids, transformers_fp8
    yield "Llama, 4 layers", "compressed-tensors int4", half, ids, compressed
    yield "Llama, 4 layers", "GPTQ 4 bit", llama.to(torch.float16), ids, replacing(packed("torch", "TorchLinear"))
    yield "Llama, 4 layers", "AWQ 4 bit", llama, ids, replacing(packed("torch_awq", "AwqTorchLinear"))
    llama = llama.to(torch.float32)
    yield "Llama, 4 layers", "quanto int4", llama, ids, quanto
    yield "Llama, 4 layers", "HQQ 4 bit", llama, ids, replacing(hqq)
    yield "Llama, 4 layers", "bitsandbytes nf4", llama, ids, replacing(four_bit)
    yield "Llama, 4 layers", "bitsandbytes int8", llama, ids, replacing(eight_bit)
    bert = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=1024)).eval()
    yield "BERT, 4 layers", "torch.ao dynamic", bert, ids, dynamic


def folded_norms(model: nn.Module) -> nn.Module:
    """Batch norms after convolutions leave a bias behind: what a static quantization starts from."""
    traced: Any = importlib.import_module("torch.fx.experimental.optimization")
    return traced.fuse(model)


def dynamic(model: nn.Module) -> nn.Module:
    quantization: Any = importlib.import_module("torch.ao.quantization")
    return quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def torchao(config: str) -> Make:
    def make(model: nn.Module) -> nn.Module:
        library: Any = importlib.import_module("torchao.quantization")
        library.quantize_(model, getattr(library, config)())
        return model

    return make


def torchao_fp8(model: nn.Module) -> nn.Module:
    """It asks for a GPU with FP8; the weights themselves are made on the processor."""
    library: Any = importlib.import_module("torchao.quantization")
    with (
        patch("torch.cuda.get_device_capability", lambda *_: (9, 0)),
        patch("torchao.quantization.quant_api._check_hardware_support", lambda *_: None, create=True),
    ):
        library.quantize_(model, library.Float8DynamicActivationFloat8WeightConfig(granularity=library.PerRow()))
    return model


def torchao_nvfp4(model: nn.Module) -> nn.Module:
    formats: Any = importlib.import_module("torchao.prototype.mx_formats")
    importlib.import_module("torchao.quantization").quantize_(model, formats.NVFP4WeightOnlyConfig())
    return model


def transformers_fp8(model: nn.Module) -> nn.Module:
    library: Any = importlib.import_module("transformers.integrations.finegrained_fp8")
    settings = importlib.import_module("transformers").FineGrainedFP8Config(weight_block_size=(128, 128))
    library.replace_with_fp8_linear(model, ["lm_head"], quantization_config=settings, pre_quantized=True)
    return model.eval()


def compressed(model: nn.Module) -> nn.Module:
    quantization: Any = importlib.import_module("compressed_tensors.quantization")
    compressors: Any = importlib.import_module("compressed_tensors.compressors")
    weights = quantization.QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=32)
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=weights)
    config = quantization.QuantizationConfig(
        config_groups={"all": scheme}, quantization_status="frozen", format="pack-quantized"
    )
    quantization.apply_quantization_config(model, config)
    for name, parameter in model.named_parameters():
        if name.endswith("weight_scale"):
            parameter.data.fill_(0.01)
    compressors.ModelCompressor(quantization_config=config).compress_model(model)
    return model


def packed(module: str, kind: str) -> Callable[[nn.Linear], nn.Module]:
    """Layers of gptqmodel, which transformers uses for GPTQ and AWQ."""

    def make(layer: nn.Linear) -> nn.Module:
        found: Any = getattr(importlib.import_module(f"gptqmodel.nn_modules.qlinear.{module}"), kind)
        sizes = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": layer.bias is not None}
        made: Any = found(bits=4, group_size=32, sym=True, desc_act=False, register_buffers=True, **sizes).eval()
        made.post_init()
        return made

    return make


def quanto(model: nn.Module) -> nn.Module:
    library: Any = importlib.import_module("optimum.quanto")
    library.quantize(model, weights=library.qint4)
    library.freeze(model)
    return model


def replacing(layer_of: Callable[[nn.Linear], nn.Module]) -> Make:
    def make(model: nn.Module) -> nn.Module:
        for path, module in list(model.named_modules()):
            if isinstance(module, nn.Linear):
                model.set_submodule(path, layer_of(module))
        return model.to("cpu").eval()

    return make


def hqq(layer: nn.Linear) -> nn.Module:
    core: Any = importlib.import_module("hqq.core.quantize")
    config = core.BaseQuantizeConfig(nbits=4, group_size=64)
    return core.HQQLinear(layer, config, compute_dtype=torch.float32, device="cpu")


def four_bit(layer: nn.Linear) -> nn.Module:
    return _bitsandbytes("Linear4bit", layer, quant_type="nf4")


def eight_bit(layer: nn.Linear) -> nn.Module:
    return _bitsandbytes("Linear8bitLt", layer, has_fp16_weights=False)


def _bitsandbytes(kind: str, layer: nn.Linear, **options: Any) -> nn.Module:
    library: Any = importlib.import_module("bitsandbytes")
    made = getattr(library.nn, kind)(layer.in_features, layer.out_features, bias=layer.bias is not None, **options)
    made.load_state_dict(layer.state_dict(), strict=False)
    return made


if __name__ == "__main__":
    main()
