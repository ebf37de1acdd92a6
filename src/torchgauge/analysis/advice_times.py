"""The times that advice is measured against: predicted for the device that the user names, or for this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchgauge.cache import kernel_file
from torchgauge.errors import TorchgaugeError

if TYPE_CHECKING:
    from torchgauge.facts import Capture

_THIS = ("this", "cpu")


def expected_times(capture: Capture, on: str | Sequence[str]) -> dict[str, Any]:
    """Arguments of `Evidence` for the first device of `on` whose speed is known: seconds by op, its peaks and its name.
    Empty where only the roofline of this machine is known."""
    if not capture.has_code or (not on and not kernel_file("cpu").is_file()):
        return {}
    from torchgauge.advise import Machine, Queues
    from torchgauge.predict.calibration import present_profile
    from torchgauge.predict.devices import find_device, split_names
    from torchgauge.predict.time import peaks_of_device, predict_ops, profile_of

    calls = sum(record.calls for record in capture.modules)
    for name in [*split_names(on), "cpu"]:
        try:
            profile = present_profile(name)[0] if name in _THIS else profile_of(name)
        except TorchgaugeError:  # only a memory size, or a machine without calibration
            continue
        if name in _THIS and capture.run.device.startswith("cuda"):
            continue
        if name in _THIS:
            run = predict_ops(capture.ops, profile, module_calls=calls)
            return {"predicted": {op.index: op.time_s for op in run.ops}}
        known = capture.forecast[0] if capture.predicted is not None else {}
        if capture.predicted is not None and (known["device"], known["execution"]) == (name, "eager"):
            # As the device runs them, not as this machine would.
            device_s = {index: row["predicted_device_s"] for index, row in capture.predicted.ops.items()}
        else:
            device_s = {op.index: op.device_s for op in predict_ops(capture.ops, profile, module_calls=calls).ops}
        trains, count = capture.run.train, max(len(capture.ops), 1)
        each = calls * profile.host.module_seconds(trains=trains) / count
        host_s = {op.index: profile.host.seconds(op, trains=trains) + each for op in capture.ops}
        queues = Queues({index: (seconds, device_s.get(index, 0.0)) for index, seconds in host_s.items()})
        whole = queues.run_seconds()
        idle = max(0.0, 1 - sum(device_s.values()) / whole) if whole else 0.0
        machine = Machine(peaks_of_device(find_device(name)), matmul_tf32=False, convolution_tf32=True)
        return {"predicted": queues, "machine": machine, "on": name, "idle": idle}
    return {}
