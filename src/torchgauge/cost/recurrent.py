"""Recurrent layers. Every weight matrix multiplies one vector per step, so the MACs are steps × their elements.

The gates of one hidden unit cost, per step (the sum of the two products included):

    LSTM   22 flops, 8 more with biases: 4 sums, 3 sigmoids (4 each), 2 tanh, f·c + i·g, o·tanh(c)
    GRU    17 flops, 6 more with biases: 3 sums, 2 sigmoids, r·n, tanh, (1 − z)·n + z·h
    RNN     2 flops, 2 more with biases: 1 sum, tanh or ReLU

and their gradients 22, 16 and 3. The gradients of the weights cost one forward's MACs, and so do those of the inputs
and states, except those that are not requested.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torchgauge.cost.registry import Call, Work, formula, read_bytes
from torchgauge.cost.work import argument, arithmetic, products, rows, total_bytes, total_numel
from torchgauge.facts import TensorSpec, tensor_specs


class Cell(NamedTuple):
    flops: int
    bias_flops: int
    backward_flops: int

    def flops_per_unit(self, *, has_bias: bool) -> int:
        return self.flops + has_bias * self.bias_flops


LSTM, GRU, RNN = Cell(22, 8, 22), Cell(17, 6, 16), Cell(2, 2, 3)
_BY_GATES = {4: LSTM, 3: GRU, 1: RNN}


@formula(
    "aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu", "aten::_lstm_mps", "aten::_cudnn_rnn",
    "aten::miopen_rnn", category="recurrent",
)  # fmt: skip
def layers(call: Call) -> Work:
    work = _without_copy(call, _steps_work(call, rows(argument(call, "input", "data")), _weights(call)))
    # cuDNN's last output is the buffer of its weights, which it was given and does not write.
    return work._replace(bytes_written=total_bytes(call.outputs[:4]))


@formula("aten::quantized_lstm", "aten::quantized_gru", category="recurrent")
def quantized_layers(call: Call) -> Work:
    """The weights are packed, so their sizes follow from the states; products of integers are not flops."""
    data, states = argument(call, "input", "data"), list(tensor_specs(call["hx"]))
    units, directions, count = states[0].shape[-1], 1 + bool(call["bidirectional"]), int(call["num_layers"])
    kind, gates = (LSTM, 4) if len(states) == 2 else (GRU, 3)
    widths = [data.shape[-1], *[directions * units] * (count - 1)]
    macs = rows(data) * directions * sum(gates * units * (width + units) for width in widths)
    flops = rows(data) * directions * count * units * kind.flops_per_unit(has_bias=bool(call["has_biases"]))
    return Work(macs, flops=flops)


@formula("aten::mkldnn_rnn_layer", category="recurrent")
def mkldnn_layer(call: Call) -> Work:
    weights = [call["weight0"], call["weight1"]]
    if call["has_biases"]:
        weights += [call["weight2"], call["weight3"]]
    return _steps_work(call, rows(call["input"]), weights)


@formula("aten::_cudnn_rnn_backward", "aten::miopen_rnn_backward", "aten::lstm_mps_backward", category="recurrent")
def layers_backward(call: Call) -> Work:
    return _without_copy(call, _backward_work(call, _weights(call)))


@formula("aten::mkldnn_rnn_layer_backward", category="recurrent")
def mkldnn_layer_backward(call: Call) -> Work:
    return _backward_work(call, [call["weight1"], call["weight2"]])


@formula("aten::lstm_cell", "aten::gru_cell", "aten::rnn_tanh_cell", "aten::rnn_relu_cell", category="recurrent")
def cell(call: Call) -> Work:
    weights = [call["w_ih"], call["w_hh"], call.get("b_ih"), call.get("b_hh")]
    return _steps_work(call, rows(call["input"]), [spec for spec in weights if spec is not None])


@formula(
    "aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_lstm_cell_backward",
    "aten::_thnn_fused_lstm_cell_backward_impl", "aten::_thnn_differentiable_lstm_cell_backward",
    "aten::_thnn_fused_gru_cell", "aten::_thnn_fused_gru_cell_backward",
    "aten::_thnn_differentiable_gru_cell_backward", category="recurrent",
)  # fmt: skip
def fused_gates(call: Call) -> Work:
    kind = LSTM if "lstm" in call.op else GRU
    if "backward" in call.op:
        flops = kind.backward_flops
    else:
        flops = kind.flops_per_unit(has_bias=call.get("input_bias") is not None)
    return arithmetic(call, flops * argument(call, "cx", "grad_hy", "hx").numel)


def _steps_work(call: Call, steps: int, weights: Iterable[TensorSpec]) -> Work:
    weights = list(weights)
    macs = steps * total_numel([spec for spec in weights if len(spec.shape) == 2])
    kind, units = _cell_and_units(call, weights)
    has_bias = any(len(spec.shape) == 1 for spec in weights)
    return products(call, macs, steps * units * kind.flops_per_unit(has_bias=has_bias))


def _backward_work(call: Call, weights: list[TensorSpec]) -> Work:
    """Autograd of the layer written out in steps: the gradients of all weights, of the hidden state
    through every matrix but those that lead to nothing wanted: the layer's input, and the state before the first step.
    """
    to_input, to_state, _, to_weights = call.get("output_mask", (True, True, True, True))
    steps, batch = rows(call["input"]), rows(next(tensor_specs([call.get("hx"), call.get("hx_")])))
    kind, units = _cell_and_units(call, weights)
    matrices = [spec for spec in weights if len(spec.shape) == 2]
    directions = 1 + bool(call.get("bidirectional"))
    # The rows of a matrix are its gates; the first of each layer and direction reads the input, the second the state.
    gated = max(spec.shape[0] for spec in matrices)
    pairs = [spec for spec in matrices if spec.shape[0] == gated]
    macs = bool(to_weights) * steps * total_numel(matrices) + steps * total_numel(matrices)
    if not to_input:
        macs -= steps * total_numel(pairs[0 : 2 * directions : 2])
    if not to_state:
        macs -= batch * total_numel(pairs[1::2]) // (len(pairs) // 2)
    return products(call, macs, steps * units * kind.backward_flops)


def _cell_and_units(call: Call, weights: list[TensorSpec]) -> tuple[Cell, int]:
    """The kind of cell, and its hidden units in all layers and directions together.

    The rows of an input matrix are gates × units; the recurrent matrix after it has the same rows. An LSTM's projection
    is a third matrix, whose rows are its smaller output.
    """
    matrices = [spec for spec in weights if len(spec.shape) == 2]
    gated = max(spec.shape[0] for spec in matrices)
    if call.get("hidden_size"):
        hidden_size = int(call["hidden_size"])
    else:
        states = list(tensor_specs(call["hx"]))
        # With a projection the hidden state is smaller than the cell state, which comes second.
        hidden_size = states[-1].shape[-1]
    gates = gated // hidden_size
    stacked = sum(spec.shape[0] == gated for spec in matrices) // 2
    return _BY_GATES[gates], stacked * gated // gates


def _weights(call: Call) -> list[TensorSpec]:
    return list(tensor_specs(argument(call, "weight", "params")))


def _without_copy(call: Call, work: Work) -> Work:
    """cuDNN is given its weights twice, one by one and as one buffer; they are read once."""
    buffer = call.get("weight_buf")
    return work if buffer is None else work._replace(bytes_read=read_bytes(call) - buffer.distinct_bytes)
