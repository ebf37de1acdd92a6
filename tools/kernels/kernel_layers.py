"""Layers of public models as calls of kernels: their lists.

A model runs once on meta tensors, and each of its convolutions, products and attentions is kept as a layer: what stays
the same when the batch, the type or the order of the channels changes. `layers_draw` calls every layer a few times with
such settings drawn at random, forward or as a gradient. Sizes of language models are from their published
configurations. No layer is from a model that `forecast` is compared with.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from math import prod
from multiprocessing import get_context
from typing import Any, NamedTuple
from zlib import crc32

import torch
from kernel_draws import (  # type: ignore[import-not-found]
    HALF_TYPES,
    UNNAMED,
    Draw,
    Drawn,
    Heads,
    attention,
    attention_call,
    cold_flags,
    convolution,
    dense,
    described,
    image_convolution,
    long_attention,
    missing_kernels,
    recurrent,
    signature_of,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

BATCHES = (1, 1, 2, 4, 8, 8, 16, 16, 32, 32, 64, 128)
TYPES = ("float32", "float32", *HALF_TYPES)
RECORDED_BATCH = 2
# What a call may take: the device has 139 GiB, and workers share it.
MOST_ELEMENTS, MOST_PRODUCTS = 1 << 27, 4e11
# Of `batch_draw`: kernels below the first were timed with the host's part (see `kernel_device.HEAD_START_CYCLES`),
# kernels above the second take the device too long for a neighbour.
SHORT_S, LONG_S = 40e-6, 1.5e-3
# The ops of the families whose rows keep all arguments of a call.
OPS_OF = {
    "matmul": ("mm", "addmm", "bmm", "baddbmm"),
    "attention": ("_scaled_dot_product",),
    "recurrent": ("_cudnn_rnn",),
    "convolution": ("convolution",),
}


class ConvolutionLayer(NamedTuple):
    image: tuple[int, ...]
    channels: int
    made: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    has_bias: bool


class LinearLayer(NamedTuple):
    """`rows` of a sample by `depth`, times `depth` by `columns`."""

    rows: int
    depth: int
    columns: int
    has_bias: bool


class BatchedProduct(NamedTuple):
    """`products` of a sample; whether the operands are stored by columns."""

    products: int
    rows: int
    depth: int
    columns: int
    is_left_turned: bool
    is_right_turned: bool


class AttentionLayer(NamedTuple):
    heads: int
    groups: int
    length: int
    read: int
    width: int
    is_causal: bool
    is_masked: bool


Layer = ConvolutionLayer | LinearLayer | BatchedProduct | AttentionLayer


class Recorder(TorchDispatchMode):
    """The layers of a run with `RECORDED_BATCH` samples."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layers: dict[Layer, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "convolution":
            data, weight, bias, *rest = args
            stride, padding, dilation, transposed, output_padding, groups = rest
            self.layers[ConvolutionLayer(
                tuple(data.shape[2:]), data.shape[1], out.shape[1], tuple(weight.shape[2:]), tuple(stride),
                tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups, bias is not None,
            )] = None  # fmt: skip
        elif name in ("mm", "addmm"):
            left, right = args[-2:]
            if left.shape[0] % RECORDED_BATCH == 0:
                rows = left.shape[0] // RECORDED_BATCH
                self.layers[LinearLayer(rows, left.shape[1], right.shape[1], name == "addmm")] = None
        elif name in ("bmm", "baddbmm"):
            left, right = args[-2:]
            if left.shape[0] % RECORDED_BATCH == 0:
                count, turned = left.shape[0] // RECORDED_BATCH, [one.stride(-1) != 1 for one in (left, right)]
                self.layers[BatchedProduct(count, left.shape[1], left.shape[2], right.shape[2], *turned)] = None
        return out


class AttentionRecorder(TorchFunctionMode):
    """Attention before it is taken apart for meta tensors."""

    def __init__(self, layers: dict[Layer, None]) -> None:
        super().__init__()
        self.layers = layers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        given = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | (kwargs or {})
        query, key, value = given["query"], given["key"], given["value"]
        if query.dim() == 4 and query.shape[-1] == value.shape[-1] and query.shape[0] % RECORDED_BATCH == 0:
            windows = query.shape[0] // RECORDED_BATCH
            # Windows are samples of attention, so they multiply the batch as heads would.
            self.layers[AttentionLayer(
                query.shape[1] * windows, query.shape[1] // key.shape[1], query.shape[2], key.shape[2],
                query.shape[3], bool(given.get("is_causal")), given.get("attn_mask") is not None,
            )] = None  # fmt: skip
        return query.new_empty(*query.shape[:-1], value.shape[-1])


