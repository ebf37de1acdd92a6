"""moduleprofiler's tutorial, section by section, with the values it shows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchgauge.compat.moduleprofiler import ModuleProfiler, get_default_io_size_map, get_default_ops_map


def test_basic_profiling() -> None:
    profiler, net, x = ModuleProfiler(), nn.Linear(in_features=8, out_features=32), torch.rand((1, 8))
    shown = {
        "type": "Linear",
        "trainable_params": 288,
        "nontrainable_params": 0,
        "trainable_params_dtype": torch.float32,
        "trainable_params_size_bits": 9216,
        "trainable_params_percent": 1.0,
        "nontrainable_params_percent": 0.0,
    }
    params = profiler.count_params(module=net)
    assert list(params) == ["__root__"]
    assert params["__root__"].items() >= shown.items()
    (row,) = profiler.count_params_df(module=net).to_dict("records")
    assert row.items() >= {"module": "__root__", **shown}.items()
    (sizes,) = profiler.trace_io_sizes_df(module=net, input=x).to_dict("records")
    assert sizes == {"module": "__root__", "type": "Linear", "input_size": (1, 8), "output_size": (1, 32)}
    (ops,) = profiler.estimate_ops_df(module=net, input=x).to_dict("records")
    assert ops == {"module": "__root__", "type": "Linear", "ops": 512}


def test_inference_time() -> None:
    profiler, x = ModuleProfiler(), torch.rand((1, 8))
    net = nn.Sequential(nn.Linear(in_features=8, out_features=32), nn.Sigmoid())
    runs: dict[str, Any] = {"module": net, "input": x, "num_iters": 1000, "drop_first": 100}
    aggregated = profiler.estimate_inference_time_df(**runs)
    assert list(zip(aggregated.module, aggregated.type, strict=True)) == [
        ("__root__", "Sequential"),
        ("0", "Linear"),
        ("1", "Sigmoid"),
    ]
    raw = profiler.estimate_inference_time_df(**runs, aggr=False)
    assert list(raw.module) == ["__root__"] * 1000 + ["0"] * 1000 + ["1"] * 1000
    total = profiler.estimate_total_inference_time_df(**runs, aggr=True)
    assert list(total.module) == ["__root__"]
    raw_total = profiler.estimate_total_inference_time_df(**runs)
    assert list(raw_total.module) == ["__root__"] * 900


class PlusOne(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1.0


def one_per_item(module: PlusOne, input: tuple[Tensor], output: Tensor) -> int:
    return input[0].numel()


def test_extending_ops_estimation() -> None:
    custom = get_default_ops_map()
    custom[PlusOne] = one_per_item
    found = ModuleProfiler(ops_fn_map=custom).estimate_ops_df(module=PlusOne(), input=torch.rand((1, 8)))
    assert found.to_dict("records") == [{"module": "__root__", "type": "PlusOne", "ops": 8}]


class Scaled(nn.Module):
    def forward(self, x: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        return x * scales, scales


def named_sizes(module: Scaled, input: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> tuple[Any, Any]:
    return {"x": tuple(input[0].shape), "scales": tuple(input[1].shape)}, tuple(output[0].shape)


def test_extending_io_size_tracing() -> None:
    custom = get_default_io_size_map()
    custom[Scaled] = named_sizes
    profiler = ModuleProfiler(io_size_fn_map=custom)
    found = profiler.trace_io_sizes(module=Scaled(), input=(torch.rand((1, 8)), torch.rand(8)))
    assert found == {"__root__": {"type": "Scaled", "input_size": {"x": (1, 8), "scales": (8,)}, "output_size": (1, 8)}}
