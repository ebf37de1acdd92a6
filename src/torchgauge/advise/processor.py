"""How long an op takes on a processor.

The call, then the longest of three: the arithmetic at the rate that kernels reach, the passes over memory, and what
functions take for each element. Convolutions add up what they do one after the other. The figures are from single ops
(`tools/cpu_ops.py`: 1,000 ops of random sizes) and from the whole times of 108 models (docs/accuracy.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf, log, log2, prod, sqrt

from torchgauge.facts import FREE, OpRecord, TensorSpec, contiguous_stride
from torchgauge.hardware import Pace

# What eager PyTorch takes on the host for an op that does next to nothing, and for a view. Measured with torch 2.13 on
# an EPYC 9374F and an EPYC of 2 shared cores: 2 to 6 µs and 0.7 to 2 µs through nn.Module.
DISPATCH_S, VIEW_S = 4e-6, 1.2e-6
# A part of a tensor comes from Python's brackets, which torch takes apart first (2.6 µs for `x[:, :, 3:9]`). A call
# that splits a tensor makes a view for each part.
_PART_S, _PARTS, _SPLIT_S = 2.2e-6, ("aten::slice", "aten::select"), 0.7e-6
# The processor that all figures below are of: one core of an EPYC with AVX2, in a virtual machine. Those of another are
# scaled by what `hardware.Pace` has of it; without a calibration it is assumed, with its caches as they are here.
REFERENCE = Pace(
    call_s=1.25e-6, depthwise_s=85e-6, tanh_s=3.3e-9, gelu_s=3.5e-9, std_s=7.0e-9,
    bytes_per_s={1 << 17: 45e9, 1 << 19: 60e9, 1 << 21: 74e9, 1 << 23: 74e9, 1 << 25: 22e9},
)  # fmt: skip
# Of the rate of a large product that kernels of a category reach; what is not listed is bound by memory.
_REACHED = {"matmul": 0.89, "attention": 0.63, "recurrent": 0.88}
# A product reaches half of that with so many terms in a sum, rows and columns: its kernel computes blocks, and loads
# and stores each once. 248 products of 1 to 20,000 matrices; the factors are independent of each other.
_HALF_DEPTH, _HALF_ROWS, _HALF_COLUMNS = 10.0, 8.0, 12.0
# Of matrices with fewer multiplications than the first figure torch computes each element in a loop; others take so
# many seconds each. Of the rate of a pass, what the reading of matrices reaches.
_LEAST_MACS, _MATRIX_S, _MATRIX_PASS = 400, 0.15e-6, 0.4
# Those take so many nanoseconds for each multiplication, by whether the second matrix lies row by row (8 shapes of 27
# to 380 multiplications).
_NS_PER_MAC, _NS_PER_TURNED_MAC = 1.2, 0.45
# A second matrix of fewer columns that lies row by row gets no vector code: nanoseconds for each element of the first
# (1.05 to 1.6 for 2 to 10 columns, 0.25 to 0.6 where the second is turned).
_FEW_COLUMNS, _NS_FEW_COLUMNS = 12, 1.45
# MKL reads the whole weight again for each of so many rows: 17 GB/s for one row, 6 to 8 for two, in models of 5 to
# 90 MB of such weights.
_MOST_SINGLE_ROWS = 3
# Smaller weights are still in a cache, from which they come so many times as fast (0.1 to 0.5 MB in loops).
_LEAST_FROM_MEMORY, _CACHED_WEIGHTS = 1 << 19, 2.5
# LAPACK's factorizations and solutions reach half of the rate with matrices of so many rows and columns (12 to 200).
_HALF_FACTORED = 250.0
# Convolutions in groups of so many channels reach as much; with fewer than the second figure the kernel is that of
# depthwise convolutions.
_FULL_GROUP, LEAST_GROUP, _REACHED_DEPTHWISE = 24, 8, 0.3
# oneDNN's depthwise kernels end at 14 taps one way; with more, its plain loop runs (1-D and 2-D, 15 to 51 taps: 2 to
# 3.7 GFLOP/s where products reach 92).
MOST_TAPS, _REACHED_PLAIN = 14, 0.03
# Without oneDNN each group of a 1 × 1 convolution is a call (2.2 to 3.2 µs, with a bias 3.4 to 4.2).
_GROUP_S, _LEAST_SAMPLES = 2.3e-6, 16
# oneDNN computes 8 output channels at once (fewer than `_LEAST_OUTPUTS` take as long), and several neighbours in a row
# of the image: rows of `_HALF_WIDTH` reach half of the rate, as do sums of `_HALF_TERMS`. It copies the image into that
# order and the result back (passes over each), and the weights. 256 convolutions of one to three dimensions.
_REACHED_CONVOLUTION, _REACHED_TRANSPOSED, _CHANNELS, _LEAST_OUTPUTS = 0.85, 0.51, 8, 14
_HALF_WIDTH, _HALF_TERMS, _IMAGE_PASSES, _RESULT_PASSES, _NS_PER_WEIGHT = 1.9, 10.0, 2.6, 2.0, 0.43
READ_IN_PLACE = 3
# With more zeros than this at the ends of a row it multiplies with patches of the image instead, whose elements take so
# many nanoseconds (0.3 to 0.9 for one to four channels; `ONEDNN_VERBOSE=1` lists `gemm`). AVX2 has a lower limit.
_WIDEST_PADDING, _NS_PER_PATCH = 28, 0.5
# Convolutions of 1 × 1 without stride are products, for which nothing is copied.
_REACHED_POINTWISE, _HALF_INPUTS, _HALF_OUTPUTS, _HALF_PIXELS = 0.9, 8.0, 3.5, 13.0
# Nanoseconds per element on one core, for what is computed element by element and not bound by memory: by op and by
# category.
_NS_PER_ELEMENT = {
    "tanh": 3.3, "exp": 1.1, "log": 1.1, "sin": 1.7, "cos": 1.7, "erf": 1.5, "pow": 5.0, "sigmoid": 1.0, "silu": 1.0,
    "gelu": 1.1, "softplus": 3.3, "elu": 2.5, "celu": 2.5, "mish": 7.4, "log_sigmoid_forward": 3.2, "glu": 1.6,
    "expm1": 2.2, "log1p": 1.6, "log2": 8.0, "log10": 8.0, "tan": 2.8, "asin": 2.3, "acos": 2.4, "atan": 3.0,
    "atan2": 3.1, "sinh": 3.0, "cosh": 2.8, "erfinv": 2.3, "sqrt": 0.6, "remainder": 1.7, "fmod": 1.5,
    "native_batch_norm": 0.32, "var": 7.0, "std": 7.0, "var_mean": 7.0, "any": 0.6, "all": 0.6, "isnan": 0.75,
    "isinf": 0.85,
    "native_layer_norm": 0.5, "native_group_norm": 0.5, "_fused_rms_norm": 0.5, "linalg_vector_norm": 0.13,
    "max": 1.1, "min": 1.1, "argmax": 1.3, "argmin": 1.3, "logsumexp": 3.0,
    "tril": 0.7, "triu": 0.7, "cumsum": 1.0, "where": 1.0, "masked_fill": 1.7, "constant_pad_nd": 0.4, "roll": 0.9,
    "_weight_norm_interface": 0.5, "reflection_pad1d": 1.2, "replication_pad1d": 1.7, "reflection_pad2d": 0.3,
    "replication_pad2d": 0.3, "reflection_pad3d": 0.4, "replication_pad3d": 0.4, "upsample_bicubic2d": 10.0,
    "index": 1.2, "gather": 3.0, "scatter": 1.2, "embedding": 0.4, "index_select": 0.4, "topk": 8.0,
    "_euclidean_dist": 1.7, "index_add": 0.8, "scatter_add": 0.8, "index_put": 0.8,
    "bernoulli": 9.0, "native_dropout": 9.0, "rand": 3.7, "rand_like": 3.7, "uniform": 3.7, "randn": 4.0,
    "randn_like": 4.0, "normal": 4.0, "exponential": 6.0, "_fft_r2c": 0.9, "_fft_c2r": 1.6, "_fft_c2c": 2.0,
    "median": 14.0, "nanmedian": 14.0, "kthvalue": 11.0, "mode": 40.0, "cumprod": 0.8, "logcumsumexp": 27.0,
    "searchsorted": 29.0, "bucketize": 29.0, "_unique2": 90.0, "erfc": 1.9, "lgamma": 6.6, "digamma": 30.0,
}  # fmt: skip
_NS_BY_CATEGORY = {"softmax": 1.25, "resize": 2.5}
# Of these, functions that torch takes from MKL, which is fast on processors of Intel; the others are torch's own vector
# code, as that of its GELU. And kernels without vector code.
_OF_MKL = {"tanh", "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "expm1"}
_WITHOUT_VECTORS = {
    "_weight_norm_interface", "pow", "any", "all", "isnan", "isinf", "var", "std", "var_mean", "tril", "triu",
    "cumsum", "where", "masked_fill",
    "index", "gather", "scatter", "topk", "_euclidean_dist", "max", "min", "argmax", "argmin", "index_add",
    "scatter_add", "bernoulli", "native_dropout", "rand", "rand_like", "uniform", "randn", "randn_like", "normal",
    "exponential", "mish", "log_sigmoid_forward", "median", "nanmedian", "kthvalue", "mode", "cumprod", "logcumsumexp",
    "searchsorted", "bucketize", "_unique2", "lgamma", "digamma",
}  # fmt: skip
# The variance of a whole tensor, which torch computes in a loop written for it (0.9 for 5 shapes).
_NS_WHOLE_VARIANCE = 1.05
# Functions of complex numbers call the C library for each (50 to 86 for exp).
_NS_COMPLEX_ABS = 4.2
_FUNCTIONS, _NS_OF_COMPLEX = {"exp", "log", "sin", "cos", "tanh", "pow", "sqrt", "rsqrt", "reciprocal"}, 50.0
# A batch norm that computes its statistics, in two loops without vector code (2.6 for a weight of 512 × 4,608).
_NS_BATCH_STATISTICS = 2.5
# A copy of rows that lie apart, one that turns the innermost dimension around (0.7 to 1.5 for 11 shapes), and one whose
# elements lie a multiple of 4 KiB apart, so that they share the few lines of one set of the cache (2.3 to 3.4).
_NS_STRIDED_COPY, _NS_TURNED_COPY, _NS_ALIASED_COPY, _ALIASED_BYTES = 0.25, 1.0, 2.7, 4096
# An operand of a sum or product whose innermost elements lie apart, which has no vector code; one that does not fit
# into the second-level cache; and one whose elements share the lines of a set, as above. 15 shapes of 16 KiB to 16 MiB.
_NS_TURNED_OPERAND, _NS_LARGE_TURNED_OPERAND, _NS_ALIASED_OPERAND, _CACHED_BYTES = 0.9, 1.7, 3.4, 2 << 20
# For each row that a kernel goes through: ops with an operand that is repeated for every row, copies of parts, joined
# tensors; sums, norms and maxima over rows; statistics.
_NS_PER_ROW = {"elementwise": 6.0, "copy": 3.5, "reduction": 7.0, "softmax": 12.0}
_NS_PER_ROW_OF = {
    "max": 25.0, "min": 25.0, "argmax": 25.0, "argmin": 25.0, "amax": 25.0, "amin": 25.0, "native_layer_norm": 75.0,
    "var": 100.0, "std": 100.0, "var_mean": 100.0, "logsumexp": 30.0, "index_add": 12.0, "scatter_add": 12.0,
    "index_put": 12.0, "any": 50.0, "all": 50.0, "_weight_norm_interface": 16.0,
}  # fmt: skip
# A softmax of fewer elements than a vector holds calls the C library for each; one over another dimension than the
# last goes through memory in steps.
_VECTOR, _NS_SHORT_SOFTMAX, _NS_SOFTMAX_ACROSS = 8, 20.0, 1.9
# A norm over another dimension than the last, for each element and each result (85 ns for three elements, 145 for 64);
# an index into the last dimension, and a gather of whole rows.
_NS_NORM_ACROSS, _NS_PER_NORM_ACROSS, _NS_INDEX_LAST, _NS_GATHERED_ROWS = 2.0, 110.0, 3.5, 0.35
# A sum over another dimension than the last, of tensors outside the nearest cache (0.22 to 0.47 for 11 shapes).
_NS_SUM_ACROSS = 0.28
# A sort of rows, for each element and halving; rows that fit into few vectors are sorted by insertion.
_NS_SORT, _NS_SHORT_SORT, _SHORT_ROW = 5.5, 2.0, 64
# torch has no vector code for these: a mask of bools as numbers, comparisons, logic of masks that are broadcast;
# integers as floats.
_NS_OF_MASKS, _NS_OF_INTEGERS = 1.1, 0.7
# A float32 tensor with one of float64 is widened element by element, 0.55 ns; twice this, as float64 takes twice the
# time of float32 elsewhere.
_NS_WIDENED = 0.27
_COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne"}
_LOGIC = {"bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or", "logical_xor"}
# Numbers of 16 bits are widened and rounded again: a factor for functions of them, nanoseconds for sums and products.
_NARROW_FUNCTIONS, _NS_NARROW = 1.5, 0.3
# Of each result: what a maximum takes for an element of its window in one dimension, where torch has vector code; an
# average, with each element of its window. An average over parts of any size takes as long for each element read.
_NS_MAXIMUM_1D, _NS_AVERAGE, _NS_AVERAGED, _NS_ADAPTIVE = 0.35, 8.0, 0.7, 1.1
# In planes and volumes a maximum takes the first figure times a power of the elements in its window: 25 ns for 9, 56
# for 25, 167 for 150 and 1,000 for 1,400 (24 pools).
_NS_MAXIMUM, _WINDOW_POWER = 5.5, 0.72
# Products with a sparse matrix: for each stored element and each column, and in coordinates for each stored element.
_NS_SPARSE, _NS_COORDINATE = 0.3, 45.0
# Seconds in addition to a call's: the layouts of a convolution, the statistics of a norm, the rows of a reduction, the
# arguments of a factory, the Python of a resize, the hook of a weight norm, and the Python of a linear layer (nn.Linear
# takes 7 to 9 µs in all).
_EXTRA_S = {"attention": 30e-6, "normalization": 6e-6, "reduction": 3e-6, "allocation": 3e-6, "resize": 5e-6}
_EXTRA_POINTWISE_S, _EXTRA_CONVOLUTION_S, _EXTRA_DEPTHWISE_S = 10e-6, 46e-6, 130e-6
_EXTRA_WEIGHT_NORM_S, _EXTRA_LINEAR_S = 15e-6, 3e-6
# `repeat` expands, unfolds and copies: 8 µs in all for 64 elements.
_EXTRA_REPEAT_S = 5e-6
# A sum or product with a number of Python's, which becomes a tensor: 3.1 to 3.8 µs where two tensors take 1.3.
_EXTRA_NUMBER_S, _OF_TWO = 1.9e-6, {"add", "sub", "rsub", "mul", "div"}
# A recurrent layer of oneDNN: what it sets up at each call, each step, and the weights that it copies into its layout.
# From LSTMs of 16 to 256 features and 1 to 32 steps: one step of 64 features takes 126 µs, the second layer 65.
_EXTRA_RECURRENT_S, _STEP_S, _NS_PER_RECURRENT_WEIGHT = 90e-6, 2e-6, 0.8
# Convolutions of one small image or volume, with a kernel of at most 3 one way, and of float64 do not go to oneDNN
# (torch's ConvParams): the patches are copied into a matrix, which is multiplied; those of volumes element by element.
_MOST_IN_PATCHES, _LARGEST_IN_PATCHES, _EXTRA_IN_PATCHES_S, _NS_PER_PATCH_OF_VOLUME = 20480, 3, 8e-6, 0.55
# Fused attention: the queries of a block by the least number of queries, and the keys of one (FlashAttentionKernel.cpp
# of torch); its products as a part of their time with scores in memory; nanoseconds for a score, for a mask on it, for
# each score behind the last whole vector of a row (these have no vector code), for a query and for a block. From 630
# random shapes. Processors with AVX2 have shorter vectors, so fewer scores are left over there.
_QUERY_BLOCKS, _KEY_BLOCK, _WIDEST_VECTOR = ((768, 256), (192, 64), (0, 32)), 512, 16
_PRODUCTS_IN_BLOCKS, _NS_PER_SCORE, _NS_PER_MASKED_SCORE, _NS_PER_ODD_SCORE = 0.83, 0.98, 0.47, 7.0
_NS_PER_QUERY, _NS_PER_BLOCK = 28.0, 400.0
# Of the rate of a pass that is repeated, what one in a model reaches: other tensors have passed through the caches.
_IN_A_MODEL = 0.6
# By how much a processor's passes and vector code are faster than the reference's, as a power, and what of it shows in
# models: a calibration repeats an op on data in the caches (52 models on an EPYC with AVX-512: sums, copies and norms
# took twice as long as a calibration makes of them, products and convolutions as long).
_SHOWN_IN_MODELS = 0.5
# Elements from which on an op is split among threads, and FLOP of a product or convolution: 10 µs, of which starting a
# thread takes a good part.
_ELEMENTS_PER_THREAD, _FLOP_PER_THREAD = 32768, 1e6
# Of these, the elements that are read are those of the result: rows of a table, parts of a tensor.
_LOOKUPS = {"index", "gather", "embedding", "index_select"}
# Of these, the elements that are added.
_SCATTERS = {"index_add", "scatter_add", "index_put"}
# With other exponents `pow` is a logarithm and an exponential; these are products and roots.
_CHEAP_EXPONENTS = (2, 3, 0.5, -0.5, -1, -2)


def op_seconds(op: OpRecord, flops_per_s: float, pace: Pace | None, threads: int) -> float:
    """`flops_per_s` is the rate of a large product in the type of the op."""
    pace = pace or REFERENCE
    calls = pace.call_s / REFERENCE.call_s
    if op.status == FREE:
        parts = max(len(op.signature.outputs) - 1, 0)
        return (_PART_S if op.op in _PARTS else VIEW_S + parts * _SPLIT_S) * calls
    call_s = DISPATCH_S * calls + extra_seconds(op, pace)
    working = min(max(op.signature.cost.flops / _FLOP_PER_THREAD, 1.0), max(threads, 1))
    flops_per_s *= working / max(threads, 1)
    if op.category == "convolution":
        return call_s + _convolution(op, flops_per_s, pace, threads)
    signature = op.signature
    nbytes = signature.cost.bytes_read + signature.cost.bytes_written
    passes = pass_seconds(pace, nbytes)
    functions = _functions(op, pace, threads)
    if op.category == "matmul" and signature.inputs:
        return call_s + max(_product(op, flops_per_s, pace), functions)
    reached = _REACHED.get(op.category, 0.5)
    if "linalg_" in op.op and op.category == "other" and signature.inputs:
        size = sqrt(prod(signature.inputs[0].shape[-2:]))
        reached *= size / (size + _HALF_FACTORED)
    return call_s + max(signature.cost.flops / (flops_per_s * reached), passes, functions)


def _convolution(op: OpRecord, flops_per_s: float, pace: Pace, threads: int) -> float:
    signature, cost = op.signature, op.signature.cost
    nbytes, per_group = cost.bytes_read + cost.bytes_written, channels_in_group(op)
    passes = pass_seconds(pace, nbytes)
    if len(signature.inputs) < 2 or not signature.outputs:
        return max(cost.flops / (flops_per_s * _REACHED_CONVOLUTION), passes)
    if loops_over_groups(op, threads):
        groups = int(signature.attributes.get("groups") or 1)
        return groups * _GROUP_S * pace.call_s / REFERENCE.call_s + passes
    if per_group is not None:
        full = min(per_group / _FULL_GROUP, 1.0) * 0.75
        is_long = per_group == 1 and max(signature.inputs[1].shape[2:]) > MOST_TAPS
        is_depthwise = per_group < LEAST_GROUP
        reached = _REACHED_PLAIN if is_long else _REACHED_DEPTHWISE if is_depthwise else full
        # Image and result are copied into oneDNN's order and back.
        return max(cost.flops / (flops_per_s * reached), pass_seconds(pace, 2 * nbytes) if is_depthwise else passes)
    image, weight, made = signature.inputs[0], signature.inputs[1], signature.outputs[0]
    is_transposed = bool(signature.attributes.get("transposed"))
    inside, outside = weight.shape[:2] if is_transposed else weight.shape[1::-1]
    if is_pointwise(op):
        pixels = max(prod(made.shape[2:]), 1)
        blocks = (1 + _HALF_INPUTS / inside) * (1 + _HALF_OUTPUTS / outside) * (1 + _HALF_PIXELS / pixels)
        return max(cost.flops * blocks / (flops_per_s * _REACHED_POINTWISE), passes)
    if is_in_patches(op):
        depth, pixels = inside * prod(weight.shape[2:]), prod(made.shape[2:])
        blocks = (1 + _HALF_DEPTH / depth) * (1 + _HALF_ROWS / outside) * (1 + _HALF_COLUMNS / pixels)
        patches = sum(workspace(op))
        product_s = cost.flops * blocks / (flops_per_s * _REACHED["matmul"])
        by_element = patches / image.itemsize * _NS_PER_PATCH_OF_VOLUME * 1e-9 if len(image.shape) == 5 else 0.0
        by_element *= pace.std_s / REFERENCE.std_s
        # The patches are written and read; the weights come from memory.
        return product_s + by_element + pass_seconds(pace, 2 * patches) + weight.nbytes / _memory_rate(pace)
    computed = max(-(-outside // _CHANNELS) * _CHANNELS, _LEAST_OUTPUTS) / outside
    reached = _REACHED_TRANSPOSED if is_transposed else _REACHED_CONVOLUTION
    reached /= (1 + _HALF_WIDTH / max(made.shape[-1], 1)) * (1 + _HALF_TERMS / (inside * prod(weight.shape[2:])))
    copied = _IMAGE_PASSES * image.nbytes + _RESULT_PASSES * made.nbytes
    padding, by_element = signature.attributes.get("padding"), weight.numel * _NS_PER_WEIGHT
    if isinstance(padding, list) and not is_transposed and padding[-1] > _WIDEST_PADDING:
        by_element += made.numel // outside * inside * prod(weight.shape[2:]) * _NS_PER_PATCH
    elements_s = by_element * 1e-9 * _speed("", pace) / max(threads, 1)
    return cost.flops * computed / (flops_per_s * reached) + pass_seconds(pace, copied) + elements_s


def is_pointwise(op: OpRecord) -> bool:
    """Whether a convolution is a product of a matrix with each pixel."""
    stride = op.signature.attributes.get("stride") or (1,)
    step = max(stride) if isinstance(stride, list | tuple) else stride
    return prod(op.signature.inputs[1].shape[2:]) == 1 and step == 1


def loops_over_groups(op: OpRecord, threads: int) -> bool:
    """Whether torch computes a convolution of 1 × 1 in groups without oneDNN: with one thread, for fewer than 16
    samples, one group after the other."""
    image = op.signature.inputs[0]
    is_plain = (
        channels_in_group(op) is not None and not op.signature.attributes.get("transposed") and len(image.shape) < 5
    )
    return is_plain and is_pointwise(op) and threads == 1 and image.shape[0] < _LEAST_SAMPLES


def is_in_patches(op: OpRecord) -> bool:
    """Whether a convolution without groups is one product with the patches of its image."""
    image, weight = op.signature.inputs[:2]
    if op.signature.attributes.get("transposed") or not 3 <= len(image.shape) <= 5:
        return False
    is_small = prod(image.shape[:4]) <= _MOST_IN_PATCHES and image.shape[0] == 1
    kernel = (1, *weight.shape[2:])[-2:]
    return image.dtype == "float64" or (is_small and min(kernel) <= _LARGEST_IN_PATCHES)


def workspace(op: OpRecord) -> tuple[int, ...]:
    """Bytes of the blocks of memory that a convolution takes for itself: image, weights and result in oneDNN's order,
    or the patches of a small image. An image of few channels is read as it is (`ONEDNN_VERBOSE=1` lists the copies)."""
    signature = op.signature
    if op.category != "convolution" or len(signature.inputs) < 2 or not signature.outputs or is_pointwise(op):
        return ()
    image, weight, made = signature.inputs[0], signature.inputs[1], signature.outputs[0]
    if channels_in_group(op) is None and is_in_patches(op):
        return (prod(weight.shape[1:]) * made.numel // made.shape[1] * image.itemsize,)
    return (image.nbytes if image.shape[1] > READ_IN_PLACE else 0, weight.nbytes, made.nbytes)


def _product(op: OpRecord, flops_per_s: float, pace: Pace) -> float:
    signature, cost = op.signature, op.signature.cost
    sparse = next((spec for spec in signature.inputs if spec.is_sparse), None)
    if sparse is not None and sparse.stored:
        # In coordinates two numbers say where an element is; in rows one does.
        in_coordinates = sparse.index_bytes >= 2 * 8 * sparse.stored
        return (cost.macs * _NS_SPARSE + sparse.stored * _NS_COORDINATE * in_coordinates) * 1e-9
    nbytes = cost.bytes_read + cost.bytes_written
    passes = nbytes / (_MATRIX_PASS * _rate_in_a_model(pace, nbytes))
    is_matrix = bool(signature.outputs) and len(signature.outputs[0].shape) > 1 and signature.outputs[0].numel > 0
    if not is_matrix or op.op == "aten::_trilinear":  # whose result is smaller than the products inside
        return max(cost.flops / (flops_per_s * _REACHED["matmul"]), passes)
    *_, rows, columns = signature.outputs[0].shape
    matrices = signature.outputs[0].numel // (rows * columns)
    each, second, plain = cost.macs / matrices, signature.inputs[-1], pace.std_s / REFERENCE.std_s
    lies_in_rows = second.stride is None or second.stride[-1] == 1
    if matrices > 1 and each < _LEAST_MACS:
        return max(cost.macs * (_NS_PER_MAC if lies_in_rows else _NS_PER_TURNED_MAC) * 1e-9 * plain, passes)
    # Matrices whose rows and columns both lie apart are put in order first.
    copied = sum(spec.numel * _ns_of_copy(spec) for spec in signature.inputs if 1 not in (spec.stride or (1,))[-2:])
    overhead = copied * 1e-9 * plain
    overhead += matrices * _MATRIX_S * pace.call_s / REFERENCE.call_s if matrices > 1 else 0.0
    read_s = second.nbytes / _memory_rate(pace) if op.weights and matrices == 1 else 0.0
    read_s /= 1.0 if second.nbytes >= _LEAST_FROM_MEMORY else _CACHED_WEIGHTS
    if min(rows, columns) == 1:  # a vector's product is bound by memory
        return overhead + max(passes, read_s)
    depth = each / (rows * columns)
    blocks = (1 + _HALF_DEPTH / max(depth, 1.0)) * (1 + _HALF_ROWS / rows) * (1 + _HALF_COLUMNS / columns)
    is_narrow = columns < _FEW_COLUMNS and len(second.shape) > 1 and lies_in_rows
    by_element = cost.macs / columns * _NS_FEW_COLUMNS * 1e-9 * plain if is_narrow else 0.0
    product_s = cost.flops * blocks / (flops_per_s * _REACHED["matmul"])
    if rows <= _MOST_SINGLE_ROWS:
        return overhead + max(product_s, by_element, passes, rows * read_s)
    return overhead + max(product_s + read_s, by_element, passes)


def _functions(op: OpRecord, pace: Pace, threads: int) -> float:
    """What is computed for each element, and for each row that a kernel goes through."""
    signature, name = op.signature, _name(op)
    specs = (*signature.outputs, *(() if name in _LOOKUPS or op.category == "pooling" else signature.inputs[:1]))
    if name in _SCATTERS:
        specs = signature.inputs[-1:]
    elements = max((spec.numel for spec in specs), default=0)
    if op.category == "pooling" and "adaptive" in name and signature.inputs:
        elements = signature.inputs[0].numel
    sharing = min(max(threads, 1), max(elements // _ELEMENTS_PER_THREAD, 1))
    wide = 2.0 if signature.dtype == "float64" else 1.0
    has_vectors = name not in _WITHOUT_VECTORS and op.category not in ("pooling", "sort", "resize")
    is_complex, has_statistics = (signature.dtype or "").startswith("complex"), signature.attributes.get("training")
    is_turned = _turned_step(op) > 1 or (op.category == "copy" and any(_step(spec) > 1 for spec in signature.inputs))
    is_plain = not has_vectors or is_complex or (has_statistics and "batch_norm" in name) or is_turned
    speed = pace.std_s / REFERENCE.std_s if is_plain else _speed(name, pace)
    rows = _rows(op, name) * pace.call_s / REFERENCE.call_s
    return (elements * _ns_per_element(op, name) * wide * speed + rows) * 1e-9 / sharing


def _speed(name: str, pace: Pace) -> float:
    """Of vector code, in parts of the reference's."""
    return pace.tanh_s / REFERENCE.tanh_s if name in _OF_MKL else (pace.gelu_s / REFERENCE.gelu_s) ** _SHOWN_IN_MODELS


