"""Numbers to text and back. The only place that formats a number.

Counts use powers of 1000 (k, M, G, T, P), bytes powers of 1024 written as KiB, MiB, GiB, TiB.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence

from torchgauge.errors import UsageError

_COUNT_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SMALL_PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"))
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SCALES = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "b": 10**9,  # "7B parameters"
    "t": 10**12,
    "p": 10**15,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_BYTE_SCALES = _SCALES | {"b": 1}
_SECOND_SCALES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "min": 60.0}
# Case matters: mJ is not MJ.
_JOULE_SCALES = {
    "": 1.0, "J": 1.0, "kJ": 1e3, "MJ": 1e6, "mJ": 1e-3, "uJ": 1e-6, "µJ": 1e-6, "μJ": 1e-6, "nJ": 1e-9, "Wh": 3600.0,
    "kWh": 3.6e6,
}  # fmt: skip
_NUMBER = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)\s*([a-zµμ]*)\s*", re.IGNORECASE)


def format_exact(value: int | None) -> str:
    """`25,557,032`, or a dash where the value does not apply."""
    return "-" if value is None else f"{value:,}"


def format_things(count: int | None, noun: str) -> str:
    """`19 tensors`, `1 tensor`; a dash for the number if it is not known."""
    return f"{format_exact(count)} {noun}" + ("" if count == 1 else "s")


def format_count(value: float | None) -> str:
    """`4.09 G`: three significant digits and a decimal prefix."""
    if value is None:
        return "-"
    scaled, power = _scale(float(value), 1000.0, len(_COUNT_PREFIXES))
    return f"{_three_digits(scaled, whole=power == 0)} {_COUNT_PREFIXES[power]}".rstrip()


def format_bytes(value: float | None) -> str:
    """`97.5 MiB`: three significant digits and a binary unit."""
    if value is None:
        return "-"
    scaled, power = _scale(float(value), 1024.0, len(_BYTE_UNITS))
    return f"{_three_digits(scaled, whole=power == 0)} {_BYTE_UNITS[power]}"


def format_seconds(value: float | None) -> str:
    """`3.21 ms`: three significant digits in the unit that fits."""
    if value is None:
        return "-"
    if value == 0:
        return "0 s"
    for scale, unit in _TIME_UNITS:
        if abs(value) >= scale:
            return f"{_three_digits(value / scale, whole=False)} {unit}"
    return f"{value / 1e-9:.2g} ns"


def format_joules(value: float | None) -> str:
    """`1.23 mJ`, `4.56 kJ`."""
    return _with_prefix(value, "J")


def format_watts(value: float | None) -> str:
    """`562 W`."""
    return _with_prefix(value, "W")


def format_grams(value: float | None) -> str:
    """`12.3 mg`, `4.56 kg`."""
    return _with_prefix(value, "g")


def format_percent(share: float | None) -> str:
    """`12.3 %` of a share between 0 and 1."""
    return "-" if share is None else f"{share * 100:z.1f} %"


def format_whole_percent(share: float | None) -> str:
    """`30 %`, for a share that is estimated or only roughly known."""
    return "-" if share is None else f"{share * 100:z.0f} %"


def format_factor(value: float | None) -> str:
    """`8.0×`."""
    return "-" if value is None else f"{value:.1f}×"


def format_value(value: float | None) -> str:
    """`0.0213`, `-1.5e-07`: three significant digits of a number without a unit."""
    return "-" if value is None else f"{value:.3g}"


def format_names(names: Sequence[str], most: int) -> str:
    """`a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def format_rate(value: float | None) -> str:
    return "-" if value is None else f"{format_count(value)}/s"


def format_decibels(value: float | None) -> str:
    """`41.2 dB`."""
    return "-" if value is None else f"{value:.1f} dB"


def format_shape(shape: tuple[int, ...] | list[int]) -> str:
    """`1×3×224×224`; a scalar is `scalar`."""
    return "×".join(str(size) for size in shape) if len(shape) else "scalar"


def parse_count(text: str) -> float:
    """`30M`, `4.1 G`, `200MB`, `1.5GiB`, `12_000` to a number; decimal unless the unit has an `i`."""
    return _parsed(text, _SCALES, "a number; write it like 30M, 4.1G, 200MB or 1.5GiB")


def parse_bytes(text: str) -> float:
    """`200MB` (decimal), `1.5GiB` (binary), `512B`, `4096`."""
    return _parsed(text, _BYTE_SCALES, "a size; write it like 200MB, 1.5GiB or 4096")


def parse_seconds(text: str) -> float:
    """`10ms`, `1.5 s`, `200us`, `0.01`."""
    return _parsed(text, _SECOND_SCALES, "a time; write it like 10ms, 1.5s or 200us")


def parse_joules(text: str) -> float:
    """`5mJ`, `1.2 J`, `3kJ`, `0.5`."""
    return _parsed(text, _JOULE_SCALES, "an energy; write it like 5mJ, 1.2J or 3kJ")


def parse_sizes(asked: int | str | Sequence[int] | None, name: str) -> list[int | None]:
    """One size or several: 8, [1, 8], "1,8,32"; None, which leaves the size as it is, gives [None]."""
    if asked is None:
        return [None]
    parts = asked.split(",") if isinstance(asked, str) else asked if isinstance(asked, Sequence) else [asked]
    try:
        sizes = [int(part) if isinstance(part, str) else operator.index(part) for part in parts]
    except (TypeError, ValueError):
        sizes = []
    if not sizes or min(sizes) < 1:
        raise UsageError(f"{name} must be a positive number, or several such as 1,8,32, not '{asked}'")
    return list(sizes)


def _parsed(text: str, scales: Mapping[str, float], what: str) -> float:
    match = _NUMBER.fullmatch(text)
    scale = None if match is None else scales.get(match[2], scales.get(match[2].lower()))
    if match is None or scale is None:
        raise UsageError(f"'{text}' is not {what}")
    return float(match[1].replace("_", "").replace(",", "")) * scale


def _with_prefix(value: float | None, unit: str) -> str:
    """Three significant digits; small amounts have prefixes too."""
    if value is None:
        return "-"
    if abs(value) >= 1 or value == 0:
        scaled, power = _scale(float(value), 1000.0, len(_COUNT_PREFIXES))
        return f"{_three_digits(scaled, whole=value == 0)} {_COUNT_PREFIXES[power]}{unit}"
    for scale, prefix in _SMALL_PREFIXES:
        if abs(value) >= scale * 0.9995:
            return f"{_three_digits(value / scale, whole=False)} {prefix}{unit}"
    return f"{value:.2g} {unit}"


def _scale(value: float, base: float, steps: int) -> tuple[float, int]:
    power = 0
    # 999.5 would print as "1000": go to the next prefix before rounding does.
    while abs(value) >= base * 0.9995 and power < steps - 1:
        value /= base
        power += 1
    return value, power


def _three_digits(value: float, *, whole: bool) -> str:
    if whole and value == int(value):
        return str(int(value))
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}"


# Controls (escape sequences, line feeds), formats (bidirectional overrides), surrogates, line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


# What a CI runner takes for a command: GitHub `::name::` at the start of a line, after its spaces, and `##[name]`
# anywhere; Azure Pipelines `##vso[`, TeamCity `##teamcity[`.
_LINE_COMMAND = re.compile(r"^([^\S\n]*):(?=:)", re.MULTILINE)
_COMMAND = re.compile(r"##(?=\w*\[)")


def inert_lines(text: str) -> str:
    """The text so that a CI runner takes none of its lines for a command; the rest `visible` has seen to."""
    return _LINE_COMMAND.sub(r"\1\\x3a", text) if "::" in text else text


def visible(text: str) -> str:
    """The text with every character that would not show as itself written as an escape, such as `\\x1b`.

    Names come from models and files. The last two characters of each plane and a block of 32 are noncharacters, some of
    which XML forbids. Commands of CI runners are escaped too."""
    if "##" in text:
        text = _COMMAND.sub(r"#\\x23", text)
    if text.isprintable():
        return text
    import unicodedata  # a megabyte that few runs need

    return "".join(
        char.encode("unicode_escape", "surrogatepass").decode("ascii")
        if unicodedata.category(char) in _HIDDEN or ord(char) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(char) <= 0xFDEF
        else char
        for char in text
    )
