"""Raw events that count floating-point work, for the processors whose codes are known.

Codes: the kernel's own tables, tools/perf/pmu-events/arch/x86 (floating-point.json of each processor, mapfile.csv for
the models), which come from Intel's perfmon repository and AMD's processor programming references.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchgauge.measure.absence import Absent
from torchgauge.measure.perf_events import RAW, Event

_CPUINFO = Path("/proc/cpuinfo")
# The first processor's entry, with its long line of flags.
_CPUINFO_BYTES = 16384

# Family 6: Broadwell, Skylake, Cascade Lake, Ice Lake, Tiger and Rocket Lake, Sapphire, Emerald and Granite Rapids.
_INTEL_MODELS = frozenset({
    0x3D, 0x47, 0x4F, 0x56, 0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6, 0x55, 0x6A, 0x6C, 0x7D, 0x7E, 0x8C, 0x8D, 0xA7, 0x8F,
    0xCF, 0xAD, 0xAE,
})  # fmt: skip
# FP_ARITH_INST_RETIRED (0xC7): mask -> name, width in bits (0: scalar), operations per count; a fused multiply-add
# counts twice.
_INTEL = {
    0x01: ("scalar_double", 0, 1), 0x02: ("scalar_single", 0, 1),
    0x04: ("128_double", 128, 2), 0x08: ("128_single", 128, 4),
    0x10: ("256_double", 256, 4), 0x20: ("256_single", 256, 8),
    0x40: ("512_double", 512, 8), 0x80: ("512_single", 512, 16),
}  # fmt: skip
# FP_ARITH_INST_RETIRED2 (0xCF), where AVX512-FP16 is.
_INTEL_HALF = {
    0x01: ("scalar_half", 0, 1), 0x04: ("128_half", 128, 8), 0x08: ("256_half", 256, 16), 0x10: ("512_half", 512, 32)
}  # fmt: skip
# fp_ops_retired_by_width (0x08) of Zen 4 and 5 counts instructions: how wide, not how much.
_AMD_WIDTHS = {0x04: ("scalar", 0), 0x08: ("128", 128), 0x10: ("256", 256), 0x20: ("512", 512)}


@dataclass(frozen=True, slots=True)
class Processor:
    vendor: str = ""
    family: int = 0
    model: int = 0
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FloatEvent:
    """`width_bits` 0 is scalar, None if the event does not say; `flops` is operations per count."""

    event: Event
    width_bits: int | None
    flops: int


def this_processor() -> Processor:
    try:
        with _CPUINFO.open("rb") as file:
            return parse_processor(file.read(_CPUINFO_BYTES).decode(errors="replace"))
    except OSError:
        return Processor()


def parse_processor(text: str) -> Processor:
    """The first entry of /proc/cpuinfo."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    return Processor(
        vendor=found.get("vendor_id", ""),
        family=_number(found, "cpu family"),
        model=_number(found, "model"),
        flags=frozenset(found.get("flags", "").split()),
    )


def _number(found: Mapping[str, str], key: str) -> int:
    text = found.get(key, "")
    return int(text) if text.isdigit() else 0


def float_events(processor: Processor) -> list[FloatEvent] | Absent:
    if processor.vendor == "GenuineIntel" and processor.family == 6 and processor.model in _INTEL_MODELS:
        events = [
            _raw(name, 0xC7, mask, width, flops)
            for mask, (name, width, flops) in _INTEL.items()
            if width < 512 or "avx512f" in processor.flags
        ]
        if "avx512_fp16" in processor.flags:
            events += [_raw(name, 0xCF, mask, width, flops) for mask, (name, width, flops) in _INTEL_HALF.items()]
        return events
    if processor.vendor == "AuthenticAMD" and processor.family in (0x17, 0x19, 0x1A):
        # fp_ret_sse_avx_ops.all (0x03) counts operations, whatever the width.
        is_zen5 = processor.family == 0x1A
        # mapfile.csv: in family 19h the models 0-F, 20-2F, 40-5F are Zen 3, the others Zen 4.
        is_zen4 = processor.family == 0x19 and processor.model >> 4 not in (0, 2, 4, 5)
        mask = 0x0F if is_zen5 else 0x1F if is_zen4 else 0xFF
        widths = _AMD_WIDTHS if is_zen4 or is_zen5 else {}
        return [
            _raw("all", 0x03, mask, None, 1),
            *(_raw(f"{name}_instructions", 0x08, bits, width, 0) for bits, (name, width) in widths.items()),
        ]
    return Absent("the codes of this processor's floating-point events are not known")


def _raw(name: str, event: int, mask: int, width: int | None, flops: int) -> FloatEvent:
    return FloatEvent(Event(f"float_{name}", RAW, event | mask << 8), width, flops)


def uncounted_work(processor: Processor) -> list[str]:
    """Arithmetic that these events do not see."""
    kinds = {"amx_tile": "AMX tiles", "avx512_bf16": "bfloat16 dot products", "avx512_vnni": "int8 dot products"}
    present = [text for flag, text in kinds.items() if flag in processor.flags and processor.vendor == "GenuineIntel"]
    return [f"not among the measured floating-point operations: {', '.join(present)}"] if present else []
