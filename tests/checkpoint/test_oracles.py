"""What the public scanners flag in the corpus, we flag too."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.checkpoint.malicious import CORPUS, legacy_file, torch_archive
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


def files_with(body: bytes) -> dict[str, bytes]:
    """The file formats that the scanner opens, with the pickle in them; the last under a suffix that lies."""
    return {
        "archive.pt": torch_archive(body),
        "second.pt": torch_archive(b"\x80\x04}.", **{"more.pkl": body}),
        "legacy.pth": legacy_file(body),
        "photo.bin": body,
    }


@pytest.mark.parametrize("name", CORPUS)
def test_whatever_picklescan_flags_in_a_file_is_flagged(tmp_path: Path, name: str) -> None:
    scanner = pytest.importorskip("picklescan.scanner")
    for file, content in files_with(CORPUS[name](str(tmp_path / "canary"))).items():
        (tmp_path / file).write_bytes(content)
        theirs = scanner.scan_file_path(str(tmp_path / file))
        assert is_flagged(tmp_path / file) or theirs.issues_count == 0, file
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("name", CORPUS)
def test_whatever_fickling_calls_overtly_malicious_is_flagged(tmp_path: Path, name: str) -> None:
    fickle = pytest.importorskip("fickling.fickle")
    analysis = pytest.importorskip("fickling.analysis")
    body = CORPUS[name](str(tmp_path / "canary"))
    (tmp_path / "m.pkl").write_bytes(body)
    try:
        severity = analysis.check_safety(fickle.Pickled.load(body)).severity
    except Exception as error:  # it gives up on some tricks in its own ways; that is not a verdict
        pytest.skip(f"fickling gives no verdict: {error!r:.80}")
    assert is_flagged(tmp_path / "m.pkl") or severity < analysis.Severity.LIKELY_OVERTLY_MALICIOUS
    assert not (tmp_path / "canary").exists()
