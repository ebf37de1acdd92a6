"""Attacks on what torchgauge does with exported programs and TorchScript: none of them runs anything.

Half of them were written before the guards were looked at, the other half (`HELD_BACK`) was not run until they were
built.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.attacks import exported_names, exported_operators, scripted_attacks
from tests.attacks.archives import CANARY, Attack, exported, packed, scripted
from tests.attacks.opening import ENVIRONMENT, MEASURED, STATIC, WAYS

ROOT = Path(__file__).resolve().parents[2]
SEARCHED = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
ATTACKS: dict[str, Attack] = {
    f"{kind}-{number:03}{suffix}": attack
    for kind, suffix, halves in (
        ("operators", ".pt2", (exported_operators.SEEN, exported_operators.HELD_BACK)),
        ("names", ".pt2", (exported_names.SEEN, exported_names.HELD_BACK)),
        ("scripts", ".pt", (scripted_attacks.SEEN, scripted_attacks.HELD_BACK)),
    )
    for number, attack in enumerate(attack for half in halves for attack in half.values())
}


def in_another_process(folder: Path, attacks: dict[str, Attack], ways: dict[str, list[str]]) -> dict[str, Any]:
    """The outcomes of the attacks, and the calls that a tracer of the interpreter saw."""
    folder.mkdir()
    honest = {
        "honest.pt2": packed(exported()),
        "honest-straight.pt2": packed(exported(straight=True)),
        "honest.pt": packed(scripted()),
    }
    for name, content in (honest | {name: packed(attack()) for name, attack in attacks.items()}).items():
        (folder / name).write_bytes(content)
    used = [way for way in WAYS if any(way in several for several in ways.values())]
    (folder / "plan.json").write_text(json.dumps(ways | dict.fromkeys(honest, used)))
    # Without a compiler: what torch.compile makes of a model is slow, and is tried where advice is.
    environment = os.environ | ENVIRONMENT | {"CXX": "none", "PATH": "", "PYTHONPATH": SEARCHED}
    environment["TORCHGAUGE_CACHE"] = f"{folder}-cache"
    command = [sys.executable, "-m", "tests.attacks.audited", str(folder)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def executions(report: dict[str, Any]) -> dict[str, Any]:
    return {name: row for name, row in report.items() if row["events"] or row["files"] or row["marked"]}


def test_the_corpus_is_large_and_no_attack_is_honest() -> None:
    assert len(ATTACKS) >= 60
    plain = exported(), exported(straight=True), scripted()
    assert not [name for name, attack in ATTACKS.items() if attack() in plain]


def test_no_attack_runs_anything(tmp_path: Path) -> None:
    """Each attack in one way without real runs and in one with them; together they go all ways."""
    ways = {name: [*pair] for name, pair in zip(ATTACKS, zip(cycle(STATIC), cycle(MEASURED)), strict=False)}
    report = in_another_process(tmp_path / "attacks", ATTACKS, ways)
    assert executions(report) == {}
    honest = [row["outcomes"] for name, row in report.items() if name.startswith("honest")]
    # What is loaded is a saved report.
    refused = {way for outcomes in honest for way, outcome in outcomes.items() if outcome not in ("exit 0", "done")}
    assert refused == {"tg.load"}


@pytest.mark.slow
def test_no_attack_runs_anything_in_any_way(tmp_path: Path) -> None:
    report = in_another_process(tmp_path / "attacks", ATTACKS, {name: list(WAYS) for name in ATTACKS})
    assert executions(report) == {}


def test_the_tracer_and_the_canaries_see_what_runs(tmp_path: Path) -> None:
    """Else the tests above prove nothing: a pickle that runs leaves its file and its event."""
    script = (
        "import json, os, pickle, sys\n"
        "from pathlib import Path\n"
        "from tests.attacks import audited, archives\n"
        "def opened(path, way):\n"
        "    if path.name.startswith('honest'): return ''\n"
        "    exec(archives.PAYLOAD); pickle.loads(archives.pickled())\n"
        "    os.system('true'); audited.torch.ops.aten.erfinv.canary = 1\n"
        "    return ''\n"
        "audited.opened = opened\n"
        "audited.main(Path(sys.argv[1]))\n"
    )
    (tmp_path / "plan.json").write_text(json.dumps({"honest": ["way"], "file": ["way"]}))
    environment = os.environ | {
        "TORCHGAUGE_CACHE": "nowhere",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT))),
    }
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment, cwd=ROOT, check=True)
    row = json.loads((tmp_path / "report.json").read_text())["file"]
    assert (row["files"], row["marked"]) == ([CANARY], ["erfinv"])
    assert {"compile", "exec", "pickle.find_class", "os.system", "open for writing"} <= {
        kind for kind, _ in row["events"]
    }
