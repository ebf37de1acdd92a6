"""How each number was obtained, with its caveats, and the environment of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from torchgauge.facts import View
from torchgauge.facts.measurements import energy_of, measurements_of
from torchgauge.registry import grouped
from torchgauge.report.content.ops import coverage_section, unused_modules
from torchgauge.report.content.summary import real_run_text, run_text
from torchgauge.report.content.system import plain_name
from torchgauge.report.content.weights import scan_text
from torchgauge.report.options import Options
from torchgauge.report.page.cost import device_peaks
from torchgauge.report.page.payload import part, section_data
from torchgauge.report.weight_statistics import summary_of
from torchgauge.units import format_exact, format_seconds, format_shape

_MAX_UNUSED = 40
_STATIC = "The model was run once on tensors without values: every op was recorded, nothing was computed"
VERDICTS = ("dangerous", "unknown", "expected")


@part("method")
def method(view: View, options: Options) -> dict[str, object]:
    run = view.capture.run
    how = run.reason if run.mode is None else _STATIC if run.mode == "fake" else real_run_text(view)
    nodes = unused_modules(view)
    rows = [{"path": node.path, "params": node.record.params} for node in nodes[:_MAX_UNUSED]]
    # Figures that are absent for the same reason, together.
    names = grouped((row["reason"], row["name"]) for row in _absent(view))
    inputs = [
        {
            "name": entry.name,
            "shape": format_shape(entry.spec.shape),
            "dtype": entry.spec.dtype,
            "inferred": entry.inferred,
        }
        for entry in view.capture.inputs
    ]
    summary, weights = summary_of(view), None
    if summary and summary["scan"]:
        failed = f"; {format_exact(len(summary['failures']))} could not be read" if summary["failures"] else ""
        weights = f"{scan_text(summary['scan'])}; statistics over finite values{failed}"
    return {
        "has_code": view.capture.has_code,
        "run": run_text(view),
        "how": how,
        "warnings": list(run.warnings),
        "inputs": inputs,
        "coverage": section_data(coverage_section(view)) if view.capture.has_code else None,
        "unused": {"count": len(nodes), "modules": rows},
        "measured": _measured(view),
        "energy": _energy(view),
        "weights": weights,
        "settings": [
            {
                "name": name.removesuffix("_s").replace("_", " "),
                "value": format_seconds(value) if name.endswith("_s") and isinstance(value, int | float) else value,
            }
            for name, value in (measurements_of(view).get("settings") or {}).items()
        ],
        "absent": [_missing(", ".join(dict.fromkeys(found)), reason) for reason, found in names.items()],
        "pickle": _pickle(view),
    }


def _measured(view: View) -> dict[str, object] | None:
    if view.measurements is None:
        return None
    figures = measurements_of(view)
    latency = figures.get("latency")
    return {
        "device": figures.get("device"),
        "failure": figures.get("failure"),
        "runs": latency and latency["runs"],
        "warmup_runs": latency and latency.get("warmup_runs"),
        "profile": figures.get("profile"),
        "notes": list(figures.get("notes") or ()),
    }


def _energy(view: View) -> dict[str, object] | None:
    figures = energy_of(view)
    if figures is None:
        return None
    basis = figures.get("estimated_from")
    return {
        "origin": figures["origin"],
        "boundary": figures.get("boundary"),
        "technology": basis and basis["technology"],
        "sources": list(basis["sources"]) if basis else [],
    }


def _pickle(view: View) -> dict[str, object] | None:
    """The names that the files' pickles would import, unexpected ones first."""
    stored = view.capture.stored
    if stored is None or not stored.imports:
        return None
    ranked = sorted(stored.imports, key=lambda entry: VERDICTS.index(entry.verdict))
    rows = [{"name": entry.name, "verdict": entry.verdict, "called": entry.called} for entry in ranked]
    return {"executed": stored.executed, "imports": rows}


def _absent(view: View) -> Iterator[dict[str, str]]:
    """Missing figures, each with its reason."""
    if not view.capture.has_code:
        yield _missing("MACs, FLOPs, activations, time", view.capture.run.reason or "there is no code to run")
    elif view.measurements is None:
        yield _missing("measured time and memory", "not requested: --inference measures them")
    elif not measurements_of(view).get("system"):
        yield _missing("times of ops, system and counters", "not requested: --profile measures them")
    measured = measurements_of(view)
    for member in (measured.get("system"), measured.get("counters")):
        yield from _reasons(member.get("absent") or {} if member else {})
    energy = energy_of(view)
    if energy is not None and energy["origin"] != "measured":
        # The reason has those of every meter in it.
        yield _missing("measured energy", str(energy["reason"]))
    elif energy is not None:
        for meter in energy["meters"]:
            if not meter["available"] and meter.get("reason"):
                yield _missing(meter["name"], str(meter["reason"]))
        thermal = energy.get("thermal")
        yield from _reasons(thermal.get("absent") or {} if thermal else {})


def _reasons(absent: Mapping[str, str]) -> Iterator[dict[str, str]]:
    for name, reason in absent.items():
        yield _missing(plain_name(name), reason)


def _missing(name: str, reason: str) -> dict[str, str]:
    return {"name": name, "reason": reason}


_MAX_FILES = 40


@part("environment")
def environment(view: View, options: Options) -> dict[str, object]:
    capture, here = view.capture, view.capture.environment
    return {
        "created": capture.created,
        "version": capture.version,
        "device": capture.run.device,
        "python": here.python,
        "torch": here.torch,
        "platform": here.platform,
        "cpu": here.cpu,
        "cpu_cores": here.cpu_cores,
        "memory_bytes": here.memory_bytes,
        "threads": here.threads,
        "accelerator": here.device,
        "settings": [{"name": name, "value": value} for name, value in here.settings.items()],
        "packages": [{"name": name, "version": version} for name, version in here.packages.items()],
        "peaks": (peaks := device_peaks(view)) and asdict(peaks),
        "target": {
            "name": capture.target.name,
            "kind": capture.target.kind,
            "format": capture.target.format,
            "files": list(capture.target.files[:_MAX_FILES]),
            "file_count": len(capture.target.files),
            "metadata": [{"name": name, "value": value} for name, value in capture.target.metadata.items()],
        },
    }
