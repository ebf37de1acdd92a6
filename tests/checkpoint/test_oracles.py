"""What the public scanners flag in the corpus, we flag too."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.checkpoint.malicious import CORPUS
from torchgauge.checkpoint import Verdict, open_checkpoint
from torchgauge.errors import FormatError


def is_flagged(path: Path) -> bool:
    try:
        imports = open_checkpoint(path).imports
    except FormatError as error:
        imports = error.imports
    return any(found.verdict is Verdict.DANGEROUS for found in imports)


@pytest.mark.parametrize("name", CORPUS)
def test_whatever_picklescan_flags_is_flagged(tmp_path: Path, name: str) -> None:
    scanner = pytest.importorskip("picklescan.scanner")
    body = CORPUS[name](str(tmp_path / "canary"))
    (tmp_path / "m.pkl").write_bytes(body)
    theirs = scanner.scan_pickle_bytes(io.BytesIO(body), "m.pkl")
    assert is_flagged(tmp_path / "m.pkl") or theirs.issues_count == 0
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("name", CORPUS)
def test_whatever_fickling_calls_overtly_malicious_is_flagged(tmp_path: Path, name: str) -> None:
    fickle = pytest.importorskip("fickling.fickle")
    analysis = pytest.importorskip("fickling.analysis")
    body = CORPUS[name](str(tmp_path / "canary"))
    (tmp_path / "m.pkl").write_bytes(body)
    try:
        severity = analysis.check_safety(fickle.Pickled.load(body)).severity
    except Exception as error:  # it gives up on some tricks in its own ways; that is no verdict
        pytest.skip(f"fickling gives no verdict: {error!r:.80}")
    assert is_flagged(tmp_path / "m.pkl") or severity < analysis.Severity.LIKELY_OVERTLY_MALICIOUS
    assert not (tmp_path / "canary").exists()