def layers_of(build: Callable[[], torch.nn.Module], side: int) -> list[Layer]:
    """The layers of an image model, from one run without data."""
    recorder = Recorder()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        # Some models compute their sizes with tensors, so they are built on the CPU.
        with import_module("models").uninitialised():
            model = build()
        model = model.eval().to("meta")
        images = torch.empty(RECORDED_BATCH, 3, side, side, device="meta")
        with recorder, AttentionRecorder(recorder.layers):
            model(images)
    return list(recorder.layers)


# Of many designs, none in `PROOFS` or in the list of the first collection.
IMAGE_MODELS = (
    "resnet14t", "resnet18d", "resnet26t", "resnet33ts", "resnet50d", "resnet51q", "resnet61q", "resnet101d",
    "resnetaa50", "resnetblur50", "resnetrs101", "resnetv2_50d_gn", "resnext26ts", "resnext101_64x4d", "seresnet18",
    "seresnet33ts", "seresnext26d_32x4d", "seresnext101_32x8d", "skresnet50", "skresnext50_32x4d", "ecaresnet50t",
    "ecaresnetlight", "gcresnext26ts", "gcresnext50ts", "resnest14d", "resnest50d_1s4x24d", "res2net50_14w_8s",
    "res2net101_26w_4s", "densenet161", "densenetblur121d", "dpn48b", "dpn92", "dla46_c", "dla60x", "dla102",
    "dla60_res2net", "hrnet_w18_small", "hrnet_w40", "vgg13", "vgg16_bn", "xception65", "xception71", "legacy_xception",
    "darknetaa53", "cspresnet50", "cspresnext50", "cs3darknet_x", "cs3sedarknet_l", "cs3edgenet_x", "vovnet39a",
    "ese_vovnet57b", "selecsls60", "gernet_s", "gernet_l", "repvgg_b0", "repvgg_b1g4", "mobileone_s3", "nfnet_l0",
    "nf_resnet50", "dm_nfnet_f1", "eca_nfnet_l1", "efficientnet_b2", "efficientnet_b5", "efficientnet_el",
    "efficientnet_es", "efficientnet_lite3", "efficientnetv2_rw_t", "tf_efficientnetv2_b0", "tf_efficientnetv2_m",
    "tf_efficientnet_b6", "mixnet_l", "mixnet_xl", "mobilenetv1_100", "mobilenetv2_050", "mobilenetv2_140",
    "mobilenetv3_large_075", "mobilenetv3_rw", "mobilenetv4_conv_small", "mobilenetv4_conv_large",
    "mobilenetv4_hybrid_large", "mnasnet_small", "semnasnet_100", "spnasnet_100", "fbnetc_100", "fbnetv3_g",
    "hardcorenas_c", "tinynet_c", "lcnet_050", "ghostnet_130", "ghostnetv2_160", "repghostnet_100", "rexnet_150",
    "rexnetr_200", "regnetx_004", "regnetx_008", "regnetx_016", "regnetx_080", "regnetx_120", "regnety_004",
    "regnety_008", "regnety_064", "regnety_120", "regnetz_c16", "regnetz_d8", "regnetv_040", "nf_regnet_b0",
    "hgnet_small", "hgnetv2_b0", "hgnetv2_b4", "convnext_atto", "convnext_pico", "convnext_nano", "convnext_xlarge",
    "convnextv2_pico", "convnextv2_large", "rdnet_small", "inception_next_small", "mambaout_kobe", "mambaout_base",
    "starnet_s1", "starnet_s4", "fasternet_t1", "fasternet_s", "repvit_m1_1", "repvit_m2_3", "efficientvit_b0",
    "efficientvit_b3", "efficientvit_l1", "efficientvit_m4", "efficientformer_l3", "efficientformerv2_s1",
    "fastvit_t12", "fastvit_sa24", "fastvit_ma36", "mobilevit_xxs", "mobilevit_xs", "mobilevitv2_050",
    "mobilevitv2_150", "edgenext_x_small", "edgenext_base", "poolformer_m36", "convmixer_1024_20_ks9_p14",
    "caformer_m36", "convformer_m36", "coat_mini", "coat_tiny", "coatnet_nano_rw_224", "coatnet_2_rw_224",
    "maxvit_nano_rw_256", "maxvit_base_tf_224", "maxxvitv2_nano_rw_256", "cait_s24_224", "crossvit_9_240",
    "convit_base", "convit_tiny", "davit_small", "davit_base", "deit3_small_patch16_224", "deit3_medium_patch16_224",
    "eva02_tiny_patch14_224", "eva02_base_patch14_224", "flexivit_small", "focalnet_small_lrf", "gcvit_tiny",
    "gcvit_base", "hiera_small_224", "hiera_base_224", "levit_128s", "levit_384", "mvitv2_small", "mvitv2_base",
    "nest_small", "nextvit_base", "pit_xs_224", "pit_b_224", "pvt_v2_b0", "pvt_v2_b3", "resmlp_24_224",
    "sequencer2d_m", "swiftformer_l1", "swin_s3_tiny_224", "swinv2_base_window8_256", "swinv2_cr_tiny_224",
    "tiny_vit_11m_224", "tiny_vit_21m_224", "tnt_b_patch16_224", "twins_pcpvt_small", "twins_svt_base",
    "twins_svt_large", "vit_little_patch16_reg4_gap_256", "vit_so150m_patch16_reg4_gap_256", "vit_base_patch32_224",
    "vit_base_patch8_224", "vit_huge_patch14_224", "vit_mediumd_patch16_reg4_gap_256", "vit_pwee_patch16_reg1_gap_256",
    "vit_base_r50_s16_224", "vit_wee_patch16_reg1_gap_256", "vitamin_small_224", "volo_d2_224", "xcit_nano_12_p8_224",
    "xcit_large_24_p16_224", "shvit_s2", "shvit_s4", "lowformer_b1", "efficientvim_m2", "samvit_base_patch16_224",
    "tresnet_m", "halonet26t", "botnet50ts_256", "nasnetalarge", "pnasnet5large", "senet154", "wide_resnet101_2",
)  # fmt: skip


