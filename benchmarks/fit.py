"""Predicted memory against a CUDA device's.

    python benchmarks/fit.py predict -o predictions.json        here: no GPU, a CPU build of torch
    python benchmarks/fit.py --device cuda -o FOLDER            on the device: what its allocator says
    python benchmarks/fit.py compare predictions.json [FOLDER]  the table; without FOLDER against fit_measured.json

The device's part needs torch, timm and transformers, not torchgauge; `--seconds` ends it in time, and what was measured
until then is in FOLDER. Results of the held-out configurations are in a separate file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

PARTS = ("configurations", "probes", "fixtures", "convolutions", "recurrent", "sequential", "graphs", "limits")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", nargs="?", choices=("predict", "measure", "compare"), default="measure")
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--device", choices=("cuda",))
    parser.add_argument("--seconds", type=float, default=130)
    parser.add_argument("--only", action="append", choices=PARTS, help="repeatable; a part of the device's work")
    parser.add_argument("--set", action="append", type=int, help="repeatable: 0 open, 1 to 5 held out")
    parser.add_argument("--match", default="", help="only configurations whose name has this in it")
    parser.add_argument("--limits", type=Path, help="predictions: runs just under and over what they require")
    parser.add_argument("--shapes", type=Path, default=Path(__file__).parent / "fit_convolutions.json")
    parser.add_argument("-o", "--output", type=Path, default=Path("build/fit"))
    args = parser.parse_args()
    if args.phase == "measure":
        from fit_device import device_phase

        limits = None
        if args.limits is not None:
            reported = json.loads(args.limits.read_text())["configurations"]
            limits = {
                name: reported[name]["required_bytes"] for name in reported if reported[name].get("is_limit_tested")
            }
        parts = args.only or [part for part in PARTS if part != "limits"]
        return device_phase(
            args.output, args.seconds, limits, parts, args.set or [0, 1, 2, 3, 4, 5], args.match, args.shapes
        )
    from fit_compare import compare, predict

    return predict(args.output, args.match, args.set) if args.phase == "predict" else compare(*args.paths)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    raise SystemExit(main())
