"""What one pass finds, against torch's reading of the same bytes and exact sums."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from torchgauge.weights import SYMBOLS, Tally, decode, stored_symbols, tally_bytes, value_bounds
from torchgauge.weights.kernels import tally as tallying

RNG = np.random.default_rng(7)
FLOATS = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
)  # fmt: skip
INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
VALUES = {
    "random": RNG.standard_normal(5000) * 0.02,
    "heavy-tailed": RNG.standard_t(1.5, 5000),
    "constant": np.full(3000, 0.1),
    "empty": np.zeros(0),
    "one": np.array([-3.25]),
    "zeros": np.zeros(5000),
    "huge": RNG.standard_normal(5000) * 1e38,
    "tiny": RNG.standard_normal(5000) * 1e-41,
    "offset": 1e4 + RNG.standard_normal(5000),
    "sparse": np.where(RNG.random(5000) < 0.9, 0.0, RNG.standard_normal(5000)),
    "signed zeros": np.array([0.0, -0.0, 0.0, -0.0, 1.0]),
    "not finite": RNG.choice([np.nan, np.inf, -np.inf, 0.5, -0.25, 3.0], 9000, p=[0.01, 0.01, 0.01, 0.3, 0.3, 0.37]),
    "nothing finite": np.array([np.nan, np.inf, -np.inf] * 700),
}  # fmt: skip


def as_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    if not tensor.numel():
        return np.zeros(0, dtype=np.uint8)
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def tensor_of(values: NDArray[np.float64], dtype: str) -> torch.Tensor:
    return torch.from_numpy(values).to(getattr(torch, dtype))


def check(tally: Tally, values: NDArray[np.float64]) -> None:
    """Counts exactly, moments to 1e-9 and better against correctly rounded sums."""
    finite = values[np.isfinite(values)]
    assert tally.count == len(values)
    assert (tally.nan, tally.inf) == (int(np.isnan(values).sum()), int(np.isinf(values).sum()))
    assert tally.zeros == int((values == 0).sum())
    assert int(tally.counts.sum()) == tally.count
    assert (np.diff(tally.codes.astype(np.int64)) > 0).all()
    assert (tally.counts > 0).all()
    if not len(finite):
        assert (tally.minimum, tally.maximum) == (math.inf, -math.inf)
        return
    assert (tally.minimum, tally.maximum) == (finite.min(), finite.max())
    unit = 2.0**-tally.exponent if abs(tally.exponent) < 1000 else None
    if unit is not None:
        check_moments(tally, finite * unit)


def check_moments(tally: Tally, finite: NDArray[np.float64]) -> None:
    n, l1 = len(finite), math.fsum(np.abs(finite))
    mean = math.fsum(finite) / n
    distance = finite - mean
    m2, m3, m4 = (math.fsum(distance**power) for power in (2, 3, 4))
    assert tally.mean == pytest.approx(mean, rel=0, abs=1e-14 * l1 / n)
    # A mean has the precision of the values; where they are far from 0, their distances have less.
    precision = 1e-10 + 1e-14 * abs(mean) * math.sqrt(n / m2) if m2 else 0.0
    assert tally.l1 == pytest.approx(l1, rel=1e-14)
    assert tally.m2 == pytest.approx(m2, rel=precision)
    assert tally.m3 == pytest.approx(m3, rel=0, abs=precision * math.fsum(np.abs(distance) ** 3))
    assert tally.m4 == pytest.approx(m4, rel=precision)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", VALUES)
def test_floats_are_tallied_as_torch_reads_them(case: str, dtype: str) -> None:
    tensor = tensor_of(VALUES[case], dtype)
    check(tally_bytes(as_bytes(tensor), dtype), tensor.to(torch.float64).numpy())


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("spread", [0, 100, 2.0**31, 2.0**70])
def test_whole_numbers_are_tallied_as_they_are(spread: float, dtype: str) -> None:
    info = np.iinfo(dtype)
    low, high = max(info.min, int(-spread)), min(info.max, int(spread))
    numbers = RNG.integers(low, high, 5000, dtype=np.dtype(dtype), endpoint=True)
    tally = tally_bytes(numbers.view(np.uint8), dtype)
    check(tally, numbers.astype(np.float64))
    assert tally.subnormal == 0


@pytest.mark.parametrize("dtype", ["complex32", "complex64", "complex128"])
def test_complex_numbers_are_tallied_by_their_parts(dtype: str) -> None:
    parts = torch.randn(500, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    part = {"complex32": torch.float16, "complex64": torch.float32, "complex128": torch.float64}[dtype]
    stored = parts.to(part)
    check(tally_bytes(as_bytes(stored), dtype), stored.to(torch.float64).numpy().reshape(-1))


@pytest.mark.parametrize(("dtype", "per_byte"), [("quint4x2", 2), ("quint2x4", 4), ("bits1x8", 8)])
def test_packed_numbers_are_tallied_one_by_one(dtype: str, per_byte: int) -> None:
    bits = 8 // per_byte
    numbers = RNG.integers(0, 1 << bits, 63 * per_byte).astype(np.uint8)
    packed = np.zeros(63, dtype=np.uint8)
    for place in range(per_byte):
        packed |= numbers[place::per_byte] << np.uint8(place * bits)
    check(tally_bytes(packed, dtype), numbers.astype(np.float64))
    np.testing.assert_array_equal(decode(packed, dtype), numbers)


def test_what_only_fills_the_last_byte_is_left_out() -> None:
    packed = np.array([0x21, 0x43, 0x05], dtype=np.uint8)
    tally = tally_bytes(packed, "quint4x2", elements=5)
    assert (tally.codes.tolist(), tally.count, tally.minimum) == ([1, 2, 3, 4, 5], 5, 1)
    assert decode(packed, "quint4x2", elements=5).tolist() == [1, 2, 3, 4, 5]


def test_bool_bytes_are_zeros_and_ones() -> None:
    tally = tally_bytes(np.array([0, 1, 1, 0, 255], dtype=np.uint8), "bool")
    assert (tally.zeros, tally.mean, tally.maximum) == (2, 0.6, 1.0)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_numbers_between_zero_and_the_smallest_normal_one_are_subnormal(dtype: str) -> None:
    smallest = torch.finfo(getattr(torch, dtype)).smallest_normal
    kept = torch.tensor([0.0, -0.0, smallest, -smallest, smallest / 2, -smallest / 4, 1.0], dtype=torch.float64)
    tally = tally_bytes(as_bytes(kept.to(getattr(torch, dtype))), dtype)
    assert (tally.subnormal, tally.zeros) == (2, 2)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "complex64", "complex128"])
def test_a_constant_tensor_has_no_spread_at_all(dtype: str) -> None:
    value = torch.tensor(0.1 if dtype not in INTEGERS else 113, dtype=torch.float64)
    parts = torch.full((2 * 3333,), float(value), dtype=torch.float64)
    stored = {"complex64": torch.float32, "complex128": torch.float64}.get(dtype) or getattr(torch, dtype)
    tally = tally_bytes(as_bytes(parts.to(stored)), dtype)
    assert (tally.m2, tally.m3, tally.m4) == (0, 0, 0)
    assert tally.mean == tally.minimum == tally.maximum


@pytest.mark.parametrize("power", [1000, 500, -500, -1060])
def test_extremes_of_float64_neither_overflow_nor_vanish(power: int) -> None:
    """Scaled by a power of two, the figures are those of the unscaled values."""
    plain = np.rint(RNG.standard_normal(3000) * 256)
    expected = tally_bytes(plain.view(np.uint8), "float64")
    found = tally_bytes(np.ldexp(plain, power).view(np.uint8), "float64")
    shift = power - found.exponent
    for name, order in (("mean", 1), ("l1", 1), ("m2", 2), ("m3", 3), ("m4", 4)):
        assert getattr(found, name) == pytest.approx(math.ldexp(getattr(expected, name), shift * order), rel=1e-12)
    assert found.m4 > 0


def test_blocks_of_very_different_size_add_up() -> None:
    blocks = [np.full(1024, value) for value in (0.0, 5e-324, 1e-200, 1.0, 1e300, 2e300, 1.0, 0.0)]
    values = np.concatenate(blocks)
    tally = tally_bytes(values.view(np.uint8), "float64")
    scaled = np.ldexp(values, -tally.exponent)
    check_moments(tally, scaled)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int32", "int64", "int16", "complex64"])
def test_big_endian_values_are_the_same_values(dtype: str) -> None:
    item = SYMBOLS[dtype].item_bits // 8
    native = RNG.integers(0, 120, 4000 * item, dtype=np.uint8)
    swapped = native.view(f"u{item}").byteswap().view(np.uint8)
    expected, found = tally_bytes(native, dtype), tally_bytes(swapped, dtype, big_endian=True)
    assert_same(found, expected)
    np.testing.assert_array_equal(decode(swapped, dtype, big_endian=True), decode(native, dtype))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int32", "int8"])
@pytest.mark.parametrize("offset", [1, 2, 4])
def test_any_address_will_do(dtype: str, offset: int) -> None:
    item = SYMBOLS[dtype].item_bits // 8
    content = RNG.integers(0, 120, 3000 * item, dtype=np.uint8)
    moved = np.empty(len(content) + offset, dtype=np.uint8)
    moved[offset:] = content
    assert_same(tally_bytes(moved[offset:], dtype), tally_bytes(content, dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "uint8"])
def test_a_buffer_that_cannot_be_written_will_do(dtype: str) -> None:
    content = RNG.integers(0, 120, 4096, dtype=np.uint8)
    kept = np.frombuffer(content.tobytes(), dtype=np.uint8)
    assert_same(tally_bytes(kept, dtype), tally_bytes(content, dtype))


def assert_same(found: Tally, expected: Tally) -> None:
    np.testing.assert_array_equal(found.codes, expected.codes)
    np.testing.assert_array_equal(found.counts, expected.counts)
    assert found.moments == pytest.approx(expected.moments, rel=1e-12)
    for name in ("count", "nan", "inf", "zeros", "subnormal", "minimum", "maximum"):
        assert getattr(found, name) == getattr(expected, name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float64"])
def test_large_and_small_pieces_count_alike(dtype: str) -> None:
    """More than the size from which several tables of counters are used, and not a multiple of anything."""
    item = SYMBOLS[dtype].item_bits // 8
    tensor = tensor_of(RNG.standard_normal(tallying.SINGLE_TABLE_MAX_BYTES // item + 13) * 9, dtype)
    check(tally_bytes(as_bytes(tensor), dtype), tensor.to(torch.float64).numpy())


def with_one(value: float) -> NDArray[np.float64]:
    values = RNG.standard_normal(70_000)
    values[-9000] = value
    return values


LARGE = {
    "negative": -RNG.random(70_001) - 0.1,
    "positive": RNG.random(70_005) + 0.1,
    "constant": np.full(70_003, -0.3),
    "offset": 1e4 + RNG.standard_normal(70_000),
    "steps": np.repeat([1e30, 1e-3, -5.0, 0.0, 7e7], 15_000) * (1 + 0.1 * RNG.standard_normal(75_000)),
    "half zeros": np.where(RNG.random(70_000) < 0.5, 0.0, RNG.standard_normal(70_000)),
    "subnormal": RNG.standard_normal(70_000) * 1e-41,
    "one NaN": with_one(np.nan),
    "one negative NaN": with_one(-np.nan),
    "one inf": with_one(np.inf),
    "one −inf": with_one(-np.inf),
    "one −0": with_one(-0.0),
    "nothing finite": np.full(70_000, np.nan),
}


@pytest.mark.parametrize("case", LARGE)
def test_large_pieces_of_float32_are_counted_and_summed_in_one_go(case: str) -> None:
    values = LARGE[case].astype(np.float32)
    tally = tally_bytes(values.view(np.uint8), "float32")
    check(tally, values.astype(np.float64))
    upper_halves, counts = np.unique(values.view(np.uint32) >> 16, return_counts=True)
    np.testing.assert_array_equal(tally.codes, upper_halves)
    np.testing.assert_array_equal(tally.counts, counts)


def test_more_than_the_counters_hold_is_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    content = RNG.standard_normal(5000).astype(np.float32).view(np.uint8)
    whole = tally_bytes(content, "float32")
    monkeypatch.setattr(tallying, "MAX_RUN_BYTES", 4096)
    assert_same(tally_bytes(content, "float32"), whole)


@given(arrays(np.uint8, st.integers(0, 300).map(lambda n: 8 * n)), st.sampled_from(sorted(SYMBOLS)))
@settings(max_examples=150, deadline=None)
def test_any_bytes_of_any_type_are_counted(content: NDArray[np.uint8], dtype: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        values = decode(content, dtype)
        check(tally_bytes(content, dtype), values)


@given(arrays(np.float32, st.integers(1, 200), elements=st.floats(width=32, allow_nan=True)))
@settings(max_examples=100, deadline=None)
def test_the_bounds_of_the_codes_hold_all_values(values: NDArray[np.float32]) -> None:
    tally = tally_bytes(values.view(np.uint8), "float32")
    lower, upper = value_bounds(tally)
    finite = values[np.isfinite(values)].astype(np.float64)
    assert all(((lower <= value) & (value <= upper)).any() for value in finite)
    assert int(tally.counts[~np.isnan(lower)].sum()) == len(finite)
    upper_halves, counts = np.unique(values.view(np.uint32) >> 16, return_counts=True)
    np.testing.assert_array_equal(stored_symbols(SYMBOLS["float32"], tally.codes), upper_halves)
    np.testing.assert_array_equal(tally.counts, counts)


def test_threads_do_not_disturb_each_other() -> None:
    pieces = [(RNG.standard_normal(70_000 + 7 * n) * 0.1).astype(np.float32).view(np.uint8) for n in range(16)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda piece: tally_bytes(piece, "float32"), pieces))
    for tally, piece in zip(found, pieces, strict=True):
        assert_same(tally, tally_bytes(piece, "float32"))


def test_a_pass_that_was_interrupted_leaves_no_counts_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    content = np.ones(1000, dtype=np.float32).view(np.uint8)
    expected = tally_bytes(content, "float32")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tallying, "_collect", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tally_bytes(content, "float32")
    assert_same(tally_bytes(content, "float32"), expected)


def test_tallies_need_no_numba_until_bytes_are_counted() -> None:
    program = (
        "import sys, torchgauge.weights.tally, torchgauge.weights.statistics; "
        "assert not {'numba', 'torch', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
def test_kernels_work_where_nothing_can_be_kept_on_disk() -> None:
    """numba finds no folder for its cache: they are compiled for the process alone."""
    program = """