class Published(NamedTuple):
    """A transformer as its published configuration has it: width of a token, of the layers between, query heads, key
    heads, width of a head, vocabulary (0 where none is computed), whether two layers gate each other."""

    hidden: int
    inner: int
    heads: int
    key_heads: int
    width: int
    vocabulary: int
    is_gated: bool


TRANSFORMERS = (
    Published(4096, 11008, 32, 32, 128, 32000, True), Published(5120, 13824, 40, 40, 128, 32000, True),
    Published(4096, 14336, 32, 8, 128, 32000, True), Published(8192, 28672, 64, 8, 128, 128256, True),
    Published(2048, 16384, 8, 1, 256, 256000, True), Published(3072, 24576, 16, 16, 256, 256000, True),
    Published(2304, 9216, 8, 4, 256, 256000, True), Published(3584, 14336, 16, 8, 256, 256000, True),
    Published(1152, 6912, 4, 1, 256, 262144, True), Published(2560, 10240, 8, 4, 256, 262144, True),
    Published(1536, 8960, 12, 2, 128, 151936, True), Published(2048, 11008, 16, 2, 128, 151936, True),
    Published(3584, 18944, 28, 4, 128, 152064, True), Published(5120, 27648, 40, 8, 128, 152064, True),
    Published(1024, 3072, 16, 8, 128, 151936, True), Published(2560, 9728, 32, 8, 128, 151936, True),
    Published(3072, 8192, 32, 32, 96, 32064, True), Published(5120, 17920, 40, 10, 128, 32064, True),
    Published(2048, 5632, 32, 4, 64, 32000, True), Published(960, 2560, 15, 5, 64, 49152, True),
    Published(2560, 6912, 32, 32, 80, 50304, True), Published(4544, 18176, 71, 1, 64, 65024, False),
    Published(768, 3072, 12, 12, 64, 50272, False), Published(2560, 10240, 32, 32, 80, 50272, False),
    Published(4096, 16384, 32, 32, 128, 50272, False), Published(1600, 6400, 25, 25, 64, 50257, False),
    Published(1024, 4096, 16, 16, 64, 50265, False), Published(384, 1536, 12, 12, 32, 0, False),
    Published(256, 1024, 4, 4, 64, 30522, False), Published(312, 1200, 12, 12, 26, 30522, False),
    Published(768, 3072, 12, 12, 64, 30522, False), Published(1536, 6144, 24, 24, 64, 128100, False),
    Published(640, 2560, 10, 10, 64, 30522, False), Published(1280, 5120, 20, 20, 64, 51866, False),
    Published(384, 1536, 6, 6, 64, 51865, False), Published(512, 2048, 8, 8, 64, 51865, False),
    Published(1024, 2816, 16, 16, 64, 32128, True), Published(2048, 5120, 32, 32, 64, 32128, True),
    Published(1152, 4304, 16, 16, 72, 0, False), Published(1408, 6144, 16, 16, 88, 0, False),
    Published(1664, 8192, 16, 16, 104, 0, False), Published(1536, 4096, 24, 24, 64, 0, True),
    Published(3072, 12288, 24, 24, 128, 0, False), Published(1536, 6144, 24, 24, 64, 0, False),
)  # fmt: skip


