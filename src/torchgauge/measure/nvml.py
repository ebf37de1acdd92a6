"""NVIDIA's management library: the current state of a device, in base units.

Called through ctypes: the library is part of the driver, so no Python package is needed. A figure that the device does
not offer is an `Absent` with NVML's own reason. Names and units are those of the NVML API reference.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torchgauge.measure.absence import Absent

Out = TypeVar("Out", bound="ctypes._CData")

# The bits of nvmlDeviceGetCurrentClocksThrottleReasons.
THROTTLE_REASONS = {
    0x001: "idle",
    0x002: "application_clocks",
    0x004: "power_cap",
    0x008: "hardware_slowdown",
    0x010: "sync_boost",
    0x020: "thermal_software",
    0x040: "thermal_hardware",
    0x080: "power_brake",
    0x100: "display_clocks",
}
_SUCCESS = 0
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_SENSOR_GPU = 0
_FIELD_POWER_INSTANT = 186
_NAME_BYTES = 96


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Field(ctypes.Structure):
    """nvmlFieldValue_t; the values asked for here are unsigned ints, the first bytes of its union."""

    _fields_ = [
        ("id", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("kind", ctypes.c_int),
        ("status", ctypes.c_int),
        ("value", ctypes.c_uint),
        ("rest", ctypes.c_uint),
    ]


class Device:
    """One device. Every call is a new reading."""

    def __init__(self, library: Any, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle

    def name(self) -> str | Absent:
        text = ctypes.create_string_buffer(_NAME_BYTES)
        code = self._library.nvmlDeviceGetName(self._handle, text, _NAME_BYTES)
        return text.value.decode() if code == _SUCCESS else _refusal(self._library, code)

    def busy_share(self) -> float | Absent:
        """The share of the last period (1/6 s to 1 s, by product) in which a kernel ran."""
        found = self._ask("nvmlDeviceGetUtilizationRates", _Utilization())
        return found if isinstance(found, Absent) else found.gpu / 100

    def memory_busy_share(self) -> float | Absent:
        """The share of the last period in which device memory was read or written."""
        found = self._ask("nvmlDeviceGetUtilizationRates", _Utilization())
        return found if isinstance(found, Absent) else found.memory / 100

    def memory_used_bytes(self) -> float | Absent:
        """By all processes, including memory that the driver reserves."""
        found = self._ask("nvmlDeviceGetMemoryInfo", _Memory())
        return found if isinstance(found, Absent) else float(found.used)

    def sm_clock_hz(self) -> float | Absent:
        return self._number("nvmlDeviceGetClockInfo", ctypes.c_uint(), 1e6, ctypes.c_int(_CLOCK_SM))

    def memory_clock_hz(self) -> float | Absent:
        return self._number("nvmlDeviceGetClockInfo", ctypes.c_uint(), 1e6, ctypes.c_int(_CLOCK_MEMORY))

    def temperature_c(self) -> float | Absent:
        return self._number("nvmlDeviceGetTemperature", ctypes.c_uint(), 1.0, ctypes.c_int(_SENSOR_GPU))

    def power_w(self) -> float | Absent:
        """The mean over the last second from Ampere on (except GA100); before that the present power."""
        return self._number("nvmlDeviceGetPowerUsage", ctypes.c_uint(), 1e-3)

    def power_instant_w(self) -> float | Absent:
        field = _Field(id=_FIELD_POWER_INSTANT)
        found = self._ask("nvmlDeviceGetFieldValues", field, ctypes.c_int(1))
        if isinstance(found, Absent):
            return found
        return found.value * 1e-3 if found.status == _SUCCESS else _refusal(self._library, found.status)

    def power_limit_w(self) -> float | Absent:
        return self._number("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint(), 1e-3)

    def energy_j(self) -> float | Absent:
        """Since the driver was loaded; from Volta on."""
        return self._number("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong(), 1e-3)

    def throttle_reasons(self) -> frozenset[str] | Absent:
        """Why the clocks are below their maximum now."""
        found = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong())
        if isinstance(found, Absent):
            return found
        return frozenset(name for bit, name in THROTTLE_REASONS.items() if found.value & bit)

    def _number(self, function: str, out: Any, scale: float, *args: Any) -> float | Absent:
        found = self._ask(function, out, *args)
        return found if isinstance(found, Absent) else found.value * scale

    def _ask(self, function: str, out: Out, *args: Any) -> Out | Absent:
        call = getattr(self._library, function, None)
        if call is None:
            return Absent(f"this driver is too old: it has no {function}")
        code = call(self._handle, *args, ctypes.byref(out))
        return out if code == _SUCCESS else _refusal(self._library, code)


@contextmanager
def opened(uuid: str, pci_bus_id: str, load: Callable[[], Any] | None = None) -> Iterator[Device | Absent]:
    """The device with this UUID (as CUDA writes it), or else at this place on the bus: NVML knows nothing of
    CUDA_VISIBLE_DEVICES, so its numbers are not torch's."""
    try:
        library = load() if load else ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        yield Absent("NVIDIA's driver library (NVML) is not installed")
        return
    code = library.nvmlInit_v2()
    if code != _SUCCESS:
        yield _refusal(library, code)
        return
    try:
        handle = ctypes.c_void_p()
        tries = [(library.nvmlDeviceGetHandleByUUID, prefix + uuid) for prefix in ("GPU-", "MIG-")]
        tries += [(library.nvmlDeviceGetHandleByPciBusId_v2, pci_bus_id)] if pci_bus_id else []
        for find, name in tries:
            code = find(name.encode(), ctypes.byref(handle))
            if code == _SUCCESS:
                break
        yield Device(library, handle) if code == _SUCCESS else _refusal(library, code)
    finally:
        library.nvmlShutdown()


def _refusal(library: Any, code: int) -> Absent:
    library.nvmlErrorString.restype = ctypes.c_char_p
    text = library.nvmlErrorString(code)
    return Absent(f"NVML: {text.decode() if text else f'error {code}'}")
