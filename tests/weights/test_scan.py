from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import torchgauge as tg
from tests.weights.checkpoints import exact, varied_tensors, write_varied
from torchgauge.checkpoint import Entry, Index, open_checkpoint
from torchgauge.facts import TensorSpec
from torchgauge.weights import ScanRequest, Threads, in_order, scan


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_varied(tmp_path / "model.safetensors")


def test_every_tensor_has_the_figures_of_its_values(checkpoint: Path) -> None:
    found = scan(open_checkpoint(checkpoint), ScanRequest())
    assert found.failures == []
    expected = varied_tensors()
    assert found.rows.keys() == expected.keys()
    for name, tensor in expected.items():
        row, values = found.rows[name], tensor.double().reshape(-1)
        finite = values[values.isfinite()].numpy()
        assert row["nan"] == values.isnan().sum().item()
        assert row["inf"] == values.isinf().sum().item()
        assert row["zeros"] == (values == 0).sum().item()
        if not finite.size:
            assert row["mean"] is None
            continue
        assert (row["min"], row["max"]) == (finite.min(), finite.max())
        assert row["mean"] == pytest.approx(math.fsum(finite) / finite.size, rel=1e-9, abs=1e-12)
        assert row["std"] == pytest.approx(finite.std(), rel=1e-9)
        assert row["l2"] == pytest.approx(np.linalg.norm(finite), rel=1e-9)


def test_rows_keep_the_order_of_the_index_and_come_in_that_of_the_file(tmp_path: Path) -> None:
    index = open_checkpoint(write_varied(tmp_path / "m.safetensors"))
    turned = Index(index.path, index.format, index.files, tuple(reversed(index.entries)))
    came: list[str] = []
    found = scan(turned, ScanRequest(), on_row=lambda name, row: came.append(name))
    assert list(found.rows) == [entry.name for entry in turned.entries]
    offsets = {entry.name: entry.offset or 0 for entry in index.entries if entry.elements}
    assert [name for name in came if name in offsets] == sorted(offsets, key=lambda name: offsets[name])


