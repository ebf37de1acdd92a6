"""TorchScript archives: scanned before torch reads them, because reading one may run its code."""

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.source.torchscript.archive import *
    from torchgauge.source.torchscript.code import *

_HOMES = {
    "archive": ("load_torchscript", "with_prefixed_storages"),
    "code": ("scan_code",),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
