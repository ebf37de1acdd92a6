"""Peak rates, bandwidth and power by exact device and type; roofline; unknown stays unknown."""

from torchgauge.hardware.calibration import remember, remembered
from torchgauge.hardware.devices import Peaks, known_devices, published_peaks
from torchgauge.hardware.peaks import peaks_of
from torchgauge.hardware.roofline import Roof

__all__ = ["Peaks", "Roof", "known_devices", "peaks_of", "published_peaks", "remember", "remembered"]
