"""Prefill and decode of three language models on a CUDA device, predicted without one and measured.

    python benchmarks/llm.py compare [--measured FILE]      here, without a GPU: predicts each pass, with the packaged
                                                            host and with that of the device's run, and compares it
                                                            with data/h200-llm.jsonl
    python benchmarks/llm.py measure -o FILE                on the device; about two minutes on an H200

No figure of the model of time was fitted to these models. Weights are random, of the published shapes. Times are
medians with the device synchronised, memory is what `torch.cuda.max_memory_allocated()` says of the pass.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from torchgauge.predict.host_sample import HostProbe

BATCHES, CONTEXTS = (1, 16), (512, 2048, 8192)
COMMON: dict[str, Any] = {"max_position_embeddings": 131072, "dtype": "bfloat16", "rope_theta": 500000.0}
# Shapes of the configs published with Granite 3.1 8B, OLMo 2 1B and StarCoder 2 3B (which has a sliding window).
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "olmo2-1b": ("Olmo2", {"vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192,
                           "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16,
                           "tie_word_embeddings": False}),
    "starcoder2-3b": ("Starcoder2", {"vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288,
                                     "num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2,
                                     "sliding_window": 4096, "tie_word_embeddings": True}),
    "granite-8b": ("Granite", {"vocab_size": 49155, "hidden_size": 4096, "intermediate_size": 12800,
                               "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
                               "tie_word_embeddings": True}),
}  # fmt: skip


def build(name: str, device: str) -> torch.nn.Module:
    """On a real device with small random weights; their values do not change what runs."""
    import transformers

    family, settings = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**COMMON, **settings)
    with torch.device("meta"):
        model: torch.nn.Module = getattr(transformers, f"{family}ForCausalLM")._from_config(config)
    if device != "meta":
        # Buffers are computed from the config; the meta device has only their shapes.
        model.to_empty(device=device)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.02)
        rotary = type(model.model.rotary_emb)(config, device=device)  # type: ignore[union-attr, operator]
        model.model.rotary_emb = rotary  # type: ignore[union-attr]
        if config.tie_word_embeddings:
            model.tie_weights()  # type: ignore[operator]
    return model.eval()


def predict(measured: dict[str, Any], device: str) -> dict[str, dict[str, Any]]:
    """Each pass with the packaged host, and with the host's speed as measured beside it (`beside`)."""
    import torchgauge as tg
    from torchgauge.predict import time as times
    from torchgauge.predict.devices import find_device
    from torchgauge.predict.host import Host
    from torchgauge.source.packages import torchvision_importable

    workspace = find_device(device).chip.cublas_bytes
    rows: dict[str, dict[str, Any]] = {}
    plain = times.predict_ops
    for name, which in product(MODELS, ("packaged", "beside")):
        with torchvision_importable():
            found = tg.llm(build(name, "meta"))  # a second one, as it keeps what it was asked
        for kind, batch, context in product(("prefill", "decode"), BATCHES, CONTEXTS):
            label = f"{name} {kind} {batch}x{context}"
            if label not in measured:
                continue
            if which == "beside":
                times.predict_ops = partial(plain, host=Host.of(measured[label]["host"]))  # type: ignore[assignment]
            try:
                if kind == "prefill":
                    step = found.prefill(context, batch, on=device, last_logits=True)
                else:
                    step = found.decode(context, batch, on=device)
            finally:
                times.predict_ops = plain
            row = rows.setdefault(label, {"allocated_bytes": found.weights_bytes + step.peak_bytes + workspace})
            row[which] = (step.time_s, step.low_s, step.high_s)
    return rows


def measure(budget_s: float) -> dict[str, dict[str, Any]]:
    started = time.perf_counter()
    rows: dict[str, dict[str, Any]] = {}
    probe = HostProbe("cuda")
    for name in MODELS:
        model = build(name, "cuda")
        for batch, context in product(BATCHES, CONTEXTS):
            if time.perf_counter() - started < budget_s:
                rows |= measure_point(name, model, batch, context, probe)
        del model
        gc.collect()
        torch.cuda.empty_cache()
    return rows


