"""`tg.fit`: closed forms, measured peaks of an H200, verdicts and errors. No GPU is needed."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg
from torchgauge.analysis import check
from torchgauge.errors import InputError, UsageError
from torchgauge.isolation import is_isolated
from torchgauge.predict import CLASSES, Trace, find_device, find_devices, trace

MIB = 1 << 20


class Net(nn.Module):
    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.outer(torch.relu(self.inner(x)))
        return out


def fitted(model: nn.Module | Path, **options: object) -> tg.Fit:
    found = tg.fit(model, **options)  # type: ignore[arg-type]
    assert isinstance(found, tg.Fit)
    return found


def test_inference_is_weights_input_two_activations_and_the_workspaces_of_cublas() -> None:
    found = fitted(Net(), on="h200", inputs=torch.empty(1024, 1024, device="meta"))
    weights = 2 * (4 * MIB + 4096)
    # The hidden activation, its relu (the first is gone when the second layer writes), the output.
    assert found.allocated_bytes == weights + 4 * MIB + 2 * 4 * MIB + 33 * MIB


def test_classes_sum_to_what_is_reserved_and_training_has_them_all() -> None:
    found = fitted(Net(), on="h200", mode="train", inputs=torch.empty(64, 1024, device="meta"))
    assert tuple(found.by_class) == CLASSES
    assert sum(found.by_class.values()) == found.reserved_bytes
    assert found.by_class["parameters"] == 2 * (4 * MIB + 4096)
    assert found.by_class["optimizer_state"] == 2 * found.by_class["parameters"]
    assert found.allocated_bytes <= found.reserved_bytes < found.used_bytes
    assert {row["phase"] for row in found.timeline} == {"forward", "backward", "optimizer"}
    assert max(row["allocated_bytes"] for row in found.timeline) == found.allocated_bytes


@pytest.mark.parametrize(
    ("optimizer", "states"), [("adamw", 2), ("sgd", 1), (torch.optim.SGD, 0), ("adagrad", 1)], ids=str
)
def test_the_state_of_an_optimizer(optimizer: object, states: int) -> None:
    found = fitted(Net(), on="h200", mode="train", optimizer=optimizer, inputs=torch.empty(64, 1024, device="meta"))
    assert found.before_bytes == pytest.approx((1 + states) * 2 * (4 * MIB + 4096) + 64 * 4096 + 66 * MIB, rel=0.05)


def test_frozen_parameters_have_no_gradient_and_no_state() -> None:
    given = {"on": "h200", "mode": "train", "inputs": torch.empty(64, 1024, device="meta")}
    whole, part = fitted(Net(), **given), fitted(Net(), **given, frozen="inner.*")
    assert part.by_class["optimizer_state"] == whole.by_class["optimizer_state"] / 2
    adapted = fitted(Net(), **given, lora="4:inner.weight")
    assert adapted.by_class["optimizer_state"] == 2 * 4 * 2 * 4 * 1024


def test_the_model_is_not_changed_and_may_be_real_or_on_meta() -> None:
    model = Net(64)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    real = fitted(model, on="h200", mode="train", inputs=torch.randn(8, 64))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    with torch.device("meta"):
        empty = Net(64)
    assert fitted(empty, on="h200", mode="train", inputs=torch.randn(8, 64)).allocated_bytes == real.allocated_bytes


def test_verdicts_by_capacity() -> None:
    given = {"mode": "train", "inputs": torch.empty(4096, 1024, device="meta")}
    found = fitted(Net(), on="h200", **given)
    need = found.required_bytes + found.context_bytes
    verdicts = [fitted(Net(), on=f"{round(need * part / MIB)}MiB", **given).verdict for part in (0.4, 1.0, 2.0)]
    assert verdicts == ["does not fit", "too close", "fits"]


def test_several_devices_give_a_list() -> None:
    found = tg.fit(Net(), on="h200,l4", inputs=torch.empty(4, 1024, device="meta"))
    assert isinstance(found, list)
    assert [one.device for one in found] == ["h200", "l4"]
    # 32 MiB of cuBLAS there, 8 here.
    assert found[0].allocated_bytes - found[1].allocated_bytes == 32 * MIB - 8519680


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    found = fitted(Net(), on="1500MiB", mode="train", inputs=torch.empty(256, 1024, device="meta"))
    most = found.max_batch
    assert most
    verdicts = [
        fitted(Net(), on="1500MiB", mode="train", inputs=torch.empty(size, 1024, device="meta")).verdict
        for size in (most, most + 1)
    ]
    assert verdicts[0] == "fits"
    assert verdicts[1] != "fits"


def test_remedies_are_predicted_anew() -> None:
    found = fitted(Net(), on="1500MiB", mode="train", inputs=torch.empty(65536, 1024, device="meta"))
    names = [remedy["name"] for remedy in found.remedies]
    assert found.verdict == "does not fit"
    assert any("bfloat16" in name for name in names)
    assert all(remedy["used_bytes"] < found.used_bytes for remedy in found.remedies)


def test_attention_on_cuda_saves_no_scores() -> None:
    model = nn.TransformerEncoderLayer(256, 4, 256, batch_first=True, dropout=0.0)
    found = fitted(model, on="h200", mode="train", dtype="bfloat16", inputs=torch.empty(2, 2048, 256, device="meta"))
    scores = 2 * 4 * 2048 * 2048 * 2
    assert found.by_class["activations"] < scores


def test_checkpointing_keeps_less() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)) for _ in range(8)))
    given = {"on": "h200", "mode": "train", "inputs": torch.empty(4096, 256, device="meta")}
    whole, spared = fitted(model, **given), fitted(model, **given, checkpoint="blocks")
    assert spared.by_class["activations"] < 0.6 * whole.by_class["activations"]


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on": "hh200"}, "did you mean h200"),
        ({"on": "gpu of the future"}, "torchgauge devices lists"),
        ({"mode": "train", "optimizer": "adamv"}, "did you mean one of: adam"),
        ({"mode": "training"}, "no mode 'training'"),
        ({"amp": "int8"}, "one of: bf16, fp16"),
        ({"batch": 4, "inputs": torch.empty(1, 1024)}, "batch only applies to inferred inputs"),
        ({"lora": "q_proj"}, "RANK:PATTERN"),
        ({"execution": "lazy"}, "one of: eager, graph"),
        ({"torch_version": "1.13"}, "2.6 and later"),
    ],
)
def test_wrong_options_get_a_clear_sentence(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        tg.fit(Net(), **{"inputs": torch.empty(1, 1024), **options})  # type: ignore[arg-type]


def test_a_model_that_reads_tensor_values_is_refused() -> None:
    with pytest.raises(InputError, match="reads tensor values"):
        tg.fit(Branching(), inputs=torch.randn(4))


def test_an_optimizer_that_reads_numbers_is_predicted() -> None:
    found = tg.fit(nn.Linear(64, 32), on="h200", mode="train", optimizer="adafactor", inputs=torch.randn(4, 64))
    assert isinstance(found, tg.Fit)
    assert found.verdict == "fits"
    assert any("optimizer" in warning for warning in found.warnings)


def test_bounds_of_a_small_model_hold_what_is_allocated() -> None:
    found = tg.fit(nn.Linear(4, 4), on="l4", inputs=torch.randn(1, 4))
    assert isinstance(found, tg.Fit)
    assert found.bounds["reserved_bytes"].low >= found.bounds["allocated_bytes"].low > 0


def test_names_of_devices() -> None:
    assert find_device("NVIDIA H200") is find_device("h200") is find_device("H200-SXM")
    assert find_device("24GiB").capacity_bytes == int(24 * 2**30 * 0.98)
    assert [device.name for device in find_devices(["h200,l4", "rtx4090"])] == ["h200", "l4", "rtx4090"]
    assert find_device("h200").capacity_bytes == 150109880320


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("RTX 4090", "rtx4090"), ("4090", "rtx4090"), ("NVIDIA GeForce RTX 4090", "rtx4090"), ("rtx-4090", "rtx4090"),
        ("A100-80GB", "a100"), ("A100 40GB", "a100_40gb"), ("NVIDIA A100-SXM4-40GB", "a100_40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100_pcie_40gb"), ("a100 pcie", "a100_pcie"), ("h100-pcie", "h100_pcie"),
        ("NVIDIA H100 80GB HBM3", "h100"), ("5070 Ti", "rtx5070ti"), ("Radeon RX 7900 XTX", "rx7900xtx"),
        ("MI300X", "mi300x"), ("Apple M4 Max", "m4_max"), ("v100-16gb", "v100_16gb"), ("Tesla T4", "t4"),
        ("A10G", "a10g"), ("6000 Ada", "rtx_6000_ada"), ("RTX A6000", "a6000"),
    ],
)  # fmt: skip
def test_devices_are_found_as_people_spell_them(spelling: str, name: str) -> None:
    assert find_device(spelling).name == name


def test_memory_that_is_shared_may_be_any_size_up_to_the_largest() -> None:
    small, large = find_device("M4 Max 64GB"), find_device("m4_max")
    assert small.nominal_bytes == 64 * 2**30
    assert small.capacity_bytes == pytest.approx(large.capacity_bytes / 2, rel=0.01)
    with pytest.raises(UsageError, match="256 GB"):
        find_device("M4 Max 256GB")
    with pytest.raises(UsageError, match="80 GiB or 40 GiB"):
        find_device("A100 64GB")


@pytest.mark.parametrize("asked", ["2xh100", "8 x H100", "h100x8", "4*NVIDIA H100"])
def test_several_gpus_are_refused_with_the_name_of_one(asked: str) -> None:
    with pytest.raises(UsageError, match="one GPU only so far; give 'h100'"):
        find_device(asked)


@pytest.mark.parametrize("asked", ["rtx2080", "titan v", "a1000", "h2000", "gaudi3", "gtx1080", "2xfoo"])
def test_for_an_unknown_device_no_other_one_is_suggested(asked: str) -> None:
    with pytest.raises(UsageError, match="torchgauge devices lists") as caught:
        find_device(asked)
    assert "did you mean" not in str(caught.value)


def test_devices_with_other_kernels_have_wider_bounds_and_say_so() -> None:
    found = {on: fitted(nn.Linear(4096, 4096), on=on, inputs=torch.ones(4096, 4096)) for on in ("h200", "l4", "mi300x")}
    spans = [one.bounds["reserved_bytes"] for one in found.values()]
    widths = [span.high - span.low for span in spans]
    assert widths == sorted(set(widths))
    assert "other kernels" in " ".join(found["mi300x"].warnings)
    assert not found["l4"].warnings


def test_a_device_without_a_published_rate_has_memory_but_no_time() -> None:
    model, given = nn.Linear(64, 64), torch.ones(8, 64)
    assert isinstance(fitted := tg.fit(model, on="m4_max", inputs=given), tg.Fit)
    assert fitted.verdict == "fits"
    with pytest.raises(UsageError, match="only its memory"):
        tg.forecast(model, on="m4_max", inputs=given)


class Dropping(nn.Module):
    """LayerDrop, as BART and OPT have it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x if torch.rand([]) < 0.1 else self.layer(x)
        return out


