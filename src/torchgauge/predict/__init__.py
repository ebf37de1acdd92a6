"""Memory, time and energy of a model on a device that need not be present."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.predict.allocator import *
    from torchgauge.predict.blocks import *
    from torchgauge.predict.calibration import *
    from torchgauge.predict.convolutions import *
    from torchgauge.predict.coordinates import *
    from torchgauge.predict.devices import *
    from torchgauge.predict.fit import *
    from torchgauge.predict.host import *
    from torchgauge.predict.host_sample import *
    from torchgauge.predict.kernel_tables import *
    from torchgauge.predict.kernels import *
    from torchgauge.predict.optimizers import *
    from torchgauge.predict.steps import *
    from torchgauge.predict.tiles import *
    from torchgauge.predict.time import *
    from torchgauge.predict.trees import *
    from torchgauge.predict.workspaces import *

_HOMES = {
    "allocator": (
        "UNLIMITED", "AllocatorSettings", "Block", "CachingAllocator", "Event", "OutOfMemory", "replay",
        "smallest_limit",
    ),
    "blocks": ("ATTENTION_DEFAULTS", "BlockModel", "Streaming", "attention_microseconds", "closest_parameters"),
    "calibration": ("Layer", "calibrate_kernels", "only_place", "open_table"),
    "convolutions": (
        "PASSES", "Convolution", "estimate", "measured_workspaces", "most_bytes", "nearest_convolutions", "workspace",
    ),
    "coordinates": ("Place", "locate"),
    "devices": ("Chip", "device_names", "find_device", "find_devices"),
    "fit": ("CLASSES", "Prediction"),
    "host": ("CUDNN_ATTENTION", "Host"),
    "host_sample": ("HostSample", "host_speed"),
    "kernel_tables": ("FOLDER", "KernelTable", "Rates", "interpolate", "load_table", "read_table", "write_table"),
    "kernels": ("Library",),
    "optimizers": ("make_optimizer",),
    "steps": ("CudaRun", "Setting", "Trace", "trace"),
    "tiles": ("DEFAULTS", "Product", "TileModel", "Tiled", "Tiling"),
    "time": ("MEASURED", "RunTime", "combined_error", "predict_kernel", "predict_ops", "profile_of", "simulate_queues"),
    "trees": ("TreeNode", "build_forest"),
    "workspaces": (
        "Recurrent", "attention_backward_cudnn", "attention_backward_efficient", "embedding_backward",
        "reduction",
    ),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
