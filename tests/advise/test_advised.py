from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

import torchgauge
from tests.advise.planted import Planted
from tests.advise.test_families import ZOO
from torchgauge.advise import RULES, Evidence, Patch, advise
from torchgauge.cli import main
from torchgauge.errors import UsageError
from torchgauge.facts import AdviceRow, Row
from torchgauge.hardware import allows_tf32
from torchgauge.report import Options
from torchgauge.report.content import ADVICE_ROWS, MOST_LINES, figure_text
from torchgauge.report.content import advice as advice_content
from torchgauge.report.formats import write_sections

SHAPE = (1, 3, 8, 8)


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)).eval()


def analyze(**settings: object) -> torchgauge.Analysis:
    return torchgauge.analyze(net(), input_size=SHAPE, progress=False, **settings)  # type: ignore[arg-type]


def fusion(rows: list[AdviceRow]) -> AdviceRow:
    return next(row for row in rows if row.rule == "conv-bn-fusion")


def test_an_analysis_gives_advice_with_evidence_place_code_and_gain() -> None:
    row = fusion(analyze().advice)

    assert {place["module"] for place in row.evidence["places"]} == {"1", "3"}
    assert "for first, second in [('0', '1'), ('2', '3')]:" in row["code"]
    assert 0 < row["expected_gain"]["low"] < row["expected_gain"]["high"] < 1


def test_no_batch_norm_is_folded_in_training() -> None:
    assert not [row for row in analyze(mode="train").advice if row.rule == "conv-bn-fusion"]


def test_advice_can_be_left_out_and_rules_silenced() -> None:
    assert analyze(advice=False).advice == []
    assert not [row for row in analyze(silence=["conv-bn-fusion"]).advice if row.rule == "conv-bn-fusion"]


def test_a_wrong_name_to_silence_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="no rule 'nonsense'"):
        analyze(silence=["nonsense"])


def test_advice_survives_saving_and_loading(tmp_path: Path) -> None:
    found = analyze()
    found.save(tmp_path / "run.json")

    loaded = torchgauge.load(tmp_path / "run.json")

    assert loaded.advice == found.advice != []
    assert loaded.to_dict()["advice"] == json.loads(json.dumps(found.to_dict()["advice"]))


def test_a_saved_run_gets_the_advice_of_the_live_one(tmp_path: Path) -> None:
    found = analyze()
    found.save(tmp_path / "run.json")

    anew = advise(Evidence(torchgauge.load(tmp_path / "run.json").capture))

    assert [advice.member() for advice in anew] == [dict(row) for row in found.advice] != []


def test_the_machine_is_part_of_the_run(tmp_path: Path) -> None:
    found = analyze()
    settings = {"matmul_tf32": False, "convolution_tf32": True}
    capture = replace(
        found.capture,
        run=replace(found.capture.run, device="cuda:0"),
        environment=replace(found.capture.environment, device="NVIDIA H200", settings=settings),
    )
    torchgauge.Analysis(capture).save(tmp_path / "run.json")

    machine = Evidence(torchgauge.load(tmp_path / "run.json").capture).machine

    assert machine.peaks is not None
    assert machine.peaks.rate("bfloat16")
    assert (machine.matmul_tf32, machine.convolution_tf32) == (False, True)


