"""`torchgauge llm`."""

from __future__ import annotations

import csv
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import torchgauge as tg
from tests.llm.zoo import MODELS
from torchgauge.cli import main
from torchgauge.report import log_ticks

# transformers imports torchvision, whose operators may not be those of this torch.
pytestmark = pytest.mark.filterwarnings("ignore:torchvision's compiled operators:RuntimeWarning")
CONFIGS = Path(__file__).parent.parent / "llm" / "configs"
LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 96, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return str(path)


def test_the_document_has_the_costs_and_what_fits(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["llm", config, "--context", "128", "--concurrent", "1,4", "--on", "h200", "--json"]
    files = [tmp_path / f"out.{suffix}" for suffix in ("csv", "md", "tex", "txt", "html", "svg")]
    for path in files:
        given += ["-o", str(path)]
    assert main(given) == 0
    found = json.loads(capsys.readouterr().out)["llm"]
    assert found["model"]["layer_counts"] == {"grouped-query": 3}
    assert {row["tokens"]: row["bytes"] for row in found["cache"]}[128] == 128 * 3 * 2 * 2 * 8 * 2
    assert {(row["tokens"], row["batch"]) for row in found["decode"]} >= {(128, 1), (128, 4), (256, 1)}
    assert {row["verdict"] for row in found["fits"]} == {"fits"}
    speed = found["speed"]
    assert [row["kind"] for row in speed] == ["prefill", "decode", "decode"]
    assert all(row["low_s"] < row["time_s"] < row["high_s"] for row in speed)
    assert all(0 < row["mbu"] < 1 and 0 < row["mfu"] < 1 for row in speed)
    with files[0].open() as stream:
        assert {row["kind"] for row in csv.DictReader(stream)} == {"prefill", "decode"}
    assert "What fits on h200" in files[1].read_text()
    page, picture = files[4].read_text(), ElementTree.fromstring(files[5].read_text())
    titles = [title.text or "" for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert sum("tokens ×" in title for title in titles) == len(found["fits"])  # a cell of the heat map for each
    assert sum("predicted" in title for title in titles) == len(speed)
    assert all(text in page for text in ("context × sequences", "FLOPs per token", "FLOP/s on h200", "<svg"))
    device = found["devices"][0]
    assert device["longest_context"] == 256
    assert device["ridge"] == pytest.approx(device["flops_per_s"] / device["bytes_per_s"])
    assert [turn["context"] for turn in device["crossovers"]] == [16, 128]
    assert "\\toprule" in files[2].read_text()
    assert "Cache of one sequence" in files[3].read_text()


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, [], "not autoregressive"),
        ({"model_type": "vit", "architectures": ["ViTForImageClassification"]}, [], "takes no input_ids"),
        ({"model_type": "clip", "architectures": ["CLIPModel"]}, [], "takes no cache of earlier tokens"),
        ({"model_type": "unheard", "auto_map": {}}, [], "needs custom code"),
        ({}, ["--context", "257"], "context limit of 256"),
    ],
)
def test_an_impossible_question_is_one_sentence(
    changes: dict[str, Any], options: list[str], message: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(config).write_text(json.dumps(LLAMA | changes))
    assert main(["llm", config, *options]) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(said) == 1
    assert message in said[0]


@pytest.mark.parametrize(
    "options",
    [["--concurrent", "many"], ["--weights-dtype", "int3"], ["--cache-dtype", "tiny"], ["--adapter", "full"],
     ["--on", "h2000"], ["--concurrent", "0"], ["--speculative", "many"], ["--speculative", "4:1.5"],
     ["--speculative", "0"], ["--context", "8", "--prefix", "8"]],
)  # fmt: skip
def test_options_that_mean_nothing_are_wrong_usage(options: list[str], config: str) -> None:
    assert main(["llm", config, *options]) == 2


def test_a_model_without_tokens_is_refused() -> None:
    with pytest.raises(tg.InputError, match="takes no input_ids"):
        tg.llm(nn.Linear(3, 3))


def test_a_model_that_needs_an_image_is_refused() -> None:
    class Captioner(nn.Module):
        def forward(self, pixel_values: Any, input_ids: Any, past_key_values: Any = None) -> None: ...

    with pytest.raises(tg.InputError, match="cannot run on text alone: its forward requires pixel_values"):
        tg.llm(Captioner())


def test_encoder_tokens_are_for_encoders() -> None:
    found = tg.llm(MODELS["llama"]())
    with pytest.raises(tg.InputError, match="only a decoder"):
        found.cache_bytes(4, encoder_tokens=4)


def test_results_are_saved_and_tabled(config: str, tmp_path: Path) -> None:
    found = tg.llm(config, context=64, concurrent="1,2")
    assert found.asked.concurrent == (1, 2)
    found.save(tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["llm"]["context"] == 64
    frame = found.to_dataframe()
    assert {"kind", "tokens", "batch", "macs", "bytes_read"} <= set(frame.columns)
    assert "grouped-query" in str(found)


def test_memory_grows_with_the_context_and_the_sequences(config: str) -> None:
    rows = tg.llm(config).fits(on="24GiB", contexts=[64, 256], concurrent=[1, 8])
    used = {(row["context"], row["concurrent"]): row["used_bytes"] for row in rows}
    assert used[64, 1] < used[64, 8] < used[256, 8]
    for row in rows:
        tensors = row["weights_bytes"] + row["cache_bytes"] + row["activation_bytes"]
        assert tensors + row["overhead_bytes"] == row["used_bytes"]


def test_the_longest_context_and_the_most_sequences_are_the_last_that_fit() -> None:
    found = tg.llm(MODELS["llama"]())
    assert found.longest_context("24GiB") == 256  # the limit
    most = found.most_sequences("1GiB", 256)
    one, more = (found.fits("1GiB", contexts=[256], concurrent=[count])[0] for count in (most, most + 1))
    assert (one["verdict"], more["verdict"] != "fits") == ("fits", True)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "params", "active"), [("llama-3.1-405b", 405.9, 405.9), ("deepseek-v3", 671, 37.6)])
def test_the_largest_models_take_seconds_and_little_memory(name: str, params: float, active: float) -> None:
    """Imports included, in a separate process. Processor time, because others may use the machine too."""
    began = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "torchgauge", "llm", str(CONFIGS / name), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    model = json.loads(done.stdout)["llm"]["model"]
    assert model["params"] / 1e9 == pytest.approx(params, rel=0.001)
    assert model["active_params"] / 1e9 == pytest.approx(active, rel=0.01)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 15, (spent, time.monotonic() - began)
    if sys.platform == "linux":
        assert after.ru_maxrss < 1 << 20  # KiB, the largest of all children


@pytest.mark.parametrize(("low", "high"), [(9.36, 9.57), (3.2, 4.7), (0, 3.5), (9.0, 9.05), (-2, 12)])
def test_an_axis_has_ticks_however_short_it_is(low: float, high: float) -> None:
    """Costs that hardly grow with the context have an axis between 2.3 and 3.7 G."""
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= 16
    assert all(low <= math.log10(tick) <= high for tick in ticks)


def test_the_types_of_a_step_are_numbers() -> None:
    with torch.device("meta"):
        step = tg.llm(MODELS["llama"]()).decode(8)
    assert step.time_s is None
    assert isinstance(step.macs, int)


def test_torchscript_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.jit.script(torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8))).save("script.pt")
    assert main(["llm", "script.pt"]) == 1
    sentence = "a TorchScript file does not say how its cache is passed on: give the model's code or config"
    assert capsys.readouterr().err == f"torchgauge: error: {sentence}\n"
