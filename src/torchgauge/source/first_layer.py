"""The input of a model, inferred from its first layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from torchgauge.registry import Registry
from torchgauge.source.attributes import attribute_of
from torchgauge.source.candidate import Defaults, Guess

# The first argument is a layer, or an object with the same attributes: a scripted layer has no class of torch.
Shapes = Callable[[Any, Defaults], Iterator[Tensor]]

SEQUENCE_LENGTH = 128
TRACED_LENGTHS = (128, 16, 8, 32, 64, 512)  # several, because a trace only runs with the length it was made with
IMAGE_SIZES = (224, 32, 64, 128, 299, 28)
GREY_IMAGE_SIZES = (28, 32, 224, 64, 128, 299)  # one channel: most often a digit


@dataclass(frozen=True, slots=True)
class LayerRule:
    """`attribute` must exist (a user's class may have the same name) and is quoted in `says`."""

    kind: str
    attribute: str
    says: str
    tensors: Shapes


@dataclass(frozen=True, slots=True)
class Entry:
    """A layer that may be the first to see an input."""

    path: str
    layer: nn.Module
    rule: LayerRule

    def guesses(self, defaults: Defaults) -> Iterator[Guess]:
        quoted = self.rule.says.format(getattr(self.layer, self.rule.attribute))
        where = f" '{self.path}'" if self.path else ""
        source = f"{class_names(self.layer)[0]}{where} {quoted}"
        return (Guess(tensor, source) for tensor in self.rule.tensors(self.layer, defaults))


_RULES: Registry[str, LayerRule] = Registry("rule for the layer")


def layer_rule(*names: str, kind: str, attribute: str, says: str) -> Callable[[Shapes], Shapes]:
    """Register the tensors that a class of layers suggests; scripted layers have the same class names."""
    return _RULES.register_as(partial(LayerRule, kind, attribute, says), *names)


def entries(model: nn.Module) -> Iterator[Entry]:
    """The layers with a rule, in the order of registration, which is mostly the order of calls."""
    waiting: list[tuple[str, nn.Module]] = [("", model)]
    while waiting:
        path, module = waiting.pop()
        rule = next((_RULES[name] for name in class_names(module) if name in _RULES), None)
        # A lazy layer has a size of 0 until it sees an input: it takes any input.
        rule = rule if rule is not None and attribute_of(module, rule.attribute) else None
        if rule is not None:
            yield Entry(path, module, rule)
            continue
        children = list(module.named_children())
        waiting += [(f"{path}.{name}" if path else name, child) for name, child in reversed(children)]


def class_names(module: nn.Module) -> list[str]:
    """The names of the module's class and its bases, or of the class that was scripted."""
    original = attribute_of(module, "original_name")
    return [original] if isinstance(original, str) else [base.__name__ for base in type(module).__mro__]


def suggest(layer_type: str, layer: Any, defaults: Defaults) -> tuple[str, Iterator[Tensor]]:
    """A description of the input of this class of layer, and the tensors it suggests. `layer` has the attributes of the
    rule."""
    rule = _RULES[layer_type]
    return rule.says.format(getattr(layer, rule.attribute)), rule.tensors(layer, defaults)


def image_sizes(channels: int) -> tuple[int, ...]:
    return GREY_IMAGE_SIZES if channels == 1 else IMAGE_SIZES


@layer_rule("Conv2d", kind="convolution", attribute="in_channels", says="takes {} channels")
def _conv2d(layer: nn.Conv2d, defaults: Defaults) -> Iterator[Tensor]:
    for size in image_sizes(layer.in_channels):
        yield defaults.floats(defaults.batch, layer.in_channels, size, size)


@layer_rule("Conv1d", kind="convolution", attribute="in_channels", says="takes {} channels")
def _conv1d(layer: nn.Conv1d, defaults: Defaults) -> Iterator[Tensor]:
    # One channel is a waveform: a second at 16 kHz.
    lengths = (16000, 1024, SEQUENCE_LENGTH) if layer.in_channels == 1 else (SEQUENCE_LENGTH, 1024)
    for length in (defaults.seq,) if defaults.seq else lengths:
        yield defaults.floats(defaults.batch, layer.in_channels, length)


@layer_rule("Conv3d", kind="convolution", attribute="in_channels", says="takes {} channels")
def _conv3d(layer: nn.Conv3d, defaults: Defaults) -> Iterator[Tensor]:
    for size in ((16, 112, 112), (32, 32, 32), (64, 64, 64)):
        yield defaults.floats(defaults.batch, layer.in_channels, *size)


@layer_rule(
    "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
    kind="convolution", attribute="in_channels", says="takes {} channels",
)  # fmt: skip
def _conv_transpose(
    layer: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d, defaults: Defaults
) -> Iterator[Tensor]:
    for size in (1, 8, 16):  # a generator starts from a point or a small feature map
        yield defaults.floats(defaults.batch, layer.in_channels, *[size] * len(layer.kernel_size))


@layer_rule("Embedding", "EmbeddingBag", kind="embedding", attribute="num_embeddings", says="looks up {} ids")
def _embedding(layer: nn.Embedding | nn.EmbeddingBag, defaults: Defaults) -> Iterator[Tensor]:
    value = min(1, layer.num_embeddings - 1)
    for length in (defaults.seq,) if defaults.seq else (SEQUENCE_LENGTH, 16):
        yield defaults.ids(defaults.batch, length, value=value)
    yield defaults.ids(defaults.batch, value=value)


@layer_rule("Linear", kind="linear", attribute="in_features", says="takes {} features")
def _linear(layer: nn.Linear, defaults: Defaults) -> Iterator[Tensor]:
    vector = defaults.floats(defaults.batch, layer.in_features)
    sequence = defaults.floats(defaults.batch, defaults.seq or 16, layer.in_features)
    yield from (sequence, vector) if defaults.seq else (vector, sequence)


@layer_rule("RNN", "LSTM", "GRU", kind="recurrent", attribute="input_size", says="takes {} features")
def _recurrent(layer: nn.RNNBase, defaults: Defaults) -> Iterator[Tensor]:
    yield _sequence(layer, layer.input_size, defaults)


@layer_rule("RNNCell", "LSTMCell", "GRUCell", kind="recurrent", attribute="input_size", says="takes {} features")
def _recurrent_cell(layer: nn.RNNCellBase, defaults: Defaults) -> Iterator[Tensor]:
    yield defaults.floats(defaults.batch, layer.input_size)


@layer_rule("MultiheadAttention", kind="attention", attribute="embed_dim", says="takes {} features")
def _attention(layer: nn.MultiheadAttention, defaults: Defaults) -> Iterator[Tensor]:
    yield _sequence(layer, layer.embed_dim, defaults)


@layer_rule("BatchNorm2d", "InstanceNorm2d", kind="norm", attribute="num_features", says="takes {} channels")
def _norm2d(layer: nn.BatchNorm2d | nn.InstanceNorm2d, defaults: Defaults) -> Iterator[Tensor]:
    for size in image_sizes(layer.num_features):
        yield defaults.floats(defaults.batch, layer.num_features, size, size)


@layer_rule("BatchNorm1d", "InstanceNorm1d", kind="norm", attribute="num_features", says="takes {} features")
def _norm1d(layer: nn.BatchNorm1d | nn.InstanceNorm1d, defaults: Defaults) -> Iterator[Tensor]:
    yield defaults.floats(defaults.batch, layer.num_features)
    yield defaults.floats(defaults.batch, layer.num_features, defaults.seq or SEQUENCE_LENGTH)


@layer_rule("BatchNorm3d", "InstanceNorm3d", kind="norm", attribute="num_features", says="takes {} channels")
def _norm3d(layer: nn.BatchNorm3d | nn.InstanceNorm3d, defaults: Defaults) -> Iterator[Tensor]:
    yield defaults.floats(defaults.batch, layer.num_features, 16, 112, 112)


@layer_rule("GroupNorm", kind="norm", attribute="num_channels", says="takes {} channels")
def _group_norm(layer: nn.GroupNorm, defaults: Defaults) -> Iterator[Tensor]:
    yield defaults.floats(defaults.batch, layer.num_channels, 32, 32)
    yield defaults.floats(defaults.batch, layer.num_channels, defaults.seq or SEQUENCE_LENGTH)


@layer_rule("LayerNorm", "RMSNorm", kind="norm", attribute="normalized_shape", says="normalises {}")
def _layer_norm(layer: nn.LayerNorm | nn.RMSNorm, defaults: Defaults) -> Iterator[Tensor]:
    sequence = defaults.floats(defaults.batch, defaults.seq or 16, *layer.normalized_shape)
    vector = defaults.floats(defaults.batch, *layer.normalized_shape)
    yield from (sequence, vector) if defaults.seq or len(layer.normalized_shape) == 1 else (vector, sequence)


def _sequence(layer: nn.RNNBase | nn.MultiheadAttention, features: int, defaults: Defaults) -> Tensor:
    length = defaults.seq or SEQUENCE_LENGTH
    leading = (defaults.batch, length) if layer.batch_first else (length, defaults.batch)
    return defaults.floats(*leading, features)
