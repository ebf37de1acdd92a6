"""`--verify` on a CUDA device: narrow types, layouts, graphs, sparse tensor cores, compilers; nothing left behind."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg
from tests.advise.trying import row, verify
from torchgauge.measure import Subject
from torchgauge.verify import Bench, Switches, load_transformations

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CUDA = torch.device("cuda", 0)
load_transformations()


class Net(nn.Module):
    def __init__(self, width: int = 64, depth: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x if scale is None else x * scale


def bench(model: nn.Module, *args: Tensor, **kwargs: Any) -> Bench:
    found = tg.analyze(model, inputs=args, kwargs=kwargs or None, device=CUDA, advice=False, progress=False)
    return Bench(Subject(model, args, kwargs, CUDA), found.capture, False, 0.3)


def tried(place: Bench, advice: dict[str, Any]) -> dict[str, Any]:
    with torch.no_grad():
        rows, _ = verify(place, [advice])
    assert rows[0]["unverified"] is None, rows[0]["unverified"]
    found: dict[str, Any] = rows[0]["verified"]
    return found


def net(dtype: torch.dtype = torch.float32, **sizes: int) -> nn.Module:
    torch.manual_seed(0)
    return Net(**sizes).to(CUDA, dtype).eval()


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(CUDA, dtype)


@pytest.mark.parametrize("rule", ["autocast-bf16", "bfloat16-weights", "tf32-off"])
def test_narrow_arithmetic_is_measured_with_its_error(rule: str) -> None:
    before = Switches.now()
    found = tried(bench(net(width=1024), x(1024, 1024)), row(rule))

    assert 0 < found["output_error"]["relative"] < found["tolerance"]
    assert found["output_error"]["cosine"] > 0.999
    assert found["ci95"][0] <= found["gain"] <= found["ci95"][1]
    assert Switches.now() == before


def test_large_products_gain_from_bfloat16() -> None:
    found = tried(bench(net(width=4096, depth=4), x(4096, 4096)), row("autocast-bf16"))

    assert found["kept"] is True, found["reason"]


def test_a_graph_of_many_small_kernels_gains_and_gives_the_same() -> None:
    place = bench(net(depth=64), x(1, 64))
    found = tried(place, row("launch-bound"))

    assert found["output_error"]["relative"] < 1e-5
    assert found["kept"] is True, found["reason"]
    assert "def optimise(model, *inputs):" in found["code"]


def test_the_code_with_a_graph_can_be_pasted() -> None:
    model, given = net(depth=16), x(1, 64)
    code = tried(bench(model, given), row("launch-bound"))["code"]
    scope: dict[str, Any] = {}
    exec(code, scope)
    graphed = scope["optimise"](copy.deepcopy(model), given)
    other = x(1, 64) + 1
    with torch.no_grad():
        torch.testing.assert_close(graphed(other), model(other))


def test_a_capture_that_fails_is_reported_and_the_device_still_works() -> None:
    class Waiting(Net):
        def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
            return super().forward(x) * float(x.sum().item())

    model = Waiting().to(CUDA).eval()
    found = tried(bench(model, x(1, 64)), row("launch-bound"))

    assert found["kept"] is False
    assert found["reason"].startswith("the changed model fails: ")
    assert float(torch.ones(4, device=CUDA).sum()) == 4.0


def test_images_in_channels_last_give_the_same() -> None:
    layers = [nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(4)]
    model = nn.Sequential(*layers).to(CUDA, torch.float16).eval()
    found = tried(bench(model, x(8, 64, 56, 56, dtype=torch.float16)), row("channels-last"))

    assert found["output_error"]["relative"] < found["tolerance"] == pytest.approx(5e-3)


def test_two_of_four_weights_are_computed_with_in_half_the_bytes() -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("no sparse tensor cores")
    model = net(torch.float16, width=256, depth=1)
    weight = model.layers[0].weight  # type: ignore[index,union-attr]
    fours = weight.detach().reshape(-1, 4)
    smallest = fours.abs().topk(2, dim=1, largest=False).indices
    weight.data = fours.scatter(1, smallest, 0.0).reshape(weight.shape)
    advice = row("two-four-sparsity", "param_bytes", module="layers.0", weight="layers.0.weight")
    found = tried(bench(model, x(64, 256, dtype=torch.float16)), advice)

    assert found["output_error"]["relative"] < 1e-2, found["reason"]
    assert 0.3 < found["gain"] < 0.5
    assert found["kept"] is True


def test_odd_sizes_padded_give_the_same() -> None:
    model = nn.Sequential(nn.Linear(1001, 1001)).to(CUDA, torch.float16).eval()
    found = tried(bench(model, x(512, 1001, dtype=torch.float16)), row("odd-dimensions", module="0"))

    assert found["output_error"]["relative"] < found["tolerance"]


def test_a_compiled_model_gives_the_same() -> None:
    pytest.importorskip("triton")
    found = tried(bench(net(depth=16), x(8, 64)), row("dispatch-bound"))

    assert found["output_error"]["relative"] < 1e-3, found["reason"]
    assert found["gain"] is not None


def test_an_analysis_on_the_device_verifies_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGAUGE_VERIFY_BUDGET", "0.3")
    model, given = net(depth=32), x(1, 64)
    state = copy.deepcopy(model.state_dict())
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    found = tg.analyze(model, inputs=(given,), device=CUDA, profile=True, budget_s=0.5, verify=True, progress=False)
    gc.collect()

    graph = next(each for each in found.advice if each.rule == "launch-bound")
    assert graph["verified"]["kept"] is True, graph["verified"]["reason"]
    assert found.plan is not None
    # Compiling, which the plan may start with, can bring as much; a graph cannot be captured on top of it.
    assert found.plan.gain >= graph["verified"]["ci95"][0]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.cuda.memory_allocated() - before < 1 << 20


def test_a_training_step_is_checkpointed_on_the_device() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(6)
            )

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = x + block(x)
            return x

    model = Deep().to(CUDA)
    given = x(4096, 256)
    found = tg.analyze(model, inputs=(given,), device=CUDA, mode="train", progress=False)
    advice = next(dict(each) for each in found.advice if each.rule == "activation-checkpointing")
    place = Bench(Subject(model.train(), (given,), {}, CUDA), found.capture, True, 0.3)
    rows, _ = verify(place, [advice])

    verified: dict[str, Any] = rows[0]["verified"]
    assert verified["kept"] is True, verified["reason"]
    assert verified["after"] < 0.7 * verified["before"]
    assert verified["output_error"]["relative"] < 1e-5


def test_the_weights_of_a_copied_lstm_lie_in_one_piece_as_the_originals_do() -> None:
    def pieces(model: nn.Module) -> int:
        return len({parameter.untyped_storage().data_ptr() for parameter in model.parameters()})

    lstm = nn.LSTM(16, 16, 2).to(CUDA).eval()
    place = Bench(Subject(lstm, (x(4, 2, 16),), {}, CUDA), tg.analyze(nn.Linear(1, 1)).capture, False, 0.3)

    assert (pieces(lstm), pieces(place.copied())) == (1, 1)
    assert pieces(copy.deepcopy(lstm)) > 1  # what it is for