def call_pace(pace: Pace | None) -> float:
    """What a call takes on a processor, in parts of the reference's."""
    return (pace or REFERENCE).call_s / REFERENCE.call_s


def function_seconds(name: str, elements: int, pace: Pace | None, threads: int) -> float:
    """Of torch's kernel for an activation function on a processor; 0 where memory takes longer than the function."""
    pace = pace or REFERENCE
    speed = pace.std_s / REFERENCE.std_s if name in _WITHOUT_VECTORS else _speed(name, pace)
    each_s = REFERENCE.gelu_s if name == "gelu_tanh" else _NS_PER_ELEMENT.get(name, 0.0) * 1e-9
    return elements * each_s * speed / min(max(threads, 1), max(elements // _ELEMENTS_PER_THREAD, 1))


def attention_seconds(
    sizes: tuple[int, int, int], products_s: float, pace: Pace | None, threads: int, *, is_masked: bool, copied: int
) -> float:
    """Of the fused attention of `sizes` heads, queries and keys without its call, where two products take
    `products_s`. `copied`: elements of queries, keys and values that are put in order first."""
    pace = pace or REFERENCE
    rows, queries, keys = sizes
    block = next(size for least, size in _QUERY_BLOCKS if queries >= least)
    blocks = rows * -(-queries // block) * -(-keys // _KEY_BLOCK)
    calls, plain, vector = call_pace(pace), pace.std_s / REFERENCE.std_s, _speed("", pace)
    per_score = (_NS_PER_SCORE + _NS_PER_MASKED_SCORE * is_masked) * vector
    per_query = keys * per_score + keys % _WIDEST_VECTOR * _NS_PER_ODD_SCORE * plain + _NS_PER_QUERY * calls
    work = rows * queries * per_query + blocks * _NS_PER_BLOCK * calls + copied * _NS_TURNED_COPY * plain
    return _PRODUCTS_IN_BLOCKS * products_s + work * 1e-9 / min(max(threads, 1), max(blocks, 1))


def pass_seconds(pace: Pace, nbytes: float) -> float:
    """Of reading and writing so many bytes in a model."""
    return nbytes / (_IN_A_MODEL * _rate_in_a_model(pace, nbytes))


def _rate_in_a_model(pace: Pace, nbytes: float) -> float:
    """Bytes per second that passes reach in a model, of which `_IN_A_MODEL` and the like are parts."""
    usual = pass_rate(REFERENCE, nbytes)
    return usual * (pass_rate(pace, nbytes) / usual) ** _SHOWN_IN_MODELS


def _memory_rate(pace: Pace) -> float:
    """Bytes per second that come from memory in a model, as weights do: others have passed through the caches since
    the last call."""
    return _IN_A_MODEL * _rate_in_a_model(pace, inf)


def pass_rate(pace: Pace, nbytes: float) -> float:
    """Bytes per second of an op that reads and writes so many: between the sizes that were measured, on a line of
    logarithms."""
    known = sorted(pace.bytes_per_s.items())
    for (small, fast), (large, slow) in pairwise(known):
        if small < nbytes < large:
            return fast * (slow / fast) ** (log(nbytes / small) / log(large / small))
    return known[0][1] if nbytes <= known[0][0] else known[-1][1]


def _name(op: OpRecord) -> str:
    return op.op.removeprefix("aten::").removesuffix("_")


def channels_in_group(op: OpRecord) -> int | None:
    """The channels in a group of a convolution that has groups."""
    if op.category != "convolution" or int(op.signature.attributes.get("groups") or 1) == 1:
        return None
    return op.signature.inputs[1].shape[1]


def extra_seconds(op: OpRecord, pace: Pace | None = None) -> float:
    """What a call takes in addition to its dispatch and the work per element."""
    pace = pace or REFERENCE
    calls = pace.call_s / REFERENCE.call_s
    if op.category == "recurrent" and op.signature.inputs and len(op.signature.inputs[0].shape) > 2:
        steps, weights = op.signature.inputs[0].shape[0], sum(spec.numel for spec in op.signature.inputs[1:3])
        copied_s = weights * _NS_PER_RECURRENT_WEIGHT * 1e-9 * _speed("", pace)
        return calls * (_EXTRA_RECURRENT_S + _STEP_S * steps) + copied_s
    if op.category == "convolution" and len(op.signature.inputs) > 1:
        per_group = channels_in_group(op)
        if per_group is not None and per_group < LEAST_GROUP:
            return _EXTRA_DEPTHWISE_S * pace.depthwise_s / REFERENCE.depthwise_s
        if is_pointwise(op):
            return calls * _EXTRA_POINTWISE_S
        return calls * (_EXTRA_IN_PATCHES_S if is_in_patches(op) else _EXTRA_CONVOLUTION_S)
    if op.op == "aten::_weight_norm_interface":
        return calls * _EXTRA_WEIGHT_NORM_S
    if op.op == "aten::repeat":
        return calls * _EXTRA_REPEAT_S
    if _name(op) in _OF_TWO and len(op.signature.inputs) == 1:
        return calls * _EXTRA_NUMBER_S
    if op.category == "matmul" and op.weights:
        return calls * _EXTRA_LINEAR_S
    return calls * _EXTRA_S.get(op.category, 0.0)


def _rows(op: OpRecord, name: str) -> float:
    """Nanoseconds for the rows that a kernel goes through one by one."""
    signature = op.signature
    if not signature.outputs or not signature.inputs:
        return 0.0
    first, made = signature.inputs[0], signature.outputs[0]
    if name in ("cat", "stack"):
        return _NS_PER_ROW["copy"] * _joined_runs(op)
    each = _NS_PER_ROW_OF.get(name) or _NS_PER_ROW.get(op.category)
    # Tensors without elements, as the rows that a mask chooses where it is false everywhere, have no rows.
    if each is None or not all(spec.numel for spec in (first, signature.inputs[-1], made)):
        return 0.0
    if name == "_weight_norm_interface":  # by the first dimension a row is all of a norm's elements
        return 0.0 if _joined_dim(op, first) == 0 else each * first.numel / first.shape[-1]
    if name == "linalg_vector_norm" and not is_over_last(op):
        return _NS_PER_NORM_ACROSS * made.numel
    if op.category == "reduction":  # over other dimensions than the last, whole rows are added up
        return each * made.numel if made.numel < first.numel and is_over_last(op) else 0.0
    if name in _SCATTERS:
        return each * signature.inputs[-1].numel / max(signature.inputs[-1].shape[-1:] or (1,))
    if op.category in ("softmax", "normalization"):
        return each * first.numel / max(first.shape[-1:] or (1,))
    inner = _inner_run(signature.inputs, made)
    return 0.0 if inner >= made.numel else each * made.numel / inner


def _inner_run(inputs: tuple[TensorSpec, ...], made: TensorSpec) -> int:
    """The elements that a kernel goes through in one loop: over the last dimensions, as far as each operand is either
    repeated along them or lies in even steps."""
    run, wanted = 1, dict[int, int]()  # by operand, the step that goes on with the dimensions behind
    for back in range(1, len(made.shape) + 1):
        size = made.shape[-back]
        if size == 1:
            continue
        steps = {}
        for at, spec in enumerate(inputs):
            is_repeated = back > len(spec.shape) or spec.shape[-back] == 1
            strides = spec.stride or contiguous_stride(spec.shape)
            steps[at] = 0 if is_repeated else strides[-back]
        if wanted and steps != wanted:
            return run
        wanted = {at: step * size for at, step in steps.items()}
        run *= size
    return run


def _joined_runs(op: OpRecord) -> int:
    """Parts of memory that are copied one by one where tensors are joined."""
    made = op.signature.outputs[0]
    return prod(made.shape[: _joined_dim(op, made)]) * len(op.signature.inputs)


def _joined_dim(op: OpRecord, spec: TensorSpec) -> int:
    return int(op.signature.attributes.get("dim") or 0) % max(len(spec.shape), 1)


def _ns_per_element(op: OpRecord, name: str) -> float:
    attributes, inputs, outputs, made = (
        op.signature.attributes, op.signature.inputs, op.signature.outputs, op.signature.dtype
    )  # fmt: skip
    if name == "pow" and attributes.get("exponent") in _CHEAP_EXPONENTS:
        return 0.0
    if name == "gelu" and attributes.get("approximate") == "tanh":
        return REFERENCE.gelu_s * 1e9
    if "batch_norm" in name and attributes.get("training"):
        return _NS_BATCH_STATISTICS
    if op.category == "pooling":
        return _pooling(op, name)
    if (made or "").startswith("complex") and (name in _FUNCTIONS or name == "abs"):
        return _NS_OF_COMPLEX if name in _FUNCTIONS else _NS_COMPLEX_ABS
    if name in ("var", "std") and inputs and outputs and outputs[0].numel == 1:
        return _NS_WHOLE_VARIANCE
    special = _by_dimension(op, name)
    if special is not None:
        return special
    known = _NS_PER_ELEMENT.get(name) or _NS_BY_CATEGORY.get(op.category) or 0.0
    is_narrow = made in ("bfloat16", "float16") and op.category in ("elementwise", "activation")
    if known or is_narrow or not inputs or not outputs:  # aten::equal gives a number to Python
        return max(known * _NARROW_FUNCTIONS, _NS_NARROW) if is_narrow else known
    first = inputs[0]
    is_broadcast = all(spec.numel < outputs[0].numel for spec in inputs)
    if name in _COMPARISONS and not first.is_floating:
        return _NS_OF_INTEGERS
    if name in _COMPARISONS or (name in _LOGIC and is_broadcast):
        return _NS_OF_MASKS
    if op.category == "elementwise":
        is_masked = outputs[0].is_floating and any(spec.dtype == "bool" for spec in inputs)
        is_widened = made == "float64" and any(spec.dtype == "float32" for spec in inputs)
        if is_masked or is_widened:
            return _NS_OF_MASKS if is_masked else _NS_WIDENED
        step, width = _turned_step(op), outputs[0].itemsize
        if step <= 1 or not step * width % _ALIASED_BYTES:
            return 0.0 if step <= 1 else _NS_ALIASED_OPERAND
        return _NS_TURNED_OPERAND if outputs[0].nbytes <= _CACHED_BYTES else _NS_LARGE_TURNED_OPERAND
    if op.category != "copy":
        return 0.0
    if name in ("cat", "stack"):  # the parts that lie otherwise are copied as they would be alone
        copied = sum(spec.numel * _ns_of_copy(spec) for spec in inputs)
        return copied / max(outputs[0].numel, 1)
    if first.dtype != made and first.dtype in ("bool", "int64", "int32"):
        return _NS_OF_MASKS if first.dtype == "bool" else _NS_OF_INTEGERS
    return _ns_of_copy(first)


def _ns_of_copy(spec: TensorSpec) -> float:
    """Nanoseconds for each element of a tensor that is put in order."""
    step = _step(spec)
    if step <= 1:
        return 0.0 if spec.stride is None else _NS_STRIDED_COPY
    return _NS_TURNED_COPY if step * spec.itemsize % _ALIASED_BYTES else _NS_ALIASED_COPY


def _step(spec: TensorSpec) -> int:
    """Elements between two that are neighbours in the innermost dimension."""
    return next((step for size, step in zip(spec.shape[::-1], (spec.stride or ())[::-1], strict=False) if size > 1), 1)


def _turned_step(op: OpRecord) -> int:
    """The step of an operand of a pointwise op whose elements lie apart along the dimension that the kernel goes
    through first, while those of another do not; 1 where all lie alike."""
    if op.category != "elementwise" or not op.signature.outputs:
        return 1
    rank = len(op.signature.outputs[0].shape)
    steps = [_steps(spec, rank) for spec in op.signature.inputs if spec.numel > 1]
    if len(steps) < 2:
        return 1
    inner = rank - 1
    for dim in range(rank - 2, -1, -1):  # torch's TensorIterator: the first operand that has steps along both decides
        order = next((own[dim] - own[inner] for own in steps if own[dim] and own[inner]), 0)
        # A dimension along which nothing has a step has one element.
        if order < 0 or not any(own[inner] for own in steps):
            inner = dim
    found = [own[inner] for own in steps if own[inner]]
    return max(found) if found and min(found) == 1 else 1


def _steps(spec: TensorSpec, rank: int) -> list[int]:
    """By dimension of a result of this rank, the elements from one to the next; 0 where there is one alone."""
    strides = spec.stride or contiguous_stride(spec.shape)
    own = [step if size > 1 else 0 for size, step in zip(spec.shape, strides, strict=True)]
    return [0] * (rank - len(own)) + own


def is_over_last(op: OpRecord) -> bool:
    """Whether an op works along the dimension of more than one element whose neighbours lie next to each other."""
    dim, first = op.signature.attributes.get("dim"), op.signature.inputs[0]
    if dim is None or dim in ([], ()):
        return True
    chosen = dim if isinstance(dim, list | tuple) else [dim]
    strides = first.stride or contiguous_stride(first.shape)
    steps = [(step, -at) for at, (size, step) in enumerate(zip(first.shape, strides, strict=True)) if size > 1 and step]
    last = -min(steps, default=(0, 0))[1]
    return last in [int(each) % max(len(first.shape), 1) for each in chosen]


def _by_dimension(op: OpRecord, name: str) -> float | None:
    """Of ops that take longer over some dimensions than over others; None for others."""
    inputs, outputs, dim = op.signature.inputs, op.signature.outputs, op.signature.attributes.get("dim")
    if not inputs or not outputs or not inputs[0].shape:
        return None
    shape = inputs[0].shape
    is_last = is_over_last(op)
    if op.category == "softmax":
        # Its input is put in order first.
        if inputs[0].stride is not None and isinstance(dim, int):
            is_last = all(size == 1 for size in shape[dim % len(shape) + 1 :])
        if min(shape[-1], _VECTOR) < _VECTOR:
            return _NS_SHORT_SOFTMAX if is_last else _NS_SOFTMAX_ACROSS * 2.5
        return None if is_last else _NS_SOFTMAX_ACROSS
    if name == "linalg_vector_norm":
        return None if is_last else _NS_NORM_ACROSS
    if name in ("sum", "mean") and not is_last:
        return _NS_SUM_ACROSS
    if name == "index" and outputs[0].shape[-1:] != shape[-1:]:
        return _NS_INDEX_LAST
    if name == "gather" and not is_last and len(inputs) > 1 and inputs[1].stride is not None:
        return _NS_GATHERED_ROWS
    if "sort" in name:
        length = shape[dim % len(shape)] if isinstance(dim, int) else shape[-1]
        return (_NS_SORT if length >= _SHORT_ROW else _NS_SHORT_SORT) * log2(max(length, 2))
    return None


def _pooling(op: OpRecord, name: str) -> float:
    """Of each result; of each element read where windows are of any size."""
    window = op.signature.attributes.get("kernel_size")
    size = prod(window) if isinstance(window, list | tuple) else 1
    if "adaptive" in name:
        return _NS_ADAPTIVE
    if "max" not in name:
        return _NS_AVERAGE + _NS_AVERAGED * size
    given = op.signature.inputs[0].shape if op.signature.inputs else ()
    is_line = len(given) < 3 or (given[-2] == 1 and isinstance(window, list | tuple) and window[0] == 1)
    return size * _NS_MAXIMUM_1D if is_line else maximum_ns(seen_windows(op) or [size])


def seen_windows(op: OpRecord) -> list[float]:
    """By dimension, how many values a pool's window has inside the image, on average."""
    window, padding = (op.signature.attributes.get(name) for name in ("kernel_size", "padding"))
    if not isinstance(window, list | tuple) or not op.signature.inputs:
        return []
    sizes = op.signature.inputs[0].shape[-len(window) :]
    pads = list(padding) if isinstance(padding, list | tuple) and padding else [0]
    pads = pads * len(window) if len(pads) == 1 else pads
    # At each end `pad` windows lack 1, 2, … values.
    lost = [pad * (pad + 1) / max(size, 1) for pad, size in zip(pads, sizes, strict=False)]
    return [max(values - less, 1.0) for values, less in zip(window, lost, strict=False)]


def maximum_ns(window: Sequence[float]) -> float:
    """Of each result of a maximum over windows of planes or volumes."""
    return _NS_MAXIMUM * prod(window) ** _WINDOW_POWER