def layers_draw(workers: int = 1, draws: int = 1) -> list[dict[str, Any]]:
    """Layers of the models above, sizes of transformers, attention and recurrent layers of drawn sizes, and some calls
    again: of `missing_draw`, to see how far two sessions differ, and of this one. `workers` processes list them.
    `draws` of 2 and more draw other batches, types and layouts, and repeat nothing."""
    import_module("torchgauge.source.packages").import_optional("timm", "collecting kernels")
    with get_context("fork").Pool(workers) as pool:
        parts = [*IMAGE_MODELS, *range(len(TRANSFORMERS)), "drawn", *(["again"] if draws == 1 else [])]
        by_part = pool.starmap(listed_part, [(part, draws) for part in parts], chunksize=1)
    known: set[Layer] = set()
    calls: list[dict[str, Any]] = []
    for part in by_part:
        new = {layer for layer, _ in part if layer is not None} - known
        known |= new
        calls += [call for layer, call in part if layer is None or layer in new]
    print(f"{len(known)} layers of image models, {len(calls)} calls", flush=True)
    draw = Draw(7)
    calls += draw.random.sample(calls, min(700, len(calls)) if draws == 1 else 0)
    draw.random.shuffle(calls)
    return calls


def variant_draw(times: Sequence[Any]) -> list[dict[str, Any]]:
    """The layers of all measured convolutions with another batch, type or layout, and convolutions, recurrent layers
    and attention of drawn sizes. `times` are the measured kernels, as `kernel_tables.read_times` gives them."""
    draw = Draw(8)
    layers: dict[ConvolutionLayer, bool] = {}  # whether a model has it
    for one in times:
        if one.signature.op.startswith("aten::convolution"):
            layer = layer_of(one.signature)
            layers[layer] = layers.get(layer, False) or bool(one.models)
    found: list[tuple[Drawn, list[str]]] = []
    for layer, is_in_model in layers.items():
        calls = convolution_calls(draw, layer, draw.pick(BATCHES), draw.pick(TYPES))
        found += [(one, [UNNAMED] if is_in_model else []) for one in calls]
    found += [(one, []) for _ in range(9000) for one in convolution(draw, image_convolution(draw))]
    found += [(one, []) for _ in range(500) for one in recurrent(draw)]
    found += [(one, []) for _ in range(700) for one in (*attention(draw), *long_attention(draw))]
    draw.random.shuffle(found)
    listed = []
    for one, models in found:
        is_fixed = one.op.startswith("_cudnn_rnn") or "_attention" in one.op
        cold = [flag and not is_fixed for flag in cold_flags(one, draw)]
        listed.append(described(one, cold) | {"models": models})
    print(f"{len(layers)} layers, {len(listed)} calls", flush=True)
    return listed


