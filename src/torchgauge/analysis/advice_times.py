"""The times that advice is measured against: predicted for the device that the user names, or for this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchgauge.errors import TorchgaugeError

if TYPE_CHECKING:
    from torchgauge.facts import Capture

_THIS = ("this", "cpu")


def expected_times(capture: Capture, on: str | Sequence[str]) -> dict[str, Any]:
    """What `Evidence` is told of the first device of `on` whose speed is known: seconds by op, its peaks and its name.
    Nothing where only the roofline of this machine is known."""
    from torchgauge.advise import Machine
    from torchgauge.predict.calibration import present_profile
    from torchgauge.predict.devices import find_device, split_names
    from torchgauge.predict.time import peaks_of_device, predict_ops, profile_of

    if not capture.has_code:
        return {}
    calls = sum(record.calls for record in capture.modules)
    for name in [*split_names(on), "cpu"]:
        try:
            profile = present_profile(name)[0] if name in _THIS else profile_of(name)
        except TorchgaugeError:  # a size of memory alone, or a machine that nobody has calibrated
            continue
        if name in _THIS and capture.run.device.startswith("cuda"):
            continue
        run = predict_ops(capture.ops, profile, module_calls=calls)
        seconds = {op.index: op.time_s for op in run.ops}
        if name in _THIS:
            return {"predicted": seconds}
        idle = max(0.0, 1 - run.device_s / run.time_s) if run.time_s else 0.0
        machine = Machine(peaks_of_device(find_device(name)), matmul_tf32=False, convolution_tf32=True)
        return {"predicted": seconds, "machine": machine, "on": name, "idle": idle}
    return {}
