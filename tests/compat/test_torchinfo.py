"""torchinfo's summary: its table and totals, in its units, without its defects."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from torchgauge.compat.torchinfo import ModelStatistics, Units, summary


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.layers = nn.ModuleList([nn.Linear(144, 3), nn.Linear(3, 3)])
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x).flatten(1)
        for layer in self.layers:
            x = layer(x)
        return x


EXPECTED = """\
==========================================================================================
Layer (type:depth-idx)                   Output Shape              Param #
==========================================================================================
Small                                    [2, 3]                    6
├─Conv2d: 1-1                            [2, 4, 6, 6]              40
├─ModuleList: 1-2                        --                        --
│    └─Linear: 2-1                       [2, 3]                    435
│    └─Linear: 2-2                       [2, 3]                    12
==========================================================================================
Total params: 493
Trainable params: 493
Non-trainable params: 0
Total mult-adds (M): 0.00
==========================================================================================
Input size (MB): 0.00
Forward/backward pass size (MB): 0.00
Params size (MB): 0.00
Estimated Total Size (MB): 0.00
=========================================================================================="""


def test_the_table_is_printed_and_is_the_text_of_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    found = summary(Small(), input_size=(2, 1, 8, 8), verbose=1)
    assert str(found) == EXPECTED
    assert capsys.readouterr().out == EXPECTED + "\n"
    summary(Small(), input_size=(2, 1, 8, 8), verbose=0)
    assert not capsys.readouterr().out


def test_the_result_has_totals_and_layers() -> None:
    found = summary(Small(), input_size=(2, 1, 8, 8), verbose=0)
    assert isinstance(found, ModelStatistics)
    assert (found.total_params, found.trainable_params) == (493, 493)
    assert found.total_mult_adds == 2 * (36 * 40 + 435 + 12)
    assert found.total_input == 2 * 64 * 4
    assert found.total_output_bytes == 2 * 4 * 2 * (144 + 3 + 3)
    assert found.total_param_bytes == 4 * 493
    names = [(layer.class_name, layer.var_name, layer.depth) for layer in found.summary_list]
    assert names[:3] == [("Small", "Small", 0), ("Conv2d", "conv", 1), ("ModuleList", "layers", 1)]
    assert names[3:] == [("Linear", "0", 2), ("Linear", "1", 2)]
    assert found.summary_list[1].kernel_size == [3, 3]


def test_without_input_there_are_names_and_parameters() -> None:
    found = summary(Small(), verbose=0)
    assert [layer.class_name for layer in found.summary_list][-1] == "Linear"
    assert "Output Shape" not in str(found)
    assert "mult-adds" not in str(found)
    assert found.total_params == 493


def test_columns_and_rows_can_be_chosen() -> None:
    columns = ("kernel_size", "input_size", "num_params", "params_percent", "mult_adds", "trainable")
    model = Small()
    model.conv.requires_grad_(False)
    settings = {"col_names": columns, "row_settings": ("var_names", "ascii_only"), "depth": 1, "verbose": 0}
    text = str(summary(model, input_size=(1, 1, 8, 8), **settings))  # type: ignore[arg-type]
    conv, layers = text.splitlines()[4:6]
    assert conv.split() == [
        "+",
        "Conv2d",
        "(conv)",
        "[3,",
        "3]",
        "[1,",
        "1,",
        "8,",
        "8]",
        "(40)",
        "8.11%",
        "1,440",
        "False",
    ]
    assert layers.split() == ["+", "ModuleList", "(layers)", "--", "--", "447", "90.67%", "447", "True"]


def test_verbose_two_shows_weights_and_biases() -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    found = summary(model, input_size=(1, 3), col_names=("kernel_size", "num_params"), verbose=0)
    found.formatting.verbose = 2
    rows = [line.split() for line in str(found).splitlines()[4:7]]
    assert rows == [
        ["├─Linear:", "1-1", "--", "16"],
        ["│", "└─weight", "[3,", "4]", "├─12"],
        ["│", "└─bias", "[4]", "└─4"],
    ]


def test_linear_layers_count_every_position() -> None:
    assert summary(nn.Linear(8, 4), input_size=(2, 8), verbose=0).total_mult_adds == 2 * 36
    assert summary(nn.Linear(8, 4), input_size=(2, 5, 8), verbose=0).total_mult_adds == 2 * 5 * 36
    assert summary(nn.Linear(8, 4), input_size=(8,), verbose=0).total_mult_adds == 36


def test_convolutions_count_every_place_a_weight_is_used() -> None:
    assert summary(nn.Conv2d(3, 4, 3, groups=1), input_size=(2, 3, 5, 5), verbose=0).total_mult_adds == 2 * 9 * 112
    assert summary(nn.Conv2d(3, 4, 3), input_size=(3, 5, 5), verbose=0).total_mult_adds == 9 * 112
    transposed = summary(nn.ConvTranspose2d(3, 4, 2, stride=2), input_size=(1, 3, 4, 4), verbose=0)
    assert transposed.total_mult_adds == 16 * 48 + 64 * 4


def test_attention_is_counted_where_it_runs() -> None:
    found = summary(nn.MultiheadAttention(8, 2, batch_first=True), input_data=[torch.randn(1, 3, 8)] * 3, verbose=0)
    projections, scores_and_values = 4 * 3 * 8 * 8, 2 * 3 * 3 * 8
    assert found.total_mult_adds == projections + scores_and_values


def test_a_look_up_multiplies_nothing_and_a_norm_counts_once_per_sample() -> None:
    tokens = torch.zeros(2, 7, dtype=torch.long)
    assert summary(nn.Embedding(10, 4), input_data=tokens, verbose=0).total_mult_adds == 0
    assert summary(nn.BatchNorm2d(4), input_size=(3, 4, 5, 5), verbose=0).total_mult_adds == 3 * 8


def test_rnns_count_every_step_also_packed() -> None:
    model = nn.LSTM(3, 4, batch_first=True)
    params = 16 * (3 + 4) + 32
    assert summary(model, input_size=(2, 5, 3), verbose=0).total_mult_adds == 10 * params

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> PackedSequence:
            output, _ = self.lstm(pack_padded_sequence(x, lengths, batch_first=True))
            return output

    found = summary(Packed(), input_data=[torch.randn(2, 5, 3), torch.tensor([5, 3])], verbose=0)
    assert found.summary_list[1].output_size == [8, 4]
    assert found.total_mult_adds == 8 * params


def test_a_container_has_the_work_of_all_it_holds() -> None:
    layers = summary(Small(), input_size=(2, 1, 8, 8), verbose=0).summary_list
    assert layers[0].macs == 2 * (36 * 40 + 435 + 12)
    assert layers[2].macs == 2 * (435 + 12)


def test_a_shared_layer_is_recursive_and_counts_its_parameters_once() -> None:
    shared = nn.Linear(4, 4)
    found = summary(nn.Sequential(shared, nn.ReLU(), shared), input_size=(2, 4), verbose=0)
    assert (found.total_params, found.total_param_bytes) == (20, 80)
    assert found.total_mult_adds == 2 * 2 * 20
    assert [layer.is_recursive for layer in found.summary_list] == [False, False, False, True]
    hidden = summary(
        nn.Sequential(shared, nn.ReLU(), shared), input_size=(2, 4), verbose=0, row_settings=["hide_recursive_layers"]
    )
    assert str(hidden).count("Linear") == 1


class Block(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 1, groups=2)
        self.act = act
        self.more = nn.ModuleList([nn.Sequential(nn.Conv1d(2, 2, 1), act)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.more[0](self.act(self.conv(x)))


def test_a_shared_activation_is_in_the_block_that_calls_it() -> None:
    act = nn.ReLU()
    found = summary(nn.Sequential(Block(act), act, Block(act)), input_size=(1, 2, 4), depth=5, verbose=0)
    block = [("Block", 1), ("Conv1d", 2), ("ReLU", 2), ("ModuleList", 2), ("Sequential", 3), ("Conv1d", 4), ("ReLU", 4)]
    rows = [(layer.class_name, layer.depth) for layer in found.summary_list]
    assert rows == [("Sequential", 0), *block, ("ReLU", 1), *block]
    names = [layer.var_name for layer in found.summary_list]
    inside = ["conv", "act", "more", "0", "0", "1"]
    assert names == ["Sequential", "0", *inside, "1", "2", *inside]


def test_tied_weights_count_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert summary(model, input_size=(1, 4), verbose=0).total_params == 16


def test_pruned_weights_are_left_out() -> None:
    model = nn.Linear(4, 4, bias=False)
    prune.l1_unstructured(model, "weight", amount=6)
    found = summary(model, input_size=(3, 4), verbose=0)
    assert (found.total_params, found.total_mult_adds) == (10, 30)


def test_a_model_that_takes_gradients_in_its_forward_is_summarised() -> None:
    class Force(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Linear(3, 1, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                place = x.detach().requires_grad_()
                return torch.autograd.grad(self.energy(place).sum(), place)[0]

    found = summary(Force(), input_size=(5, 3), verbose=0)
    assert found.summary_list[0].output_size == [5, 3]
    assert found.summary_list[1].macs == 15
    assert found.total_mult_adds == 2 * 15


def test_script_modules_are_listed_and_their_work_counted() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(6, 3, bias=False)))
    found = summary(nn.Sequential(scripted, nn.ReLU()), input_size=(2, 6), verbose=0)
    assert (found.total_params, found.total_mult_adds) == (18, 36)


def test_units_can_be_chosen() -> None:
    found = summary(nn.Linear(1000, 2000, bias=False), input_size=(1, 1000), verbose=0)
    found.formatting.params_units = Units.MEGABYTES
    found.formatting.macs_units = Units.NONE
    assert "Total params (M): 2\n" in str(found)
    assert "Total mult-adds: 2,000,000\n" in str(found)
    assert ModelStatistics.to_readable(3e12) == (Units.TERABYTES, 3.0)
    assert ModelStatistics.float_to_megabytes(250_000) == 1.0


def test_sizes_can_be_shown_in_kilobytes() -> None:
    found = summary(nn.Linear(1000, 100, bias=False), input_size=(1, 1000), verbose=0)
    assert "Params size (MB): 0.40\n" in str(found)
    found.formatting.params_size_units = Units.KILOBYTES
    found.formatting.params_count_units = Units.KILOBYTES
    assert "Input size (kB): 4\n" in str(found)
    assert "Params size (kB): 400\n" in str(found)
    assert "Total params (k): 100\n" in str(found)
    assert ModelStatistics.format_output_num(1234, Units.KILOBYTES) == " (k): 1.23"


def test_groups_of_convolutions_are_a_column() -> None:
    model = nn.Sequential(nn.Conv2d(16, 32, 3, groups=4), nn.ReLU())
    found = summary(model, input_size=(7, 16, 28, 28), col_names=("kernel_size", "groups"), verbose=0)
    assert [layer.groups for layer in found.summary_list] == [None, 4, None]
    header, _, convolution, activation = (
        line.split()
        for line in str(found).splitlines()
        if line and not line.startswith(("=", "T", "N", "I", "F", "P", "E"))
    )
    assert header[-3:] == ["Kernel", "Shape", "Groups"]
    assert (convolution[-1], activation[-1]) == ("4", "--")


def test_a_distribution_shows_its_shape() -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.distributions.Normal:
            return torch.distributions.Normal(self.mean(x), torch.ones(2), validate_args=False)

    assert summary(Policy(), input_size=(5, 3), verbose=0).summary_list[0].output_size == [5, 2]
