from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import torchgauge as tg
from tests.models.checked import analyze_checked, assert_same_figures
from tests.models.closed_forms import linear

BATCH, STEPS, INPUTS, HIDDEN = 3, 5, 12, 20
Kind = Callable[..., nn.Module]
GATES: dict[Kind, int] = {nn.RNN: 1, nn.GRU: 3, nn.LSTM: 4}
CELLS: dict[Kind, int] = {nn.RNNCell: 1, nn.GRUCell: 3, nn.LSTMCell: 4}

kinds = pytest.mark.parametrize("kind", GATES, ids=lambda kind: kind.__name__)


def recurrent(gates: int, tokens: int, *, num_layers: int = 1, bidirectional: bool = False, proj_size: int = 0) -> int:
    """Each step multiplies the input and the last state by one matrix per gate, and the output by the projection."""
    directions = 1 + bidirectional
    state = proj_size or HIDDEN
    macs = 0
    for layer in range(num_layers):
        width = INPUTS if layer == 0 else directions * state
        macs += directions * linear(tokens, width + state, gates * HIDDEN)
        macs += directions * linear(tokens, HIDDEN, proj_size)
    return macs


@kinds
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_layers_directions_layout_and_biases(
    kind: Kind, num_layers: int, bidirectional: bool, batch_first: bool, bias: bool
) -> None:
    shape: dict[str, Any] = {"num_layers": num_layers, "bidirectional": bidirectional}
    layer = kind(INPUTS, HIDDEN, batch_first=batch_first, bias=bias, **shape)
    size = (BATCH, STEPS, INPUTS) if batch_first else (STEPS, BATCH, INPUTS)
    analysis = analyze_checked(layer, input_size=size)
    assert analysis.totals.macs == recurrent(GATES[kind], BATCH * STEPS, **shape)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_projected_lstm(num_layers: int, bidirectional: bool) -> None:
    shape: dict[str, Any] = {"num_layers": num_layers, "bidirectional": bidirectional, "proj_size": 7}
    layer = nn.LSTM(INPUTS, HIDDEN, **shape)
    analysis = analyze_checked(layer, input_size=(STEPS, BATCH, INPUTS))
    assert analysis.totals.macs == recurrent(4, BATCH * STEPS, **shape)


@kinds
def test_a_sequence_without_a_batch_dimension(kind: Kind) -> None:
    analysis = analyze_checked(kind(INPUTS, HIDDEN), inputs=torch.zeros(STEPS, INPUTS))
    assert analysis.totals.macs == recurrent(GATES[kind], STEPS)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_both_nonlinearities_of_a_plain_rnn(nonlinearity: str) -> None:
    layer = nn.RNN(INPUTS, HIDDEN, nonlinearity=nonlinearity)
    assert analyze_checked(layer, input_size=(STEPS, BATCH, INPUTS)).totals.macs == recurrent(1, BATCH * STEPS)


@pytest.mark.parametrize("kind", CELLS, ids=lambda kind: kind.__name__)
def test_a_cell_is_one_step(kind: Kind) -> None:
    analysis = analyze_checked(kind(INPUTS, HIDDEN), input_size=(BATCH, INPUTS))
    assert analysis.totals.macs == recurrent(CELLS[kind], BATCH)


class Unrolled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(INPUTS, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        hidden, memory = x.new_zeros(2, x.shape[1], HIDDEN).unbind(0)
        for step in x:
            hidden, memory = self.cell(step, (hidden, memory))
        return hidden


def test_an_unrolled_cell_costs_what_the_layer_does() -> None:
    analysis = analyze_checked(Unrolled(), input_size=(STEPS, BATCH, INPUTS))
    assert analysis.totals.macs == recurrent(4, BATCH * STEPS)
    assert next(row.calls for row in analysis.modules if row.path == "cell") == STEPS


class Packed(nn.Module):
    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.rnn = kind(INPUTS, HIDDEN, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        output: Tensor = self.rnn(pack_padded_sequence(x, lengths))[0].data
        return output


@kinds
def test_a_packed_batch_costs_only_the_steps_it_has(kind: Kind) -> None:
    lengths = torch.tensor([5, 3, 2])
    analysis = analyze_checked(Packed(kind), inputs=(torch.zeros(STEPS, BATCH, INPUTS), lengths))
    assert analysis.totals.macs == recurrent(GATES[kind], int(lengths.sum()), bidirectional=True)


@kinds
def test_the_forward_of_a_training_step_costs_the_same(kind: Kind) -> None:
    training = tg.analyze(kind(INPUTS, HIDDEN, num_layers=2), input_size=(STEPS, BATCH, INPUTS), mode="train")
    forward = sum(row.macs for row in training.ops if row.phase == "forward")
    assert forward == recurrent(GATES[kind], BATCH * STEPS, num_layers=2)


@kinds
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=["one", "stacked"])
def test_real_and_meta_parameters_give_the_same_figures(kind: Kind, options: dict[str, Any]) -> None:
    layer = kind(INPUTS, HIDDEN, **options)
    real = analyze_checked(layer, input_size=(STEPS, BATCH, INPUTS))
    assert_same_figures(real, analyze_checked(layer.to("meta"), input_size=(STEPS, BATCH, INPUTS)))


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, True)])
@pytest.mark.parametrize("wants_input", [False, True])
def test_training_an_lstm_costs_the_same_with_and_without_onednn(
    layers: int, bidirectional: bool, wants_input: bool
) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 8) if wants_input else nn.Identity()
            self.lstm = nn.LSTM(8 if wants_input else 6, 8, layers, bidirectional=bidirectional)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(self.first(x))[0]

    found = []
    for enabled in (True, False):
        with torch.backends.mkldnn.flags(enabled=enabled):
            found.append(tg.analyze(Net(), input_size=(5, 3, 6), mode="train", advice=False))
    used, written_out = ({row.op for row in run.ops} for run in found)
    if "aten::mkldnn_rnn_layer" not in used:
        pytest.skip("this torch has no oneDNN")
    assert "aten::mkldnn_rnn_layer" not in written_out
    assert found[0].totals.macs == found[1].totals.macs


@pytest.mark.parametrize(
    "sizes", [(5, 3, 8, 16), (50, 32, 64, 64), (5, 3, 640, 16), (37, 13, 77, 99), (20, 8, 256, 256)]
)
def test_the_workspace_of_onednn_is_what_it_allocates(sizes: tuple[int, int, int, int]) -> None:
    steps, batch, features, units = sizes
    lstm = nn.LSTM(features, units)
    found = tg.analyze(lstm, input_size=(steps, batch, features), mode="train", advice=False)
    forward = next((row for row in found.ops if row.op == "aten::mkldnn_rnn_layer"), None)
    if forward is None:
        pytest.skip("this torch has no oneDNN")
    weights = [weight.detach() for weight in lstm.parameters()]
    state = torch.zeros(batch, units)
    real = torch.ops.aten.mkldnn_rnn_layer(
        torch.zeros(steps, batch, features), *weights, state, state, False, [], 2, units, 1, True, False, False, True
    )
    # How far rows are padded depends on the processor.
    assert math.prod(forward.output_shapes[3]) == pytest.approx(real[3].numel(), rel=0.25)
