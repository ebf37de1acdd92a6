"""Kernels of this machine, as `torchgauge system --calibrate` measured them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.errors import InputError

if TYPE_CHECKING:
    from torchgauge.predict.devices import Device
    from torchgauge.predict.time import Profile


def present_profile(name: str) -> tuple[Profile, Device | None]:
    raise InputError(f"'{name}' was not measured yet: run 'torchgauge system --calibrate'")