@torch.no_grad()
def measure_point(name: str, model: torch.nn.Module, batch: int, context: int, probe: HostProbe) -> dict[str, Any]:
    """A prefill and twelve steps. Between them the sample of the host runs, and an attention of another length than any
    before, for which cuDNN builds a plan: what the host takes at that time."""
    # Equal tokens would make equal rows, on which the device runs faster than it does on text.
    prompt = torch.randint(0, 32000, (batch, context), device="cuda")
    token = prompt[:, :1].contiguous()
    times: list[float] = []
    samples: list[float] = []
    plans: list[float] = []
    for _ in range(2 if batch * context > 16384 else 4):  # the first one compiles and allocates
        cache = None
        samples.append(probe.seconds(probe.forward))
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        start = time.perf_counter()
        out = model(input_ids=prompt, use_cache=True, logits_to_keep=1)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        peak = torch.cuda.max_memory_allocated()
        cache = out.past_key_values
        del out
    plans.append(probe.seconds(probe.plan))
    rows = {f"{name} prefill {batch}x{context}": row(times[1:], peak, samples, plans)}
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    rows[f"{name} prefill {batch}x{context}"]["cache_bytes"] = held
    times, peaks, samples, plans = [], [], [], []
    for number in range(12):
        samples.append(probe.seconds(probe.forward))
        if number % 3 == 0:
            plans.append(probe.seconds(probe.plan))
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        start = time.perf_counter()
        out = model(input_ids=token, past_key_values=cache, use_cache=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        peaks.append(torch.cuda.max_memory_allocated())
        cache = out.past_key_values
        del out
    rows[f"{name} decode {batch}x{context}"] = row(times[2:], peaks[0], samples[2:], plans)
    return rows


def row(times: list[float], peak: int, samples: list[float], plans: list[float]) -> dict[str, Any]:
    spread = math.log2(max(samples) / min(samples)) / 2
    forward_s = statistics.median(samples)
    host = {"forward_s": forward_s, "train_s": 4 * forward_s, "plan_s": statistics.median(plans), "spread": spread}
    return {"time_s": statistics.median(times), "spread_s": max(times) - min(times), "allocated_bytes": peak,
            "host": host}  # fmt: skip


def compare(measured: dict[str, dict[str, Any]], device: str) -> None:
    predicted = predict(measured, device)
    print("| pass | measured | predicted | error | with its host | memory | error |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    errors: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    memory: list[float] = []
    for name, real in measured.items():
        said = predicted[name]
        cells = [name, f"{real['time_s'] * 1e3:.1f} ms", f"{said['packaged'][0] * 1e3:.1f} ms"]
        for host in ("packaged", "beside"):
            seconds, low, high = said[host]
            error = seconds / real["time_s"] - 1
            errors.setdefault((name.split()[1], host), []).append((error, low <= real["time_s"] <= high))
            cells.append(f"{error:+.0%}")
        memory.append(said["allocated_bytes"] / real["allocated_bytes"] - 1)
        cells += [f"{real['allocated_bytes'] / 2**30:.2f} GiB", f"{memory[-1]:+.1%}"]
        print("| " + " | ".join(cells) + " |")
    for (kind, host), found in errors.items():
        sizes = sorted(abs(error) for error, _ in found)
        held = sum(is_held for _, is_held in found)
        print(f"{kind}, {host} host: mean {statistics.mean(sizes):.1%}, worst {sizes[-1]:.0%}, "
              f"within {held} of {len(found)}")  # fmt: skip
    print(f"memory: mean {statistics.mean(map(abs, memory)):.1%}, worst {max(map(abs, memory)):.1%}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("compare", "measure"))
    parser.add_argument("--measured", type=Path, default=Path(__file__).parent / "data" / "h200-llm.jsonl")
    parser.add_argument("--on", default="h200", help="the device that predictions are for")
    parser.add_argument("--seconds", type=float, default=170.0, help="of measuring, at most")
    parser.add_argument("-o", "--output", type=Path, default=Path("build/llm.jsonl"))
    args = parser.parse_args()
    if args.phase == "compare":
        rows = map(json.loads, args.measured.read_text().splitlines()[1:])
        compare({row["name"]: row["measured"] for row in rows}, args.on)
        return 0
    args.output.parent.mkdir(parents=True, exist_ok=True)
    origin = {"origin": f"{torch.cuda.get_device_name()}, torch {torch.__version__}"}
    rows = [{"name": name, "measured": row} for name, row in measure(args.seconds).items()]
    args.output.write_text("".join(json.dumps(row) + "\n" for row in (origin, *rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
