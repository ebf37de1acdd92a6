"""Optional packages, imported on demand; torchvision even if its compiled extension does not match torch.

The common case is a CUDA build of torchvision with a CPU build of torch: the extension does not load, and importing
torchvision (or timm, which needs it) fails with "operator torchvision::nms does not exist". If the two schemas that
its import needs are defined here, everything but the compiled operators works. Non-maximum suppression gets a kernel in
plain PyTorch, because every detection model calls it; torchvision has its own fallback for RoI align. Its first call
warns: models that only import torchvision need none of this.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from torchgauge.errors import MissingDependencyError, TargetError
from torchgauge.isolation import is_isolated
from torchgauge.registry import collector_paused


def import_optional(package: str, purpose: str) -> ModuleType:
    """The package; `purpose` is named in the error if it is missing ("a timm: target")."""
    try:
        # Imported objects stay alive: garbage collection would take a fifth of the import of transformers.
        with torchvision_importable(), collector_paused():
            return import_module(package)
    except ModuleNotFoundError as error:
        missing = error.name or package
        raise MissingDependencyError(missing.partition(".")[0], purpose) from error
    except PermissionError as error:
        if is_isolated():
            from torchgauge.isolation import NeedsPackageError

            raise NeedsPackageError(package) from error
        raise TargetError(f"the package '{package}' is installed but does not import: {error}") from error
    except (ImportError, OSError, RuntimeError) as error:
        raise TargetError(f"the package '{package}' is installed but does not import: {error}") from error


_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_WARNING = (
    "torchvision's compiled operators do not load with this torch: non-maximum suppression runs in plain PyTorch, "
    "others (deformable convolution, RoI pooling) cannot run. Install the torchvision build that matches torch."
)

_SUFFIXES = (*EXTENSION_SUFFIXES, ".so", ".dylib", ".pyd", ".dll")

_BLOCK = 512  # boxes compared with all others at a time: bounds the memory

# A torch.library.Library removes its definitions when it is garbage-collected.
_library: torch.library.Library | None = None
_has_warned = False


def torchvision_ops_are_stubs() -> bool:
    """Whether torchvision's operators were defined here because its extension does not load."""
    return _library is not None


def ensure_torchvision_imports() -> None:
    """Make `import torchvision` work; does nothing if it works anyway or torchvision is not installed."""
    _define_missing_operators()


@contextmanager
def torchvision_importable() -> Iterator[None]:
    """Inside, torchvision can be imported."""
    finder = _DefineBeforeImport()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        if "torchvision" in sys.modules:
            # Let torchvision call our kernel: its own guard checks for the extension, not for the operator.
            boxes = sys.modules.get("torchvision.ops.boxes")
            if torchvision_ops_are_stubs() and boxes is not None:
                boxes.__dict__["_assert_has_ops"] = _is_defined


class _DefineBeforeImport(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        # Called before the import.
        if fullname == "torchvision":
            _define_missing_operators()
        if fullname != "torchvision.ops.roi_align" or "torch._dynamo" in sys.modules:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _WithoutDynamo(spec.loader)
        return spec


class _WithoutDynamo(Loader):
    """torchvision imports all of torch._dynamo, which takes a second, for one function that it calls when RoI align is
    compiled: here that call imports it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        def is_compile_supported(device_type: str) -> bool:
            from torch._dynamo import utils

            return bool(utils.is_compile_supported(device_type))

        package, utils = ModuleType("torch._dynamo"), ModuleType("torch._dynamo.utils")
        vars(utils)["is_compile_supported"] = is_compile_supported
        stand_ins = {stand_in.__name__: stand_in for stand_in in (package, utils)}
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        sys.modules.update(stand_ins)
        try:
            self._loader.exec_module(module)
            return
        except (ImportError, AttributeError):
            pass  # another version of torchvision needs more of it
        finally:
            for name in stand_ins:
                del sys.modules[name]
        self._loader.exec_module(module)


def _define_missing_operators() -> None:
    global _library
    spec = PathFinder.find_spec("torchvision")
    if spec is None or spec.origin is None or _is_defined() or _extension_loads(Path(spec.origin).parent):
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    library.impl("nms", _suppress_non_maxima, "CPU")
    _library = library


def _warn_once() -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        warnings.warn(_WARNING, RuntimeWarning, stacklevel=3)


def _is_defined() -> bool:
    return hasattr(torch.ops.torchvision, "nms")


def _extension_loads(folder: Path) -> bool:
    """Tries every name that the extension has had (`_C`, `_C_stable`), because defining an operator twice would abort
    the process."""
    # Windows searches for linked libraries only in registered folders.
    add_folder = getattr(os, "add_dll_directory", nullcontext)
    for library in sorted(path for path in folder.glob("_C*") if path.name.endswith(_SUFFIXES)):
        try:
            with add_folder(str(folder)):
                torch.ops.load_library(str(library))
        except OSError:
            continue
        if _is_defined():
            return True
    return False


def _suppress_non_maxima(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Indices of the boxes (x1, y1, x2, y2) that no higher-scored kept box overlaps by more than the threshold."""
    _warn_once()
    order = scores.argsort(descending=True, stable=True)
    boxes = dets[order]
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
    alive = torch.ones(len(boxes), dtype=torch.bool)
    for start in range(0, len(boxes), _BLOCK):
        block = slice(start, start + _BLOCK)
        corners = torch.maximum(boxes[block, None, :2], boxes[None, :, :2])
        shared = (torch.minimum(boxes[block, None, 2:], boxes[None, :, 2:]) - corners).clamp(min=0).prod(dim=2)
        # Intersection over union; NaN, which exceeds no threshold, for two empty boxes.
        clashes = shared / (areas[block, None] + areas - shared) > iou_threshold
        for index, clash in enumerate(clashes, start + 1):
            if alive[index - 1]:
                alive[index:] &= ~clash[index:]
    return order[alive]
