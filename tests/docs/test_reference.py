"""Lists in the documentation are those of the code: options, columns, rules, environment variables, formats, keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchgauge as tg
from tests.compiled.models import WIDTH, Prints
from tests.docs.tables import generated, regenerate, subparsers
from tests.docs.test_blocks import PAGES, ROOT
from torchgauge.advise import RULES, load_rules
from torchgauge.report import ANALYSIS, OTHERS, SCAN
from torchgauge.verify import no_plan

DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "torchgauge"
TABLED = [name for name, page in PAGES.items() if any(generated(page))]


@pytest.mark.parametrize("name", TABLED)
def test_a_generated_table_says_what_the_code_says(name: str, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--regenerate"):
        regenerate(PAGES[name])
    for table, shown, true in generated(PAGES[name]):
        assert shown == true, f"{table}: pytest tests/docs --regenerate"


def test_every_command_has_a_page_with_its_options() -> None:
    pages = {page.stem: page for page in (DOCS / "commands").glob("*.md")}
    assert set(pages) == set(subparsers())
    assert all(f"options {command}" in [name for name, *_ in generated(page)] for command, page in pages.items())


def test_every_rule_is_on_the_page_about_advice() -> None:
    load_rules()
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| [^|]+ \|$", _text("advice.md"), re.MULTILINE)
    assert len(rows) == len(dict(rows))
    assert {name: family.strip() for name, family in rows} == {name: rule.family for name, rule in RULES.items()}


def test_every_environment_variable_that_the_code_reads_is_listed() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    own = set(re.findall(r"TORCHGAUGE_[A-Z_]+", code))
    asked = set(re.findall(r"environ\.get\(\s*\"([A-Z_]+)\"", code)) - {"PROCESSOR_IDENTIFIER"}
    listed = set(re.findall(r"^\| `([A-Z_]+)` \|", _text("troubleshooting.md"), re.MULTILINE))
    assert own | asked <= listed
    # rich is who reads NO_COLOR.
    assert listed - own - asked == {"NO_COLOR"}


def test_every_result_has_its_table_of_formats() -> None:
    tables = {name for name, *_ in generated(DOCS / "formats.md")}
    assert tables == {f"formats {result}" for result in (ANALYSIS, SCAN, *OTHERS)}


def test_every_extra_is_listed() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    listed = set(re.findall(r"^\| `torchgauge\[([a-z]+)\]` \|", _text("platforms.md"), re.MULTILINE))
    assert listed == set(extras) - {"dev", "docs"}


def test_every_key_of_a_document_is_described(documents: list[dict[str, Any]]) -> None:
    tables = re.findall(r"<!-- keys: (\w+) -->\n(.*?)\n\n", _text("json.md") + "\n\n", re.DOTALL)
    listed = {name: set(re.findall(r"`([^`]+)`", _first_cells(table))) for name, table in tables}
    assert set(listed) == set(PLACES)
    for name, place in PLACES.items():
        found = {key for document in documents for row in _rows(document, place) for key in row}
        assert listed[name] == found, name


def test_every_member_of_a_document_that_is_an_object_has_a_table(documents: list[dict[str, Any]]) -> None:
    members = {name for document in documents for name in document if next(_rows(document, (name,)), None)}
    # These are described in the line that names them.
    named = {"tool", "architecture", "trace", "options", "expected_times"}
    assert members - {place[-1] for place in PLACES.values() if place} == named


class Checkpointed(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return result


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor, steps: int) -> torch.Tensor:
        if not self.seen:
            self.seen.append(torch.ones(3))
        for _ in range(steps):
            self.seen.append(x * 2)
        return x + 1


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Everything that can be asked for, of a small model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)).eval()
    size = (1, 3, 8, 8)
    brief: dict[str, Any] = {"budget_s": 0.05, "threads": 1}
    folder = tmp_path_factory.mktemp("checkpoints")
    torch.save(model.state_dict(), folder / "a.pt")
    torch.save(nn.Linear(4, 4).state_dict(), folder / "b.pt")
    with pytest.MonkeyPatch.context() as patch:  # tests calibrate nothing, and write nothing to the user's cache
        patch.setattr("torchgauge.analysis.measurement.ensure_roof", lambda device, progress: [])
        whole = tg.analyze(
            model, input_size=size, profile=True, sweep={"batch": [1]}, weights=True, spectrum=True, **brief
        )
    step = tg.analyze(model, input_size=(2, *size[1:]), mode="train", inference=True, **brief)
    scan = tg.scan_weights(folder / "a.pt", against=folder / "b.pt")
    torch.save({"epoch": 1, "model": nn.Linear(4, 4).state_dict()}, folder / "c.pt")
    torch.save({"fc.lora_A.weight": torch.ones(2, 4), "fc.lora_B.weight": torch.ones(4, 2)}, folder / "d.pt")
    files = [tg.scan_weights(folder / name).to_dict() for name in ("c.pt", "d.pt")]
    files.append(tg.analyze(Prints(), input_size=(2, WIDTH), execution="compiled", advice=False).to_dict())
    quantized = nn.Linear(4, 4, bias=False).to(torch.float8_e4m3fn).requires_grad_(False)
    quantized.__dict__["forward"] = lambda x: x @ quantized.weight.float()
    files.append(tg.analyze(quantized, input_size=(2, 4)).to_dict())
    files.append(tg.analyze(Growing(), inputs=(torch.ones(2, 4), 8)).to_dict())
    files.append(tg.analyze(Checkpointed(), input_size=(2, 4), mode="train").to_dict())
    return [whole.to_dict(), step.to_dict(), scan.to_dict(), *files, _verified(), {"plan": no_plan("interrupted")}]


def _verified() -> dict[str, Any]:
    """Advice for memory, which holds however busy the machine is."""
    model = nn.Linear(8, 8)
    model.spare = nn.Linear(8, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHGAUGE_VERIFY_BUDGET", "0.01")
        found = tg.analyze(model, input_size=(2, 8), verify=True).to_dict()
    assert [row["verified"]["kept"] for row in found["advice"] if row["rule"] == "unused-parameters"] == [True]
    return found


# Where the objects of a table are in a document.
PLACES: dict[str, tuple[str, ...]] = {
    "document": (),
    **{
        name: (name,)
        for name in ("environment", "target", "inputs", "capture", "totals", "modules", "ops", "parameters", "weights",
                     "weight_summary", "weight_ops", "against", "pickle", "training", "adapter", "measurements",
                     "energy", "advice", "plan", "quantization")
    },
    "latency": ("measurements", "latency"),
    "verified": ("advice", "verified"),
    "time": ("advice", "verified", "time"),
    "sweep": ("measurements", "sweep"),
    "step": ("capture", "step"),
    "compiled": ("compiled",),
    **{name: ("compiled", name) for name in ("graphs", "breaks", "kernels")},
    "dequantize": ("quantization", "dequantize"),
}  # fmt: skip


def _rows(value: Any, place: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The objects at a place: itself, or those of a list."""
    if isinstance(value, list):
        for item in value:
            yield from _rows(item, place)
    elif isinstance(value, dict) and place:
        yield from _rows(value.get(place[0]), place[1:])
    elif isinstance(value, dict):
        yield value


def _first_cells(table: str) -> str:
    return "\n".join(line.split(" | ")[0] for line in table.splitlines()[2:])


def _text(page: str) -> str:
    return Path(DOCS / page).read_text(encoding="utf-8")
