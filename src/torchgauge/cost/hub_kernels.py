"""Kernels of libraries, recognised by their schema: the names of the op and of its arguments, in any namespace.

Kernels of Hugging Face's `kernels` package register their ops under a namespace with a hash (`_activation_3a1c9f2`),
vLLM, SGLang and flash-attn the same ops under theirs. The schemas are those of the repositories' C++ bindings. Many
have no fake kernel; `outputs` describes what they return.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torchgauge.cost.attention import Heads, attend, attend_backward, tokens_first
from torchgauge.cost.elementwise import SIGMOID_FLOPS
from torchgauge.cost.quantization import DEQUANTIZE_FLOPS, QUANTIZE_FLOPS
from torchgauge.cost.registry import Call, Work, kernel
from torchgauge.cost.work import argument, rows, total_bytes
from torchgauge.facts import TensorSpec

_RMS_FLOPS, _RMS_ROW_FLOPS = 4, 3  # as `aten::rms_norm`
_ROTATION_FLOPS = 3  # x₁ cos − x₂ sin
_SOFTMAX_FLOPS = 5
# x/2 (1 + erf(x/√2)); the tanh form has a cubic inside.
_GELU_FLOPS, _GELU_TANH_FLOPS = 5, 9
_ACTIVATION_FLOPS = {
    "silu": SIGMOID_FLOPS + 1, "gelu": _GELU_FLOPS, "gelu_tanh": _GELU_TANH_FLOPS, "gelu_new": _GELU_TANH_FLOPS,
    "gelu_fast": _GELU_TANH_FLOPS, "gelu_quick": SIGMOID_FLOPS + 2, "relu": 1, "fatrelu": 1,
    "swigluoai": SIGMOID_FLOPS + 6,  # three bounds, the sigmoid of a scaled gate, a sum
}  # fmt: skip


def _moving(call: Call, work: Work, *outs: str) -> Work:
    """Read once all arguments but those in `outs`, which are only written. Bindings mark more tensors as written than
    their kernels write to (the query of an attention)."""
    read = [value for name, value in call.arguments.items() if name not in outs]
    written = [*call.outputs, *(call.get(name) for name in outs)]
    return work._replace(bytes_read=total_bytes(read), bytes_written=total_bytes(written))


def _work(call: Call, *outs: str, macs: int = 0, flops: int = 0) -> Work:
    """`flops` in addition to those of the multiply-accumulates."""
    return _moving(call, Work(macs, 2 * macs + flops), *outs)


# Attention


def _flash_outputs(call: Call) -> Sequence[TensorSpec]:
    """The result, log-sum-exps, dropped scores and the state of the generator."""
    query, value = argument(call, "q", "query"), argument(call, "v", "value", "vcache")
    out = TensorSpec((*query.shape[:-1], value.shape[-1]), query.dtype)
    vectors = (query.shape[1], query.shape[0]) if len(query.shape) == 3 else (query.shape[0], *query.shape[2:0:-1])
    sums = TensorSpec(vectors, "float32")
    if "kcache" in call.arguments:
        return [out, sums]
    return [out, sums, TensorSpec((0,), query.dtype), TensorSpec((2,), "int64")]


@kernel("fwd", "mha_fwd", arguments="q k v softmax_scale", category="attention", outputs=_flash_outputs)
@kernel("varlen_fwd", "mha_varlen_fwd", arguments="q k v cu_seqlens_q", category="attention", outputs=_flash_outputs)
@kernel("_flash_attn_forward", "_flash_attn_varlen_forward", arguments="q k v", category="attention")
@kernel("flash_attention_varlen", "fmha_forward", "hopper_fmha_forward", "blackwell_fmha_forward",
        arguments="out query key value", category="attention")  # fmt: skip
def flash_attention(call: Call) -> Work:
    return _moving(call, attend(call, tokens_first(call)), "out", "out_", "logsumexp")


@kernel("bwd", "varlen_bwd", arguments="dout q k v softmax_lse", category="attention")
@kernel("_flash_attn_backward", "_flash_attn_varlen_backward", arguments="dout q k v", category="attention")
def flash_attention_backward(call: Call) -> Work:
    return _moving(call, attend_backward(call, tokens_first(call)), "dq", "dk", "dv", "dq_", "dk_", "dv_")


@kernel("fwd_kvcache", arguments="q kcache vcache", category="attention", outputs=_flash_outputs)
def cached_attention(call: Call) -> Work:
    """One query or a few per sequence against its cache, taken as full; a paged cache has a table of pages."""
    query, cache, pages = call["q"], call["kcache"], argument(call, "block_table_", "block_table")
    length = cache.shape[1] * (pages.shape[1] if isinstance(pages, TensorSpec) else 1)
    size = cache.shape[-1]
    work = attend(call, Heads(rows(query) * length, size, call["vcache"].shape[-1]))
    read = 2 * query.shape[0] * length * prod(cache.shape[2:]) * cache.itemsize
    out = call.outputs[0].nbytes if call.outputs else query.nbytes
    return work._replace(bytes_read=query.nbytes + read, bytes_written=out)


@kernel("paged_attention_v1", "paged_attention_v2", arguments="out query key_cache value_cache max_seq_len",
        category="attention")  # fmt: skip
def paged_attention(call: Call) -> Work:
    """A query per sequence against at most `max_seq_len` keys and values in pages."""
    query, length, size = call["query"], call["max_seq_len"], call["query"].shape[-1]
    work = attend(call, Heads(rows(query) * length, size, size))
    read = 2 * query.shape[0] * length * call["num_kv_heads"] * size * call["key_cache"].itemsize
    return work._replace(bytes_read=query.nbytes + read, bytes_written=query.nbytes)


@kernel(*(f"{kind}na{rank}d_forward" for kind in ("", "hopper_", "blackwell_", "reference_") for rank in (1, 2, 3)),
        arguments="out query key value kernel_size", category="attention")  # fmt: skip
def neighborhood_attention(call: Call) -> Work:
    """Each query against a window of keys."""
    query, window = call["query"], prod(call["kernel_size"])
    heads = Heads(rows(query) * window, query.shape[-1], call["value"].shape[-1])
    return _moving(call, attend(call, heads), "out", "logsumexp")


_SAGE = tuple(
    f"qk_int8_sv_{value}_accum_{total}{fused}_attn{buffer}"
    for value, total in (("f8", "f32"), ("f8", "f16"), ("f16", "f32"), ("f16", "f16"))
    for fused in ("", "_fuse_v_scale", "_fuse_v_mean", "_fuse_v_scale_fuse_v_mean")
    for buffer in ("", "_inst_buf", "_inst_buf_sm90")
)


@kernel(*_SAGE, arguments="q k v o q_scale k_scale tensor_layout", category="attention",
        outputs=lambda call: [TensorSpec((0,), "float32")])  # fmt: skip
def sage_attention(call: Call) -> Work:
    """Keys of one sample: dimension 1, or 2 where heads come first."""
    query, keys = call["q"], call["k"].shape[2 if call["tensor_layout"] else 1]
    return _moving(call, attend(call, Heads(rows(query) * keys, query.shape[-1], query.shape[-1])), "o")


# Activations


for _name, _rate in _ACTIVATION_FLOPS.items():

    @kernel(_name, arguments="out input", category="activation")
    def activation(call: Call, rate: int = _rate) -> Work:
        return _work(call, "out", flops=rate * call["out"].numel)

    @kernel(f"{_name}_and_mul", f"mul_and_{_name}", arguments="out input", category="activation")
    def gated_activation(call: Call, rate: int = _rate) -> Work:
        return _work(call, "out", flops=(rate + 1) * call["out"].numel)


# Normalization and positions


@kernel("apply_rms_norm", arguments="hidden_states weight variance_epsilon", category="normalization",
        outputs=lambda call: [x := call["hidden_states"], TensorSpec(x.shape[:-1], "float32")])  # fmt: skip
@kernel("rms_norm", arguments="result input weight epsilon", category="normalization")
@kernel("rms_norm", arguments="out input weight epsilon", category="normalization")
@kernel("rmsnorm", arguments="output input weight eps", category="normalization")
@kernel("launch_forward_kernel", arguments="input weight output epsilon", category="normalization")
@kernel("fused_add_rms_norm", arguments="input residual weight epsilon", category="normalization")
@kernel("fused_add_rmsnorm", arguments="input residual weight eps", category="normalization")
def rms_norm(call: Call) -> Work:
    x = argument(call, "hidden_states", "input")
    adds = "residual" in call.arguments  # both are written in place
    outs = () if adds else ("result", "out", "output")
    work = _work(call, *outs, flops=(_RMS_FLOPS + adds) * x.numel + _RMS_ROW_FLOPS * rows(x))
    return work._replace(bytes_written=2 * x.nbytes) if adds else work


@kernel("apply_rms_norm_backward", arguments="grad_output hidden_states weight rstd", category="normalization",
        outputs=lambda call: [call["hidden_states"], call["weight"]])  # fmt: skip
def rms_norm_backward(call: Call) -> Work:
    return _work(call, flops=9 * call["hidden_states"].numel)


def _ln_outputs(call: Call) -> Sequence[TensorSpec]:
    """Normalised, sum, mask of the dropout, means, deviations."""
    x = call["input"]
    statistics = TensorSpec(x.shape[:-1], "float32")
    return [x, x, TensorSpec((0,), "uint8"), statistics, statistics]


@kernel("dropout_add_ln_fwd", arguments="input gamma epsilon is_rms_norm", category="normalization",
        outputs=_ln_outputs)  # fmt: skip
def dropout_add_norm(call: Call) -> Work:
    x = call["input"]
    rate = _RMS_FLOPS if call["is_rms_norm"] else 7 + (call.get("beta") is not None)
    adds = (call.get("x0_subset") is not None) + 2 * (call.get("dropout_p", 0.0) > 0)
    return _work(call, flops=(rate + adds) * x.numel + 4 * rows(x))


@kernel("apply_rotary", arguments="x1 x2 cos sin out1 out2", category="elementwise")
def apply_rotary(call: Call) -> Work:
    return _work(call, "out1", "out2", flops=_ROTATION_FLOPS * (call["out1"].numel + call["out2"].numel))


@kernel("rotary_embedding", arguments="positions query cos_sin_cache head_size", category="elementwise")
def rotary_embedding(call: Call) -> Work:
    """In place; of a head the first dimensions may be rotated alone."""
    vectors = [spec for spec in (call["query"], call.get("key")) if isinstance(spec, TensorSpec)]
    share = min(call["cos_sin_cache"].shape[-1] / max(call["head_size"], 1), 1)
    rotated = [int(spec.numel * share) for spec in vectors]
    moved = sum(count * spec.itemsize for count, spec in zip(rotated, vectors, strict=True))
    tables = call["positions"].numel * call["cos_sin_cache"].shape[-1] * call["cos_sin_cache"].itemsize
    return Work(0, _ROTATION_FLOPS * sum(rotated), moved + tables + call["positions"].nbytes, moved)


# Experts


@kernel("topk_softmax", arguments="topk_weights topk_indices gating_output", category="softmax")
def topk_softmax(call: Call) -> Work:
    outs = ("topk_weights", "topk_indices", "token_expert_indices")
    return _work(call, *outs, flops=_SOFTMAX_FLOPS * call["gating_output"].numel)


@kernel("moe_sum", arguments="input output", category="reduction")
def moe_sum(call: Call) -> Work:
    """Which of the two is marked as written differs between bindings."""
    return _work(call, "output", flops=call["input"].numel)


@kernel("moe_align_block_size", "sgl_moe_align_block_size", "batched_moe_align_block_size",
        arguments="sorted_token_ids experts_ids num_tokens_post_pad", category="indexing")  # fmt: skip
def moe_align(call: Call) -> Work:
    return _work(call, "sorted_token_ids", "experts_ids", "num_tokens_post_pad")


@kernel("gmm", arguments="a b c batch_sizes trans_a trans_b", category="matmul")
def grouped_product(call: Call) -> Work:
    """The rows of `a` by experts; transposed it is the gradient of their weights."""
    columns = call["b"].shape[-2 if call["trans_b"] else -1]
    return _work(call, "c", macs=call["a"].numel * columns)


@kernel("fused_experts", arguments="hidden_states w1 w2 topk_ids", category="matmul",
        outputs=lambda call: [call["hidden_states"]])  # fmt: skip
def fused_experts(call: Call) -> Work:
    """Gate and value in one product, the gated value in another, for each choice of a token."""
    choices, up, down = call["topk_ids"].numel, call["w1"].shape, call["w2"].shape
    hidden = call["hidden_states"].shape[-1]
    macs = choices * hidden * (up[-2] + up[-2] // 2 if len(up) == 3 and len(down) == 3 else 0)
    return _work(call, macs=macs, flops=choices * (up[-2] // 2) * (SIGMOID_FLOPS + 2))


@kernel("moe_wna16_gemm", arguments="input output b_qweight b_scales top_k bit", category="matmul",
        outputs=lambda call: [call["output"]])  # fmt: skip
def expert_weight_only_product(call: Call) -> Work:
    return _work(call, "output", macs=call["output"].numel * call["input"].shape[-1])


@kernel("marlin_gemm_moe", arguments="a b_q_weights size_m size_n size_k topk", category="matmul",
        outputs=lambda call: [TensorSpec((call["size_m"], call["topk"], call["size_n"]), call["a"].dtype)])  # fmt: skip
def marlin_experts(call: Call) -> Work:
    return _work(call, macs=call["size_m"] * call["topk"] * call["size_n"] * call["size_k"])


# Products with quantised weights


def _features(call: Call) -> int:
    """Outputs of a linear layer: given, or one row of the packed weight each, or one column."""
    if "output_features" in call.arguments:
        return int(call["output_features"])
    if call.op.endswith(("w8_a16_gemm", "gptq_gemm", "affine_qmm_n")):
        return int(argument(call, "scale", "b_q_weight", "scales").shape[-1])
    if call.op.endswith("awq_gemm"):
        return int(call["_scaling_factors"].shape[-1])
    return int(argument(call, "weight", "w").shape[0])


def _linear_outputs(call: Call) -> Sequence[TensorSpec]:
    given = argument(call, "input", "x", "a", "_in_feats")
    return [TensorSpec((*given.shape[:-1], _features(call)), given.dtype)]


@kernel("gemm_4bit_forward", arguments="input weight absmax", category="matmul", outputs=_linear_outputs)
@kernel("gemm_int4_forward", arguments="input weight zeros absmax", category="matmul", outputs=_linear_outputs)
@kernel("w8_a16_gemm", arguments="input weight scale", category="matmul", outputs=_linear_outputs)
@kernel("bnb_gemv_4bit", "bnb_gemm_4bit", arguments="x w absmax output_features", category="matmul",
        outputs=_linear_outputs)  # fmt: skip
@kernel("affine_qmm_t", "affine_qmm_n", "affine_qmv", "mxfp4_qmm_n", "mxfp4_qmv", arguments="x w scales",
        category="matmul", outputs=_linear_outputs)  # fmt: skip
@kernel("awq_gemm", arguments="_in_feats _kernel _scaling_factors _zeros", category="matmul", outputs=_linear_outputs)
@kernel("gptq_gemm", arguments="a b_q_weight b_gptq_scales", category="matmul", outputs=_linear_outputs)
def weight_only_linear(call: Call) -> Work:
    """Each weight is restored on the way to its product."""
    given, features = argument(call, "input", "x", "a", "_in_feats"), _features(call)
    restored = DEQUANTIZE_FLOPS * given.shape[-1] * features
    return _work(call, macs=given.numel * features, flops=restored)


@kernel("gptq_marlin_gemm", "marlin_gemm", arguments="a b_q_weight b_scales size_m size_n size_k", category="matmul",
        outputs=lambda call: [TensorSpec((call["size_m"], call["size_n"]), call["a"].dtype)])  # fmt: skip
def marlin_linear(call: Call) -> Work:
    restored = DEQUANTIZE_FLOPS * call["size_n"] * call["size_k"]
    return _work(call, "c", "c_or_none", macs=call["size_m"] * call["size_n"] * call["size_k"], flops=restored)


@kernel("cutlass_scaled_mm", arguments="out a b a_scales b_scales", category="matmul")
def scaled_product(call: Call) -> Work:
    scaling = 2 + (call.get("bias") is not None)
    return _work(call, "out", macs=call["out"].numel * call["a"].shape[-1], flops=scaling * call["out"].numel)


@kernel("cutlass_scaled_fp4_mm", arguments="a b a_sf b_sf alpha", category="matmul",
        outputs=lambda call: [TensorSpec((call["a"].shape[0], call["b"].shape[0]), "bfloat16")])  # fmt: skip
def four_bit_product(call: Call) -> Work:
    """Two values in a byte."""
    return _work(call, macs=2 * call["a"].numel * call["b"].shape[0], flops=call["a"].shape[0] * call["b"].shape[0])


def _row_wise_outputs(call: Call) -> Sequence[TensorSpec]:
    given, weight = argument(call, "X", "XQ"), argument(call, "W", "WQ")
    return [TensorSpec((*given.shape[:-1], weight.shape[-2]), "bfloat16")]


# MSLK and FBGEMM, which torchao calls. Each row of the weight is an output.
@kernel("bf16i4bf16_rowwise", "bf16i4bf16_shuffled", arguments="X W w_scale_group w_zero_group", category="matmul",
        outputs=_row_wise_outputs)  # fmt: skip
@kernel("bf16i4bf16_rowwise", "bf16i4bf16_rowwise_batched", "bf16i4bf16_shuffled_batched",
        arguments="X WQ w_scale w_zp", category="matmul", outputs=_row_wise_outputs)  # fmt: skip
@kernel("f8i4bf16_rowwise", "f8i4bf16_shuffled", arguments="XQ WQ x_scale w_scale", category="matmul",
        outputs=_row_wise_outputs)  # fmt: skip
@kernel("f8f8bf16_rowwise", "f8f8bf16_rowwise_batched", "f8f8bf16_blockwise", arguments="XQ WQ x_scale w_scale",
        category="matmul", outputs=_row_wise_outputs)  # fmt: skip
@kernel("f8f8bf16_tensorwise", "i8i8bf16", "i8i8bf16_dynamic", arguments="XQ WQ scale", category="matmul",
        outputs=_row_wise_outputs)  # fmt: skip
def row_wise_product(call: Call) -> Work:
    given, weight = argument(call, "X", "XQ"), argument(call, "W", "WQ")
    out = prod(given.shape[:-1]) * weight.shape[-2]
    restored = DEQUANTIZE_FLOPS * prod(weight.shape[:-1]) * given.shape[-1] if "i4" in call.op else 2 * out
    return _work(call, macs=given.numel * weight.shape[-2], flops=restored + out * (call.get("bias") is not None))


@kernel("quantize_fp8_per_row", arguments="input scale_ub", category="elementwise",
        outputs=lambda call: [TensorSpec(call["input"].shape, "float8_e4m3fn"),
                              TensorSpec(call["input"].shape[:-1], "float32")])  # fmt: skip
def quantize_rows(call: Call) -> Work:
    return _work(call, flops=(QUANTIZE_FLOPS + 2) * call["input"].numel)


def _block_scaled_outputs(call: Call) -> Sequence[TensorSpec]:
    dtype = call.get("output_dtype")
    made = call["A"].dtype if dtype is None else str(dtype).removeprefix("torch.")
    return [TensorSpec((*call["A"].shape[:-1], call["B"].shape[-2]), made)]


@kernel("matmul_2d", arguments="A B Bs block_size", category="matmul", outputs=_block_scaled_outputs)
@kernel("matmul_batched", arguments="A B Bs expert_ids block_size", category="matmul", outputs=_block_scaled_outputs)
@kernel("matmul_grouped", arguments="A B Bs offsets block_size", category="matmul", outputs=_block_scaled_outputs)
def block_scaled_product(call: Call) -> Work:
    """Activations are quantized on the way, per block unless their scale is given. Rows go to the experts evenly: fewer
    rows than experts read the weights of these alone."""
    given, weight = call["A"], call["B"]
    out = rows(given) * weight.shape[-2]
    quantizing = QUANTIZE_FLOPS + 2 * (call.get("activation_scale") is None)
    work = _work(call, macs=given.numel * weight.shape[-2], flops=quantizing * given.numel + 2 * out)
    experts = weight.shape[0] if len(weight.shape) == 3 else 1
    unread = weight.nbytes // max(experts, 1) * max(experts - rows(given), 0)
    return work._replace(bytes_read=(work.bytes_read or 0) - unread)


_ORDERS = ("nt", "nn", "tn", "tt")


@kernel(
    *(f"{kind}_gemm_{order}" for kind in ("bf16", "cublaslt", "fp8_fp4", "fp8") for order in _ORDERS),
    arguments="d", category="matmul",
)  # fmt: skip
@kernel(
    *(f"m_grouped_{kind}_gemm_{order}_{layout}" for kind in ("bf16", "fp8_fp4", "fp8") for order in ("nt", "nn")
      for layout in ("contiguous", "masked")),
    arguments="d", category="matmul",
)  # fmt: skip
def general_product(call: Call) -> Work:
    """d = a b: as many products for each element of d as one row of a has elements."""
    left, out = argument(call, "a", "a_data"), call["d"]
    inner = left.numel * out.shape[-1] // max(out.numel, 1)
    return _work(call, "d", macs=out.numel * inner, flops=out.numel * (call.get("c") is not None))


@kernel("static_scaled_fp8_quant", "dynamic_scaled_fp8_quant", "dynamic_per_token_scaled_fp8_quant",
        arguments="result input scale", category="elementwise")  # fmt: skip
@kernel("scaled_int8_quant", "static_scaled_int8_quant", "dynamic_scaled_int8_quant", arguments="result input",
        category="elementwise")  # fmt: skip
def quantise(call: Call) -> Work:
    is_dynamic = call.op.rpartition("::")[2].startswith("dynamic")
    outs = ("result", "scale") if is_dynamic else ("result",)
    return _work(call, *outs, flops=(QUANTIZE_FLOPS + 2 * is_dynamic) * call["input"].numel)


# State space models


@kernel("causal_conv1d_fwd", arguments="x weight out silu_activation", category="convolution")
@kernel("causal_conv1d_update", arguments="x conv_state weight out silu_activation", category="convolution")
def causal_convolution(call: Call) -> Work:
    """One filter per channel."""
    out, width = call["out"], call["weight"].shape[-1]
    rate = (call.get("bias") is not None) + (SIGMOID_FLOPS + 1 if call["silu_activation"] else 0)
    return _work(call, "out", "final_states_out", macs=out.numel * width, flops=rate * out.numel)


@kernel("causal_conv1d_bwd", arguments="x weight dout dx dweight", category="convolution")
def causal_convolution_backward(call: Call) -> Work:
    outs = ("dx", "dweight", "dbias", "dinitial_states")
    return _work(call, *outs, macs=2 * call["x"].numel * call["weight"].shape[-1])


_SCAN_CHUNK = 2048


def _scan_outputs(call: Call) -> Sequence[TensorSpec]:
    u, state = call["u"], call["A"].shape[-1]
    chunks = -(-u.shape[-1] // _SCAN_CHUNK)
    kept = TensorSpec((*u.shape[:-1], chunks, 2 * state), "float32")
    return [u, kept] if call.get("z_") is None else [u, kept, u]


@kernel("selective_scan_fwd", arguments="u delta A B C delta_softplus", category="recurrent", outputs=_scan_outputs)
def selective_scan(call: Call) -> Work:
    """Per state: Δ A and its exponential, Δ B u, a sum and a product; the product with C is the multiply-accumulate,
    as in the form written with matrices."""
    u, state = call["u"], call["A"].shape[-1]
    rate = 2 * (call.get("D_") is not None) + 5 * bool(call["delta_softplus"])
    rate += (SIGMOID_FLOPS + 2) * (call.get("z_") is not None) + (call.get("delta_bias_") is not None)
    return _work(call, macs=u.numel * state, flops=(6 * state + rate) * u.numel)
