"""Relations that measured figures must satisfy: parts do not exceed their whole, no op is faster than its device,
threads neither create nor destroy more work than there is, and error bars are as wide as the noise of the run.

On a busy machine, figures from separate runs break them. Such a figure is withheld (null), and the notes of the
measurements say why. A `View` applies this before any report, so all formats agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from torchgauge.facts.capture import Capture
from torchgauge.facts.measurements import EnergyFacts, Measured, MeasuredModule, MeasuredOp
from torchgauge.units import format_percent, format_seconds, format_things, format_value

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Advice, Latency, Measurements
    from torchgauge.facts.predictions import OpForecast, PredictedRow

# Runs of one model on an idle machine differ by this share from minute to minute.
LEAST_NOISE = 0.05
# Below this share of the roof something other than arithmetic or memory limits an op.
NEAR_THE_ROOF = 0.25
# Hooks and profilers make runs of many small modules and ops up to so much longer. Shares are then of these runs.
MOST_OVERHEAD = 0.5
# With less of the time attributed, the part that took the most may be one that is not known.
LEAST_ATTRIBUTED = 0.9
ROOF_BOUNDS = ("compute", "memory")

Rows = TypeVar("Rows", MeasuredOp, MeasuredModule, "PredictedRow")


def plausible(capture: Capture) -> Capture:
    """The capture without figures that cannot be. The same object where nothing is withheld."""
    changes: dict[str, object] = {}
    if capture.measured is not None and (measured := _plausible_runs(capture.measured)) is not capture.measured:
        changes["measured"] = measured
    if capture.energy is not None and (energy := _plausible_energy(capture.energy)) is not capture.energy:
        changes["energy"] = energy
    if (predicted := capture.predicted) is not None:
        ops = _changed(predicted.ops, _predicted_limits)
        if ops is not predicted.ops:
            changes["predicted"] = replace(predicted, ops=ops)
    noise = _noise(capture.measured.figures.get("latency")) if capture.measured else 0.0
    for name, given in (("advice", capture.advice), ("options", capture.options)):
        widened = tuple(_widened(row, noise) for row in given)
        if any(new is not old for new, old in zip(widened, given, strict=True)):
            changes[name] = widened
    return replace(capture, **changes) if changes else capture  # type: ignore[arg-type]


def whole_time_s(capture: Capture, parts_s: Iterable[float]) -> float | None:
    """The time that parts of a run are shares of: that of the run, or of the parts where timing them took longer; None
    where it took so much longer that shares mean nothing."""
    latency = capture.measured.figures.get("latency") if capture.measured else None
    if latency is None:
        return None
    whole, parts = latency["median_s"], sum(parts_s)
    return max(whole, parts) if parts <= (1 + MOST_OVERHEAD) * whole else None


def ranking_doubt(capture: Capture) -> str | None:
    """Why parts cannot be ranked by measured time: too much of it was spent in calls that belong to none of them."""
    profile = capture.measured.figures.get("profile") if capture.measured else None
    share = profile.get("attributed_share") if profile else None
    if profile is None or share is None or share >= LEAST_ATTRIBUTED:
        return None
    calls = [f"{format_things(row['calls'], 'call')} of {row['op']}" for row in profile.get("unjoined_calls") or ()]
    others = f" ({', '.join(calls[:3])}{', …' if len(calls) > 3 else ''})" if calls else ""
    return (
        f"No ranking by measured time or energy: {format_percent(share)} of the time in calls could be attributed to "
        f"ops of the model, the rest is of other calls{others}. A ranking needs {format_percent(LEAST_ATTRIBUTED)}."
    )


def within_roof(share: float | None) -> float | None:
    """None for more than all that a device can do."""
    return share if share is None or 0 <= share <= 1 else None


def interval_share(latency: Latency | None) -> float | None:
    """Half of the median's interval, of the median; None for a single run."""
    if not latency or latency.get("runs", 1) <= 1:
        return None
    median, interval = latency["median_s"], latency["ci95_s"]
    return (interval[1] - interval[0]) / 2 / median if median and interval else None


def _noise(latency: Latency | None) -> float:
    """The share by which another run may differ."""
    return max(LEAST_NOISE, interval_share(latency) or 0.0)


def _plausible_runs(measured: Measured) -> Measured:
    figures, reasons = cast("dict[str, Any]", dict(measured.figures)), list[str]()
    latency = measured.figures.get("latency")
    for rule in (_latency, _attribution, _threads, _machine, _counters):
        reasons += rule(figures, measured, _noise(latency))
    modules, beyond = _module_shares(measured, latency)
    reasons += beyond
    ops = _changed(measured.ops, _limits)
    above = [share for row in measured.ops.values() if (share := row.get("roof_share")) is not None and share > 1]
    if above:
        count, most = format_things(len(above), "op"), format_percent(max(above))
        reasons.append(f"the share of the roof is withheld for {count}: up to {most} of what the device can do")
    if reasons:
        figures["notes"] = [*(figures.get("notes") or ()), *reasons]
    if not reasons and ops is measured.ops and modules is measured.modules and figures == measured.figures:
        return measured
    return replace(measured, figures=cast("Measurements", figures), modules=modules, ops=ops)


