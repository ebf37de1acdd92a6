from __future__ import annotations

import errno
import mmap
import struct
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from torchgauge.measure import (
    GENERAL,
    RAW,
    Absent,
    Count,
    Counted,
    Event,
    FloatEvent,
    Processor,
    counting,
    decode,
    float_events,
    list_counters,
    memory_events,
    parse_processor,
    refusal,
    tally,
    uncounted_work,
)

CPUINFO = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8480+
flags\t\t: fpu avx2 avx512f avx512_bf16 avx512_fp16 amx_tile

processor\t: 1
model\t\t: 1
"""


class Replay:
    """A kernel that answers with recorded readings; an event without one is refused."""

    def __init__(self, readings: dict[str, list[Count]], threads: Sequence[int] = (1,)) -> None:
        self.readings, self._threads = readings, list(threads)
        self.open_counters: dict[int, tuple[str, int]] = {}
        self.running: set[int] = set()
        self.made = 0

    def threads(self) -> list[int]:
        return self._threads

    def open(self, event: Event, thread: int) -> int | Absent | None:
        if event.name not in self.readings:
            return refusal(errno.ENOENT, 2)
        place = self._threads.index(thread)
        if place >= len(self.readings[event.name]):
            return None
        self.made += 1
        self.open_counters[self.made] = (event.name, place)
        return self.made

    def start(self, counter: int) -> None:
        self.running.add(counter)

    def stop(self, counter: int) -> None:
        self.running.remove(counter)

    def read(self, counter: int) -> Count:
        name, place = self.open_counters[counter]
        return self.readings[name][place]

    def close(self, counter: int) -> None:
        del self.open_counters[counter]


def whole(value: int) -> Count:
    return Count(value, 1000, 1000)


def test_a_record_is_value_and_two_times() -> None:
    assert decode(struct.pack("=QQQ", 5, 30, 10)) == Count(5, 30, 10)


def test_a_counter_that_took_turns_is_scaled_to_the_whole_time() -> None:
    assert Count(500, 1000, 250).scaled() == 2000
    assert Count(500, 1000, 250).running_share == 0.25
    assert Count(500, 1000, 0).scaled() is None
    assert Count(7, 0, 0).scaled() == 7


def test_threads_add_up_and_ratios_follow() -> None:
    readings = {
        "cycles": [whole(1000), whole(3000)],
        "instructions": [whole(2000), Count(3000, 1000, 500)],
        "cache_references": [whole(100), whole(100)],
        "cache_misses": [whole(30), whole(20)],
        "task_clock_s": [whole(2_000_000_000), whole(1_000_000_000)],
    }
    kernel = Replay(readings, threads=(11, 12))
    with counting(kernel) as counted:
        assert len(kernel.running) == 10
    found = counted.figures(runs=2)
    assert (found["cycles"], found["instructions"]) == (2000, 4000)
    assert found["instructions_per_cycle"] == 2.0
    assert found["cache_hit_ratio"] == 0.75
    assert found["task_clock_s"] == pytest.approx(1.5)
    assert found["least_running_share"] == 0.5
    assert not kernel.open_counters
    assert not kernel.running


def test_counters_that_the_kernel_refuses_are_null_with_a_reason() -> None:
    with counting(Replay({"cycles": [whole(10)]})) as counted:
        pass
    found = counted.figures(flops=1e9)
    assert found["cycles"] == 10
    assert found["instructions"] is None
    assert found["cache_hit_ratio"] is None
    assert "does not offer" in found["absent"]["instructions"]
    assert found["measured_flops"] is None
    assert found["absent"]["flops"]


def test_a_thread_that_has_ended_is_left_out() -> None:
    with counting(Replay({"cycles": [whole(10)]}, threads=(1, 2))) as counted:
        pass
    assert counted.figures()["cycles"] == 10


def test_counters_are_closed_when_the_block_raises() -> None:
    kernel = Replay({"cycles": [whole(10)]})
    with pytest.raises(KeyError), counting(kernel):
        raise KeyError
    assert not kernel.open_counters


def test_without_a_kernel_to_ask_every_figure_says_so() -> None:
    with counting(Absent("hardware counters are read on Linux only")) as counted:
        pass
    absent = counted.figures()["absent"]
    assert {event.name for event in GENERAL} - {"page_faults"} <= set(absent)
    assert absent["cycles"] == "hardware counters are read on Linux only"


def intel() -> list[FloatEvent]:
    events = float_events(parse_processor(CPUINFO))
    assert not isinstance(events, Absent)
    return events


def counted_floats(counts: dict[str, Count], events: list[FloatEvent]) -> Counted:
    counted = Counted(floats=events)
    tally([(found.event, counts.get(found.event.name, whole(0))) for found in events], counted)
    return counted


def test_operations_are_instructions_times_lanes() -> None:
    counts = {
        "float_scalar_single": whole(100),
        "float_256_single": whole(50),
        "float_512_single": Count(25, 1000, 500),
        "float_512_double": whole(25),
    }
    found: Any = counted_floats(counts, intel()).figures(flops=2000)
    assert found["measured_flops"] == 100 + 50 * 8 + 50 * 16 + 25 * 8
    assert found["measured_over_theoretical"] == 0.75
    assert found["vector_width_shares"]["512"] == pytest.approx(1000 / 1500)
    assert found["vector_bits_mean"] == pytest.approx((400 * 256 + 1000 * 512) / 1500)


def test_one_event_without_a_turn_leaves_the_operations_unknown() -> None:
    counted = counted_floats({"float_256_single": Count(0, 1000, 0)}, intel())
    assert counted.figures()["measured_flops"] is None
    assert "never scheduled" in counted.absent["flops"]


def test_intels_codes_are_those_of_the_kernels_tables() -> None:
    codes = {found.event.name: (found.event.kind, found.event.config) for found in intel()}
    assert codes["float_scalar_double"] == (RAW, 0x01C7)
    assert codes["float_256_single"] == (RAW, 0x20C7)
    assert codes["float_512_single"] == (RAW, 0x80C7)
    assert codes["float_512_half"] == (RAW, 0x10CF)
    plain = float_events(Processor("GenuineIntel", 6, 0x5E, frozenset({"avx2"})))
    assert not isinstance(plain, Absent)
    assert {found.width_bits for found in plain} == {0, 128, 256}


@pytest.mark.parametrize(
    ("family", "model", "config", "widths"),
    [
        (0x17, 0x01, 0xFF03, set()),
        (0x19, 0x21, 0xFF03, set()),
        (0x19, 0x11, 0x1F03, {0, 128, 256, 512}),
        (0x1A, 0x02, 0x0F03, {0, 128, 256, 512}),
    ],
)
def test_amd_counts_operations_in_one_event(family: int, model: int, config: int, widths: set[int]) -> None:
    events = float_events(Processor("AuthenticAMD", family, model))
    assert not isinstance(events, Absent)
    assert events[0].event.config == config
    assert {found.width_bits for found in events[1:]} == widths


def test_amds_widths_are_shares_of_instructions_and_add_nothing_to_the_operations() -> None:
    events = float_events(Processor("AuthenticAMD", 0x1A, 2))
    assert not isinstance(events, Absent)
    counts = {
        "float_all": whole(900),
        "float_256_instructions": whole(30),
        "float_512_instructions": whole(10),
    }
    found: Any = counted_floats(counts, events).figures()
    assert found["measured_flops"] == 900
    assert found["vector_width_shares"]["256"] == 0.75
    assert found["vector_bits_mean"] == 0.75 * 256 + 0.25 * 512


@pytest.mark.parametrize(
    "processor", [Processor(), Processor("GenuineIntel", 6, 0x97), Processor("AuthenticAMD", 0x15, 1)]
)
def test_an_unknown_processor_has_no_codes(processor: Processor) -> None:
    assert isinstance(float_events(processor), Absent)


def test_work_that_the_events_do_not_see_is_named() -> None:
    (note,) = uncounted_work(parse_processor(CPUINFO))
    assert "AMX tiles" in note
    assert uncounted_work(Processor("GenuineIntel", 6, 0x5E)) == []


def controller(root: Path, name: str = "uncore_imc_0") -> Path:
    folder = root / name
    (folder / "events").mkdir(parents=True)
    (folder / "format").mkdir()
    (folder / "type").write_text("14\n")
    (folder / "cpumask").write_text("0,32\n")
    (folder / "format" / "event").write_text("config:0-7\n")
    (folder / "format" / "umask").write_text("config:8-15\n")
    for event, mask in (("cas_count_read", "0x03"), ("cas_count_write", "0x0c")):
        (folder / "events" / event).write_text(f"event=0x04,umask={mask}\n")
        (folder / "events" / f"{event}.scale").write_text("6.103515625e-5\n")
        (folder / "events" / f"{event}.unit").write_text("MiB\n")
    return folder


def test_memory_controllers_are_read_as_the_kernel_describes_them(tmp_path: Path) -> None:
    controller(tmp_path)
    events = memory_events(tmp_path)
    assert events == [
        Event("memory_read_bytes", 14, 0x0304, 0, 64.0),
        Event("memory_read_bytes", 14, 0x0304, 32, 64.0),
        Event("memory_written_bytes", 14, 0x0C04, 0, 64.0),
        Event("memory_written_bytes", 14, 0x0C04, 32, 64.0),
    ]


def test_memory_traffic_becomes_a_rate_and_a_share_of_the_peak(tmp_path: Path) -> None:
    controller(tmp_path)
    events = memory_events(tmp_path)
    assert not isinstance(events, Absent)
    counted = Counted(seconds=4.0)
    tally([(event, whole(1000)) for event in events], counted)
    found = counted.figures(runs=2, bytes_per_s=256_000)
    assert found["memory_read_bytes"] == 64_000
    assert found["memory_bytes_per_s"] == 64_000
    assert found["memory_bandwidth_share"] == 0.25


def test_a_controller_in_a_form_that_is_not_known_is_left_out(tmp_path: Path) -> None:
    folder = controller(tmp_path)
    (folder / "format" / "umask").write_text("config1:0-7\n")
    assert isinstance(memory_events(tmp_path), Absent)
    assert isinstance(memory_events(tmp_path / "nowhere"), Absent)


@pytest.mark.parametrize(
    ("code", "paranoid", "said"),
    [
        (errno.EACCES, 3, "perf_event_paranoid is 3"),
        (errno.EPERM, 2, "seccomp"),
        (errno.ENOENT, 2, "virtual machine"),
        (errno.EOPNOTSUPP, 2, "does not offer"),
        (errno.ENOSYS, None, "no performance counters"),
        (errno.EMFILE, 1, "ulimit -n"),
        (errno.EINVAL, 1, "Invalid argument"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_helps(code: int, paranoid: int | None, said: str) -> None:
    assert said in refusal(code, paranoid).reason


def test_counting_the_whole_machine_needs_more() -> None:
    assert "needs 0 or lower" in refusal(errno.EACCES, 2, is_own=False).reason


@pytest.mark.skipif(sys.platform != "linux", reason="perf_event_open is Linux's")
def test_the_kernel_counts_this_process_with_its_threads() -> None:
    """The software events are there in every virtual machine."""
    with counting() as counted:
        thread = threading.Thread(target=lambda: sum(index * index for index in range(200_000)))
        thread.start()
        pages = b"x" * 2**23  # fresh memory, so the first touch of a page is a fault
        thread.join()
    found: Any = counted.figures()
    if "task_clock_s" in found["absent"]:
        pytest.skip(found["absent"]["task_clock_s"])
    assert len(pages)
    assert found["task_clock_s"] > 0
    assert found["page_faults"] > 0
    for event in GENERAL:
        assert (found[event.name] is None) == (event.name in found["absent"])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not distinguish page faults")
def test_page_faults_are_known_where_the_processor_hides_its_counters() -> None:
    with counting(Absent("no counters here")) as counted:
        mmap.mmap(-1, 2**24).write(b"x" * 2**24)
    found = counted.figures()

    assert found["page_faults"] is not None
    assert found["page_faults"] >= 2**24 / 2**21  # the largest pages that Linux gives unasked
    assert "page_faults" not in found["absent"]


def test_every_counter_is_listed_as_there_or_with_a_reason() -> None:
    rows = {row["name"]: row for row in list_counters()}
    assert {"cycles", "flops", "memory_bytes"} <= set(rows)
    for row in rows.values():
        assert row["available"] is (row["reason"] is None)