def test_a_layer_that_is_left_out_at_random_counts_as_there() -> None:
    found = fitted(Dropping(), on="h200", mode="train", inputs=torch.empty(4, 64, device="meta"))
    assert found.by_class["optimizer_state"] > 0


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 30000)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.head(x), target)}


def test_cross_entropy_under_autocast_keeps_its_softmax_in_the_type_of_its_input() -> None:
    target = torch.zeros(8192, dtype=torch.long)
    inputs = {"x": torch.empty(8192, 64, device="meta"), "target": target}
    found = fitted(Classifier(), on="h200", mode="train", amp="bf16", inputs=inputs)
    forward = [row["allocated_bytes"] for row in found.timeline if row["phase"] == "forward"]
    logits = 8192 * 30000 * 2
    # Logits, their log-softmax, and that in float32 for the loss.
    assert max(forward) - found.before_bytes == pytest.approx(4 * logits, rel=0.02)


def test_checkpointing_costs_what_is_computed_again() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)) for _ in range(8)))
    found = fitted(model, on="700MiB", mode="train", inputs=torch.empty(4096, 256, device="meta"))
    remedy = next(one for one in found.remedies if one["name"] == "checkpointing by block")
    # Forward 1, backward 1.94 (the first layer needs no gradient of its input); of a block the first layer is computed
    # again and the second is not, since nothing of its result was saved.
    assert remedy["extra_flops"] == pytest.approx(0.5 / 2.94, rel=0.02)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    program = torch.export.export(Net(64), (torch.empty(8, 64),))
    torch.export.save(program, tmp_path / "net.pt2")
    return tmp_path / "net.pt2"


