"""From the H200's kernels alone to the published tables of other devices: errors, and what the intervals hold.

    python benchmarks/forecast_transfer.py

400 products and 180 causal attentions in bf16, drawn at random. The published tables are of another software stack.
Published attention is the attention layer of TensorRT-LLM (collector/trtllm/collect_attn.py of aiconfigurator): beside
the kernel of attention others compute offsets, rotate queries and keys and write a paged cache. `BESIDE` is added to
what is predicted for the kernel.
"""

from __future__ import annotations

import random
from dataclasses import replace
from math import log2

import numpy as np

from torchgauge.cost import Call, assess
from torchgauge.facts import Signature, TensorSpec, tensor_specs
from torchgauge.predict.coordinates import Place, locate
from torchgauge.predict.published import published_seconds
from torchgauge.predict.time import kernel_time, profile_of

# Seconds of short kernels, and how often queries, keys, values and results are moved at the peak bandwidth: least
# absolute errors of 300 other draws between the H200's published times and torch's kernels there.
BESIDE_S, BESIDE_PASSES = 7.8e-6, 3.2
DEVICES = {"h200": "h200_sxm", "h100": "h100_sxm", "a100": "a100_sxm", "b200": "b200_sxm", "l40s": "l40s"}


def main() -> int:
    places = {"products": products(400), "attention": attentions(180)}
    print("| device | family | kernels | median | 90th percentile | within | half of the 90 % interval, octaves |")
    print("|---|---|---|---|---|---|---|")
    for name, table in DEVICES.items():
        profile = replace(profile_of(name), published=None)
        for family, chosen in places.items():
            errors, held = [], []
            for place in chosen:
                truth = published_seconds(table, place)
                if truth is None:
                    continue
                found = kernel_time(profile, place)
                beside = beside_attention(place, profile.rates.bytes_per_s) if family == "attention" else 0.0
                errors.append(log2((found.seconds + beside) / truth))
                held.append(abs(errors[-1]) <= found.unsure)
            shares = np.abs(np.exp2(errors) - 1)
            needed = np.quantile(np.abs(errors), 0.9)
            print(f"| {name} | {family} | {len(errors)} | {np.median(shares):.0%} | {np.quantile(shares, 0.9):.0%} "
                  f"| {np.mean(held):.0%} | {needed:.2f} |")  # fmt: skip
    return 0


def beside_attention(place: Place, bytes_per_s: float) -> float:
    rows, length, read, width, _, grouped = place.sizes
    return BESIDE_S + BESIDE_PASSES * 4.0 * width * (rows * length + rows // grouped * read) / bytes_per_s


def products(count: int) -> list[Place]:
    choose = random.Random(0)
    found = []
    for _ in range(count):
        m, n, k = (round(2 ** choose.uniform(low, high) / step) * step for low, high, step in
                   ((3, 13, 8), (8, 14, 64), (8, 14, 64)))  # fmt: skip
        left, right = TensorSpec((m, k), "bfloat16"), TensorSpec((k, n), "bfloat16", (1, k))
        found.append(located("aten::mm", {"self": left, "mat2": right}, TensorSpec((m, n), "bfloat16")))
    return found


def attentions(count: int) -> list[Place]:
    choose = random.Random(1)
    found = []
    for _ in range(count):
        batch, heads, width = choose.choice((1, 2, 4, 8, 16)), choose.choice((8, 16, 32, 64)), choose.choice((64, 128))
        length = choose.choice((128, 256, 512, 1024, 2048, 4096))
        one = TensorSpec((batch, heads, length, width), "bfloat16")
        given = {"query": one, "key": one, "value": one, "is_causal": True, "dropout_p": 0.0}
        found.append(located("aten::_scaled_dot_product_cudnn_attention", given, one))
    return found


def located(op: str, arguments: dict[str, object], output: TensorSpec) -> Place:
    inputs = tuple(tensor_specs(arguments))
    found = assess(Call(op, arguments, (output,), inputs))
    plain = {name: value for name, value in arguments.items() if not isinstance(value, TensorSpec)}
    signature = Signature(op, "", found.category, found.status, (), inputs, (output,), plain, found.cost, 0)
    return locate(signature)


if __name__ == "__main__":
    raise SystemExit(main())
