"""The limits of a budget, and a model judged by them: which are kept, which are broken and by which modules, which are
unknown."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchgauge.errors import TorchgaugeError, UsageError
from torchgauge.facts import StoredTensor, View, fit_row
from torchgauge.facts.figures import ENERGY, FILES, INFERENCE, TOTALS, Known, Members, Unit, figures_of, keys_known
from torchgauge.facts.files import logical_elements
from torchgauge.facts.measurements import energy_of, measurements_of
from torchgauge.facts.peak_memory import memory_over_run
from torchgauge.facts.quantized import size_of
from torchgauge.report.content.findings import Finding, findings
from torchgauge.report.content.summary import model_kind
from torchgauge.report.options import FORMS
from torchgauge.report.ranking import join_paths, path_pattern, share_of
from torchgauge.units import format_count, format_percent, parse_bytes, parse_count, parse_joules, parse_seconds


@dataclass(frozen=True, slots=True)
class Key:
    """A total that can have a limit; `needs` is what must be asked for to have it."""

    parse: Callable[[str], float]
    form: Callable[[Any], str]
    needs: str | None = None


# Up to here floats represent all whole numbers.
_EXACT_INTEGERS = 2.0**53
_PARSERS: Mapping[Unit, Callable[[str], float]] = {
    Unit.BYTES: parse_bytes,
    Unit.SECONDS: parse_seconds,
    Unit.JOULES: parse_joules,
}
_NEEDS: Mapping[Known, str] = {INFERENCE: "inference", ENERGY: "profile"}
# Figures of the predictions for a device, by the key of the document.
_PREDICTED: Mapping[str, Mapping[str, Unit]] = {
    "fit": dict.fromkeys(("allocated_bytes", "reserved_bytes", "used_bytes", "required_bytes"), Unit.BYTES),
    "forecast": {"predicted_time_s": Unit.SECONDS, "predicted_energy_j": Unit.JOULES},
}


class Predicted(NamedTuple):
    """A figure of the predictions for a device; without one, for the first that the model was analysed for."""

    table: str
    device: str | None
    figure: str

    @classmethod
    def of(cls, key: str) -> Predicted | None:
        """`fit.h200.used_bytes`, `forecast.h200.predicted_time_s`, `predicted_time_s`."""
        if key in _PREDICTED["forecast"]:
            return cls("forecast", None, key)
        table, _, rest = key.partition(".")
        device, _, figure = rest.rpartition(".")
        return cls(table, device, figure) if device and figure in _PREDICTED.get(table, ()) else None

    def row(self, view: View) -> Members | None:
        rows = map(fit_row, view.capture.fit) if self.table == "fit" else view.capture.forecast
        return next((row for row in rows if self.device in (None, row["device"])), None)


class BudgetKeys(dict[str, Key]):
    """The totals by their names, and predictions for any device."""

    def __missing__(self, key: str) -> Key:
        found = Predicted.of(key)
        if found is None:
            raise KeyError(key)
        unit = _PREDICTED[found.table][found.figure]
        return Key(_PARSERS[unit], FORMS[unit])

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (isinstance(key, str) and Predicted.of(key) is not None)


KEYS = BudgetKeys(
    (figure.key, Key(_PARSERS.get(figure.unit, parse_count), FORMS[figure.unit], _NEEDS.get(figure.known)))
    for figure in figures_of(TOTALS)
    if figure.unit.is_number
)


@dataclass(frozen=True, slots=True)
class Limit:
    """`origin` says where a limit comes from that follows from another run."""

    key: str
    most: float
    origin: str = ""

    @property
    def text(self) -> str:
        return KEYS[self.key].form(self.most) + (f" ({self.origin})" if self.origin else "")


def parse_limit(text: str) -> Limit:
    """`params=30M`."""
    key, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"'{text}' is not a limit; write it like params=30M")
    return limit(key.strip(), value.strip())


def limit(key: str, value: float | str) -> Limit:
    """A plain number is in the unit of the key: elements, bytes, seconds, joules."""
    if key not in KEYS:
        predictions = (f"{table}.DEVICE.({'|'.join(figures)})" for table, figures in _PREDICTED.items())
        known = ", ".join([*KEYS, *_PREDICTED["forecast"], *predictions])
        raise UsageError(f"there is no figure '{key}' to limit; choose from: {known}")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UsageError(f"the limit of '{key}' is a number or a text like 30M, not {value!r}")
    most = float(KEYS[key].parse(value) if isinstance(value, str) else value)
    if not 0 <= most < math.inf:
        raise UsageError(f"the limit of '{key}' cannot be {value}")
    return Limit(key, int(most) if most.is_integer() and most < _EXACT_INTEGERS else most)


class Increase(NamedTuple):
    """How far a figure may exceed that of another run: `share` of it, or `amount` in the unit of the key."""

    key: str
    text: str
    share: float = 0.0
    amount: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Increase:
        """`macs=1%`, `params=200k`."""
        key, separator, value = map(str.strip, text.partition("="))
        if not separator:
            raise UsageError(f"'{text}' is not an increase; write it like macs=1%")
        if not value.endswith("%"):
            return cls(key, value, amount=limit(key, value).most)
        limit(key, 0)  # refuses unknown figures
        try:
            share = float(value.removesuffix("%")) / 100
        except ValueError:
            share = math.nan
        if not 0 <= share < math.inf:
            raise UsageError(f"'{value}' is not a percentage; write the increase like {key}=1%")
        return cls(key, value, share=share)

    def limit(self, base: View, name: str) -> Limit:
        """The limit that follows from the other run, whose name is for messages."""
        value = figure_of(base, self.key)
        if value is None:
            raise TorchgaugeError(f"'{name}' has no {self.key}: {_reason(base, self.key)}")
        most = limit(self.key, value * (1 + self.share) + self.amount).most
        return Limit(self.key, most, f"{name} {KEYS[self.key].form(value)} + {self.text}")


def limits(budgets: Mapping[str, float | str]) -> list[Limit]:
    return [limit(key, value) for key, value in budgets.items()]


def analysis_needs(wanted: list[Limit]) -> dict[str, Any]:
    """The arguments of an analysis that knows all these figures."""
    needs = {KEYS[entry.key].needs for entry in wanted}
    predicted = (Predicted.of(entry.key) for entry in wanted)
    devices = list(dict.fromkeys(found.device for found in predicted if found is not None and found.device))
    known = {"inference": bool(needs & {"inference", "profile"}), "profile": "profile" in needs, "on": devices}
    return {name: value for name, value in known.items() if value}


def figure_of(view: View, key: str) -> float | None:
    """A total, or a prediction for a device."""
    found = Predicted.of(key)
    if found is None:
        return view.totals[key]
    row = found.row(view)
    return None if row is None else row[found.figure]


PEAKS = ("peak_activation_bytes", "total_bytes")


@dataclass(frozen=True, slots=True)
class Contributor:
    """Modules at one place of repeated blocks, without the modules below them; `value` is of all together."""

    paths: str
    kind: str
    count: int
    value: float
    share: float


def contributors(view: View, key: str, limit: float, most: int) -> list[Contributor]:
    """The largest first; for a peak, the modules that are above the limit while they run."""
    kinds = {record.path: record.type for record in view.capture.modules}
    whole = figure_of(view, key) or 0
    if key in PEAKS:
        # A peak is not a sum: a module's part is the most that is alive while its ops run.
        peaks: dict[str, int] = {}
        for use in memory_over_run(view.capture):
            path = use.op.module if use.op else ""
            alive = use.total if key == "total_bytes" else use.op.live_bytes if use.op else view.capture.input_bytes
            peaks[path] = max(peaks.get(path, 0), alive)
        ranked = sorted(((peak, path) for path, peak in peaks.items() if peak > limit), key=lambda pair: -pair[0])
        return [Contributor(path, kinds.get(path, ""), 1, peak, share_of(peak, whole)) for peak, path in ranked[:most]]
    if (predicted := Predicted.of(key)) is not None:
        row = predicted.row(view)
        if predicted.table != "fit" or row is None:
            return []
        # The modules that hold the most at the predicted peak.
        held = [(entry["module"], entry["bytes"]) for entry in row["holders"][:most]]
        return [Contributor(path, kinds.get(path, ""), 1, nbytes, share_of(nbytes, whole)) for path, nbytes in held]
    amounts = _amounts(view, key)
    groups: dict[Hashable, list[str]] = {}
    for path, amount in amounts.items():
        if amount > 0:
            # Measured figures are never quite equal.
            likeness = None if isinstance(amount, float) else amount
            groups.setdefault((path_pattern(path), kinds.get(path, ""), likeness), []).append(path)
    found = [
        Contributor(join_paths(paths), kinds.get(paths[0], ""), len(paths), total, share_of(total, whole))
        for paths in groups.values()
        for total in (sum(amounts[path] for path in paths),)
    ]
    return sorted(found, key=lambda entry: -entry.value)[:most]


def _amounts(view: View, key: str) -> Mapping[str, float]:
    """The contribution of each module to the total, without its children, by path."""
    if key in view.tree.own:
        return {node.path: node.own[key] for node in view.tree.walk()}
    if key in _OF_STEP:
        ops, step = view.capture.ops, view.capture.run.step
        kept = getattr(step, _OF_STEP[key]) if step else ()
        return _sums((ops[op].module if op >= 0 else "", nbytes) for op, nbytes in kept)
    if key == "time_s":
        return {row.path: row.self_time_s or 0.0 for row in view.modules}
    if key == "energy_j":
        return _sums((op.module, op.energy_j or 0.0) for op in view.ops)
    if key in ("logical_params", "stored_elements") and view.capture.stored is None:
        sizes = ((param.module, size_of((param,))) for param in view.capture.params)
        return _sums((path, size.logical if key == "logical_params" else size.stored_elements) for path, size in sizes)
    if key in _HELD:
        return _sums(
            (param.module, param.nbytes if key.endswith("_bytes") else param.spec.numel)
            for param in view.capture.params
            if _HELD[key](param.is_buffer, param.trainable)
        )
    if key not in (*keys_known(TOTALS, FILES), "logical_params", "stored_elements"):
        return {}
    roles = {"optimizer_elements": "optimizer", "logical_params": "parameter"}
    stored = view.capture.stored.tensors if view.capture.stored else ()

    def amount(tensor: StoredTensor) -> int:
        if key == "stored_bytes":
            return tensor.nbytes
        return logical_elements(tensor) if key == "logical_params" else tensor.spec.distinct_numel

    return _sums(
        (tensor.name.rpartition(".")[0], amount(tensor))
        for tensor in stored
        if tensor.shared_with is None and tensor.role == roles.get(key, tensor.role)
    )


# The storages of a training step that each total adds up.
_OF_STEP = {"saved_activation_bytes": "saved", "gradient_bytes": "gradients", "optimizer_bytes": "optimizer_state"}
# Which parameters and buffers each total counts; it adds up their elements or bytes.
_HELD: dict[str, Callable[[bool, bool], bool]] = {
    "params": lambda is_buffer, trainable: not is_buffer,
    "active_params": lambda is_buffer, trainable: not is_buffer,
    "trainable_params": lambda is_buffer, trainable: trainable and not is_buffer,
    "param_bytes": lambda is_buffer, trainable: not is_buffer,
    "buffer_bytes": lambda is_buffer, trainable: is_buffer,
}


def _sums(amounts: Iterable[tuple[str, float]]) -> Mapping[str, float]:
    found: defaultdict[str, float] = defaultdict(int)
    for path, amount in amounts:
        found[path] += amount
    return found


WITHIN, BROKEN, UNKNOWN = "within", "broken", "unknown"
# Exit statuses of the command line: a broken budget, and a request that could not be met.
BROKEN_STATUS, UNKNOWN_STATUS = 3, 1
MAX_CONTRIBUTORS = 5
_FACTORS_FROM = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """`blamed` are the largest contributors of a broken limit; `reason` says why a figure is not known."""

    limit: Limit
    value: float | None
    state: str
    blamed: tuple[Contributor, ...] = ()
    reason: str | None = None

    @property
    def value_text(self) -> str:
        return KEYS[self.limit.key].form(self.value)

    @property
    def over_text(self) -> str:
        return KEYS[self.limit.key].form((self.value or 0) - self.limit.most)

    @property
    def used(self) -> float | None:
        """The share of the limit."""
        return self.value / self.limit.most if self.value is not None and self.limit.most else None

    @property
    def used_text(self) -> str:
        """A percentage up to ten times the limit, then a factor."""
        is_factor = self.used is not None and self.used >= _FACTORS_FROM
        return f"×{format_count(self.used)}" if is_factor else format_percent(self.used)


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """One target and the verdict on each limit, in the order they were given. `failure` is why the target could not be
    analysed: nothing is known of it then. `findings` are what its reader must know first; an unsafe file breaks the
    budget unless `allows_unsafe_file`."""

    target: str
    kind: str
    verdicts: tuple[Verdict, ...]
    failure: str | None = None
    findings: tuple[Finding, ...] = ()
    allows_unsafe_file: bool = False

    @property
    def broken(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.state == BROKEN)

    @property
    def unknown(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.state == UNKNOWN)

    @property
    def unsafe(self) -> tuple[Finding, ...]:
        """The findings for which the check fails."""
        return () if self.allows_unsafe_file else tuple(found for found in self.findings if found.is_unsafe)

    @property
    def exit_status(self) -> int:
        """A figure that is not known never passes."""
        return BROKEN_STATUS if self.broken or self.unsafe else UNKNOWN_STATUS if self.unknown else 0


def check_view(view: View, limits: Sequence[Limit], *, allow_unsafe_file: bool = False) -> BudgetReport:
    verdicts = []
    for limit in limits:
        value = figure_of(view, limit.key)
        if value is None:
            verdict = Verdict(limit, None, UNKNOWN, reason=_reason(view, limit.key))
        elif value <= limit.most:
            verdict = Verdict(limit, value, WITHIN)
        else:
            verdict = Verdict(limit, value, BROKEN, tuple(contributors(view, limit.key, limit.most, MAX_CONTRIBUTORS)))
        verdicts.append(verdict)
    return BudgetReport(
        view.capture.target.name,
        model_kind(view),
        tuple(verdicts),
        findings=tuple(findings(view)),
        allows_unsafe_file=allow_unsafe_file,
    )


def unchecked(target: str, limits: Sequence[Limit], failure: str) -> BudgetReport:
    """The verdicts on a target that could not be analysed."""
    reason = " ".join(failure.split())
    verdicts = tuple(Verdict(limit, None, UNKNOWN, reason=reason) for limit in limits)
    return BudgetReport(target, "", verdicts, reason)


def _reason(view: View, key: str) -> str:
    if key == "energy_j":
        energy = energy_of(view)
        reason = energy["reason"] if energy else None
        return f"it was not measured: {reason}" if reason else "it was not measured: a run with --profile is needed"
    if key == "time_s":
        reason = measurements_of(view).get("failure")
        return f"it was not measured: {reason}" if reason else "it was not measured: a run with --inference is needed"
    if Predicted.of(key) is not None:
        return "it was not predicted: name the device (--on h200); if it was named, the warnings say why not"
    if key in ("stored_bytes", "optimizer_elements"):
        return "the model is not stored in a file"
    return view.capture.run.reason or "the model was not run"
