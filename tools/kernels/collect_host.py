"""What models take of the host: the data that `predict/host.json` is fitted to.

    python tools/kernels/collect_host.py measure FOLDER   on the device; needs timm and transformers
    python tools/kernels/collect_host.py fit FOLDER       here: traces the models, writes predict/host.json

The models are small or have small inputs, so that the device waits for the host. Between their steps runs the sample of
`predict/host_sample.py`: its time is the unit in which the host's costs are fitted, since the host's speed changes by
half within seconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks"), str(ROOT / "tools" / "kernels")]

# By name, as the folders are on no path that a type checker knows.
made: Any = import_module("kernel_models")

TRAIN = {"mode": "train", "optimizer": "adamw"}
# Of the collection of kernels: none of them is among the models that `forecast` is compared with.
IMAGE_MODELS = {
    "resnet34": 64, "resnet101": 64, "resnext50_32x4d": 64, "seresnet50": 64, "skresnet34": 64, "densenet121": 64,
    "vgg11_bn": 64, "xception41": 96, "dla60": 64, "hrnet_w18": 64, "cspdarknet53": 64, "dm_nfnet_f0": 96,
    "efficientnet_b0": 64, "tf_efficientnetv2_s": 64, "mobilenetv2_100": 64, "mobilenetv3_small_100": 64,
    "regnety_016": 64, "ghostnetv2_100": 64, "convnext_tiny": 64, "convnextv2_nano": 64, "poolformer_s12": 64,
    "vit_tiny_patch16_224": 224, "beitv2_base_patch16_224": 224, "eva02_small_patch14_224": 224,
    "swin_tiny_patch4_window7_224": 224, "swinv2_tiny_window8_256": 256, "mixer_s32_224": 224, "gmlp_s16_224": 224,
    "xcit_tiny_12_p16_224": 224, "coatnet_1_rw_224": 224, "maxvit_rmlp_small_rw_224": 224, "mobilevit_s": 64,
    "edgenext_small": 64, "pvt_v2_b1": 64, "twins_svt_small": 64, "cait_xxs24_224": 224, "focalnet_tiny_srf": 64,
    "davit_tiny": 224, "efficientformer_l1": 224, "fastvit_t8": 64, "levit_256": 224, "crossvit_15_240": 240,
}  # fmt: skip
TRAINED = {
    "resnet34", "resnext50_32x4d", "densenet121", "efficientnet_b0", "mobilenetv2_100", "regnety_016", "convnext_tiny",
    "poolformer_s12", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "mixer_s32_224", "xcit_tiny_12_p16_224",
    "edgenext_small", "pvt_v2_b1", "focalnet_tiny_srf", "seresnet50", "hrnet_w18", "beitv2_base_patch16_224",
}  # fmt: skip
# Its convolutions take four times as long as those of other models; unexplained.
SKIPPED = {"convnextv2_nano"}
_LLAMA = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8,
          "num_key_value_heads": 2, "vocab_size": 1024}  # fmt: skip
_LABELLED = {"vocab_size": 1024}


def models() -> Iterator[Any]:
    for number, (name, side) in enumerate(IMAGE_MODELS.items()):
        options = made.BF16 if number % 2 else {}
        yield made.Configuration(name, made.of_timm(name), made.image(2, side), options)
        if name in TRAINED:
            yield made.Configuration(f"{name} train", made.of_timm(name), made.image(2, side), TRAIN | options)
    bert = {"hidden_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4, "intermediate_size": 256, **_LABELLED}
    gpt2 = {"n_embd": 128, "n_layer": 8, "n_head": 4, **_LABELLED}
    t5 = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 4, "num_heads": 4, "decoder_start_token_id": 0,
          **_LABELLED}  # fmt: skip
    bart = {"d_model": 128, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 4,
            "decoder_attention_heads": 4, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, **_LABELLED}  # fmt: skip
    opt = {"hidden_size": 128, "ffn_dim": 256, "num_hidden_layers": 8, "num_attention_heads": 4,
           "word_embed_proj_dim": 128, **_LABELLED}  # fmt: skip
    gemma = _LLAMA | {"head_dim": 32}
    moe = _LLAMA | {"num_hidden_layers": 4, "moe_intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2}
    named: list[tuple[str, str, str, dict[str, Any], Callable[[], dict[str, Any]]]] = [
        ("bert", "BertForMaskedLM", "BertConfig", bert, made.tokens(2, 32, True)),
        ("deberta", "DebertaV2Model", "DebertaV2Config", bert, made.tokens(2, 32)),
        ("gpt2", "GPT2LMHeadModel", "GPT2Config", gpt2, made.tokens(2, 32, True)),
        ("llama", "LlamaForCausalLM", "LlamaConfig", _LLAMA, made.tokens(2, 32, True)),
        ("gemma2", "Gemma2ForCausalLM", "Gemma2Config", gemma, made.tokens(2, 32, True)),
        ("olmo2", "Olmo2ForCausalLM", "Olmo2Config", _LLAMA, made.tokens(2, 32, True)),
        ("qwen2", "Qwen2ForCausalLM", "Qwen2Config", _LLAMA, made.tokens(2, 32, True)),
        ("t5", "T5ForConditionalGeneration", "T5Config", t5, made.pairs(2, 32, 16)),
        ("bart", "BartForConditionalGeneration", "BartConfig", bart, made.pairs(2, 32, 16)),
        ("opt", "OPTForCausalLM", "OPTConfig", opt, made.tokens(2, 32, True)),
        ("whisper", "WhisperForConditionalGeneration", "WhisperConfig",
         {**bart, "num_mel_bins": 80, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, made.speech(1, 16)),
        ("qwen3-moe", "Qwen3MoeForCausalLM", "Qwen3MoeConfig", moe, made.tokens(2, 32)),
        ("vit-hf", "ViTModel", "ViTConfig", {"hidden_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4,
         "intermediate_size": 256}, lambda: {"args": (), "kwargs": {"pixel_values": torch.randn(2, 3, 224, 224)}}),
    ]  # fmt: skip
    for number, (name, model, config, settings, inputs) in enumerate(named):
        options = made.BF16 if number % 2 else {}
        build = made.of_transformers(model, config, **settings)
        yield made.Configuration(name, build, inputs, options)
        if name in ("bert", "gpt2", "llama", "t5", "gemma2", "opt"):
            yield made.Configuration(
                f"{name} train", made.of_transformers(model, config, **settings), inputs, TRAIN | options
            )
        if name in ("llama", "gpt2", "gemma2", "olmo2", "qwen2", "opt"):
            yield made.Configuration(f"{name} decode", build, inputs, made.BF16)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("measure", "fit"))
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent / "host")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    return measure(args.folder, args.seconds, args.device) if args.phase == "measure" else fit(args.folder)


def measure(output: Path, seconds: float, device: str) -> int:
    """A line per model: medians of its step (until the call returns, and until the device is idle) and of the sample
    between its steps, the ratios of neighbours, calls of Python functions and of builtin ones."""
    from torchgauge.predict.host_sample import HostProbe

    warnings.simplefilter("ignore")
    output.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + seconds
    probe = HostProbe(device)
    with (output / "host.jsonl").open("w") as file:
        for configuration in models():
            if time.monotonic() > ends:
                break
            try:
                row = measured(configuration, device, probe)
            except Exception as error:
                row = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
            file.write(json.dumps({"name": configuration.name} | row) + "\n")
            file.flush()
            gc.collect()
    print(f"{ends - time.monotonic():.0f} s left", flush=True)
    return 0


def measured(configuration: Any, device: str, probe: Any) -> dict[str, Any]:
    started = time.perf_counter()
    wait: Callable[[], Any] = torch.cuda.synchronize if device != "cpu" else lambda: None
    subject = import_module("forecast").Subject(configuration, device)
    run: Callable[[], Any] = subject.step
    between = probe.train if subject.is_training else probe.forward
    if configuration.name.endswith("decode"):
        with torch.no_grad():
            cache = subject.model(**subject.kwargs, use_cache=True).past_key_values
        token = subject.kwargs["input_ids"][:, :1].contiguous()

        def run() -> None:
            with torch.no_grad():
                subject.model(input_ids=token, past_key_values=cache, use_cache=True)

    for _ in range(3):
        run()
    wait()
    built = time.perf_counter() - started
    rows: list[tuple[float, float, float, float, float]] = []
    ends = time.perf_counter() + 0.35
    while len(rows) < 7 or (time.perf_counter() < ends and len(rows) < 25):
        before = probe.seconds(between)
        wait()
        cpu, begin = time.thread_time(), time.perf_counter()
        run()
        back = time.perf_counter()
        wait()
        done = time.perf_counter()
        rows.append((before, back - begin, done - begin, probe.seconds(between), time.thread_time() - cpu))
    counts = {"call": 0, "c_call": 0}

    def note(_frame: Any, event: str, _arg: Any) -> None:
        if event in counts:
            counts[event] += 1

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    wait()
    return {
        "step_s": statistics.median(row[2] for row in rows), "returned_s": statistics.median(row[1] for row in rows),
        "probe_s": statistics.median(probe for row in rows for probe in (row[0], row[3])),
        "ratio": statistics.median(row[2] / (row[0] / 2 + row[3] / 2) for row in rows),
        "probes": [round(probe * 1e6) for row in rows for probe in (row[0], row[3])],
        "steps": [round(row[2] * 1e6) for row in rows], "built_s": round(built, 2),
        "calls": counts["call"], "c_calls": counts["c_call"],
    }  # fmt: skip


# In µs of a host whose sample takes 2.3 ms (forward) and 8.6 ms (a training step): about a bare call, which holds where
# the models say little. It pulls as much as a few models do.
PRIOR_FORWARD = {
    "depthwise": 14, "pointwise": 16, "spatial": 20, "grouped": 22, "pointwise_half": 22, "spatial_half": 28,
    "grouped_half": 30, "matmul": 12, "norm": 12, "cudnn_attention": 22, "attention": 30, "other": 10,
    "cat_input": 0.7, "view": 2.5, "module": 2.5,
}  # fmt: skip
PRIOR_TRAIN = {"forward_op": 16, "backward_op": 10, "view": 4, "listed": 1.7, "module": 6}
_PULL = 0.05
# What a call of a recurrent layer alone takes beside cuDNN, µs as above: Python's module and the ops around it (40 and
# 60), and half of what a first call takes more than one of eight in a row (60 and 80, the middle of seven layers).
_AROUND = {"recurrent": 70, "recurrent_backward": 100}
# The sample's seconds in four runs on H200 machines, two of them derived from the models of benchmarks/forecast.py:
# 2.3, 3.2, 3.3 and 5.2 ms; training steps 8.7, 12.6, 14.4 and 16.7 ms. A plan takes 12 forwards of the sample.
_PLAN = 12.0
SPEED = {"forward_s": 3.3e-3, "train_s": 12.7e-3, "plan_s": _PLAN * 3.3e-3, "spread": 0.75}


def fit(folder: Path) -> int:
    """Costs that are not negative, by the least absolute relative errors, and what each model left out shows."""
    import numpy

    from torchgauge.predict.host import host_work

    target = ROOT / "src" / "torchgauge" / "predict" / "host.json"
    per_op = json.loads(target.read_text())["costs"]["per_op"]
    rows = {row["name"]: row for row in map(json.loads, (folder / "host.jsonl").read_text().splitlines())}
    amounts: dict[bool, list[tuple[str, Counter[str]]]] = {False: [], True: []}
    for configuration in models():
        row = rows.get(configuration.name, {})
        # Not those that waited for the device.
        if row.get("returned_s", 0) < 0.9 * row.get("step_s", 1) or configuration.name in SKIPPED:
            continue
        if not configuration.name.endswith("decode"):
            trace, trains = import_module("collect").traced(configuration), configuration.is_training
            found = Counter[str]({"module": trace.module_calls})
            for op in trace.step_ops:
                found.update(dict(host_work(op, per_op, trains=trains)))
            amounts[trains].append((configuration.name, found))
    result: dict[str, dict[str, float]] = {}
    errors: list[float] = []
    for trains, prior, unit in ((False, PRIOR_FORWARD, 2300), (True, PRIOR_TRAIN, 8600)):
        names = list(prior)
        ratios = numpy.array([rows[name]["ratio"] for name, _ in amounts[trains]])
        work = numpy.array([[found[name] for name in names] for _, found in amounts[trains]]) / ratios[:, None]
        before = numpy.array([prior[name] / unit for name in names])
        left_out = []
        for place in range(len(ratios)):
            others = numpy.arange(len(ratios)) != place
            left_out.append(abs(float(work[place] @ fitted(work[others], before)) - 1))
        costs = fitted(work, before)
        result["train" if trains else "forward"] = dict(zip(names, costs.tolist(), strict=True))
        errors += left_out
        mean, tail = statistics.mean(left_out), sorted(left_out)[int(0.9 * len(left_out))]
        print(f"{len(ratios)} models, each left out once: mean error {mean:.1%}, 90th percentile {tail:.1%}")
        print({name: round(cost * unit, 1) for name, cost in zip(names, costs, strict=True)})
    calls = recurrent_costs(folder)
    result["forward"] |= calls
    result["train"] |= {name: cost * 2300 / 8600 for name, cost in calls.items()}
    structure = math.log2(1 + sorted(errors)[int(0.9 * len(errors))])
    facts = {"costs": {**result, "per_op": per_op, "plan": _PLAN, "structure": structure}, "speed": SPEED}
    target.write_text(json.dumps(facts, indent=1) + "\n")
    return 0


def recurrent_costs(folder: Path) -> dict[str, float]:
    """Of calls of recurrent layers alone (recurrent.jsonl): a call forward and backward, a weight that cuDNN is asked
    for, and a launch, two for each step that is launched."""
    import numpy
    from scipy.optimize import nnls

    from torchgauge.predict.blocks import Recurrence
    from torchgauge.predict.coordinates import recurrent_algorithm

    names, work, ratios = ("recurrent", "recurrent_backward", "recurrent_weight", "launch"), [], []
    for row in map(json.loads, (folder / "recurrent.jsonl").read_text().splitlines()):
        kind, features, units, layers, both, batch, steps, dtype = row["rnn"]
        cells, is_backward = layers * (2 if both else 1), row["mode"] == "backward"
        mode, gates = {"LSTM": (2, 4), "GRU": (3, 3), "RNN": (1, 1)}[kind]
        layer = Recurrence("", steps, layers, 2 if both else 1, batch, features, units, gates, 4, is_backward, False)
        each = steps if recurrent_algorithm(layer, mode, dtype) == "standard" else 1
        gathered = 4 * cells if is_backward or dtype == "bfloat16" else 0
        work.append([not is_backward, is_backward, gathered, 2 * cells * each])
        ratios.append(row["ratio"])
    parts, truth = numpy.array(work, dtype=float) / numpy.array(ratios)[:, None], numpy.ones(len(ratios))
    weights = truth
    for _ in range(30):
        costs, _ = nnls(parts * weights[:, None], truth * weights)
        weights = 1 / numpy.sqrt(numpy.maximum(abs(parts @ costs - 1), 0.03))
    error = abs(parts @ costs - 1)
    print(f"{len(ratios)} calls of recurrent layers: mean error {error.mean():.1%}")
    found = dict(zip(names, costs.tolist(), strict=True))
    return {name: cost - _AROUND.get(name, 0) / 2300 for name, cost in found.items()}


def fitted(work: Any, prior: Any) -> Any:
    """Iteratively reweighted: the squares become absolute errors beyond 3 %."""
    import numpy
    from scipy.optimize import nnls

    pull = _PULL * math.sqrt(len(work))
    weights = numpy.ones(len(work))
    for _ in range(30):
        rows = numpy.vstack([work * weights[:, None], numpy.diag(pull / prior)])
        costs, _ = nnls(rows, numpy.concatenate([weights, numpy.full(len(prior), pull)]))
        weights = 1 / numpy.sqrt(numpy.maximum(abs(work @ costs - 1), 0.03))
    return costs


if __name__ == "__main__":
    raise SystemExit(main())
