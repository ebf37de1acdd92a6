"""tools/kernels/kernel_names.py: measured rows as calls again, and the kernels of each call in a profiler's trace."""

from __future__ import annotations

import json
import lzma
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "tools" / "kernels"), *sys.path])
    yield import_module("kernel_names")
    for name in ("kernel_names", "kernel_device"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_measured_rows_are_calls_that_run(names: Any) -> None:
    times = Path(__file__).parents[2] / "tools/kernels/kernel_times.jsonl.xz"
    device: Any = import_module("kernel_device")
    for _, line in names.measured_lines(times)[::400]:
        row = json.loads(line)
        call = device.Call(names.called(row), "meta")
        name = row[0].removeprefix("aten::")
        if name.startswith("_cudnn_rnn"):
            continue  # their weights in one buffer exist on CUDA devices only
        made = device.through_torch(call, name)(0)
        several = [one for one in (made if isinstance(made, tuple) else (made,)) if isinstance(one, torch.Tensor)]
        assert list(several[0].shape) == row[4][0][0] or row[0] == "aten::convolution_backward"


def test_a_transposed_convolution_has_its_output_padding_again(names: Any) -> None:
    data, weight, made = ([[1, 8, 7, 7], "float32", None], [[8, 4, 3, 3], "float32", None], [[1, 4, 14, 14]])
    kept = {"stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "transposed": True, "groups": 1}
    call = names.called(["aten::convolution", "", "convolution", [data, weight], [made], kept])
    assert call["args"]["output_padding"] == [1, 1]
    assert call["tensors"][1] == [[8, 4, 3, 3], [36, 9, 3, 1], "float32"]


def test_calls_that_differ_only_in_what_the_cache_holds_are_one(names: Any, tmp_path: Path) -> None:
    row = ["aten::mm", "", "matmul", [[[4, 4], "float32", None, None, 0]] * 2, [], {}, [1, 2, 3], "00", [], 1e-6, 0.1]
    lines = [json.dumps([*row[:7], cold, *row[8:]], separators=(",", ":")) for cold in ("00", "01")]
    (tmp_path / "times.xz").write_bytes(lzma.compress("\n".join(["[]", *lines]).encode()))
    assert [number for number, _ in names.measured_lines(tmp_path / "times.xz")] == [0]


class Trace:
    """A profiler with the events of two calls: kernels before, between and after the marks."""

    def export_chrome_trace(self, path: str) -> None:
        def event(name: str, start: float, grid: int = 1) -> dict[str, Any]:
            facts = {"grid": [grid, 1, 1], "block": [128, 1, 1], "shared memory": 0}
            return {"cat": "kernel", "name": name, "ts": start, "dur": 2.5, "args": facts}

        order = ["fill", "spin_kernel", "gemm", "gemm", "spin_kernel", "fill", "spin_kernel", "copy", "spin_kernel"]
        events = [event(name, float(start)) for start, name in enumerate(order)]
        events.append({"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2.0, "dur": 1.0})
        Path(path).write_text(json.dumps({"traceEvents": events[::-1]}))


def test_kernels_between_marks_belong_to_a_call(names: Any) -> None:
    assert names.between_marks(Trace()) == [
        [["gemm", [1, 1, 1], [128, 1, 1], 0, 2, 5.0]],
        [["copy", [1, 1, 1], [128, 1, 1], 0, 1, 2.5]],
    ]
