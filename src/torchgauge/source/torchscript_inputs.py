"""Inputs of a script module: the sizes a trace was made with, else what its graph does with each of them first."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from torchgauge.source.auxiliary_inputs import companion, is_companion
from torchgauge.source.candidate import Assignment, Defaults, Guess, make_tensor
from torchgauge.source.layers import suggest
from torchgauge.source.signature import ForwardSignature, Parameter
from torchgauge.source.torchscript.first_use import FirstUse, first_uses

# A trace has the length it was made with in its graph: several are tried.
_LENGTHS = (128, 16, 8, 32, 64, 512)
_MOST = 8
_DTYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Bool": torch.bool, "Byte": torch.uint8,
}  # fmt: skip


def script_assignments(
    model: nn.Module, signature: ForwardSignature, defaults: Defaults, given: Collection[str]
) -> Iterator[Assignment]:
    """Nothing for a model that is no script module, or whose inputs reach no weight that tells their shape."""
    if not isinstance(model, torch.jit.ScriptModule):
        return
    parameters = list(signature.required(given))
    if defaults.batch == 1 and defaults.seq is None:
        # A live trace still knows the shapes of its example; a saved one does not.
        method = model._c._get_method("forward") if model._c._has_method("forward") else None
        names = [argument.name for argument in method.schema.arguments] if method is not None else []
        values = dict(zip(names, method.graph.inputs(), strict=True)) if method is not None else {}
        made = {parameter.name: _example(values[parameter.name]) for parameter in parameters}
        if made and all(tensor is not None for tensor in made.values()):
            yield {name: Guess(tensor, "the example that the trace was made with") for name, tensor in made.items()}
    uses = first_uses(model)
    known = {p.name: list(islice(_guesses(uses[p.name], defaults), _MOST)) for p in parameters if p.name in uses}
    main = next((p for p in parameters if known.get(p.name)), None)
    if main is None:
        return
    for index, guess in enumerate(known[main.name]):
        yield {p.name: _filled(model, p, main, index, guess, known, defaults) for p in parameters}


def _filled(
    model: nn.Module,
    parameter: Parameter,
    main: Parameter,
    index: int,
    guess: Guess,
    known: dict[str, list[Guess]],
    defaults: Defaults,
) -> Guess:
    own = known.get(parameter.name)
    if own:
        return own[min(index, len(own) - 1)]
    if is_companion(parameter):
        return companion(model, parameter, main.name, guess.value, defaults)
    return Guess(guess.value.clone(), f"the same as {main.name}")


def _example(value: Any) -> Tensor | None:
    kind = value.type()
    if kind.kind() != "TensorType" or kind.sizes() is None or kind.scalarType() not in _DTYPES:
        return None
    return make_tensor(tuple(kind.sizes()), _DTYPES[kind.scalarType()])


def _guesses(use: FirstUse, defaults: Defaults) -> Iterator[Guess]:
    layer_type, attributes = _layer(use)
    if not layer_type:
        return
    name = f"'{use.weight.name}'" if use.weight.name else "a constant"
    says, tensors = suggest(layer_type, SimpleNamespace(**attributes), defaults)
    for tensor in _with_lengths(layer_type, tensors, defaults):
        yield Guess(use.input_for(tensor), f"{use.op} with {name} {says}")


def _with_lengths(layer_type: str, tensors: Iterator[Tensor], defaults: Defaults) -> Iterator[Tensor]:
    if layer_type == "Embedding" and defaults.seq is None:
        for length in _LENGTHS:
            yield defaults.ids(defaults.batch, length)
    yield from tensors


def _layer(use: FirstUse) -> tuple[str, dict[str, Any]]:
    """The class of the layer that the op is the work of, and the attributes that its weight tells; "" where none."""
    shape = tuple(use.weight.tensor.shape)
    match use.op.removeprefix("aten::"):
        case "_convolution" | "convolution" | "conv1d" | "conv2d" | "conv3d" if len(shape) in (3, 4, 5):
            return _convolution(use, shape)
        case "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d":
            return "ConvTranspose2d", {"in_channels": shape[0], "kernel_size": shape[2:]}
        case "embedding" | "embedding_bag":
            return "Embedding", {"num_embeddings": shape[0]}
        case "linear" if len(shape) == 2:
            return "Linear", {"in_features": shape[1]}
        case "matmul" | "mm" | "addmm" if len(shape) == 2:
            return "Linear", {"in_features": shape[0]}
        case "lstm" | "gru" | "rnn_tanh" | "rnn_relu":
            return "LSTM", {"input_size": shape[-1], "batch_first": use.arguments[-1] is True}
        case "layer_norm":
            return "LayerNorm", {"normalized_shape": shape}
        case "group_norm":
            return "GroupNorm", {"num_channels": shape[0]}
        case "batch_norm":
            return "BatchNorm2d", {"num_features": shape[0]}
    return "", {}


def _convolution(use: FirstUse, shape: tuple[int, ...]) -> tuple[str, dict[str, Any]]:
    general = use.op in ("aten::_convolution", "aten::convolution")
    if general and use.arguments[6] is True:
        return "ConvTranspose2d", {"in_channels": shape[0], "kernel_size": shape[2:]}
    groups = use.arguments[8 if general else 6]
    return f"Conv{len(shape) - 2}d", {"in_channels": shape[1] * (groups or 1)}
