"""A processor as a device: calibration of this machine, then twenty models predicted and measured in one run.

    python benchmarks/forecast_cpu.py [--seconds 100] [--threads 1]

With one thread times are those of the process (`time.process_time`), so that other work on the machine shows less;
errors are ratios of figures of the same run. No layer of the calibration is taken from the models.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

MODELS = (
    ("resnet18", 1, 224), ("resnet50", 1, 224), ("resnext50_32x4d", 1, 224), ("densenet121", 1, 224),
    ("mobilenetv3_large_100", 4, 224), ("efficientnet_b0", 1, 224), ("regnety_008", 2, 224), ("convnext_tiny", 1, 224),
    ("vgg11", 1, 224), ("inception_v3", 1, 299), ("vit_small_patch16_224", 2, 224), ("deit_tiny_patch16_224", 4, 224),
    ("swin_tiny_patch4_window7_224", 1, 224), ("mixer_s32_224", 2, 224),
)  # fmt: skip
SMALL = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}
TEXT = (
    ("BertModel", "BertConfig", {}, (1, 128)),
    ("RobertaModel", "RobertaConfig", SMALL, (4, 64)),
    ("DistilBertModel", "DistilBertConfig", {}, (2, 128)),
    ("GPT2Model", "GPT2Config", {}, (1, 256)),
    ("LlamaModel", "LlamaConfig", SMALL | {"num_key_value_heads": 2, "vocab_size": 8000}, (1, 256)),
    ("ElectraModel", "ElectraConfig", {}, (4, 128)),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=100, help="of calibration")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kernels", type=Path, help="a calibration that was kept, in place of a new one")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.threads == 1 else time.perf_counter
    table = args.kernels or calibrated(args.seconds, clock)
    expected = {name: forecast(model, inputs, table) for name, model, inputs in subjects()}
    least = dict.fromkeys(expected, float("inf"))
    for _ in range(2):  # apart in time: what disturbs a model in the first round is over in the second
        for name, model, inputs in subjects():
            least[name] = min(least[name], fastest(model, inputs, clock))
    rows = []
    for name, (predicted, low, high) in expected.items():
        measured = least[name]
        rows.append((abs(predicted / measured - 1), low <= measured <= high))
        print(f"| {name} | {measured * 1e3:.1f} ms | {predicted * 1e3:.1f} ms | {predicted / measured - 1:+.1%} |")
    errors = sorted(error for error, _ in rows)
    middle, tail = statistics.median(errors), errors[int(0.9 * len(errors))]
    held = sum(is_held for _, is_held in rows)
    mean = statistics.mean(errors)
    print(f"{len(rows)} models: mean error {mean:.1%}, median {middle:.1%}, 90th percentile {tail:.1%}, {held} held")
    return 0


def calibrated(seconds: float, clock: Callable[[], float]) -> Path:
    from torchgauge.predict.calibration import LAUNCH_S, calibrate_kernels
    from torchgauge.predict.kernel_tables import Rates

    os.environ["TORCHGAUGE_CACHE"] = tempfile.mkdtemp()
    # What the times are put in relation to; the table holds how far from it every kernel is.
    rates = Rates({"float32": 1e11 * torch.get_num_threads()}, 1e10, LAUNCH_S)
    started = time.monotonic()
    path = calibrate_kernels("cpu", "this processor", rates, "now", seconds=seconds, clock=clock)
    print(f"calibrated in {time.monotonic() - started:.0f} s: {path}", flush=True)
    return path


def subjects() -> Iterator[tuple[str, torch.nn.Module, torch.Tensor]]:
    from torchgauge.source.packages import import_optional

    timm, transformers = (import_optional(name, "a benchmark") for name in ("timm", "transformers"))
    torch.manual_seed(0)
    for name, batch, side in MODELS:
        yield f"{name} b{batch}", timm.create_model(name).eval(), torch.randn(batch, 3, side, side)
    for name, config, settings, shape in TEXT:
        model = getattr(transformers, name)(getattr(transformers, config)(**settings)).eval()
        yield f"{name} {shape[0]}x{shape[1]}", model, torch.randint(0, 1000, shape)


def forecast(model: torch.nn.Module, inputs: torch.Tensor, table: Path) -> tuple[float, float, float]:
    import torchgauge as tg

    found = tg.forecast(model, on=str(table), inputs=inputs, progress=False)
    return found.time_s, found.low_s, found.high_s


def fastest(model: torch.nn.Module, inputs: torch.Tensor, clock: Callable[[], float]) -> float:
    """Of the runs of a second, at least five, after two that warm up. With two threads on two cores each interruption
    of either thread delays a run, and of five runs often none is free of them."""
    times: list[float] = []
    with torch.inference_mode():
        while len(times) < 7 or sum(times) < 1.0:
            started = clock()
            model(inputs)
            times.append(clock() - started)
    return min(times[2:])


if __name__ == "__main__":
    sys.exit(main())