def test_a_file_is_read_in_a_process_without_rights(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def report(case: object) -> NoReturn:
        raise UsageError(f"isolated: {is_isolated()}")

    monkeypatch.setattr("torchgauge.analysis.fitting.Case.facts", report)
    with pytest.raises(UsageError, match="isolated: True"):
        fitted(saved, on="h200")


def test_a_file_gives_what_its_module_gives(saved: Path) -> None:
    stored = fitted(saved, on="h200")
    live = fitted(Net(64), on="h200", inputs=torch.empty(8, 64, device="meta"))
    assert stored.allocated_bytes == live.allocated_bytes
    assert stored.remedies == []  # the batch of an exported program is fixed, and it is small already


def test_a_cuda_graph_keeps_its_segments_reserved_and_its_result_allocated() -> None:
    given = {"on": "h200", "inputs": torch.empty(1024, 1024, device="meta")}
    eager, graph = fitted(Net(), **given), fitted(Net(), **given, execution="graph")
    # Weights, the input, the result, and cuBLAS's workspaces for the stream of the warm-up and that of the capture.
    assert graph.allocated_bytes == 2 * (4 * MIB + 4096) + 4 * MIB + 4 * MIB + 2 * 33 * MIB
    assert graph.reserved_bytes > eager.reserved_bytes + 32 * MIB
    assert sum(graph.by_class.values()) == graph.reserved_bytes
    assert graph.required_bytes <= graph.reserved_bytes


class Tokens(nn.Module):
    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 512)
        self.out = nn.Linear(512, 512)
        if limit is not None:
            self.config = types.SimpleNamespace(max_position_embeddings=limit)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.embedding(ids))
        return out


