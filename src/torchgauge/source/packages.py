"""Packages a target may need, imported when it does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from torchgauge.errors import MissingDependencyError, TargetError
from torchgauge.isolation import is_isolated
from torchgauge.lazy import collector_paused
from torchgauge.source.torchvision_ops import torchvision_importable


def import_optional(package: str, purpose: str) -> ModuleType:
    """The package; `purpose` begins the message where it is missing ("timm: targets")."""
    try:
        # What an import makes stays: searching it for garbage takes a fifth of the import of transformers.
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


@contextmanager
def pretended_absent(*packages: str) -> Iterator[None]:
    """Inside, packages that nothing has imported yet look as if they were not installed. For processes that end with
    their task only: a library may remember what it found."""
    hidden = {name: None for name in packages if name not in sys.modules}
    sys.modules.update(hidden)  # type: ignore[arg-type]  # None is how the import system marks an absent module
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