@pytest.mark.parametrize(
    ("switch", "allowed"),
    [({"fp32_precision": "tf32"}, True), ({"fp32_precision": "ieee"}, False), ({"allow_tf32": True}, True)],
)
def test_tf32_is_known_by_the_newer_switch_or_the_older(
    switch: dict[str, object], allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.backends.cuda.matmul", SimpleNamespace(**switch))

    assert allows_tf32("matmul") is allowed


def test_the_text_report_shows_evidence_code_and_the_expected_range() -> None:
    text = str(analyze())

    assert "\nAdvice\n" in text
    section = " ".join(text.split("\nAdvice\n")[1].split())
    assert re.match(
        r"1\. about \d+ % faster \([\d.]+ µs of [\d.]+ µs; \d+ to \d+ %\): fold the batch norm into the", section
    )
    assert re.search(r"conv-bn-fusion at \d and 1 more; predicted ", section)
    assert "fuse_conv_bn_eval" in section


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("case", ZOO, ids=lambda case: f"{case.rule} {case.name}")
def test_a_piece_of_advice_takes_three_lines_before_its_code(case: Planted, width: int) -> None:
    for advice in case.in_fault():
        row = Row(replace(advice, change=Patch("the code")).member())
        view: Any = SimpleNamespace(advice=[row], options=[], plan=None)
        text = write_sections(advice_content.sections(view, Options()), width).splitlines()

        assert text.index("   the code") <= 1 + MOST_LINES, text
        assert advice.rule in " ".join(text)


def test_more_advice_than_a_page_takes_is_counted() -> None:
    found = analyze()
    row = fusion(found.advice)
    found.advice = [row] * (ADVICE_ROWS + 3)

    section = str(found).split("\nAdvice\n")[1].split("\n\n")[0]

    assert section.count("fold the batch norm") == ADVICE_ROWS
    assert "3 more" in section


def test_names_from_a_model_are_made_visible_in_the_report() -> None:
    found = analyze()
    row = fusion(found.advice)
    found.advice = [AdviceRow.of(row | {"where": {"module": "a\x1b[31m", "ops": [], "weight": None}})]

    assert "\x1b" not in str(found)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("scores_bytes", 2048, "scores 2.00 KiB"),
        ("idle_share", 0.25, "idle share 25.0 %"),
        ("weight_share_of_bytes_moved", 0.5, "weight share of bytes moved 50.0 %"),
        ("idle_share_of_bytes", 0.25, "idle share of bytes 25.0 %"),
        ("thread_efficiency", 0.9, "thread efficiency 90.0 %"),
        ("float32_flops_per_s", 67e12, "float32 67.0 TFLOP/s"),
        ("link_bytes_per_s", 25e9, "link 25.0 GB/s"),
        ("requests_per_s", 1500.0, "requests 1.50 k/s"),
        ("small_ops_time_s", 8e-4, "small ops time 800 µs"),
        ("sqnr_db", 43.11, "sqnr 43.1 dB"),
        ("bytes_after", 1536, "bytes after 1.50 KiB"),
        ("params_saved", 61440, "params saved 61,440"),
        ("OMP_NUM_THREADS", "8", "OMP_NUM_THREADS 8"),
        ("scores_shape", [2, 4, 64], "scores shape 2×4×64"),
        ("sizes", [3, 5], "sizes 3, 5"),
        ("passes", list("abcdef"), "passes: 6"),
        ("converted", None, None),
    ],
)
def test_a_figure_is_shown_in_its_unit(name: str, value: object, text: str | None) -> None:
    assert figure_text(name, value) == text


MODEL = "from torch import nn\nNet = lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()\n"


@pytest.fixture
def target(tmp_path: Path) -> list[str]:
    (tmp_path / "net.py").write_text(MODEL)
    return ["analyze", f"{tmp_path / 'net.py'}:Net", "--input", "1x3x8x8", "--no-progress"]


def test_the_command_line_gives_advice_and_can_leave_it_out(
    target: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(target) == 0
    assert "conv-bn-fusion" in capsys.readouterr().out
    assert main([*target, "--no-advice"]) == 0
    assert "conv-bn-fusion" not in capsys.readouterr().out
    assert main([*target, "--silence", "conv-bn-fusion", "--silence", "channels-last"]) == 0
    assert "conv-bn-fusion" not in capsys.readouterr().out


def test_the_command_line_refuses_to_silence_what_is_no_rule(
    target: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*target, "--silence", "nonsense"]) == 2
    assert "no rule 'nonsense'" in capsys.readouterr().err


OWN_RULE = """\
from torchgauge.advise import Patch, Advice, Where, rule

@rule("own-rule-of-the-file", family="own")
def own(evidence):
    gain = evidence.share(evidence.forward).gain(0.1, 0.2, "said so")
    yield Advice("own-rule-of-the-file", Where(""), {}, "do it", None, gain, "none", "low")
"""


def test_a_rule_that_the_file_of_the_target_brings_can_be_silenced(tmp_path: Path) -> None:
    path = tmp_path / "own_rule_model.py"
    path.write_text(OWN_RULE + MODEL, encoding="utf-8")
    asked: dict[str, Any] = {"input_size": (1, 3, 8, 8), "progress": False}
    try:
        said = {row.rule for row in torchgauge.analyze(f"{path}:Net", silence=["conv-bn-fusion"], **asked).advice}
        del RULES["own-rule-of-the-file"]
        silent = {
            row.rule for row in torchgauge.analyze(f"{path}:Net", silence=["own-rule-of-the-file"], **asked).advice
        }
    finally:
        RULES.pop("own-rule-of-the-file", None)

    assert "own-rule-of-the-file" in said
    assert "conv-bn-fusion" not in said
    assert "own-rule-of-the-file" not in silent
    assert "conv-bn-fusion" in silent