def _latency(figures: dict[str, Any], measured: Measured, noise: float) -> list[str]:
    """The host is done with a call before the call is over."""
    latency = measured.figures.get("latency")
    host_s = latency.get("host_s") if latency else None
    if latency is None or host_s is None or host_s <= (1 + noise) * latency["median_s"]:
        return []
    figures["latency"] = {**latency, "host_s": None}
    return [f"the host's time is withheld: {format_seconds(host_s)}, longer than the run"]


def _attribution(figures: dict[str, Any], measured: Measured, noise: float) -> list[str]:
    """The ops of a run take no longer than the run, and the profiler makes it no faster."""
    latency, profile = measured.figures.get("latency"), measured.figures.get("profile")
    unexplained_s = figures.get("unexplained_s")
    if latency is None or profile is None:
        return []
    whole, reasons = latency["median_s"], list[str]()
    overhead = profile.get("overhead_share")
    if overhead is not None and overhead < -noise:
        figures |= {"profile": {**profile, "overhead_share": None}, "unexplained_s": None}
        took = f"{format_seconds(profile['median_s'])} with the profiler, {format_seconds(whole)} without"
        reasons.append(f"unattributed time is withheld: a run took {took}; the machine was busy")
    elif unexplained_s is not None and unexplained_s < -noise * whole:
        figures["unexplained_s"] = None
        took = f"{format_seconds(whole - unexplained_s)} under the profiler, the whole run {format_seconds(whole)}"
        shares = " and shares of time are" if unexplained_s < -MOST_OVERHEAD * whole else " is"
        reasons.append(f"unattributed time{shares} withheld: the ops took {took}")
    elif unexplained_s is not None and unexplained_s < 0:
        figures["unexplained_s"] = 0.0
    idle_s, device_s = profile.get("device_idle_s"), profile.get("device_s")
    if idle_s is not None and idle_s + (device_s or 0.0) > (1 + noise) * max(whole, profile["median_s"]):
        figures["profile"] = {**figures["profile"], "device_idle_s": None}
        reasons.append("the device's idle time is withheld: with its work it is longer than the run")
    return reasons


def _threads(figures: dict[str, Any], measured: Measured, noise: float) -> list[str]:
    """With n threads, a run takes at least an nth of the time, and at most n times as long."""
    threads, reasons = measured.figures.get("threads"), list[str]()
    if not threads:
        return reasons
    kept = dict(threads)
    rows = threads.get("scaling") or []
    possible = [row for row in rows if 1 / row["threads"] <= row.get("speedup", 1.0) <= row["threads"]]
    if len(possible) < len(rows):
        kept["scaling"] = possible or None
        for row in rows:
            if row not in possible:
                speed, count = f"{format_value(row['speedup'])}×", format_things(row["threads"], "thread")
                reasons.append(f"the speed-up with {count} is withheld: {speed} is out of the range that is possible")
    serial = threads.get("serial_share") or {}
    if within := {kind: share for kind, share in serial.items() if share is None or 0 <= share <= 1}:
        kept["serial_share"] = within
    elif serial:
        kept["serial_share"] = None
    if (busy := threads.get("utilisation")) is not None and not 0 <= busy <= 1:
        is_noise = 0 <= busy <= 1 + noise
        kept["utilisation"] = 1.0 if is_noise else None
        if not is_noise:
            reasons.append(f"how busy the threads were is withheld: {format_percent(busy)} of their time")
    if kept != threads:
        figures["threads"] = kept
    return reasons


def _machine(figures: dict[str, Any], measured: Measured, noise: float) -> list[str]:
    """All processes together use no more than the machine."""
    around = measured.figures.get("surroundings")
    if not around:
        return []
    shares = [around.get("own_share"), around.get("other_processes_share")]
    if sum(share or 0.0 for share in shares) <= 1 + noise and min(share or 0.0 for share in shares) >= 0:
        return []
    figures["surroundings"] = {**around, "own_share": None, "other_processes_share": None}
    return ["the shares of the machine are withheld: together they are more than all of it"]


_COUNTED_SHARES = {"cache_hit_ratio": "cache hits", "memory_bandwidth_share": "the share of the memory bandwidth"}


def _counters(figures: dict[str, Any], measured: Measured, noise: float) -> list[str]:
    counters = cast("dict[str, Any] | None", measured.figures.get("counters"))
    above = [key for key in _COUNTED_SHARES if counters and not 0 <= (counters.get(key) or 0.0) <= 1]
    if not counters or not above:
        return []
    figures["counters"] = {**counters, **dict.fromkeys(above)}
    return [f"{_COUNTED_SHARES[key]} are withheld: {format_percent(counters[key])}" for key in above]


