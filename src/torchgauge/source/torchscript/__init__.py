"""TorchScript archives: scanned before torch reads them, because reading one may run its code."""

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.source.torchscript.archive import load_torchscript, with_prefixed_storages
    from torchgauge.source.torchscript.code import scan_code

__all__ = ["load_torchscript", "scan_code", "with_prefixed_storages"]

__getattr__ = lazy_names(__name__)