@pytest.mark.parametrize("deep", [False, True])
def test_the_result_does_not_depend_on_the_number_of_threads(
    checkpoint: Path, deep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchgauge.weights.plan.PIECE_BYTES", 4096)
    index = open_checkpoint(checkpoint)
    results = [exact(scan(index, ScanRequest(deep=deep, threads=threads))) for threads in (1, 2, 5)]
    assert results[0] == results[1] == results[2]


def test_whole_figures_count_each_value_once(checkpoint: Path) -> None:
    total = scan(open_checkpoint(checkpoint), ScanRequest()).summary["total"]
    parameters = [t for name, t in varied_tensors().items() if name != "norm.steps"]
    assert total["elements"] == sum(t.numel() for t in parameters)
    assert total["nan"] == 1
    values = np.concatenate([t.double().reshape(-1).numpy() for t in parameters])
    assert total["mean"] == pytest.approx(values[np.isfinite(values)].mean(), rel=1e-9)


def test_a_truncated_file_costs_only_the_tensors_that_are_cut(tmp_path: Path) -> None:
    path = write_varied(tmp_path / "m.safetensors")
    index = open_checkpoint(path)
    whole = scan(index, ScanRequest())
    last = max(index.entries, key=lambda entry: entry.offset or 0)
    assert last.offset is not None
    path.write_bytes(path.read_bytes()[: last.offset + last.nbytes - 1])
    found = scan(index, ScanRequest())
    assert [name for name, _ in found.failures] == [last.name]
    assert "truncated" in found.failures[0][1]
    assert found.rows == {name: row for name, row in whole.rows.items() if name != last.name}
    assert found.summary["total"]["elements"] == whole.summary["total"]["elements"] - last.elements


def test_a_missing_shard_fails_its_own_tensors_only(tmp_path: Path) -> None:
    save_file({"a": torch.ones(4)}, tmp_path / "1.safetensors")
    save_file({"b": torch.ones(4)}, tmp_path / "2.safetensors")
    indices = [open_checkpoint(tmp_path / f"{number}.safetensors") for number in (1, 2)]
    both = Index(str(tmp_path), "safetensors-sharded", indices[0].files + indices[1].files,
                 indices[0].entries + indices[1].entries)  # fmt: skip
    (tmp_path / "2.safetensors").unlink()
    found = scan(both, ScanRequest())
    assert list(found.rows) == ["a"]
    assert [(name, "No such file" in reason) for name, reason in found.failures] == [("b", True)]


def test_tied_tensors_have_the_same_figures_and_parts_their_own(tmp_path: Path) -> None:
    weight = torch.randn(20, 10)
    torch.save({"w": weight, "tied": weight, "part": weight[:5]}, tmp_path / "m.pt")
    rows = scan(open_checkpoint(tmp_path / "m.pt"), ScanRequest()).rows
    assert rows["tied"] == rows["w"] | {"duplicate_of": "w"}
    assert rows["part"]["duplicate_of"] == "w"
    assert rows["part"]["max"] == weight[:5].max().item()
    assert rows["w"]["duplicate_of"] is None


def test_equal_content_is_found_and_equal_counts_alone_are_not_taken_for_it(tmp_path: Path) -> None:
    values = torch.randn(30, 30)
    shuffled = values.reshape(-1)[torch.randperm(900, generator=torch.Generator().manual_seed(0))].reshape(30, 30)
    tensors = {"a": values, "b": values.clone(), "c": shuffled.clone(), "d": torch.zeros(30), "e": torch.zeros(30)}
    save_file(tensors, tmp_path / "m.safetensors")
    rows = scan(open_checkpoint(tmp_path / "m.safetensors"), ScanRequest()).rows
    assert {name: row["duplicate_of"] for name, row in rows.items()} == {
        "a": None,
        "b": "a",
        "c": None,
        "d": None,
        "e": None,
    }


def test_what_has_no_values_says_so_and_is_no_failure(tmp_path: Path) -> None:
    torch.save({"real": torch.ones(2), "ghost": torch.empty(3, device="meta")}, tmp_path / "m.pt")
    found = scan(open_checkpoint(tmp_path / "m.pt"), ScanRequest())
    assert found.failures == []
    assert "meta device" in found.rows["ghost"]["skipped"]
    assert found.rows["real"]["mean"] == 1


def test_deep_figures_are_those_of_the_matrix(checkpoint: Path) -> None:
    rows = scan(open_checkpoint(checkpoint), ScanRequest(deep=True)).rows
    matrix = varied_tensors()["layers.1.fc.weight"].double().numpy()
    norm = np.linalg.norm(matrix, 2)
    row: Any = rows["layers.1.fc.weight"]
    assert row["spectral_norm"] == pytest.approx(norm, rel=1e-5)
    assert row["stable_rank"] == pytest.approx((np.linalg.norm(matrix) / norm) ** 2, rel=1e-4)
    assert {"per_tensor", "per_channel", "group128"} <= row["quantization"]["int8"].keys()
    assert rows["norm.weight"]["spectral_norm"] is None


def test_progress_ends_at_all_bytes(checkpoint: Path) -> None:
    told: list[tuple[int, int]] = []
    found = scan(
        open_checkpoint(checkpoint), ScanRequest(), progress=lambda done, total, part: told.append((done, total))
    )
    assert told[0][0] == 0
    assert told[-1] == (found.nbytes, found.nbytes)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_results_come_in_order_and_no_more_work_is_asked_for_than_allowed() -> None:
    asked: list[int] = []

    def items() -> object:
        for number in range(40):
            asked.append(number)
            yield number

    with Threads(None, 3) as pool:  # type: ignore[arg-type]
        results = in_order(lambda item: pool.submit(lambda reader, x: x * x, item), items(), 5)  # type: ignore[arg-type]
        for count, result in enumerate(results):
            assert result == count * count
            assert len(asked) <= count + 6


def test_a_tensor_of_an_unknown_type_is_left_out_by_name(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(12))
    entries = (
        Entry("odd", TensorSpec((4,), "float6_e2m3fn"), str(tmp_path / "w.bin"), 0, 3),
        Entry("usual", TensorSpec((3,)), str(tmp_path / "w.bin"), 0, 12),
    )
    found = scan(Index(str(tmp_path), "x", (str(tmp_path / "w.bin"),), entries), ScanRequest())
    assert "float6_e2m3fn" in found.rows["odd"]["skipped"]
    assert found.rows["usual"]["zeros"] == 3


def test_a_tensor_too_large_for_its_rows_keeps_the_figures_that_need_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchgauge.weights.rows.MAX_READ_BYTES", 64)
    turned = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).T
    torch.save({"turned": turned, "small": torch.eye(3)}, tmp_path / "m.pt")
    found = scan(open_checkpoint(tmp_path / "m.pt"), ScanRequest(deep=True))
    assert found.failures == []
    assert found.rows["turned"]["l2"] == pytest.approx(turned.double().norm().item())
    assert found.rows["turned"]["matrix_note"] == "128 bytes are too many to reorder in memory"
    assert found.rows["turned"]["spectral_norm"] is None
    assert found.rows["small"]["spectral_norm"] == pytest.approx(1)


