"""On a machine with CUDA: bytes after fusion against DRAM counters, and how much of the time the kernels cover.

python benchmarks/compiled.py facts MODEL OUT.json      analyse, profiled
ncu ... python benchmarks/compiled.py run MODEL         one compiled run between cudaProfilerStart and -Stop
python benchmarks/compiled.py all OUT                   both for every model, and a table in OUT/compiled.json
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

BATCH = 64
COUNTERS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
# Written to the L2 cache, of which what fits stays there when the kernel ends.
L2_WRITTEN = "lts__t_sectors_srcunit_tex_op_write.sum"
SECTOR_BYTES = 32
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "sector": 1, "Ksector": 1e3, "Msector": 1e6, "": 1}


def image(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from torchgauge.source.packages import import_optional

    return import_optional("timm", "x").create_model(name), {"x": torch.randn(BATCH, 3, 224, 224)}


def text(kind: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from torchgauge.source.packages import import_optional

    transformers = import_optional("transformers", "x")
    if kind == "bert":
        config = transformers.BertConfig(num_hidden_layers=4)
        model = transformers.BertModel(config)
    else:
        config = transformers.LlamaConfig(
            hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=16, vocab_size=8192
        )
        model = transformers.LlamaForCausalLM(config)
        model.config.use_cache = False
    return model, {"input_ids": torch.randint(0, 8192, (16, 512))}


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]] = {
    "resnet50": lambda: image("resnet50"),
    "vit_small": lambda: image("vit_small_patch16_224"),
    "convnext_tiny": lambda: image("convnext_tiny"),
    "bert": lambda: text("bert"),
    "llama": lambda: text("llama"),
}


def built(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    dtype = torch.bfloat16
    moved = {
        key: value.cuda().to(dtype) if value.is_floating_point() else value.cuda() for key, value in inputs.items()
    }
    return model.cuda().to(dtype).eval(), moved


def facts(name: str, path: str) -> None:
    import torchgauge as tg

    model, inputs = built(name)
    given = {"inputs": tuple(inputs.values())} if "x" in inputs else {"inputs": inputs}
    found = tg.analyze(
        model, **given, device="cuda", execution="compiled", inference=True, budget_s=0.5, advice=False, weights=False
    )
    Path(path).write_text(json.dumps({"compiled": found.to_dict()["compiled"], "failure": found.measurements["failure"],
                                      "latency": found.measurements["latency"]}))  # fmt: skip


def run(name: str) -> None:
    model, inputs = built(name)
    compiled = torch.compile(model)
    with torch.no_grad():
        for _ in range(3):
            compiled(*inputs.values()) if "x" in inputs else compiled(**inputs)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        compiled(*inputs.values()) if "x" in inputs else compiled(**inputs)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def counted(path: Path) -> dict[str, Any]:
    """Of ncu's table: bytes by kernel name and in all; empty where it failed, with what it said."""
    lines = path.read_text().splitlines() if path.exists() else []
    start = next((at for at, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return {"error": "\n".join(lines[-5:])}
    by_name: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    launches: set[str] = set()
    for row in csv.DictReader(lines[start:]):
        value = float(row["Metric Value"].replace(",", "") or 0) * UNITS.get(row["Metric Unit"], 1)
        by_name[row["Kernel Name"]][row["Metric Name"]] += value
        if row["ID"] not in launches:
            launches.add(row["ID"])
            by_name[row["Kernel Name"]]["launches"] += 1
    total = {key: sum(row.get(key, 0.0) for row in by_name.values()) for key in (*COUNTERS, L2_WRITTEN)}
    return {"total": total, "launches": len(launches), "kernels": {name: dict(row) for name, row in by_name.items()}}


def everything(out: str) -> None:
    folder = Path(out)
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "3"}
    own = [sys.executable, __file__]

    def wait(jobs: dict[str, subprocess.Popen[str]]) -> dict[str, str]:
        ends = {name: job.communicate()[0][-1500:] for name, job in jobs.items()}
        return {name: end for name, end in ends.items() if jobs[name].returncode}

    def start(command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=os.getcwd()
        )

    failed = wait({name: start([*own, "facts", name, str(folder / f"{name}.json")]) for name in MODELS})
    metrics = ",".join((*COUNTERS, L2_WRITTEN))
    ncu = ["ncu", "--metrics", metrics, "--csv", "--profile-from-start", "off", "--target-processes", "all"]
    refused = wait({
        name: start([*ncu, "--log-file", f"/tmp/{name}.csv", *own, "run", name]) for name in MODELS
    })  # fmt: skip
    found = {
        name: {
            "facts": json.loads((folder / f"{name}.json").read_text()) if (folder / f"{name}.json").exists() else None,
            "counters": counted(Path(f"/tmp/{name}.csv")),
            "errors": [failed.get(name), refused.get(name)],
        }
        for name in MODELS
    }
    for name in MODELS:
        (folder / f"{name}.json").unlink(missing_ok=True)
    (folder / "compiled.json").write_text(json.dumps(found))
    print(table(found))


def table(found: dict[str, Any]) -> str:
    """One row per model: kernels, share of the time that is joined, bytes by the analysis and by the counters."""
    rows = [
        "| model | kernels | time joined | eager MB | read MB | DRAM read MB | written MB | L2 written MB | DRAM MB |"
    ]
    for name, one in found.items():
        if one["facts"] is None or one["facts"]["compiled"] is None:
            rows.append(f"| {name} | failed: {one['errors']} {one['facts'] and one['facts']['failure']} |")
            continue
        compiled, counters = one["facts"]["compiled"], one["counters"].get("total", {})
        totals = compiled["totals"]
        share = (compiled["joined_s"] or 0) / compiled["profiled_s"] if compiled["profiled_s"] else float("nan")
        eager = (totals["eager_bytes_read"] + totals["eager_bytes_written"]) / 1e6
        seen = [counters.get(COUNTERS[0], 0) / 1e6, counters.get(L2_WRITTEN, 0) * SECTOR_BYTES / 1e6]
        seen.append(counters.get(COUNTERS[1], 0) / 1e6)
        rows.append(
            f"| {name} | {totals['kernels']} | {share:.2%} | {eager:.0f} | {totals['bytes_read'] / 1e6:.0f} | "
            f"{seen[0]:.0f} | {totals['bytes_written'] / 1e6:.0f} | {seen[1]:.0f} | {seen[2]:.0f} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    {"facts": facts, "run": run, "all": everything}[sys.argv[1]](*sys.argv[2:])
