"""A driver library that answers as NVML does: through pointers, with a status."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

SUCCESS, NOT_SUPPORTED, NOT_FOUND, DRIVER_NOT_LOADED = 0, 3, 6, 9
_TEXTS = {NOT_SUPPORTED: b"Not Supported", NOT_FOUND: b"Not Found", DRIVER_NOT_LOADED: b"Driver Not Loaded"}
UUID = "6b1b5a4e-0000-1111-2222-333344445555"
PLACE = "00000000:3b:00.0"


class ErrorString:
    restype: Any = None

    def __call__(self, code: int) -> bytes | None:
        return _TEXTS.get(code)


class FakeNvml:
    """`values` maps a function's name to the fields it fills in; a function without an entry is not supported, one in
    `lacking` is not in the library at all."""

    def __init__(
        self, values: dict[str, dict[str, int]], *, start: int = SUCCESS, known: str = f"GPU-{UUID}", lacking: str = ""
    ) -> None:
        self.values, self.start, self.known, self.lacking = values, start, known, lacking
        self.opened = 0
        self.asked: list[tuple[Any, ...]] = []
        self.nvmlErrorString = ErrorString()

    def nvmlInit_v2(self) -> int:  # noqa: N802
        self.opened += self.start == SUCCESS
        return self.start

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.opened -= 1
        return SUCCESS

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802
        return self._found(uuid, handle)

    def nvmlDeviceGetHandleByPciBusId_v2(self, place: bytes, handle: Any) -> int:  # noqa: N802
        return self._found(place, handle)

    def _found(self, name: bytes, handle: Any) -> int:
        if name.decode() != self.known:
            return NOT_FOUND
        handle._obj.value = 0xABC
        return SUCCESS

    def nvmlDeviceGetName(self, handle: Any, text: Any, length: int) -> int:  # noqa: N802
        text.value = b"NVIDIA Test"[: length - 1]
        return SUCCESS

    def __getattr__(self, function: str) -> Callable[..., int]:
        if function == self.lacking or not function.startswith("nvml"):
            raise AttributeError(function)
        return lambda *args: self._fill(function, *args)

    def _fill(self, function: str, handle: ctypes.c_void_p, *args: Any) -> int:
        assert handle.value == 0xABC
        self.asked.append((function, *(arg.value for arg in args[:-1])))
        fields = self.values.get(function)
        if fields is None:
            return NOT_SUPPORTED
        for name, value in fields.items():
            setattr(args[-1]._obj, name, value)
        return SUCCESS


BUSY = {
    "nvmlDeviceGetUtilizationRates": {"gpu": 97, "memory": 41},
    "nvmlDeviceGetMemoryInfo": {"total": 8 * 2**30, "free": 5 * 2**30, "used": 3 * 2**30},
    "nvmlDeviceGetClockInfo": {"value": 1980},
    "nvmlDeviceGetTemperature": {"value": 54},
    "nvmlDeviceGetPowerUsage": {"value": 651_250},
    "nvmlDeviceGetEnforcedPowerLimit": {"value": 700_000},
    "nvmlDeviceGetTotalEnergyConsumption": {"value": 5_000_000_123},
    "nvmlDeviceGetCurrentClocksThrottleReasons": {"value": 0x4 | 0x20},
    "nvmlDeviceGetFieldValues": {"value": 702_500, "status": 0},
}
