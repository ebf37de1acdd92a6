"""Packages a target may need, imported when it does."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from torchgauge.errors import MissingDependencyError, TargetError
from torchgauge.isolation import is_isolated
from torchgauge.source.torchvision_ops import torchvision_importable


def import_optional(package: str, purpose: str) -> ModuleType:
    """The package; `purpose` begins the message where it is missing ("timm: targets")."""
    try:
        with torchvision_importable():
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
