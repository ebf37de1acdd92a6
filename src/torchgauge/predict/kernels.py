"""CUDA's kernels in place of the CPU's, for a trace on CPU tensors without data.

A CPU build of torch cannot trace a backward pass of `cuda` tensors. So the trace runs on the CPU, and functions that
behave differently on the device are replaced where the model calls them: the attention kernel that would be chosen and
what it saves, dropout with its mask of one byte, cuDNN's recurrent layers, fused cells and RMS norm, and CUDA's lists
of autocast.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, cast

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _pop_mode_temporarily

from torchgauge.predict.devices import Chip
from torchgauge.registry import Registry

Function = Callable[..., Any]
Args = Sequence[object]
Kwargs = Mapping[str, object]
_HALF_TYPES = (torch.float16, torch.bfloat16)
_HANDLERS: Registry[str, Function] = Registry("replacement for the function")
handles = _HANDLERS.register

# aten/src/ATen/autocast_mode.h, AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE, by the names that Python calls.
_FLOAT32 = frozenset((
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow", "__pow__", "__rpow__", "softplus", "layer_norm", "native_layer_norm", "group_norm",
    "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss_nd", "hinge_embedding_loss", "kl_div", "l1_loss",
    "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "prod", "cumprod", "cumsum", "sum", "norm", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d",
    "upsample_trilinear3d", "interpolate", "log_softmax", "softmax",
))  # fmt: skip
_TAKE_DTYPE = frozenset(("prod", "cumprod", "cumsum", "sum", "log_softmax", "softmax"))


@dataclass(frozen=True, slots=True)
class Library:
    """Versions that decide which kernels torch takes; `cudnn` as `torch.backends.cudnn.version()` gives it."""

    chip: Chip
    cudnn: int = 91900

    @property
    def prefers_cudnn_attention(self) -> bool:
        """`check_prefer_cudnn_attention` of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp."""
        return self.chip.capability[0] in (9, 10) and self.cudnn > 91500


class CudaKernels(TorchFunctionMode):
    def __init__(self, library: Library, autocast: torch.dtype | None = None) -> None:
        super().__init__()
        self.library = library
        self.autocast = autocast
        self.calling = ""  # the function of torch that the model's code has called, unless that is a plain one

    def __torch_function__(
        self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        known = _known.get(func) or _note_function(func)
        if known is _PLAIN:
            return func(*args, **kwargs) if kwargs else func(*args)
        name, handler, needs_inside = known
        around, self.calling = self.calling, name
        try:
            if self.autocast is not None and name in _FLOAT32 and torch.is_autocast_enabled("cpu"):
                args, kwargs = self._in_float32(name, args, kwargs or {})
            if handler is not None:
                return handler(self, func, *args, **(kwargs or {}))
            if needs_inside:
                with self._inside():
                    return func(*args, **(kwargs or {}))
            return func(*args, **kwargs) if kwargs else func(*args)
        finally:
            self.calling = around

    def _in_float32(self, name: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        first = args[0] if args else kwargs.get("input")
        if not isinstance(first, torch.Tensor) or not first.dtype.is_floating_point or first.dtype.itemsize >= 4:
            return args, kwargs
        if name in _TAKE_DTYPE:
            return args, {**kwargs, "dtype": torch.float32} if kwargs.get("dtype") is None else kwargs
        return [_to_float32(value) for value in args], {key: _to_float32(value) for key, value in kwargs.items()}

    @contextmanager
    def _inside(self) -> Iterator[None]:
        saved = {name: vars(functional)[name] for name in _INSIDE}
        try:
            for name, original in saved.items():
                vars(functional)[name] = _replacement(self, name, original)
            yield
        finally:
            vars(functional).update(saved)


_INSIDE = ("scaled_dot_product_attention", "dropout", "softmax")
# By function of torch: its name, what replaces it, and whether its body may call one of `_INSIDE`. The mode is off
# inside, so these are replaced by name.
_known: dict[Function, tuple[str, Function | None, bool]] = {}
# Most functions: they run unchanged, and their names are not needed.
_PLAIN = ("", None, False)
_MAX_FUNCTIONS = 1 << 12  # torch has about half as many; others may use its protocol too


def _note_function(func: Function) -> tuple[str, Function | None, bool]:
    name = getattr(func, "__name__", "")
    module = getattr(func, "__module__", None) or "torch"  # built-in functions and methods have none
    is_builtin = type(func).__name__ in ("builtin_function_or_method", "method_descriptor")
    handler = _HANDLERS.get(name) if is_builtin or module.startswith("torch") else None
    needs_inside = False
    if type(func) is FunctionType and func.__module__ == functional.__name__:
        needs_inside = not _called_in(func).isdisjoint(_INSIDE)
    if len(_known) >= _MAX_FUNCTIONS:
        _known.clear()
    is_plain = handler is None and not needs_inside and name not in _FLOAT32 and "add" not in name
    found = _known[func] = _PLAIN if is_plain else (name, handler, needs_inside)
    return found


def _called_in(func: FunctionType) -> set[str]:
    """Names of functions of `torch.nn.functional` that it may call, itself or in those that it calls."""
    found: set[str] = set()
    waiting = [func.__code__]
    while waiting:
        code = waiting.pop()
        names = set(code.co_names) - found
        found |= names
        inner = (vars(functional).get(name) for name in names)
        waiting += [f.__code__ for f in inner if type(f) is FunctionType and f.__module__ == functional.__name__]
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found


def _replacement(mode: CudaKernels, name: str, original: Function) -> Function:
    """For the tracing thread; another thread that calls the function gets the original."""
    tracing = threading.get_ident()

    def call(*args: object, **kwargs: object) -> object:
        if threading.get_ident() != tracing:
            return original(*args, **kwargs)
        return _HANDLERS[name](mode, original, *args, **kwargs)

    return call


def _to_float32(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    return value


@handles("scaled_dot_product_attention")
def attention(
    mode: CudaKernels,
    func: Function,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    ops: Any = torch.ops.aten
    if mode.autocast is not None and torch.is_autocast_enabled("cpu"):
        query, key, value = (_lowered(tensor, mode.autocast) for tensor in (query, key, value))
        attn_mask = (
            attn_mask if attn_mask is None or attn_mask.dtype == torch.bool else _lowered(attn_mask, mode.autocast)
        )
    kernel = chosen_attention(mode.library, query, key, value, attn_mask, is_causal, enable_gqa)
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    if kernel == "math":
        # The parts of attention are not cast again: autocast is done with its arguments.
        with torch.autocast("cpu", enabled=False):
            if dropout_p > 0:
                return _math_with_dropout(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            return ops._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )[0]
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
        elif attn_mask.dtype != query.dtype:
            attn_mask = attn_mask.to(query.dtype)
        length = attn_mask.shape[-1]
        if kernel == "efficient" and length % 8:
            # The kernel reads rows of a mask from addresses that are multiples of 16 elements.
            attn_mask = functional.pad(attn_mask, (0, 8 - length % 8))[..., :length]
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    if kernel == "cudnn":
        return ops._scaled_dot_product_cudnn_attention(
            query, key, value, attn_mask, needs_grad, dropout_p, is_causal, False, scale=scale
        )[0]
    if kernel == "flash":
        return ops._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    return ops._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, needs_grad, dropout_p, is_causal, scale=scale
    )[0]


def _math_with_dropout(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    grouped: bool,
) -> torch.Tensor:
    """`_scaled_dot_product_attention_math` (aten/src/ATen/native/transformers/attention.cpp) with CUDA's dropout."""
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    wide = [tensor.float() if is_half else tensor for tensor in (query, key, value)]
    if grouped and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        wide[1:] = [tensor.repeat_interleave(times, -3) for tensor in wide[1:]]
    factor = (scale if scale is not None else query.shape[-1] ** -0.5) ** 0.5
    scores = torch.matmul(wide[0] * factor, wide[1].transpose(-2, -1) * factor)
    if is_causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    if mask is not None:
        scores += torch.zeros_like(mask, dtype=query.dtype) if mask.dtype == torch.bool else mask
    weights = torch.native_dropout(torch.ops.aten._safe_softmax(scores, -1), dropout_p, True)[0]
    return torch.matmul(weights, wide[2]).to(query.dtype)


