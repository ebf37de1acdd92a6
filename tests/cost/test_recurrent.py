from __future__ import annotations

from typing import Any

import pytest

from tests.cost.calls import cost, spec
from torchgauge.facts import TensorSpec

STEPS, BATCH, INPUT, HIDDEN = 5, 3, 7, 4
ROWS = STEPS * BATCH
FLOPS = {4: 30, 3: 23, 1: 4}  # per hidden unit and step: LSTM, GRU, RNN with biases


def weights(gates: int, given: int, hidden: int = HIDDEN) -> list[TensorSpec]:
    rows = gates * hidden
    return [spec(rows, given), spec(rows, hidden), spec(rows), spec(rows)]


@pytest.mark.parametrize(("op", "gates"), [("aten::lstm", 4), ("aten::gru", 3), ("aten::rnn_tanh", 1)])
def test_one_layer_multiplies_both_matrices_each_step(op: str, gates: int) -> None:
    state = spec(1, BATCH, HIDDEN)
    done = cost(
        op,
        spec(STEPS, BATCH, HIDDEN),
        input=spec(STEPS, BATCH, INPUT),
        hx=[state, state] if gates == 4 else state,
        params=weights(gates, INPUT),
    )
    macs = ROWS * gates * HIDDEN * (INPUT + HIDDEN)
    assert (done.macs, done.flops) == (macs, 2 * macs + ROWS * HIDDEN * FLOPS[gates])


def test_layers_and_directions_add_up() -> None:
    params = [*weights(4, INPUT) * 2, *weights(4, 2 * HIDDEN) * 2]
    state = spec(4, BATCH, HIDDEN)
    done = cost(
        "aten::lstm", spec(STEPS, BATCH, 2 * HIDDEN), input=spec(STEPS, BATCH, INPUT), hx=[state, state], params=params
    )
    per_step = 2 * 4 * HIDDEN * (INPUT + HIDDEN) + 2 * 4 * HIDDEN * (2 * HIDDEN + HIDDEN)
    assert (done.macs, done.flops) == (ROWS * per_step, 2 * ROWS * per_step + ROWS * 4 * HIDDEN * 30)


def test_a_projection_is_one_more_matrix() -> None:
    projected = 2
    matrices = [spec(16, INPUT), spec(16, projected), spec(projected, HIDDEN)]
    done = cost(
        "aten::lstm",
        spec(STEPS, BATCH, projected),
        input=spec(STEPS, BATCH, INPUT),
        hx=[spec(1, BATCH, projected), spec(1, BATCH, HIDDEN)],
        params=matrices,
    )
    macs = ROWS * (16 * INPUT + 16 * projected + projected * HIDDEN)
    assert (done.macs, done.flops) == (macs, 2 * macs + ROWS * HIDDEN * 22)


def test_the_fused_cpu_layer_equals_the_plain_one() -> None:
    matrices = dict(zip(["weight0", "weight1", "weight2", "weight3"], weights(4, INPUT), strict=True))
    state = spec(BATCH, HIDDEN)
    done = cost(
        "aten::mkldnn_rnn_layer",
        spec(STEPS, BATCH, HIDDEN),
        input=spec(STEPS, BATCH, INPUT),
        hx_=state,
        cx_=state,
        hidden_size=HIDDEN,
        has_biases=True,
        **matrices,
    )
    macs = ROWS * 16 * (INPUT + HIDDEN)
    assert (done.macs, done.flops) == (macs, 2 * macs + ROWS * HIDDEN * 30)


def test_cudnn_reads_its_weights_once() -> None:
    params = weights(3, INPUT)
    elements = sum(param.numel for param in params)
    x, state = spec(STEPS, BATCH, INPUT), spec(1, BATCH, HIDDEN)
    arguments: dict[str, Any] = {"input": x, "weight": params, "hx": state, "hidden_size": HIDDEN}
    done = cost("aten::_cudnn_rnn", spec(STEPS, BATCH, HIDDEN), **arguments, weight_buf=spec(elements))
    assert done.macs == ROWS * 12 * (INPUT + HIDDEN)
    assert done.bytes_read == 4 * (x.numel + state.numel + elements)


def test_backward_costs_one_forward_per_kind_of_gradient() -> None:
    arguments: dict[str, Any] = {
        "input": spec(STEPS, BATCH, INPUT),
        "weight": weights(4, INPUT),
        "hx": spec(1, BATCH, HIDDEN),
        "hidden_size": HIDDEN,
    }
    forward = ROWS * 16 * (INPUT + HIDDEN)
    both = cost("aten::_cudnn_rnn_backward", **arguments, output_mask=[True, True, True, True])
    inputs = cost("aten::_cudnn_rnn_backward", **arguments, output_mask=[True, False, False, False])
    assert (both.macs, both.flops) == (2 * forward, 4 * forward + ROWS * HIDDEN * 22)
    assert inputs.macs == forward - BATCH * 16 * HIDDEN  # nothing before the first step wants a gradient
    weights_only = cost("aten::_cudnn_rnn_backward", **arguments, output_mask=[False, False, False, True])
    assert weights_only.macs == 2 * forward - ROWS * 16 * INPUT - BATCH * 16 * HIDDEN


def test_a_cell_is_one_step() -> None:
    w_ih, w_hh, b_ih, b_hh = weights(3, INPUT)
    state = spec(BATCH, HIDDEN)
    done = cost("aten::gru_cell", state, input=spec(BATCH, INPUT), hx=state, w_ih=w_ih, w_hh=w_hh, b_ih=b_ih, b_hh=b_hh)
    macs = BATCH * 12 * (INPUT + HIDDEN)
    assert (done.macs, done.flops) == (macs, 2 * macs + BATCH * HIDDEN * 23)


def test_fused_gates_leave_the_products_to_other_ops() -> None:
    gates, state = spec(BATCH, 4 * HIDDEN), spec(BATCH, HIDDEN)
    done = cost("aten::_thnn_fused_lstm_cell", state, input_gates=gates, hidden_gates=gates, cx=state)
    assert (done.macs, done.flops) == (0, 22 * state.numel)
