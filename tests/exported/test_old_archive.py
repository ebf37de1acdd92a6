"""An archive that PyTorch 2.6 wrote: no folder in it, weights and constants as separate torch files.

The model: c = Conv2d(3, 8, 3), b = BatchNorm2d(8), l = Linear(8, 10), and k, a buffer of eight ones;
l(b(c(x)).relu().mean((2, 3)) * k + [1, …, 8]) of an x of 2×3×16×16.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import torchgauge as tg
from torchgauge.source import load_exported

OLD = Path(__file__).parents[1] / "data" / "exported" / "torch26.pt2"
CONV, LINEAR = 2 * 8 * 14 * 14 * 27, 2 * 8 * 10


def test_its_graph_is_read_and_its_modules_have_their_paths() -> None:
    found = tg.analyze(OLD)

    assert {row.path: row.macs for row in found.modules} == {"": CONV + LINEAR, "c": CONV, "b": 0, "l": LINEAR}
    assert found.totals.params == 224 + 16 + 90
    assert found.to_dict()["inputs"][0]["shape"] == [2, 3, 16, 16]


def test_it_is_run_with_its_own_values() -> None:
    found = tg.analyze(OLD, inference=True, budget_s=0.2, progress=False)

    assert found.measurements is not None
    assert found.measurements["failure"] is None
    assert found.measurements["latency"]["median_s"] > 0
    assert "random weights" not in found.measurements["notes"]


def test_a_program_without_json_is_reported(tmp_path: Path) -> None:
    changed = tmp_path / "changed.pt2"
    with zipfile.ZipFile(OLD) as old, zipfile.ZipFile(changed, "w") as new:
        for record in old.namelist():
            new.writestr(record, b"{" if record.endswith(".json") else old.read(record))

    with pytest.raises(tg.FormatError, match=r"serialized_exported_program\.json: invalid JSON"):
        load_exported(changed)