def test_the_longest_sequence_fits_and_one_more_does_not() -> None:
    ids = torch.zeros(4, 128, dtype=torch.long)
    longest = fitted(Tokens(), on="1GiB", inputs=ids).max_seq
    assert longest
    verdicts = [
        fitted(Tokens(), on="1GiB", inputs=torch.zeros(4, length, dtype=torch.long)).verdict
        for length in (longest, longest + 1)
    ]
    assert verdicts[0] == "fits"
    assert verdicts[1] != "fits"
    assert fitted(Tokens(limit=256), on="1GiB", inputs=ids).max_seq == 256
    assert fitted(Net(), on="1GiB", inputs=torch.empty(4, 1024)).max_seq is None


def test_several_batches_and_lengths_give_a_row_each() -> None:
    model = Net()
    model.example_input_array = torch.empty(2, 1024)
    found = tg.fit(model, on="h200,l4", batch=[1, 8])
    assert isinstance(found, list)
    frame = found.to_dataframe()
    assert [tuple(row) for row in frame[["device", "batch"]].values] == [
        ("h200", 1), ("h200", 8), ("l4", 1), ("l4", 8)
    ]  # fmt: skip
    assert (frame["used_bytes_low"] <= frame["used_bytes"]).all()
    assert (frame["parameters_bytes"] == 2 * (4 * MIB + 4096)).all()


def test_remedies_that_train_less_come_last_and_say_so() -> None:
    found = fitted(Net(8192), on="2900MiB", mode="train", inputs=torch.empty(16, 8192, device="meta"))
    assert found.verdict == "does not fit"
    effects = [one["effect"] or "" for one in found.remedies if one["verdict"] == "fits"]
    trains_less = ["trains" in effect for effect in effects]
    assert trains_less == sorted(trains_less)
    assert "trains adapters only" in effects
    assert "trains outer only" in effects


