"""What the sampler can read: one file per source; a quantity that cannot be read says why."""

from torchgauge.measure.readings.quantity import Quantity, Value, read_now

__all__ = ["Quantity", "Value", "read_now"]
