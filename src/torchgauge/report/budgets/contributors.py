"""The modules that make up a figure: the largest of them break the budget."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass

from torchgauge.facts import StoredTensor, View
from torchgauge.facts.figures import FILES, TOTALS, keys_known
from torchgauge.facts.files import logical_elements
from torchgauge.facts.peak_memory import memory_over_run
from torchgauge.facts.quantized import size_of
from torchgauge.report.budgets.limits import Predicted
from torchgauge.report.ranking import join_paths, path_pattern, share_of

PEAKS = ("peak_activation_bytes", "total_bytes")


@dataclass(frozen=True, slots=True)
class Contributor:
    """Modules at one place of repeated blocks, with what is theirs and not of those below; `value` of all together."""

    paths: str
    kind: str
    count: int
    value: float
    share: float


def contributors(view: View, key: str, limit: float, most: int) -> list[Contributor]:
    """The largest first; of a peak those that are above the limit as they run."""
    if key in PEAKS:
        return _above(view, key, limit, most)
    predicted = Predicted.of(key)
    if predicted is not None:
        return _holders(view, predicted, most) if predicted.table == "fit" else []
    amounts = _amounts(view, key)
    groups: dict[Hashable, list[str]] = {}
    kinds = {record.path: record.type for record in view.capture.modules}
    for path, amount in amounts.items():
        if amount > 0:
            # What was measured is never quite equal.
            likeness = None if isinstance(amount, float) else amount
            groups.setdefault((path_pattern(path), kinds.get(path, ""), likeness), []).append(path)
    whole = view.totals[key] or 0
    found = [
        Contributor(join_paths(paths), kinds.get(paths[0], ""), len(paths), total, share_of(total, whole))
        for paths in groups.values()
        for total in (sum(amounts[path] for path in paths),)
    ]
    return sorted(found, key=lambda entry: -entry.value)[:most]


def _holders(view: View, predicted: Predicted, most: int) -> list[Contributor]:
    """The modules that hold the most at the predicted peak."""
    row, figure = predicted.row(view), predicted.figure
    assert row is not None
    kinds = {record.path: record.type for record in view.capture.modules}
    held = [(entry["module"], entry["bytes"]) for entry in row["holders"][:most]]
    return [Contributor(path, kinds.get(path, ""), 1, nbytes, share_of(nbytes, row[figure])) for path, nbytes in held]


def _above(view: View, key: str, limit: float, most: int) -> list[Contributor]:
    """A peak is not a sum: a module's part is the most that is alive while its ops run."""
    peaks: dict[str, int] = {}
    for use in memory_over_run(view.capture):
        path = use.op.module if use.op else ""
        alive = use.total if key == "total_bytes" else use.op.live_bytes if use.op else view.capture.input_bytes
        peaks[path] = max(peaks.get(path, 0), alive)
    kinds = {record.path: record.type for record in view.capture.modules}
    whole = view.totals[key]
    ranked = sorted(((peak, path) for path, peak in peaks.items() if peak > limit), key=lambda pair: -pair[0])
    return [Contributor(path, kinds.get(path, ""), 1, peak, share_of(peak, whole)) for peak, path in ranked[:most]]


def _amounts(view: View, key: str) -> Mapping[str, float]:
    """By module path what the module itself adds to the total."""
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


# By key what a training step keeps in memory.
_OF_STEP = {
    "saved_activation_bytes": "saved",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer_state",
}
# By key what a parameter or buffer of the model adds: elements or bytes of some of them.
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
