"""Prefill and decode of three language models on a CUDA device, against what was predicted without one.

    python benchmarks/llm.py --predict predictions.json                      # on any machine, no GPU needed
    python benchmarks/llm.py --device cuda --predictions predictions.json -o measured.json
    python benchmarks/llm.py --beside measured.json                          # with the hosts that it saw, here
    python benchmarks/llm.py --table measured.json                           # the table of docs/llm-accuracy.md

The first three models are those that the model of time was corrected on; `--set fresh` and `--set third` are three
others each, predicted (benchmarks/llm_predictions*.json) before any of them ran. Weights are random, of the published
shapes. Times are medians with the device synchronised, memory is what `torch.cuda.max_memory_allocated()` says of the
pass. A run takes about two minutes on an H200.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "src"))

from torchgauge.predict.host_sample import HostProbe

BATCHES, CONTEXTS = (1, 16), (512, 2048, 8192)
COMMON: dict[str, Any] = {"max_position_embeddings": 131072, "dtype": "bfloat16", "rope_theta": 500000.0}
# Shapes of the configs published with Llama 3.2 1B, Qwen 2.5 3B and Llama 3.1 8B.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-1b": ("Llama", {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
                           "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
                           "head_dim": 64, "tie_word_embeddings": True}),
    "qwen-3b": ("Qwen2", {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 11008,
                          "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2,
                          "tie_word_embeddings": True}),
    "llama-8b": ("Llama", {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
                           "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                           "tie_word_embeddings": False}),
}  # fmt: skip
# Shapes of the configs published with Qwen 3 1.7B, Phi 3 mini and Mistral 7B v0.3.
FRESH: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-1.7b": ("Qwen3", {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
                             "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
                             "head_dim": 128, "tie_word_embeddings": True}),
    "phi3-mini": ("Phi3", {"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
                           "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
                           "tie_word_embeddings": False, "sliding_window": None}),
    "mistral-7b": ("Mistral", {"vocab_size": 32768, "hidden_size": 4096, "intermediate_size": 14336,
                               "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                               "head_dim": 128, "sliding_window": None, "tie_word_embeddings": False}),
}  # fmt: skip
# Shapes of the configs published with Granite 3.1 8B, OLMo 2 1B and StarCoder 2 3B (which has a sliding window).
THIRD: dict[str, tuple[str, dict[str, Any]]] = {
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
SETS = {"first": MODELS, "fresh": FRESH, "third": THIRD}


def build(name: str, device: str) -> torch.nn.Module:
    """On a real device with small random weights; their values do not change what runs."""
    import transformers

    family, settings = (MODELS | FRESH | THIRD)[name]
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


def predict(names: Iterable[str], device: str, measured: dict[str, Any] | None = None) -> dict[str, Any]:
    """With the packaged host, or with the host's speed as measured beside each pass of `measured`."""
    import torchgauge as tg
    from torchgauge.predict import time as times
    from torchgauge.predict.devices import find_device
    from torchgauge.predict.host import Host
    from torchgauge.source.packages import torchvision_importable

    workspace = find_device(device).chip.cublas_bytes
    rows: dict[str, Any] = {}
    plain = times.predict_ops
    for name in names:
        with torchvision_importable():
            found = tg.llm(build(name, "meta"))
        for kind, batch, context in product(("prefill", "decode"), BATCHES, CONTEXTS):
            label = f"{name} {kind} {batch}x{context}"
            if measured is not None:
                facts = measured["rows"].get(label, {}).get("host")
                if facts is None:
                    continue
                times.predict_ops = partial(plain, host=Host.of(facts))  # type: ignore[assignment]
            if kind == "prefill":
                step = found.prefill(context, batch, on=device, last_logits=True)
            else:
                step = found.decode(context, batch, on=device)
            rows[label] = {
                "time_s": step.time_s, "low_s": step.low_s, "high_s": step.high_s, "bound": step.bound,
                "allocated_bytes": found.weights_bytes + step.peak_bytes + workspace,
                "cache_bytes": found.cache_bytes(context, batch),
            }  # fmt: skip
    times.predict_ops = plain
    return {"device": device, "torch": torch.__version__, "rows": rows}


def measure(names: Iterable[str], budget_s: float) -> dict[str, Any]:
    started = time.perf_counter()
    rows: dict[str, Any] = {}
    probe = HostProbe("cuda")
    for name in names:
        model = build(name, "cuda")
        for batch in BATCHES:
            for context in CONTEXTS:
                if time.perf_counter() - started > budget_s:
                    break
                rows |= measure_point(name, model, batch, context, probe)
        del model
        gc.collect()
        torch.cuda.empty_cache()
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}


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


def compare(measured: dict[str, Any]) -> None:
    """Predicted beforehand with the packaged host, and with the host's speed as measured beside the pass."""
    beside = measured.get("beside", {}).get("rows", {})
    print("| pass | measured | predicted | error | with its host | memory | error |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    errors: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    for name, real in measured["rows"].items():
        said = measured["predictions"]["rows"][name]
        cells = [name, f"{real['time_s'] * 1e3:.1f} ms", f"{said['time_s'] * 1e3:.1f} ms"]
        for host, one in (("packaged host", said), ("host beside the pass", beside.get(name))):
            if one is None:
                cells.append("")
                continue
            error = one["time_s"] / real["time_s"] - 1
            is_held = one["low_s"] <= real["time_s"] <= one["high_s"]
            errors.setdefault((name.split()[1], host), []).append((error, is_held))
            cells.append(f"{error:+.0%}")
        memory_error = said["allocated_bytes"] / real["allocated_bytes"] - 1
        cells += [f"{real['allocated_bytes'] / 2**30:.2f} GiB", f"{memory_error:+.1%}"]
        print("| " + " | ".join(cells) + " |")
    for (kind, host), found in errors.items():
        sizes = sorted(abs(error) for error, _ in found)
        held = sum(is_held for _, is_held in found)
        print(
            f"{kind}, {host}: mean {statistics.mean(sizes):.1%}, worst {sizes[-1]:.0%}, within {held} of {len(found)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", metavar="FILE", help="write predictions; no GPU needed")
    parser.add_argument("--set", choices=tuple(SETS), default="first", help="which three models")
    parser.add_argument("--seconds", type=float, default=170.0, help="of measuring, at most")
    parser.add_argument("--on", default="h200", help="the device that predictions are for")
    parser.add_argument("--beside", metavar="FILE", help="add predictions with the hosts that a measuring run saw")
    parser.add_argument("--device", choices=("cuda",), help="measure on it")
    parser.add_argument("--predictions", metavar="FILE", help="written beforehand by --predict")
    parser.add_argument("-o", dest="output", metavar="FILE", help="measurements, with the predictions")
    parser.add_argument("--table", metavar="FILE", help="print the table of a file of measurements")
    args = parser.parse_args()
    names = list(SETS[args.set])
    if args.table:
        compare(json.loads(Path(args.table).read_text()))
    elif args.beside:
        found = json.loads(Path(args.beside).read_text())
        found["beside"] = predict(names, args.on, found)
        Path(args.beside).write_text(json.dumps(found, indent=1))
    elif args.predict:
        Path(args.predict).write_text(json.dumps(predict(names, args.on), indent=1))
    elif args.device:
        found = measure(names, args.seconds) | {"predictions": json.loads(Path(args.predictions).read_text())}
        if args.output:
            Path(args.output).write_text(json.dumps(found, indent=1))
        compare(found)
    else:
        parser.error("one of --predict, --device cuda, --beside, --table")


if __name__ == "__main__":
    main()