def signal_convolutions(draw: Draw, count: int) -> list[dict[str, Any]]:
    """Convolutions of signals and volumes, and transposed ones: the lists before have hardly any."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        layer, batch, dtype = other_convolution(draw), draw.pick((1, 1, 2, 4, 8, 8, 16, 32)), draw.pick(TYPES)
        work = batch * prod(layer.image) * prod(layer.kernel) * layer.channels * layer.made // layer.groups
        if work <= MOST_PRODUCTS / 4:
            found += [described(one, cold_flags(one, draw)) for one in convolution_calls(draw, layer, batch, dtype)]
    return found


def other_convolution(draw: Draw) -> ConvolutionLayer:
    """Of a signal (speech, waveforms, series), of a volume (video, medical images), or transposed."""
    pick = draw.pick
    dims, is_transposed = pick(((1, False), (1, False), (1, False), (3, False), (3, False), (3, False), (3, False),
                                (1, True), (2, True), (3, True)))  # fmt: skip
    channels = pick((1, 3, 3, 8, 16, 24, 32, 32, 48, 64, 64, 80, 96, 128, 128, 192, 256, 256, 320, 384, 512, 768, 1024))
    made = pick((channels, channels, 2 * channels, max(channels // 2, 1), pick((16, 32, 64, 128, 256, 512))))
    groups = 1
    image: tuple[int, ...]
    stride: tuple[int, ...]
    if dims == 1:
        length, wide = draw.size(4, 16, pick((1, 1, 8))), pick((1, 3, 3, 3, 5, 7, 8, 10, 11, 15, 16, 31, 41))
        image, kernel = (length,), (wide,)
        stride, dilation = (pick((1, 1, 1, 2, 2, 4, 5)),), (pick((1, 1, 1, 1, 2, 3, 5, 9)),)
        if channels > 8 and draw.chance(0.25):
            made, groups = channels, pick((channels, channels, 4 if channels % 4 == 0 else 1))
    else:
        side = pick((4, 7, 8, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128))
        depth = pick((1, 2, 4, 8, 8, 16, 16, 32, 64, side))
        image = (depth, side, side) if dims == 3 else (side, side)
        kernel = pick(((3, 3, 3), (3, 3, 3), (3, 3, 3), (1, 3, 3), (3, 1, 1), (1, 1, 1), (1, 7, 7), (3, 7, 7),
                       (5, 5, 5), (7, 7, 7), (2, 2, 2)))[-dims:]  # fmt: skip
        steps = pick((1, 1, 1, 2))
        stride = tuple(steps if wide > 1 or draw.chance(0.3) else 1 for wide in kernel)
        dilation = (1,) * dims
        if channels > 8 and draw.chance(0.1):
            made = groups = channels
    if is_transposed:
        step = pick((2, 2, 2, 4, 5, 8)) if dims == 1 else 2
        wide = pick((step, 2 * step, step + 1))
        return ConvolutionLayer(image, channels, made, (wide,) * dims, (step,) * dims, ((wide - step) // 2,) * dims,
                                (1,) * dims, True, (0,) * dims, 1, draw.chance(0.6))  # fmt: skip
    room = tuple(apart * (wide - 1) // 2 for wide, apart in zip(kernel, dilation, strict=True))
    padding = room if draw.chance(0.85) else (0,) * dims
    image = tuple(max(size, apart * (wide - 1) + 1) for size, wide, apart in zip(image, kernel, dilation, strict=True))
    return ConvolutionLayer(image, channels, made, kernel, stride, padding, dilation, False, (0,) * dims, groups,
                            draw.chance(0.5))  # fmt: skip


def batch_draw(rows: Iterable[tuple[list[str], list[Any]]]) -> list[dict[str, Any]]:
    """Measured convolutions of models: again where they are short, and with half or twice the batch where no such
    neighbour was measured. `rows` are models and rows as `kernel_tables.gather` keeps them. Layers of many models
    come first; a layer with its neighbours is in one place, so that a run that ends early has some of them whole."""
    draw = Draw(9)
    cells: dict[str, dict[int, tuple[list[str], list[Any]]]] = {}
    for models, row in rows:
        op, _, _, inputs, outputs, attributes, _, cold, _, _, _ = row
        place = 1 if op == "aten::convolution_backward" else 0
        has_views = any(stored is not None or index for *_, stored, index in (*inputs, *outputs))
        if not op.startswith("aten::convolution") or not models or has_views or len(inputs) <= place:
            continue
        cell = json.dumps([op, [[spec[0][1:], *spec[1:]] for spec in inputs], attributes, cold])
        cells.setdefault(cell, {})[inputs[place][0][0]] = (models, row)
    order = sorted(cells.values(), key=lambda cell: draw.random.random() / max(len(one[0]) for one in cell.values()))
    calls, later = [], []
    for measured in order:
        for batch, (models, row) in measured.items():
            if row[9] < SHORT_S or draw.chance(0.1):
                calls.append(rebatched(row, batch, batch) | {"models": models})
            rungs = [rung for rung in (batch * 2, batch // 2) if 1 <= rung <= 256 and rung not in measured]
            draw.random.shuffle(rungs)
            if row[9] > LONG_S or len(rungs) + (batch == 1) < 2:
                continue  # a neighbour was measured
            calls.append(rebatched(row, batch, rungs[0]) | {"models": [UNNAMED]})
            later += [rebatched(row, batch, rung) | {"models": [UNNAMED]} for rung in rungs[1:]]
    print(f"{len(cells)} layers, {len(calls)} calls and {len(later)} more", flush=True)
    return calls + later


def measured_again(
    rows: Iterable[tuple[list[str], list[Any]]], families: Collection[str], below_s: float = SHORT_S
) -> list[dict[str, Any]]:
    """Short kernels of these families as they were measured: products, convolutions, attention and recurrent layers,
    whose rows keep all arguments. In random order; `rows` as in `batch_draw`."""
    called: Any = import_module("kernel_names").called
    names = tuple(f"aten::{name}" for family in families for name in OPS_OF[family])
    calls = ((models, row, called(row)) for models, row in rows if row[9] < below_s and row[0].startswith(names))
    return [again(models, row, call) for models, row, call in shuffled(calls) if call is not None]


def listed_again(
    rows: Iterable[tuple[list[str], list[Any]]], listed: Iterable[dict[str, Any]], below_s: float = SHORT_S
) -> list[dict[str, Any]]:
    """Short kernels as they were measured whose rows do without some arguments: a list of calls has them."""

    def key(op: str, overload: str, tensors: Iterable[list[Any]], cold: Iterable[bool]) -> str:
        return json.dumps([op, overload, *tensors, [bool(flag) for flag in cold]])

    known = {key(call["op"], call["overload"], call["tensors"], call["cold"]): call for call in listed}
    calls = []
    for models, row in rows:
        if row[9] < below_s:
            inputs = [[shape, dense(shape, dtype)[1] if stride is None else stride, dtype]
                      for shape, dtype, stride, *_ in row[3]]  # fmt: skip
            calls.append((models, row, known.get(key(row[0], row[1], inputs, [flag == "1" for flag in row[7]]))))
    return [again(models, row, call) for models, row, call in shuffled(calls) if call is not None]


def shuffled(calls: Iterable[Any]) -> list[Any]:
    found = list(calls)
    Draw(10).random.shuffle(found)
    return found


def again(models: list[str], row: list[Any], call: dict[str, Any]) -> dict[str, Any]:
    """A measured row as a row of a list of calls, under the same signature: its new time replaces the old one."""
    op, overload, category, inputs, outputs, attributes, cost, flags, *_ = row
    sides = [[dict(zip(("shape", "dtype", "stride", "stored", "index_bytes"), spec, strict=True)) for spec in side]
             for side in (inputs, outputs)]  # fmt: skip
    work = dict(zip(("flops", "bytes_read", "bytes_written"), cost, strict=True))
    signature = {"op": op, "overload": overload, "category": category, "inputs": sides[0], "outputs": sides[1],
                 "attributes": attributes, "cost": work}  # fmt: skip
    cold = [flag == "1" for flag in flags]
    return call | {"dtype": inputs[0][1] if inputs else "", "cold": cold, "signature": signature, "models": models}


def rebatched(row: list[Any], batch: int, wanted: int) -> dict[str, Any]:
    """A measured row as a call with another batch."""
    known: dict[str, Any] = import_module("kernel_names").called(row)
    is_backward = row[0] == "aten::convolution_backward"
    outputs = [[shape, dense(shape, dtype)[1] if stride is None else stride, dtype]
               for shape, dtype, stride, *_ in row[4]]  # fmt: skip
    results = [number for number, flag in enumerate(row[5]["output_mask"]) if flag] if is_backward else [0]
    if wanted != batch:
        # Of the tensors of a gradient the first two have a batch, of its results the first.
        for number in range(2 if is_backward else 1):
            shape, stride, dtype = known["tensors"][number]
            known["tensors"][number] = [[wanted, *shape[1:]], stride, dtype]
        for place, number in enumerate(results):
            if number == 0:
                shape, stride, dtype = outputs[place]
                outputs[place] = [[wanted, *shape[1:]], stride, dtype]
    signature = signature_of(row[0], row[1], known["tensors"], known["args"], outputs)
    cold = [flag == "1" for flag in row[7]]
    cold += [False] * (len(known["tensors"]) - len(cold))
    return known | {"dtype": known["tensors"][0][2], "cold": cold, "signature": asdict(signature)}


def layer_of(signature: Any) -> ConvolutionLayer:
    """What stays of a measured convolution when its batch, type and layout change."""
    is_backward = signature.op == "aten::convolution_backward"
    data, weight = signature.inputs[1:3] if is_backward else signature.inputs[:2]
    made = signature.inputs[0] if is_backward else signature.outputs[0]
    attributes = signature.attributes
    stride, padding, dilation = (tuple(attributes[name]) for name in ("stride", "padding", "dilation"))
    kernel, image = weight.shape[2:], data.shape[2:]
    left_over = [0] * len(image)
    if attributes["transposed"]:
        ends = zip(image, made.shape[2:], kernel, stride, padding, dilation, strict=True)
        left_over = [
            long - ((length - 1) * step - 2 * pad + apart * (wide - 1) + 1)
            for length, long, wide, step, pad, apart in ends
        ]
    has_bias = attributes["output_mask"][2] if is_backward else len(signature.inputs) > 2
    return ConvolutionLayer(
        image, data.shape[1], made.shape[1], kernel, stride, padding, dilation, bool(attributes["transposed"]),
        tuple(left_over), int(attributes["groups"]), bool(has_bias),
    )  # fmt: skip


def listed_part(part: str | int, draws: int) -> list[tuple[Layer | None, dict[str, Any]]]:
    """The calls of an image model by its name, each with its layer; of a transformer by its number; drawn sizes; some
    of `missing_draw` again."""
    draw = Draw(crc32(f"{part}{'' if draws == 1 else draws}".encode()))
    if part == "again":
        return [(None, described(one, cold)) for one, cold in draw.random.sample(missing_kernels(), 900)]
    # Rotating copies take long to time, and change what recurrent layers and attention take by less than two runs
    # differ.
    found: list[tuple[Layer | None, Drawn]] = []
    if part == "drawn":
        found += [(None, one) for _ in range(300) for one in recurrent(draw)]
        found += [(None, one) for _ in range(250) for one in long_attention(draw)]
    elif isinstance(part, int):
        found += [(None, one) for one in calls_of_transformer(draw, TRANSFORMERS[part], 200)]
    else:
        found += [(layer, one) for layer in image_layers(part) for one in calls_of_layer(draw, layer)]
    name = f"transformer-{part}" if isinstance(part, int) else part
    calls = []
    for layer, one in found:
        is_fixed = one.op.startswith("_cudnn_rnn") or "_attention" in one.op
        cold = [flag and not is_fixed for flag in cold_flags(one, draw)]
        calls.append((layer, described(one, cold) | {"models": [] if part == "drawn" else [name]}))
    return calls


def image_layers(name: str) -> list[Layer]:
    """None where `forecast` is compared with the model, or this release of timm cannot run it without data."""
    models: Any = import_module("models")
    timm: Any = import_module("timm")
    if name in {one.name.split()[0] for one in models.read_set(models.TIME)}:
        return []
    torch.set_num_threads(1)
    try:
        side = timm.get_pretrained_cfg(name).input_size[-1]
        return layers_of(partial(timm.create_model, name), side)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error)[:80]}", flush=True)
        return []


def calls_of_layer(draw: Draw, layer: Layer) -> Iterator[Drawn]:
    """A layer with a batch, a type and an order of the channels, forward or as a gradient, three times."""
    for _ in range(3):
        batch, dtype = draw.pick(BATCHES), draw.pick(TYPES)
        if isinstance(layer, ConvolutionLayer):
            yield from convolution_calls(draw, layer, batch, dtype)
        elif isinstance(layer, LinearLayer):
            yield from linear_calls(draw, layer, batch, dtype)
        elif isinstance(layer, BatchedProduct):
            products, rows, depth, columns, is_left_turned, is_right_turned = layer
            b = batch * products
            left = [[b, rows, depth], [rows * depth, *((1, rows) if is_left_turned else (depth, 1))], dtype]
            right = [[b, depth, columns], [depth * columns, *((1, depth) if is_right_turned else (columns, 1))], dtype]
            most = b * max(rows * depth, depth * columns, rows * columns)
            if most <= MOST_ELEMENTS and b * rows * depth * columns <= MOST_PRODUCTS:
                yield Drawn("bmm", {"self": left, "mat2": right}, {}, [dense([b, rows, columns], dtype)])
        else:
            yield from attention_calls(draw, layer, batch, dtype)


def convolution_calls(draw: Draw, layer: ConvolutionLayer, batch: int, dtype: str) -> Iterator[Drawn]:
    order = draw.pick(("first", "last")) if len(layer.image) == 2 else "first"
    ends = zip(layer.image, layer.kernel, layer.stride, layer.padding, layer.dilation, layer.output_padding,
               strict=True)  # fmt: skip
    out = [
        (length - 1) * step - 2 * pad + wide * (kernel - 1) + more + 1
        if layer.transposed
        else (length + 2 * pad - wide * (kernel - 1) - 1) // step + 1
        for length, kernel, step, pad, wide, more in ends
    ]
    work = batch * prod(out) * layer.made * prod(layer.kernel) * layer.channels // layer.groups
    if work > MOST_PRODUCTS or batch * max(layer.channels * prod(layer.image), layer.made * prod(out)) > MOST_ELEMENTS:
        return
    data = dense([batch, layer.channels, *layer.image], dtype, order)
    sides = [layer.channels, layer.made // layer.groups] if layer.transposed else [
        layer.made, layer.channels // layer.groups]  # fmt: skip
    weight = dense([*sides, *layer.kernel], dtype, order)
    result = dense([batch, layer.made, *out], dtype, order)
    settings: dict[str, Any] = {
        "stride": list(layer.stride), "padding": list(layer.padding), "dilation": list(layer.dilation),
        "transposed": layer.transposed, "output_padding": list(layer.output_padding), "groups": layer.groups,
    }  # fmt: skip
    if not draw.chance(0.3):
        bias: dict[str, Any] = {"bias": dense([layer.made], dtype)} if layer.has_bias else {}
        none = {} if layer.has_bias else {"bias": None}
        yield Drawn("convolution", {"input": data, "weight": weight} | bias, none | settings, [result])
        return
    mask = [layer.channels != 3, True, layer.has_bias]
    given = {"grad_output": result, "input": data, "weight": weight}
    yield Drawn("convolution_backward", given,
                {"bias_sizes": [layer.made] if layer.has_bias else None} | settings | {"output_mask": mask},
                [one for one, flag in zip((data, weight, dense([layer.made], dtype)), mask, strict=True)
                 if flag])  # fmt: skip


def linear_calls(draw: Draw, layer: LinearLayer, batch: int, dtype: str) -> Iterator[Drawn]:
    """Forward, or the gradient of the data or of the weights."""
    rows, depth, columns = layer.rows * batch, layer.depth, layer.columns
    if rows * depth * columns > MOST_PRODUCTS or rows * max(depth, columns) > MOST_ELEMENTS:
        return
    weight = [[depth, columns], [1, depth], dtype]
    data, made = dense([rows, depth], dtype), dense([rows, columns], dtype)
    form = draw.pick(("forward",) * 4 + ("data", "weights"))
    if form == "forward" and layer.has_bias:
        yield Drawn("addmm", {"self": dense([columns], dtype), "mat1": data, "mat2": weight}, {}, [made])
    elif form == "forward":
        yield Drawn("mm", {"self": data, "mat2": weight}, {}, [made])
    elif form == "data":
        yield Drawn("mm", {"self": made, "mat2": dense([columns, depth], dtype)}, {}, [data])
    else:
        turned = [[columns, rows], [1, columns], dtype]
        yield Drawn("mm", {"self": turned, "mat2": data}, {}, [dense([columns, depth], dtype)])


def attention_calls(draw: Draw, layer: AttentionLayer, batch: int, dtype: str) -> Iterator[Drawn]:
    heads, groups, length, read, width, is_causal, is_masked = layer
    if batch * heads * length * read > 1e10 or batch * heads * max(length, read) * width > 2e8 or width > 256:
        return
    kind = "cudnn" if dtype != "float32" else "efficient"
    if width % (8 if kind == "cudnn" else 4) or (kind == "efficient" and groups > 1):
        return
    padded = -(-read // 8) * 8
    mask = draw.pick(([0, 0, padded, 1], [0, length * padded, padded, 1])) if is_masked else None
    parts = draw.pick((0, 1, 3)) if groups == 1 else draw.pick((0, 1))
    sizes = Heads(dtype, batch, heads, groups, length, read, width)
    yield attention_call(
        draw, kind, sizes, (parts, parts), is_causal=is_causal, mask=mask, is_trained=length > 1 and draw.chance(0.3)
    )


def calls_of_transformer(draw: Draw, published: Published, count: int) -> Iterator[Drawn]:
    """Products and attention of prompts and of steps of decoding."""
    hidden, inner, heads, key_heads, width, vocabulary, is_gated = published
    linear: Sequence[tuple[int, int]] = [
        (hidden, heads * width), (hidden, key_heads * width), (hidden, (heads + 2 * key_heads) * width),
        (heads * width, hidden), (hidden, inner), (hidden, 2 * inner if is_gated else inner), (inner, hidden),
    ]  # fmt: skip
    for _ in range(count):
        dtype = draw.pick(("float32", "bfloat16", "bfloat16", "bfloat16", "float16"))
        batch = draw.pick((1, 1, 2, 4, 8, 16, 32, 64))
        length = draw.pick((1, 1, 32, 64, 77, 128, 128, 197, 256, 384, 512, 512, 577, 1024, 1500, 2048, 4096))
        what = draw.pick(("linear",) * 8 + ("attention", "attention", "vocabulary"))
        if what == "attention":
            read = length if length > 1 else draw.pick((128, 256, 512, 1024, 1500, 2048, 4096, 8192))
            is_causal = length > 1 and draw.chance(0.6)
            groups = heads // key_heads if dtype != "float32" else 1
            layer = AttentionLayer(
                heads, groups, length, read, width, is_causal, not is_causal and length > 1 and draw.chance(0.5)
            )
            yield from attention_calls(draw, layer, batch, dtype)
        elif what == "linear" or not vocabulary:
            depth, columns = draw.pick(linear)
            yield from linear_calls(draw, LinearLayer(length, depth, columns, not is_gated), batch, dtype)
        else:
            yield from linear_calls(draw, LinearLayer(length, hidden, vocabulary, False), min(batch, 8), dtype)