import torchgauge.cache
torchgauge.cache.is_private = lambda folder: False
import numpy as np
from torchgauge.weights import tally_bytes
assert tally_bytes(np.ones(8, np.uint16).view(np.uint8), "bfloat16").count == 8
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_no_file_in_the_working_folder_chooses_the_cache_of_kernels(tmp_path: Path) -> None:
    """numba's settings in the working folder name a cache, whose files are pickles."""
    program = """
from torchgauge.weights.kernels import jit
from numba.core import config
config.reload_config()
assert 'evil' not in config.CACHE_DIR and not config.DEBUG, config.CACHE_DIR
print(*{kernel._cache.cache_path for kernel in jit._ENTRIES.values()}, sep="\\n")
"""
    (tmp_path / ".numba_config.yaml").write_text(f"cache_dir: {tmp_path / 'evil'}\ndebug: 1\n")

    def folders(**variables: str) -> list[Path]:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            cwd=tmp_path,
            env=os.environ | variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return [Path(line) for line in done.stdout.splitlines()]

    assert not any(folder.is_relative_to(tmp_path) for folder in folders())
    own = tmp_path / "own"
    assert all(folder.is_relative_to(own) for folder in folders(NUMBA_CACHE_DIR=str(own)))
    if sys.platform != "win32":
        own.chmod(0o777)
        assert not any(folder.is_relative_to(own) for folder in folders(NUMBA_CACHE_DIR=str(own)))
    assert not any(folder.is_relative_to(tmp_path) for folder in folders(NUMBA_CACHE_DIR="relative"))
