"""Memory that kernels allocate while they run, in addition to the tensors of the model.

Sizes are computed as torch and its libraries do; if a library's rules are not published (cuDNN's convolutions), they
are measured (`convolutions.py`). Each formula names its source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from torchgauge.capture.fake_tensor import FakeTensor, Spec
from torchgauge.capture.op_call import FakeCall
from torchgauge.capture.structure import map_tensors
from torchgauge.facts.tensor import is_contiguous
from torchgauge.predict.convolutions import Convolution, Workspace, workspace
from torchgauge.predict.devices import Chip
from torchgauge.registry import Registry

MIB = 1 << 20


# cuBLASLt has a separate one, of `TORCH_CUBLASLT_WORKSPACE_SIZE` (1 MiB), where a bias is added by the matmul.
CUBLAS_LT_BYTES = MIB


def last_power_of_two(number: int) -> int:
    return 1 << max(number.bit_length() - 1, 0)


def reduction(
    chip: Chip, shape: Sequence[int], stride: Sequence[int], dims: Sequence[int], accumulator_bytes: int = 4
) -> list[int | Workspace]:
    """Memory that a reduction over `dims` allocates to spread one output over several blocks of threads: their partial
    results and semaphores. `setReduceConfig` of aten/src/ATen/native/cuda/Reduce.cuh, with the dimensions ordered and
    joined as TensorIterator does."""
    reduced = {dim % len(shape) for dim in dims} if dims else set(range(len(shape)))
    axes = [(shape[d], stride[d], d in reduced) for d in range(len(shape)) if shape[d] > 1]
    joined: list[tuple[int, int, bool]] = []
    for wanted in (True, False):
        for length, step, _ in sorted((axis for axis in axes if axis[2] is wanted), key=lambda axis: axis[1]):
            if joined and joined[-1][2] is wanted and joined[-1][0] * joined[-1][1] == step:
                joined[-1] = (joined[-1][0] * length, joined[-1][1], wanted)
            else:
                joined.append((length, step, wanted))
    inputs = outputs = 1
    for length, _, wanted in joined:
        inputs, outputs = (inputs * length, outputs) if wanted else (inputs, outputs * length)
    count = sum(wanted for _, _, wanted in joined)
    is_inner = count == len(joined) or joined[0][1] < joined[count][1] if count else False
    if inputs == 1:
        return []
    per_output = 1
    if is_inner:
        width, height = inputs, outputs
        if joined[0][1] == 1 and width > 128 and len(joined) == 1:
            width //= 4
    else:
        width, height = outputs, inputs
        if joined[count][1] == 1:
            per_output = 4
            for number in (joined[count][0], *(axis[1] for place, axis in enumerate(joined) if place != count)):
                while number % per_output:
                    per_output //= 2
            width //= per_output
    most = 512 // per_output
    width_2, height_2 = (min(last_power_of_two(number), most) for number in (width, height))
    block_width = min(width_2, 32)
    block_height = min(height_2, most // block_width)
    block_width = min(width_2, most // block_height)
    step_input, step_output = (block_width, 1) if is_inner else (1, block_width)
    values = -(-inputs // step_input)
    if values < min(block_height * 16, 256):
        return []
    step_input *= block_height
    values = -(-inputs // step_input)
    grid = -(-(outputs // per_output) // step_output)
    target = chip.multiprocessors * (chip.threads_per_multiprocessor // (block_width * block_height))
    if values < 256 or grid > target:
        return []
    blocks = max(min(-(-target // grid), -(-values // 16)), -(-values // 256))
    if blocks <= 1:
        return []
    nbytes = accumulator_bytes * outputs * blocks
    return [nbytes if is_inner else nbytes * block_width * per_output, 4 * grid]


def attention_backward_cudnn(query: Sequence[int], key: Sequence[int], itemsize: int) -> int:
    """The gradient of the queries in float32, a sum per row, and under grouped queries the gradients of keys and values
    of each head of queries. As measured (cuDNN 9.19, H200)."""
    batch, heads, length, width = query
    rows = batch * heads * length
    grouped = 2 * batch * heads * key[2] * width * itemsize if key[1] != heads else 0
    return rows * width * 4 + rows * 4 + 256 + grouped


def attention_backward_flash(query: Sequence[int], key: Sequence[int], itemsize: int) -> int:
    """`mha_bwd` of torch's flash attention: the same, rows rounded up to 128 and head sizes to 32."""
    batch, heads, length, width = query
    rows = batch * heads * (-(-length // 128) * 128)
    grouped = 2 * batch * heads * key[2] * width * itemsize if key[1] != heads else 0
    return rows * (-(-width // 32) * 32) * 4 + rows * 4 + grouped


def attention_backward_efficient(query: Sequence[int]) -> int:
    """`workspace_size` of the memory-efficient kernel: the gradient of the queries in float32, in blocks of 128 rows,
    head sizes rounded up to 32, 64, 128 and beyond to multiples of 128; 32 bytes a block for its locks."""
    batch, heads, length, width = query
    blocks = -(-length // 128)
    wide = next((limit for limit in (32, 64, 128) if width <= limit), -(-width // 128) * 128)
    return batch * heads * blocks * (128 * wide * 4 + 32)


def embedding_backward(indices: int, rows: int, width: int, index_bytes: int = 8) -> list[int | Workspace]:
    """`embedding_backward_cuda_kernel`: indices sorted, then partial sums of at most 10 rows each in float32; up to
    3,072 indices a kernel without them."""
    if indices <= 3072:
        return []
    partial = indices // 10 + min(indices, rows)
    return [*[indices * index_bytes] * 4, partial * (-(-width // 32) * 32) * 4]


# cuDNN's recurrent layers, by kind, directions and whether the persistent kernel runs: values that the workspace holds
# for each feature and step, unit and step, unit and step up to the 256th, and unit and layer. As measured (cuDNN 9.19,
# H200): of 7,254 runs over a grid 93 % are met to the byte and 99 % within 3.2 % (`tools/kernels/memory_device.py`).
_RNN_FORWARD = {
    ("LSTM", 1, False): (1, 1, 4, 10), ("LSTM", 1, True): (1, 21, 0, 8),
    ("LSTM", 2, False): (1, 14, 0, 12), ("LSTM", 2, True): (1, 30, 0, 9),
    ("GRU", 1, False): (1, 1, 3, 5), ("GRU", 1, True): (1, 16, 0, 4),
    ("GRU", 2, False): (1, 12, 0, 7), ("GRU", 2, True): (1, 24, 0, 5),
    ("RNN", 1, False): (1, 1, 1, 3), ("RNN", 1, True): (1, 6, 0, 4),
    ("RNN", 2, False): (1, 8, 0, 5), ("RNN", 2, True): (1, 12, 0, 5),
}  # fmt: skip
# Values that the backward pass holds, for each unit and step, and for each unit and layer; features come on top.
_RNN_BACKWARD = {
    ("LSTM", 1, False): (3, 11), ("LSTM", 1, True): (15, 12), ("LSTM", 2, False): (8, 13), ("LSTM", 2, True): (20, 13),
    ("GRU", 1, False): (3, 5), ("GRU", 1, True): (17, 6), ("GRU", 2, False): (8, 7), ("GRU", 2, True): (22, 7),
    ("RNN", 1, False): (3, 5), ("RNN", 1, True): (12, 6), ("RNN", 2, False): (8, 7), ("RNN", 2, True): (17, 7),
}  # fmt: skip
_RNN_CHUNK = 256  # steps whose gates are computed at once
_RNN_PERSISTENT_UNITS = {"LSTM": 128, "GRU": 128, "RNN": 384}  # up to so many, unless in bfloat16
_RNN_ERROR = 0.03
# Values kept per unit and step for the backward pass, and gates; exact in all runs above.
RNN_KEPT = {"LSTM": 5, "GRU": 6, "RNN": 1}
RNN_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True, slots=True)
class OpArguments:
    """The arguments of an op by their schema names, defaults filled in; tensors are given as their specs."""

    values: Mapping[str, object]

    @classmethod
    def of(cls, call: FakeCall) -> OpArguments:
        return cls(map_tensors(call.bind(), lambda tensor: cast(FakeTensor, tensor).spec))

    def tensor(self, name: str) -> Spec:
        found = self.optional_tensor(name)
        assert found is not None, name
        return found

    def optional_tensor(self, name: str) -> Spec | None:
        found = self.values[name]
        assert found is None or isinstance(found, Spec), name
        return found

    def number(self, name: str) -> int:
        found = self.values[name]
        assert isinstance(found, int), name
        return found

    def flag(self, name: str) -> bool:
        return bool(self.values[name])

    def numbers(self, name: str) -> list[int]:
        """The dimensions of an argument that is a list, a number or omitted."""
        found = self.values.get(name)
        return [found] if isinstance(found, int) else [*found] if isinstance(found, list | tuple) else []


@dataclass(frozen=True, slots=True)
class Recurrent:
    kind: str
    steps: int
    batch: int
    features: int
    units: int
    layers: int
    directions: int
    dtype: torch.dtype
    train: bool = False
    drops: bool = False  # dropout between layers

    @classmethod
    def of(cls, arguments: OpArguments) -> Recurrent:
        """From the arguments of `_cudnn_rnn` or its backward."""
        data, train = arguments.tensor("input"), arguments.flag("train")
        steps, batch, features = data.shape
        if arguments.flag("batch_first"):
            steps, batch = batch, steps
        kind = ("RNN", "RNN", "LSTM", "GRU")[arguments.number("mode")]
        directions = 2 if arguments.flag("bidirectional") else 1
        units, layers = arguments.number("hidden_size"), arguments.number("num_layers")
        drops = arguments.flag("dropout") and train and layers > 1
        return cls(kind, steps, batch, features, units, layers, directions, data.dtype, train, drops)

    @property
    def reserve_bytes(self) -> int:
        """Bytes kept for the backward pass."""
        each = self.steps * self.batch * self.units * self.dtype.itemsize
        kept = RNN_KEPT[self.kind] * self.layers * self.directions + (self.layers - 1) * self.directions
        # A bit for each value that may be dropped, for each direction that reads it.
        mask = -(-self.steps * self.batch * self.units * self.directions**2 // 512) * 64
        return kept * each + 256 + (mask * (self.layers - 1) if self.drops else 0)

    @property
    def is_persistent(self) -> bool:
        """Whether the kernel keeps its weights on chip: small layers, and those that torch chooses it for in
        float16."""
        chosen = self.kind != "GRU" and self.layers == self.directions == 1 and self.dtype == torch.float16
        fits = self.units % 128 == 0 and self.units <= 1024 and self.features % 128 == 0
        is_small = self.units <= _RNN_PERSISTENT_UNITS[self.kind] and self.dtype != torch.bfloat16
        return is_small or (chosen and fits and self.batch % 8 == 0 and self.batch <= 128)

    @property
    def workspace(self) -> Workspace:
        """The same for both passes of training: the larger of what they need, and a copy of the weights."""
        persistent = self.is_persistent
        key = self.kind, self.directions, persistent
        each, state = self.batch * self.units, self.batch * self.units * self.layers * self.directions
        features, units, chunked, states = _RNN_FORWARD[key]
        if self.drops and self.directions == 1 and not persistent:
            units += 1  # the output of a layer is copied
        read = self.steps * self.batch * self.features
        needs = [features * read + (units * self.steps + chunked * min(self.steps, _RNN_CHUNK)) * each + states * state]
        if self.train:
            units, states = _RNN_BACKWARD[key]
            wide = max(read, self.steps * each)
            if self.directions == 2:
                read = 6 * read if self.kind == "LSTM" else 2 * read + 4 * wide
            elif self.layers == 1 or persistent:
                read, units = 2 * read + wide, units + (self.layers > 1)
            else:
                read, units = 3 * read, units - (self.kind != "RNN")
            needs.append(read + units * self.steps * each + states * state)
        fixed = (8 * MIB) * self.layers * self.directions + 256 + 8 * self.batch
        nbytes = (max(needs) + self.weight_elements(biases=False)) * self.dtype.itemsize + fixed
        if not self.train:
            return Workspace(nbytes, nbytes, nbytes)
        return Workspace(nbytes, int(nbytes * (1 - _RNN_ERROR)), int(nbytes * (1 + _RNN_ERROR)))

    def weight_elements(self, *, biases: bool = True) -> int:
        gates, total = RNN_GATES[self.kind] * self.units, 0
        for layer in range(self.layers):
            inner = self.features if layer == 0 else self.units * self.directions
            total += self.directions * gates * (inner + self.units + 2 * biases)
        return total


# Lists of sizes that are allocated together and freed before the next list; in bytes, or with a range if the size is an
# estimate.
Phases = list[list[int | Workspace]]
Temporaries = Callable[[OpArguments, Chip], Phases]
# Memory that an op allocates in addition to its results and frees before it ends, in bytes.
TEMPORARIES: Registry[str, Temporaries] = Registry("formula for the temporaries of")
temporaries = TEMPORARIES.register


@temporaries("aten::sum", "aten::mean", "aten::amax", "aten::amin", "aten::prod", "aten::linalg_vector_norm")
def of_reduction(arguments: OpArguments, chip: Chip) -> Phases:
    """Reductions of 16-bit types add in float32, of integers in int64."""
    spec = arguments.tensor("self")
    wide = spec.dtype.itemsize == 8 or not (spec.dtype.is_floating_point or spec.dtype.is_complex)
    return [reduction(chip, spec.shape, spec.stride, arguments.numbers("dim"), 8 if wide else 4)]


@temporaries("aten::any", "aten::all")
def of_bool_reduction(arguments: OpArguments, chip: Chip) -> Phases:
    spec = arguments.tensor("self")
    return [reduction(chip, spec.shape, spec.stride, arguments.numbers("dim"), 1)]


@temporaries("aten::var", "aten::var_mean", "aten::std", "aten::std_mean", "aten::argmax", "aten::argmin")
def of_pairs(arguments: OpArguments, chip: Chip) -> Phases:
    spec = arguments.tensor("self")
    return [reduction(chip, spec.shape, spec.stride, arguments.numbers("dim"), 16)]


@temporaries("aten::native_layer_norm_backward")
def of_layer_norm_backward(arguments: OpArguments, chip: Chip) -> Phases:
    """`LaunchGammaBetaBackwardCUDAKernel`: many short rows are added in two passes, 32 rows to a partial sum first."""
    spec, mask = arguments.tensor("input"), arguments.numbers("output_mask")
    width = math.prod(arguments.numbers("normalized_shape"))
    rows = math.prod(spec.shape) // width
    if not (mask[1] or mask[2]) or rows <= 64 * 1024 or width // 32 >= chip.multiprocessors // 2:
        return []
    partial = -(-rows // 32)
    return [[*[partial * width * spec.dtype.itemsize] * 2, *reduction(chip, (partial, width), (width, 1), [0])]]


@temporaries("aten::embedding_dense_backward")
def of_embedding_backward(arguments: OpArguments, chip: Chip) -> Phases:
    grad, indices = arguments.tensor("grad_output"), arguments.tensor("indices")
    return [embedding_backward(math.prod(indices.shape), arguments.number("num_weights"), grad.shape[-1])]


@temporaries("aten::_scaled_dot_product_cudnn_attention_backward")
def of_cudnn_attention_backward(arguments: OpArguments, chip: Chip) -> Phases:
    query, key = arguments.tensor("query"), arguments.tensor("key")
    return [[attention_backward_cudnn(query.shape, key.shape, query.dtype.itemsize)]]


@temporaries("aten::_scaled_dot_product_flash_attention_backward")
def of_flash_attention_backward(arguments: OpArguments, chip: Chip) -> Phases:
    query, key = arguments.tensor("query"), arguments.tensor("key")
    return [[attention_backward_flash(query.shape, key.shape, query.dtype.itemsize)]]


@temporaries("aten::_scaled_dot_product_efficient_attention_backward")
def of_efficient_attention_backward(arguments: OpArguments, chip: Chip) -> Phases:
    return [[attention_backward_efficient(arguments.tensor("query").shape)]]


@temporaries("aten::roll")
def of_roll(arguments: OpArguments, chip: Chip) -> Phases:
    """One dimension after the other."""
    spec = arguments.tensor("self")
    return [[math.prod(spec.shape) * spec.dtype.itemsize]] if len(arguments.numbers("shifts")) > 1 else []


def _copied(arguments: OpArguments, chip: Chip) -> list[int]:
    """cuDNN reads time first: input that comes batch first is copied."""
    data = arguments.tensor("input")
    return [math.prod(data.shape) * data.dtype.itemsize] if arguments.flag("batch_first") else []


# Arguments that a kernel reads in order: a tensor that is not contiguous is copied first (`expect_contiguous` and
# `contiguous` in aten/src/ATen/native/cuda/layer_norm_kernel.cu, SoftMax.cu, Embedding.cu).
_READ_IN_ORDER = {
    "aten::native_layer_norm": ("input",), "aten::native_layer_norm_backward": ("grad_out", "input"),
    "aten::_fused_rms_norm": ("input",), "aten::_fused_rms_norm_backward": ("grad_out", "input"),
    "aten::_softmax": ("self",), "aten::_softmax_backward_data": ("grad_output", "output"),
    "aten::_log_softmax": ("self",), "aten::_log_softmax_backward_data": ("grad_output", "output"),
    "aten::embedding_dense_backward": ("grad_output",),
}  # fmt: skip


def _ordered_copies(names: Sequence[str]) -> Callable[[OpArguments, Chip], list[int]]:
    def copies(arguments: OpArguments, chip: Chip) -> list[int]:
        given = (arguments.tensor(name) for name in names)
        return [
            math.prod(spec.shape) * spec.dtype.itemsize for spec in given if not is_contiguous(spec.shape, spec.stride)
        ]

    return copies


# Bytes that an op allocates before its results.
EARLY: dict[str, Callable[[OpArguments, Chip], list[int]]] = {
    **{op: _ordered_copies(names) for op, names in _READ_IN_ORDER.items()},
    "aten::_cudnn_rnn": _copied,
    # The gradient of the output as well.
    "aten::_cudnn_rnn_backward": lambda arguments, chip: 2 * _copied(arguments, chip),
}


@temporaries("aten::_cudnn_rnn")
def of_recurrent(arguments: OpArguments, chip: Chip) -> Phases:
    return [[Recurrent.of(arguments).workspace]]


@temporaries("aten::_cudnn_rnn_backward")
def of_recurrent_backward(arguments: OpArguments, chip: Chip) -> Phases:
    """Data first, then weights."""
    each: list[int | Workspace] = [Recurrent.of(arguments).workspace]
    return [each, each]


@temporaries("aten::_safe_softmax")
def of_safe_softmax(arguments: OpArguments, chip: Chip) -> Phases:
    """It searches for rows that are masked completely."""
    spec = arguments.tensor("self")
    elements = math.prod(spec.shape)
    return [[elements, elements // spec.shape[-1], 4]]


@temporaries("aten::native_batch_norm")
def of_batch_norm(arguments: OpArguments, chip: Chip) -> Phases:
    """Channels last in 16 bits is torch's own kernel, with staged sums; as measured (torch 2.11)."""
    spec = arguments.tensor("input")
    is_last = len(spec.shape) == 4 and _is_channels_last(spec) and spec.dtype.itemsize == 2
    return [[spec.shape[1] * 2048, 32]] if is_last and arguments.flag("training") else []


@temporaries("aten::native_batch_norm_backward")
def of_batch_norm_backward(arguments: OpArguments, chip: Chip) -> Phases:
    spec = arguments.tensor("input")
    is_last = len(spec.shape) == 4 and _is_channels_last(spec) and spec.dtype.itemsize == 2
    return [[spec.shape[1] * 1024, 32]] if is_last and arguments.flag("train") else []


@temporaries("aten::convolution")
def of_convolution(arguments: OpArguments, chip: Chip) -> Phases:
    return [[_convolution(arguments, "forward")]]


@temporaries("aten::convolution_backward")
def of_convolution_backward(arguments: OpArguments, chip: Chip) -> Phases:
    """The bias first (a sum), then the input, then the weights."""
    grad, mask = arguments.tensor("grad_output"), arguments.numbers("output_mask")
    phases: Phases = []
    if mask[2]:
        phases.append(reduction(chip, grad.shape, grad.stride, [d for d in range(len(grad.shape)) if d != 1]))
    for name, is_wanted in zip(("data", "weight"), mask, strict=False):
        if is_wanted:
            phases.append([_convolution(arguments, name)])
    return phases


def _convolution(arguments: OpArguments, which: str) -> Workspace:
    data, weight, groups = arguments.tensor("input"), arguments.tensor("weight"), arguments.number("groups")
    batch, channels, *sides = data.shape
    made = weight.shape[1] * groups if arguments.flag("transposed") else weight.shape[0]
    steps = (_of_each(sides, arguments.numbers(name)) for name in ("stride", "padding", "dilation"))
    numbers = (sides, weight.shape[2:], *steps)
    if len(sides) == 1:
        numbers = tuple((first, *own) for first, own in zip((1, 1, 1, 0, 1), numbers, strict=True))
    shape = Convolution(batch, channels, made, groups, arguments.flag("transposed"), *map(tuple, numbers))
    is_last = len(sides) > 1 and (_is_channels_last(data) or _is_channels_last(weight))
    return workspace(shape, which, itemsize=data.dtype.itemsize, channels_last=is_last)


def _of_each(sides: Sequence[int], given: Sequence[int]) -> Sequence[int]:
    """A number for all dimensions is that of each."""
    return [*given] * len(sides) if len(given) == 1 else given


def _is_channels_last(spec: Spec) -> bool:
    """Of images and volumes."""
    _, channels, *sides = spec.shape
    return spec.stride[1] == 1 and channels > 1 and math.prod(sides) > 1 and spec.stride[-1] == channels
