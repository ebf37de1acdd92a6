"""The sample capture with measurements made by hand: every figure is a closed form of the constants below."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from tests.report.sample import BLOCKS, HIDDEN, HOSTILE, sample_capture
from torchgauge.facts import Capture, Latency, Measured, TraceRecord, View

MS = 1_000_000
MEDIAN_S = 0.080
OP_S = 0.002
WORKSPACE = 4096
DEVICE_NAME = "kernel<float, 4>"


def latency(median: float = MEDIAN_S, runs: int = 40) -> Latency:
    return {
        "median_s": median,
        "mean_s": 1.01 * median,
        "min_s": 0.9 * median,
        "max_s": 1.5 * median,
        "std_s": 0.05 * median,
        "p90_s": 1.1 * median,
        "p99_s": 1.4 * median,
        "ci95_s": [0.99 * median, 1.01 * median],
        "runs": runs,
        "cold_s": 3 * median,
        "warmup_runs": 12,
        "throughput_per_s": 1 / median,
    }


def figures(capture: Capture) -> dict[str, Any]:
    explained = OP_S * len(capture.ops)
    timeline = [
        {
            "op": op.index,
            "held_bytes": op.live_bytes - capture.input_bytes,
            "workspace_bytes": WORKSPACE * (op.index == 0),
        }
        for op in capture.ops
    ]
    return {
        "latency": latency(),
        "device": "cpu",
        "threads": {"intra_op": 2, "inter_op": 1},
        "surroundings": {"other_processes_share": 0.25, "own_share": 0.5, "load_average": 1.5, "governor": "powersave"},
        "notes": ["random weights", "other processes used 25 % of the machine while it was measured"],
        "failure": None,
        "memory": {
            "allocated_peak_bytes": 55_424,
            "rss_before_bytes": 2**28,
            "rss_peak_bytes": 2**28 + 2**20,
            "rss_growth_bytes": 2**20,
            "rss_method": "peak kept by the kernel",
            "pattern": {
                "allocations": 30,
                "total_bytes": 110_848,
                "median_bytes": 4096,
                "largest_bytes": 16384,
                "reuse": 2.0,
                "by_size": {"4096": 29, "16384": 1},
            },
            "timeline": timeline,
        },
        "unexplained_s": MEDIAN_S - explained,
        "profile": {
            "runs": 5,
            "median_s": 1.25 * MEDIAN_S,
            "overhead_share": 0.25,
            "joined_ops": len(capture.ops),
            "static_ops": len(capture.ops),
            "kernels": None,
            "device_s": None,
            "device_idle_s": None,
        },
    }


def op_row(flops: int, moved: int) -> dict[str, Any]:
    return {
        "time_s": OP_S,
        "cpu_time_s": OP_S,
        "kernels": [],
        "flops_per_s": flops / OP_S if flops else None,
        "bytes_per_s": moved / OP_S if moved else None,
        "roof_share": 0.25 if flops or moved else None,
        "bound": "compute" if flops else "memory" if moved else None,
    }


def module_times() -> dict[str, Any]:
    """Own times: 1 ms for each block, 2 ms for each called layer, 3 ms for the model itself."""
    own = {"": 0.003, "stem": 0.0, "stem.0": 0.002, "stem.1": 0.002, "shared": 0.002, HOSTILE: 0.002}
    for index in range(BLOCKS):
        own |= {f"blocks.{index}": 0.001, f"blocks.{index}.fc": 0.002}
    own["blocks"] = 0.0
    whole = {path: sum(s for other, s in own.items() if not path or f"{other}.".startswith(f"{path}.")) for path in own}
    return {
        path: {"time_s": whole[path], "self_time_s": own[path], "time_share": whole[path] / MEDIAN_S} for path in own
    }


def trace(capture: Capture) -> TraceRecord:
    """Every op for 2 ms, one after the other and each around an inner call of 1 ms, within a model that takes 1 ms more
    before and after; the stem is a separate range. The first op launches two kernels that overlap."""
    names = ("", "stem", "aten::inner", DEVICE_NAME, *dict.fromkeys(op.op for op in capture.ops))
    calls = []
    for op in capture.ops:
        start = (1 + 2 * op.index) * MS
        calls.append((start, 2 * MS, names.index(op.op), 0, op.index))
        calls.append((start, MS, 2, 0, -1))
    end = (2 + 2 * len(capture.ops)) * MS
    return TraceRecord(
        duration_ns=end,
        names=names,
        modules=((0, end, 0, 0), (MS, 4 * MS, 1, 0)),
        calls=tuple(calls),
        kernels=((2 * MS, 3 * MS, 3, 7, 0), (4 * MS, MS, 3, 7, 0), (6 * MS, MS, 3, 7, -1)),
        memory=((MS, 4096, 0), (2 * MS, 1024, 1), (3 * MS, -4096, 0)),
    )


def measured_capture(**changes: Any) -> Capture:
    """`changes` are members of the measurements."""
    capture = sample_capture()
    ops: dict[int, Any] = {
        op.index: op_row(op.cost.flops, op.cost.bytes_read + op.cost.bytes_written) for op in capture.ops
    }
    measured = Measured(cast(Any, figures(capture) | changes), module_times(), ops, trace(capture))
    return replace(capture, measured=measured)


def measured_view(**changes: Any) -> View:
    return View(measured_capture(**changes))


SWEEP: list[dict[str, Any]] = [
    *(
        {
            "key": "batch",
            "value": batch,
            "latency": latency(0.01 * batch) | {"throughput_per_s": 25.0 * batch},
            "memory": {"allocated_peak_bytes": batch * HIDDEN.nbytes},
            "failure": None,
        }
        for batch in (1, 2, 4)
    ),
    {"key": "batch", "value": 8, "latency": None, "memory": None, "failure": "the device ran out of memory"},
    *({"key": "seq", "value": seq, "latency": latency(0.001 * seq), "failure": None} for seq in (64, 128)),
]
THREADS: dict[str, Any] = {
    "intra_op": 4,
    "inter_op": 1,
    "scaling": [
        {"threads": 1, "median_s": 0.1, "speedup": 1.0, "efficiency": 1.0},
        {"threads": 4, "median_s": 0.04, "speedup": 2.5, "efficiency": 0.625},
    ],
    "utilisation": 0.7,
    "serial_share": {"matmul": 0.1, "convolution": None},
}
SYSTEM: dict[str, Any] = {
    "duration_s": 2.0,
    "period_s": 0.1,
    "cost": {"cpu_s": 0.002, "share": 0.001},
    "quantities": {
        "cpu_share": {"unit": "share", "min": 0.2, "mean": 0.5, "max": 0.9, "by_label": {}},
        "cpu_frequency_hz": {"unit": "Hz", "min": 2.1e9, "mean": 2.3e9, "max": 2.5e9},
        "page_faults_per_s": {
            "unit": "1/s",
            "by_label": {
                "minor": {"min": 0.0, "mean": 12.0, "max": 40.0},
                "major": {"min": 0.0, "mean": 0.0, "max": 0.0},
            },
        },
        "cuda_power_w": {"unit": "W", "min": 90.0, "mean": 310.5, "max": 400.0},
    },
    "absent": {"temperature_c": "the system shows no sensor", "cuda_share": "the system shows no sensor"},
}
COUNTERS: dict[str, Any] = {
    "cycles": 2e9,
    "measured_flops": 2.5e6,
    "theoretical_flops": 2_375_680,
    "vector_width_shares": {"scalar": 0.1, "512": 0.9},
    "instructions_per_cycle": 1.5,
    "cache_hit_ratio": 0.8,
    "memory_bytes_per_s": None,
    "page_faults": 12.0,
    "notes": ["half precision is not counted"],
    "absent": {"memory_bytes": "no memory controller shows its counters"},
}