def chosen_attention(
    library: Library,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    grouped: bool,
) -> str:
    """The kernel that `_fused_sdp_choice_cuda` takes: cuDNN where it is preferred, else flash, memory-efficient, math
    (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)."""
    if query.dim() != 4 or query.dtype == torch.float64:
        return "math"
    width, is_half = query.shape[-1], query.dtype in (torch.float16, torch.bfloat16)
    is_same_heads = query.shape[1] == key.shape[1]
    given = [query, key, value, *([] if mask is None else [mask])]
    if (not is_same_heads and not grouped) or any(tensor.stride(-1) != 1 for tensor in given):
        return "math"  # `check_last_dim_stride_equals_1_dense`
    fits_flash = is_half and width <= 256 and value.shape[-1] == width and library.chip.capability[0] >= 8
    is_trained = mask is not None and mask.requires_grad and torch.is_grad_enabled()
    # One query, a step of decoding, goes to cuDNN as well where nothing is trained (H200, torch 2.11, cuDNN 9.19).
    has_queries = query.shape[2] > 1 or not (query.requires_grad and torch.is_grad_enabled())
    if library.prefers_cudnn_attention and fits_flash and width % 8 == 0 and has_queries and not is_trained:
        return "cudnn"
    if fits_flash and mask is None and not (is_causal and query.shape[2] != key.shape[2]):
        return "flash"
    aligned = width % (8 if is_half else 4) == 0 and value.shape[-1] % (8 if is_half else 4) == 0
    return "efficient" if is_same_heads and aligned else "math"