def test_an_analysis_has_the_fit_of_the_devices_it_was_asked_for(tmp_path: Path) -> None:
    inputs = torch.empty(64, 1024, device="meta")
    found = tg.analyze(Net(), inputs=inputs, mode="train", on=["h200", "l4"], advice=False)
    assert [row["device"] for row in found.to_dict()["fit"]] == ["h200", "l4"]
    alone = fitted(Net(), on="h200", mode="train", inputs=inputs)
    assert found.capture.fit[0].used_bytes == alone.used_bytes
    found.save(tmp_path / "run.json")
    saved = tg.load(tmp_path / "run.json")
    assert saved.capture.fit == found.capture.fit
    assert "On NVIDIA H200" in str(saved)
    saved.save(tmp_path / "run.html")
    assert "On NVIDIA H200" in (tmp_path / "run.html").read_text()
    assert "fit" not in tg.analyze(Net(), inputs=inputs, advice=False).to_dict()


def test_an_analysis_traces_the_model_once_for_the_memory_and_the_time_of_a_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traced = []

    def counted(*given: Any) -> Trace:
        traced.append(given)
        return trace(*given)

    monkeypatch.setattr("torchgauge.predict.steps.trace", counted)
    given = torch.empty(64, 1024, device="meta")
    found = tg.analyze(Net(), on=["h200", "h100", "24GiB"], inputs=given, advice=False)
    assert [fit.device for fit in found.capture.fit] == ["h200", "h100", "24GiB"]
    assert [row["device"] for row in found.capture.forecast] == ["h200", "h100"]
    assert len(traced) == 2  # an H100 runs the kernels of an H200
    with pytest.raises(UsageError, match="no device 'h20x'"):
        tg.analyze(Net(), on="h20x", inputs=given, advice=False)


def test_a_budget_may_limit_what_is_used_on_a_device() -> None:
    given: dict[str, Any] = {"inputs": torch.empty(64, 1024, device="meta")}
    used = fitted(Net(), on="l4", **given).used_bytes
    within = check(Net(), {"fit.l4.used_bytes": used}, **given)
    broken = check(Net(), {"fit.l4.used_bytes": used - 1}, **given)
    assert (within.exit_status, broken.exit_status) == (0, 3)
    assert broken.broken[0].blamed[0].paths in ("inner", "outer")
    with pytest.raises(UsageError, match=r"no figure 'fit\.l4\.colour'"):
        check(Net(), {"fit.l4.colour": 1}, **given)


def test_a_comparison_shows_the_memory_on_a_device() -> None:
    sides = [
        tg.analyze(Net(), inputs=torch.empty(rows, 1024, device="meta"), on="h200", advice=False) for rows in (1, 65536)
    ]
    assert "Memory on NVIDIA H200" in str(tg.compare(*sides))


