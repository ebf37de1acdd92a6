from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchgauge.source import packages as torchvision_ops
from torchgauge.source.packages import _suppress_non_maxima

# A torchvision without its extension, whose import asks for what the real one's import asks for.
PACKAGE = """
import torch
torch.library.register_fake("torchvision::nms", lambda dets, scores, iou_threshold: dets.new_empty(0))
torch.ops.torchvision.qnms
"""
SCRIPT = """
import importlib.util, sys, warnings
import torch
import torchgauge.source as ops

search_path, sys.path = sys.path, [p for p in sys.path if "site-packages" not in p and p != sys.argv[1]]
with warnings.catch_warnings():
    warnings.simplefilter("error")
    ops.ensure_torchvision_imports()
assert not ops.torchvision_ops_are_stubs(), "defined for a torchvision that is not installed"

sys.path = [sys.argv[1], *search_path]
with warnings.catch_warnings():
    warnings.simplefilter("error")
    with ops.torchvision_importable():
        import json
    assert not ops.torchvision_ops_are_stubs(), "defined although torchvision was not imported"
    with ops.torchvision_importable():
        importlib.util.find_spec("torchvision")

with warnings.catch_warnings():
    warnings.simplefilter("error")
    with ops.torchvision_importable():
        import torchvision
    ops.ensure_torchvision_imports()
assert ops.torchvision_ops_are_stubs()
boxes = torch.tensor([[0., 0., 2., 2.], [0., 0., 2., 2.], [5., 5., 6., 6.]])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        kept = torch.ops.torchvision.nms(boxes, torch.tensor([0.1, 0.9, 0.5]), 0.5)
(warning,) = caught
assert "Install the torchvision build that matches torch" in str(warning.message)
print(kept.tolist())
"""


def test_missing_operators_are_defined_when_torchvision_is_imported_and_the_first_call_warns(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(PACKAGE)
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (finished.stdout, finished.stderr) == ("[1, 2]\n", "")


def test_boxes_that_overlap_a_better_one_too_much_are_dropped() -> None:
    # The second overlaps the first by 2/3, the third by 1/7 (1 of 7), the fourth not at all; the last two are empty.
    boxes = torch.tensor(
        [[0, 0, 2, 2], [0, 0, 2, 3], [1, 1, 3, 3], [9, 9, 10, 10], [7, 7, 7, 7], [7, 7, 7, 7]], dtype=torch.float32
    )
    scores = torch.tensor([0.9, 0.8, 0.7, 0.95, 0.1, 0.1])
    assert _suppress_non_maxima(boxes, scores, 0.5).tolist() == [3, 0, 2, 4, 5]
    assert _suppress_non_maxima(boxes, scores, 0.1).tolist() == [3, 0, 4, 5]
    assert _suppress_non_maxima(boxes, scores, 0.7).tolist() == [3, 0, 1, 2, 4, 5]


def test_suppression_of_no_boxes_returns_none() -> None:
    assert _suppress_non_maxima(torch.zeros(0, 4), torch.zeros(0), 0.5).tolist() == []


def test_it_agrees_with_torchvisions_own_kernel_where_that_loads() -> None:
    ops = pytest.importorskip("torchvision.ops")
    if not pytest.importorskip("torchvision.extension")._has_ops():
        pytest.skip("torchvision's extension does not load with this torch")
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(200, 2, generator=generator) * 10
    boxes = torch.cat([corners, corners + torch.rand(200, 2, generator=generator) * 5], dim=1)
    scores = torch.rand(200, generator=generator)
    assert _suppress_non_maxima(boxes, scores, 0.4).tolist() == ops.nms(boxes, scores, 0.4).tolist()


@pytest.mark.parametrize("name", ["_C.so", "_C_stable.so", "_C.cpython-311-x86_64-linux-gnu.so"])
def test_the_extension_is_found_by_each_of_its_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    monkeypatch.setattr(torchvision_ops, "_is_defined", lambda: bool(loaded))
    (tmp_path / "image.so").touch()
    assert not torchvision_ops._extension_loads(tmp_path)

    (tmp_path / name).touch()
    assert torchvision_ops._extension_loads(tmp_path)
    assert loaded == [str(tmp_path / name)]
