from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.compat.left_alone import left_alone
from tests.compat.profiled import FEW, METHODS, net, x
from torchgauge.compat.moduleprofiler import ModuleProfiler, get_default_io_size_map, get_default_ops_map


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(8, 4)

    def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"sum": self.left(a) + b, "given": a}

    def predict(self, a: Tensor) -> Tensor:
        return self.left(a[:1])


class Raising(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        raise ZeroDivisionError(self.layer(x))


def test_sizes_and_operations_are_those_of_the_real_package() -> None:
    original = pytest.importorskip("moduleprofiler").ModuleProfiler()
    model = net()
    assert ModuleProfiler().trace_io_sizes(model, x()) == original.trace_io_sizes(copy.deepcopy(model), x())
    assert ModuleProfiler().estimate_ops(model, x()) == original.estimate_ops(copy.deepcopy(model), x())


def test_inputs_are_a_tensor_keywords_or_a_tuple() -> None:
    profiler, pair = ModuleProfiler(), (torch.zeros(3, 8), torch.zeros(3, 4))
    by_position = profiler.estimate_ops(TwoInputs(), pair)
    by_name = profiler.estimate_ops(TwoInputs(), {"a": pair[0], "b": pair[1]})
    assert by_position == by_name
    assert by_position["left"]["ops"] == 3 * 4 * 16
    assert by_position["__root__"]["ops"] is None


def test_a_tuple_stays_whole_for_what_takes_one_argument() -> None:
    class Summed(nn.Module):
        def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return pair[0] + pair[1]

    given = (torch.zeros(3, 8), torch.zeros(3, 8))
    profiler = ModuleProfiler()
    elements = {**get_default_ops_map(), Summed: lambda module, input, output: output.numel()}
    assert ModuleProfiler(ops_fn_map=elements).estimate_ops(Summed(), given)["__root__"]["ops"] == 24
    assert profiler.trace_io_sizes(Summed(), given)["__root__"]["output_size"] == (3, 8)
    times = profiler.estimate_inference_time(Summed(), given, **FEW)["__root__"]["inference_time_ms"]
    assert len(times) == FEW["num_iters"]
    model = TwoInputs()
    inputs = (torch.zeros(3, 8), torch.zeros(3, 4))
    whole = profiler.estimate_ops(model, inputs, pred_fn=lambda pair: model(*pair))
    assert whole == profiler.estimate_ops(model, inputs, pred_fn=lambda *pair: model(*pair))


def test_a_dict_of_outputs_has_a_dict_of_sizes() -> None:
    sizes = ModuleProfiler().trace_io_sizes(TwoInputs(), (torch.zeros(3, 8), torch.zeros(3, 4)))["__root__"]
    assert sizes == {"type": "TwoInputs", "input_size": (3, 8), "output_size": {"sum": (3, 4), "given": (3, 8)}}


def test_sizes_keep_lists_and_tuples_apart() -> None:
    class Pair(nn.Module):
        def forward(self, given: torch.Tensor) -> list[Any]:
            return [given, (given[0], given[:1])]

    sizes = ModuleProfiler().trace_io_sizes(Pair(), torch.zeros(3, 8))["__root__"]
    assert sizes["output_size"] == [(3, 8), ((8,), (1, 8))]


def test_another_function_can_make_the_prediction() -> None:
    model = TwoInputs()
    found = ModuleProfiler().estimate_ops(model, torch.zeros(3, 8), pred_fn=model.predict)
    assert found == {"__root__": {"type": "TwoInputs", "ops": None}, "left": {"type": "Linear", "ops": 4 * 16}}
    sizes = ModuleProfiler().trace_io_sizes(model, {"a": torch.zeros(3, 8)}, pred_fn=model.predict)
    assert sizes["left"]["output_size"] == (1, 4)


@pytest.mark.parametrize(
    ("layer", "output_size"),
    [
        (nn.GRU(4, 5, 2), ((7, 2, 5), (2, 2, 5))),
        (nn.LSTM(4, 5, bidirectional=True), ((7, 2, 10), ((2, 2, 5), (2, 2, 5)))),
    ],
)
def test_sizes_of_recurrent_layers_are_whole(layer: nn.Module, output_size: Any) -> None:
    found = ModuleProfiler().trace_io_sizes(layer, torch.zeros(7, 2, 4))["__root__"]
    assert (found["input_size"], found["output_size"]) == ((7, 2, 4), output_size)


@pytest.mark.parametrize(("layer", "output_size"), [(nn.GRUCell(4, 5), (2, 5)), (nn.LSTMCell(4, 5), ((2, 5), (2, 5)))])
def test_sizes_of_cells_are_whole(layer: nn.Module, output_size: Any) -> None:
    assert ModuleProfiler().trace_io_sizes(layer, torch.zeros(2, 4))["__root__"]["output_size"] == output_size


class Mode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        return self.norm(x)


@pytest.mark.parametrize(
    ("method", "default"),
    [("trace_io_sizes", True), ("estimate_ops", False), ("estimate_total_inference_time", False)],
)
def test_the_model_runs_in_the_mode_asked_for(method: str, default: bool) -> None:
    seen: list[bool] = []
    model = Mode().train()
    model.norm.register_forward_hook(lambda module, args, output: seen.append(module.training))
    options = FEW if "time" in method else {}
    getattr(ModuleProfiler(), method)(model, x(), **options)
    assert seen[0] is default
    seen.clear()
    getattr(ModuleProfiler(), method)(model, x(), eval=default, **options)
    assert seen[0] is not default


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("evaluate", [True, False])
def test_nothing_stays_on_the_model(method: str, evaluate: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout()).train()
    model[1].eval()
    options: dict[str, Any] = FEW if "time" in method else {}
    with left_alone(model):
        if method == "count_params":
            ModuleProfiler().count_params(model)
        else:
            getattr(ModuleProfiler(), method)(model, x(), eval=evaluate, **options)


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_failed_forward_raises_its_own_error_and_leaves_nothing(method: str) -> None:
    model = Raising()
    with left_alone(model), pytest.raises(ZeroDivisionError):
        getattr(ModuleProfiler(), method)(model, x())


def test_maps_are_not_shared() -> None:
    first, second = ModuleProfiler(), ModuleProfiler()
    first.ops_fn_map[nn.ReLU] = lambda module, input, output: -1
    first.io_size_fn_map.clear()
    assert second.estimate_ops(nn.ReLU(), x())["__root__"]["ops"] == 24
    assert second.trace_io_sizes(nn.ReLU(), x())["__root__"]["input_size"] == (3, 8)
    assert get_default_ops_map() is not get_default_ops_map()
    assert set(get_default_io_size_map()) == {nn.GRUCell, nn.GRU, nn.LSTMCell, nn.LSTM, "default"}


def test_maps_are_keyed_by_the_exact_type_and_the_default_decides_the_rest() -> None:
    class Special(nn.Linear):
        pass

    custom = get_default_ops_map()
    custom["default"] = lambda module, input, output: 42
    model = nn.Sequential(Special(8, 4), nn.ReLU())
    found = ModuleProfiler(ops_fn_map=custom).estimate_ops(model, x())
    assert [spec["ops"] for spec in found.values()] == [42, 42, 12]


def test_excluded_types_are_not_counted() -> None:
    found = ModuleProfiler(exclude_from_ops=[nn.Linear]).estimate_ops(net(), x())
    assert [spec["ops"] for spec in found.values()] == [None, None, 12, None]


@pytest.mark.parametrize(
    ("profiler", "method", "args", "error"),
    [
        (ModuleProfiler(), "estimate_inference_time", (net(), x(), True, 5, 5), ValueError),
        (ModuleProfiler(), "estimate_total_inference_time", (net(), x(), True, 1, 5), ValueError),
        (ModuleProfiler(ops_attr="weight"), "estimate_ops", (net(), x()), ValueError),
        (ModuleProfiler(input_size_attr="bias"), "trace_io_sizes", (net(), x()), ValueError),
        (ModuleProfiler(ops_fn_map={}), "estimate_ops", (net(), x()), KeyError),
        (ModuleProfiler(io_size_fn_map={}), "trace_io_sizes", (net(), x()), KeyError),
        (ModuleProfiler(), "estimate_ops", (net(), torch.zeros(3, 9)), RuntimeError),
        (ModuleProfiler(), "trace_io_sizes", (net(), None), TypeError),
        (ModuleProfiler(), "count_params", (3,), AttributeError),
        (ModuleProfiler(), "trace_io_sizes", (3, x()), AttributeError),
    ],
)
def test_wrong_use_raises_what_the_real_package_raises(
    profiler: ModuleProfiler, method: str, args: tuple[Any, ...], error: type[Exception]
) -> None:
    words = "Module instance" if error is AttributeError else None
    with pytest.raises(error, match=words):
        getattr(profiler, method)(*args)
