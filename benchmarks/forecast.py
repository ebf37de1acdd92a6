"""Predicted time and energy against an H200's.

    python benchmarks/forecast.py predict -o predictions.json     here: no GPU, a CPU build of torch
    python benchmarks/forecast.py measure -o FOLDER               on the device
    python benchmarks/forecast.py estimate -o FOLDER              there too: what torch's RuntimeEstimator says
    python benchmarks/forecast.py predict --host FOLDER --calibration FOLDER/kernels-cuda.npz -o again.json
                                                                  here, afterwards: with the hosts of the device's run,
                                                                  and from the file of `torchgauge system --calibrate`
    python benchmarks/forecast.py compare predictions.json FOLDER [predictions.json FOLDER …]    the tables

The models are in forecast_models.py: no table was collected from them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("predict", "measure", "estimate", "compare"))
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="kernels-cuda.npz of the device's run")
    parser.add_argument("--host", type=Path, metavar="FOLDER", help="of the device's run: eager time with its host")
    parser.add_argument(
        "--proof",
        choices=("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"),
        default="first",
        help="which set of models",
    )
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("-o", "--output", type=Path, default=Path("build/forecast"))
    args = parser.parse_args()
    if args.phase in ("measure", "estimate"):
        from forecast_device import device_phase, estimates

        if args.phase == "estimate":
            return estimates(args.output, args.seconds, args.proof)
        return device_phase(args.output, args.seconds, args.proof)
    from forecast_compare import compare, predict

    if args.phase == "compare":
        return compare(*args.paths)
    return predict(args.output, args.host, args.proof, args.calibration)


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tools")]
    raise SystemExit(main())