def test_tensors_in_memory_are_scanned_like_those_of_a_file(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    state = {"model": model.state_dict(), "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}, "epoch": 3}
    torch.save(state, tmp_path / "state.pt")
    of_file, of_state = tg.scan_weights(tmp_path / "state.pt"), tg.scan_weights(state)

    figures = ("name", "role", "shape", "mean", "std", "l2", "nan", "module")
    assert [[row[key] for key in figures] for row in of_state.weights] == [
        [row[key] for key in figures] for row in of_file.weights
    ]
    assert of_state.totals == of_file.totals
    of_state.save(tmp_path / "run.json")
    assert tg.load(tmp_path / "run.json").totals == of_state.totals


def test_a_module_is_scanned_with_its_parameters_and_buffers() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    found = tg.scan_weights(model)

    assert {row.name: row.role for row in found.weights} == {
        **{name: "parameter" for name, _ in model.named_parameters()},
        **{name: "buffer" for name, _ in model.named_buffers()},
    }
    assert found.totals.params == sum(parameter.numel() for parameter in model.parameters())


def test_what_needs_a_file_is_refused_for_tensors_in_memory() -> None:
    with pytest.raises(tg.UsageError, match="need a file or folder"):
        tg.scan_weights(torch.nn.Linear(2, 2), dask="local:2")
    with pytest.raises(tg.UsageError, match="not a int"):
        tg.scan_weights(3)  # type: ignore[arg-type]
    with pytest.raises(tg.InputError, match="holds no tensor"):
        tg.scan_weights({"epoch": 3})


def test_optimizer_state_is_not_advised_about_as_if_it_were_layers() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()["state"]
    for place in (0, 2, 4):  # equal tensors, and one that is unlike its siblings
        state[place]["momentum_buffer"].zero_()
    state[6]["momentum_buffer"].fill_(1e4)
    scan = tg.scan_weights({"model": model.state_dict(), "optimizer": {"state": state}})
    held = [row for row in scan.weights if row.role == "optimizer"]

    assert len(held) == 16
    assert [text for row in held for text in row.recommendations] == []
    assert scan.weight_summary is not None
    assert not [row["name"] for row in scan.weight_summary.outliers if row["name"].startswith("optimizer")]
    state[6]["momentum_buffer"][0, 0] = float("nan")
    scan = tg.scan_weights({"model": model.state_dict(), "optimizer": {"state": state}})
    assert ["NaN" in text for row in scan.weights if row.role == "optimizer" for text in row.recommendations] == [True]
