"""A compiled model in real runs: which kernels ran, how long each took, and how often it had to be compiled again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from torchgauge.capture import Request
from torchgauge.facts import EXTERN, Compiled, CompiledKernel, Recompilation
from torchgauge.measure.compiled.inductor import Options, Recording, compile_parts, recording, require_compiler
from torchgauge.measure.compiled.run import finished
from torchgauge.measure.latency import nearest
from torchgauge.measure.module_times import module_rows
from torchgauge.measure.parts import PROFILED_RUNS, Measurement, repeats
from torchgauge.measure.profile import DeviceKernel, HostEvent, Profiled, align, profile_runs
from torchgauge.measure.subject import Subject

if TYPE_CHECKING:
    from torchgauge.facts.document_types import SweepPoint


class CompiledRuns:
    """Compiles the measured model and records what was compiled. `facts` is None before the first run."""

    def __init__(self, request: Request, root: Options | None) -> None:
        self._request, self._root = request, root
        self._found: Recording | None = None
        self._used: list[Options] = []
        self._again: list[Recompilation] = []
        self.facts: Compiled | None = None

    @contextmanager
    def compiled(self, subject: Subject) -> Iterator[Subject]:
        """The subject with its model compiled, for the duration of the block."""
        require_compiler(self._request.device)
        with recording(subject.model, runs_code=True) as found:
            self._found = found
            model, self._used = compile_parts(subject.model, self._root, runs_code=True)
            yield replace(subject, model=model, is_compiled=True)

    def measure(self, work: Measurement) -> None:
        """A stage of the measurement, after those whose runs compiled everything: one run shows what is called."""
        assert self._found is not None
        self._found.calls.clear()
        work.run()
        facts = finished(self._found, self._used, self._request, is_run=True)
        # Dynamo compiles again for another number of threads, which only the measurement changes.
        self._again = [
            replace(one, point="threads") if "num_threads" in one.reason else one for one in facts.recompilations
        ]
        self.facts = facts = replace(facts, recompilations=tuple(self._again))
        if work.on_device and work.plan.parts:
            runs = repeats(work.total_s, work.plan.budget, most=PROFILED_RUNS)
            seen = profile_runs(work.run, {}, runs, device=work.subject.device)
            profiled = nearest(seen, lambda run: (run.end_ns - run.start_ns) * 1e-9, work.total_s)
            self.facts = facts = with_times(facts, profiled)
            own: dict[str, float] = {}
            for kernel in facts.kernels:
                for path, share in kernel.modules.items():
                    own[path] = own.get(path, 0.0) + share * (kernel.time_s or 0.0)
            work.modules = module_rows(own, work.total_s)
            work.figures["unexplained_s"] = work.total_s - (facts.joined_s or 0.0)

    def at_point(self, subject: Subject, run: Callable[[], None], row: SweepPoint) -> None:
        """At each point of a sweep: what was recompiled since the previous point."""
        assert self._found is not None
        new = self._found.recompilations[len(self._again) :]
        self._again += [replace(one, point=f"{row['key']}={row['value']}") for one in new]
        if self.facts is not None:
            self.facts = replace(self.facts, recompilations=tuple(self._again))


@dataclass(frozen=True, slots=True)
class _Launch:
    """Kernels that one call launched: of a generated kernel itself, of a library's function all that it needed."""

    name: str
    kernels: tuple[DeviceKernel, ...]

    @property
    def seconds(self) -> float:
        return sum(kernel.duration_ns for kernel in self.kernels) * 1e-9


def with_times(compiled: Compiled, runs: Sequence[Profiled]) -> Compiled:
    """Each kernel with its mean device time over the runs."""
    generated = {kernel.name for kernel in compiled.kernels if kernel.kind != EXTERN}
    times: list[dict[int, float]] = []
    for run in runs:
        launches = _launches(run, generated)
        times.append({at: launches[to].seconds for at, to in join_kernels(compiled.kernels, launches).items()})
    kernels = [
        replace(kernel, time_s=fmean(run[at] for run in times) if all(at in run for run in times) else None)
        for at, kernel in enumerate(compiled.kernels)
    ]
    return replace(
        compiled,
        kernels=tuple(kernels),
        profiled_s=fmean(sum(kernel.duration_ns for kernel in run.kernels) for run in runs) * 1e-9,
        joined_s=sum(kernel.time_s or 0.0 for kernel in kernels),
    )


def join_kernels(kernels: Sequence[CompiledKernel], launches: Sequence[_Launch]) -> dict[int, int]:
    """Which launch each kernel is, by order and name. A library's function may call an op of another name; between two
    matched kernels, the remaining ones are matched in order if there are as many on both sides."""
    pairs = align([_plain(kernel.name) for kernel in kernels], [_plain(launch.name) for launch in launches])
    found = dict(pairs)
    bounds = [(-1, -1), *sorted(pairs.items()), (len(kernels), len(launches))]
    for (row, column), (next_row, next_column) in itertools.pairwise(bounds):
        missing, left = range(row + 1, next_row), range(column + 1, next_column)
        if len(missing) == len(left):
            found |= dict(zip(missing, left, strict=True))
    return found


def _plain(name: str) -> str:
    """`aten::addmm` for Inductor's `extern_kernels.addmm`."""
    last = name.removeprefix("extern_kernels.").rpartition("::")[2].partition(".")[0]
    return last.removeprefix("bias_").removesuffix("_out").removesuffix("_")


def _launches(run: Profiled, generated: set[str]) -> list[_Launch]:
    """Launches in order, by the outermost op around a kernel; kernels that no op launched by themselves."""
    found: list[_Launch] = []
    held: set[int] = set()
    outer: HostEvent | None = None
    inside: list[DeviceKernel] = []

    def close() -> None:
        if outer is not None and inside:
            found.append(_Launch(outer.name, tuple(inside)))
        inside.clear()

    for event in run.events:
        if outer is None or event.start_ns >= outer.end_ns:
            close()
            is_op = "::" in event.name and " " not in event.name and not event.name.startswith("torchgauge::")
            outer = event if is_op or event.name in generated else None
        if outer is not None:
            inside += event.kernels
            held.update(map(id, event.kernels))
    close()
    found += [_Launch(kernel.name, (kernel,)) for kernel in run.kernels if id(kernel) not in held]
    return sorted(found, key=lambda launch: launch.kernels[0].start_ns)
