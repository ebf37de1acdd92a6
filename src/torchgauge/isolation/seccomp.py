"""The filter of system calls: what `system_calls` allows, for all threads of this process and permanently."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from torchgauge.isolation.system_calls import ALLOWED, FIRST_OPTIONAL_CALL, Condition, conditions


@dataclass(frozen=True, slots=True)
class _Machine:
    """`audit_arch`: the number of the architecture (linux/audit.h); `seccomp`: that of the call; `column`: where its
    numbers are in `Numbers`."""

    audit_arch: int
    seccomp: int
    column: int


_MACHINES = {
    "x86_64": _Machine(0xC000003E, seccomp=317, column=0),
    "aarch64": _Machine(0xC00000B7, seccomp=277, column=1),
}
# Numbers above this are calls of the x32 variant of x86-64.
_X32 = 0x40000000

# Classic BPF (linux/filter.h): load a word of the call's data, compare, return. A comparison has the numbers of
# instructions to skip if it holds and if it does not.
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _DENY, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE = 0, 4

_Instruction = tuple[int, int, int, int]
_DENIED: _Instruction = (_RETURN, 0, 0, _DENY | errno.EPERM)
_MISSING: _Instruction = (_RETURN, 0, 0, _DENY | errno.ENOSYS)
_ALLOWED: _Instruction = (_RETURN, 0, 0, _ALLOW)


def is_supported() -> bool:
    """Whether there is a filter for this processor architecture."""
    return platform.machine() in _MACHINES


def filter_program(*, denies_writing: bool) -> bytes:
    """The filter's instructions. `denies_writing`: also deny opening files for writing.

    Denied calls fail with EPERM; those that a kernel may lack with ENOSYS, which libraries take for an older kernel.
    """
    machine = _MACHINES[platform.machine()]
    code: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, machine.audit_arch), (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _X32), _MISSING,
    ]  # fmt: skip
    required = conditions(os.getpid(), denies_writing=denies_writing)
    for call, numbers in ALLOWED.items():
        if (number := numbers[machine.column]) is not None:
            body = [*_checked(required.get(call, ())), _ALLOWED]
            code.extend([(_EQUAL, 0, len(body), number), *body])
    code.extend([(_AT_LEAST, 0, 1, FIRST_OPTIONAL_CALL), _MISSING, _DENIED])
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _checked(required: Sequence[Condition]) -> list[_Instruction]:
    """Deny the call unless its arguments meet the conditions. Both machines are little-endian: an argument's lower half
    comes first."""
    code: list[_Instruction] = []
    for condition in required:
        place = 16 + 8 * condition.argument
        code.extend([(_LOAD, 0, 0, place), (_AND, 0, 0, condition.mask)])
        rest = len(condition.values)
        code.extend((_EQUAL, rest - index, 0, value) for index, value in enumerate(condition.values))
        code.append(_DENIED)
        if condition.is_wide:
            code.extend([(_LOAD, 0, 0, place + 4), (_EQUAL, 1, 0, 0), _DENIED])
    return code


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def apply_filter(libc: ctypes.CDLL, *, denies_writing: bool) -> None:
    text = filter_program(denies_writing=denies_writing)
    program, number = _Program(len(text) // 8, text), _MACHINES[platform.machine()].seccomp
    set_mode_filter, all_threads = 1, 1
    if libc.syscall(number, set_mode_filter, all_threads, ctypes.byref(program)) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")