def _module_shares(measured: Measured, latency: Latency | None) -> tuple[Mapping[str, MeasuredModule], list[str]]:
    """Modules take no longer than the model. Their hooks make runs a little longer: shares are then of these runs."""
    root = measured.modules.get("", {}).get("time_s")
    if latency is None or not root:
        return measured.modules, []
    whole, reasons = latency["median_s"], list[str]()
    is_known = root <= (1 + MOST_OVERHEAD) * whole
    if not is_known and any(row.get("time_share") is not None for row in measured.modules.values()):
        took = f"{format_seconds(root)} when its modules were timed, {format_seconds(whole)} undisturbed"
        reasons.append(f"the modules' shares of time are withheld: a run took {took}")
    total = max(whole, root)

    def within(row: MeasuredModule) -> MeasuredModule:
        seconds, share, own = row.get("time_s"), row.get("time_share"), row.get("self_time_s")
        changed = dict(row)
        if share is not None and (not is_known or seconds is None or seconds > total):
            changed["time_share"] = None
        elif share is not None and seconds is not None and total > whole:
            changed["time_share"] = seconds / total
        if own is not None and own < 0:
            changed["self_time_s"] = None  # its children were timed in other runs
        return cast("MeasuredModule", changed) if changed != row else row

    return _changed(measured.modules, within), reasons


def _limits(row: MeasuredOp) -> MeasuredOp:
    share, bound = row.get("roof_share"), row.get("bound")
    if share is None or bound not in (None, *ROOF_BOUNDS):
        return row if share is None or share <= 1 else {**row, "roof_share": None}
    if share > 1:
        return {**row, "roof_share": None, "bound": None}
    return {**row, "bound": None} if bound is not None and share < NEAR_THE_ROOF else row


def _predicted_limits(row: PredictedRow) -> PredictedRow:
    share, bound = row.get("predicted_roof_share"), row.get("predicted_bound")
    if share is not None and share > 1:
        return {**row, "predicted_roof_share": None, "predicted_bound": None}
    if share is not None and share < NEAR_THE_ROOF and bound in ROOF_BOUNDS:
        return {**row, "predicted_bound": None}
    return row


def forecast_limits(row: OpForecast) -> OpForecast:
    """A predicted op, without a share above the roof and without a bound far below it."""
    share = row["roof_share"]
    if share is not None and share > 1:
        return {**row, "roof_share": None, "bound": None if row["bound"] in ROOF_BOUNDS else row["bound"]}
    is_far = share is not None and share < NEAR_THE_ROOF and row["bound"] in ROOF_BOUNDS
    return {**row, "bound": None} if is_far else row


def _plausible_energy(energy: EnergyFacts) -> EnergyFacts:
    """The ops and the modules of a run take no more energy than the run."""
    figures, reasons = cast("dict[str, Any]", dict(energy.figures)), list[str]()
    whole = energy.figures.get("joules")
    ops, modules = energy.ops, energy.modules
    spent = sum(row.get("energy_j") or 0.0 for row in ops.values())
    most = max((row.get("energy_j") or 0.0 for row in modules.values()), default=0.0)
    if whole is not None and max(spent, most) > (1 + LEAST_NOISE) * whole:
        # Both come from the same attribution.
        ops = {index: {**row, "energy_j": None} for index, row in ops.items()}
        modules = {path: {**row, "energy_j": None} for path, row in modules.items()}
        reasons.append("the energy of ops and modules is withheld: together they take more than the whole run")
    attribution = cast("dict[str, Any] | None", energy.figures.get("attribution"))
    explained = attribution.get("explained_share") if attribution else None
    if attribution and explained is not None and (explained > 1 + LEAST_NOISE or explained < 0):
        figures["attribution"] = {**attribution, "explained_share": None, "residue_j": None}
        reasons.append(f"the share of the energy that is attributed is withheld: {format_percent(explained)}")
    if not reasons:
        return energy
    figures["notes"] = [*figures["notes"], *reasons]
    return EnergyFacts(cast("Any", figures), modules, ops)


def _widened(row: Advice, noise: float) -> Advice:
    """A gain in measured time is known no better than the run that it was measured in."""
    gain = row.get("expected_gain")
    if gain is None or gain["quantity"] != "time_s" or gain.get("basis") != "measured" or row.get("verified"):
        return row
    middle = (gain["low"] + gain["high"]) / 2
    if middle <= 0:
        return row
    # Nothing saves more than everything.
    share = max(min(noise, 1.0, 1 / middle - 1), 0.0)
    if (gain["high"] - gain["low"]) / 2 >= share * middle * (1 - 1e-9):
        return row
    return {**row, "expected_gain": {**gain, "low": middle * (1 - share), "high": middle * (1 + share)}}


Key = TypeVar("Key")


def _changed(rows: Mapping[Key, Rows], change: Callable[[Rows], Rows]) -> Mapping[Key, Rows]:
    """The same mapping where no row changes."""
    found = {key: change(row) for key, row in rows.items()}
    return found if any(found[key] is not row for key, row in rows.items()) else rows