class OneKeyHead(nn.Module):
    """Multi-query attention that is given as it is: only the plain kernel takes heads that differ."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(256, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.query(x).unflatten(-1, (4, 64)).transpose(1, 2)
        key = self.key(x).unflatten(-1, (1, 64)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(query, key, key)


def test_plain_attention_under_autocast_computes_its_scores_in_float32() -> None:
    found = fitted(OneKeyHead(), on="h200", mode="train", amp="bf16", inputs=torch.empty(2, 1024, 256, device="meta"))
    scores = 2 * 4 * 1024 * 1024 * 4
    assert max(row["allocated_bytes"] for row in found.timeline) - found.before_bytes > 2 * scores


def test_an_analysis_has_the_time_of_the_devices_it_was_asked_for(tmp_path: Path) -> None:
    inputs = torch.empty(64, 1024, device="meta")
    found = tg.analyze(Net(), inputs=inputs, on="h200,24GiB", advice=False)
    assert [row["device"] for row in found.to_dict()["fit"]] == ["h200", "24GiB"]
    (row,) = found.to_dict()["forecast"]  # of a size of memory alone no speed is known
    alone = tg.forecast(Net(), on="h200", inputs=inputs)
    assert isinstance(alone, tg.Forecast)
    assert row["predicted_time_s"] == alone.time_s
    assert row["predicted_low_s"] < row["predicted_time_s"] < row["predicted_high_s"]
    found.save(tmp_path / "run.json")
    assert tg.load(tmp_path / "run.json").capture.forecast == found.capture.forecast
    assert "Time there" in str(found)
    report = check(found, {"predicted_time_s": alone.time_s / 2, "forecast.h200.predicted_time_s": 1.0})
    assert [verdict.state for verdict in report.verdicts] == ["broken", "within"]
    assert "Predicted time on NVIDIA H200" in str(tg.compare(found, found))


def test_a_budget_for_predicted_time_asks_for_the_device() -> None:
    report = check(Net(), {"predicted_time_s": 1.0}, inputs=torch.empty(64, 1024, device="meta"))
    assert report.exit_status == 1
    assert "--on h200" in str(report.verdicts[0].reason)


def test_recurrent_layers_run_in_float16_under_autocast() -> None:
    """For any autocast type, their result and their reserve are half as large."""
    plain, cast = (
        tg.fit(nn.LSTM(256, 256), on="h200", mode="train", inputs=torch.randn(64, 32, 256), amp=amp)
        for amp in (None, "bf16")
    )
    assert isinstance(plain, tg.Fit)
    assert isinstance(cast, tg.Fit)
    assert cast.by_class["activations"] < 0.7 * plain.by_class["activations"]


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 1), ("adagrad", 1), ("adamw", 2)])
def test_fused_optimizers_of_large_models(optimizer: str, states: int) -> None:
    # torch has no meta kernel for the fused steps of SGD and Adagrad, and 2^28 elements are too many to run them.
    side = 1 << 14
    with torch.device("meta"):
        model = torch.nn.Linear(side, side, bias=False)
    found = fitted(model, inputs=(torch.empty(1, side, device="meta"),), mode="train", fused=True, optimizer=optimizer)
    assert found.by_class["optimizer_state"] == pytest.approx(states * 4 * side**2, rel=0.001)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_packed_sequences_are_refused_for_their_lengths(kind: type[nn.LSTM | nn.GRU]) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = kind(16, 8, batch_first=True)

        def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(tokens, lengths, batch_first=True)
            made: Tensor = nn.utils.rnn.pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)[0]
            return made

    with pytest.raises(tg.InputError, match="reads tensor values"):
        tg.fit(Tagger(), on="h200", inputs=(torch.randn(3, 5, 16), torch.tensor([5, 4, 2])))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def stack(width: int = 1024, depth: int = 12) -> nn.Sequential:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(64, width), nn.Sequential(*(Block(width) for _ in range(depth))))


class Projected(nn.Module):
    """Its input projection is registered last, so training that alone needs all activations."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(1024) for _ in range(24)))
        self.project = nn.Linear(64, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.blocks(self.project(x))
        return result


def test_a_change_that_saves_nothing_alone_is_combined_with_one_that_moves_the_peak() -> None:
    """The optimizer's step is the peak, so recomputing saves nothing; with adapters alone it is the activations."""
    with torch.device("meta"):
        model = Projected().to(torch.bfloat16)
    options: dict[str, Any] = {"mode": "train", "inputs": torch.empty(1, 1024, 64, device="meta"), "dtype": "bfloat16"}
    plain = fitted(model, on="h200", **options)
    checkpointed = fitted(model, on="h200", checkpoint="blocks", **options)
    assert checkpointed.used_bytes > 0.95 * plain.used_bytes
    both = fitted(model, on="h200", checkpoint="blocks", lora="8:*", **options)
    assert both.used_bytes < 0.85 * min(plain.used_bytes, fitted(model, on="h200", lora="8:*", **options).used_bytes)
    found = fitted(model, on=f"{int(both.used_bytes * 1.25) >> 20}MiB", **options)
    assert found.verdict != "fits"
    fitting = {one["name"] for one in found.remedies if one["verdict"] == "fits"}
    assert {"LoRA of rank 8 + checkpointing by block"} <= fitting
    assert all(" + " in name for name in fitting)
    assert found.remedies[0]["verdict"] == "fits"


@pytest.mark.parametrize(("name", "bits"), [("nf4", 4.125), ("int4", 4.16), ("int8", 8.0), ("fp8", 8.0)])
def test_matrices_of_blocks_are_stored_in_few_bits_and_restored_one_at_a_time(name: str, bits: float) -> None:
    inputs = torch.empty(16, 64, dtype=torch.bfloat16, device="meta")
    plain, stored = (
        tg.fit(stack(), on="h200", inputs=inputs, dtype="bfloat16", weights_dtype=one) for one in (None, name)
    )
    assert isinstance(plain, tg.Fit)
    assert isinstance(stored, tg.Fit)
    matrices, biases = 12 * 2 * 4 * 1024**2, 12 * 5 * 1024 + 65 * 1024
    assert plain.by_class["parameters"] == 2 * (matrices + biases)
    assert stored.by_class["parameters"] == pytest.approx(matrices * bits / 8 + 2 * biases, rel=0.01)
    # One restored matrix more than before, not all of them.
    largest = 2 * 4 * 1024**2
    saved = plain.by_class["parameters"] - stored.by_class["parameters"]
    assert plain.allocated_bytes - stored.allocated_bytes == pytest.approx(saved - largest, rel=0.02)


def test_quantized_weights_train_adapters_only() -> None:
    inputs = torch.empty(256, 64, dtype=torch.bfloat16, device="meta")
    options: dict[str, Any] = {"on": "h200", "mode": "train", "inputs": inputs, "dtype": "bfloat16"}
    lora, qlora = (tg.fit(stack(), lora="8:*", weights_dtype=one, **options) for one in (None, "nf4"))
    assert isinstance(lora, tg.Fit)
    assert isinstance(qlora, tg.Fit)
    assert qlora.by_class["optimizer_state"] == lora.by_class["optimizer_state"] > 0
    assert qlora.used_bytes < lora.used_bytes - 12 * 8 * 1024**2
    with pytest.raises(UsageError, match="with lora"):
        tg.fit(stack(), weights_dtype="nf4", **options)
    with pytest.raises(UsageError, match="give dtype instead"):
        tg.fit(stack(), weights_dtype="bf16", **options)
    with pytest.raises(UsageError, match="no weights dtype 'int3'"):
        tg.fit(stack(), weights_dtype="int3", **options)


@pytest.mark.parametrize("activation", [nn.SiLU(), nn.Mish()])
def test_the_gradient_of_an_activation_is_one_kernel(activation: nn.Module) -> None:
    """CUDA has kernels for those of SiLU and Mish; their parts are for other devices."""
    model, inputs = nn.Sequential(nn.Linear(256, 256), activation), torch.empty(1 << 14, 256, device="meta")
    found = fitted(model, on="h200", mode="train", inputs=inputs)
    backward = [row["op"] for row in found.timeline if row["phase"] == "backward" and row["module"] == "1"]
    names = [row["op"] for row in found.timeline]
    assert any(name.endswith(("silu_backward", "mish_backward")) for name in names)
    assert "aten::sigmoid" not in [*names, *backward]


class Turned(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.norm(x)
        return made


def test_a_layer_norm_copies_an_input_that_is_not_in_order() -> None:
    nbytes = 64 * 512 * 1024 * 4
    ordered, turned = torch.empty(64, 1024, 512, device="meta"), torch.empty(64, 512, 1024, device="meta")
    plain = fitted(Turned(nn.LayerNorm(512)), on="h200", inputs=ordered)
    copied = fitted(Turned(nn.LayerNorm(512)), on="h200", inputs=turned.transpose(1, 2))
    assert copied.allocated_bytes - plain.allocated_bytes == pytest.approx(nbytes, rel=0.01)


def test_a_group_norm_returns_channels_first() -> None:
    nbytes = 16 * 64 * 128 * 128 * 4
    inputs = torch.empty(16, 64, 128, 128, device="meta").to(memory_format=torch.channels_last)
    found = fitted(Turned(nn.GroupNorm(8, 64)), on="h200", inputs=inputs)
    assert found.allocated_bytes == pytest.approx(3 * nbytes, rel=0.02)