def _lowered(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.dtype.is_floating_point and tensor.dtype != torch.float64 else tensor


@handles("dropout")
def dropout(
    mode: CudaKernels,
    func: Function,
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    train: bool | None = None,
) -> torch.Tensor:
    is_on = training if train is None else train
    if not is_on or p == 0 or p >= 1 or inplace or input.numel() == 0:
        return func(input, p, is_on, inplace) if type(func) is FunctionType else func(input, p, is_on)
    return torch.native_dropout(input, p, True)[0]


@handles("softmax", "log_softmax")
def softmax(
    mode: CudaKernels, func: Function, input: torch.Tensor, dim: int | None = None, *args: object, **kwargs: object
) -> torch.Tensor:
    """A half input is converted by the kernel, without a copy; bfloat16 is copied, as on the CPU."""
    if kwargs.get("dtype") is torch.float32 and input.dtype is torch.float16 and isinstance(dim, int):
        kernel = torch.ops.aten._log_softmax if func.__name__ == "log_softmax" else torch.ops.aten._softmax
        return kernel(input, dim, True)
    return func(input, dim, *args, **kwargs)


@handles("cross_entropy")
def cross_entropy(
    mode: CudaKernels, func: Function, input: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """It asks for a log-softmax in the type of its input, which autocast leaves alone; the loss is in float32."""
    if mode.autocast is None or not torch.is_autocast_enabled("cpu") or input.dtype not in _HALF_TYPES:
        return func(input, target, *args, **kwargs)
    if target.is_floating_point() or kwargs.get("label_smoothing") or len(args) > 5:
        return func(input.float(), target, *args, **kwargs)
    logs = torch.ops.aten._log_softmax(input, 0 if input.dim() == 1 else 1, False)
    kwargs.pop("label_smoothing", None)
    return functional.nll_loss(logs.float(), target, *args, **kwargs)


@handles("group_norm")
def group_norm(mode: CudaKernels, func: Function, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Its kernels read the channels first, in order: another input is copied (aten/src/ATen/native/group_norm.cpp)."""
    found: torch.Tensor = func(input.contiguous(), *args, **kwargs)
    return found


@handles("rms_norm")
def rms_norm(
    mode: CudaKernels,
    func: Function,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    # Torch 2.8; the composite runs for weights of another type and for channels_last (`rms_norm_symint` of
    # aten/src/ATen/native/layer_norm.cpp).
    is_last = input.dim() in (4, 5) and not input.is_contiguous() and input.stride(1) == 1
    is_fused = hasattr(torch.ops.aten, "_fused_rms_norm") and not is_last
    if not is_fused or (weight is not None and weight.dtype != input.dtype):
        return func(input, normalized_shape, weight, eps)
    apply: Function = _FusedRMSNorm.apply
    return cast(torch.Tensor, apply(input, weight, list(normalized_shape), eps))


class _FusedRMSNorm(torch.autograd.Function):
    """CPU builds of torch decompose the fused op before a trace can see it."""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor | None, shape: list[int], eps: float | None
    ) -> torch.Tensor:
        made, sums = _as_one_op(torch.ops.aten._fused_rms_norm.default, input, shape, weight, eps)
        ctx.save_for_backward(input, weight, sums)
        ctx.shape = shape
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight, sums = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:2])
        op = torch.ops.aten._fused_rms_norm_backward.default
        return (*_as_one_op(op, gradients[0], input, ctx.shape, sums, weight, wanted), None, None)


def _as_one_op(op: Any, *args: object) -> Any:
    with _pop_mode_temporarily() as mode:
        return mode.__torch_dispatch__(op, (), args, {})


@handles("lstm_cell", "gru_cell")
def cell(
    mode: CudaKernels,
    func: Function,
    input: torch.Tensor,
    hx: Any,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> object:
    """Two products and one kernel for all else (`LSTMCell` and `GRUCell` of aten/src/ATen/native/RNN.cpp)."""
    if mode.autocast is not None and torch.is_autocast_enabled("cpu"):
        return func(input, hx, w_ih, w_hh, b_ih, b_hh)
    state = hx[0] if func.__name__ == "lstm_cell" else hx
    gates = input.matmul(w_ih.t()), state.matmul(w_hh.t())
    if func.__name__ == "lstm_cell":
        return torch.ops.aten._thnn_fused_lstm_cell(*gates, hx[1], b_ih, b_hh)[:2]
    return torch.ops.aten._thnn_fused_gru_cell(*gates, hx, b_ih, b_hh)[0]


_RNN_MODES = {"lstm": 2, "gru": 3, "rnn_tanh": 1, "rnn_relu": 0}


@handles("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(mode: CudaKernels, func: Function, *args: Any, **kwargs: Any) -> object:
    """All layers in one call of cuDNN (`_cudnn_impl` of aten/src/ATen/native/cudnn/RNN.cpp); packed sequences and
    projections as the CPU does them."""
    is_lstm = func.__name__ == "lstm"
    # Of packed sequences the second argument is a tensor of batch sizes, in front of the states.
    is_packed = len(args) == 9 and isinstance(args[1 if is_lstm else 2], torch.Tensor)
    if len(args) != 9 or kwargs or is_packed or not args[0].dtype.is_floating_point:
        return func(*args, **kwargs)
    data, state, weights, has_biases, layers, probability, is_training, both, batch_first = args
    hidden = state[0] if is_lstm else state
    cell: torch.Tensor | None = state[1] if is_lstm else None
    if not has_biases or (cell is not None and hidden.shape[-1] != cell.shape[-1]):
        return func(*args)
    units = hidden.shape[-1]
    if mode.autocast is not None and torch.is_autocast_enabled("cpu"):
        # Always in float16, whatever autocast's type (aten/src/ATen/cudnn/AutocastRNN.cpp).
        data, hidden, cell = (None if value is None else value.half() for value in (data, hidden, cell))
        weights = [weight.half() for weight in weights]
    shown = torch.ops.aten._cudnn_rnn(
        data, list(weights), 4, None, hidden, cell, _RNN_MODES[func.__name__], units, 0, layers, batch_first,
        probability if is_training else 0.0, is_training, both, [], None,
    )  # fmt: skip
    return (shown[0], shown[1], shown[2]) if is_lstm else (shown[0], shown[1])
