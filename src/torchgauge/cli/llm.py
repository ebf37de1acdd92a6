"""`torchgauge llm TARGET`."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout

from torchgauge.cli.output import check_outputs, deliver_prediction, show_progress
from torchgauge.cli.target_options import add_weights_dtype, named_arguments, positive, target_reader
from torchgauge.progress import import_torch
from torchgauge.report.registry import LLM
from torchgauge.units import parse_sizes

SUMMARY = "language models: cost of prefill and decode, cache size, what fits"
DESCRIPTION = """\
Report what a language model is, what a prompt and a token cost, what its
cache holds and what fits on a GPU, without that GPU. The model is run on
tensors without data, with the cache that it returns, at every length shown.
TARGET: a config.json or its folder, hf:NAME, a GGUF file, file.py:Name.
"""
EXAMPLES = (
    "torchgauge llm hf:gpt2",
    "torchgauge llm config.json --context 32768 --on h200",
    "torchgauge llm model.gguf --cache-dtype fp8 --concurrent 1,16 -o llm.html",
)
RESULT = LLM
isolated_reader = target_reader


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="a target as in analyze, or a GGUF file")
    group = parser.add_argument_group("llm")
    group.add_argument(
        "--context", type=positive, metavar="N", help="tokens in the cache (default: 8192, or the model's limit)"
    )
    group.add_argument(
        "--concurrent", default="1,8,64", metavar="A,B", help="numbers of concurrent sequences (default: 1,8,64)"
    )
    group.add_argument(
        "--on", action="append", metavar="DEVICE", help="predict times on this device: h200, a100, this, …; repeatable"
    )
    group.add_argument(
        "--execution",
        choices=("eager", "graph", "compiled"),
        default="eager",
        help="graph: a CUDA graph; compiled: torch.compile with Inductor (default: eager)",
    )
    add_weights_dtype(group)
    group.add_argument("--cache-dtype", metavar="T", help="store the cache as bf16, fp8, int8 or int4")
    group.add_argument("--adapter", metavar="lora[:RANK[:PATTERN]]", help="add LoRA adapters, not merged")
    group.add_argument(
        "--page-size", type=positive, default=16, metavar="N", help="tokens per cache page (default: 16)"
    )
    group.add_argument(
        "--speculative",
        metavar="N[:RATE]",
        help="speculative decoding: drafted tokens per step and the share that is accepted, 4:0.7",
    )
    group.add_argument(
        "--prefix", type=positive, default=0, metavar="N", help="length of a prompt prefix that all sequences share"
    )
    group.add_argument("--dtype", metavar="T", help="type of the parameters, such as bfloat16")
    group.add_argument("--as", dest="code", metavar="TARGET", help="the code for a bare state dict")


def run(args: argparse.Namespace) -> int:
    check_outputs(args.outputs, LLM)
    from torchgauge.analysis.language import llm
    from torchgauge.predict.devices import find_devices
    from torchgauge.report.llm import LlmReport
    from torchgauge.source.target_check import check_target

    devices = [name for part in args.on or () for name in part.split(",") if name.strip()]
    if devices and "this" not in devices:
        find_devices(devices)  # unknown names are refused before torch is imported
    parse_sizes(args.concurrent, "--concurrent")
    check_target(args.target)
    with redirect_stdout(sys.stderr):
        import_torch(shown=show_progress(args))
        report = LlmReport(llm(**named_arguments(llm, args) | {"on": devices or None, "lazy": True}).to_dict())
    deliver_prediction(report, args)
    return 0
